// The communicator of a job on GPUs, for those who include no CUDA header.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "runtime/device.h"

namespace maxim {

// Collectives on memory of `device`, a GPU of this rank's own, through NCCL; host messages go
// through `host`. Both outlive the result. Calls return when the work is on the device's stream;
// what is begun beside goes to a second stream. Nothing is allocated after construction by us; NCCL
// connects to its peers when it first uses an algorithm.
//
// What NCCL guarantees is less than Communicator says: every rank gets the same bits, and the same
// program on the same machines gets them again, but a sum is taken in the order of NCCL's ring or
// tree, a bf16 sum is rounded at each addition, reduce_scatter and all_reduce may round
// differently, and a maximum passes over NaN.
//
// Throws InputError, the same on all ranks, when versions of NCCL or CUDA differ or two ranks have
// the same GPU; Error when NCCL fails, a peer is lost, or a rank waits for more than `seconds`.
// After an error the communicator is aborted when it is destroyed. Collective.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, Communicator& host,
                                                     double seconds);

}  // namespace maxim
