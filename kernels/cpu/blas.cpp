#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "runtime/error.h"

namespace maxim {
namespace {

// Debian's and most other systems' name; Fedora's threaded build; a development link.
constexpr std::array kNames = {"libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so"};

// The OpenBLAS core type of this CPU's vector unit (a matter of class only: on a Zen 4, Haswell,
// SkylakeX and Cooperlake kernels all reach 95-108 GFLOP/s a core). Empty: leave it to OpenBLAS.
const char* core_type_of_cpu() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // these builtins ask the operating system's support, too
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return "SKYLAKEX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "HASWELL";
#endif
  return "";
}

template <class Function>
Function symbol(void* library, const char* name) {
  void* address = dlsym(library, name);
  if (address == nullptr)
    fail("the OpenBLAS that was found has no function {}: install the package libopenblas0-pthread",
         name);
  return reinterpret_cast<Function>(address);
}

// Where there is no memory for the buffer of a calling thread, OpenBLAS tries again for ever. So
// ask for it first, and have it taken now.
void take_buffers(const Blas& blas) {
  constexpr size_t kBufferBytes = 128 << 20;  // 32 << 22 in OpenBLAS's param.h for x86-64
  constexpr int n = 384;                      // long enough that all threads are in it at once
  const int threads = omp_get_max_threads();
  std::vector<std::unique_ptr<float[]>> room(threads);
#pragma omp parallel  // so that the threads have their stacks and heaps before it is asked
  room[omp_get_thread_num()].reset(new (std::nothrow) float[2 * n * n]());
  const bool all = std::find(room.begin(), room.end(), nullptr) == room.end();
  const size_t bytes = kBufferBytes * threads + kBufferBytes / 4;  // some to spare
  void* const trial = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!all || trial == MAP_FAILED)
    fail("out of memory: OpenBLAS needs {} MiB of addresses for {} threads", bytes >> 20, threads);
  munmap(trial, bytes);
#pragma omp parallel
  {
    float* const x = room[omp_get_thread_num()].get();
#pragma omp barrier
    blas.sgemm(kBlasRowMajor, kBlasPlain, kBlasPlain, n, n, n, 1, x, n, x, n, 0, x + n * n, n);
  }
}

Blas load() {
  const std::string wanted = core_type_of_cpu();
  if (!wanted.empty()) setenv("OPENBLAS_CORETYPE", wanted.c_str(), 0);
  // We split matrices over our own threads; OpenBLAS's would fight them for the cores.
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  void* library = nullptr;
  std::string reasons;
  for (const char* name : kNames) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    reasons += std::string("\n  ") + dlerror();
  }
  if (library == nullptr)
    fail(
        "no OpenBLAS: install the package libopenblas0-pthread (Debian, Ubuntu) or openblas; "
        "tried:{}",
        reasons);
  const std::string config = symbol<const char* (*)()>(library, "openblas_get_config")();
  if (config.find("USE64BITINT") != std::string::npos)
    fail("the OpenBLAS that was found takes 64-bit integers ({}): install libopenblas0-pthread",
         config);
  symbol<void (*)(int)>(library, "openblas_set_num_threads")(1);
  const std::string kernel = symbol<const char* (*)()>(library, "openblas_get_corename")();
  Blas blas;
  blas.sgemm = symbol<decltype(Blas::sgemm)>(library, "cblas_sgemm");
  const std::string version = config.substr(0, config.find(' ', config.find(' ') + 1));
  blas.name = fmt::format("{} ({})", version, kernel);
  blas.warning = blas_kernel_warning(kernel, wanted);
  take_buffers(blas);
  return blas;
}

}  // namespace

const Blas& blas() {
  static const Blas loaded = load();
  return loaded;
}

std::string blas_kernel_warning(const std::string& kernel, const std::string& wanted) {
  constexpr std::array<std::string_view, 3> kAvx512 = {"SkylakeX", "Cooperlake", "SapphireRapids"};
  constexpr std::array<std::string_view, 3> kAvx2 = {"Haswell", "Zen", "Excavator"};
  const auto in = [&](const auto& list) {
    return std::find(list.begin(), list.end(), kernel) != list.end();
  };
  const bool fits = wanted == "SKYLAKEX"  ? in(kAvx512)
                    : wanted == "HASWELL" ? in(kAvx2) || in(kAvx512)
                                          : true;
  if (fits) return "";
  return fmt::format(
      "matrix products run OpenBLAS's {} kernels where this CPU could run {}: they may take "
      "several "
      "times as long; unset OPENBLAS_CORETYPE, or install an OpenBLAS with kernels for several "
      "CPUs "
      "(libopenblas0-pthread)",
      kernel, wanted);
}

}  // namespace maxim
