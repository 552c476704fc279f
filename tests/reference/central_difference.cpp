#include "tests/reference/central_difference.h"

namespace maxim_tests {

std::vector<double> central_differences(const std::function<double(const std::vector<double>&)>& f,
                                        std::vector<double> x, double h) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double saved = x[i];
    x[i] = saved + h;
    const double above = f(x);
    x[i] = saved - h;
    const double below = f(x);
    x[i] = saved;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

}  // namespace maxim_tests
