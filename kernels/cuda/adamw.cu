// AdamW (Loshchilov and Hutter, ICLR 2019) as torch.optim.AdamW computes it, with the clipping of
// the global gradient norm folded in. With t = updates applied so far + 1:
//
//   g *= min(1, max_norm / (norm + 1e-6))      p *= 1 - lr wd
//   m = b1 m + (1 - b1) g                      v = b2 v + (1 - b2) g^2
//   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
//
// The norm, the counters and the loss scale stay on the device: one thread makes of them what all
// elements share (and whether the step is skipped), then each thread has four neighbouring
// elements: 28 bytes a parameter, once, and 2 more for a 16-bit copy. Groups are an argument of the
// kernel, kGroups a launch.
//
// square_sum: blocks of fixed size in double, added in a fixed order.
#include "kernels/cuda/rows.cuh"

namespace maxim {
namespace {

__global__ void __launch_bounds__(kRowThreads)
    square_sum_kernel(double* partial, const float* x, int64_t size, bool aligned) {
  const int64_t begin = blockIdx.x * kSquareBlock;
  const int64_t end = begin + kSquareBlock < size ? begin + kSquareBlock : size;
  double sum = 0;
  const int64_t packed = aligned ? begin + (end - begin) / 4 * 4 : begin;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * 4; i < packed; i += kRowThreads * 4) {
    const auto pack = Pack<float, 4>::load(x + i);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum += static_cast<double>(pack[e]) * pack[e];
  }
  for (int64_t i = packed + threadIdx.x; i < end; i += kRowThreads)
    sum += static_cast<double>(x[i]) * x[i];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kRowThreads)
    add_squares_kernel(float* out, const double* partial, int64_t blocks) {
  double sum = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kRowThreads) sum += partial[b];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

// What all elements of a step share.
struct Step {
  bool applied;
  float clip;                       // factor of the gradients, the loss scale taken out
  float inverse_1, inverse_root_2;  // 1 / (1 - b1^t), 1 / sqrt(1 - b2^t)
};

// `loss_scale` may be null. The sums are one a bucket and rank, a few hundred at most.
__global__ void adamw_step_kernel(Step* step, int64_t* counters, float* square_sum,
                                  const float* sums, int64_t sum_count, float* loss_scale,
                                  float beta1, float beta2, float max_grad_norm) {
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int64_t i = 0; i < sum_count; ++i) sum += sums[i];
  *square_sum = static_cast<float>(sum);
  double unscale = 1;
  if (loss_scale != nullptr) {
    unscale = 1 / static_cast<double>(*loss_scale);
    *square_sum = static_cast<float>(*square_sum * unscale * unscale);
  }
  const double norm = sqrt(static_cast<double>(*square_sum));
  const bool finite = norm < INFINITY;  // NaN is not
  if (loss_scale != nullptr) LossScale::renew(loss_scale, finite);
  step->applied = finite;
  if (!finite) {
    ++counters[1];
    return;
  }
  const auto t = static_cast<double>(++counters[0]);
  const double clip = max_grad_norm / (norm + 1e-6);
  step->clip = static_cast<float>((max_grad_norm > 0 && clip < 1 ? clip : 1) * unscale);
  step->inverse_1 = static_cast<float>(1 / (1 - pow(static_cast<double>(beta1), t)));
  step->inverse_root_2 = static_cast<float>(1 / sqrt(1 - pow(static_cast<double>(beta2), t)));
}

// 112 groups are 3.5 KB; arguments have 4 KB. A BERT-base has about 75 ranges of equal rates.
constexpr int64_t kGroups = 112;
struct Groups {
  AdamWGroup group[kGroups];
  int count;
};

template <class Copy>
struct Update {
  float *p, *m, *v;  // m and v: see AdamWGroup
  Copy* copy;        // of p, or null
  const float* g;
  const Step* step;
  int64_t begin, end;  // of the first group, of the last
  float beta1, beta2, epsilon;
};

// N elements from i on, all of one group.
template <int N, class Copy>
__device__ __forceinline__ void update(const Update<Copy>& u, const Step& step,
                                       const AdamWGroup& group, int64_t i) {
  const float keep = 1.0f - group.learning_rate * group.weight_decay;
  const float step_size = group.learning_rate * step.inverse_1;
  const int64_t moment = i + group.state_shift;
  auto p = Pack<float, N>::load(u.p + i), m = Pack<float, N>::load(u.m + moment);
  auto v = Pack<float, N>::load(u.v + moment);
  const auto g = Pack<float, N>::load(u.g + i);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const float gradient = g.x[e] * step.clip;
    m.x[e] = u.beta1 * m.x[e] + (1 - u.beta1) * gradient;
    v.x[e] = u.beta2 * v.x[e] + (1 - u.beta2) * gradient * gradient;
    const float denominator = fmaf(sqrtf(v.x[e]), step.inverse_root_2, u.epsilon);
    p.x[e] = p.x[e] * keep - m.x[e] / denominator * step_size;
  }
  store_pack<N>(u.p + i, p.x);
  store_pack<N>(u.m + moment, m.x);
  store_pack<N>(u.v + moment, v.x);
  if (u.copy != nullptr) store_pack<N>(u.copy + i, p.x);
}

// A thread has elements i … i + 3, i a multiple of 4; those outside of all groups stay untouched.
template <class Copy>
__global__ void __launch_bounds__(kRowThreads)
    adamw_kernel(const Update<Copy> u, const Groups groups, bool aligned) {
  const Step step = *u.step;
  int64_t i = u.begin / 4 * 4 + (int64_t{blockIdx.x} * kRowThreads + threadIdx.x) * 4;
  const int64_t end = i + 4 < u.end ? i + 4 : u.end;
  if (!step.applied || i >= end) return;
  int low = 0, high = groups.count;  // the first group that ends behind i
  while (low < high) {
    const int middle = (low + high) / 2;
    if (groups.group[middle].end > i)
      high = middle;
    else
      low = middle + 1;
  }
  if (aligned && i + 4 == end && groups.group[low].begin <= i && end <= groups.group[low].end) {
    update<4>(u, step, groups.group[low], i);
    return;
  }
  for (; i < end; ++i) {
    while (groups.group[low].end <= i) ++low;
    if (groups.group[low].begin <= i) update<1>(u, step, groups.group[low], i);
  }
}

template <class Copy>
void update_groups(CudaOps& ops, const AdamW& args, const Step* step) {
  Update<Copy> update{.p = args.parameters.as<float>(),
                      .m = args.m.as<float>(),
                      .v = args.v.as<float>(),
                      .copy = args.copy.absent() ? nullptr : args.copy.as<Copy>(),
                      .g = args.gradients.as<float>(),
                      .step = step,
                      .begin = 0,
                      .end = 0,
                      .beta1 = args.beta1,
                      .beta2 = args.beta2,
                      .epsilon = args.epsilon};
  const bool aligned =
      pack_width(sizeof(float), 0, {update.p, update.m, update.v, update.g, update.copy}) == 4;
  for (int64_t first = 0; first < args.group_count; first += kGroups) {
    Groups groups{};
    groups.count = static_cast<int>(std::min(kGroups, args.group_count - first));
    std::copy_n(args.groups + first, groups.count, groups.group);
    update.begin = groups.group[0].begin;
    update.end = groups.group[groups.count - 1].end;
    launch(ops, adamw_plan(update.begin, update.end, !args.copy.absent()), adamw_kernel<Copy>,
           update, groups, aligned);
  }
}

}  // namespace

void CudaOps::adamw(const AdamW& args) {
  check(args);
  auto* step = static_cast<Step*>(scratch_.bytes(sizeof(Step), "the optimizer's step"));
  launch(*this, adamw_step_plan(), adamw_step_kernel, step, args.counters.as<int64_t>(),
         args.gradient_square_sum.as<float>(), args.square_sums.as<float>(),
         args.square_sums.size(), args.loss_scale.absent() ? nullptr : args.loss_scale.as<float>(),
         args.beta1, args.beta2, args.max_grad_norm);
  if (args.copy.absent() || args.copy.dtype() == DType::bf16)
    update_groups<__nv_bfloat16>(*this, args, step);
  else
    update_groups<__half>(*this, args, step);
}

void CudaOps::square_sum(const Tensor& out, const Tensor& x) {
  check_size(out, 1, "out");
  const int64_t size = x.size();
  const KernelPlan plan = square_sum_plan(size);
  double* partial = scratch_.doubles(plan.grid[0], "sums of squares");
  const bool aligned = pack_width(sizeof(float), 0, {x.data()}) == 4;
  launch(*this, plan, square_sum_kernel, partial, x.as<float>(), size, aligned);
  launch(*this, add_squares_plan(plan.grid[0]), add_squares_kernel, out.as<float>(), partial,
         int64_t{plan.grid[0]});
}

}  // namespace maxim
