// The backward pass of the whole model against differences of its own forward pass, dropout on.
//
// The loss is a fixed random linear function of the vectors. For each parameter tensor it is taken
// at p + k h v for random directions v of signs and compared with gradient . v, whose typical size
// is the gradient's norm (0.3 to 60 here): a part that is wrong by 1 % of the norm shows.
#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/model/random_model.h"
#include "tests/reference/compare.h"
#include "tests/reference/random.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

constexpr int64_t kWidth = 24;
const StepDropout kDropout{.hidden = 0.1f, .attention = 0.1f, .seed = 11, .step = 5};
// The five-point difference has an error of h^4 / 30 times the fifth derivative; rounding adds
// about 1e-7 sqrt(values) / h = 1e-3.
constexpr double kStep = 4e-3;

class Probe {
 public:
  Probe(Backend& backend, const Ragged& batch)
      : backend_(backend),
        model_(backend, small_bert(), kWidth),
        operands_(*backend.device),
        sequences_(operands_.put(batch)),
        arena_(*backend.device,
               model_.colbert.arena_bytes({sequences_.tokens(), 0, sequences_.scored(), 0}, true),
               "test arena"),
        weights_(random_floats(sequences_.scored() * kWidth, 99)) {}

  const std::vector<Parameter>& parameters() const { return model_.parameters.list(); }

  void backward() {
    arena_.reset();
    model_.colbert.forward(sequences_, kDropout, true, arena_);
    model_.colbert.backward(operands_.put(weights_, sequences_.scored(), kWidth), arena_);
  }

  std::vector<float> gradient(const Parameter& p) {
    return operands_.get(model_.parameters.gradient(p.name));
  }

  // Five-point difference of the loss along `direction` of p.
  double slope(const Parameter& p, const std::vector<float>& direction) {
    const Tensor value = model_.parameters.value(p.name);
    const std::vector<float> center = operands_.get(value);
    const auto loss_at = [&](double distance) {
      std::vector<float> moved = center;
      for (size_t i = 0; i < moved.size(); ++i)
        moved[i] += static_cast<float>(distance) * direction[i];
      backend_.device->copy_in(value, moved.data());
      return loss();
    };
    const double near = loss_at(kStep) - loss_at(-kStep);
    const double far = loss_at(2 * kStep) - loss_at(-2 * kStep);
    backend_.device->copy_in(value, center.data());
    return (8 * near - far) / (12 * kStep);
  }

 private:
  double loss() {
    arena_.reset();
    const std::vector<float> vectors =
        operands_.get(model_.colbert.forward(sequences_, kDropout, false, arena_));
    double sum = 0;
    for (size_t i = 0; i < vectors.size(); ++i)
      sum += static_cast<double>(weights_[i]) * vectors[i];
    return sum;
  }

  Backend& backend_;
  RandomModel model_;
  Operands operands_;
  Sequences sequences_;
  Arena arena_;
  std::vector<float> weights_;
};

}  // namespace

TEST_CASE("gradients of the whole model are the slopes of its forward pass", "[model]") {
  for (Backend& backend : backends()) {
    Probe probe(backend, mixed_batch());
    probe.backward();
    uint32_t seed = 1000;
    for (const Parameter& p : probe.parameters()) {
      const std::vector<float> gradient = probe.gradient(p);
      double square = 0;
      for (const float g : gradient) square += static_cast<double>(g) * g;
      const double norm = std::sqrt(square);
      for (int trial = 0; trial < 2; ++trial) {
        std::vector<float> direction = random_floats(p.size(), seed++);
        for (float& v : direction) v = v < 0 ? -1.0f : 1.0f;
        double want = 0;
        for (size_t i = 0; i < direction.size(); ++i)
          want += static_cast<double>(gradient[i]) * direction[i];
        const double got = probe.slope(p, direction);
        INFO(backend.name << " " << p.name << " of norm " << norm << ": slope " << got
                          << ", gradient " << want);
        // 1e-3 absolute: rounding, seen up to 5e-4; key.bias has a true gradient of zero.
        CHECK(std::abs(got - want) <= 1e-3 * norm + 1e-3);
      }
    }
  }
}
