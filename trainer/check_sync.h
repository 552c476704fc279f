// Do all ranks still have the same weights?
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "model/parameters.h"
#include "runtime/device.h"

namespace maxim {

// Compares a checksum of each parameter over the ranks. Where they differ, every rank throws Error
// with the first tensor that does, the ranks that do not have what most have, and their hosts.
// All ranks call it together, after `steps` steps; it waits for the device and reads all weights.
void check_sync(const Parameters& parameters, Device& device, Communicator& communicator,
                int64_t steps);

}  // namespace maxim
