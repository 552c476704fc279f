// encode: texts to token vectors, as a safetensors file of what takes part in scoring:
//   embeddings [tokens, dim] float32, unit vectors of all texts, one text after the other
//   offsets [texts + 1] int64, the rows of text i are [offsets[i], offsets[i + 1])
//   input_ids [tokens] int32
#include <algorithm>
#include <vector>

#include "data/beir.h"
#include "runtime/log.h"
#include "runtime/safetensors.h"
#include "trainer/command_line.h"
#include "trainer/encode_texts.h"

namespace {

using namespace maxim;

// Vectors held at a time: 134 MB at 128 columns. The file may be larger than memory.
constexpr int64_t kChunkTokens = 1 << 18;

struct Options {
  ModelOptions model;
  EncodeSettings settings;
  std::string input_file, output_file;
  bool is_query = false;
};

// Writes the file on rank 0 while all ranks encode, chunk by chunk in the order of the texts.
void encode(ModelSession& session, Communicator& communicator,
            const std::vector<std::string>& texts, const Options& options, StagedFile* file) {
  const EncodingPlan plan = plan_encoding(session, texts, options.is_query, options.settings);
  const int64_t count = static_cast<int64_t>(texts.size()), tokens = plan.scored_offsets.back();
  std::unique_ptr<SafetensorsWriter> writer;
  if (file != nullptr)
    writer = std::make_unique<SafetensorsWriter>(
        file->staging(), std::vector<SafetensorsWriter::Item>{
                             {"embeddings", "F32", {tokens, session.config().embedding_size}},
                             {"offsets", "I64", {count + 1}},
                             {"input_ids", "I32", {tokens}}});
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    const auto after = std::upper_bound(plan.scored_offsets.begin(), plan.scored_offsets.end(),
                                        plan.scored_offsets[begin] + kChunkTokens);
    end = std::clamp(after - plan.scored_offsets.begin() - 1, begin + 1, count);
    const EncodedTexts chunk =
        encode_texts(session, communicator, {texts.begin() + begin, texts.begin() + end},
                     options.is_query, options.settings);
    if (writer) writer->write(chunk.vectors.data(), chunk.vectors.size() * sizeof(float));
  }
  if (writer == nullptr) return;
  writer->write(plan.scored_offsets.data(), plan.scored_offsets.size() * sizeof(int64_t));
  writer->write(plan.token_ids.data(), plan.token_ids.size() * sizeof(int32_t));
  writer->finish();
  file->commit();
  log_info(
      "{}: {} texts, {} vectors of {}{}", options.output_file, count, tokens,
      session.config().embedding_size,
      plan.truncated > 0 ? fmt::format("; {} texts were cut at the length", plan.truncated) : "");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine command("encode", "Turns texts into the token vectors of a late-interaction model.");
  command.add_model_options(options.model);
  command.app()
      .add_option("--input_file", options.input_file,
                  "Texts: one a line, or .jsonl with a key text")
      ->required()
      ->group("Data");
  command.app()
      .add_option("--output_file", options.output_file,
                  "safetensors file to write: embeddings, offsets, input_ids")
      ->required()
      ->group("Data");
  command.add_boolean("--is_query", options.is_query, "The texts are queries, not documents")
      ->group("Data");
  command.add_eval_options(options.settings);
  return command.run(argc, argv, [&](World& world) {
    Communicator& communicator = *world.communicator;
    const std::unique_ptr<StagedFile> file =
        stage_output(options.output_file, {options.input_file}, communicator);
    TextFile input;
    communicator.checked([&] { input = read_texts(options.input_file); });
    communicator.demand_same(fingerprint(input));
    const std::unique_ptr<ModelSession> session = open_model(options.model, false, world);
    encode(*session, session->communicator(), input.texts, options, file.get());
    return 0;
  });
}
