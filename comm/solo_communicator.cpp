#include "comm/solo_communicator.h"

#include <cstring>

namespace maxim {
namespace {

void copy(const Tensor& destination, const Tensor& source) {
  if (!source.empty() && destination.data() != source.data())
    std::memmove(destination.data(), source.data(), source.bytes());
}

}  // namespace

void SoloCommunicator::all_gather(const Tensor& all, const Tensor& mine,
                                  const std::vector<int64_t>& parts) {
  check_parts(all, mine, parts);
  copy(all, mine);
  ++calls_;
}

void SoloCommunicator::reduce_scatter(const Tensor& mine, const Tensor& all,
                                      const std::vector<int64_t>& parts) {
  check_parts(all, mine, parts);
  MAXIM_CHECK(all.dtype() == DType::f32, "{}", name_of(all.dtype()));
  copy(mine, all);
  ++calls_;
}

void SoloCommunicator::all_reduce(const Tensor& tensor, Reduction) {
  MAXIM_CHECK(tensor.dtype() == DType::f32, "{}", name_of(tensor.dtype()));
  ++calls_;
}

void SoloCommunicator::broadcast(const Tensor&, int root) {
  MAXIM_CHECK(root == 0, "root {} of 1 rank", root);
  ++calls_;
}

void SoloCommunicator::all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                                       const std::vector<int32_t>& mine) {
  all.assign(mine.begin(), mine.end());
  parts.assign(1, static_cast<int64_t>(mine.size()));
}

}  // namespace maxim
