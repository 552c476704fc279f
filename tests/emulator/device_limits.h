// The emulated GPU: the limits of an H100, so that what fits here fits there, on few processors.
#pragma once

#include <cstddef>

namespace maxim_emulated {

inline constexpr int kMajor = 9, kMinor = 0;
inline constexpr int kMultiprocessors = 4;
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxThreadsPerMultiprocessor = 2048;
inline constexpr int kMaxBlocksPerMultiprocessor = 32;
inline constexpr unsigned kMaxGridX = 0x7fffffff, kMaxGridYZ = 65535;
inline constexpr unsigned kMaxBlockXY = 1024, kMaxBlockZ = 64;
inline constexpr size_t kDefaultSharedBytes = 48 * 1024;  // what a launch gets without asking
inline constexpr size_t kMaxSharedBytes = 227 * 1024;     // with cudaFuncSetAttribute
inline constexpr size_t kSharedBytesPerMultiprocessor = 228 * 1024;
inline constexpr size_t kReservedSharedBytes = 1024;  // of each block, for the system

}  // namespace maxim_emulated
