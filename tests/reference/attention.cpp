#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/dropout.h"

namespace maxim_tests {
namespace {

// One query row of one head: the places of its vectors, its probabilities and dropout's
// multipliers.
struct Row {
  int64_t hidden, width, head, sequence, first, keys, t;
  std::vector<double> probability, multiplier;
  double log_sum_exp;

  int64_t q() const { return t * 3 * hidden + head * width; }
  int64_t k(int64_t j) const { return (first + j) * 3 * hidden + hidden + head * width; }
  int64_t v(int64_t j) const { return k(j) + hidden; }
  int64_t o() const { return t * hidden + head * width; }
};

double multiplier(const maxim::Dropout& dropout, const Ragged& r, int64_t s, int64_t t,
                  int64_t head, int64_t key) {
  if (!dropout.active()) return 1;
  const auto group = static_cast<uint32_t>(head << 16 | key / maxim::kDropoutGroup);
  const maxim::Philox4 bits =
      maxim::dropout_bits(dropout.seed, dropout.step, dropout.site, r.random_rows[s],
                          r.random_columns[s], static_cast<uint32_t>(r.positions[t]), group);
  const bool kept = maxim::dropout_bits_of(bits, static_cast<int>(key % maxim::kDropoutGroup)) >=
                    maxim::dropout_threshold(dropout.probability);
  return kept ? maxim::dropout_scale(dropout.probability) : 0;
}

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

Row row_of(const std::vector<double>& qkv, const Ragged& r, int64_t t, int64_t head, int64_t heads,
           int64_t width, const maxim::Dropout& dropout, const Rounding& round) {
  const int64_t s = r.sequence_of[t];
  Row row{heads * width, width, head, s, r.offsets[s], r.key_counts[s], t, {}, {}, 0};
  double most = -HUGE_VAL, sum = 0;
  for (int64_t j = 0; j < row.keys; ++j) {
    const double score = dot(&qkv[row.q()], &qkv[row.k(j)], width) / std::sqrt(double(width));
    row.probability.push_back(round(score));
    row.multiplier.push_back(multiplier(dropout, r, s, t, head, j));
    most = std::max(most, row.probability.back());
  }
  for (const double score : row.probability) sum += std::exp(score - most);
  row.log_sum_exp = most + std::log(sum);
  for (double& p : row.probability) p = round(std::exp(p - row.log_sum_exp));
  return row;
}

void round_all(std::vector<double>& x, const Rounding& round) {
  for (double& value : x) value = round(value);
}

}  // namespace

Attention attention(const std::vector<double>& qkv, const Ragged& sequences, int64_t heads,
                    int64_t width, const maxim::Dropout& dropout, const Rounding& round) {
  const int64_t tokens = sequences.tokens();
  Attention a{std::vector<double>(tokens * heads * width), std::vector<double>(tokens * heads)};
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const Row row = row_of(qkv, sequences, t, h, heads, width, dropout, round);
      a.log_sum_exp[t * heads + h] = row.log_sum_exp;
      for (int64_t j = 0; j < row.keys; ++j) {
        const double p = round(row.probability[j] * row.multiplier[j]);
        for (int64_t c = 0; c < width; ++c) a.out[row.o() + c] += p * qkv[row.v(j) + c];
      }
    }
  round_all(a.out, round);
  return a;
}

std::vector<double> attention_gradient(const std::vector<double>& d_out,
                                       const std::vector<double>& qkv, const Ragged& sequences,
                                       int64_t heads, int64_t width, const maxim::Dropout& dropout,
                                       const Rounding& round) {
  std::vector<double> d_qkv(qkv.size());
  const std::vector<double> out = attention(qkv, sequences, heads, width, dropout, round).out;
  for (int64_t t = 0; t < sequences.tokens(); ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const Row row = row_of(qkv, sequences, t, h, heads, width, dropout, round);
      const double delta = dot(&d_out[row.o()], &out[row.o()], width);
      std::vector<double> d_p(row.keys);
      for (int64_t j = 0; j < row.keys; ++j)
        d_p[j] = round(row.multiplier[j] * dot(&d_out[row.o()], &qkv[row.v(j)], width));
      for (int64_t j = 0; j < row.keys; ++j) {
        const double p = row.probability[j], dropped = round(p * row.multiplier[j]);
        const double d_s = round(p * (d_p[j] - delta) / std::sqrt(double(width)));
        for (int64_t c = 0; c < width; ++c) {
          d_qkv[row.q() + c] += d_s * qkv[row.k(j) + c];
          d_qkv[row.k(j) + c] += d_s * qkv[row.q() + c];
          d_qkv[row.v(j) + c] += dropped * d_out[row.o() + c];
        }
      }
    }
  round_all(d_qkv, round);
  return d_qkv;
}

}  // namespace maxim_tests
