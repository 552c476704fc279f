// All weights in one flat buffer, so that the optimizer, the norm and the reduction are one pass
// each. Order: embeddings, layers (query, key, value adjacent: [3H, H] and [3H]), projection. Each
// tensor starts at a multiple of 32 elements; the gaps are zero, and so is the padding at the end,
// up to a multiple of GradientReducer::kUnit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/bert_config.h"
#include "runtime/device.h"

namespace maxim {

struct Parameter {
  std::string
      name;  // Hugging Face name without prefix, LayerNorm.weight/bias; "1_Dense.linear.weight"
  int64_t offset = 0;
  int64_t rows = 0, cols = 0;  // a vector has cols = 1 and shape [rows]
  bool is_vector = false;
  bool decays = false;  // weight decay applies: not to biases and LayerNorm
  int64_t size() const { return rows * cols; }
};

// Names, shapes and places of all weights of such a model, in the order of the flat buffer.
std::vector<Parameter> parameter_layout(const BertConfig& config, int64_t embedding_size);

class Parameters {
 public:
  // `compute_type` is what matrix products multiply: f32, or bf16 or f16 beside the f32 weights.
  Parameters(Device& device, const BertConfig& config, int64_t embedding_size, bool with_gradients,
             DType compute_type = DType::f32);

  const std::vector<Parameter>& list() const { return list_; }
  int64_t count() const;  // weights, gaps left out
  Tensor values() const { return values_.view(); }
  Tensor gradients() const { return gradients_.view(); }
  // The 16-bit copy of values(), absent when compute_type is f32. Whoever changes the values renews
  // it.
  Tensor copy() const { return copy_.view(); }
  DType compute_type() const { return copy().absent() ? DType::f32 : copy().dtype(); }
  // Place of the first parameter whose name begins so. Throws Error when there is none.
  int64_t first_of(const std::string& prefix) const;
  Tensor value(const std::string& name) const;  // throws Error for an unknown name
  Tensor gradient(const std::string& name) const;
  // Rows of several adjacent parameters as one tensor: ("…query.weight", 3) -> [3H, H].
  // In the compute type.
  Tensor weight_span(const std::string& first, int64_t parts) const;
  Tensor gradient_span(const std::string& first, int64_t parts) const;

 private:
  std::vector<Parameter> list_;
  int64_t elements_ = 0;
  DeviceTensor values_, copy_, gradients_;
};

}  // namespace maxim
