// MaxSim's scores and winners (maxsim.cu) on the tensor cores: bf16 and fp16 vectors of at most 128
// dimensions, a multiple of 8. Narrower ones are filled up with zeros.
//
// A warp holds 64 query tokens in registers for the life of its tile, as the first operands of
// mma.m16n8k16 (128 registers); a block of four warps has 256. Documents stream past in tiles of
// 64 tokens, three deep, copied by cp.async, so a document's token is read from L2 once for 256
// query tokens. Its row in shared memory is 256 bytes, whose 16-byte pieces change places by the
// row's number, so that the eight rows of an ldmatrix meet all banks. 16 tokens at a time: 8
// ldmatrix (4 KB) feed 64 mma, half of what shared memory gives at an mma a clock, H100's limit;
// then a lane's 32 similarities are folded into its 8 running maxima, three instructions each.
// Products are exact, sums are f32; lanes, then tiles, meet tokens in ascending order.
//
// Least work at 128 x 128 texts of 32 x 300 tokens, 128 dimensions: 40.3 GFLOP, 12 MB.
#include "kernels/cuda/maxsim.cuh"
#include "kernels/cuda/ptx.cuh"

namespace maxim {
namespace {

constexpr int kLines = 16;                         // query tokens of an mma
constexpr int kBlocks = kTensorWarpRows / kLines;  // of a warp
constexpr int kSteps = kTensorWidth / 16;
constexpr int kBatch = 16;  // document tokens whose similarities are in registers at a time
constexpr int kRowBytes = kTensorWidth * 2;
constexpr int kPieces = kRowBytes / 16;

// The documents' tiles in the order in which they are used, kTensorStages - 1 ahead of their use.
template <class T>
struct TileStream {
  const T* documents;
  const int32_t* offsets;
  int width, document, last_document;
  int begin = 0, tokens = 0, first = 0;  // of the next tile's document; its first token
  int stage = 0;

  __device__ __forceinline__ void enter_document() {
    for (; document < last_document; ++document) {
      begin = offsets[document];
      tokens = offsets[document + 1] - begin;
      first = 0;
      if (tokens > 0) return;
    }
  }

  // Starts to copy the next tile, if there is one. A thread copies the same piece of every eighth
  // row; what lies outside of the document or of its width becomes 0.
  __device__ __forceinline__ void fetch(unsigned char* stages) {
    if (document < last_document) {
      const int piece = threadIdx.x % kPieces, row = threadIdx.x / kPieces;
      unsigned char* to =
          stages + stage * kTensorStageBytes + row * kRowBytes + (piece ^ row % 8) * 16;
      const T* from = documents + static_cast<int64_t>(begin + first + row) * width + piece * 8;
#pragma unroll
      for (int i = 0; i < kTensorTokens; i += kTensorThreads / kPieces) {
        const bool there = first + row + i < tokens && piece * 8 < width;
        cp_async_16(to + i * kRowBytes, there ? from + i * width : documents, there ? 16 : 0);
      }
      first += kTensorTokens;
      if (first >= tokens) {
        ++document;
        enter_document();
      }
    }
    cp_async_commit();  // of nothing too, so that waiting counts tiles
    stage = stage + 1 == kTensorStages ? 0 : stage + 1;
  }
};

// A warp's query tokens as first operands of mma: lane 4 g + t has columns 2 t, 2 t + 1 (and 8
// more) of rows g and g + 8 of each 16 x 16 block.
template <class T>
struct QueryFragments {
  uint32_t x[kBlocks][kSteps][4];

  // `rows` of the warp's kTensorWarpRows tokens exist.
  __device__ __forceinline__ void load(const T* queries, int rows, int width) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = m * kLines + lane / 4 + i % 2 * 8;
          const int column = step * 16 + lane % 4 * 2 + i / 2 * 8;
          x[m][step][i] = row < rows && column < width
                              ? *reinterpret_cast<const uint32_t*>(
                                    queries + static_cast<int64_t>(row) * width + column)
                              : 0;
        }
  }
};

// Maxima of a lane's rows over the document tokens it has seen; maxima[m][h] is row 16 m + 8 h + g.
// A value that is not a number stays, but its token is not kept: see first_nan.
using Maxima = Maximum[kBlocks][2];

// Folds the similarities with kBatch tokens of a tile, from row `row` of it, which are tokens
// [first, …) of a document of `tokens`, into the maxima.
template <class T>
__device__ __forceinline__ void fold_batch(Maxima& maxima, const QueryFragments<T>& queries,
                                           const unsigned char* tile, int row, int first,
                                           int tokens) {
  const int lane = threadIdx.x % kWarp;
  float dot[kBlocks][2][4] = {};
  // Matrices of ldmatrix: tokens 0-7 and 8-15, each with columns 0-7 and 8-15 of the step.
  const unsigned char* mine = tile + (row + lane / 16 * 8 + lane % 8) * kRowBytes;
  const int piece = lane / 8 % 2 ^ lane % 8;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t d[4];
    ldmatrix_x4(d, mine + (2 * step ^ piece) * 16);
    const uint32_t low[2] = {d[0], d[1]}, high[2] = {d[2], d[3]};
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      mma_m16n8k16<T>(dot[m][0], queries.x[m][step], low);
      mma_m16n8k16<T>(dot[m][1], queries.x[m][step], high);
    }
  }
  const auto token_of = [&](int c) { return first + c / 2 * 8 + lane % 4 * 2 + c % 2; };
  if (first + kBatch > tokens)  // beyond the document there are zeros, which must not win
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (token_of(c) >= tokens) dot[m][c / 2][2 * h + c % 2] = -INFINITY;
#pragma unroll
  for (int c = 0; c < 4; ++c) {  // this lane's tokens, ascending
    const int token = token_of(c);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float value = dot[m][c / 2][2 * h + c % 2];
        Maximum& best = maxima[m][h];
        if (value > best.value) best.token = token;
        best.value = max_nan(best.value, value);
      }
  }
}

// The lowest token whose similarity with the query token is not a number. Rare, so slow.
template <class T>
__device__ __forceinline__ int first_nan(const T* query, const T* document, int tokens, int width) {
#pragma unroll 1
  for (int t = 0; t < tokens; ++t) {
    float dot = 0;
#pragma unroll 1
    for (int k = 0; k < width; ++k)
      dot = fmaf(to_float(query[k]), to_float(document[static_cast<int64_t>(t) * width + k]), dot);
    if (dot != dot) return t;
  }
  return 0;
}

template <class T>
__global__ void __launch_bounds__(kTensorThreads, kTensorBlocks)
    maxsim_forward_tensor_kernel(const MaxSimForward args, const T* queries, const T* documents) {
  unsigned char* const stages = shared_memory<unsigned char>();
  float* const maxima_of_rows =
      reinterpret_cast<float*>(stages + kTensorStages * kTensorStageBytes);
  const int lane = threadIdx.x % kWarp, warp_row = threadIdx.x / kWarp * kTensorWarpRows;
  const Share share = share_of_block(args);
  if (share.first_query == share.last_query) return;
  const int64_t width = args.width, document_count = args.documents.count;

  int row = share.first_row;
  do {  // once for empty queries too
    const int rows = min(kTensorRows, share.last_row - row);
    QueryFragments<T> fragments;
    fragments.load(queries + (row + warp_row) * width, rows - warp_row, args.width);
    TileStream<T> stream{documents, args.documents.offsets, args.width, share.first_document,
                         share.last_document};
    stream.enter_document();
    for (int i = 0; i < kTensorStages - 1; ++i) stream.fetch(stages);

    int stage = 0;
    for (int j = share.first_document; j < share.last_document; ++j) {
      const int begin = args.documents.offsets[j];
      const int tokens = args.documents.offsets[j + 1] - begin;
      // Two rows of maxima in turn, so that no warp need wait for the sums of the last document.
      float* const best = maxima_of_rows + j % 2 * kTensorRows;
      Maxima maxima;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) maxima[m][0] = maxima[m][1] = no_maximum(tokens);

      for (int first = 0; first < tokens; first += kTensorTokens) {
        cp_async_wait<kTensorStages - 2>();
        __syncthreads();  // this tile is there for all, and the last one has been read by all
        stream.fetch(stages);
        const unsigned char* tile = stages + stage * kTensorStageBytes;
        stage = stage + 1 == kTensorStages ? 0 : stage + 1;
        if (warp_row >= rows) continue;
        const int in_tile = min(kTensorTokens, tokens - first);
#pragma unroll 1
        for (int r = 0; r < in_tile; r += kBatch)
          fold_batch(maxima, fragments, tile, r, first + r, tokens);
      }

#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Maximum mine{};  // of row 16 t + 8 h + g of the warp
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          const Maximum of_row = merge_lanes(merge_lanes(maxima[m][h], 1), 2);
          if (lane % 4 == m) mine = of_row;
        }
        const int r = warp_row + lane % 4 * kLines + h * 8 + lane / 4;
        if (r >= rows) continue;
        best[r] = mine.value;
        if (args.winners == nullptr) continue;
        if (mine.value != mine.value)
          mine.token =
              first_nan(queries + (row + r) * width, documents + begin * width, tokens, args.width);
        args.winners[(row + r) * document_count + j] = static_cast<uint16_t>(mine.token);
      }
      __syncthreads();
      add_scores(args, share, row, rows, best, j);
    }
    __syncthreads();  // the maxima have been read
    row += kTensorRows;
  } while (row < share.last_row);
}

}  // namespace

void maxsim_forward_tensor(CudaOps& ops, const KernelPlan& plan, const MaxSimForward& args,
                           const Tensor& queries, const Tensor& documents) {
  const auto start = [&](auto element) {
    using T = decltype(element);
    launch(ops, plan, maxsim_forward_tensor_kernel<T>, args, queries.as<T>(), documents.as<T>());
  };
  queries.dtype() == DType::bf16 ? start(__nv_bfloat16{}) : start(__half{});
}

}  // namespace maxim
