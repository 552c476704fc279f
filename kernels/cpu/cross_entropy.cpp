// Cross-entropy of scores against the positive's column, the contrastive loss (InfoNCE, van den
// Oord et al. 2018) of late interaction:
//
//   z = scores / temperature        loss += scale * sum over rows (log sum_j e^z_j - z_target)
//   d_scores = scale / temperature * (softmax(z) - onehot(target))
//
// A row is shifted by its maximum, so logits of 3,200 (32 tokens at temperature 0.01) stay finite,
// and the shift also takes the target: maximum + log(sum) - z_target would lose the loss of a row
// that is nearly right. One thread does a row; sums are in double, rows are added in row order. A
// NaN score makes the loss NaN.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vector_math.h"

namespace maxim {
namespace {

// Room taken at the first call, so that a later step with more rows asks for no more: 64 KB.
constexpr int64_t kLeastScratchRows = 8192;

// Writes the row's d_scores over or beside its scores; returns its loss.
double row_loss(float* d_scores, const float* scores, int64_t columns, int64_t target,
                float temperature, float gradient_scale) {
  const float most = *std::max_element(scores, scores + columns);
  const double target_logit = (static_cast<double>(scores[target]) - most) / temperature;
  double sum = 0;
  for_each_vector(columns, [&](int64_t j, auto v) {
    const Floats e = exp((v.load(scores + j) - most) / temperature);
    v.store(d_scores + j, e);
    sum += sum_of_lanes<double>(v.keep(e));
  });
  const float factor = static_cast<float>(gradient_scale / sum);
  for_each_vector(columns,
                  [&](int64_t j, auto v) { v.store(d_scores + j, v.load(d_scores + j) * factor); });
  d_scores[target] -= gradient_scale;
  return std::log(sum) - target_logit;
}

}  // namespace

void CpuOps::cross_entropy(const CrossEntropy& args) {
  const int64_t rows = args.scores.rows(), columns = args.scores.cols();
  MAXIM_CHECK(args.d_scores.size() == args.scores.size() && args.targets.size() == rows &&
                  args.loss.size() == 1,
              "scores [{}, {}], d_scores {}, targets {}, loss {} elements", rows, columns,
              args.d_scores.size(), args.targets.size(), args.loss.size());
  MAXIM_CHECK(args.temperature > 0, "temperature {}", args.temperature);
  const float* scores = args.scores.as<float>();
  const int32_t* targets = args.targets.as<int32_t>();
  float* d_scores = args.d_scores.as<float>();
  for (int64_t i = 0; i < rows; ++i)
    MAXIM_CHECK(0 <= targets[i] && targets[i] < columns, "target {} of row {} in {} columns",
                targets[i], i, columns);
  float gradient_scale = args.scale / args.temperature;
  if (!args.loss_scale.absent()) gradient_scale *= *args.loss_scale.as<float>();
  double* row_losses = sums_.doubles(std::max(rows, kLeastScratchRows), "losses of the rows");
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; ++i)
    row_losses[i] = row_loss(d_scores + i * columns, scores + i * columns, columns, targets[i],
                             args.temperature, gradient_scale);
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) sum += row_losses[i];
  *args.loss.as<float>() += static_cast<float>(args.scale * sum);
}

}  // namespace maxim
