#include "model/parameters.h"

#include <algorithm>

#include "comm/gradient_reducer.h"
#include "runtime/error.h"

namespace maxim {
namespace {

constexpr int64_t kAlignment = 32;  // elements: 128 bytes, a cache line pair and a warp's load

// Appends tensors to a list, each at the next free aligned offset.
class Layout {
 public:
  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    append({name, 0, rows, cols, false, true});
  }
  void vector(const std::string& name, int64_t size) { append({name, 0, size, 1, true, false}); }
  void linear(const std::string& name, int64_t out, int64_t in) {
    matrix(name + ".weight", out, in);
    vector(name + ".bias", out);
  }
  void layer_norm(const std::string& name, int64_t size) {
    vector(name + ".weight", size);
    vector(name + ".bias", size);
  }
  std::vector<Parameter> list;
  int64_t elements = 0;

 private:
  void append(Parameter p) {
    p.offset = elements;
    elements += (p.size() + kAlignment - 1) / kAlignment * kAlignment;
    list.push_back(std::move(p));
  }
};

Layout layout_of(const BertConfig& config, int64_t embedding_size) {
  const int64_t hidden = config.hidden_size;
  Layout layout;
  layout.matrix("embeddings.word_embeddings.weight", config.vocab_size, hidden);
  layout.matrix("embeddings.position_embeddings.weight", config.max_position_embeddings, hidden);
  layout.matrix("embeddings.token_type_embeddings.weight", config.type_vocab_size, hidden);
  layout.layer_norm("embeddings.LayerNorm", hidden);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const std::string layer = fmt::format("encoder.layer.{}.", l);
    for (const char* part : {"query", "key", "value"})
      layout.matrix(layer + "attention.self." + part + ".weight", hidden, hidden);
    for (const char* part : {"query", "key", "value"})
      layout.vector(layer + "attention.self." + part + ".bias", hidden);
    layout.linear(layer + "attention.output.dense", hidden, hidden);
    layout.layer_norm(layer + "attention.output.LayerNorm", hidden);
    layout.linear(layer + "intermediate.dense", config.intermediate_size, hidden);
    layout.linear(layer + "output.dense", hidden, config.intermediate_size);
    layout.layer_norm(layer + "output.LayerNorm", hidden);
  }
  layout.matrix("1_Dense.linear.weight", embedding_size, hidden);
  return layout;
}

size_t index_of(const std::vector<Parameter>& list, const std::string& name) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const Parameter& p) { return p.name == name; });
  MAXIM_CHECK(found != list.end(), "there is no parameter {}", name);
  return static_cast<size_t>(found - list.begin());
}

Tensor view_of(const Tensor& buffer, const Parameter& p) {
  const Tensor flat = buffer.slice(p.offset, p.offset + p.size());
  return p.is_vector ? flat : flat.reshape(p.rows, p.cols);
}

Tensor span_of(const Tensor& buffer, const std::vector<Parameter>& list, const std::string& first,
               int64_t parts) {
  const size_t index = index_of(list, first);
  const Parameter& p = list[index];
  for (size_t i = index; i < index + parts; ++i)
    MAXIM_CHECK(i < list.size() && list[i].rows == p.rows && list[i].cols == p.cols &&
                    list[i].is_vector == p.is_vector &&
                    list[i].offset == p.offset + static_cast<int64_t>(i - index) * p.size(),
                "{} parts from {} are not adjacent", parts, first);
  const Tensor flat = buffer.slice(p.offset, p.offset + parts * p.size());
  return p.is_vector ? flat : flat.reshape(parts * p.rows, p.cols);
}

}  // namespace

std::vector<Parameter> parameter_layout(const BertConfig& config, int64_t embedding_size) {
  return layout_of(config, embedding_size).list;
}

Parameters::Parameters(Device& device, const BertConfig& config, int64_t embedding_size,
                       bool with_gradients, DType compute_type) {
  Layout layout = layout_of(config, embedding_size);
  list_ = std::move(layout.list);
  elements_ = (layout.elements + GradientReducer::kUnit - 1) / GradientReducer::kUnit *
              GradientReducer::kUnit;
  values_ = DeviceTensor(device, DType::f32, elements_, "weights");
  device.zero(values_.view());
  if (compute_type != DType::f32) {
    copy_ = DeviceTensor(device, compute_type, elements_, "16-bit weights");
    device.zero(copy_.view());
  }
  if (!with_gradients) return;
  gradients_ = DeviceTensor(device, DType::f32, elements_, "gradients");
  device.zero(gradients_.view());
}

int64_t Parameters::count() const {
  int64_t count = 0;
  for (const Parameter& p : list_) count += p.size();
  return count;
}

int64_t Parameters::first_of(const std::string& prefix) const {
  const auto found = std::find_if(list_.begin(), list_.end(), [&](const Parameter& p) {
    return p.name.compare(0, prefix.size(), prefix) == 0;
  });
  MAXIM_CHECK(found != list_.end(), "there is no parameter {}…", prefix);
  return found->offset;
}

Tensor Parameters::value(const std::string& name) const {
  return view_of(values(), list_[index_of(list_, name)]);
}

Tensor Parameters::gradient(const std::string& name) const {
  MAXIM_CHECK(!gradients().absent(), "the parameters have no gradients");
  return view_of(gradients(), list_[index_of(list_, name)]);
}

Tensor Parameters::weight_span(const std::string& first, int64_t parts) const {
  return span_of(copy().absent() ? values() : copy(), list_, first, parts);
}

Tensor Parameters::gradient_span(const std::string& first, int64_t parts) const {
  MAXIM_CHECK(!gradients().absent(), "the parameters have no gradients");
  return span_of(gradients(), list_, first, parts);
}

}  // namespace maxim
