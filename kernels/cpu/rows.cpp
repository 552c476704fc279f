// Copies of rows. The rows that take part in scoring: out of all rows before the projection, back
// into all rows after it. Each byte is read and written once: scatter_rows zeroes only the rows
// between.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace maxim {
namespace {

void check_rows(const Tensor& few, const Tensor& all, const Tensor& rows) {
  MAXIM_CHECK(few.rows() == rows.size() && few.cols() == all.cols(),
              "[{}, {}] and [{}, {}] by {} rows", few.rows(), few.cols(), all.rows(), all.cols(),
              rows.size());
  const int32_t* r = rows.as<int32_t>();
  int64_t last = -1;
  for (int64_t i = 0; i < rows.size(); ++i) {
    MAXIM_CHECK(r[i] > last && r[i] < all.rows(), "row {} after row {}, of {}", r[i], last,
                all.rows());
    last = r[i];
  }
}

}  // namespace

void CpuOps::convert(const Tensor& y, const Tensor& x) {
  MAXIM_CHECK(y.size() == x.size(), "{} elements into {}", x.size(), y.size());
  if (!x.empty()) std::memcpy(y.as<float>(), x.as<float>(), x.bytes());
}

void CpuOps::gather_rows(const Tensor& y, const Tensor& x, const Tensor& rows) {
  check_rows(y, x, rows);
  const int64_t columns = x.cols();
  const int32_t* r = rows.as<int32_t>();
  float* to = y.as<float>();
  const float* from = x.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows.size(); ++i)
    std::memcpy(to + i * columns, from + r[i] * columns, columns * sizeof(float));
}

void CpuOps::scatter_rows(const Tensor& x, const Tensor& y, const Tensor& rows) {
  check_rows(y, x, rows);
  const int64_t columns = x.cols(), count = rows.size();
  const int32_t* r = rows.as<int32_t>();
  float* to = x.as<float>();
  const float* from = y.as<float>();
  // Turn i zeroes the rows after row i - 1 of the list and copies row i; the last one only zeroes.
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i <= count; ++i) {
    const int64_t begin = i == 0 ? 0 : r[i - 1] + 1, end = i == count ? x.rows() : r[i];
    std::fill_n(to + begin * columns, (end - begin) * columns, 0.0f);
    if (i < count) std::memcpy(to + end * columns, from + i * columns, columns * sizeof(float));
  }
}

}  // namespace maxim
