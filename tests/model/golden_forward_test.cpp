// Hidden states and token vectors against PyLate's.
#include "model/colbert.h"
#include "model/encoder.h"
#include "model/model_files.h"
#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/model/golden.h"
#include "tests/reference/compare.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

// Hidden states and unit vectors are of order 1; fp32 sums over 128 to 512 products in another
// order than PyTorch's differ by some 1e-6 (PyTorch's own two attention paths by 3e-6).
constexpr double kBound = 2e-5;

const char* const kTiny = "tests/golden/tiny_bert";

GoldenBatch forward_batch(const SafetensorsFile& file, const std::string& part, int64_t length) {
  GoldenBatch batch;
  batch.append(read_integers(file, part + ".input_ids"),
               read_integers(file, part + ".attention_mask"),
               read_integers(file, part + ".score_mask"), length, part == "q");
  return batch;
}

}  // namespace

TEST_CASE("hidden states of every layer are PyLate's", "[model][golden]") {
  const SafetensorsFile golden("tests/golden/encoder_forward.safetensors");
  const ModelFiles files(kTiny);
  for (Backend& backend : backends()) {
    Parameters parameters(*backend.device, files.bert(), files.colbert().embedding_size, false);
    files.load(parameters, *backend.device, 1);
    for (const std::string part : {"q", "d"})
      for (int64_t layers = 0; layers <= 2; ++layers)
        for (const bool keep : {false, true}) {
          GoldenBatch batch = forward_batch(golden, part, part == "q" ? 16 : 48);
          batch.score_all();
          BertConfig config = files.bert();
          config.num_hidden_layers = layers;  // the first layers of the same model
          Encoder encoder(*backend.ops, config, parameters);
          Operands operands(*backend.device);
          const int64_t rows = batch.sequences.tokens();
          const Tensor hidden = operands.output(rows, config.hidden_size);
          Arena arena(*backend.device, encoder.arena_bytes(rows, keep), "test arena");
          encoder.forward(hidden, operands.put(batch.sequences), {}, keep, arena);
          const std::string name = fmt::format("{}.hidden.{}", part, layers);
          require_close(backend.name + " " + name, operands.get(hidden),
                        to_double(batch.packed(read_floats(golden, name), config.hidden_size)),
                        kBound, 0, config.hidden_size);
        }
  }
}

TEST_CASE("token vectors of tiny_bert are PyLate's", "[model][golden]") {
  const SafetensorsFile golden("tests/golden/encoder_forward.safetensors");
  const ModelFiles files(kTiny);
  const int64_t width = files.colbert().embedding_size;
  REQUIRE(width == 64);
  for (Backend& backend : backends()) {
    Parameters parameters(*backend.device, files.bert(), width, false);
    files.load(parameters, *backend.device, 1);
    Colbert colbert(*backend.ops, files.bert(), width, parameters);
    for (const std::string part : {"q", "d"}) {
      const GoldenBatch batch = forward_batch(golden, part, part == "q" ? 16 : 48);
      Operands operands(*backend.device);
      Arena arena(*backend.device, 1 << 24, "test arena");
      const Tensor vectors = colbert.forward(operands.put(batch.sequences), {}, part == "q", arena);
      require_close(backend.name + " " + part, operands.get(vectors),
                    to_double(batch.scored(read_floats(golden, part + ".embeddings"), width)),
                    kBound, 0, width);
    }
  }
}

TEST_CASE("token vectors of MiniLM are PyLate's", "[model][golden]") {
  const std::string directory = minilm_directory();
  if (directory.empty()) {
    SUCCEED("no MiniLM");
    return;
  }
  const SafetensorsFile golden("tests/golden/minilm_embeddings.safetensors");
  const ModelFiles files(directory);
  CHECK_FALSE(files.has_projection());
  BertConfig config = files.bert();
  REQUIRE(config.vocab_size == 30522);
  config.vocab_size += 2;
  const std::string word = "embeddings.word_embeddings.weight";
  for (Backend& backend : backends()) {
    Parameters parameters(*backend.device, config, 128, false);
    files.load(parameters, *backend.device, 1);
    backend.device->copy_in(parameters.value(word).slice(30522, 30524),
                            read_floats(golden, "prefix_rows").data());
    backend.device->copy_in(parameters.value("1_Dense.linear.weight"),
                            read_floats(golden, "dense.weight").data());
    Colbert colbert(*backend.ops, config, 128, parameters);
    for (const std::string part : {"q", "d"}) {
      const int64_t length = part == "q" ? 32 : 180;
      const auto ids = read_integers(golden, part + ".input_ids");
      const auto attention = read_integers(golden, part + ".attention_mask");
      // Queries: every row is scored. Documents: all keys but punctuation, which no test text of
      // the model room can tell; so all keys are scored here and the punctuation is dropped below.
      const std::vector<int64_t> all(ids.size(), 1);
      GoldenBatch batch;
      batch.append(ids, attention, all, length, part == "q");
      Operands operands(*backend.device);
      Arena arena(*backend.device, 1 << 27, "test arena");
      const Tensor vectors = colbert.forward(operands.put(batch.sequences), {}, false, arena);
      const std::vector<float> got = operands.get(vectors);
      for (int64_t text = 0; text < 8; ++text) {
        std::vector<float> picked;
        for (int32_t row = batch.sequences.offsets[text]; row < batch.sequences.offsets[text + 1];
             ++row) {
          const int32_t id = batch.sequences.token_ids[row];
          const bool skipped =
              part == "d" && ((id >= 999 && id <= 1013) || (id >= 1024 && id <= 1036) ||
                              (id >= 1063 && id <= 1066));
          if (!skipped)
            picked.insert(picked.end(), got.begin() + row * 128, got.begin() + (row + 1) * 128);
        }
        const std::string name = fmt::format("{}.{}.embeddings", part, text);
        const std::vector<float> want = read_floats(golden, name);
        REQUIRE(picked.size() >= want.size());
        picked.resize(want.size());  // the golden file has the first 40 vectors of a text at most
        require_close(backend.name + " " + name, picked, to_double(want), kBound, 0, 128);
      }
    }
  }
}
