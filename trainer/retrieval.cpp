#include "trainer/retrieval.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/error.h"

namespace maxim {
namespace {

// Higher score, then lower document number.
bool better(const Hit& a, const Hit& b) {
  return a.score != b.score ? a.score > b.score : a.document < b.document;
}

// Keeps the k best in a heap whose front is the worst.
void keep(std::vector<Hit>& heap, int64_t k, const Hit& hit) {
  if (static_cast<int64_t>(heap.size()) == k) {
    if (!better(hit, heap.front())) return;
    std::pop_heap(heap.begin(), heap.end(), better);
    heap.pop_back();
  }
  heap.push_back(hit);
  std::push_heap(heap.begin(), heap.end(), better);
}

// The queries' vectors on this rank's device, in the documents' type.
class Queries {
 public:
  Queries(ModelSession& session, Communicator& communicator, const std::vector<std::string>& texts,
          const EncodeSettings& settings)
      : device_(session.device()) {
    const EncodedTexts encoded = encode_texts(session, communicator, texts, true, settings);
    if (encoded.tokens() > std::numeric_limits<int32_t>::max())
      fail_input("{} query tokens are more than the {} that can be searched at once",
                 encoded.tokens(), std::numeric_limits<int32_t>::max());
    const std::vector<int32_t> offsets(encoded.offsets.begin(), encoded.offsets.end());
    const int64_t size = encoded.tokens() * encoded.dimension;
    const DeviceTensor floats(device_, DType::f32, size, "queries in float32");
    memory_ = DeviceTensor(device_, session.parameters().compute_type(), size, "queries");
    offsets_ = DeviceTensor(device_, DType::i32, encoded.count() + 1, "query offsets");
    device_.copy_in(floats.view(), encoded.vectors.data());
    session.ops().convert(memory_.view(), floats.view());
    device_.copy_in(offsets_.view(), offsets.data());
    vectors_ = {.vectors = memory_.view().reshape(encoded.tokens(), encoded.dimension),
                .offsets = offsets_.view()};
    for (int64_t i = 0; i < encoded.count(); ++i)
      vectors_.longest = std::max(vectors_.longest, encoded.offsets[i + 1] - encoded.offsets[i]);
  }

  // Arena bytes that score() takes for so many documents.
  int64_t arena_bytes(int64_t documents) const { return 4 * vectors_.count() * documents + 256; }

  // Scores of all queries with these documents go to `hits`.
  void score(Ops& ops, const TokenVectors& documents, const std::vector<int64_t>& numbers,
             Arena& arena, TopHits& hits) {
    const Tensor scores =
        arena.take(DType::f32, vectors_.count(), documents.count(), "retrieval scores");
    ops.maxsim_forward(scores, Tensor(), vectors_, documents);
    host_scores_.resize(scores.size());
    device_.copy_out(host_scores_.data(), scores);
    hits.add(host_scores_.data(), numbers);
  }

 private:
  Device& device_;
  DeviceTensor memory_, offsets_;
  TokenVectors vectors_;
  std::vector<float> host_scores_;
};

}  // namespace

TopHits::TopHits(int64_t queries, int64_t k) : k_(k), heaps_(queries) {
  MAXIM_CHECK(k > 0, "k {}", k);
}

void TopHits::add(const float* scores, const std::vector<int64_t>& documents) {
  for (size_t q = 0; q < heaps_.size(); ++q) {
    for (size_t d = 0; d < documents.size(); ++d) {
      const Hit hit{.document = documents[d], .score = scores[q * documents.size() + d]};
      if (std::isnan(hit.score))
        fail(
            "the score of query {} with document {} is not a number: the model's weights are "
            "broken",
            q, hit.document);
      keep(heaps_[q], k_, hit);
    }
  }
}

void TopHits::merge(Communicator& communicator, Device& device) {
  if (communicator.size() == 1) return;
  const int64_t queries = static_cast<int64_t>(heaps_.size());
  std::vector<int64_t> documents(queries * k_, -1);  // -1: fewer than k
  std::vector<float> scores(queries * k_, 0);
  for (int64_t q = 0; q < queries; ++q) {
    for (size_t i = 0; i < heaps_[q].size(); ++i) {
      documents[q * k_ + i] = heaps_[q][i].document;
      scores[q * k_ + i] = heaps_[q][i].score;
    }
    heaps_[q].clear();
  }
  const auto gather = [&](auto& host, const char* purpose) {
    using Element = typename std::decay_t<decltype(host)>::value_type;
    const int64_t size = host.size(), ranks = communicator.size();
    const DeviceTensor mine(device, DTypeOf<Element>::value, size, purpose);
    const DeviceTensor all(device, DTypeOf<Element>::value, size * ranks, purpose);
    device.copy_in(mine.view(), host.data());
    communicator.all_gather(all.view(), mine.view(), std::vector<int64_t>(ranks, size));
    host.resize(size * ranks);
    device.copy_out(host.data(), all.view());
  };
  gather(documents, "gathered documents");
  gather(scores, "gathered scores");
  for (size_t i = 0; i < documents.size(); ++i) {
    const int64_t q = static_cast<int64_t>(i) / k_ % queries;
    if (documents[i] >= 0) keep(heaps_[q], k_, {.document = documents[i], .score = scores[i]});
  }
}

std::vector<std::vector<Hit>> TopHits::sorted() const {
  std::vector<std::vector<Hit>> lists = heaps_;
  for (std::vector<Hit>& list : lists) std::sort(list.begin(), list.end(), better);
  return lists;
}

std::vector<std::vector<Hit>> retrieve(ModelSession& session, Communicator& communicator,
                                       const std::vector<std::string>& queries,
                                       const std::vector<std::string>& documents, int64_t top_k,
                                       const EncodeSettings& settings) {
  Queries encoded(session, communicator, queries, settings);
  const EncodingPlan plan = plan_encoding(session, documents, false, settings);
  TopHits hits(queries.size(), std::clamp<int64_t>(documents.size(), 1, top_k));
  encode_batches(
      session, communicator, documents, false, plan, encoded.arena_bytes(plan.limits.sequences),
      [&](const std::vector<int64_t>& numbers, const TokenVectors& vectors, Arena& arena) {
        encoded.score(session.ops(), vectors, numbers, arena, hits);
      });
  hits.merge(communicator, session.device());
  return hits.sorted();
}

DocumentIndex::DocumentIndex(ModelSession& session, Communicator& communicator,
                             const std::vector<std::string>& documents,
                             const EncodeSettings& settings)
    : session_(session),
      communicator_(communicator),
      settings_(settings),
      documents_(static_cast<int64_t>(documents.size())) {
  const EncodingPlan plan = plan_encoding(session, documents, false, settings);
  tokens_ = plan.scored_offsets.back();
  int64_t rows = 0, offsets = 0;
  for (int64_t b = communicator.rank(); b < plan.batches(); b += communicator.size()) {
    rows += scored_tokens(plan, b);
    offsets += plan.batch_offsets[b + 1] - plan.batch_offsets[b] + 1;
  }
  Device& device = session.device();
  const int64_t dimension = session.config().embedding_size;
  vectors_ = DeviceTensor(device, session.parameters().compute_type(), rows * dimension,
                          "document vectors");
  offsets_ = DeviceTensor(device, DType::i32, offsets, "document offsets");
  const Tensor all = vectors_.view().reshape(rows, dimension);
  int64_t row = 0, offset = 0;
  encode_batches(session, communicator, documents, false, plan, 0,
                 [&](const std::vector<int64_t>& numbers, const TokenVectors& vectors, Arena&) {
                   const Tile tile{.documents = numbers,
                                   .first_row = row,
                                   .first_offset = offset,
                                   .rows = vectors.vectors.rows(),
                                   .longest = vectors.longest};
                   row += tile.rows;
                   offset += vectors.offsets.rows();
                   device.copy(all.slice(tile.first_row, row), vectors.vectors);
                   device.copy(offsets_.view().slice(tile.first_offset, offset), vectors.offsets);
                   tiles_.push_back(tile);
                 });
}

std::vector<std::vector<Hit>> DocumentIndex::search(const std::vector<std::string>& queries,
                                                    int64_t top_k) {
  Queries encoded(session_, communicator_, queries, settings_);
  TopHits hits(queries.size(), std::clamp<int64_t>(documents_, 1, top_k));
  const int64_t dimension = session_.config().embedding_size;
  const Tensor all = vectors_.view().reshape(vectors_.view().size() / dimension, dimension);
  Arena arena(session_.device(), encoded.arena_bytes(settings_.batch_size), "search arena");
  for (const Tile& tile : tiles_) {
    arena.reset();
    const int64_t count = static_cast<int64_t>(tile.documents.size());
    const TokenVectors documents{
        .vectors = all.slice(tile.first_row, tile.first_row + tile.rows),
        .offsets = offsets_.view().slice(tile.first_offset, tile.first_offset + count + 1),
        .longest = tile.longest};
    encoded.score(session_.ops(), documents, tile.documents, arena, hits);
  }
  hits.merge(communicator_, session_.device());
  return hits.sorted();
}

}  // namespace maxim
