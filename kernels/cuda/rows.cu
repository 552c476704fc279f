// Copies of rows. The rows that take part in scoring: out of all rows before the projection, back
// into all rows after it. Rows of any element type are moved as bytes, 16 at a time where they can
// be, a warp a row; each byte is read and written once: scatter_rows zeroes only the rows between.
//
// The list is on the device and is not checked by the host. A row beyond x reads as bytes 0xFF (NaN
// in every float type) and is written nowhere.
#include "kernels/cuda/rows.cuh"

namespace maxim {
namespace {

template <class To, class From>
__global__ void __launch_bounds__(kRowThreads)
    convert_kernel(To* y, const From* x, int64_t size, bool aligned) {
  const int64_t i = (int64_t{blockIdx.x} * kRowThreads + threadIdx.x) * 8;
  if (aligned && i + 8 <= size) {
    float values[8];
    load_pack<8>(values, x + i);
    store_pack<8>(y + i, values);
    return;
  }
  for (int64_t k = i; k < i + 8 && k < size; ++k) y[k] = from_float<To>(to_float(x[k]));
}

struct Word16 {
  uint4 x;
};
template <class Word>
__device__ __forceinline__ Word filled(unsigned x) {
  if constexpr (sizeof(Word) == 16)
    return {make_uint4(x, x, x, x)};
  else
    return static_cast<Word>(x);
}

// `few` [rows] and `all` [all_rows] have rows of `words` words.
template <class Word>
__global__ void __launch_bounds__(kRowThreads)
    gather_rows_kernel(Word* few, const Word* all, const int32_t* list, int64_t rows,
                       int64_t all_rows, int64_t words) {
  const int64_t i = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (i >= rows) return;
  const int64_t row = list[i];
  const bool inside = 0 <= row && row < all_rows;
  for (int64_t w = threadIdx.x % kWarp; w < words; w += kWarp)
    few[i * words + w] = inside ? all[row * words + w] : filled<Word>(~0u);
}

// Turn i zeroes the rows after row i - 1 of the list and copies row i; the last one only zeroes.
template <class Word>
__global__ void __launch_bounds__(kRowThreads)
    scatter_rows_kernel(Word* all, const Word* few, const int32_t* list, int64_t rows,
                        int64_t all_rows, int64_t words) {
  const int64_t i = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (i > rows) return;
  const int64_t row = i < rows ? list[i] : all_rows, before = i > 0 ? list[i - 1] : -1;
  const int64_t begin = before < -1 ? 0 : before + 1, end = row < all_rows ? row : all_rows;
  for (int64_t w = begin * words + threadIdx.x % kWarp; w < end * words; w += kWarp)
    all[w] = filled<Word>(0);
  if (row < 0 || row >= all_rows) return;
  for (int64_t w = threadIdx.x % kWarp; w < words; w += kWarp)
    all[row * words + w] = few[i * words + w];
}

// Calls f(Word{}, words a row) with the largest word that rows and pointers allow.
template <class F>
void for_words(const Tensor& few, const Tensor& all, F&& f) {
  const int64_t row_bytes = all.cols() * size_of(all.dtype());
  if (pack_width(1, row_bytes, {few.data(), all.data()}) == 16)
    f(Word16{}, row_bytes / 16);
  else if (row_bytes % 4 == 0)
    f(uint32_t{}, row_bytes / 4);
  else
    f(uint16_t{}, row_bytes / 2);
}

void check_lists(const Tensor& few, const Tensor& all, const Tensor& rows) {
  check_rows(few, rows.size(), all.cols(), "the chosen rows");
  MAXIM_CHECK(few.dtype() == all.dtype(), "rows of {} and of {}", name_of(few.dtype()),
              name_of(all.dtype()));
}

}  // namespace

void CudaOps::convert(const Tensor& y, const Tensor& x) {
  check_size(y, x.size(), "y");
  if (y.dtype() == x.dtype()) {
    device_.copy(y, x);
    return;
  }
  const bool aligned = pack_width(1, 0, {y.data(), x.data()}) == 16;
  for_dtype(y.dtype(), [&](auto to) {
    for_dtype(x.dtype(), [&](auto from) {
      using To = decltype(to);
      using From = decltype(from);
      launch(*this, convert_plan(x.size(), sizeof(From), sizeof(To)), convert_kernel<To, From>,
             y.as<To>(), x.as<From>(), x.size(), aligned);
    });
  });
}

void CudaOps::gather_rows(const Tensor& y, const Tensor& x, const Tensor& rows) {
  check_lists(y, x, rows);
  for_words(y, x, [&](auto word, int64_t words) {
    using Word = decltype(word);
    launch(*this, gather_rows_plan(rows.size(), words * sizeof(Word)), gather_rows_kernel<Word>,
           static_cast<Word*>(y.data()), static_cast<const Word*>(x.data()), rows.as<int32_t>(),
           rows.size(), x.rows(), words);
  });
}

void CudaOps::scatter_rows(const Tensor& x, const Tensor& y, const Tensor& rows) {
  check_lists(y, x, rows);
  for_words(y, x, [&](auto word, int64_t words) {
    using Word = decltype(word);
    launch(*this, scatter_rows_plan(rows.size(), x.rows(), words * sizeof(Word)),
           scatter_rows_kernel<Word>, static_cast<Word*>(x.data()),
           static_cast<const Word*>(y.data()), rows.as<int32_t>(), rows.size(), x.rows(), words);
  });
}

}  // namespace maxim
