// ColBERT: BERT, projection without bias, L2 normalisation of the scored rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/bert_config.h"
#include "model/encoder.h"
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

// The largest batch that will come: sizes the arena.
struct BatchLimits {
  int64_t tokens = 0, sequences = 0, scored = 0, longest = 0;
};

class Colbert {
 public:
  // Keeps views into `parameters`, which must outlive this.
  Colbert(Ops& ops, const BertConfig& bert, int64_t embedding_size, Parameters& parameters);

  // Unit vectors of the scored rows [T', D], in `arena`; only scored rows are projected. When
  // `keep` is true the activations that backward() needs stay in the arena until the caller resets
  // it, and the views in `sequences` must stay valid until then; else only the vectors stay. Throws
  // Error when a sequence is longer than max_position_embeddings.
  Tensor forward(const Sequences& sequences, const StepDropout& dropout, bool keep, Arena& arena);
  // forward(keep = true) in two parts, for what can begin when some of the vectors are there:
  // encode() leaves the vectors open, and each row of them is to be in one project(begin, end).
  Tensor encode(const Sequences& sequences, const StepDropout& dropout, Arena& arena);
  void project(int64_t begin, int64_t end);
  // Adds the gradients of all parameters for the last forward(keep = true), once. d_vectors [T', D]
  // is destroyed. Gives back the arena memory that it takes itself. `final_from(b)`, when given, is
  // called whenever the gradients at and behind element b of the flat buffer are complete (in the
  // order of the device's work): after the projection, each layer, the embeddings.
  void backward(const Tensor& d_vectors, Arena& arena, const FinalFrom& final_from = nullptr);
  // Most arena bytes that a forward (and backward, when keep) of a batch within `limits` hold at
  // once; exact for a batch of just these sizes. limits.sequences and limits.longest do not matter.
  int64_t arena_bytes(const BatchLimits& limits, bool keep) const;
  // Model FLOPs of one forward pass over these rows (matrix products and attention, multiply-add =
  // 2).
  double forward_flops(int64_t tokens, int64_t sum_of_rows_times_keys, int64_t scored) const;

 private:
  Tensor take_vectors(int64_t scored, Arena& arena) const;
  void encode_into(const Tensor& vectors, const Sequences& sequences, const StepDropout& dropout,
                   bool keep, Arena& arena);

  Ops& ops_;
  BertConfig bert_;
  int64_t embedding_size_;
  Encoder encoder_;
  Tensor projection_, d_projection_;  // [D, H]
  int64_t projection_begin_;          // in the flat buffer

  // Of the last forward(keep = true); vectors_ is absent when there is nothing to go back from.
  Tensor hidden_, norm_, vectors_;  // [T', H], [T'], [T', D]
};

}  // namespace maxim
