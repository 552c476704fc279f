// Token ids. The expected ones are those of tests/golden (tokenizers 0.22.2), or can be read off
// the vocabulary in the test.
#include "data/wordpiece.h"

#include <sys/mman.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using maxim::WordPiece;
using maxim_tests::TemporaryDirectory;
using Ids = std::vector<int32_t>;

namespace {

const std::string kTinyBert = "tests/golden/tiny_bert";

Ids encode(const WordPiece& tokenizer, std::string_view text) {
  Ids ids;
  CHECK_FALSE(tokenizer.encode(text, -1, ids));
  return ids;
}

WordPiece minilm(const char* config) {
  const TemporaryDirectory directory;
  directory.write("vocab.txt", maxim::read_text("tests/golden/minilm_vocab.txt"));
  directory.write("tokenizer_config.json", config);
  return WordPiece::load(directory.path());
}

// tiny_bert's tokenizer.json after `change`.
template <class Change>
WordPiece tiny_bert(const Change& change) {
  auto document = maxim::read_json(kTinyBert + "/tokenizer.json");
  change(document);
  const TemporaryDirectory directory;
  directory.write("tokenizer.json", document.dump());
  return WordPiece::load(directory.path());
}

struct Case {
  std::string text;
  Ids uncased, cased, accents_kept, chinese_together;
};

std::vector<Case> golden_cases() {
  std::vector<Case> cases;
  std::ifstream file("tests/golden/tokenizer_cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    const Ids uncased = row["uncased"];
    cases.push_back({row["text"], uncased, row["cased"],
                     row.value("uncased_strip_accents_false", uncased),
                     row.value("uncased_no_cjk_split", uncased)});
  }
  return cases;
}

void check_cases(const WordPiece& tokenizer, Ids Case::*expected) {
  const std::vector<Case> cases = golden_cases();
  REQUIRE(cases.size() == 391);
  for (const Case& c : cases) {
    INFO("text: " << c.text);
    CHECK(encode(tokenizer, c.text) == c.*expected);
  }
}

}  // namespace

TEST_CASE("wordpiece: the golden cases, uncased") {
  check_cases(minilm(R"({"do_lower_case": true})"), &Case::uncased);
}

TEST_CASE("wordpiece: the golden cases, cased") {
  check_cases(minilm(R"({"do_lower_case": false})"), &Case::cased);
}

TEST_CASE("wordpiece: the golden cases, accents kept") {
  check_cases(minilm(R"({"do_lower_case": true, "strip_accents": false})"), &Case::accents_kept);
}

TEST_CASE("wordpiece: the golden cases, Chinese characters not split") {
  check_cases(minilm(R"({"do_lower_case": true, "tokenize_chinese_chars": false})"),
              &Case::chinese_together);
}

TEST_CASE("wordpiece: added tokens with all flags under all normalisers") {
  const auto golden = maxim::read_json("tests/golden/tokenizer_added_tokens.json");
  REQUIRE(golden["configurations"].size() == 20);
  for (const auto& configuration : golden["configurations"]) {
    const WordPiece tokenizer = tiny_bert([&](auto& document) {
      document["normalizer"] = configuration["normalizer"];
      document["added_tokens"] = configuration["added_tokens"];
      for (const char* key : {"max_input_chars_per_word", "continuing_subword_prefix"})
        document["model"][key] = configuration[key];
    });
    INFO("added tokens: " << configuration["added_tokens"].dump());
    INFO("normalizer: " << configuration["normalizer"].dump());
    for (size_t i = 0; i < golden["texts"].size(); ++i) {
      const auto text = golden["texts"][i].get<std::string>();
      const Ids expected = configuration["ids"][i];
      INFO("text: " << text);
      REQUIRE(encode(tokenizer, text) == expected);
      for (const int64_t limit : {int64_t{0}, int64_t{1}, int64_t(expected.size()) - 1,
                                  int64_t(expected.size()), int64_t(expected.size()) + 1}) {
        if (limit < 0) continue;
        const size_t kept = std::min<size_t>(limit, expected.size());
        Ids ids{-7};  // something that stands there already
        REQUIRE(tokenizer.encode(text, limit, ids) == (expected.size() > kept));
        Ids cut(expected.begin(), expected.begin() + kept);
        cut.insert(cut.begin(), -7);
        REQUIRE(ids == cut);
      }
    }
  }
}

TEST_CASE("wordpiece: the tokens of tiny_bert") {
  WordPiece tokenizer = WordPiece::load(kTinyBert);
  CHECK(tokenizer.size() == 1396);
  CHECK(tokenizer.unk() == 11);
  CHECK(tokenizer.cls() == 12);
  CHECK(tokenizer.sep() == 13);
  CHECK(tokenizer.mask() == 14);
  CHECK(tokenizer.id_of("[Q] ") == 1394);
  CHECK(tokenizer.id_of("[q] ") == -1);
  CHECK(tokenizer.id_of("!") == 15);
  CHECK(tokenizer.id_of("##bi") == 1393);
  CHECK(tokenizer.id_of("") == -1);
  CHECK(tokenizer.warnings().empty());

  // An added token is found in texts, without regard to case, since it is normalised.
  CHECK(encode(tokenizer, "[Q] ![q] ![MASK][mask]").front() == 1394);
  CHECK(encode(tokenizer, "![q] !") == Ids{15, 1394, 15});
  CHECK(encode(tokenizer, "![MASK]!") == Ids{15, 14, 15});
  // A word of the vocabulary is not, even as a prefix: it is put in by its id.
  CHECK(tokenizer.add_token("[unused0]") == 1);
  CHECK(tokenizer.size() == 1396);
  CHECK(encode(tokenizer, "[unused0]").size() > 1);
  CHECK(tokenizer.add_token("[Q] ") == 1394);
  CHECK(tokenizer.add_token("[E] ") == 1396);
  CHECK(tokenizer.size() == 1397);
  CHECK(tokenizer.id_of("[E] ") == 1396);
  CHECK(encode(tokenizer, "![e] ![D] ") == Ids{15, 1396, 15, 1395});
}

// A text is read block by block (1024 bytes). Whatever stands at the end of a block, and wherever
// in it the block ends, the ids are those of the text alone.
TEST_CASE("wordpiece: block ends") {
  const WordPiece tokenizer = tiny_bert([](auto& document) {
    const auto token = [&](int id, const char* content, bool normalized) {
      return nlohmann::ordered_json{{"id", id},
                                    {"content", content},
                                    {"single_word", id == 273},
                                    {"lstrip", id == 1397},
                                    {"rstrip", false},
                                    {"normalized", normalized},
                                    {"special", false}};
    };
    document["added_tokens"].push_back(token(1396, "new york", true));
    document["added_tokens"].push_back(token(273, "new", true));
    document["added_tokens"].push_back(token(1397, "<ent>", false));
  });
  const std::string texts[] = {
      "the new york times",
      "the newt the new!",
      "anew new",
      "é\u0301\u0302 中国 !",
      "a  <ent> b",
      "[q] [Q]  [MASK] x",
      std::string(99, 'a') + " " + std::string(101, 'a') + " b",
      std::string(1500, 'b') + "new york" + std::string(1500, 'c') + " the",
      "\U0001D16D\U0001D165 !",
      "\xF0\x9F\x98 the \xE4\xB8new\xFF york"};
  for (const std::string& text : texts) {
    const Ids alone = encode(tokenizer, text);
    for (size_t shift = 1024 - std::min<size_t>(text.size(), 1000) - 3; shift < 1030; ++shift) {
      Ids ids = encode(tokenizer, std::string(shift, ' ') + text);
      INFO("shift " << shift << ", text: " << text);
      REQUIRE(ids == alone);
      std::string words;
      while (words.size() < shift) words += words.size() % 3 == 0 ? "! " : "!";
      ids = encode(tokenizer, words + " " + text);
      REQUIRE(std::equal(alone.rbegin(), alone.rend(), ids.rbegin()));
    }
  }
}

TEST_CASE("wordpiece: words longer than a block") {
  const WordPiece tokenizer = tiny_bert([](auto& document) {
    document["model"]["max_input_chars_per_word"] = 5000;
    document["model"]["vocab"][std::string(3000, 'q')] = 1394;
    document["added_tokens"][5]["id"] = 1395;
    document["added_tokens"][6]["id"] = 1396;
  });
  CHECK(encode(tokenizer, std::string(3000, 'q') + "!") == Ids{1394, 15});
  CHECK(encode(tokenizer, std::string(5000, '1')).size() > 2000);
  CHECK(encode(tokenizer, std::string(5001, '1')) == Ids{11});
  CHECK(encode(tokenizer, std::string(100'000, 'x') + "! [Q] " + std::string(100'000, 'y')) ==
        Ids{11, 15, 1395, 11});
  // Marks and nothing else: no place to cut, and nothing comes of them.
  std::string marks = "!";
  for (int i = 0; i < 50'000; ++i) marks += "\u0301";
  CHECK(encode(tokenizer, marks + "!") == Ids{15, 15});
}

// Memory behind the first 64 KB of a 20 MB text cannot be read: a limit stops long before.
TEST_CASE("wordpiece: a limit stops reading") {
  constexpr size_t kSize = 20 << 20, kReadable = 64 << 10;
  void* map = mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(map != MAP_FAILED);
  REQUIRE(mprotect(map, kReadable, PROT_READ | PROT_WRITE) == 0);
  char* text = static_cast<char*>(map);
  for (const std::string words : {"the man ", "中国", "Été, "}) {
    for (size_t i = 0; i < kReadable; ++i) text[i] = words[i % words.size()];
    for (const WordPiece& tokenizer :
         {WordPiece::load(kTinyBert), tiny_bert([](auto& d) { d["added_tokens"].clear(); })}) {
      Ids ids;
      CHECK(tokenizer.encode({text, kSize}, 180, ids));
      CHECK(ids.size() == 180);
    }
  }
  munmap(map, kSize);
}

TEST_CASE("wordpiece: damaged UTF-8 and NUL") {
  const WordPiece tokenizer = WordPiece::load(kTinyBert);
  const Ids the = encode(tokenizer, "the");
  REQUIRE(the.size() == 1);
  CHECK(encode(tokenizer, std::string_view("t\0h\0e\0", 6)) == the);
  CHECK(encode(tokenizer,
               "t\x80h\xF0\x9F\x98"
               "e\xE4\xB8") == the);
  CHECK(encode(tokenizer, "\xFF\xFE\x80") == Ids{});
  CHECK(encode(tokenizer, "\xE4[MASK]\xB8") == Ids{14});  // no byte of the token is eaten
  // Without clean_text U+FFFD and NUL are characters of words.
  const WordPiece raw = tiny_bert([](auto& d) { d["normalizer"]["clean_text"] = false; });
  CHECK(encode(raw, std::string_view("the\0", 4)) == Ids{11});
  CHECK(encode(raw, "the\xFF the") == Ids{11, the[0]});
}

TEST_CASE("wordpiece: threads may encode at the same time") {
  const WordPiece tokenizer = WordPiece::load(kTinyBert);
  const std::vector<Case> cases = golden_cases();
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& ids : results)
    threads.emplace_back([&] {
      for (const Case& c : cases) tokenizer.encode(c.text, -1, ids);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(results[0].size() > 1000);
  for (const Ids& ids : results) CHECK(ids == results[0]);
}
