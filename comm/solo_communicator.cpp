#include "comm/solo_communicator.h"

#include <cstring>
#include <utility>

namespace maxim {
namespace {

void copy(const Tensor& destination, const Tensor& source) {
  if (!source.empty() && destination.data() != source.data())
    std::memmove(destination.data(), source.data(), source.bytes());
}

void check_summable(const Tensor& tensor) {
  MAXIM_CHECK(tensor.dtype() == DType::f32 || tensor.dtype() == DType::bf16, "{}",
              name_of(tensor.dtype()));
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
  check_summable(all);
  copy(mine, all);
  ++calls_;
}

void SoloCommunicator::all_reduce(const Tensor& tensor, Reduction) {
  check_summable(tensor);
  ++calls_;
}

void SoloCommunicator::broadcast(const Tensor&, int root) {
  MAXIM_CHECK(root == 0, "root {} of 1 rank", root);
  ++calls_;
}

// At once; its error waits for join(), as with more ranks.
void SoloCommunicator::beside(std::function<void(Communicator&)> work) {
  try {
    if (!error_) work(*this);
  } catch (...) {
    error_ = std::current_exception();
  }
}

void SoloCommunicator::join() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void SoloCommunicator::all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                                       const std::vector<int32_t>& mine) {
  all.assign(mine.begin(), mine.end());
  parts.assign(1, static_cast<int64_t>(mine.size()));
}

}  // namespace maxim
