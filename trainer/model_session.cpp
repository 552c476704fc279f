#include "trainer/model_session.h"

#include <algorithm>
#include <filesystem>
#include <set>

#if MAXIM_NCCL
#include "comm/nccl_communicator.h"
#endif
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/log.h"

namespace maxim {
namespace {

ColbertConfig with_overrides(ColbertConfig config, const ModelOverrides& overrides) {
  config.query_prefix = overrides.query_prefix.value_or(config.query_prefix);
  config.document_prefix = overrides.document_prefix.value_or(config.document_prefix);
  config.query_length = overrides.query_length.value_or(config.query_length);
  config.document_length = overrides.document_length.value_or(config.document_length);
  config.do_query_expansion = overrides.do_query_expansion.value_or(config.do_query_expansion);
  config.attend_to_expansion_tokens =
      overrides.attend_to_expansion_tokens.value_or(config.attend_to_expansion_tokens);
  config.skiplist_words = overrides.skiplist_words.value_or(config.skiplist_words);
  config.embedding_size = overrides.embedding_size.value_or(config.embedding_size);
  return config;
}

void check_length(const char* name, int64_t length, const BertConfig& bert) {
  if (length > bert.max_position_embeddings)
    fail_input(
        "{} {} is more than the {} positions of this model (max_position_embeddings): choose {} or "
        "less",
        name, length, bert.max_position_embeddings, bert.max_position_embeddings);
}

void check_width(const char* name, int64_t width, const Backend& backend, DType type) {
  const bool odd = width * size_of(type) % 16 != 0;
  const int64_t most = odd ? backend.most_odd_columns : backend.most_columns;
  if (width > most)
    fail_input("{} {} is more than the {} that this device's kernels take{}", name, width, most,
               odd ? " where a row is not a multiple of 16 bytes" : "");
}

// Gives both prefixes an id. A marker that two kinds of text share, or that is [UNK], marks
// nothing.
void add_prefixes(WordPiece& tokenizer, const ColbertConfig& config) {
  int32_t ids[2] = {-1, -2};
  const std::string* prefixes[2] = {&config.query_prefix, &config.document_prefix};
  for (int i = 0; i < 2; ++i) {
    if (prefixes[i]->empty()) continue;
    ids[i] = tokenizer.add_token(*prefixes[i]);
    if (ids[i] == tokenizer.unk())
      fail_input("the prefix '{}' is the token of unknown words: choose another", *prefixes[i]);
  }
  if (ids[0] == ids[1] && *prefixes[0] != *prefixes[1])
    fail_input("the prefixes '{}' and '{}' are the same token, {}: choose two", *prefixes[0],
               *prefixes[1], ids[0]);
}

// What the ranks have to agree on before they share weights: number of parameters, the texts that
// describe model and tokenizer, and the files of weights (90 MB are hashed in 50 ms).
std::string model_facts(const std::string& directory, const std::string& tokenizer_directory,
                        const Parameters& parameters) {
  namespace fs = std::filesystem;
  std::set<fs::path> files;
  std::error_code no_such_directory;
  for (const std::string& place : {directory, directory + "/1_Dense", tokenizer_directory})
    for (const auto& entry : fs::directory_iterator(place, no_such_directory))
      if (const fs::path kind = entry.path().extension();
          kind == ".json" || kind == ".txt" || kind == ".safetensors")
        files.insert(entry.path());
  std::string facts = fmt::format("{}: {} parameters\n", directory, parameters.count());
  for (const fs::path& file : files)
    facts += fmt::format("{}: hash {:x}\n", file.string(),
                         std::hash<std::string_view>()(MappedFile(file).text()));
  return facts;
}

}  // namespace

ModelSession::ModelSession(const ModelOptions& options, bool with_gradients)
    : backend_(make_backend(options.device, options.tf32, options.local_rank)),
      files_(options.model_name_or_path),
      tokenizer_(WordPiece::load(files_.tokenizer_directory())),
      bert_(files_.bert()),
      config_(with_overrides(files_.colbert(), options.overrides)) {
  check_length("query_length", config_.query_length, bert_);
  check_length("document_length", config_.document_length, bert_);
  check_width("hidden_size", bert_.hidden_size, backend_, options.compute_type);
  check_width("embedding_size", config_.embedding_size, backend_, options.compute_type);
  if (tokenizer_.size() > bert_.vocab_size)
    fail_input("{}: the tokenizer has ids up to {}, but the word embedding has {} rows",
               files_.tokenizer_directory(), tokenizer_.size() - 1, bert_.vocab_size);
  add_prefixes(tokenizer_, config_);
  bert_.vocab_size = std::max<int64_t>(bert_.vocab_size, tokenizer_.size());
  text_encoder_ = std::make_unique<TextEncoder>(
      tokenizer_, TextSettings{.query_prefix = config_.query_prefix,
                               .document_prefix = config_.document_prefix,
                               .query_length = config_.query_length,
                               .document_length = config_.document_length,
                               .do_query_expansion = config_.do_query_expansion,
                               .attend_to_expansion_tokens = config_.attend_to_expansion_tokens,
                               .skiplist_words = config_.skiplist_words});
  parameters_ = std::make_unique<Parameters>(device(), bert_, config_.embedding_size,
                                             with_gradients, options.compute_type);
  files_.load(*parameters_, device(), options.seed);
  colbert_ = std::make_unique<Colbert>(ops(), bert_, config_.embedding_size, *parameters_);
  for (const auto* lines : {&files_.warnings(), &tokenizer_.warnings(), &text_encoder_->warnings()})
    warnings_.insert(warnings_.end(), lines->begin(), lines->end());
}

void ModelSession::connect(Communicator& host, [[maybe_unused]] double seconds) {
  communicator_ = &host;
  if (host.size() == 1) return;
  host.demand_same(on_gpu() ? "--device: a GPU" : "--device: the CPU");
  if (!on_gpu()) return;
#if MAXIM_NCCL
  device_communicator_ = make_nccl_communicator(device(), host, seconds);
  communicator_ = device_communicator_.get();
#else
  fail_input("several ranks on GPUs need NCCL, which this build lacks: use --device cpu");
#endif
}

void ModelSession::broadcast() {
  communicator_->broadcast(parameters_->values(), 0);
  if (!parameters_->copy().absent()) ops().convert(parameters_->copy(), parameters_->values());
}

void ModelSession::save(const std::string& directory) {
  save_model(directory, bert_, config_, *parameters_, device());
  tokenizer_.save(directory);
}

Sequences ModelSession::upload(const TokenBatch& batch, Arena& arena) {
  const auto copy = [&](const auto& host, const char* purpose) {
    using Element = typename std::decay_t<decltype(host)>::value_type;
    const Tensor tensor =
        arena.take(DTypeOf<Element>::value, static_cast<int64_t>(host.size()), purpose);
    device().copy_in(tensor, host.data());
    return tensor;
  };
  return {.token_ids = copy(batch.token_ids, "token ids"),
          .positions = copy(batch.positions, "positions"),
          .sequence_of = copy(batch.sequence_of, "sequence numbers"),
          .offsets = copy(batch.offsets, "sequence offsets"),
          .key_counts = copy(batch.key_counts, "key counts"),
          .random_rows = copy(batch.random_rows, "dropout rows"),
          .random_columns = copy(batch.random_columns, "dropout columns"),
          .scored_rows = copy(batch.scored_rows, "scored rows"),
          .scored_offsets = copy(batch.scored_offsets, "scored offsets"),
          .longest = batch.longest};
}

int64_t ModelSession::upload_bytes(const BatchLimits& limits) const {
  // Nine pieces of four-byte elements, each rounded up to the arena's 256 bytes.
  return 4 * (3 * limits.tokens + 5 * (limits.sequences + 1) + limits.scored) + 9 * 256;
}

std::unique_ptr<ModelSession> open_model(const ModelOptions& options, bool with_gradients,
                                         World& world) {
  Communicator& communicator = *world.communicator;
  std::unique_ptr<ModelSession> session;
  ModelOptions chosen = options;
  chosen.local_rank = world.local_rank;
  communicator.checked([&] {
    session = std::make_unique<ModelSession>(chosen, with_gradients);
    if (!session->on_gpu() && options.compute_type != DType::f32)
      fail_input("{} needs a GPU; this run is on the CPU",
                 options.compute_type == DType::bf16 ? "--bf16" : "--fp16");
  });
  std::string facts;
  communicator.checked([&] {
    if (communicator.size() > 1)  // all files are read for it
      facts = model_facts(options.model_name_or_path, session->tokenizer_directory(),
                          session->parameters());
  });
  communicator.demand_same(facts);
  session->connect(communicator, world.timeout);
  session->broadcast();
  for (const std::string& warning : session->warnings()) log_warning("{}", warning);
  log_info("{}: {}, {} layers, hidden size {}, embedding size {}", options.model_name_or_path,
           session->format(), session->bert().num_hidden_layers, session->bert().hidden_size,
           session->config().embedding_size);
  if (session->has_new_projection())
    log_warning("{}: has no projection, a random one is made from seed {}",
                options.model_name_or_path, options.seed);
  return session;
}

}  // namespace maxim
