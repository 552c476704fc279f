// Warp collectives: exchanges between the fibers of a warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulated/block.h"

namespace maxim_emulated {

// The deposits of a warp's lanes during a collective; only the lanes of `mask` have one.
template <class T>
struct Lanes {
  unsigned mask;
  unsigned char* slots;
  static constexpr size_t kSlotBytes = 64;
  static_assert(sizeof(T) <= kSlotBytes && std::is_trivially_copyable_v<T>);

  bool has(int lane) const { return mask >> lane & 1; }
  T& operator[](int lane) const { return *reinterpret_cast<T*>(slots + kSlotBytes * lane); }
  template <class Visit>
  void for_each(Visit visit) const {
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) visit(__builtin_ctz(rest));
  }
};

// Deposits `bytes` at `mine`, waits for the lanes of `mask` to do the same in a collective of the
// same kind (equal pointers), has the last one to arrive run `combine` on the slots, and returns
// this lane's slot in `mine`.
void warp_collective(const char* kind, unsigned mask, void* mine, size_t bytes,
                     void (*combine)(unsigned mask, unsigned char* slots), const Site& site);
int lane_index();

// The same with types: every lane of `mask` deposits `mine`; `combine(lanes)`, a function without
// captures that runs once, turns the deposits into the results.
template <class T, class Combine>
T collective(const char* kind, unsigned mask, T mine, Combine, const Site& site) {
  warp_collective(
      kind, mask, &mine, sizeof(T),
      [](unsigned mask, unsigned char* slots) {
        Combine()(Lanes<T>{mask, slots});
      },
      site);
  return mine;
}

// Lane `source` of each lane's own choosing hands over its value.
template <class T>
T shuffle(const char* kind, unsigned mask, T value, int source, const Site& site) {
  struct Deposit {
    T value;
    int source;
  };
  const auto combine = [](Lanes<Deposit> lanes) {
    T values[32];
    lanes.for_each([&](int lane) { values[lane] = lanes[lane].value; });
    lanes.for_each([&](int lane) {
      const int source = lanes[lane].source;
      if (!lanes.has(source)) fail_thread("a shuffle reads from a lane that its mask leaves out");
      lanes[lane].value = values[source];
    });
  };
  return collective(kind, mask, Deposit{value, source}, combine, site).value;
}

// A reduction whose result all lanes get.
template <class T, class Operation>
T reduce(const char* kind, unsigned mask, T value, Operation, const Site& site) {
  const auto combine = [](Lanes<T> lanes) {
    T total = lanes[__builtin_ctz(lanes.mask)];
    const unsigned first = lanes.mask & -lanes.mask;
    Lanes<T>{lanes.mask ^ first, lanes.slots}.for_each(
        [&](int lane) { total = Operation()(total, lanes[lane]); });
    lanes.for_each([&](int lane) { lanes[lane] = total; });
  };
  return collective(kind, mask, value, combine, site);
}

template <class T>
concept ReducibleInteger = std::is_same_v<T, int> || std::is_same_v<T, unsigned>;

}  // namespace maxim_emulated

// Shuffles within groups of `width` lanes (a power of two). A source outside of the group: the
// lane keeps its own value, as in CUDA.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const int lane = maxim_emulated::lane_index();
  return maxim_emulated::shuffle("__shfl_sync", mask, value,
                                 (lane & ~(width - 1)) | (source & (width - 1)), site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const int lane = maxim_emulated::lane_index(), source = lane ^ lane_mask;
  return maxim_emulated::shuffle("__shfl_xor_sync", mask, value,
                                 source < (lane | (width - 1)) + 1 ? source : lane, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const int lane = maxim_emulated::lane_index(), source = lane - static_cast<int>(delta);
  return maxim_emulated::shuffle("__shfl_up_sync", mask, value,
                                 source >= (lane & ~(width - 1)) ? source : lane, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const int lane = maxim_emulated::lane_index(), source = lane + static_cast<int>(delta);
  return maxim_emulated::shuffle("__shfl_down_sync", mask, value,
                                 source <= (lane | (width - 1)) ? source : lane, site);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       maxim_emulated::Site site = maxim_emulated::Site::current()) {
  maxim_emulated::collective(
      "__syncwarp", mask, '\0', [](maxim_emulated::Lanes<char>) {}, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const auto combine = [](maxim_emulated::Lanes<unsigned> lanes) {
    unsigned ballot = 0;
    lanes.for_each([&](int lane) { ballot |= lanes[lane] << lane; });
    lanes.for_each([&](int lane) { lanes[lane] = ballot; });
  };
  return maxim_emulated::collective("__ballot_sync", mask, unsigned(predicate != 0), combine, site);
}
inline int __any_sync(unsigned mask, int predicate,
                      maxim_emulated::Site site = maxim_emulated::Site::current()) {
  return maxim_emulated::reduce(
      "__any_sync", mask, int(predicate != 0), [](int a, int b) { return a | b; }, site);
}
inline int __all_sync(unsigned mask, int predicate,
                      maxim_emulated::Site site = maxim_emulated::Site::current()) {
  return maxim_emulated::reduce(
      "__all_sync", mask, int(predicate != 0), [](int a, int b) { return a & b; }, site);
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value,
                          maxim_emulated::Site site = maxim_emulated::Site::current()) {
  struct Deposit {
    T value;
    unsigned equal;
  };
  const auto combine = [](maxim_emulated::Lanes<Deposit> lanes) {
    lanes.for_each([&](int lane) {
      lanes.for_each([&](int other) {
        const bool equal = std::memcmp(&lanes[lane].value, &lanes[other].value, sizeof(T)) == 0;
        lanes[lane].equal |= unsigned(equal) << other;
      });
    });
  };
  return maxim_emulated::collective("__match_any_sync", mask, Deposit{value, 0}, combine, site)
      .equal;
}

template <maxim_emulated::ReducibleInteger T>
T __reduce_add_sync(unsigned mask, T value,
                    maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const auto add = [](T a, T b) { return static_cast<T>(unsigned(a) + unsigned(b)); };
  return maxim_emulated::reduce("__reduce_add_sync", mask, value, add, site);
}
template <maxim_emulated::ReducibleInteger T>
T __reduce_max_sync(unsigned mask, T value,
                    maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const auto larger = [](T a, T b) { return a > b ? a : b; };
  return maxim_emulated::reduce("__reduce_max_sync", mask, value, larger, site);
}
template <maxim_emulated::ReducibleInteger T>
T __reduce_min_sync(unsigned mask, T value,
                    maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const auto smaller = [](T a, T b) { return a < b ? a : b; };
  return maxim_emulated::reduce("__reduce_min_sync", mask, value, smaller, site);
}
