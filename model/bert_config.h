// model: BERT, the projection, the files they come from. model may include kernels, comm and
// runtime.
//
// Sizes of a BERT as in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace maxim {

struct BertConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  float layer_norm_eps = 1e-12f;
  float hidden_dropout_prob = 0.1f;
  float attention_probs_dropout_prob = 0.1f;
  nlohmann::ordered_json source;  // the file as read, so that saving keeps unknown keys
  int64_t head_size() const { return hidden_size / num_attention_heads; }
};

// Throws InputError naming the file and key: model_type other than bert, hidden_act other than erf
// gelu, relative positions, decoder, head size other than 32 or 64, missing or absurd numbers.
BertConfig read_bert_config(const std::string& file);

}  // namespace maxim
