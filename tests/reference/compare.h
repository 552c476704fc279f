// Comparisons that say where they fail.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/reference/arithmetic.h"
#include "tests/reference/random.h"

namespace maxim_tests {

// Demands |got[i] - want[i]| <= absolute + relative * |want[i]| for every i (NaN only where NaN is
// wanted, infinities equal). Otherwise the test fails with the worst index, both values and the
// bound there. A bound above a hundredth of the largest wanted value fails too: it would prove
// nothing. `columns` > 0 prints the index as row and column.
void require_close(const std::string& what, const std::vector<float>& got,
                   const std::vector<double>& want, double absolute, double relative = 0,
                   int64_t columns = 0);

// Demands equal bits, NaNs included.
void require_same_bits(const std::string& what, const std::vector<float>& got,
                       const std::vector<float>& want);

}  // namespace maxim_tests
