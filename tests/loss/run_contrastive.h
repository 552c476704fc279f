// Runs of ContrastiveLoss to hold against the double loops; for tests/loss and tests/mpi.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "comm/communicator.h"
#include "kernels/ops.h"
#include "loss/contrastive.h"
#include "tests/catch.h"
#include "tests/reference/compare.h"
#include "tests/reference/contrastive.h"

namespace maxim_tests {

// What ContrastiveLoss gives on the rank that holds these queries and their documents.
struct ContrastiveResult {
  float loss = 0;
  std::vector<float> d_queries, d_documents;
  int64_t arena_peak = 0, arena_bound = 0;  // bytes used, arena_bytes() of this batch
};

struct ContrastiveRun {
  double temperature = 1, scale = 1;
  bool gather = true;
  int64_t documents_per_query = 1;
  float loss_before = 0;  // what `loss` holds already
};

inline maxim::Tensor put_floats(maxim::Device& device, maxim::DeviceTensor& memory,
                                const std::vector<float>& values, int64_t rows, int64_t columns) {
  memory = maxim::DeviceTensor(device, maxim::DType::f32, rows * columns, "a test's operand");
  const maxim::Tensor view = memory.view().reshape(rows, columns);
  device.copy_in(view, values.data());
  return view;
}

inline ContrastiveResult run_contrastive(maxim::Ops& ops, maxim::Communicator& communicator,
                                         const Texts& queries, const Texts& documents,
                                         const ContrastiveRun& run) {
  maxim::Device& device = ops.device();
  maxim::ContrastiveLoss contrastive(ops, communicator,
                                     {.temperature = static_cast<float>(run.temperature),
                                      .gather_across_devices = run.gather,
                                      .documents_per_query = run.documents_per_query});
  // The bound is for the largest batch of any rank.
  int64_t sizes[] = {queries.count(), queries.tokens(), documents.count(), documents.tokens()};
  for (int64_t& size : sizes) {
    const std::vector<int64_t> all = communicator.all_gather_host(size);
    size = *std::max_element(all.begin(), all.end());
  }
  ContrastiveResult result;
  result.arena_bound =
      contrastive.arena_bytes(sizes[0], sizes[1], sizes[2], sizes[3], queries.width);
  maxim::Arena arena(device, result.arena_bound, "arena of a test");

  maxim::DeviceTensor q, d, d_q, d_d, loss;
  const auto nan_like = [](const std::vector<float>& v) {
    return std::vector<float>(v.size(), std::numeric_limits<float>::quiet_NaN());
  };
  const maxim::ContrastiveBatch batch{
      put_floats(device, q, queries.vectors, queries.tokens(), queries.width),
      put_floats(device, d, documents.vectors, documents.tokens(), documents.width),
      queries.offsets, documents.offsets};
  const maxim::Tensor d_queries =
      put_floats(device, d_q, nan_like(queries.vectors), queries.tokens(), queries.width);
  const maxim::Tensor d_documents =
      put_floats(device, d_d, nan_like(documents.vectors), documents.tokens(), documents.width);
  put_floats(device, loss, {run.loss_before}, 1, 1);
  {
    const maxim::Arena::Mark scratch(arena);
    contrastive.gather(batch, arena);
    contrastive.run(batch, static_cast<float>(run.scale), loss.view(), d_queries, d_documents,
                    arena);
  }

  result.d_queries.resize(queries.vectors.size());
  result.d_documents.resize(documents.vectors.size());
  device.copy_out(&result.loss, loss.view());
  device.copy_out(result.d_queries.data(), d_queries);
  device.copy_out(result.d_documents.data(), d_documents);
  result.arena_peak = arena.peak();
  CHECK(arena.used() == 0);
  return result;
}

// Demands that the gradients agree with those of the double loops.
inline void require_answer(const ContrastiveResult& got, const ContrastiveAnswer& want,
                           const ContrastiveProblem& problem) {
  REQUIRE(want.closest_race > 1e-6);  // else take another seed
  const double tolerance = contrastive_tolerance(problem);
  const auto bound = [&](const std::vector<double>& values) {
    double largest = 0;
    for (const double v : values) largest = std::max(largest, std::abs(v));
    return tolerance * largest;
  };
  require_close("d_queries", got.d_queries, want.d_queries, bound(want.d_queries), 0,
                problem.queries.width);
  require_close("d_documents", got.d_documents, want.d_documents, bound(want.d_documents), 0,
                problem.documents.width);
}

}  // namespace maxim_tests
