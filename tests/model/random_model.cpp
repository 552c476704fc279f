#include "tests/model/random_model.h"

#include <algorithm>

#include "tests/reference/random.h"

namespace maxim_tests {

maxim::BertConfig small_bert(int64_t intermediate_size) {
  maxim::BertConfig config;
  config.vocab_size = 50;
  config.hidden_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.intermediate_size = intermediate_size;
  config.max_position_embeddings = 40;
  return config;
}

RandomModel::RandomModel(Backend& backend, const maxim::BertConfig& bert, int64_t embedding_size,
                         uint32_t seed, maxim::DType compute_type)
    : config(bert),
      parameters(*backend.device, bert, embedding_size, true, compute_type),
      colbert(*backend.ops, bert, embedding_size, parameters) {
  for (const maxim::Parameter& p : parameters.list()) {
    const bool gain = p.name.ends_with("LayerNorm.weight");
    std::vector<float> values = random_floats(p.size(), seed++, gain ? 0.2f : 0.15f);
    if (gain)
      for (float& v : values) v += 1;
    backend.device->copy_in(parameters.value(p.name), values.data());
  }
  if (!parameters.copy().absent()) backend.ops->convert(parameters.copy(), parameters.values());
}

Ragged mixed_batch() {
  Ragged batch = ragged({23, 1, 0, 40, 9});
  batch.key_counts[0] = 17;
  const auto drop = [&](int32_t row, size_t sequence) {
    batch.scored_rows.erase(std::find(batch.scored_rows.begin(), batch.scored_rows.end(), row));
    for (size_t s = sequence + 1; s < batch.scored_offsets.size(); ++s) --batch.scored_offsets[s];
  };
  drop(24, 3);  // the first row of the fourth sequence
  drop(30, 3);
  return batch;
}

}  // namespace maxim_tests
