// Exact MaxSim retrieval over all ranks: every query is scored against every document, no index
// that approximates. Documents are spread over the ranks, queries are on all of them; each rank
// keeps its best k documents of a query, and these lists are merged. Order: higher score, then
// lower document number. A masked document token never takes part in a max (PyLate multiplies it by
// zero and so never scores a query token below 0 where a document was padded; Maxim does not).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "trainer/encode_texts.h"
#include "trainer/model_session.h"

namespace maxim {

struct Hit {
  int64_t document = 0;
  float score = 0;
};

// The k best hits of each of a number of queries, fed tile by tile. Holds at most k hits a query.
class TopHits {
 public:
  TopHits(int64_t queries, int64_t k);

  // scores [queries, documents.size()] in host memory; `documents` are the numbers of the columns.
  // Throws Error naming query and document for a score that is not a number.
  void add(const float* scores, const std::vector<int64_t>& documents);

  // The best k over all ranks, on all ranks. Collective.
  void merge(Communicator& communicator, Device& device);

  // [queries], best first; fewer than k when there are fewer documents.
  std::vector<std::vector<Hit>> sorted() const;

 private:
  int64_t k_;
  std::vector<std::vector<Hit>> heaps_;  // the worst hit in front
};

// The top_k documents of each query, the same on every rank. Documents are encoded and scored batch
// by batch and not kept. Collective.
std::vector<std::vector<Hit>> retrieve(ModelSession& session, Communicator& communicator,
                                       const std::vector<std::string>& queries,
                                       const std::vector<std::string>& documents, int64_t top_k,
                                       const EncodeSettings& settings);

// The documents' vectors, kept in device memory (each rank its share), for queries that come later.
class DocumentIndex {
 public:
  // Collective.
  DocumentIndex(ModelSession& session, Communicator& communicator,
                const std::vector<std::string>& documents, const EncodeSettings& settings);

  // As retrieve(), with the same results. Collective.
  std::vector<std::vector<Hit>> search(const std::vector<std::string>& queries, int64_t top_k);

  int64_t tokens() const { return tokens_; }  // of all ranks

 private:
  struct Tile {                      // documents that were encoded together
    std::vector<int64_t> documents;  // their numbers
    int64_t first_row = 0;           // of vectors_
    int64_t first_offset = 0;        // of offsets_, which has documents + 1 entries from 0 for each
    int64_t rows = 0;
    int64_t longest = 0;
  };
  ModelSession& session_;
  Communicator& communicator_;
  EncodeSettings settings_;
  std::vector<Tile> tiles_;
  DeviceTensor vectors_, offsets_;
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
};

}  // namespace maxim
