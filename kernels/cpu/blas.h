// OpenBLAS, loaded at run time with the kernels that fit this CPU.
//
// Debian 12's OpenBLAS 0.3.21 does not know CPUs newer than itself and falls back to its SSE3
// ("Prescott") kernels: 64 GFLOP/s on two cores of an AVX-512 machine that reach 285 with
// OPENBLAS_CORETYPE=SKYLAKEX. The library reads that variable only while it is loaded, so it is set
// from CPUID first (unless the user has set it), and the library comes by dlopen.
#pragma once

#include <string>

namespace maxim {

struct Blas {
  // cblas_sgemm with 32-bit integers. May be called from several threads at once: each call runs on
  // the caller's thread alone.
  void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
  std::string name;     // "OpenBLAS 0.3.21 (SkylakeX)"
  std::string warning;  // why matrix products will be slow here, or empty
};

constexpr int kBlasRowMajor = 101, kBlasPlain = 111, kBlasTransposed = 112;  // CBLAS's enums

// The library, loaded by the first call. Throws Error naming the package when there is none, or
// when it takes 64-bit integers, or when there is no memory for what it works in.
const Blas& blas();

// What `kernel`, a core name of OpenBLAS, costs on a CPU whose best core type is `wanted`
// (SKYLAKEX, HASWELL, or empty when nothing is known): a sentence for the user, or empty.
std::string blas_kernel_warning(const std::string& kernel, const std::string& wanted);

}  // namespace maxim
