#include "model/colbert.h"

#include <optional>

namespace maxim {
namespace {

constexpr const char* kProjection = "1_Dense.linear.weight";

}  // namespace

Colbert::Colbert(Ops& ops, const BertConfig& bert, int64_t embedding_size, Parameters& parameters)
    : ops_(ops),
      bert_(bert),
      embedding_size_(embedding_size),
      encoder_(ops, bert, parameters),
      projection_(parameters.weight_span(kProjection, 1)),
      projection_begin_(parameters.first_of(kProjection)) {
  MAXIM_CHECK(projection_.rows() == embedding_size, "the projection has {} rows, expected {}",
              projection_.rows(), embedding_size);
  if (!parameters.gradients().absent()) d_projection_ = parameters.gradient(kProjection);
}

Tensor Colbert::take_vectors(int64_t scored, Arena& arena) const {
  return arena.take(projection_.dtype(), scored, embedding_size_, "token vectors");
}

void Colbert::encode_into(const Tensor& vectors, const Sequences& sequences,
                          const StepDropout& dropout, bool keep, Arena& arena) {
  const int64_t scored = sequences.scored();
  vectors_ = Tensor();  // should this fail, there is nothing to go back from
  hidden_ =
      arena.take(projection_.dtype(), scored, bert_.hidden_size, "hidden states of scored rows");
  norm_ = arena.take(DType::f32, scored, "norms of token vectors");
  encoder_.forward(hidden_, sequences, dropout, keep, arena);
  vectors_ = vectors;
}

Tensor Colbert::forward(const Sequences& sequences, const StepDropout& dropout, bool keep,
                        Arena& arena) {
  const Tensor vectors = take_vectors(sequences.scored(), arena);
  std::optional<Arena::Mark> only_vectors_stay;
  if (!keep) only_vectors_stay.emplace(arena);
  encode_into(vectors, sequences, dropout, keep, arena);
  project(0, vectors.rows());
  if (!keep) vectors_ = Tensor();
  return vectors;
}

Tensor Colbert::encode(const Sequences& sequences, const StepDropout& dropout, Arena& arena) {
  const Tensor vectors = take_vectors(sequences.scored(), arena);
  encode_into(vectors, sequences, dropout, true, arena);
  return vectors;
}

void Colbert::project(int64_t begin, int64_t end) {
  const Tensor vectors = vectors_.slice(begin, end);
  ops_.gemm({.c = vectors, .a = hidden_.slice(begin, end), .b = projection_, .transpose_b = true});
  ops_.normalize_forward(vectors, norm_.slice(begin, end), vectors);
}

void Colbert::backward(const Tensor& d_vectors, Arena& arena, const FinalFrom& final_from) {
  MAXIM_CHECK(!vectors_.absent(),
              "no activations: call forward with keep first, once for each backward");
  const Arena::Mark scratch_ends(arena);
  const Tensor d_projected =  // in place where the types are equal
      vectors_.dtype() == DType::f32
          ? d_vectors
          : arena.take(vectors_.dtype(), vectors_.rows(), vectors_.cols(), "projection gradients");
  ops_.normalize_backward(d_projected, d_vectors, vectors_, norm_);
  ops_.gemm({.c = d_projection_,
             .a = d_projected,
             .b = hidden_,
             .transpose_a = true,
             .accumulate = true});
  if (final_from) final_from(projection_begin_);
  const Tensor& d_hidden = hidden_;  // takes its place: hidden is not needed any more
  ops_.gemm({.c = d_hidden, .a = d_projected, .b = projection_});
  encoder_.backward(d_hidden, arena, final_from);
  vectors_ = Tensor();
}

int64_t Colbert::arena_bytes(const BatchLimits& limits, bool keep) const {
  const DType type = projection_.dtype();
  const int64_t vectors = Arena::bytes_of(type, limits.scored * embedding_size_);
  const int64_t d_projected = keep && type != DType::f32 ? vectors : 0;
  return vectors + d_projected + Arena::bytes_of(type, limits.scored * bert_.hidden_size) +
         Arena::bytes_of(DType::f32, limits.scored) + encoder_.arena_bytes(limits.tokens, keep);
}

double Colbert::forward_flops(int64_t tokens, int64_t sum_of_rows_times_keys,
                              int64_t scored) const {
  const auto h = static_cast<double>(bert_.hidden_size);
  const auto i = static_cast<double>(bert_.intermediate_size);
  const double linear = 2 * static_cast<double>(tokens) * (4 * h * h + 2 * h * i);
  const double attention = 4 * static_cast<double>(sum_of_rows_times_keys) * h;
  const double projection =
      2 * static_cast<double>(scored) * h * static_cast<double>(embedding_size_);
  return static_cast<double>(bert_.num_hidden_layers) * (linear + attention) + projection;
}

}  // namespace maxim
