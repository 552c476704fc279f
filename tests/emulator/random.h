// The seeded choices of the emulator.
#pragma once

#include <cstdint>
#include <numeric>

namespace maxim_emulated {

// SplitMix64 (Steele, Lea, Flood, 2014): any seed is good, two nearby ones give unrelated streams.
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // Uniform below `bound` (< 2^32).
  uint32_t below(uint32_t bound) { return (next() >> 32) * bound >> 32; }
  bool coin() { return next() >> 63; }

 private:
  uint64_t state_;
};

// A seeded order of 0 … count-1 that takes no memory: i -> (offset + i step) mod count.
class Order {
 public:
  Order(uint64_t count, Random& random) : count_(count), offset_(random.next() % count) {
    do step_ = random.next() % count_;
    while (std::gcd(step_, count_) != 1);
  }
  uint64_t operator[](uint64_t i) const { return (offset_ + i * step_) % count_; }

 private:
  uint64_t count_, offset_, step_ = 1;
};

}  // namespace maxim_emulated
