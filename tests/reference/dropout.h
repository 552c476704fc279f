// Dropout by the scalar definition of kernels/dropout.h.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "tests/reference/ragged.h"

namespace maxim_tests {

// What each element of hidden units [T, columns] is multiplied by: 0, or the scale of what is kept.
// All 1 when dropout is off.
std::vector<double> dropout_multipliers(const maxim::Dropout& dropout, const Ragged& sequences,
                                        int64_t columns);

}  // namespace maxim_tests
