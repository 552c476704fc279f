// Copies to a device, which a GPU makes later: what the host held when it asked is what arrives.
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/backends.h"

using namespace maxim_tests;

TEST_CASE("copies to the device carry what the host held then, however many are on their way") {
  // 36 MB through the 8 MB that a GPU's copies pass through; the largest alone is more than that.
  std::vector<int64_t> sizes(20, 300'001);
  sizes[3] = 3'000'000;
  sizes.back() = 1;
  for (Backend& backend : backends())
    for (const bool ahead : {false, true}) {
      Operands o(*backend.device);
      std::vector<maxim::Tensor> copies;
      for (const int64_t size : sizes) copies.push_back(o.zeros(size));
      backend.device->synchronize();
      std::vector<float> source(3'000'000);
      if (ahead) backend.device->begin_ahead(0);
      for (size_t i = 0; i < sizes.size(); ++i) {
        for (int64_t k = 0; k < sizes[i]; ++k) source[k] = static_cast<float>(k % 4096 + 4096 * i);
        backend.device->copy_in(copies[i], source.data());
      }
      if (ahead) backend.device->end_ahead();
      for (size_t i = 0; i < sizes.size(); ++i) {
        const std::vector<float> got = o.get(copies[i]);
        for (int64_t k = 0; k < sizes[i]; ++k)
          if (got[k] != static_cast<float>(k % 4096 + 4096 * i))
            FAIL(backend.name << ", ahead " << ahead << ": element " << k << " of copy " << i
                              << " is " << got[k]);
      }
      SUCCEED();
    }
}
