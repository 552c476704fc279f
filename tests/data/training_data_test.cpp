#include "data/training_data.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/data/files.h"
#include "tests/reference/temporary_directory.h"

using Catch::Matchers::Contains;
using maxim::TrainingData;
using maxim::TrainingDataOptions;
using maxim_tests::gzip;
using maxim_tests::input_error;
using maxim_tests::TemporaryDirectory;

namespace {

using Rows = std::vector<std::vector<std::string>>;

const TrainingDataOptions kSkip = {.skip_bad_rows = true};

Rows rows_of(const TrainingData& data) {
  Rows rows(static_cast<size_t>(data.rows()));
  for (int64_t i = 0; i < data.rows(); ++i) data.row(i, rows[static_cast<size_t>(i)]);
  return rows;
}

Rows read(std::string_view content, const char* name = "rows.jsonl",
          const TrainingDataOptions& options = {}) {
  const TemporaryDirectory directory;
  return rows_of(TrainingData({directory.write(name, content)}, options));
}

// The message without the directory's name.
std::string error_of(std::string_view content, const char* name = "rows.jsonl",
                     const TrainingDataOptions& options = {}) {
  const TemporaryDirectory directory;
  const std::string path = directory.write(name, content);
  const std::string error = input_error([&] { TrainingData({path}, options); });
  return error.starts_with(path) ? name + error.substr(path.size()) : error;
}

const std::string kRow = R"({"query":"q","positive":"p","negative":"n"})"
                         "\n";

}  // namespace

TEST_CASE("training_data: jsonl columns") {
  const Rows want = {{"q", "p", "n"}};
  CHECK(read(kRow) == want);
  CHECK(read(R"({"negative":"n","positive":"p","query":"q"})") == want);
  CHECK(read(R"({"x":"p","anchor":"q","y":"n"})") == want);
  CHECK(read(R"({"question":"q","answer":"p","other":"n"})") == want);  // the first text column
  CHECK(read(R"({"query_text":"q","query_id":7,"_id":null,"a":"p","b_id":{"x":[1]},"c":"n"})") ==
        want);
  CHECK(read(R"({"query":"q","documents":["p","n"]})") == want);
  CHECK(read(R"({"documents":["p","n"],"text":"q"})") == want);  // a list is no query
  CHECK(read(R"({"query":"q","neg":["n"],"pos":["p"]})") == want);
  CHECK(read(R"({"query":"q","positive":"p","negatives":[]})") == Rows{{"q", "p"}});
  CHECK(read(R"({"query":"q","positive":"p"})") == Rows{{"q", "p"}});
  const Rows list = read(R"({"query":"q","positive":"p","negatives":["a","b","c"]})");
  const Rows numbered = read(R"({"query":"q","positive":"p","n1":"a","n2":"b","n3":"c"})");
  CHECK(list == numbered);
  CHECK(list == Rows{{"q", "p", "a", "b", "c"}});
  // Later rows are read by name, and may lack or add ignored columns.
  CHECK(read(R"({"query":"q","positive":"p","x_id":1})"
             "\n"
             R"({"y_id":2, "positive":"p2", "query":"q2"})") == Rows{{"q", "p"}, {"q2", "p2"}});
}

TEST_CASE("training_data: texts arrive as they are") {
  CHECK(read(R"({"query":"a\tb\nc\r\"\\\/\u0000\u20ac\ud83d\ude00","positive":""})") ==
        Rows{{std::string("a\tb\nc\r\"\\/\0€😀", 17), ""}});
  CHECK(read("{\"query\":\" a\xE2\x80\xA8\xC2\x85 \",\"positive\":\"é\x7F\"}\r\n") ==
        Rows{{" a\xE2\x80\xA8\xC2\x85 ", "é\x7F"}});
  CHECK(read(" a\xE2\x80\xA8\"\"\t'\\n\r\"", "rows.tsv") ==
        Rows{{" a\xE2\x80\xA8\"\"", "'\\n\r\""}});
  CHECK(read(std::string_view("a\0b\tc\r\n", 7), "rows.tsv") ==
        Rows{{std::string("a\0b", 3), "c"}});
}

TEST_CASE("training_data: tsv") {
  const Rows want = {{"q", "p", "n"}, {"", "", ""}};
  CHECK(read("q\tp\tn\n\t\t\n", "rows.tsv") == want);
  CHECK(read("q\tp\tn\r\n\t\t", "rows.txt") == want);  // by its content
  CHECK(read("\xEF\xBB\xBFquery\tpositive\tnegative\nq\tp\tn\n\t\t\n\n\r\n", "rows.tsv") == want);
  CHECK(read("query\tpositively\nq\tp\n", "rows.tsv").size() == 2);
  CHECK(read("query\tpositive\nq\tp\n", "rows.tsv") == Rows{{"q", "p"}});
  CHECK_THAT(error_of("q\n", "rows.tsv"), Contains("rows.tsv:1: ") && Contains("no tab"));
  CHECK_THAT(error_of("q\tp\tn\nq\tp\n", "rows.tsv"),
             Contains("rows.tsv:2: expected 3 columns as in the first row, found 2"));
  CHECK_THAT(error_of("q\tp\nq\tp\t\n", "rows.tsv"), Contains("expected 2") && Contains("found 3"));
  CHECK_THAT(error_of("query\tpositive\tnegative\nq\tp\n", "rows.tsv"), Contains("rows.tsv:2: "));
  CHECK_THAT(error_of("q\tp\n\nq\tp\n", "rows.tsv"), Contains("rows.tsv:2: an empty line"));
  CHECK_THAT(error_of("q\tp\nq\t\xC3(\n", "rows.tsv"),
             Contains("rows.tsv:2: not valid UTF-8 at byte 3"));
  CHECK_THAT(error_of("query\tpositive\n", "rows.tsv"), Contains("no usable row"));
  // The same rows with LF and CRLF, with a mark, unpacked and packed, whatever the name.
  for (const char* name : {"rows.tsv", "rows.tsv.gz", "rows"}) {
    CHECK(read(gzip("q\tp\tn\n\t\t\n"), name) == want);
    CHECK(read(gzip("\xEF\xBB\xBFq\tp\tn\r\n") + gzip("\t\t"), name) == want);
  }
}

TEST_CASE("training_data: bad rows, in file, line and reason") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "an empty line"},
      {"  ", "an empty line"},
      {"null", "expected an object"},
      {"\"text\"", "expected an object"},
      {"[61, 434, \"text\"]", "expected an object {\"query\": …}, found a list"},
      {"q\tp\tn", "not valid JSON at byte 1"},
      {"{\"query\":\"q\"", "not valid JSON"},
      {kRow.substr(0, kRow.size() - 1) + "}", "not valid JSON"},
      {kRow.substr(0, kRow.size() - 1) + kRow.substr(0, kRow.size() - 1), "not valid JSON"},
      {R"({"query":"q","positive":"p","negative":null})", "\"negative\" holds null"},
      {R"({"query":"q","positive":3.5,"negative":"n"})", "\"positive\" holds a number"},
      {R"({"query":"q","positive":true,"negative":"n"})", "\"positive\" holds true or false"},
      {R"({"query":{"text":"q"},"positive":"p","negative":"n"})", "\"query\" holds an object"},
      {R"({"query":"q","positive":"p","negative":["n"]})", "\"negative\" holds a list of texts"},
      {R"({"query":"q","positive":"p","negative":["n",1]})", "other than texts"},
      {R"({"query":"q","positive":"p","negative":["n",["m"]]})", "other than texts"},
      {R"({"query":"q","positive":"p"})", "\"negative\" is missing"},
      {R"({"query":"q","positive":"p","Negative":"n"})", "\"Negative\" is not a column"},
      {R"({"query":"q","positive":"p","negative":"n","title":"t"})", "\"title\" is not a column"},
      {R"({"query":"q","positive":"p","negative":"n","query":"q"})",
       "the key \"query\" stands twice"},
      {R"({"query":"q","positive":"p","negative":"\ud800"})", "not valid JSON"},
      {R"({"query":"q","positive":"p","negative":"\x"})", "not valid JSON"},
      {"{\"query\":\"q\",\"positive\":\"p\",\"negative\":\"a\tb\"}", "not valid JSON"},
      {"{\"query\":\"q\",\"positive\":\"p\",\"negative\":\"\xFF\"}", "not valid UTF-8 at byte 41"},
      {std::string("{\"query\":\"q\",\"positive\":\"p\",\"negative\":\"n\"}\0", 44), "NUL"},
  };
  for (const auto& [row, reason] : cases) {
    const std::string content = kRow + row + "\n" + kRow;
    CAPTURE(row);
    CHECK_THAT(error_of(content), Contains("rows.jsonl:2: ") && Contains(reason) &&
                                      Contains("--bad_rows skip leaves such rows out"));
    CHECK(read(content, "rows.jsonl", kSkip) == Rows{{"q", "p", "n"}, {"q", "p", "n"}});
  }
  // Lists of the first row's length.
  const std::string lists = R"({"query":"q","documents":["p","n"]})"
                            "\n";
  CHECK_THAT(error_of(lists + R"({"query":"q","documents":["p"]})"),
             Contains("rows.jsonl:2: \"documents\" holds 1 texts, the first row's 2"));
  CHECK_THAT(error_of(lists + R"({"query":"q","documents":"p"})"),
             Contains("holds a text, expected a list of texts"));
}

TEST_CASE("training_data: columns that cannot be trained on") {
  const auto contains = [](const char* row, const char* words) {
    CAPTURE(row);
    // Skipping bad rows does not help: no other row would.
    for (const bool skip : {false, true})
      CHECK_THAT(error_of(row, "rows.jsonl", {.skip_bad_rows = skip}),
                 Contains("rows.jsonl:1: ") && Contains(words));
  };
  contains(R"({"query":"q","documents":["a","b"],"scores":[0.5,1]})", "distillation");
  contains(R"({"query":"q","positive":"p","label":1})", "distillation");
  contains(R"({"query":"q"})", "no document");
  contains(R"({"query":"q","negatives":[]})", "no document");
  contains(R"({"positive":["p"],"negatives":["n"]})", "no column with a query");
  contains(R"({"query":["q"],"positive":"p"})", "no column with a query");
  contains(R"({})", "no column with a query");
  contains(R"({"anchor":"q","query":"q","positive":"p"})", "look like the query");
  contains(R"({"query":"q","positive":["p1","p2"],"negative":"n"})", "expected one");
  contains(R"({"query":"q","negative":"n"})", "no positive");
  contains(R"({"query":"q","positive":"p","score":0.5})", "\"score\" holds a number");
}

TEST_CASE("training_data: no row at all") {
  for (const char* name : {"rows.jsonl", "rows.tsv"})
    for (const char* content : {"", "\n", "\r\n\n", "\xEF\xBB\xBF"}) {
      CHECK(error_of(content, name) == std::string(name) + ": no usable row");
      CHECK(error_of(content, name, kSkip) == std::string(name) + ": no usable row");
    }
  CHECK_THAT(
      error_of("{}x\nnull\n", "rows.jsonl", kSkip),
      Contains("no usable row; the first bad one is ") && Contains("rows.jsonl:1: not valid JSON"));
  CHECK_THAT(input_error([] { TrainingData(std::vector<std::string>(), {}); }),
             Contains("no training file"));
  CHECK_THAT(input_error([] { TrainingData({"/nonexistent/x.jsonl"}, {}); }),
             Contains("/nonexistent/x.jsonl"));
}

TEST_CASE("training_data: bad rows are counted, shown and bounded") {
  const TemporaryDirectory directory;
  std::string content = "not json\n";  // before the row that gives the columns
  for (int i = 0; i < 20'000; ++i) content += i % 2500 == 1000 ? "{\"query\":\n" : kRow;
  const std::string path = directory.write("rows.jsonl", content);
  const int threads_before = omp_get_max_threads();
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    const TrainingData data({path}, kSkip);
    CHECK(data.rows() == 19'992);
    CHECK(data.rejected() == 9);
    CHECK(data.rows_read() == 20'001);
    REQUIRE(data.warnings().size() == 7);
    CHECK(data.warnings()[0] == "9 of 20001 rows are bad and left out");
    CHECK_THAT(data.warnings()[1], Contains("rows.jsonl:1: not valid JSON at byte 2"));
    CHECK_THAT(data.warnings()[2], Contains("rows.jsonl:1002: not valid JSON"));
    CHECK_THAT(data.warnings()[5], Contains("rows.jsonl:8502: not valid JSON"));
    CHECK(data.warnings()[6] == "…");
    CHECK(TrainingData({path}, {.skip_bad_rows = true, .max_bad_rows = 9}).rejected() == 9);
    CHECK_THAT(
        input_error([&] { TrainingData({path}, {.skip_bad_rows = true, .max_bad_rows = 8}); }),
        Contains("9 bad rows, --max_bad_rows allows 8; the first is " + path + ":1: "));
    CHECK_THAT(
        input_error([&] { TrainingData({path}, {.skip_bad_rows = true, .max_bad_rows = 0}); }),
        Contains("1 bad rows"));
    CHECK_THAT(input_error([&] { TrainingData({path}, {}); }), Contains(path + ":1: "));
  }
  omp_set_num_threads(threads_before);
}

TEST_CASE("training_data: negatives equal to the positive or the query") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("rows.tsv",
                                           "q\tp\tn\tp\n"
                                           "q\tp\tp \t n\n"
                                           "q\tp \tn\tp\n"
                                           "q\tp\tq\tq\n"
                                           "q\tp\tP\tQ\n"
                                           "q\tp\t\t \n");
  const TrainingData data({path}, {});
  CHECK(data.warnings() ==
        std::vector<std::string>{"3 rows have a negative equal to their positive",
                                 "1 rows have a negative equal to their query",
                                 "1 rows have an empty text"});
}

TEST_CASE("training_data: several files are read as one") {
  const TemporaryDirectory directory;
  const std::string a = directory.write("a.jsonl", R"({"x":"q1","positive":"p1","n":"n1"})");
  // Other order of the keys: columns go by name.
  const std::string b = directory.write("b.jsonl.gz", gzip(R"({"n":"n2","x":"q2","positive":"p2"}
{"n":"n3","x":"q3","positive":"p3"}
)"));
  const TrainingData data({a, b, a}, {});
  CHECK(rows_of(data) ==
        Rows{{"q1", "p1", "n1"}, {"q2", "p2", "n2"}, {"q3", "p3", "n3"}, {"q1", "p1", "n1"}});
  CHECK(data.documents_per_query() == 2);
  CHECK(data.description() ==
        "JSONL: query \"x\", documents \"positive\", \"n\"; first row: | q1 | p1 | n1");
  std::vector<std::string> texts;
  CHECK_THROWS_AS(data.row(4, texts), maxim::Error);
  CHECK_THROWS_AS(data.row(-1, texts), maxim::Error);

  const std::string other = directory.write("other.jsonl", R"({"x":"q","positive":"p","m":"n"})");
  CHECK_THAT(input_error([&] {
               TrainingData({a, other}, {});
             }),
             Contains(other + ":1: \"m\" is not a column"));
  CHECK_THAT(input_error([&] {
               TrainingData({a, other}, kSkip);
             }),
             Contains(other + ": no usable row; the first bad one is " + other + ":1"));
  const std::string empty = directory.write("empty.jsonl", "");
  CHECK_THAT(input_error([&] { TrainingData({a, empty}, {}); }), Contains("no usable row"));
  const std::string tsv = directory.write("rows.tsv", "q\tp\tn\n");
  CHECK_THAT(input_error([&] { TrainingData({a, tsv}, {}); }), Contains("cannot be mixed"));
  const std::string pairs = directory.write("pairs.tsv", "query\tpositive\nq\tp\n");
  CHECK_THAT(input_error([&] { TrainingData({tsv, pairs}, {}); }), Contains(pairs + ":2: "));
}

TEST_CASE("training_data: rows held out are disjoint, in order, and the seed's") {
  const TemporaryDirectory directory;
  std::string content;
  for (int i = 0; i < 40; ++i) content += fmt::format("q{}\tp{}\n", i, i);
  const std::string path = directory.write("rows.tsv", content);
  std::vector<int64_t> first_held;
  for (const uint64_t seed : {1, 1, 2}) {
    TrainingData data({path}, {});
    const TrainingData held = data.hold_out(7, seed);
    REQUIRE(held.rows() == 7);
    REQUIRE(data.rows() == 33);
    CHECK(data.rows_read() == 40);
    std::vector<int64_t> numbers, held_numbers;
    std::vector<std::string> texts;
    for (const TrainingData* part : {&held, static_cast<const TrainingData*>(&data)}) {
      for (int64_t i = 0; i < part->rows(); ++i) {
        numbers.push_back(part->row_number(i));
        if (i > 0) REQUIRE(part->row_number(i - 1) < part->row_number(i));
        part->row(i, texts);
        REQUIRE(texts == std::vector<std::string>{fmt::format("q{}", part->row_number(i)),
                                                  fmt::format("p{}", part->row_number(i))});
      }
      if (part == &held) held_numbers = numbers;
    }
    std::sort(numbers.begin(), numbers.end());
    for (int64_t i = 0; i < 40; ++i) REQUIRE(numbers[static_cast<size_t>(i)] == i);
    if (first_held.empty()) first_held = held_numbers;
    CHECK((held_numbers == first_held) == (seed == 1));
    CHECK_THROWS_AS(data.row(33, texts), maxim::Error);
    CHECK_THROWS_AS(data.hold_out(33, seed), maxim::Error);
    const TrainingData more = data.hold_out(3, seed);  // and once more: of what is left
    CHECK(data.rows() == 30);
    std::vector<int64_t> more_numbers;
    for (int64_t i = 0; i < more.rows(); ++i) {
      REQUIRE(std::count(held_numbers.begin(), held_numbers.end(), more.row_number(i)) == 0);
      more_numbers.push_back(more.row_number(i));
    }
    for (int64_t i = 0; i < data.rows(); ++i)
      for (const auto& taken : {held_numbers, more_numbers})
        REQUIRE(std::count(taken.begin(), taken.end(), data.row_number(i)) == 0);
  }
}

TEST_CASE("training_data: deep nesting and very long lines") {
  std::string deep = R"({"query":"q","positive":"p","x_id":)";
  for (int i = 0; i < 100'000; ++i) deep += i % 2 == 0 ? "[" : "{\"a\":";
  CHECK_THAT(error_of(deep), Contains("rows.jsonl:1: not valid JSON"));
  for (int i = 99'999; i >= 0; --i) deep += i % 2 == 0 ? (i == 99'998 ? "[]]" : "]") : "}";
  // {"a":} lacks its value, but for the innermost.
  CHECK_THAT(error_of(deep), Contains("rows.jsonl:1: not valid JSON"));
  const std::string nested = R"({"query":"q","positive":"p","x_id":)" + std::string(100'000, '[') +
                             std::string(100'000, ']') + "}\n";
  CHECK(read(nested) == Rows{{"q", "p"}});
  CHECK_THAT(error_of(R"({"query":"q","positive":)" + std::string(100'000, '[') +
                      std::string(100'000, ']') + "}"),
             Contains("\"positive\" holds a list with something other than texts"));

  std::string keys = R"({"query":"q","positive":"p")";
  for (int i = 0; i < 100'000; ++i) keys += ",\"" + std::to_string(i) + "_id\":0";
  CHECK_THAT(error_of(keys + "}"), Contains("rows.jsonl:1: more than 1024 keys"));

  const std::string text(20'000'000, 'x');  // 100 MB work as well; this keeps the tests quick
  CHECK(read("{\"query\":\"q\",\"positive\":\"" + text + "\"}\n")[0][1] == text);
  const std::string error = error_of("{\"query\":\"q\",\"positive\":\"" + text + "\n");
  CHECK_THAT(error, Contains("not valid JSON"));
  CHECK(error.size() < 500);
}

TEST_CASE("training_data: rows may be read by many threads") {
  const TemporaryDirectory directory;
  std::string content;
  for (int i = 0; i < 500; ++i)
    content += fmt::format("{{\"query\":\"q{}\",\"positive\":\"p{}\"}}\n", i, i * i);
  const TrainingData data({directory.write("rows.jsonl", content)}, {});
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::vector<std::string> texts;
      for (int64_t i = t; i < 500; ++i) {
        data.row(i, texts);
        wrong[t] += texts[0] != fmt::format("q{}", i) || texts[1] != fmt::format("p{}", i * i);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("training_data: the fingerprint is that of the good rows, in order") {
  const TemporaryDirectory directory;
  const auto print = [&](std::string_view content) {
    return TrainingData({directory.write("rows.tsv", content)}, kSkip).fingerprint();
  };
  const std::string same = print("a\tb\nc\td\n");
  CHECK(same == print("a\tb\nbad\nc\td"));
  for (const char* other : {"a\tb\nc\te\n", "c\td\na\tb\n", "a\tb\n", "a\tb\nc\td\nc\td\n"})
    CHECK(same != print(other));
  CHECK_THAT(same, Contains("rows.tsv: 2 rows"));
}
