// out[j] += sum over rows of x[·, j], by row blocks in a fixed order (row_blocks.h). Reads x once.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/row_blocks.h"

namespace maxim {

void CpuOps::add_column_sums(const Tensor& out, const Tensor& x) {
  const int64_t rows = x.rows(), columns = x.cols();
  MAXIM_CHECK(out.size() == columns, "{} sums of {} columns", out.size(), columns);
  const RowBlocks blocks(rows);
  float* partial = partial_sums_.floats(RowBlocks::kMostBlocks * columns, "column sums");
  const float* in = x.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks.count(); ++b) {
    float* sums = partial + b * columns;
    std::fill_n(sums, columns, 0.0f);
    for (int64_t t = blocks.begin(b); t < blocks.end(b); ++t)
      for_each_vector(columns, [&](int64_t j, auto v) {
        v.store(sums + j, v.load(sums + j) + v.load(in + t * columns + j));
      });
  }
  add_blocks(out.as<float>(), partial, columns, blocks.count(), columns);
}

}  // namespace maxim
