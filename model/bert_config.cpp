#include "model/bert_config.h"

#include "model/config_reader.h"
#include "runtime/error.h"

namespace maxim {
namespace {

// What makes a model another architecture than the one that model/encoder.h computes.
void check_architecture(const ConfigReader& reader) {
  if (!reader.has("model_type"))
    fail_input("{}: model_type is missing, expected \"bert\"", reader.file());
  reader.require("model_type", "bert", "Maxim trains BERT models only");
  reader.require("hidden_act", "gelu", "only the erf form of GELU is built");
  reader.require("position_embedding_type", "absolute", "relative positions are not built");
  reader.require("is_decoder", false, "decoders are not built");
  reader.require("add_cross_attention", false, "cross attention is not built");
}

}  // namespace

BertConfig read_bert_config(const std::string& file) {
  const ConfigReader reader(file);
  check_architecture(reader);
  BertConfig config;
  config.vocab_size = reader.size("vocab_size", 1 << 24);
  config.hidden_size = reader.size("hidden_size", 1 << 14);
  config.num_hidden_layers = reader.size("num_hidden_layers", 1024);
  config.num_attention_heads = reader.size("num_attention_heads", 1024);
  config.intermediate_size = reader.size("intermediate_size", 1 << 18);
  // 65,535: the dropout counter has 16 bits for a position.
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
