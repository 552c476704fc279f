// Random damage to every kind of input file: the readers may refuse it with an InputError or read
// it, in which case every text they hand out is valid UTF-8; nothing else may happen.
// Deterministic: mutation n of a file is a Philox function of n.
#include "data/beir.h"
#include "data/text_lines.h"
#include "data/training_data.h"
#include "tests/catch.h"
#include "tests/data/files.h"
#include "tests/reference/random.h"
#include "tests/reference/temporary_directory.h"

using maxim_tests::gzip;
using maxim_tests::TemporaryDirectory;

namespace {

constexpr uint32_t kMutations = 600;

// Up to four changes: a bit, a byte or a telling token set, inserted, removed, repeated, or the end
// cut off.
std::string mutate(std::string text, uint32_t stream) {
  static const std::string kTokens[] = {"\"",
                                        "\\",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "\t",
                                        "\n",
                                        "\r\n",
                                        "\n\n",
                                        "\xFF",
                                        "\x80",
                                        "é",
                                        "\xED\xA0\x80",
                                        "\\u0",
                                        "1e999",
                                        "\\ud800",
                                        "\xEF\xBB\xBF",
                                        "-",
                                        "_id",
                                        std::string(1, '\0')};
  maxim_tests::RandomStream random(stream);
  for (uint32_t change = random.below(4) + 1; change > 0; --change) {
    const size_t at = random.below(text.size() + 1), length = random.below(text.size() - at + 1);
    switch (random.below(7)) {
      case 0:
        if (at < text.size()) text[at] ^= static_cast<char>(1 << random.below(8));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random.below(256));
        break;
      case 2:
      case 3:
        text.insert(at, kTokens[random.below(std::size(kTokens))]);
        break;
      case 4:
        text.erase(at, random.below(2) == 0 ? 1 : length);
        break;
      case 5:
        text.insert(at, text.substr(at, length));
        break;
      case 6:
        if (random.below(4) == 0) text.resize(at);
        break;
    }
  }
  return text;
}

// Runs `read` on `kMutations` mutations of a file; demands that a good share of them is read and a
// good share refused, else the mutations prove nothing.
template <class Read>
void fuzz(const std::string& content, const Read& read, bool packed = false) {
  uint32_t refused = 0;
  for (uint32_t n = 0; n < kMutations; ++n) {
    const std::string bytes = packed && n % 2 == 1 ? gzip(mutate(content, n))
                              : packed             ? mutate(gzip(content), n)
                                                   : mutate(content, n);
    INFO("mutation " << n);
    try {
      read(bytes);
    } catch (const maxim::InputError&) {
      ++refused;
    }
  }
  INFO(refused << " of " << kMutations << " refused");
  CHECK(refused > kMutations / 20);
  CHECK(refused < kMutations - kMutations / 40);
}

void check_texts(const std::vector<std::string>& texts) {
  for (const std::string& text : texts)
    if (maxim::find_invalid_utf8(text) >= 0) FAIL("not valid UTF-8: " << text);
}

const std::string kJsonl =
    "{\"query\":\"what is l\\u00efght\",\"query_id\":12,\"positive\":\"a “wave”\",\"n\":[\"x\","
    "\"\"]}\n"
    "{\"positive\":\"\",\"n\":[\"\\ud83d\\ude00\",\"y\"],\"query\":\"why\\n\",\"meta_id\":"
    "{\"a\":[1,null]}}\r\n"
    "{\"query\":\"q\",\"positive\":\"p\",\"n\":[\"a\",\"b\"]}\n";

void read_training(const TemporaryDirectory& directory, const char* name, const std::string& bytes,
                   bool skip) {
  const maxim::TrainingData data({directory.write(name, bytes)}, {.skip_bad_rows = skip});
  REQUIRE(data.rows() > 0);
  std::vector<std::string> texts;
  for (int64_t i = 0; i < data.rows(); ++i) {
    data.row(i, texts);
    REQUIRE(static_cast<int64_t>(texts.size()) == data.documents_per_query() + 1);
    check_texts(texts);
  }
  check_texts(data.warnings());
  check_texts({data.description()});
}

}  // namespace

TEST_CASE("fuzz: training data") {
  const TemporaryDirectory directory;
  const std::string tsv = "query\tpositive\tn\nwhat\ta “wave”\tx\r\n\té\t\nq\tp\tn\n";
  for (const bool skip : {false, true}) {
    fuzz(kJsonl, [&](auto& bytes) { read_training(directory, "a.jsonl", bytes, skip); });
    fuzz(tsv, [&](auto& bytes) { read_training(directory, "a.tsv", bytes, skip); });
    fuzz(tsv, [&](auto& bytes) { read_training(directory, "a", bytes, skip); });
  }
  fuzz(
      kJsonl, [&](auto& bytes) { read_training(directory, "a", bytes, true); }, true);
}

TEST_CASE("fuzz: retrieval sets and texts") {
  const TemporaryDirectory directory;
  const std::string texts =
      "{\"_id\":\"a\",\"title\":\"T\",\"text\":\"one\",\"metadata\":{}}\n"
      "{\"_id\":\"b\",\"text\":\"two\"}\n{\"_id\":\"c\",\"text\":\"thrée\"}\n";
  const std::string qrels = "query-id\tcorpus-id\tscore\na\tb\t1\nb\ta\t0\nc\tc\t-2\n";
  const auto write_all = [&] {
    directory.write("corpus.jsonl", texts);
    directory.write("queries.jsonl", texts);
    directory.write("qrels/test.tsv", qrels);
  };
  for (const char* name : {"corpus.jsonl", "queries.jsonl", "qrels/test.tsv"}) {
    write_all();
    fuzz(name[0] == 'q' && name[1] == 'r' ? qrels : texts, [&](auto& bytes) {
      directory.write(name, bytes);
      const maxim::RetrievalSet set = maxim::read_beir(directory.path(), "test");
      REQUIRE(set.relevant.size() == set.queries.ids.size());
      check_texts(set.corpus.texts);
      check_texts(set.queries.texts);
      for (const auto& relevant : set.relevant)
        for (const auto& [document, relevance] : relevant)
          REQUIRE((document >= 0 && document < static_cast<int64_t>(set.corpus.ids.size()) &&
                   relevance > 0));
    });
  }
  const auto read = [&](auto& bytes) {
    check_texts(maxim::read_texts(directory.write("texts", bytes)).texts);
  };
  fuzz(texts, read);
  fuzz("one\ntwo\r\n\nthrée “x”\n", read, true);
}
