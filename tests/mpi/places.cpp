#include "tests/mpi/places.h"

#include "tests/mpi/world.h"
#if MAXIM_CUDA && MAXIM_NCCL
#include "comm/nccl_communicator.h"
#endif

namespace maxim_tests {
namespace {

std::vector<Place> made;

constexpr double kPatience = 60;  // seconds for another rank

}  // namespace

std::vector<Place>& places() {
  if (!made.empty()) return made;
  maxim::Communicator& host = *world().communicator;
  Place cpu;
  cpu.backend = maxim::make_backend("cpu", false, 0);
  cpu.communicator = &host;
  made.push_back(std::move(cpu));
#if MAXIM_CUDA && MAXIM_NCCL
  Place gpu;
  gpu.backend = maxim::make_backend("auto", false, world().local_rank);
  if (gpu.backend.device->name() != "cpu") {
    gpu.nccl = maxim::make_nccl_communicator(gpu.device(), host, kPatience);
    gpu.communicator = gpu.nccl.get();
    made.push_back(std::move(gpu));
  }
#endif
  for (Place& place : made) place.name = place.device().name();
  return made;
}

void close_places() { made.clear(); }

}  // namespace maxim_tests
