// Retrieval test sets in the BEIR form: corpus.jsonl ("_id", "title", "text"), queries.jsonl
// ("_id", "text"), qrels/SPLIT.tsv (query-id, corpus-id, score, with a header line).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace maxim {

struct TextFile {
  std::vector<std::string> ids;
  std::vector<std::string> texts;
  std::string path;
};

struct RetrievalSet {
  TextFile corpus;   // text = title + " " + text where there is a title
  TextFile queries;  // only those that the qrels name
  // relevant[q]: corpus index -> relevance > 0
  std::vector<std::unordered_map<int64_t, int>> relevant;
};

// Throws InputError with file, line and reason (unknown ids in the qrels, no query, duplicate
// ids…).
RetrievalSet read_beir(const std::string& directory, const std::string& split);

// One text a line, or jsonl with "text" (and "_id" where given; else ids are line numbers from 1).
TextFile read_texts(const std::string& file);

// Lines of counts and hashes of all texts and ids, in order, and of the judgements. Ranks compare
// them.
std::string fingerprint(const TextFile& file);
std::string fingerprint(const RetrievalSet& set);

}  // namespace maxim
