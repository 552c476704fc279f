// Preconditions of operations that hold on every backend: shapes of operands against each other.
// Each throws Error naming the operand and what was expected.
#pragma once

#include "kernels/ops.h"

namespace maxim {

void check_rows(const Tensor& t, int64_t rows, int64_t columns, const char* name);
void check_size(const Tensor& t, int64_t size, const char* name);

struct GemmShape {
  int64_t m, n, k;
};
GemmShape shape_of(const GemmArgs& args);

void check(const LayerNormForward& args);
void check(const LayerNormBackward& args);
void check_layer_norm_apply(const Tensor& y, const Tensor& s, const Tensor& mean,
                            const Tensor& rstd, const Tensor& gamma, const Tensor& beta);
void check(const AdamW& args);

}  // namespace maxim
