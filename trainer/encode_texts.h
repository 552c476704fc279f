// Texts to token vectors without gradients, over all ranks.
//
// All texts are tokenised once for their lengths, sorted by length and cut into batches; rank r of
// W encodes batches r, r + W, …  The batches depend on the texts and settings alone, so a text has
// the same batch mates, and the same bits, at any world size, and the ranks' shares differ by one
// batch at most. Memory is that of one batch beside the results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "trainer/model_session.h"

namespace maxim {

struct EncodeSettings {
  // Texts of a batch at most; 32 is what PyLate's encode() and evaluators take. Memory and time
  // only, since a batch has no padding.
  int64_t batch_size = 32;
  // Tokens of a batch at most (a single longer text is still taken): 4,096 rows keep the matrix
  // products within 2 % of their speed on larger ones, and MiniLM's activations below 70 MB.
  int64_t batch_tokens = 4096;
};

// Vectors of texts in host memory: those of text i are rows [offsets[i], offsets[i + 1]).
struct EncodedTexts {
  int64_t dimension = 0;
  std::vector<float> vectors;       // [tokens, dimension], unit length
  std::vector<int64_t> offsets{0};  // [texts + 1]
  std::vector<int32_t> token_ids;   // [tokens]
  int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t tokens() const { return offsets.back(); }
};

// Which texts are encoded together.
struct EncodingPlan {
  std::vector<int64_t> order;           // text numbers, longest first, equals by number
  std::vector<int64_t> batch_offsets;   // batch b is order[batch_offsets[b], batch_offsets[b + 1])
  std::vector<int64_t> scored_offsets;  // [texts + 1] scored tokens before text i, in input order
  std::vector<int32_t> token_ids;       // of the scored tokens, in input order
  BatchLimits limits;                   // of the largest batch
  int64_t truncated = 0;                // texts that were cut at the length
  int64_t batches() const { return static_cast<int64_t>(batch_offsets.size()) - 1; }
};

EncodingPlan plan_encoding(const ModelSession& session, const std::vector<std::string>& texts,
                           bool is_query, const EncodeSettings& settings);

// Scored tokens of batch b.
int64_t scored_tokens(const EncodingPlan& plan, int64_t batch);

// Encodes this rank's batches and calls `use` after each with the texts' numbers and, in the same
// order, their vectors (in device memory, valid until `use` returns). `use` may take up to
// `extra_arena_bytes` more from the arena.
using UseBatch = std::function<void(const std::vector<int64_t>& texts, const TokenVectors& vectors,
                                    Arena& arena)>;
void encode_batches(ModelSession& session, const Communicator& communicator,
                    const std::vector<std::string>& texts, bool is_query, const EncodingPlan& plan,
                    int64_t extra_arena_bytes, const UseBatch& use);

// The vectors of all texts, on every rank, in the order of the texts. Collective.
EncodedTexts encode_texts(ModelSession& session, Communicator& communicator,
                          const std::vector<std::string>& texts, bool is_query,
                          const EncodeSettings& settings);

}  // namespace maxim
