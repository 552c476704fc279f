#include "model/bert_config.h"

#include "runtime/error.h"
#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/reference/message_of.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim;
using namespace maxim_tests;
using Json = nlohmann::ordered_json;

namespace {

const Json kSmall = {{"model_type", "bert"},     {"vocab_size", 100},
                     {"hidden_size", 128},       {"num_hidden_layers", 2},
                     {"num_attention_heads", 2}, {"intermediate_size", 512}};

void require_refused(const std::string& key, const Json& value,
                     const std::vector<std::string>& words) {
  const TemporaryDirectory directory;
  Json json = kSmall;
  json[key] = value;
  const std::string path = directory.write("config.json", json.dump());
  require_message<InputError>([&] { read_bert_config(path); }, words);
  require_message<InputError>([&] { read_bert_config(path); }, {path, key});
}

}  // namespace

TEST_CASE("sizes and defaults of a BERT", "[bert_config]") {
  const TemporaryDirectory directory;
  Json json = kSmall;
  BertConfig config = read_bert_config(directory.write("config.json", json.dump()));
  CHECK(config.vocab_size == 100);
  CHECK(config.hidden_size == 128);
  CHECK(config.num_hidden_layers == 2);
  CHECK(config.num_attention_heads == 2);
  CHECK(config.head_size() == 64);
  CHECK(config.intermediate_size == 512);
  CHECK(config.max_position_embeddings == 512);
  CHECK(config.type_vocab_size == 2);
  CHECK(config.layer_norm_eps == 1e-12f);
  CHECK(config.hidden_dropout_prob == 0.1f);
  CHECK(config.attention_probs_dropout_prob == 0.1f);
  json.update({{"max_position_embeddings", 77},
               {"type_vocab_size", 1},
               {"layer_norm_eps", 1e-5},
               {"hidden_dropout_prob", 0},
               {"attention_probs_dropout_prob", 0.25},
               {"hidden_act", "gelu"},
               {"position_embedding_type", "absolute"},
               {"is_decoder", false},
               {"num_attention_heads", 4},
               {"something_else", {1, 2}}});
  config = read_bert_config(directory.write("config.json", json.dump()));
  CHECK(config.max_position_embeddings == 77);
  CHECK(config.type_vocab_size == 1);
  CHECK(config.layer_norm_eps == 1e-5f);
  CHECK(config.hidden_dropout_prob == 0);
  CHECK(config.attention_probs_dropout_prob == 0.25f);
  CHECK(config.head_size() == 32);
  CHECK(config.source == json);
}

TEST_CASE("models that are not such a BERT are refused", "[bert_config]") {
  require_refused("model_type", "modernbert", {"\"modernbert\"", "\"bert\""});
  require_refused("model_type", nullptr, {"model_type is missing"});
  require_refused("hidden_act", "relu", {"\"relu\"", "\"gelu\""});
  require_refused("hidden_act", "gelu_new", {"\"gelu_new\"", "erf"});
  require_refused("position_embedding_type", "relative_key", {"\"relative_key\"", "absolute"});
  require_refused("is_decoder", true, {"is_decoder is true"});
  require_refused("add_cross_attention", true, {"add_cross_attention is true"});
  require_refused("num_attention_heads", 8, {"heads of 16", "32 or 64"});
  require_refused("num_attention_heads", 3, {"heads of 42.6", "32 or 64"});
  require_refused("hidden_size", nullptr, {"hidden_size is missing"});
  require_refused("hidden_size", -128, {"hidden_size is -128", "from 1 to"});
  require_refused("hidden_size", 128.5, {"hidden_size is 128.5"});
  require_refused("hidden_size", "128", {"hidden_size is \"128\""});
  require_refused("vocab_size", 0, {"vocab_size is 0"});
  require_refused("num_hidden_layers", 1000000000000, {"num_hidden_layers is 1000000000000"});
  require_refused("max_position_embeddings", 65536, {"from 1 to 65535"});
  require_refused("hidden_dropout_prob", 1, {"hidden_dropout_prob is 1", "below 1"});
  require_refused("hidden_dropout_prob", 0.9999999999, {"below 1"});  // 1 in float32
  require_refused("attention_probs_dropout_prob", -0.1, {"is -0.1"});
  require_refused("layer_norm_eps", "small", {"layer_norm_eps is \"small\""});
  const TemporaryDirectory directory;
  require_message<InputError>([&] { read_bert_config(directory.write("config.json", "[]")); },
                              {"config.json", "JSON object"});
}
