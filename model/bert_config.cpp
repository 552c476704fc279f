#include "model/bert_config.h"

#include <cmath>

#include "runtime/error.h"
#include "runtime/files.h"

namespace maxim {
namespace {

using Json = nlohmann::ordered_json;

// Reads keys of one config.json; every complaint names the file and the key.
class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file), json_(read_json(file)) {
    if (!json_.is_object()) fail_input("{}: expected a JSON object", file);
  }

  const Json& json() const { return json_; }

  int64_t size(const char* key, int64_t most) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail_input("{}: {} is missing", file_, key);
    if (!found->is_number_integer() || found->get<double>() < 1 || found->get<double>() > most)
      fail_input("{}: {} is {}, expected a number from 1 to {}", file_, key, found->dump(), most);
    return found->get<int64_t>();
  }
  int64_t size(const char* key, int64_t most, int64_t otherwise) const {
    return given(key) ? size(key, most) : otherwise;
  }

  // A number in [0, below).
  float number(const char* key, float below, float otherwise) const {
    if (!given(key)) return otherwise;
    const Json& value = json_.at(key);
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number >= 0 && number < below))
      fail_input("{}: {} is {}, expected a number from 0 to below {}", file_, key, value.dump(),
                 below);
    return static_cast<float>(number);
  }

  // The key must be absent or have this value.
  void require(const char* key, const Json& value, const char* why) const {
    if (given(key) && json_.at(key) != value)
      fail_input("{}: {} is {}, expected {}: {}", file_, key, json_.at(key).dump(), value.dump(),
                 why);
  }

 private:
  bool given(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  std::string file_;
  Json json_;
};

// What makes a model another architecture than the one that model/encoder.h computes.
void check_architecture(const std::string& file, const Reader& reader) {
  if (!reader.json().contains("model_type"))
    fail_input("{}: model_type is missing, expected \"bert\"", file);
  reader.require("model_type", "bert", "Maxim trains BERT models only");
  reader.require("hidden_act", "gelu", "only the erf form of GELU is built");
  reader.require("position_embedding_type", "absolute", "relative positions are not built");
  reader.require("is_decoder", false, "decoders are not built");
  reader.require("add_cross_attention", false, "cross attention is not built");
}

}  // namespace

BertConfig read_bert_config(const std::string& file) {
  const Reader reader(file);
  check_architecture(file, reader);
  BertConfig config;
  config.vocab_size = reader.size("vocab_size", 1 << 24);
  config.hidden_size = reader.size("hidden_size", 1 << 14);
  // The dropout counter has 16 bits for the layer and 16 for the position.
  config.num_hidden_layers = reader.size("num_hidden_layers", 1024);
  config.num_attention_heads = reader.size("num_attention_heads", 1024);
  config.intermediate_size = reader.size("intermediate_size", 1 << 18);
  config.max_position_embeddings = reader.size("max_position_embeddings", 65535, 512);
  config.type_vocab_size = reader.size("type_vocab_size", 1024, 2);
  config.layer_norm_eps = reader.number("layer_norm_eps", 1, 1e-12f);
  config.hidden_dropout_prob = reader.number("hidden_dropout_prob", 1, 0.1f);
  config.attention_probs_dropout_prob = reader.number("attention_probs_dropout_prob", 1, 0.1f);
  config.source = reader.json();
  const int64_t hidden = config.hidden_size, heads = config.num_attention_heads;
  if (hidden % heads != 0 || (hidden / heads != 32 && hidden / heads != 64))
    fail_input(
        "{}: hidden_size {} / num_attention_heads {} gives heads of {}, expected heads of 32 or 64",
        file, hidden, heads, static_cast<double>(hidden) / static_cast<double>(heads));
  return config;
}

}  // namespace maxim
