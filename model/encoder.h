// BERT's encoder (Devlin et al. 2018, as Hugging Face's BertModel): embeddings, then layers
// (encoder_layer.h), over packed rows.
//
// Dropout sites: 0 embeddings; of layer l: 1 + 3l attention probabilities, 2 + 3l attention output,
// 3 + 3l feed-forward output.
//
// Memory in activations a token, with I = 4H: both passes work in 6 H; training keeps H for the
// embeddings and 10 H a layer beside that; inference keeps nothing: what a layer would save lies in
// the working memory too.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/ops.h"
#include "model/bert_config.h"
#include "model/encoder_layer.h"
#include "model/parameters.h"
#include "runtime/device.h"

namespace maxim {

// Dropout of a training step; probabilities 0 for inference.
struct StepDropout {
  float hidden = 0, attention = 0;
  uint64_t seed = 0;
  uint32_t step = 0;
};

// See Colbert::backward.
using FinalFrom = std::function<void(int64_t begin)>;

class Encoder {
 public:
  // Keeps views into `parameters`, which must outlive the encoder.
  Encoder(Ops& ops, const BertConfig& config, const Parameters& parameters);

  // hidden [T', H] = the last layer's output at the scored rows. When `keep` is true, what
  // backward() needs stays in the arena, and the views in `sequences` must stay valid until then;
  // else all of the arena is given back. Throws Error when a sequence is longer than
  // max_position_embeddings.
  void forward(const Tensor& hidden, const Sequences& sequences, const StepDropout& dropout,
               bool keep, Arena& arena);
  // Adds the gradients of all parameters for d_hidden [T', H] of the last forward(keep = true),
  // whose activations are used up by it. Its own memory is given back.
  void backward(const Tensor& d_hidden, Arena& arena, const FinalFrom& final_from = nullptr);

  // Most arena bytes that forward(), and backward() when `keep`, hold at once for so many rows.
  int64_t arena_bytes(int64_t tokens, bool keep) const;

 private:
  SavedNorm take_norm(int64_t tokens, Arena& arena) const;
  SavedLayer take_layer(int64_t tokens, Arena& arena) const;
  SavedLayer saved_in_scratch(const LayerScratch& scratch, Arena& arena) const;
  LayerScratch take_scratch(int64_t tokens, Arena& arena) const;
  int64_t wide_columns() const;
  LayerDropout layer_dropout(int64_t layer) const;
  EmbeddingForward embedding_arguments(const Tensor& y, const SavedNorm& saved) const;
  void backward_embeddings(const Tensor& d_y);

  Ops& ops_;
  const Parameters& parameters_;
  BertConfig config_;
  DType type_;  // of activations
  LayerNormWeights embedding_norm_;
  std::vector<EncoderLayer> layers_;
  std::vector<int64_t> layer_begins_;  // of their parameters in the flat buffer

  // Of the last forward pass.
  Sequences sequences_;
  StepDropout dropout_;
  SavedNorm saved_embedding_;
  std::vector<SavedLayer> saved_layers_;
};

}  // namespace maxim
