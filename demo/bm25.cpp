// bm25 BEIR_DIRECTORY SPLIT REPORT.json [RUN.tsv]: what word statistics alone find, the line that
// a trained retriever has to beat.
//
// Okapi BM25 in Lucene's form (k1 = 1.2, b = 0.75, both its defaults):
//   score(q, d) = sum over the words w of q  idf(w) * f / (f + k1 * (1 - b + b * |d| / mean |d|))
//   idf(w)      = ln(1 + (N - n + 0.5) / (n + 0.5))
// with f how often w stands in d, |d| the words of d, n the documents of N that have w. Words are
// runs of ASCII letters and digits in lower case, without Lucene's 33 English stop words; a word
// twice in the query counts twice; no stemming. Documents that share no word with the query are not
// found; equal scores stand in corpus order.
//
// The report has all metrics of ./evaluate, by the same code. RUN.tsv, if asked for, lists what was
// found: query id, document id, rank, score.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/beir.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include "trainer/retrieval_metrics.h"

using namespace maxim;

namespace {

constexpr double kSaturation = 1.2;         // k1
constexpr double kLengthCorrection = 0.75;  // b

std::vector<std::string> words_of(std::string_view text) {
  static const std::unordered_set<std::string> kStopWords = {
      "a",   "an",    "and",  "are",   "as",    "at",   "be",   "but", "by",  "for",  "if",
      "in",  "into",  "is",   "it",    "no",    "not",  "of",   "on",  "or",  "such", "that",
      "the", "their", "then", "there", "these", "they", "this", "to",  "was", "will", "with"};
  std::vector<std::string> words;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const auto c = static_cast<unsigned char>(i < text.size() ? text[i] : ' ');
    if (c < 128 && std::isalnum(c)) {
      word += static_cast<char>(std::tolower(c));
    } else if (!word.empty()) {
      if (!kStopWords.contains(word)) words.push_back(word);
      word.clear();
    }
  }
  return words;
}

struct Hit {
  int64_t document;
  double score;
};

class Bm25 {
 public:
  explicit Bm25(const std::vector<std::string>& documents) : lengths_(documents.size()) {
    for (size_t d = 0; d < documents.size(); ++d) {
      for (const std::string& word : words_of(documents[d])) {
        std::vector<Posting>& postings = postings_[word];
        if (postings.empty() || postings.back().document != d) postings.push_back({d, 0});
        ++postings.back().count;
        ++lengths_[d];
      }
    }
    mean_length_ = std::accumulate(lengths_.begin(), lengths_.end(), 0.0) / lengths_.size();
  }

  // The documents with a word of the query, best first, kMetricsDepth at most.
  std::vector<Hit> search(const std::string& query) const {
    std::vector<double> scores(lengths_.size());
    for (const std::string& word : words_of(query)) {
      const auto found = postings_.find(word);
      if (found == postings_.end()) continue;
      const double n = found->second.size();
      const double idf = std::log(1 + (lengths_.size() - n + 0.5) / (n + 0.5));
      for (const Posting& posting : found->second) {
        const double length = lengths_[posting.document] / mean_length_;
        const double norm = kSaturation * (1 - kLengthCorrection + kLengthCorrection * length);
        scores[posting.document] += idf * posting.count / (posting.count + norm);
      }
    }
    std::vector<Hit> hits;
    for (size_t d = 0; d < scores.size(); ++d)
      if (scores[d] > 0) hits.push_back({static_cast<int64_t>(d), scores[d]});
    std::stable_sort(hits.begin(), hits.end(),
                     [](const Hit& a, const Hit& b) { return a.score > b.score; });
    hits.resize(std::min<size_t>(hits.size(), kMetricsDepth));
    return hits;
  }

 private:
  struct Posting {
    size_t document;
    int count;
  };
  std::unordered_map<std::string, std::vector<Posting>> postings_;
  std::vector<int> lengths_;
  double mean_length_ = 0;
};

int run(int argc, char** argv) {
  if (argc != 4 && argc != 5)
    fail_input("usage: {} BEIR_DIRECTORY SPLIT REPORT.json [RUN.tsv]", argv[0]);
  const RetrievalSet set = read_beir(argv[1], argv[2]);
  const Bm25 bm25(set.corpus.texts);
  std::vector<std::vector<int64_t>> ranked;
  std::string run = "query-id\tcorpus-id\trank\tscore\n";
  for (size_t q = 0; q < set.queries.texts.size(); ++q) {
    std::vector<int64_t>& documents = ranked.emplace_back();
    for (const Hit& hit : bm25.search(set.queries.texts[q])) {
      documents.push_back(hit.document);
      run += fmt::format("{}\t{}\t{}\t{:.6f}\n", set.queries.ids[q], set.corpus.ids[hit.document],
                         documents.size(), hit.score);
    }
  }
  nlohmann::ordered_json report;
  for (const auto& [name, value] : retrieval_metrics(ranked, set.relevant)) report[name] = value;
  write_json(argv[3], report);
  if (argc == 5) write_text(argv[4], run);
  for (const char* name : {"ndcg@10", "mrr@10", "recall@10"})
    std::printf("%-10s %.4f\n", name, report[name].get<double>());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try { return run(argc, argv); } catch (const InputError& error) {
  std::fprintf(stderr, "bm25: %s\n", error.what());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bm25: %s\n", error.what());
  return 1;
}
