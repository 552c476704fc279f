// Loss and parameter gradients of whole steps against PyLate's with masked tokens left out of the
// maximum (golden/exclude: Maxim's rule): model, loss and back, dropout 0.
#include <cmath>

#include "comm/solo_communicator.h"
#include "loss/contrastive.h"
#include "model/colbert.h"
#include "model/model_files.h"
#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/model/golden.h"
#include "tests/reference/compare.h"
#include "tests/reference/random.h"
#include "tests/reference/rounding.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

constexpr int64_t kTexts = 4, kQueryLength = 16, kDocumentLength = 48;

struct Variant {
  std::string name;
  float temperature;
  std::vector<std::string> documents;  // columns
};

std::vector<int64_t> text_of(const std::vector<int64_t>& padded, int64_t text, int64_t length) {
  return {padded.begin() + text * length, padded.begin() + (text + 1) * length};
}

// Queries, then the documents of each query side by side, as the loss wants them. padded_rows count
// from the padded queries, then the document columns one after the other.
GoldenBatch step_batch(const SafetensorsFile& inputs, const SafetensorsFile& masks,
                       const std::vector<std::string>& documents) {
  GoldenBatch batch;
  batch.append(read_integers(inputs, "inputs.query.input_ids"),
               read_integers(inputs, "inputs.query.attention_mask"),
               std::vector<int64_t>(kTexts * kQueryLength, 1),  // expansion rows are scored
               kQueryLength, true);
  for (int64_t text = 0; text < kTexts; ++text)
    for (size_t k = 0; k < documents.size(); ++k) {
      const std::string part = "inputs." + documents[k];
      const auto text_tensor = [&](const SafetensorsFile& file, const std::string& name) {
        return text_of(read_integers(file, name), text, kDocumentLength);
      };
      batch.append(
          text_tensor(inputs, part + ".input_ids"), text_tensor(inputs, part + ".attention_mask"),
          text_tensor(masks, "mask." + documents[k]), kDocumentLength, false,
          kTexts * kQueryLength + (static_cast<int64_t>(k) * kTexts + text) * kDocumentLength);
    }
  return batch;
}

// The gradient of a parameter as the golden file has it: whole, every n-th entry, or some rows.
void require_golden_gradient(const SafetensorsFile& golden, const std::string& variant,
                             const Parameter& p, const std::vector<float>& got) {
  const std::string name = variant + "." + p.name;
  std::vector<float> compared;
  std::string tensor = name;
  const auto& entries = golden.entries();
  if (entries.count(name) > 0) {
    compared = got;
  } else if (entries.count(name + ".sampled") > 0) {
    tensor = name + ".sampled";
    for (int64_t i = 0; i < 1024; ++i) compared.push_back(got[i * p.size() / 1024]);
  } else {
    tensor = name + ".values";
    for (const int64_t row : read_integers(golden, name + ".rows"))
      compared.insert(compared.end(), got.begin() + row * p.cols, got.begin() + (row + 1) * p.cols);
  }
  const std::vector<float> want = read_floats(golden, tensor);
  if (name.ends_with("key.bias")) {
    // The true gradient is 0: a shift of all keys shifts all scores of a row alike. Both sides have
    // rounding noise only, some 1e-8 here.
    for (const float g : compared)
      if (std::abs(g) > 1e-6) FAIL(fmt::format("{}: {}, expected zero", name, g));
    return;
  }
  float largest = 0;
  for (const float w : want) largest = std::max(largest, std::abs(w));
  require_close(name, compared, to_double(want), 1e-4 * largest + 1e-7, 0, p.cols);
}

// Rows of an embedding table that no token used must have no gradient at all.
void require_zero_elsewhere(const Parameter& p, const std::vector<float>& got,
                            const std::vector<int32_t>& used) {
  std::vector<bool> is_used(p.rows);
  for (const int32_t row : used) is_used[row] = true;
  for (int64_t i = 0; i < p.size(); ++i)
    if (!is_used[i / p.cols] && got[i] != 0)
      FAIL(fmt::format("{}[{}, {}] is {}, but no token used the row", p.name, i / p.cols,
                       i % p.cols, got[i]));
}

const std::string kFolder = "tests/golden/";

// The golden step on one backend.
struct Step {
  GoldenBatch batch;
  std::vector<Parameter> parameters;
  float loss = 0;
  std::vector<std::vector<float>> gradients = {};  // of each parameter
};

std::vector<int32_t> rebased(const std::vector<int32_t>& offsets, int64_t begin, int64_t end) {
  std::vector<int32_t> part(offsets.begin() + begin, offsets.begin() + end + 1);
  const int32_t first = part.front();
  for (int32_t& offset : part) offset -= first;
  return part;
}

Step run_step(Backend& backend, DType type, const Variant& variant) {
  const SafetensorsFile inputs(kFolder + "encoder_backward.safetensors");
  const SafetensorsFile golden(kFolder + "exclude.safetensors");
  const ModelFiles files(kFolder + "tiny_bert");
  const int64_t width = files.colbert().embedding_size;
  Device& device = *backend.device;
  Parameters parameters(device, files.bert(), width, true, type);
  files.load(parameters, device, 1);
  if (type != DType::f32) backend.ops->convert(parameters.copy(), parameters.values());
  Colbert colbert(*backend.ops, files.bert(), width, parameters);
  Step step{.batch = step_batch(inputs, golden, variant.documents),
            .parameters = parameters.list()};
  Operands operands(device);
  Arena arena(device, 1 << 26, "test arena");

  const Sequences sequences = operands.put(step.batch.sequences);
  const Tensor vectors = colbert.forward(sequences, {}, true, arena);
  const Tensor d_vectors = operands.output(vectors.rows(), width);
  const std::vector<int32_t>& offsets = step.batch.sequences.scored_offsets;
  const int64_t split = offsets[kTexts];
  SoloCommunicator solo;
  const auto columns = static_cast<int64_t>(variant.documents.size());
  ContrastiveLoss contrastive(*backend.ops, solo,
                              {.temperature = variant.temperature, .documents_per_query = columns});
  const Tensor loss = operands.zeros(1);
  const ContrastiveBatch parts = {
      .queries = vectors.slice(0, split),
      .documents = vectors.slice(split, vectors.rows()),
      .query_offsets = rebased(offsets, 0, kTexts),
      .document_offsets = rebased(offsets, kTexts, kTexts * (1 + columns))};
  contrastive.gather(parts, arena);
  contrastive.run(parts, 1.0f / kTexts, loss, d_vectors.slice(0, split),
                  d_vectors.slice(split, vectors.rows()), arena);
  colbert.backward(d_vectors, arena);
  step.loss = operands.get(loss).at(0);
  for (const Parameter& p : step.parameters)
    step.gradients.push_back(operands.get(parameters.gradient(p.name)));
  return step;
}

// Token vectors of the golden batch and the gradients of a fixed weighted sum of them. (Not of the
// loss: where two document tokens are nearly equal for a query token, a rounding makes the other
// one win, and the gradient jumps; rounding the weights to bf16 alone moves the loss's gradient by
// 0.2 of its length on the CPU.)
struct Smooth {
  std::vector<float> vectors, gradients;
};

Smooth run_smooth(Backend& backend, DType type) {
  const SafetensorsFile inputs(kFolder + "encoder_backward.safetensors");
  const SafetensorsFile masks(kFolder + "exclude.safetensors");
  const ModelFiles files(kFolder + "tiny_bert");
  const int64_t width = files.colbert().embedding_size;
  Parameters parameters(*backend.device, files.bert(), width, true, type);
  files.load(parameters, *backend.device, 1);
  if (type != DType::f32) backend.ops->convert(parameters.copy(), parameters.values());
  Colbert colbert(*backend.ops, files.bert(), width, parameters);
  const GoldenBatch batch = step_batch(inputs, masks, {"positive", "negative"});
  Operands operands(*backend.device);
  Arena arena(*backend.device, 1 << 26, "test arena");
  const Tensor vectors = colbert.forward(operands.put(batch.sequences), {}, true, arena);
  Smooth result{.vectors = operands.get(vectors), .gradients = {}};
  const Tensor d_vectors =
      operands.put(random_floats(vectors.size(), 1), vectors.rows(), vectors.cols());
  colbert.backward(d_vectors, arena);
  result.gradients = operands.get(parameters.gradients());
  return result;
}

// |a - b| / |b|
double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    square += std::pow(b[i], 2);
  }
  return std::sqrt(difference / square);
}

}  // namespace

TEST_CASE("loss and all gradients of a step are PyLate's", "[model][golden]") {
  const SafetensorsFile golden(kFolder + "exclude.safetensors");
  const nlohmann::ordered_json losses = read_json(kFolder + "exclude.json").at("losses");
  const std::vector<Variant> variants = {
      {"contrastive.t1", 1, {"positive", "negative"}},
      {"contrastive.t005", 0.05f, {"positive", "negative"}},
      {"contrastive.pairs", 1, {"positive"}},
      {"contrastive.2neg", 1, {"positive", "negative", "negative2"}}};
  for (Backend& backend : backends())
    for (const Variant& variant : variants) {
      INFO(backend.name << " " << variant.name);
      const Step step = run_step(backend, DType::f32, variant);
      const double relative = variant.temperature == 1 ? 1e-5 : 1e-4;
      require_close("loss", {step.loss}, {losses.at(variant.name).get<double>()}, 0, relative);
      for (size_t i = 0; i < step.parameters.size(); ++i) {
        const Parameter& p = step.parameters[i];
        const std::vector<float>& got = step.gradients[i];
        require_golden_gradient(golden, variant.name, p, got);
        if (p.name == "embeddings.word_embeddings.weight")
          require_zero_elsewhere(p, got, step.batch.sequences.token_ids);
        if (p.name == "embeddings.position_embeddings.weight")
          require_zero_elsewhere(p, got, step.batch.sequences.positions);
      }
    }
}

// A rounding is off by at most u of the value, u^2 / 3 in the mean square, and errors of roundings
// are independent. Two layers round some 20 times on the way forward and 40 times on the way back:
// sqrt(20 / 3) u = 2.6 u of the vectors' length, sqrt(60 / 3) u = 4.5 u of the gradients'.
TEST_CASE("in 16 bits vectors and gradients stay as near as the roundings let them",
          "[model][golden]") {
  for (Backend& backend : backends()) {
    const Smooth exact = run_smooth(backend, DType::f32);
    REQUIRE(exact.gradients.size() > exact.vectors.size());
    for (const DType type : backend.types) {
      if (type == DType::f32) continue;
      const Smooth got = run_smooth(backend, type);
      const double u = roundoff(type);
      const double vectors = relative_distance(got.vectors, exact.vectors) / u;
      const double gradients = relative_distance(got.gradients, exact.gradients) / u;
      INFO(backend.name << " " << name_of(type) << ": vectors off by " << vectors
                        << " u, gradients by " << gradients << " u");
      CHECK(vectors < 2 * 2.6);
      CHECK(gradients < 2 * 4.5);
      CHECK(vectors > 0.1);  // it did compute in 16 bits
    }
  }
}
