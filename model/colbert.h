// ColBERT: BERT, projection without bias, L2 normalisation of the scored rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/bert_config.h"
#include "model/parameters.h"
#include "runtime/device.h"

namespace maxim {

// What config_sentence_transformers.json says of a ColBERT; names and defaults are PyLate's.
struct ColbertConfig {
  std::string query_prefix = "[Q] ", document_prefix = "[D] ";
  int64_t query_length = 32, document_length = 180;
  bool do_query_expansion = true;
  bool attend_to_expansion_tokens = false;
  std::vector<std::string> skiplist_words;  // default: the 32 characters of string.punctuation
  int64_t embedding_size = 128;
};

// Dropout of a training step; probabilities 0 for inference.
struct StepDropout {
  float hidden = 0, attention = 0;
  uint64_t seed = 0;
  uint32_t step = 0;
};

// The largest batch that will come: sizes the arena.
struct BatchLimits {
  int64_t tokens = 0, sequences = 0, scored = 0, longest = 0;
};

class Colbert {
 public:
  Colbert(Ops& ops, const BertConfig& bert, int64_t embedding_size, Parameters& parameters);

  // Unit vectors of the scored rows [T', D], in `arena`. When `keep` is true the activations that
  // backward() needs stay in the arena until the caller resets it; else scratch is given back layer
  // by layer.
  Tensor forward(const Sequences& sequences, const StepDropout& dropout, bool keep, Arena& arena);
  // Adds the gradients of all parameters for the last forward(keep = true). d_vectors [T', D] is
  // destroyed.
  void backward(const Tensor& d_vectors, Arena& arena);
  // Arena bytes that a forward (and backward, when keep) of such a batch takes.
  int64_t arena_bytes(const BatchLimits& limits, bool keep) const;
  // Model FLOPs of one forward pass over these rows (matrix products and attention, multiply-add =
  // 2).
  double forward_flops(int64_t tokens, int64_t sum_of_rows_times_keys, int64_t scored) const;

 private:
  struct Saved;
  // …
};

}  // namespace maxim
