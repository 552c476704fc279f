// bench/kernels: every operation of kernels/ops.h, first held against the plain double loops of
// tests/reference, then timed at the shapes of training. It sees a backend as Ops and Device only.
//
// The least work of a call, in closed form: each operand read once, each result written once (what
// is added to is read, too), tables only in the rows that are used. FLOPs are those of matrix
// products; all else is bound by memory and counts none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/kernels/operands.h"

namespace maxim::bench {

// What a call should have left in a tensor.
struct Expected {
  std::string name;
  Tensor tensor;
  std::vector<double> values;
};

// One operation with its operands, which the Operands that made it own.
struct Problem {
  std::function<void()> call;
  std::function<std::vector<Expected>()> expected;  // by the reference, after one call
  std::function<void()> restore = {};               // puts back what a call destroys; or absent
};

struct Case {
  std::string shape;
  double bytes = 0, flops = 0;  // the least
  std::function<Problem(Operands&)> make = {};
};

struct Operation {
  std::string name;
  // The type that results are as exact as: that of the activations where numbers are rounded to it
  // on the way, f32 where only a result may be.
  DType precision = DType::f32;
  std::vector<Case> small = {};  // to verify: sizes around tiles, ragged sequences
  std::vector<Case> real = {};   // to time
};

// What += outputs hold before.
constexpr float kBefore = 0.25f;

// An encoder whose shapes are timed.
struct Model {
  const char* name;
  int64_t hidden, heads, intermediate, layers;
};
// The two of the README: google-bert/bert-base-uncased (Devlin et al. 2019, table 1) and
// sentence-transformers/all-MiniLM-L6-v2, by their config.json.
constexpr Model kModels[] = {{"BERT-base", 768, 12, 3072, 12}, {"MiniLM-L6", 384, 12, 1536, 6}};
constexpr int64_t kVocabulary = 30522, kPositions = 512, kEmbedding = 128;  // of both; ColBERT's D

// What of the command line decides shapes.
struct Settings {
  DType type = DType::f32;
  std::vector<int64_t> tokens;  // rows of a batch
};

std::vector<Operation> gemm_operations(const Settings& settings);
std::vector<Operation> layer_norm_operations(const Settings& settings);
std::vector<Operation> embedding_operations(const Settings& settings);
std::vector<Operation> row_operations(const Settings& settings);
std::vector<Operation> attention_operations(const Settings& settings);
std::vector<Operation> loss_operations(const Settings& settings);
std::vector<Operation> optimizer_operations(const Settings& settings);

// `tokens` rows as sequences of 128, the last one shorter: between queries of 32 and passages of
// 180. Their words follow Zipf's law, as those of text do, so that some come very often.
maxim_tests::Ragged text_rows(int64_t tokens);
// Ragged rows to verify with: sequences of one row, of none, and beyond a tile.
maxim_tests::Ragged small_rows();
Dropout dropout_of(float probability);  // of some step and site

// "" when all is as expected, else the worst element of the first tensor that is not, with the
// bound. Of the largest expected magnitude M of a tensor, errors may be
//   f32       64 x 2^-24 M: a result of the small shapes is the sum of some hundred terms
//   bf16, f16 2.5 u M, u = 2^-8, 2^-11: rounded once or twice on the way, and at last. More than a
//             hundredth, where a bound proves nothing, this never is.
// by the coarser of `precision` and the tensor's own type; whole numbers are exact.
std::string difference(const Operands& operands, const std::vector<Expected>& all, DType precision);

}  // namespace maxim::bench
