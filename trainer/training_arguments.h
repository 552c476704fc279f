// The flags of ./train. Names and defaults are those of Hugging Face's TrainingArguments and of
// PyLate; where a default differs, its comment says why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/command_line.h"

namespace maxim {

struct TrainingArguments {
  ModelOptions model;  // its seed is that of row order and dropout too
  std::optional<double> hidden_dropout, attention_dropout;  // default: config.json's

  // data
  std::vector<std::string> train_files;
  std::string bad_rows = "error";  // or skip
  int64_t max_bad_rows = -1;
  bool dataloader_drop_last = false;

  // evaluation
  std::string eval_file;      // triplets
  double eval_size = 0;       // rows held out of the training files: a number, or below 1 a share
  std::string eval_beir_dir;  // a BEIR directory
  std::string eval_split = "dev";
  int64_t eval_steps = 0;  // 0: only after the last step
  int64_t per_device_eval_batch_size = 32;
  std::string metric_for_best_model;  // default: ndcg@10 with a BEIR directory, else accuracy
  bool load_best_model_at_end = false;

  // loss
  std::string loss = "contrastive";
  double temperature = 1;
  bool size_average = true;
  // PyLate's default is false; here every query is scored against the documents of all ranks, so
  // that the same global batch trains the same on any number of ranks.
  std::optional<bool> gather_across_devices;
  bool gathers() const { return gather_across_devices.value_or(true); }

  // optimisation
  double num_train_epochs = 3;
  int64_t max_steps = -1;  // > 0 overrides the epochs
  int64_t per_device_train_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 5e-5;
  std::vector<std::string> learning_rate_mapping;  // 'regex=rate'
  double weight_decay = 0;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1;
  std::string lr_scheduler_type = "linear";
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;

  // output
  std::string output_dir;
  std::string run_name;
  bool overwrite_output_dir = false;
  // Hugging Face's default is 500; a line every 10 steps costs nothing here and shows at once that
  // a run learns.
  int64_t logging_steps = 10;
  bool log_row_ids = false;
  int64_t save_steps = 500;      // 0: only the final model
  int64_t save_total_limit = 0;  // 0: all checkpoints are kept

  // running
  bool bf16 = false, fp16 = false;
  DType compute_type() const { return bf16 ? DType::bf16 : fp16 ? DType::f16 : DType::f32; }
  // several ranks
  bool shard_optimizer = false;
  std::string reduce_dtype = "float32";  // of gradients on their way between ranks
  double ddp_bucket_cap_mb = 25;
  int64_t check_sync = 0;  // 0: never
  bool dry_run = false;
};

// Steps are counted in 32 bits by dropout's random numbers.
constexpr int64_t kMostSteps = UINT32_MAX;

void add_training_arguments(CommandLine& line, TrainingArguments& arguments);

// What a single flag's own check cannot see. Throws InputError.
void check_training_arguments(const TrainingArguments& arguments);

// "regex=rate" of --learning_rate_mapping, split at the last '='. Throws InputError.
std::vector<std::pair<std::string, float>> parse_learning_rate_mapping(
    const std::vector<std::string>& mapping);

}  // namespace maxim
