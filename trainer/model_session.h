// A model that can turn texts into token vectors: the files, the tokenizer, the weights and the
// operations, opened together and checked against each other. Training, evaluation, encoding and
// search all start here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "data/token_batch.h"
#include "data/wordpiece.h"
#include "kernels/backend.h"
#include "model/bert_config.h"
#include "model/colbert.h"
#include "model/model_files.h"
#include "model/parameters.h"
#include "runtime/device.h"

namespace maxim {

// What the command line says instead of the model's own ColbertConfig; unset: the model's.
struct ModelOverrides {
  std::optional<std::string> query_prefix, document_prefix;  // "": no prefix token
  std::optional<int64_t> query_length, document_length;
  std::optional<bool> do_query_expansion, attend_to_expansion_tokens;
  std::optional<std::vector<std::string>> skiplist_words;
  std::optional<int64_t> embedding_size;
};

struct ModelOptions {
  std::string model_name_or_path;
  ModelOverrides overrides;
  uint64_t seed = 42;           // of a projection and prefix rows that the model does not have yet
  std::string device = "auto";  // see make_backend
  int local_rank = 0;           // of this rank among those of its host
  bool tf32 = false;
  DType compute_type = DType::f32;  // of activations and matrix products; 16 bits need a GPU
};

class ModelSession {
 public:
  // Opens the directory, adds prefix tokens the tokenizer lacks (and the rows of the word
  // embedding for them), loads the weights. Throws InputError when a file is wrong (see ModelFiles
  // and WordPiece::load), when a length exceeds max_position_embeddings (both numbers named), when
  // both prefixes are the same token under two names, when embedding_size is not that of the
  // model's projection. Parameters have gradients when `with_gradients`.
  ModelSession(const ModelOptions& options, bool with_gradients);
  ModelSession(const ModelSession&) = delete;

  // Chooses the communicator for tensors of the session's device: `host` on the CPU and in a single
  // process, else NCCL with `host` for its host messages. Throws InputError when some ranks have a
  // GPU and some have not. On a GPU a rank waits for the others for `seconds` at most. Collective;
  // `host` outlives the session.
  void connect(Communicator& host, double seconds);
  Communicator& communicator() { return *communicator_; }
  // Makes the weights of rank 0 those of all ranks. Collective, after connect().
  void broadcast();

  // Writes model and tokenizer into an existing directory; whoever calls stages it. Loads back to
  // the same vectors, here and in PyLate.
  void save(const std::string& directory);

  // Copies a host batch into `arena`; upload_bytes is what that takes for a batch within `limits`.
  Sequences upload(const TokenBatch& batch, Arena& arena);
  int64_t upload_bytes(const BatchLimits& limits) const;

  Device& device() { return *backend_.device; }
  Ops& ops() { return *backend_.ops; }
  bool on_gpu() const { return backend_.device->name() != "cpu"; }
  Parameters& parameters() { return *parameters_; }
  Colbert& colbert() { return *colbert_; }
  const TextEncoder& text_encoder() const { return *text_encoder_; }
  const WordPiece& tokenizer() const { return tokenizer_; }
  const BertConfig& bert() const { return bert_; }         // vocab_size includes the new rows
  const ColbertConfig& config() const { return config_; }  // overrides applied
  const std::string& format() const { return files_.format(); }
  const std::string& tokenizer_directory() const { return files_.tokenizer_directory(); }
  bool has_new_projection() const { return !files_.has_projection(); }
  // Of tokenizer and prefixes, one line each, for the start log.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Backend backend_;
  std::unique_ptr<Communicator> device_communicator_;  // of several ranks on GPUs
  Communicator* communicator_ = nullptr;
  ModelFiles files_;
  WordPiece tokenizer_;
  BertConfig bert_;
  ColbertConfig config_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Colbert> colbert_;
  std::unique_ptr<TextEncoder> text_encoder_;
  std::vector<std::string> warnings_;
};

// Opens a model on all ranks, connected, with the weights of rank 0, and logs what it is, its
// warnings, and whether the projection is new. Collective.
std::unique_ptr<ModelSession> open_model(const ModelOptions& options, bool with_gradients,
                                         World& world);

}  // namespace maxim
