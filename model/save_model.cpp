// PyLate's layout, as PyLate 1.6 with transformers 5.3 writes it, with LayerNorm.weight / bias as
// Hugging Face names them (transformers 5.3 writes gamma / beta, and reads both).
#include "model/model_files.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/finite.h"
#include "runtime/safetensors.h"

namespace maxim {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProjection = "1_Dense.linear.weight";

// Writes parameters as one file, under the names that `name_of` gives.
void write_weights(const std::string& path, const std::vector<const Parameter*>& list,
                   const std::vector<std::string>& names, const Parameters& parameters,
                   Device& device, const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Item> items;
  for (size_t i = 0; i < list.size(); ++i)
    items.push_back({names[i], "F32",
                     list[i]->is_vector ? std::vector<int64_t>{list[i]->rows}
                                        : std::vector<int64_t>{list[i]->rows, list[i]->cols}});
  SafetensorsWriter writer(path, items, metadata);
  std::vector<float> buffer;
  for (const Parameter* p : list) {
    buffer.resize(p->size());
    device.copy_out(buffer.data(), parameters.value(p->name));
    if (!all_finite(buffer.data(), p->size()))
      fail("{} has weights that are NaN or infinite after training: nothing is saved", p->name);
    writer.write(buffer.data(), p->size() * size_of(DType::f32));
  }
  writer.finish();
}

Json bert_json(const BertConfig& bert) {
  Json json = bert.source;
  json["architectures"] = {"BertModel"};
  json["vocab_size"] = bert.vocab_size;
  json.erase("torch_dtype");
  json["dtype"] = "float32";
  return json;
}

Json colbert_json(const ColbertConfig& c) {
  // The versions whose layout this is; PyLate and sentence-transformers read them for a warning
  // only.
  return {{"model_type", "ColBERT"},
          {"__version__",
           {{"sentence_transformers", "5.3.0"}, {"transformers", "5.3.0"}, {"pytorch", "2.11.0"}}},
          {"prompts", {{"query", ""}, {"document", ""}}},
          {"default_prompt_name", nullptr},
          {"similarity_fn_name", "MaxSim"},
          {"query_prefix", c.query_prefix},
          {"document_prefix", c.document_prefix},
          {"query_length", c.query_length},
          {"document_length", c.document_length},
          {"attend_to_expansion_tokens", c.attend_to_expansion_tokens},
          {"skiplist_words", c.skiplist_words},
          {"do_query_expansion", c.do_query_expansion}};
}

std::string model_card(const BertConfig& bert, const ColbertConfig& c) {
  return fmt::format(
      "---\nlibrary_name: PyLate\ntags:\n- ColBERT\n- PyLate\n- sentence-transformers\n"
      "pipeline_tag: sentence-similarity\n---\n\n"
      "# Late-interaction retriever\n\n"
      "A ColBERT model trained with Maxim: BERT with {} layers of {} columns, one vector of {} "
      "columns a token, scores by MaxSim.\nQueries are expanded to {} tokens, documents cut at "
      "{}.\n\n"
      "```python\nfrom pylate import models\nmodel = models.ColBERT(\"this/directory\")\n"
      "vectors = model.encode([\"a text\"], is_query=True)\n```\n",
      bert.num_hidden_layers, bert.hidden_size, c.embedding_size, c.query_length,
      c.document_length);
}

}  // namespace

void save_model(const std::string& directory, const BertConfig& bert, const ColbertConfig& colbert,
                const Parameters& parameters, Device& device) {
  std::vector<const Parameter*> encoder, projection;
  std::vector<std::string> names;
  for (const Parameter& p : parameters.list()) {
    if (p.name == kProjection) {
      projection.push_back(&p);
    } else {
      encoder.push_back(&p);
      names.push_back(p.name);
    }
  }
  write_weights(directory + "/model.safetensors", encoder, names, parameters, device,
                {{"format", "pt"}});
  const std::string dense = directory + "/1_Dense";
  make_directories(dense);
  write_weights(dense + "/model.safetensors", projection, {"linear.weight"}, parameters, device,
                {});
  write_json(dense + "/config.json", {{"in_features", bert.hidden_size},
                                      {"out_features", colbert.embedding_size},
                                      {"bias", false},
                                      {"activation_function", "torch.nn.modules.linear.Identity"},
                                      {"use_residual", false}});
  write_json(directory + "/config.json", bert_json(bert));
  write_json(directory + "/config_sentence_transformers.json", colbert_json(colbert));
  write_json(directory + "/sentence_bert_config.json",
             {{"max_seq_length", colbert.document_length - 1}, {"do_lower_case", false}});
  write_json(directory + "/modules.json",
             Json::array({{{"idx", 0},
                           {"name", "0"},
                           {"path", ""},
                           {"type", "sentence_transformers.models.Transformer"}},
                          {{"idx", 1},
                           {"name", "1"},
                           {"path", "1_Dense"},
                           {"type", "pylate.models.Dense.Dense"}}}));
  write_text(directory + "/README.md", model_card(bert, colbert));
}

}  // namespace maxim
