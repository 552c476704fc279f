// Start-up is one pass: lines are found in order (memchr), checked in blocks by all threads, and
// what the threads found is taken in line order, so the first error and every count are the same
// for any number of threads. One core checks 70 to 85 MB/s of JSONL, nearly all of it in the
// parser.
#include "data/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "data/columns.h"
#include "data/sampler.h"
#include "data/text_lines.h"
#include "runtime/error.h"

namespace maxim {
namespace {

constexpr size_t kBlockLines = 8192;  // checked between two looks at what was found
constexpr size_t kAloneLines = 256;   // up to so many, one thread is done before others are awake
constexpr size_t kShownRows = 5;      // bad rows that the warnings spell out

struct Verdict {
  std::string reason;  // "": a good row
  bool negative_is_positive = false, negative_is_query = false, has_empty_text = false;
  size_t hash = 0;
};

struct Line {
  std::string_view text;
  int64_t begin = 0, number = 0;
};

RowFormat format_of(const std::string& path, std::string_view text) {
  std::string_view name = path;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  if (name.ends_with(".tsv")) return RowFormat::tsv;
  if (name.ends_with(".jsonl") || name.ends_with(".json")) return RowFormat::jsonl;
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{' ? RowFormat::jsonl : RowFormat::tsv;
}

Verdict judge(const Columns& columns, std::string_view line, JsonRow& scratch,
              std::vector<std::string>& texts) {
  Verdict verdict;
  verdict.reason = columns.split(line, scratch, texts);
  if (!verdict.reason.empty()) return verdict;
  verdict.hash = std::hash<std::string_view>()(line);
  const std::string_view query = strip(texts[0]), positive = strip(texts[1]);
  verdict.has_empty_text = query.empty() || positive.empty();
  for (size_t i = 2; i < texts.size(); ++i) {
    const std::string_view negative = strip(texts[i]);
    verdict.negative_is_positive |= negative == positive;
    verdict.negative_is_query |= negative == query;
    verdict.has_empty_text |= negative.empty();
  }
  return verdict;
}

// The verdicts of all lines, by all threads.
void judge_block(std::vector<Verdict>& verdicts, const Columns& columns,
                 const std::vector<Line>& lines) {
  verdicts.resize(lines.size());
  std::exception_ptr failure;
#pragma omp parallel if (lines.size() > kAloneLines)
  {
    JsonRow scratch;
    std::vector<std::string> texts;
#pragma omp for schedule(dynamic, 64)
    for (size_t i = 0; i < lines.size(); ++i) {
      try {
        verdicts[i] = judge(columns, lines[i].text, scratch, texts);
      } catch (...) {  // memory; an exception must not leave the parallel region
#pragma omp critical
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

struct TrainingData::State {
  struct File {
    TextFileMap map;
    std::vector<int64_t> begins = {};  // first byte of each good row
    int64_t first_row = 0;             // rows of the files before it
    size_t hash = 0;                   // of the good rows' text
  };
  TrainingDataOptions options;
  std::vector<File> files;
  Columns columns;
  int64_t rows = 0, rejected = 0;
  int64_t negative_is_positive = 0, negative_is_query = 0, has_empty_text = 0;
  std::vector<std::string> first_rejected;
  std::vector<std::string> warnings;

  void read(const std::string& path);
  void reject(const std::string& where, const std::string& reason);
  void accept(File& file, const Line& line, const Verdict& verdict);
  void write_warnings();
};

void TrainingData::State::reject(const std::string& where, const std::string& reason) {
  if (!options.skip_bad_rows)
    fail_input("{}: {} (--bad_rows skip leaves such rows out)", where, reason);
  ++rejected;
  if (first_rejected.size() < kShownRows)
    first_rejected.push_back(fmt::format("{}: {}", where, reason));
  if (options.max_bad_rows >= 0 && rejected > options.max_bad_rows)
    fail_input("{} bad rows, --max_bad_rows allows {}; the first is {}", rejected,
               options.max_bad_rows, first_rejected[0]);
}

void TrainingData::State::accept(File& file, const Line& line, const Verdict& verdict) {
  file.begins.push_back(line.begin);
  file.hash = file.hash * 31 + verdict.hash;
  ++rows;
  negative_is_positive += verdict.negative_is_positive;
  negative_is_query += verdict.negative_is_query;
  has_empty_text += verdict.has_empty_text;
}

void TrainingData::State::read(const std::string& path) {
  File& file = files.emplace_back(File{TextFileMap(path), {}, rows, 0});
  std::string_view text = file.map.text();
  const RowFormat format = format_of(path, text);
  if (columns.known() && columns.format() != format)
    fail_input("{}: TSV and JSONL files cannot be mixed in one training set", path);
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);  // empty last lines

  std::string first_bad;
  const auto bad = [&](int64_t number, const std::string& reason) {
    const std::string where = fmt::format("{}:{}", path, number);
    if (first_bad.empty()) first_bad = fmt::format("; the first bad one is {}: {}", where, reason);
    reject(where, reason);
  };
  LineReader reader(text);
  std::string_view line;
  bool more = reader.next(line);
  if (more && format == RowFormat::tsv && Columns::is_header(line)) {
    if (!columns.known()) columns.take(format, line, path + ":1");
    more = reader.next(line);
  }
  while (more && !columns.known()) {  // the first row that can give the columns
    const std::string where = fmt::format("{}:{}", path, reader.number());
    const std::string reason = columns.take(format, line, where);
    if (columns.known()) break;
    bad(reader.number(), reason);
    more = reader.next(line);
  }
  std::vector<Line> lines;
  std::vector<Verdict> verdicts;
  while (more) {
    lines.clear();
    for (; more && lines.size() < kBlockLines; more = reader.next(line))
      lines.push_back({line, reader.begin(), reader.number()});
    judge_block(verdicts, columns, lines);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (verdicts[i].reason.empty())
        accept(file, lines[i], verdicts[i]);
      else
        bad(lines[i].number, verdicts[i].reason);
    }
  }
  if (file.begins.empty()) fail_input("{}: no usable row{}", path, first_bad);
  file.begins.shrink_to_fit();
}

void TrainingData::State::write_warnings() {
  if (rejected > 0)
    warnings.push_back(
        fmt::format("{} of {} rows are bad and left out", rejected, rejected + rows));
  warnings.insert(warnings.end(), first_rejected.begin(), first_rejected.end());
  if (rejected > static_cast<int64_t>(first_rejected.size())) warnings.push_back("…");
  if (negative_is_positive > 0)
    warnings.push_back(
        fmt::format("{} rows have a negative equal to their positive", negative_is_positive));
  if (negative_is_query > 0)
    warnings.push_back(
        fmt::format("{} rows have a negative equal to their query", negative_is_query));
  if (has_empty_text > 0)
    warnings.push_back(fmt::format("{} rows have an empty text", has_empty_text));
}

TrainingData::TrainingData(const std::vector<std::string>& files,
                           const TrainingDataOptions& options) {
  if (files.empty()) fail_input("no training file");
  auto state = std::make_shared<State>();
  state->options = options;
  for (const std::string& file : files) state->read(file);
  state->write_warnings();
  state_ = std::move(state);
}
TrainingData::TrainingData(std::shared_ptr<const State> state, std::vector<int64_t> selection)
    : state_(std::move(state)), selection_(std::move(selection)), selects_(true) {}
TrainingData::~TrainingData() = default;
TrainingData::TrainingData(TrainingData&&) noexcept = default;
TrainingData& TrainingData::operator=(TrainingData&&) noexcept = default;

int64_t TrainingData::rows() const {
  return selects_ ? static_cast<int64_t>(selection_.size()) : state_->rows;
}
int64_t TrainingData::rejected() const { return state_->rejected; }
int64_t TrainingData::rows_read() const { return state_->rows + rejected(); }
int64_t TrainingData::documents_per_query() const { return state_->columns.documents(); }
const std::vector<std::string>& TrainingData::warnings() const { return state_->warnings; }

std::string TrainingData::description() const {
  std::vector<std::string> texts;
  row(0, texts);
  std::string result = state_->columns.description() + "; first row:";
  for (const std::string& text : texts) result += " | " + excerpt(text, 60);
  return result;
}

std::string TrainingData::fingerprint() const {
  std::string lines;
  for (const State::File& file : state_->files)
    lines +=
        fmt::format("{}: {} rows, hash {:x}\n", file.map.path(), file.begins.size(), file.hash);
  return lines;
}

TrainingData TrainingData::hold_out(int64_t count, uint64_t seed) {
  MAXIM_CHECK(0 < count && count < rows(), "{} of {} rows", count, rows());
  // The first batch of a shuffled epoch of its own seed.
  constexpr uint64_t kHoldOut = 0x686F6C64;
  std::vector<int64_t> chosen =
      Sampler({.rows = rows(), .per_device_batch = count, .seed = seed ^ kHoldOut}).global_rows(0);
  std::sort(chosen.begin(), chosen.end());
  std::vector<int64_t> kept, held;
  auto next = chosen.begin();
  for (int64_t i = 0; i < rows(); ++i) {
    const bool hold = next != chosen.end() && *next == i;
    (hold ? held : kept).push_back(row_number(i));
    if (hold) ++next;
  }
  selection_ = std::move(kept);
  selects_ = true;
  return TrainingData(state_, std::move(held));
}

int64_t TrainingData::row_number(int64_t i) const { return selects_ ? selection_[i] : i; }

void TrainingData::row(int64_t i, std::vector<std::string>& texts) const {
  MAXIM_CHECK(0 <= i && i < rows(), "row {} of {}", i, rows());
  i = row_number(i);
  const auto& files = state_->files;
  const auto after = std::upper_bound(files.begin(), files.end(), i,
                                      [](int64_t row, auto& file) { return row < file.first_row; });
  const State::File& file = *(after - 1);
  std::string_view line;
  LineReader(file.map.text(), file.begins[static_cast<size_t>(i - file.first_row)]).next(line);
  JsonRow scratch;
  const std::string reason = state_->columns.split(line, scratch, texts);
  if (!reason.empty())
    fail("{}: the file was changed while it was being read: {}", file.map.path(), reason);
}

}  // namespace maxim
