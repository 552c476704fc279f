#include "data/columns.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/text_lines.h"
#include "runtime/error.h"

namespace maxim {
namespace {

bool is_ignored(std::string_view name) { return name.ends_with("_id"); }

bool is_query(std::string_view name) {
  return name.find("query") != std::string_view::npos ||
         name.find("anchor") != std::string_view::npos;
}

bool is_positive(std::string_view name) {
  return name == "positive" || name == "positives" || name == "pos";
}

bool is_empty(RowFormat format, std::string_view line) {
  return format == RowFormat::tsv ? line.empty()
                                  : line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::string in_quotes(std::string_view name) { return fmt::format("\"{}\"", excerpt(name, 60)); }

}  // namespace

bool Columns::is_header(std::string_view line) {
  return line == "query\tpositive" || line.starts_with("query\tpositive\t");
}

std::string Columns::take(RowFormat format, std::string_view line, const std::string& where) {
  if (is_empty(format, line)) return "an empty line";
  format_ = format;
  if (format == RowFormat::jsonl) return take_json(line, where);
  const int64_t tabs = std::count(line.begin(), line.end(), '\t');
  if (tabs == 0) return "expected query<TAB>positive<TAB>negatives…, found no tab";
  documents_ = tabs;
  return "";
}

std::string Columns::take_json(std::string_view line, const std::string& where) {
  JsonRow row;
  const std::string reason = row.parse(line);
  if (!reason.empty()) return reason;
  std::vector<Column> found;
  for (const JsonField& field : row.fields()) {
    if (is_ignored(field.name)) continue;
    if (field.name == "scores" || field.name == "label")
      fail_input(
          "{}: the column {} holds teacher scores, which need a distillation loss; this version "
          "has none: remove the column",
          where, in_quotes(field.name));
    const bool list = field.kind == JsonField::Kind::list_of_texts;
    if (!list && field.kind != JsonField::Kind::text)
      return fmt::format("{} holds {}, expected a text (columns ending in _id are ignored)",
                         in_quotes(field.name), name_of(field.kind));
    found.push_back({field.name, list, list ? static_cast<int64_t>(field.texts.size()) : 1, 0});
  }

  const auto named_query = [](const Column& c) { return is_query(c.name); };
  const auto first_text = [](const Column& c) { return !c.list; };
  auto query = std::find_if(found.begin(), found.end(), named_query);
  if (query == found.end()) query = std::find_if(found.begin(), found.end(), first_text);
  if (query == found.end() || query->list)
    fail_input("{}: no column with a query: one text whose name contains query or anchor", where);
  const auto second = std::find_if(query + 1, found.end(), named_query);
  if (is_query(query->name) && second != found.end())
    fail_input("{}: both {} and {} look like the query: rename or remove one", where,
               in_quotes(query->name), in_quotes(second->name));
  std::rotate(found.begin(), query, query + 1);  // the query first, the others keep their order

  const auto positive = std::find_if(found.begin() + 1, found.end(),
                                     [](const Column& c) { return is_positive(c.name); });
  if (positive != found.end()) std::rotate(found.begin() + 1, positive, positive + 1);
  int64_t slot = 0;
  for (Column& c : found) {
    c.slot = slot;
    slot += c.count;
  }
  if (slot < 2) fail_input("{}: no document beside the query {}", where, in_quotes(found[0].name));
  if (is_positive(found[1].name) && found[1].count != 1)
    fail_input("{}: {} holds {} texts, expected one: write one row for each positive", where,
               in_quotes(found[1].name), found[1].count);
  if (found[1].name.starts_with("neg"))
    fail_input("{}: no positive: the first document column is {}; name the positive's \"positive\"",
               where, in_quotes(found[1].name));
  columns_ = std::move(found);
  documents_ = slot - 1;
  return "";
}

std::string Columns::description() const {
  if (format_ == RowFormat::tsv)
    return fmt::format("TSV: query, positive, {} negatives", documents_ - 1);
  std::string text = fmt::format("JSONL: query {}, documents", in_quotes(columns_[0].name));
  for (size_t i = 1; i < columns_.size(); ++i) {
    text += (i == 1 ? " " : ", ") + in_quotes(columns_[i].name);
    if (columns_[i].list) text += fmt::format(" ({} texts)", columns_[i].count);
  }
  return text;
}

std::string Columns::split(std::string_view line, JsonRow& scratch,
                           std::vector<std::string>& texts) const {
  texts.resize(static_cast<size_t>(documents_ + 1));
  if (is_empty(format_, line)) return "an empty line";
  return format_ == RowFormat::jsonl ? split_json(line, scratch, texts) : split_tsv(line, texts);
}

std::string Columns::split_json(std::string_view line, JsonRow& row,
                                std::vector<std::string>& texts) const {
  const std::string reason = row.parse(line);
  if (!reason.empty()) return reason;
  size_t present = 0;
  for (JsonField& field : row.fields()) {
    const auto column = std::find_if(columns_.begin(), columns_.end(),
                                     [&](const Column& c) { return c.name == field.name; });
    if (column == columns_.end()) {
      if (is_ignored(field.name)) continue;
      return fmt::format("{} is not a column of the first row (columns ending in _id are ignored)",
                         in_quotes(field.name));
    }
    const auto expected = column->list ? JsonField::Kind::list_of_texts : JsonField::Kind::text;
    if (field.kind != expected)
      return fmt::format("{} holds {}, expected {}", in_quotes(field.name), name_of(field.kind),
                         name_of(expected));
    if (static_cast<int64_t>(field.texts.size()) != column->count)
      return fmt::format("{} holds {} texts, the first row's {}", in_quotes(field.name),
                         field.texts.size(), column->count);
    for (size_t i = 0; i < field.texts.size(); ++i)
      texts[static_cast<size_t>(column->slot) + i].swap(field.texts[i]);
    ++present;
  }
  for (const Column& column : columns_)
    if (present < columns_.size() && row.find(column.name) == nullptr)
      return fmt::format("{} is missing", in_quotes(column.name));
  return "";
}

std::string Columns::split_tsv(std::string_view line, std::vector<std::string>& texts) const {
  const int64_t found = std::count(line.begin(), line.end(), '\t') + 1;
  if (found != documents_ + 1)
    return fmt::format(
        "expected {} columns as in the first row, found {} (a tab inside a text splits it: use "
        "JSONL for such text)",
        documents_ + 1, found);
  const int64_t invalid = find_invalid_utf8(line);
  if (invalid >= 0) return fmt::format("not valid UTF-8 at byte {} of the line", invalid + 1);
  for (std::string& text : texts) {
    const size_t end = std::min(line.find('\t'), line.size());
    text.assign(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return "";
}

}  // namespace maxim
