#include "data/beir.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "data/json_row.h"
#include "data/text_lines.h"
#include "runtime/error.h"

namespace maxim {
namespace {

// The text of `name` in a row, "" when it may be and is missing.
std::string text_of(const JsonRow& row, const char* name, bool required, const std::string& where) {
  const JsonField* field = row.find(name);
  if (field == nullptr && required) fail_input("{}: \"{}\" is missing", where, name);
  if (field == nullptr) return "";
  if (field->kind != JsonField::Kind::text)
    fail_input("{}: \"{}\" holds {}, expected a text", where, name, name_of(field->kind));
  return field->texts[0];
}

// Rows with "text", "title" in front where there is one, and "_id"; other keys are ignored.
TextFile read_jsonl(const TextFileMap& file, bool id_required) {
  TextFile result;
  result.path = file.path();
  std::unordered_map<std::string, int64_t> line_of;
  std::string_view text = file.text(), line;
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);  // empty last lines
  LineReader reader(text);
  JsonRow row;
  while (reader.next(line)) {
    const std::string where = fmt::format("{}:{}", file.path(), reader.number());
    const std::string reason = line.empty() ? "an empty line" : row.parse(line);
    if (!reason.empty()) fail_input("{}: {}", where, reason);
    std::string id = std::to_string(reader.number());
    if (id_required || row.find("_id") != nullptr) id = text_of(row, "_id", true, where);
    const auto [before, is_new] = line_of.emplace(id, reader.number());
    if (!is_new)
      fail_input("{}: the id \"{}\" was in line {} before", where, excerpt(id, 60), before->second);
    const std::string title = text_of(row, "title", false, where);
    result.ids.push_back(std::move(id));
    result.texts.push_back((title.empty() ? "" : title + " ") + text_of(row, "text", true, where));
  }
  if (result.ids.empty()) fail_input("{}: no text in it", file.path());
  return result;
}

// `name` in `directory`, or `name`.gz.
TextFileMap open(const std::string& directory, const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(directory) / name;
  const std::string packed = path.string() + ".gz";
  return TextFileMap(!file_exists(path) && file_exists(packed) ? packed : path.string());
}

struct Judgement {
  std::string_view query, document;
  int relevance = 0;
};

// One line of qrels, or false.
bool parse(std::string_view line, Judgement& judgement) {
  const size_t first = line.find('\t');
  const size_t second = first == std::string_view::npos ? first : line.find('\t', first + 1);
  if (second == std::string_view::npos) return false;
  judgement.query = line.substr(0, first);
  judgement.document = line.substr(first + 1, second - first - 1);
  const std::string_view number = line.substr(second + 1);
  const char* end = number.data() + number.size();
  const auto result = std::from_chars(number.data(), end, judgement.relevance);
  return result.ec == std::errc() && result.ptr == end;
}

// Three columns, the third in words: a score that is no whole number makes no header.
bool is_header(std::string_view line) {
  const size_t last = line.rfind('\t');
  return std::count(line.begin(), line.end(), '\t') == 2 && last + 1 < line.size() &&
         std::string_view("+-.0123456789").find(line[last + 1]) == std::string_view::npos;
}

using Relevant = std::unordered_map<int64_t, int>;

std::unordered_map<std::string_view, int64_t> index_of(const TextFile& file) {
  std::unordered_map<std::string_view, int64_t> index;
  for (size_t i = 0; i < file.ids.size(); ++i) index.emplace(file.ids[i], i);
  return index;
}

// Judgements of all queries by index; relevance 0 or less is "not relevant".
std::vector<Relevant> read_qrels(const TextFileMap& file, const TextFile& queries,
                                 const TextFile& corpus) {
  const auto query_index = index_of(queries), document_index = index_of(corpus);
  std::vector<Relevant> judged(queries.ids.size());
  std::string_view text = file.text(), line;
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  LineReader reader(text);
  while (reader.next(line)) {
    const std::string where = fmt::format("{}:{}", file.path(), reader.number());
    Judgement judgement;
    if (!parse(line, judgement)) {
      if (reader.number() == 1 && is_header(line)) continue;
      fail_input("{}: expected query-id<TAB>corpus-id<TAB>whole number, found \"{}\"", where,
                 excerpt(line, 60));
    }
    const auto query = query_index.find(judgement.query);
    if (query == query_index.end())
      fail_input("{}: the query id \"{}\" is not in queries.jsonl", where,
                 excerpt(judgement.query, 60));
    const auto document = document_index.find(judgement.document);
    if (document == document_index.end())
      fail_input("{}: the document id \"{}\" is not in corpus.jsonl", where,
                 excerpt(judgement.document, 60));
    if (!judged[query->second].emplace(document->second, judgement.relevance).second)
      fail_input("{}: the pair \"{}\", \"{}\" was judged before", where,
                 excerpt(judgement.query, 60), excerpt(judgement.document, 60));
  }
  for (Relevant& relevant : judged) std::erase_if(relevant, [](auto& r) { return r.second <= 0; });
  return judged;
}

}  // namespace

std::string fingerprint(const TextFile& file) {
  size_t hash = 0;
  for (const auto* list : {&file.ids, &file.texts})
    for (const std::string& text : *list) hash = hash * 31 + std::hash<std::string>()(text);
  return fmt::format("{}: {} texts, hash {:x}\n", file.path, file.texts.size(), hash);
}

std::string fingerprint(const RetrievalSet& set) {
  size_t hash = 0;
  for (size_t q = 0; q < set.relevant.size(); ++q)
    for (const auto& [document, relevance] : set.relevant[q])  // in any order
      hash += (q * 31 + static_cast<size_t>(document)) * 31 + static_cast<size_t>(relevance);
  return fingerprint(set.corpus) + fingerprint(set.queries) +
         fmt::format("judgements of {}: hash {:x}\n", set.queries.path, hash);
}

RetrievalSet read_beir(const std::string& directory, const std::string& split) {
  RetrievalSet set;
  const TextFileMap qrels = open(directory, "qrels/" + split + ".tsv");
  set.corpus = read_jsonl(open(directory, "corpus.jsonl"), true);
  TextFile queries = read_jsonl(open(directory, "queries.jsonl"), true);
  std::vector<Relevant> relevant = read_qrels(qrels, queries, set.corpus);
  for (size_t q = 0; q < queries.ids.size(); ++q) {
    if (relevant[q].empty()) continue;
    set.queries.path = queries.path;
    set.queries.ids.push_back(std::move(queries.ids[q]));
    set.queries.texts.push_back(std::move(queries.texts[q]));
    set.relevant.push_back(std::move(relevant[q]));
  }
  if (set.relevant.empty()) fail_input("{}: no query has a relevant document", qrels.path());
  return set;
}

TextFile read_texts(const std::string& path) {
  const TextFileMap file(path);
  const size_t first = file.text().find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && file.text()[first] == '{') return read_jsonl(file, false);
  TextFile result;
  result.path = path;
  LineReader reader(file.text());
  std::string_view line;
  while (reader.next(line)) {
    const int64_t invalid = find_invalid_utf8(line);
    if (invalid >= 0)
      fail_input("{}:{}: not valid UTF-8 at byte {} of the line", path, reader.number(),
                 invalid + 1);
    result.ids.push_back(std::to_string(reader.number()));
    result.texts.emplace_back(line);
  }
  if (result.texts.empty()) fail_input("{}: no text in it", path);
  return result;
}

}  // namespace maxim
