// Small BERTs with random weights.
#pragma once

#include <memory>

#include "kernels/ops.h"
#include "model/bert_config.h"
#include "model/colbert.h"
#include "model/parameters.h"
#include "tests/kernels/backends.h"
#include "tests/reference/ragged.h"

namespace maxim_tests {

// Two layers of 64 columns and two heads, 50 words, 40 positions.
maxim::BertConfig small_bert(int64_t intermediate_size = 96);

struct RandomModel {
  // Weights of a size at which no layer drowns the others: LayerNorm gains 1 +- 0.2, all else
  // +- 0.15.
  RandomModel(Backend& backend, const maxim::BertConfig& config, int64_t embedding_size,
              uint32_t seed = 1, maxim::DType compute_type = maxim::DType::f32);
  maxim::BertConfig config;
  maxim::Parameters parameters;
  maxim::Colbert colbert;
};

// Five sequences, one of them empty, one of a single row; the first is a query whose last 6 rows
// are no keys; two rows of another are not scored.
Ragged mixed_batch();

}  // namespace maxim_tests
