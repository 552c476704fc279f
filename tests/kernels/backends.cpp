#include "tests/kernels/backends.h"

#include <omp.h>

namespace maxim_tests {

std::vector<Backend> make_backends() {
  std::vector<Backend> list;
  auto host = std::make_unique<maxim::HostDevice>();
  auto ops = maxim::make_cpu_ops(*host);
  list.push_back({"cpu", std::move(host), std::move(ops), [](int n) { omp_set_num_threads(n); }});
  return list;
}

std::vector<Backend>& backends() {
  static std::vector<Backend> shared = make_backends();
  return shared;
}

Operands::~Operands() {
  for (void* block : blocks_) device_.free(block);
}

void* Operands::take(int64_t bytes) {
  blocks_.push_back(device_.allocate(bytes, "a test operand"));
  return blocks_.back();
}

maxim::Sequences Operands::put(const Ragged& r) {
  maxim::Sequences s;
  s.token_ids = put(r.token_ids);
  s.positions = put(r.positions);
  s.sequence_of = put(r.sequence_of);
  s.offsets = put(r.offsets);
  s.key_counts = put(r.key_counts);
  s.random_rows = put(r.random_rows);
  s.random_columns = put(r.random_columns);
  s.scored_rows = put(r.scored_rows);
  s.scored_offsets = put(r.scored_offsets);
  s.longest = r.longest;
  return s;
}

}  // namespace maxim_tests
