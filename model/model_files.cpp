#include "model/model_files.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "model/checkpoint_format.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/finite.h"
#include "runtime/philox.h"
#include "runtime/safetensors.h"

namespace maxim {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProjection = "1_Dense.linear.weight";
constexpr const char* kWordEmbedding = "embeddings.word_embeddings.weight";
constexpr size_t kNamesShown = 5;

// Which weights a draw is for: keys of Philox beside the seed, no two alike.
constexpr uint32_t kProjectionKey = 0x50524F4A, kWordRowsKey = 0x574F5244;

// A tensor of a checkpoint: which file, under which name.
struct Source {
  const SafetensorsFile* file = nullptr;
  std::string name;
  const SafetensorsEntry& entry() const { return file->at(name); }
};

// `values`: those of the source, as floats.
void check_finite(const Source& source, const void* values) {
  if (!all_finite(values, source.entry().elements()))
    fail_input("{}: {} has values that are NaN or infinite: the model is broken",
               source.file->path(), source.name);
}

// Our name of a checkpoint's tensor: no "bert." in front, LayerNorm.weight / bias.
std::string canonical_name(std::string name) {
  if (name.starts_with("bert.")) name.erase(0, 5);
  for (const auto& [old_end, new_end] :
       {std::pair{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}})
    if (name.ends_with(old_end))
      name.replace(name.size() - std::string(old_end).size(), std::string::npos, new_end);
  return name;
}

// Heads and buffers that other uses of a BERT leave in its file.
bool is_ignored(const std::string& name) {
  for (const char* start : {"pooler.", "cls.", "classifier.", "qa_outputs.",
                            "embeddings.position_ids", "embeddings.token_type_ids"})
    if (name.starts_with(start)) return true;
  return false;
}

std::vector<std::string> weight_files(const std::string& directory) {
  const std::string single = directory + "/model.safetensors";
  const std::string index = single + ".index.json";
  if (file_exists(single)) return {single};
  if (file_exists(index)) {
    const Json json = read_json(index);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
      fail_input("{}: no weight_map", index);
    std::set<std::string> files;
    for (const Json& file : json["weight_map"]) {
      if (!file.is_string()) fail_input("{}: weight_map has {}", index, file.dump());
      files.insert(directory + "/" + file.get<std::string>());
    }
    return {files.begin(), files.end()};
  }
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (file_exists(directory + "/" + name))
      fail_input(
          "{0}: the weights are only there as {1}, but Maxim reads model.safetensors. Convert them "
          "once with Python:\n"
          "  import glob, torch; from safetensors.torch import save_file\n"
          "  save_file({{k: v.clone().contiguous() for f in glob.glob('{0}/pytorch_model*.bin') "
          "for k, v in torch.load(f, map_location='cpu').items()}}, '{0}/model.safetensors')",
          directory, name);
  fail_input("{}: no model.safetensors", directory);
}

std::vector<int64_t> shape_of(const Parameter& p) {
  return p.is_vector ? std::vector<int64_t>{p.rows} : std::vector<int64_t>{p.rows, p.cols};
}

// "a, b, …"
template <class Names>
std::string first_names(const Names& names) {
  std::string text;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (shown++ == kNamesShown) return text + ", …";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

float normal(uint32_t i, uint32_t j, uint64_t seed) {  // Box and Muller
  const Philox4 bits = philox(j, i, 0, 0, static_cast<uint32_t>(seed),
                              static_cast<uint32_t>(seed >> 32) ^ kWordRowsKey);
  const double u = (bits.x[0] + 1.0) / 4294967296.0, v = bits.x[1] / 4294967296.0;
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

// Fills rows [old_rows, rows) of the word embedding from the rows before.
void draw_word_rows(std::vector<float>& table, int64_t old_rows, int64_t rows, int64_t hidden,
                    uint64_t seed) {
  std::vector<double> sum(hidden, 0.0), squares(hidden, 0.0);
  for (int64_t r = 0; r < old_rows; ++r)
    for (int64_t j = 0; j < hidden; ++j) {
      const double x = table[r * hidden + j];
      sum[j] += x;
      squares[j] += x * x;
    }
  for (int64_t j = 0; j < hidden; ++j) {
    const double mean = sum[j] / static_cast<double>(old_rows);
    const double variance = std::max(0.0, squares[j] / static_cast<double>(old_rows) - mean * mean);
    const double deviation = std::sqrt(1e-9 * variance);
    for (int64_t r = old_rows; r < rows; ++r)
      table[r * hidden + j] = static_cast<float>(
          mean + deviation * normal(static_cast<uint32_t>(r), static_cast<uint32_t>(j), seed));
  }
}

}  // namespace

struct ModelFiles::State {
  CheckpointFormat format;
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, Source> tensors;  // by our names
  std::vector<std::string> warnings;

  explicit State(const std::string& directory);
  void open_encoder();
  void open_dense();
  void take_sizes();
  void check_tensors();
};

// The encoder's tensors under our names.
void ModelFiles::State::open_encoder() {
  for (const std::string& path : weight_files(format.transformer)) {
    const SafetensorsFile& file = *files.emplace_back(std::make_unique<SafetensorsFile>(path));
    for (const auto& [name, entry] : file.entries()) {
      const bool projection = format.projection_in_encoder && name == "linear.weight";
      const std::string ours = projection ? kProjection : canonical_name(name);
      if (!projection && is_ignored(ours)) continue;
      if (!tensors.emplace(ours, Source{&file, name}).second)
        fail_input("{}: {} is there twice (also as {} in {})", path, name, tensors[ours].name,
                   tensors[ours].file->path());
    }
  }
}

void ModelFiles::State::open_dense() {
  for (const std::string& path : weight_files(format.dense)) {
    const SafetensorsFile& file = *files.emplace_back(std::make_unique<SafetensorsFile>(path));
    for (const auto& [name, entry] : file.entries()) {
      if (name != "linear.weight")
        fail_input("{}: {} is unexpected; a projection has a linear.weight only", path, name);
      tensors[kProjection] = {&file, name};
    }
  }
  if (tensors.count(kProjection) == 0)
    fail_input("{}: there is no linear.weight", files.back()->path());
}

// Sizes that the tensors decide: the vocabulary and the width of the projection.
void ModelFiles::State::take_sizes() {
  const auto word = tensors.find(kWordEmbedding);
  if (word != tensors.end() && word->second.entry().shape.size() == 2) {
    const int64_t rows = word->second.entry().shape[0];
    if (rows != format.bert.vocab_size)
      warnings.push_back(
          fmt::format("{}/config.json says vocab_size {}, but {} has {} rows; the rows count",
                      format.transformer, format.bert.vocab_size, word->second.name, rows));
    format.bert.vocab_size = rows;
  }
  const auto projection = tensors.find(kProjection);
  if (projection == tensors.end()) {
    if (format.projection_in_encoder)
      fail_input("{}: no linear.weight, the projection of a Stanford ColBERT", format.transformer);
    return;
  }
  const std::vector<int64_t>& shape = projection->second.entry().shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[1] != format.bert.hidden_size)
    fail_input("{}: linear.weight is {}, expected [embedding size, {}]",
               projection->second.file->path(), shape_text(shape), format.bert.hidden_size);
  format.colbert.embedding_size = shape[0];
}

void ModelFiles::State::check_tensors() {
  std::set<std::string> unexpected;
  for (const auto& [name, source] : tensors) unexpected.insert(source.name);
  std::vector<std::string> missing;
  for (const Parameter& p : parameter_layout(format.bert, format.colbert.embedding_size)) {
    const auto found = tensors.find(p.name);
    if (found == tensors.end()) {
      if (p.name != kProjection) missing.push_back(p.name);
      continue;
    }
    const SafetensorsEntry& entry = found->second.entry();
    unexpected.erase(found->second.name);
    if (entry.shape != shape_of(p))
      fail_input("{}: {} is {}, expected {} by {}/config.json", found->second.file->path(),
                 found->second.name, shape_text(entry.shape), shape_text(shape_of(p)),
                 format.transformer);
    if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16")
      fail_input("{}: {} is {}, expected F32, F16 or BF16", found->second.file->path(),
                 found->second.name, entry.dtype);
  }
  if (!missing.empty())
    fail_input("{}: {} tensors are missing: {}; {} are unexpected{}{}", files[0]->path(),
               missing.size(), first_names(missing), unexpected.size(),
               unexpected.empty() ? "" : ": ", first_names(unexpected));
  // A tensor of the encoder that is not used means another model than config.json says.
  for (const std::string& name : unexpected)
    if (canonical_name(name).starts_with("encoder.") ||
        canonical_name(name).starts_with("embeddings."))
      fail_input("{}: {} is beyond the num_hidden_layers {} of config.json or unknown",
                 files[0]->path(), name, format.bert.num_hidden_layers);
  if (!unexpected.empty())
    warnings.push_back(fmt::format("{}: {} tensors are not used: {}", files[0]->path(),
                                   unexpected.size(), first_names(unexpected)));
}

ModelFiles::State::State(const std::string& directory) : format(read_checkpoint_format(directory)) {
  open_encoder();
  if (!format.dense.empty()) open_dense();
  take_sizes();
  check_tensors();
}

ModelFiles::ModelFiles(const std::string& directory)
    : state_(std::make_shared<const State>(directory)) {}

const std::string& ModelFiles::format() const { return state_->format.name; }
const BertConfig& ModelFiles::bert() const { return state_->format.bert; }
const ColbertConfig& ModelFiles::colbert() const { return state_->format.colbert; }
bool ModelFiles::has_projection() const { return state_->tensors.count(kProjection) > 0; }
const std::string& ModelFiles::tokenizer_directory() const { return state_->format.transformer; }
const std::vector<std::string>& ModelFiles::warnings() const { return state_->warnings; }

void ModelFiles::load(Parameters& parameters, Device& device, uint64_t seed) const {
  std::vector<float> buffer;
  for (const Parameter& p : parameters.list()) {
    const Tensor value = parameters.value(p.name);
    const auto found = state_->tensors.find(p.name);
    if (found == state_->tensors.end()) {
      MAXIM_CHECK(p.name == kProjection, "{} has no source", p.name);
      const float bound = 1 / std::sqrt(static_cast<float>(p.cols));
      buffer.resize(p.size());
      for (int64_t i = 0; i < p.size(); ++i)
        buffer[i] = bound * (2 * uniform(philox(static_cast<uint32_t>(i), 0, 0, 0,
                                                static_cast<uint32_t>(seed),
                                                static_cast<uint32_t>(seed >> 32) ^ kProjectionKey)
                                             .x[0]) -
                             1);
      device.copy_in(value, buffer.data());
      continue;
    }
    const Source& source = found->second;
    const SafetensorsEntry& entry = source.entry();
    if (p.name == kProjection && entry.shape[0] != p.rows)
      fail_input("{}: the projection has {} columns, --embedding_size asks for {}",
                 source.file->path(), entry.shape[0], p.rows);
    if (entry.dtype == "F32") check_finite(source, entry.data);
    if (entry.dtype == "F32" && entry.elements() == p.size()) {
      device.copy_in(value, entry.data);
      continue;
    }
    MAXIM_CHECK(entry.elements() <= p.size(), "{} has {} of {} elements", p.name, p.size(),
                entry.elements());
    buffer.resize(p.size());
    read_as_float(*source.file, source.name, buffer.data());
    if (entry.dtype != "F32") check_finite(source, buffer.data());
    if (entry.elements() < p.size()) draw_word_rows(buffer, entry.shape[0], p.rows, p.cols, seed);
    device.copy_in(value, buffer.data());
  }
  // The files stay open, but their bytes need not take memory beside the weights.
  for (const auto& file : state_->files) file->release_pages();
}

}  // namespace maxim
