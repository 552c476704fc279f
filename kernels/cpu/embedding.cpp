// BERT's embeddings: s = word[id] + position[p] + type[0], y = dropout(LayerNorm(s)), and the way
// back. norm_row.h has the formulas of a row.
//
// Forward: the two table rows of a token are read, s and y written; saved: s, mean, rstd. Backward,
// two passes: rows first (d_y becomes d_s in place, sums by row blocks), then the tables, where
// each thread owns a range of columns and walks all tokens in order, so that two tokens of one word
// meet in the same order for any number of threads and nothing is sorted.
#include <omp.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/norm_row.h"
#include "kernels/cpu/row_blocks.h"

namespace maxim {
namespace {

// An id beyond its table would read or write foreign memory: checked before anything is touched.
void check_tables(const Sequences& sequences, const Tensor& word, const Tensor& position,
                  const Tensor& type, int64_t h) {
  MAXIM_CHECK(word.cols() == h && position.cols() == h && type.cols() == h && type.rows() > 0,
              "tables [{}, {}], [{}, {}], [{}, {}] for {} columns", word.rows(), word.cols(),
              position.rows(), position.cols(), type.rows(), type.cols(), h);
  const int32_t* ids = sequences.token_ids.as<int32_t>();
  const int32_t* positions = sequences.positions.as<int32_t>();
  for (int64_t t = 0; t < sequences.tokens(); ++t) {
    MAXIM_CHECK(ids[t] >= 0 && ids[t] < word.rows(), "token {} has id {}, the table {} rows", t,
                ids[t], word.rows());
    MAXIM_CHECK(positions[t] >= 0 && positions[t] < position.rows(),
                "token {} is at position {}, the table has {}", t, positions[t], position.rows());
  }
}

void check_activations(const Tensor& y, const Tensor& s, const Tensor& mean, const Tensor& rstd,
                       const Tensor& gamma, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = y.cols();
  MAXIM_CHECK(y.rows() == rows && s.rows() == rows && s.cols() == h && mean.size() == rows &&
                  rstd.size() == rows && gamma.size() == h,
              "y [{}, {}], s [{}, {}], mean {}, rstd {}, gamma {} for {} tokens", y.rows(), h,
              s.rows(), s.cols(), mean.size(), rstd.size(), gamma.size(), rows);
}

void drop_row(float* y, const RowDropout& dropout, int64_t t, int64_t h) {
  if (!dropout.active()) return;
  RowDropout::Bits bits;
  dropout.draw(bits, t);
  for_each_vector(
      h, [&](int64_t j, auto v) { v.store(y + j, dropout.mask.apply(v.load(y + j), bits + j)); });
}

// table[rows[t]] += d[t] for columns [begin, end), in the order of t.
void add_to_rows(float* table, const float* d, const int32_t* rows, int64_t count, int64_t h,
                 int64_t begin, int64_t end) {
  for (int64_t t = 0; t < count; ++t) {
    float* to = table + rows[t] * h + begin;
    const float* from = d + t * h + begin;
    for_each_vector(end - begin,
                    [&](int64_t j, auto v) { v.store(to + j, v.load(to + j) + v.load(from + j)); });
  }
}

}  // namespace

void CpuOps::embedding_forward(const EmbeddingForward& args, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = args.y.cols();
  check_activations(args.y, args.s, args.mean, args.rstd, args.gamma, sequences);
  check_tables(sequences, args.word, args.position, args.type, h);
  const RowDropout dropout(args.dropout, sequences, h);
  const int32_t* ids = sequences.token_ids.as<int32_t>();
  const int32_t* positions = sequences.positions.as<int32_t>();
  const float *word = args.word.as<float>(), *position = args.position.as<float>();
  const float* type = args.type.as<float>();
  const float *gamma = args.gamma.as<float>(), *beta = args.beta.as<float>();
  float *y = args.y.as<float>(), *s = args.s.as<float>();
  float *mean = args.mean.as<float>(), *rstd = args.rstd.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < rows; ++t) {
    const float *w = word + ids[t] * h, *p = position + positions[t] * h;
    float* row = s + t * h;
    Floats sum = {};
    for_each_vector(h, [&](int64_t j, auto v) {
      const Floats value = v.load(w + j) + v.load(type + j) + v.load(p + j);
      v.store(row + j, value);
      sum += value;
    });
    const Moments m = moments_of(row, sum, h, args.epsilon);
    norm_row(y + t * h, row, m, gamma, beta, h);
    drop_row(y + t * h, dropout, t, h);
    mean[t] = m.mean;
    rstd[t] = m.rstd;
  }
}

void CpuOps::embedding_apply(const EmbeddingForward& args, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = args.y.cols();
  check_activations(args.y, args.s, args.mean, args.rstd, args.gamma, sequences);
  const RowDropout dropout(args.dropout, sequences, h);
  const float *gamma = args.gamma.as<float>(), *beta = args.beta.as<float>();
  const float *s = args.s.as<float>(), *mean = args.mean.as<float>();
  const float* rstd = args.rstd.as<float>();
  float* y = args.y.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < rows; ++t) {
    norm_row(y + t * h, s + t * h, {mean[t], rstd[t]}, gamma, beta, h);
    drop_row(y + t * h, dropout, t, h);
  }
}

void CpuOps::embedding_backward(const EmbeddingBackward& args, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = args.d_y.cols();
  check_activations(args.d_y, args.s, args.mean, args.rstd, args.gamma, sequences);
  check_tables(sequences, args.d_word, args.d_position, args.d_type, h);
  MAXIM_CHECK(args.d_gamma.size() == h && args.d_beta.size() == h, "d_gamma {}, d_beta {}",
              args.d_gamma.size(), args.d_beta.size());
  const RowDropout dropout(args.dropout, sequences, h);
  const RowBlocks blocks(rows);
  float* partial =
      partial_sums_.floats(RowBlocks::kMostBlocks * 3 * h, "sums of embedding gradients");
  float* d = args.d_y.as<float>();
  const float *s = args.s.as<float>(), *mean = args.mean.as<float>();
  const float *rstd = args.rstd.as<float>(), *gamma = args.gamma.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks.count(); ++b) {
    float* sums = partial + b * 3 * h;  // d_gamma, d_beta, d_type
    std::fill_n(sums, 3 * h, 0.0f);
    for (int64_t t = blocks.begin(b); t < blocks.end(b); ++t) {
      float* row = d + t * h;
      drop_row(row, dropout, t, h);
      norm_row_backward(row, sums, sums + h, row, s + t * h, {mean[t], rstd[t]}, gamma, h);
      for_each_vector(h, [&](int64_t j, auto v) {
        v.store(sums + 2 * h + j, v.load(sums + 2 * h + j) + v.load(row + j));
      });
    }
  }
  add_blocks(args.d_gamma.as<float>(), partial, 3 * h, blocks.count(), h);
  add_blocks(args.d_beta.as<float>(), partial + h, 3 * h, blocks.count(), h);
  add_blocks(args.d_type.as<float>(), partial + 2 * h, 3 * h, blocks.count(), h);

  const int32_t* ids = sequences.token_ids.as<int32_t>();
  const int32_t* positions = sequences.positions.as<int32_t>();
  const int64_t vectors = (h + kLanes - 1) / kLanes;
#pragma omp parallel
  {
    const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    const int64_t begin = vectors * part / parts * kLanes;
    const int64_t end = std::min(h, vectors * (part + 1) / parts * kLanes);
    add_to_rows(args.d_word.as<float>(), d, ids, rows, h, begin, end);
    add_to_rows(args.d_position.as<float>(), d, positions, rows, h, begin, end);
  }
}

}  // namespace maxim
