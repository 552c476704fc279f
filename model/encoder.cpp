#include "model/encoder.h"

#include <algorithm>

#include "runtime/error.h"

namespace maxim {
namespace {

constexpr const char* kWord = "embeddings.word_embeddings.weight";
constexpr const char* kPosition = "embeddings.position_embeddings.weight";
constexpr const char* kType = "embeddings.token_type_embeddings.weight";

Dropout dropout_at(float probability, const StepDropout& step, int64_t site) {
  return {probability, step.seed, step.step, static_cast<uint32_t>(site)};
}

}  // namespace

Encoder::Encoder(Ops& ops, const BertConfig& config, const Parameters& parameters)
    : ops_(ops),
      parameters_(parameters),
      config_(config),
      type_(parameters.compute_type()),
      embedding_norm_(parameters, "embeddings.LayerNorm") {
  for (int64_t l = 0; l < config.num_hidden_layers; ++l)
    layers_.emplace_back(ops, config, parameters, l);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l)
    layer_begins_.push_back(parameters.first_of(fmt::format("encoder.layer.{}.", l)));
  saved_layers_.resize(layers_.size());
}

SavedNorm Encoder::take_norm(int64_t tokens, Arena& arena) const {
  return {arena.take(type_, tokens, config_.hidden_size, "LayerNorm's input"),
          arena.take(DType::f32, tokens, "LayerNorm's means"),
          arena.take(DType::f32, tokens, "LayerNorm's deviations")};
}

SavedLayer Encoder::take_layer(int64_t tokens, Arena& arena) const {
  const int64_t hidden = config_.hidden_size;
  SavedLayer saved;
  saved.qkv = arena.take(type_, tokens, 3 * hidden, "queries, keys and values");
  saved.attention = arena.take(type_, tokens, hidden, "attention");
  saved.log_sum_exp =
      arena.take(DType::f32, tokens, config_.num_attention_heads, "attention's log-sum-exp");
  saved.h = arena.take(type_, tokens, config_.intermediate_size, "feed-forward input");
  saved.attention_norm = take_norm(tokens, arena);
  saved.output_norm = take_norm(tokens, arena);
  return saved;
}

int64_t Encoder::wide_columns() const {
  return std::max(config_.intermediate_size, 4 * config_.hidden_size);
}

LayerScratch Encoder::take_scratch(int64_t tokens, Arena& arena) const {
  return {arena.take(type_, tokens, wide_columns(), "wide working memory"),
          arena.take(type_, tokens, config_.hidden_size, "working memory"),
          arena.take(type_, tokens, config_.hidden_size, "working memory")};
}

// Where inference keeps what a backward pass would need. Each tensor lies where nothing that is
// still read lies: x is the first H columns' worth of `wide`, q | k | v the next 3 H; the
// attention's output is gone when y1 takes its place in `main`; x is gone when h comes, and h when
// s2 and y2 come.
SavedLayer Encoder::saved_in_scratch(const LayerScratch& scratch, Arena& arena) const {
  const int64_t hidden = config_.hidden_size, tokens = scratch.main.rows();
  SavedNorm norm{scratch.part(hidden, hidden), arena.take(DType::f32, tokens, "means"),
                 arena.take(DType::f32, tokens, "deviations")};
  SavedLayer saved;
  saved.qkv = scratch.part(hidden, 3 * hidden);
  saved.attention = scratch.main;
  saved.log_sum_exp =
      arena.take(DType::f32, tokens, config_.num_attention_heads, "attention's log-sum-exp");
  saved.h = scratch.part(0, config_.intermediate_size);
  saved.attention_norm = saved.output_norm = norm;
  return saved;
}

int64_t Encoder::arena_bytes(int64_t tokens, bool keep) const {
  const auto bytes = [&](int64_t columns) { return Arena::bytes_of(type_, tokens * columns); };
  const auto floats = [&](int64_t columns) {
    return Arena::bytes_of(DType::f32, tokens * columns);
  };
  const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads;
  const int64_t scratch = bytes(wide_columns()) + 2 * bytes(hidden);
  if (!keep) return scratch + 2 * floats(1) + floats(heads);
  const int64_t norm = bytes(hidden) + 2 * floats(1);
  const int64_t layer = bytes(3 * hidden) + bytes(hidden) + floats(heads) +
                        bytes(config_.intermediate_size) + 2 * norm;
  return scratch + norm + config_.num_hidden_layers * layer;
}

LayerDropout Encoder::layer_dropout(int64_t layer) const {
  return {dropout_at(dropout_.attention, dropout_, 1 + 3 * layer),
          dropout_at(dropout_.hidden, dropout_, 2 + 3 * layer),
          dropout_at(dropout_.hidden, dropout_, 3 + 3 * layer)};
}

EmbeddingForward Encoder::embedding_arguments(const Tensor& y, const SavedNorm& saved) const {
  return {.y = y,
          .s = saved.s,
          .mean = saved.mean,
          .rstd = saved.rstd,
          .word = parameters_.value(kWord),
          .position = parameters_.value(kPosition),
          .type = parameters_.value(kType),
          .gamma = embedding_norm_.gamma,
          .beta = embedding_norm_.beta,
          .epsilon = config_.layer_norm_eps,
          .dropout = dropout_at(dropout_.hidden, dropout_, 0)};
}

void Encoder::forward(const Tensor& hidden, const Sequences& sequences, const StepDropout& dropout,
                      bool keep, Arena& arena) {
  MAXIM_CHECK(sequences.longest <= config_.max_position_embeddings,
              "a sequence of {} tokens, the model has {} positions", sequences.longest,
              config_.max_position_embeddings);
  const int64_t tokens = sequences.tokens();
  sequences_ = sequences;
  dropout_ = dropout;
  if (keep) {
    saved_embedding_ = take_norm(tokens, arena);
    for (SavedLayer& saved : saved_layers_) saved = take_layer(tokens, arena);
  }
  const Arena::Mark scratch_ends(arena);
  const LayerScratch scratch = take_scratch(tokens, arena);
  SavedLayer shared;
  if (!keep) {
    shared = saved_in_scratch(scratch, arena);
    saved_embedding_ = shared.output_norm;
  }
  const Tensor x = scratch.part(0, config_.hidden_size);
  ops_.embedding_forward(embedding_arguments(x, saved_embedding_), sequences);
  for (size_t l = 0; l < layers_.size(); ++l)
    layers_[l].forward(keep ? saved_layers_[l] : shared, scratch, sequences, layer_dropout(l));
  ops_.gather_rows(hidden, x, sequences.scored_rows);
}

void Encoder::backward(const Tensor& d_hidden, Arena& arena, const FinalFrom& final_from) {
  const Arena::Mark scratch_ends(arena);
  const LayerScratch scratch = take_scratch(sequences_.tokens(), arena);
  ops_.scatter_rows(scratch.main, d_hidden, sequences_.scored_rows);
  for (int64_t l = static_cast<int64_t>(layers_.size()) - 1; l >= 0; --l) {
    layers_[l].backward(
        saved_layers_[l], scratch, sequences_, layer_dropout(l), [this, l](const Tensor& x) {
          if (l > 0)
            layers_[l - 1].recompute_output(x, saved_layers_[l - 1]);
          else
            ops_.embedding_apply(embedding_arguments(x, saved_embedding_), sequences_);
        });
    if (final_from) final_from(layer_begins_[l]);
  }
  backward_embeddings(scratch.main);
  if (final_from) final_from(0);
}

void Encoder::backward_embeddings(const Tensor& d_y) {
  ops_.embedding_backward({.d_word = parameters_.gradient(kWord),
                           .d_position = parameters_.gradient(kPosition),
                           .d_type = parameters_.gradient(kType),
                           .d_gamma = embedding_norm_.d_gamma,
                           .d_beta = embedding_norm_.d_beta,
                           .d_y = d_y,
                           .s = saved_embedding_.s,
                           .mean = saved_embedding_.mean,
                           .rstd = saved_embedding_.rstd,
                           .gamma = embedding_norm_.gamma,
                           .dropout = dropout_at(dropout_.hidden, dropout_, 0)},
                          sequences_);
}

}  // namespace maxim
