#include "model/parameters.h"

#include <algorithm>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/model/random_model.h"
#include "tests/reference/message_of.h"

using namespace maxim;
using namespace maxim_tests;

TEST_CASE("tensors lie in order, aligned, without overlap", "[parameters]") {
  const std::vector<Parameter> list = parameter_layout(small_bert(), 24);
  REQUIRE(list.size() == 5 + 2 * 16 + 1);
  CHECK(list[0].name == "embeddings.word_embeddings.weight");
  CHECK(list[5].name == "encoder.layer.0.attention.self.query.weight");
  CHECK(list[21].name == "encoder.layer.1.attention.self.query.weight");
  CHECK(list.back().name == "1_Dense.linear.weight");
  int64_t end = 0;
  for (const Parameter& p : list) {
    INFO(p.name);
    CHECK(p.offset % 32 == 0);
    CHECK(p.offset >= end);
    CHECK(p.offset - end < 32);
    CHECK(p.decays == !p.is_vector);  // weight decay spares biases and LayerNorm
    CHECK(p.is_vector == (p.name.ends_with(".bias") || p.name.find("LayerNorm") != p.name.npos));
    end = p.offset + p.size();
  }
}

TEST_CASE("weights are counted without gaps", "[parameters]") {
  HostDevice device;
  const Parameters parameters(device, small_bert(), 24, true);
  // Embeddings (50 + 40 + 2) 64 + 128; a layer 4 (64 * 64 + 64) + 2 * 64 * 96 + 96 + 64 + 256.
  CHECK(parameters.count() == 92 * 64 + 128 + 2 * (4 * 4160 + 12288 + 160 + 256) + 24 * 64);
  for (const Tensor& buffer : {parameters.values(), parameters.gradients()}) {
    const float* x = buffer.as<float>();
    CHECK(std::all_of(x, x + buffer.size(), [](float v) { return v == 0; }));
  }
}

TEST_CASE("views by name, and of adjacent parameters", "[parameters]") {
  HostDevice device;
  const Parameters parameters(device, small_bert(), 24, true);
  const std::string self = "encoder.layer.1.attention.self.";
  const Tensor qkv = parameters.weight_span(self + "query.weight", 3);
  CHECK(qkv.rows() == 192);
  CHECK(qkv.cols() == 64);
  CHECK(qkv.slice(64, 128).data() == parameters.value(self + "key.weight").data());
  CHECK(qkv.slice(128, 192).data() == parameters.value(self + "value.weight").data());
  const Tensor bias = parameters.gradient_span(self + "query.bias", 3);
  CHECK(bias.rank() == 1);
  CHECK(bias.slice(128, 192).data() == parameters.gradient(self + "value.bias").data());
  CHECK(parameters.value("embeddings.LayerNorm.weight").rank() == 1);
  require_message<Error>([&] { parameters.value("pooler.dense.bias"); },
                         {"no parameter pooler.dense.bias"});
  require_message<Error>([&] { parameters.weight_span(self + "value.weight", 2); },
                         {"are not adjacent"});
  const Parameters frozen(device, small_bert(), 24, false);
  CHECK(frozen.gradients().absent());
  require_message<Error>([&] { frozen.gradient("embeddings.LayerNorm.weight"); }, {"no gradients"});
}
