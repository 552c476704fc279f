#include "kernels/checks.h"

namespace maxim {

void check_rows(const Tensor& t, int64_t rows, int64_t columns, const char* name) {
  MAXIM_CHECK(t.rows() == rows && t.cols() == columns, "{} is [{}, {}], expected [{}, {}]", name,
              t.rows(), t.cols(), rows, columns);
}

void check_size(const Tensor& t, int64_t size, const char* name) {
  MAXIM_CHECK(t.size() == size, "{} has {} elements, expected {}", name, t.size(), size);
}

GemmShape shape_of(const GemmArgs& args) {
  const Tensor &a = args.a, &b = args.b, &c = args.c;
  const GemmShape s{c.rows(), c.cols(), args.transpose_a ? a.rows() : a.cols()};
  MAXIM_CHECK((args.transpose_a ? a.cols() : a.rows()) == s.m, "a is [{}, {}], c [{}, {}]",
              a.rows(), a.cols(), s.m, s.n);
  MAXIM_CHECK((args.transpose_b ? b.rows() : b.cols()) == s.n &&
                  (args.transpose_b ? b.cols() : b.rows()) == s.k,
              "b is [{}, {}], c [{}, {}], k {}", b.rows(), b.cols(), s.m, s.n, s.k);
  MAXIM_CHECK(args.bias.absent() || (args.bias.size() == s.n && !args.accumulate),
              "a bias of {} for {} columns, accumulate {}", args.bias.size(), s.n, args.accumulate);
  MAXIM_CHECK(args.a_sums.absent() || (args.a_sums.size() == s.m && args.transpose_a),
              "{} sums for {} columns, transposed {}", args.a_sums.size(), s.m, args.transpose_a);
  MAXIM_CHECK(a.dtype() == b.dtype(), "a is {}, b is {}", name_of(a.dtype()), name_of(b.dtype()));
  return s;
}

void check(const LayerNormForward& args) {
  const int64_t rows = args.y.rows(), h = args.y.cols();
  check_rows(args.s, rows, h, "s");
  check_rows(args.x, rows, h, "x");
  check_rows(args.residual, rows, h, "residual");
  check_size(args.mean, rows, "mean");
  check_size(args.rstd, rows, "rstd");
  check_size(args.gamma, h, "gamma");
  check_size(args.beta, h, "beta");
}

void check(const LayerNormBackward& args) {
  const int64_t rows = args.d_y.rows(), h = args.d_y.cols();
  check_rows(args.d_s, rows, h, "d_s");
  check_rows(args.s, rows, h, "s");
  if (!args.d_x.absent()) check_rows(args.d_x, rows, h, "d_x");
  if (!args.d_bias.absent()) check_size(args.d_bias, h, "d_bias");
  if (!args.y.absent()) {
    check_rows(args.y, rows, h, "y");
    check_size(args.beta, h, "beta");
  }
  check_size(args.mean, rows, "mean");
  check_size(args.rstd, rows, "rstd");
  check_size(args.gamma, h, "gamma");
  check_size(args.d_gamma, h, "d_gamma");
  check_size(args.d_beta, h, "d_beta");
}

void check_layer_norm_apply(const Tensor& y, const Tensor& s, const Tensor& mean,
                            const Tensor& rstd, const Tensor& gamma, const Tensor& beta) {
  check_rows(s, y.rows(), y.cols(), "s");
  check_size(mean, y.rows(), "mean");
  check_size(rstd, y.rows(), "rstd");
  check_size(gamma, y.cols(), "gamma");
  check_size(beta, y.cols(), "beta");
}

void check(const AdamW& args) {
  const int64_t size = args.parameters.size();
  check_size(args.gradients, size, "gradients");
  check_size(args.v, args.m.size(), "v");
  check_size(args.counters, 2, "counters");
  check_size(args.gradient_square_sum, 1, "gradient_square_sum");
  if (!args.copy.absent()) check_size(args.copy, size, "copy");
  if (!args.loss_scale.absent()) check_size(args.loss_scale, 2, "loss_scale");
  int64_t at = 0;
  for (int64_t i = 0; i < args.group_count; at = args.groups[i++].end) {
    const AdamWGroup& group = args.groups[i];
    MAXIM_CHECK(at <= group.begin && group.begin <= group.end && group.end <= size,
                "group {} is [{}, {}) after {} of {} parameters", i, group.begin, group.end, at,
                size);
    MAXIM_CHECK(group.state_shift % 4 == 0 && group.begin + group.state_shift >= 0 &&
                    group.end + group.state_shift <= args.m.size(),
                "group {}, [{}, {}), has {} moments at +{}", i, group.begin, group.end,
                args.m.size(), group.state_shift);
  }
}

}  // namespace maxim
