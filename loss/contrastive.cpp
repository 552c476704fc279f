#include "loss/contrastive.h"

#include <algorithm>
#include <numeric>

namespace maxim {
namespace {

int64_t longest_text(const std::vector<int32_t>& offsets) {
  int32_t longest = 0;
  for (size_t i = 1; i < offsets.size(); ++i)
    longest = std::max(longest, offsets[i] - offsets[i - 1]);
  return longest;
}

Tensor to_device(Device& device, Arena& arena, const std::vector<int32_t>& values,
                 const char* purpose) {
  const Tensor tensor = arena.take(DType::i32, static_cast<int64_t>(values.size()), purpose);
  device.copy_in(tensor, values.data());
  return tensor;
}

}  // namespace

ContrastiveLoss::ContrastiveLoss(Ops& ops, Communicator& communicator,
                                 const ContrastiveSettings& settings)
    : ops_(ops), communicator_(communicator), settings_(settings) {
  MAXIM_CHECK(settings.temperature > 0 && settings.documents_per_query > 0,
              "temperature {}, documents a query {}", settings.temperature,
              settings.documents_per_query);
}

// Which documents are candidates: lengths of all in column order, tokens and first document of each
// rank.
void ContrastiveLoss::find_candidates(const std::vector<int32_t>& document_offsets) {
  lengths_.clear();
  for (size_t i = 1; i < document_offsets.size(); ++i)
    lengths_.push_back(document_offsets[i] - document_offsets[i - 1]);
  first_document_ = 0;
  if (gathers()) {
    communicator_.all_gather_list(all_lengths_, documents_of_rank_, lengths_);
    const auto mine = documents_of_rank_.begin() + communicator_.rank();
    first_document_ = std::accumulate(documents_of_rank_.begin(), mine, int64_t{0});
  } else {
    all_lengths_ = lengths_;
    documents_of_rank_.assign(1, static_cast<int64_t>(lengths_.size()));
  }
  all_offsets_.assign(1, 0);
  tokens_of_rank_.clear();
  auto length = all_lengths_.begin();
  for (const int64_t documents : documents_of_rank_) {
    const int64_t before = all_offsets_.back();
    for (int64_t i = 0; i < documents; ++i, ++length)
      all_offsets_.push_back(all_offsets_.back() + *length);
    tokens_of_rank_.push_back(all_offsets_.back() - before);
  }
}

void ContrastiveLoss::gather(const ContrastiveBatch& batch, Arena& arena) {
  MAXIM_CHECK(batch.document_offsets.back() == batch.documents.rows(), "{} tokens, {} vectors",
              batch.document_offsets.back(), batch.documents.rows());
  find_candidates(batch.document_offsets);
  candidates_ = batch.documents;
  if (!gathers()) return;
  const int64_t tokens = all_offsets_.back(), width = batch.documents.cols();
  candidates_ = arena.take(batch.documents.dtype(), tokens, width, "gathered documents");
  communicator_.beside([this, documents = batch.documents](Communicator& communicator) {
    communicator.all_gather(candidates_, documents, tokens_of_rank_);
  });
}

void ContrastiveLoss::run(const ContrastiveBatch& batch, float scale, const Tensor& loss,
                          const Tensor& d_queries, const Tensor& d_documents, Arena& arena) {
  const int64_t query_count = static_cast<int64_t>(batch.query_offsets.size()) - 1;
  const int64_t own_documents = static_cast<int64_t>(batch.document_offsets.size()) - 1;
  MAXIM_CHECK(own_documents == query_count * settings_.documents_per_query,
              "{} documents for {} queries with {} each", own_documents, query_count,
              settings_.documents_per_query);
  MAXIM_CHECK(batch.query_offsets.back() == batch.queries.rows(), "{} tokens, {} vectors",
              batch.query_offsets.back(), batch.queries.rows());
  targets_.clear();
  for (int64_t i = 0; i < query_count; ++i)
    targets_.push_back(static_cast<int32_t>(first_document_ + i * settings_.documents_per_query));

  Arena::Mark scratch(arena);
  Device& device = ops_.device();
  const int64_t width = batch.documents.cols(), documents = all_offsets_.size() - 1;
  const int64_t query_tokens = batch.queries.rows(), tokens = all_offsets_.back();
  const Tensor d_all =
      gathers() ? arena.take(DType::f32, tokens, width, "candidates' gradients") : d_documents;
  const TokenVectors queries{batch.queries,
                             to_device(device, arena, batch.query_offsets, "query offsets"),
                             longest_text(batch.query_offsets)};
  const TokenVectors candidates{candidates_,
                                to_device(device, arena, all_offsets_, "document offsets"),
                                longest_text(all_offsets_)};
  const Tensor scores = arena.take(DType::f32, query_count, documents, "scores");
  const Tensor winners = arena.take(DType::u16, query_tokens, documents, "winners");
  const Tensor targets = to_device(device, arena, targets_, "targets");
  if (gathers()) communicator_.join();
  ops_.maxsim_forward(scores, winners, queries, candidates);
  ops_.cross_entropy({.loss = loss,
                      .d_scores = scores,
                      .scores = scores,
                      .targets = targets,
                      .temperature = settings_.temperature,
                      .scale = scale,
                      .loss_scale = loss_scale_});
  ops_.maxsim_backward_documents(d_all, scores, winners, queries, candidates);
  if (gathers())
    communicator_.beside([this, d_documents, d_all](Communicator& communicator) {
      communicator.reduce_scatter(d_documents, d_all, tokens_of_rank_);
    });
  ops_.maxsim_backward_queries(d_queries, scores, winners, queries, candidates);
  if (gathers()) communicator_.join();
}

int64_t ContrastiveLoss::arena_bytes(int64_t queries, int64_t query_tokens, int64_t documents,
                                     int64_t document_tokens, int64_t embedding_size) const {
  const int64_t ranks = gathers() ? communicator_.size() : 1;
  const int64_t all_documents = documents * ranks, all_tokens = document_tokens * ranks;
  const auto piece = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  return (gathers() ? 2 * piece(all_tokens * embedding_size * size_of(DType::f32)) : 0) +
         piece((queries + 1) * size_of(DType::i32)) +
         piece((all_documents + 1) * size_of(DType::i32)) +
         piece(queries * all_documents * size_of(DType::f32)) +
         piece(query_tokens * all_documents * size_of(DType::u16)) +
         piece(queries * size_of(DType::i32));
}

}  // namespace maxim
