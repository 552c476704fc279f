// Where the tests of this program compute: on the CPU, and on a GPU of each rank's own (real or
// emulated) where there is one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/backend.h"

namespace maxim_tests {

struct Place {
  std::string name;
  maxim::Backend backend;
  std::unique_ptr<maxim::Communicator> nccl;  // of a GPU
  maxim::Communicator* communicator = nullptr;

  // Sums are taken in rank order, so their bits are known. NCCL's order is its own.
  bool in_rank_order() const { return nccl == nullptr; }
  maxim::Device& device() const { return *backend.device; }
  maxim::Ops& ops() const { return *backend.ops; }
};

// Made at first use, by all ranks together.
std::vector<Place>& places();
// Collective, before MPI ends.
void close_places();

// Memory of a device with host values in it.
template <class T>
class Buffer {
 public:
  Buffer(maxim::Device& device, const std::vector<T>& values)
      : device_(device),
        memory_(device, maxim::DTypeOf<T>::value, static_cast<int64_t>(values.size()),
                "a test's buffer") {
    device.copy_in(memory_.view(), values.data());
  }
  const maxim::Tensor& view() const { return memory_.view(); }
  maxim::Tensor rows(int64_t rows, int64_t columns) const {
    return memory_.view().reshape(rows, columns);
  }
  std::vector<T> get() const {
    std::vector<T> values(memory_.view().size());
    device_.copy_out(values.data(), memory_.view());
    return values;
  }

 private:
  maxim::Device& device_;
  maxim::DeviceTensor memory_;
};

}  // namespace maxim_tests
