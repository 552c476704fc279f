// Reading and writing tokenizer files through WordPiece::load and save. What Hugging Face makes of
// each odd vocab.txt was seen with transformers 5.3.0 and tokenizers 0.22.2.
#include <string>
#include <vector>

#include "data/wordpiece.h"
#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/data/files.h"
#include "tests/reference/random.h"
#include "tests/reference/temporary_directory.h"

using Catch::Matchers::Contains;
using Json = nlohmann::ordered_json;
using maxim::read_text;
using maxim::WordPiece;
using maxim_tests::input_error;
using maxim_tests::TemporaryDirectory;
using Ids = std::vector<int32_t>;

namespace {

const std::string kTinyBert = "tests/golden/tiny_bert";
const std::string kWords = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##b\nthe\n";  // ids 0 to 8

struct File {
  const char* name;
  std::string content;
};

WordPiece load(const std::vector<File>& files) {
  const TemporaryDirectory directory;
  for (const File& file : files) directory.write(file.name, file.content);
  return WordPiece::load(directory.path());
}

WordPiece load_vocabulary(const std::string& words) {
  return load({{"vocab.txt", words}, {"tokenizer_config.json", R"({"do_lower_case": true})"}});
}

// The message without the directory's name.
std::string error_of(const std::vector<File>& files) {
  const TemporaryDirectory directory;
  for (const File& file : files) directory.write(file.name, file.content);
  std::string message = input_error([&] { WordPiece::load(directory.path()); });
  for (size_t at; (at = message.find(directory.path())) != message.npos;)
    message.replace(at, directory.path().size(), "DIR");
  return message;
}

Ids encode(const WordPiece& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, -1, ids);
  return ids;
}

std::string all_warnings(const WordPiece& tokenizer) {
  std::string all;
  for (const std::string& line : tokenizer.warnings()) all += line + "\n";
  return all;
}

// tiny_bert's tokenizer.json after `change`.
template <class Change>
std::string tokenizer_json(const Change& change) {
  Json document = maxim::read_json(kTinyBert + "/tokenizer.json");
  change(document);
  return document.dump();
}

// Saves, loads, saves: the two copies must agree byte for byte. Returns the first.
std::pair<std::string, std::string> saved(const WordPiece& tokenizer) {
  const TemporaryDirectory first, second;
  tokenizer.save(first.path());
  WordPiece::load(first.path()).save(second.path());
  const auto both = [](const TemporaryDirectory& d) {
    return std::pair{read_text(d.file("tokenizer.json")),
                     read_text(d.file("tokenizer_config.json"))};
  };
  CHECK(both(first) == both(second));
  return both(first);
}

}  // namespace

TEST_CASE("tokenizer files: what PyLate saved is saved again byte for byte") {
  const auto [json, config] = saved(WordPiece::load(kTinyBert));
  CHECK((json == read_text(kTinyBert + "/tokenizer.json")));
  CHECK(config == read_text(kTinyBert + "/tokenizer_config.json"));
}

TEST_CASE("tokenizer files: vocab.txt and two prefixes become what PyLate saves") {
  WordPiece tokenizer =
      load({{"vocab.txt", read_text(kTinyBert + "/vocab.txt")},
            {"tokenizer_config.json", R"({"do_lower_case": true, "model_max_length": 256})"}});
  CHECK(tokenizer.add_token("[Q] ") == 1394);
  CHECK(tokenizer.add_token("[D] ") == 1395);
  const auto [json, config] = saved(tokenizer);
  CHECK((json == read_text(kTinyBert + "/tokenizer.json")));
  CHECK(config == read_text(kTinyBert + "/tokenizer_config.json"));
}

TEST_CASE("tokenizer files: unknown members of both files are kept") {
  WordPiece tokenizer =
      load({{"tokenizer.json", tokenizer_json([](Json& d) {
               d["truncation"] = {{"max_length", 128}};
               d["padding"] = {{"pad_id", 0}};
               d["decoder"]["cleanup"] = false;
               d["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"[SEP]", 13}}};
               d["zzz"] = {1, "é\u2028\x01"};
             })},
            {"tokenizer_config.json",
             R"({"do_lower_case": true, "zzz": {"b": 1, "a": null}, "name_or_path": "x",
                 "model_max_length": 1000000000000000019884624838656, "mask_token":
                 {"__type": "AddedToken", "content": "[MASK]"}})"}});
  const auto [json, config] = saved(tokenizer);
  const Json document = Json::parse(json);
  CHECK(document["truncation"].is_null());
  CHECK(document["padding"].is_null());
  CHECK(document["decoder"]["cleanup"] == false);
  CHECK(document["post_processor"]["sep"][1] == 13);
  CHECK(document["zzz"] == Json({1, "é\u2028\x01"}));
  CHECK(document["added_tokens"].size() == 7);
  const Json c = Json::parse(config);
  CHECK(c["zzz"].dump() == R"({"a":null,"b":1})");
  CHECK(c["mask_token"] == "[MASK]");
  CHECK(c["pad_token"] == "[MASK]");
  CHECK_FALSE(c.contains("name_or_path"));
  CHECK_FALSE(c.contains("model_max_length"));
}

TEST_CASE("tokenizer files: options survive saving") {
  const WordPiece tokenizer =
      load({{"vocab.txt", kWords},
            {"tokenizer_config.json", R"({"do_lower_case": false, "strip_accents": true,
         "tokenize_chinese_chars": false, "mask_token": "the", "unk_token": "b"})"}});
  const auto [json, config] = saved(tokenizer);
  const Json document = Json::parse(json), c = Json::parse(config);
  CHECK(document["normalizer"].dump() ==
        R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":false,)"
        R"("strip_accents":true,"lowercase":false})");
  CHECK(document["model"]["unk_token"] == "b");
  CHECK(c["strip_accents"] == true);
  CHECK(c["do_lower_case"] == false);
  CHECK(c["tokenize_chinese_chars"] == false);
  CHECK(c["mask_token"] == "the");
  const WordPiece again = load({{"tokenizer.json", json}, {"tokenizer_config.json", config}});
  CHECK(again.mask() == 8);
  CHECK(again.unk() == 6);
  CHECK(encode(again, "the á A") == Ids{8, 5, 6});
}

TEST_CASE("tokenizer files: vocab.txt, lines that Hugging Face takes") {
  struct {
    const char* what;
    std::string words;
    int32_t size, the;
  } const cases[] = {
      {"plain", kWords, 9, 8},
      {"no LF at the end", kWords.substr(0, kWords.size() - 1), 9, 8},
      {"CR LF", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\na\r\nthe\r\n", 7, 6},
      {"CR at the end", kWords + "x\r", 10, 8},
      {"blank line at the end", kWords + "\n", 10, 8},
      {"blank line in the middle", "[PAD]\n[UNK]\n\n[CLS]\n[SEP]\n[MASK]\nthe\n", 7, 6},
      {"blanks behind a word", kWords + "x \t\u3000\n", 10, 8},
      {"U+2028 as a word", "[PAD]\n\u2028\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n", 7, 6},
      {"U+0085 as a word", "[PAD]\n\u0085\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n", 7, 6},
      {"U+2028, FF, CR inside a word", kWords + "x\u2028y\nx\fy\nx\ry\n", 12, 8}};
  for (const auto& c : cases) {
    INFO(c.what);
    const WordPiece tokenizer = load_vocabulary(c.words);
    CHECK(tokenizer.size() == c.size);
    CHECK(encode(tokenizer, "The") == Ids{c.the});
    CHECK(all_warnings(tokenizer) == "");
  }
  CHECK(load_vocabulary(kWords + "x \n").id_of("x") == 9);
  CHECK(load_vocabulary(kWords + "x\ry\n").id_of("x\ry") == 9);
}

TEST_CASE("tokenizer files: vocab.txt, repeated words") {
  WordPiece tokenizer = load_vocabulary(kWords + "the\na\n");
  CHECK(tokenizer.size() == 11);
  CHECK(encode(tokenizer, "the a") == Ids{9, 10});  // the last one counts
  CHECK_THAT(all_warnings(tokenizer),
             Contains("vocab.txt: line 10: \"the\" stands in line 9 already (2 such lines)"));
  // Hugging Face would give it the id 9, which is that of "the".
  CHECK_THAT(input_error([&] { tokenizer.add_token("[Q] "); }),
             Contains("\"[Q] \" cannot be added") && Contains("9 words") && Contains("id 9"));
  const auto [json, config] = saved(tokenizer);
  CHECK(encode(load({{"tokenizer.json", json}}), "the a") == Ids{9, 10});
}

TEST_CASE("tokenizer files: vocab.txt, what is refused") {
  CHECK_THAT(error_of({{"vocab.txt", "\xEF\xBB\xBF" + kWords}}),
             Contains("DIR/vocab.txt: line 1: ") && Contains("byte order mark"));
  CHECK_THAT(error_of({{"vocab.txt", kWords + "caf\xE9\n"}}),
             Contains("DIR/vocab.txt: line 10: not UTF-8"));
  CHECK_THAT(error_of({{"vocab.txt", std::string("\xFF\xFE[\0P\0", 6)}}),
             Contains("line 1: not UTF-8"));
  for (const char* token : {"[CLS]", "[SEP]", "[UNK]", "[MASK]"}) {
    std::string words = kWords;
    words.replace(words.find(token), 5, "other");
    CHECK_THAT(error_of({{"vocab.txt", words}}), Contains("DIR") && Contains(token));
  }
  CHECK_THAT(error_of({}), Contains("DIR: there is neither tokenizer.json nor vocab.txt"));
}

TEST_CASE("tokenizer files: a missing [PAD] gets the next id") {
  std::string words = kWords;
  words.replace(0, 5, "other");
  const WordPiece tokenizer = load_vocabulary(words);
  CHECK(tokenizer.id_of("[PAD]") == 9);
  CHECK(tokenizer.size() == 10);
  CHECK_THAT(all_warnings(tokenizer), Contains("lacks the pad_token \"[PAD]\""));
  // But not when the padding is another token, as in all that PyLate saves.
  CHECK(load({{"vocab.txt", words}, {"tokenizer_config.json", R"({"pad_token": "[MASK]"})"}})
            .size() == 9);
}

TEST_CASE("tokenizer files: who decides about casing") {
  const std::string cased = tokenizer_json([](Json& d) { d["normalizer"]["lowercase"] = false; });
  const std::string uncased = tokenizer_json([](Json&) {});
  const auto lowers = [](const WordPiece& t) { return encode(t, "THE") == encode(t, "the"); };
  const auto config = [](const char* text) { return File{"tokenizer_config.json", text}; };

  SECTION("tokenizer_config.json over tokenizer.json, with a warning") {
    const WordPiece a = load({{"tokenizer.json", cased}, config(R"({"do_lower_case": true})")});
    CHECK(lowers(a));
    CHECK_THAT(all_warnings(a),
               Contains("\"do_lower_case\": true overrides tokenizer.json's false"));
    const WordPiece b = load({{"tokenizer.json", uncased}, config(R"({"do_lower_case": false})")});
    CHECK_FALSE(lowers(b));
    const auto [json, saved_config] = saved(b);
    CHECK(Json::parse(json)["normalizer"]["lowercase"] == false);
    const WordPiece c = load({{"tokenizer.json", uncased}, config(R"({"do_lower_case": true})")});
    CHECK(all_warnings(c) == "");
  }
  SECTION("tokenizer.json alone") {
    CHECK(lowers(load({{"tokenizer.json", uncased}})));
    const WordPiece tokenizer = load({{"tokenizer.json", cased}});
    CHECK_FALSE(lowers(tokenizer));
    CHECK_THAT(all_warnings(tokenizer), Contains("transformers would lower-case"));
  }
  SECTION("a tokenizer class that takes tokenizer.json as it is") {
    CHECK(lowers(load({{"tokenizer.json", uncased}, config(R"({"do_lower_case": false,
                                  "tokenizer_class": "PreTrainedTokenizerFast"})")})));
  }
  SECTION("neither") {
    const WordPiece tokenizer = load({{"vocab.txt", kWords + "The\nNew\n"}});
    CHECK(lowers(tokenizer));
    CHECK_THAT(all_warnings(tokenizer), Contains("lower-cased, which is the default") &&
                                            Contains("2 words") && Contains("\"New\""));
    CHECK_THAT(all_warnings(load({{"vocab.txt", kWords}})),
               Contains("which is the default") && !Contains("upper-case letters"));
  }
}

TEST_CASE("tokenizer files: strip_accents has three states") {
  for (const char* config : {"null", "true", "false"})
    for (const bool lower : {true, false}) {
      const WordPiece tokenizer = load(
          {{"vocab.txt", kWords + "á\n"},
           {"tokenizer_config.json", std::string(R"({"strip_accents": )") + config +
                                         R"(, "do_lower_case": )" + (lower ? "true}" : "false}")}});
      const bool strips = config[0] == 't' || (config[0] == 'n' && lower);
      INFO(config << " " << lower);
      CHECK(encode(tokenizer, "á") == Ids{strips ? 5 : 9});
      CHECK(Json::parse(saved(tokenizer).second)["strip_accents"].dump() == config);
    }
  // In tokenizer.json, and overridden.
  const std::string json =
      tokenizer_json([](Json& d) { d["normalizer"]["strip_accents"] = false; });
  const Ids a = encode(WordPiece::load(kTinyBert), "a");
  CHECK(encode(load({{"tokenizer.json", json}}), "á") != a);
  const WordPiece overridden =
      load({{"tokenizer.json", json}, {"tokenizer_config.json", R"({"strip_accents": null})"}});
  CHECK(encode(overridden, "á") == a);
  CHECK_THAT(all_warnings(overridden),
             Contains("\"strip_accents\": null overrides tokenizer.json's false"));
}

TEST_CASE("tokenizer files: added tokens beside vocab.txt") {
  const char* decoder = R"({"do_lower_case": true, "added_tokens_decoder": {
    "10": {"content": "[D] "}, "4": {"content": "[MASK]", "lstrip": true, "special": true},
    "9": {"content": "[Q] ", "normalized": false}}})";
  WordPiece tokenizer = load({{"vocab.txt", kWords}, {"tokenizer_config.json", decoder}});
  CHECK(tokenizer.size() == 11);
  CHECK(encode(tokenizer, "a[Q] [q] [d] a") == Ids{5, 9, 1, 1, 1, 10, 5});
  CHECK(encode(tokenizer, "[d] [MASK]") == Ids{1, 1, 1, 4});  // lstrip takes the blank of "[d] "
  CHECK(Json::parse(saved(tokenizer).first)["added_tokens"].size() == 7);

  tokenizer = load({{"vocab.txt", kWords},
                    {"tokenizer_config.json", R"({"do_lower_case": true})"},
                    {"added_tokens.json", R"({"[D] ": 10, "[Q] ": 9})"},
                    {"special_tokens_map.json", R"({"mask_token": {"content": "the"},
                      "additional_special_tokens": ["[E]"]})"}});
  CHECK(tokenizer.mask() == 8);
  CHECK(tokenizer.id_of("[E]") == 11);
  CHECK(encode(tokenizer, "a [q] [d] [E] the") == Ids{5, 9, 10, 11, 8});
  CHECK(saved(tokenizer).second.find("\"mask_token\": \"the\"") != std::string::npos);

  // Ids that Hugging Face would not give.
  CHECK_THAT(error_of({{"vocab.txt", kWords}, {"added_tokens.json", R"({"[Q] ": 10})"}}),
             Contains("DIR/added_tokens.json") && Contains("\"[Q] \" is listed with id 10") &&
                 Contains("would give it 9"));
}

TEST_CASE("tokenizer files: added tokens beside tokenizer.json") {
  const std::string json = tokenizer_json([](Json&) {});
  const WordPiece tokenizer =
      load({{"tokenizer.json", json},
            {"tokenizer_config.json", R"({"do_lower_case": true, "added_tokens_decoder": {
              "1394": {"content": "[Q] ", "normalized": false},
              "1396": {"content": "[E] "}}})"}});
  CHECK(tokenizer.id_of("[E] ") == 1396);
  CHECK(encode(tokenizer, "[q] !") != Ids{1394, 15});
  CHECK(encode(tokenizer, "[Q] !") == Ids{1394, 15});
  CHECK_THAT(all_warnings(tokenizer), Contains("overrides the flags") && Contains("[Q] "));
  const WordPiece legacy =
      load({{"tokenizer.json", json}, {"added_tokens.json", R"({"[E] ": 1396, "[Q] ": 1394})"}});
  CHECK(legacy.id_of("[E] ") == 1396);
  CHECK(encode(legacy, "[q] !") == Ids{1394, 15});
}

TEST_CASE("tokenizer files: max_input_chars_per_word counts characters") {
  const WordPiece tokenizer =
      load({{"tokenizer.json",
             tokenizer_json([](Json& d) { d["model"]["max_input_chars_per_word"] = 3; })},
            {"tokenizer_config.json", R"({"do_lower_case": true})"}});
  CHECK(encode(tokenizer, "111").size() == 2);  // 1 ##11
  CHECK(encode(tokenizer, "1111") == Ids{11});
  CHECK(encode(tokenizer, "é1é") == encode(tokenizer, "e1e"));
  CHECK(encode(tokenizer, "the they") == Ids{tokenizer.id_of("the"), 11});
}

TEST_CASE("tokenizer files: what is refused in tokenizer.json") {
  const auto error = [](const auto& change) {
    return error_of({{"tokenizer.json", tokenizer_json(change)}});
  };
  CHECK_THAT(error([](Json& d) { d["model"]["type"] = "BPE"; }),
             Contains("DIR/tokenizer.json: model is a BPE; Maxim reads WordPiece"));
  CHECK_THAT(error([](Json& d) { d["normalizer"]["type"] = "NFC"; }), Contains("BertNormalizer"));
  CHECK_THAT(error([](Json& d) { d["normalizer"] = nullptr; }), Contains("\"normalizer\""));
  CHECK_THAT(error([](Json& d) { d["pre_tokenizer"]["type"] = "Metaspace"; }),
             Contains("BertPreTokenizer"));
  CHECK_THAT(error([](Json& d) { d["version"] = "2.0"; }), Contains("version 2.0"));
  CHECK_THAT(error([](Json& d) { d["model"].erase("max_input_chars_per_word"); }),
             Contains("max_input_chars_per_word"));
  CHECK_THAT(error([](Json& d) { d["model"]["max_input_chars_per_word"] = -1; }), Contains("-1"));
  CHECK_THAT(error([](Json& d) { d["model"]["vocab"] = Json::array({"a"}); }),
             Contains("model.vocab"));
  CHECK_THAT(error([](Json& d) { d["model"]["vocab"]["the"] = 15; }),
             Contains("\"!\" and \"the\" have the same id 15"));
  CHECK_THAT(error([](Json& d) { d["model"]["vocab"]["the"] = "15"; }), Contains("the"));
  CHECK_THAT(error([](Json& d) { d["model"]["vocab"]["the"] = Json::array({1}); }),
             Contains("the"));
  CHECK_THAT(error([](Json& d) { d["model"]["vocab"]["the"] = 1u << 31; }), Contains("2147483648"));
  CHECK_THAT(error([](Json& d) { d["model"]["unk_token"] = "[Q] "; }), Contains("unk_token"));
  CHECK_THAT(error([](Json& d) { d["model"]["vocab"].erase("the"); }),
             Contains("cannot be added") && Contains("[Q] "));
  CHECK_THAT(error([](Json& d) { d["added_tokens"][5]["id"] = 7; }),
             Contains("listed with id 7") && Contains("1394"));
  CHECK_THAT(error([](Json& d) { d["added_tokens"][5]["content"] = "[MASK]"; }),
             Contains("listed twice"));
  CHECK_THAT(error([](Json& d) { d["added_tokens"][5]["content"] = "\u0301"; }),
             Contains("nothing left"));
  CHECK_THAT(error([](Json& d) { d["added_tokens"][5]["special"] = 1; }), Contains("special"));
  CHECK_THAT(error_of({{"tokenizer.json", "{\"model\": "}}),
             Contains("DIR/tokenizer.json: not valid JSON"));
}

// Files of 30,000 words must load at once (an ordered_json of them would take half a second), which
// is why the words are taken out while parsing; a member of the same name elsewhere is not.
TEST_CASE("tokenizer files: only model.vocab holds words") {
  const WordPiece tokenizer = load({{"tokenizer.json", tokenizer_json([](Json& d) {
                                       d["decoder"]["vocab"] = {{"zzz", 5000}};
                                       d["model"]["other"] = {{"vocab", {{"zzz", 5000}}}};
                                       d["vocab"] = {{"zzz", 5000}};
                                     })}});
  CHECK(tokenizer.id_of("zzz") == -1);
  CHECK(tokenizer.size() == 1396);
  const Json document = Json::parse(saved(tokenizer).first);
  CHECK(document["decoder"]["vocab"]["zzz"] == 5000);
  CHECK(document["model"]["other"]["vocab"]["zzz"] == 5000);
  CHECK(document["model"]["vocab"].size() == 1394);
}

namespace {

std::string mutate(std::string text, maxim_tests::RandomStream& random) {
  static const std::string kTokens[] = {"\"",
                                        "\\",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "true",
                                        "false",
                                        "-1",
                                        "1e99",
                                        "0",
                                        "99999999",
                                        "\n",
                                        "\r\n",
                                        "\n\n",
                                        "\xFF",
                                        "\u2028",
                                        "\u0301",
                                        "\uFFFD",
                                        "\\ud800",
                                        "[Q] ",
                                        "[MASK]",
                                        "\"vocab\":{",
                                        "\"id\":5,",
                                        "\"content\":\"\",",
                                        std::string(1, '\0')};
  for (uint32_t change = random.below(4) / 3 + 1; change > 0; --change) {
    const size_t at = random.below(text.size() + 1), length = random.below(20);
    switch (random.below(6)) {
      case 0:
        if (at < text.size()) text[at] ^= static_cast<char>(1 << random.below(8));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        text.insert(at, kTokens[random.below(std::size(kTokens))]);
        break;
      case 3:
        text.erase(at, length);
        break;
      case 4:
        text.insert(at, text.substr(at, length));
        break;
      case 5:
        if (random.below(8) == 0) text.resize(at);
        break;
    }
  }
  return text;
}

}  // namespace

// Damaged files are read or refused with an InputError; nothing else may happen. What is read can
// encode, and saves what it would load again.
TEST_CASE("fuzz: tokenizer files") {
  Json small = maxim::read_json(kTinyBert + "/tokenizer.json");
  small["model"]["vocab"] = Json::object();
  small["added_tokens"].erase(small["added_tokens"].begin() + 5, small["added_tokens"].end());
  int id = 0;
  for (const char* word : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "the"})
    small["model"]["vocab"][word] = id++;
  for (auto& token : small["added_tokens"])
    token["id"] = small["model"]["vocab"][token["content"].get<std::string>()];
  const std::string config = R"({"do_lower_case": true, "strip_accents": null,
    "mask_token": {"content": "[MASK]", "lstrip": true}, "added_tokens_decoder": {
    "9": {"content": "[Q] ", "single_word": true}, "1": {"content": "[UNK]"}}})";
  const std::string map = R"({"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}})";
  const std::string added = R"({"[Q] ": 9, "[D] ": 10})";
  const File files[] = {{"tokenizer.json", small.dump(1)},
                        {"tokenizer.json", read_text(kTinyBert + "/tokenizer.json")},
                        {"vocab.txt", kWords},
                        {"tokenizer_config.json", config},
                        {"special_tokens_map.json", map},
                        {"added_tokens.json", added}};
  const std::string text = "The [MASK][q]  ab bb \u0301\u2028 <x> \xF0\x9F";
  int loaded = 0, refused = 0;
  for (const File& damaged : files) {
    REQUIRE(error_of({{"vocab.txt", kWords}, damaged}) == "no InputError");
    for (uint32_t n = 0; n < 200; ++n) {
      const std::string name = damaged.name;
      const TemporaryDirectory directory, copy;
      directory.write("vocab.txt", kWords);
      if (name == "added_tokens.json" && n % 2 == 0)
        directory.write("tokenizer.json", small.dump());
      maxim_tests::RandomStream random(n);
      directory.write(name, mutate(damaged.content, random));
      INFO(name << ", mutation " << n);
      try {
        WordPiece tokenizer = WordPiece::load(directory.path());
        ++loaded;
        const Ids ids = encode(tokenizer, text);
        for (const int32_t i : ids) REQUIRE((i >= 0 && i < tokenizer.size()));
        if (n % 8 != 0) continue;  // saving waits for the disk
        tokenizer.save(copy.path());
        REQUIRE(encode(WordPiece::load(copy.path()), text) == ids);
        tokenizer.add_token("[E] ");
      } catch (const maxim::InputError&) {
        ++refused;
      }
    }
  }
  INFO(loaded << " loaded, " << refused << " refused");
  CHECK(loaded > 200);
  CHECK(refused > 200);
}
