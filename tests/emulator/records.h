// The counters and the trace. Under the device's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace maxim_emulated {

struct Declared {
  double bytes = 0;
  double flops = 0;
};
// What declare_work() has said about the next launch of this host thread; asking uses it up.
Declared take_declared();

void count_launch(const std::string& name, uint64_t threads, const Declared& declared);
void trace(const std::string& name, size_t bytes = 0);

}  // namespace maxim_emulated
