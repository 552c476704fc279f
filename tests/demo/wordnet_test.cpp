#include <utility>

#include "tests/catch.h"
#include "tests/demo/demo_program.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

// A family "thing" (00000011) with children, each of which shows one rule.
const char* kNouns =
    "  1 Lines that start with two blanks are the licence: | \"not a synset\"  \n"
    // ten (hexadecimal 0a) lemmas; of its seven hyponyms six are told, the last as an instance (~i)
    "00000011 03 n 0a thing 0 b_b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 008 "
    "+ 00000999 v 0000 ~ 00000021 n 0000 ~ 00000031 n 0000 ~ 00000041 n 0000 ~ 00000051 n 0000 "
    "~ 00000110 n 0000 ~i 00000071 n 0000 ~ 00000081 n 0000 | what there is and has a name;  \n"
    // two lemmas of the first hypernym and one of the second; a verb target is none of its words
    "00000021 06 n 01 tool 0 007 @ 00000011 n 0000 @ 00000031 n 0000 %p 00000031 n 0000 "
    "#p 00000041 n 0000 ;c 00000051 n 0000 ~ 00000999 v 0000 @ 00000041 n 0000 | made for some "
    "\"use\" by hand; held in the hand ;  \"a sharp tool\"; \"a second\"; \"a third\"  \n"
    "00000031 06 n 02 blade 0 Edge_B 0 001 @ 00000011 n 0000 | the part that does cut well\n"
    // its definition has a lemma of its own as a word; "hand-axe" would be one, "handaxe" is not
    "00000041 06 n 01 axe 0 001 @ 00000011 n 0000 | a heavy hand-Axe to cut trees\n"
    "00000051 06 n 01 field 0 001 @ 00000011 n 0000 | only four words here\n"
    // an animal, a plant, an instance, a definition told before
    "00000061 05 n 01 cat 0 001 @ 00000011 n 0000 | it purrs and it sleeps all day\n"
    "00000062 20 n 01 oak 0 001 @ 00000011 n 0000 | it grows and it stands all day\n"
    "00000071 15 n 01 Rome 0 001 @i 00000011 n 0000 | the seat of an old empire\n"
    "00000081 06 n 01 copy 0 001 @ 00000011 n 0000 | the part that does cut well\n"
    // one more child of 00000011, two only children, two siblings with one card
    "00000091 06 n 01 field_axe 0 001 @ 00000011 n 0000 | what is left of the family\n"
    "00000092 06 n 01 handle 0 001 @ 00000021 n 0000 | where a hand takes hold now\n"
    "00000093 06 n 01 handle 0 001 @ 00000041 n 0000 | another sense, and the same card\n"
    "00000094 06 n 01 handle 0 001 @ 00000031 n 0000 | a third that is kind of blade\n"
    "00000095 06 n 01 handle 0 001 @ 00000031 n 0000 | a fourth that has the same card\n"
    // held out: test query, dev query, document alone
    "00000100 06 n 01 try 0 000 | to see \"if\" it does work;\"an example\"\n"
    "00000110 06 n 01 rehearsal 0 000 | to see before that it works\n"
    "00000120 06 n 01 trial 0 000 | to see before a judge who is right\n";

}  // namespace

TEST_CASE("wordnet writes the rows that its rules give by hand") {
  const TemporaryDirectory directory;
  directory.write("data.noun", kNouns);
  const RunResult result =
      run_demo("wordnet", {directory.file("data.noun"), directory.file("text")});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out == "8 training rows, 3 documents, 1 test and 1 dev queries\n");

  const std::string thing =
      "thing, b b, c, d, e, f, g, h, i, j. includes: tool, blade, axe, field, rehearsal, Rome";
  const std::string tool =
      "tool. kind of: thing, b b, blade. has parts: blade. part of: axe. field: field"
      ". for example: a sharp tool; a second";
  const std::string blade = "blade, Edge B. kind of: thing, b b";
  const std::string field_axe = "field axe. kind of: thing, b b";
  const std::string handle = "handle. kind of: ";
  CHECK(read_text(directory.file("text/train.tsv")) ==
        // alone without a hypernym: the row before, and before the first row the last
        "what there is and has a name\t" + thing + "\t" + handle + "blade, Edge B\n" +
            // the first of its family takes the last, the others the one before
            "made for some \"use\" by hand; held in the hand\t" + tool + "\t" + field_axe + "\n" +
            "the part that does cut well\t" + blade + "\t" + tool + "\n" +
            "what is left of the family\t" + field_axe + "\t" + blade + "\n" +
            // only children: the row before
            "where a hand takes hold now\t" + handle + "tool\t" + field_axe + "\n" +
            "another sense, and the same card\t" + handle + "axe\t" + handle + "tool\n" +
            // the sibling has the same card: the next row before it that has another
            "a third that is kind of blade\t" + handle + "blade, Edge B\t" + handle + "axe\n" +
            "a fourth that has the same card\t" + handle + "blade, Edge B\t" + handle + "axe\n");
  CHECK(read_text(directory.file("text/corpus.jsonl")) ==
        "{\"_id\":\"n00000100\",\"title\":\"\",\"text\":\"try. for example: an example\"}\n"
        "{\"_id\":\"n00000110\",\"title\":\"\",\"text\":\"rehearsal\"}\n"
        "{\"_id\":\"n00000120\",\"title\":\"\",\"text\":\"trial\"}\n");
  CHECK(read_text(directory.file("text/queries.jsonl")) ==
        "{\"_id\":\"q00000100\",\"text\":\"to see \\\"if\\\" it does work\"}\n"
        "{\"_id\":\"q00000110\",\"text\":\"to see before that it works\"}\n");
  CHECK(read_text(directory.file("text/qrels/test.tsv")) ==
        "query-id\tcorpus-id\tscore\nq00000100\tn00000100\t1\n");
  CHECK(read_text(directory.file("text/qrels/dev.tsv")) ==
        "query-id\tcorpus-id\tscore\nq00000110\tn00000110\t1\n");
}

TEST_CASE("wordnet says where a file is not WordNet's, and writes nothing") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no synset"},
      {"  licence | alone\n", "no synset"},
      {"00000011 03 n 01 thing 0 000 no bar\n", "data.noun:1: expected \" | \""},
      {"  licence\n00000011 03 v 01 go 0 000 | to move\n", "data.noun:2: expected \"offset"},
      {"11 03 n 01 thing 0 000 | what there is\n", "data.noun:1: expected \"offset"},
      {"00000011 03 n 02 thing 0 000 | what there is\n", "data.noun:1: 2 lemmas"},
      {"00000011 03 n 01 thing 0 002 @ 00000012 n 0000 | what there is\n", "or 2 pointers"},
      {"00000011 03 n 01 item 0 001 @ 00000012 n 0000 | what there is in it\n",
       "synset 00000011 points to 00000012"},
      {"00000011 03 n 01 item 0 000 | what there is in it\n", "no two training rows"},
  };
  for (const auto& [text, words] : cases) {
    const TemporaryDirectory directory;
    directory.write("data.noun", text);
    const RunResult result =
        run_demo("wordnet", {directory.file("data.noun"), directory.file("text")});
    INFO(text << "\n" << result.err);
    CHECK(result.exit_code == 2);
    CHECK(count_of(result.err, words) == 1);
    CHECK_FALSE(file_exists(directory.file("text")));
  }
  const RunResult missing = run_demo("wordnet", {"/nowhere/data.noun", "/nowhere/text"});
  CHECK(missing.exit_code == 2);
  CHECK(count_of(missing.err, "/nowhere/data.noun") == 1);
  CHECK(run_demo("wordnet", {}).exit_code == 2);
}
