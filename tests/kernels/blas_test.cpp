#include "kernels/cpu/blas.h"

#include "tests/catch.h"
#include "tests/kernels/backends.h"

using namespace maxim_tests;

TEST_CASE("a BLAS kernel below the CPU's class is a warning") {
  CHECK(maxim::blas_kernel_warning("SkylakeX", "SKYLAKEX").empty());
  CHECK(maxim::blas_kernel_warning("Cooperlake", "SKYLAKEX").empty());
  CHECK(maxim::blas_kernel_warning("Haswell", "HASWELL").empty());
  CHECK(maxim::blas_kernel_warning("Zen", "HASWELL").empty());
  CHECK(maxim::blas_kernel_warning("Prescott", "").empty());  // nothing is known about the CPU
  for (const char* wanted : {"SKYLAKEX", "HASWELL"}) {
    const std::string warning = maxim::blas_kernel_warning("Prescott", wanted);
    CHECK(warning.find("Prescott") != std::string::npos);
    CHECK(warning.find(wanted) != std::string::npos);
  }
  CHECK_FALSE(maxim::blas_kernel_warning("Haswell", "SKYLAKEX").empty());
}

TEST_CASE("the BLAS names itself and its kernel") {
  for (Backend& backend : backends())
    if (backend.name == "cpu") {
      const std::string name = backend.ops->gemm_library();
      INFO(name);
      CHECK(name.find("OpenBLAS 0.") == 0);
      CHECK(name.find('(') != std::string::npos);
    }
}
