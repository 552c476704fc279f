#include "trainer/training_arguments.h"

#include <cmath>

#include "runtime/error.h"
#include "trainer/schedule.h"

namespace maxim {
namespace {

void add_model_flags(CommandLine& line, TrainingArguments& a) {
  line.add_model_options(a.model);
  for (const auto& [name, value] : {std::pair{"--hidden_dropout", &a.hidden_dropout},
                                    std::pair{"--attention_dropout", &a.attention_dropout}})
    line.app()
        .add_option(name, *value, "Default: that of the model's config.json")
        ->check(number_between(0, 0.99))
        ->group("Model");
}

void add_data_flags(CommandLine& line, TrainingArguments& a) {
  const char* group = "Data";
  line.app()
      .add_option("--train_file", a.train_files,
                  "Rows of query, positive, negatives…: .jsonl or .tsv, also .gz; repeatable")
      ->required()
      ->group(group);
  line.app()
      .add_option("--bad_rows", a.bad_rows, "A row that cannot be read: error or skip")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--max_bad_rows", a.max_bad_rows,
                  "With --bad_rows skip: more than this is an error (-1: any number)")
      ->check(whole_number(-1))
      ->capture_default_str()
      ->group(group);
  line.add_boolean("--dataloader_drop_last", a.dataloader_drop_last,
                   "Leave out an epoch's last global batch when it is not full")
      ->group(group);
}

void add_evaluation_flags(CommandLine& line, TrainingArguments& a) {
  const char* group = "Evaluation";
  line.app()
      .add_option("--eval_file", a.eval_file, "Triplets: accuracy of positive over negative")
      ->group(group);
  line.app()
      .add_option(
          "--eval_size", a.eval_size,
          "Hold out this many training rows (below 1: this share) as triplets for evaluation")
      ->check(number_from(0))
      ->group(group);
  line.app()
      .add_option("--eval_beir_dir", a.eval_beir_dir,
                  "BEIR directory: nDCG@10, MRR@10, recall… by exact search")
      ->group(group);
  line.app()
      .add_option("--eval_split", a.eval_split, "qrels/SPLIT.tsv of --eval_beir_dir")
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--eval_steps", a.eval_steps,
                  "Evaluate every so many steps (0: only after the last)")
      ->check(whole_number(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--per_device_eval_batch_size", a.per_device_eval_batch_size,
                  "Texts encoded at a time")
      ->check(whole_number(1))
      ->capture_default_str()
      ->group(group);
  line.add_boolean("--load_best_model_at_end", a.load_best_model_at_end,
                   "The final model is the one with the best metric of all evaluations")
      ->group(group);
  line.app()
      .add_option("--metric_for_best_model", a.metric_for_best_model,
                  "Name of an eval record's metric, greater is better (default: ndcg@10 with "
                  "--eval_beir_dir, else accuracy)")
      ->group(group);
}

void add_loss_flags(CommandLine& line, TrainingArguments& a) {
  const char* group = "Loss";
  line.app()
      .add_option("--loss", a.loss,
                  "contrastive: cross-entropy over the MaxSim scores of all documents of the batch")
      ->check(CLI::IsMember({"contrastive"}))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--temperature", a.temperature,
                  "Scores (sums over query tokens of cosine maxima) are divided by it")
      ->check(number_above(0))
      ->capture_default_str()
      ->group(group);
  line.add_boolean("--size_average", a.size_average,
                   "Mean over the queries of the global batch; false: their sum")
      ->group(group);
  line.add_boolean("--gather_across_devices", a.gather_across_devices,
                   "Score queries against the documents of all ranks; false: of their own rank")
      ->group(group);
}

void add_optimization_flags(CommandLine& line, TrainingArguments& a) {
  const char* group = "Optimization";
  line.app()
      .add_option("--num_train_epochs", a.num_train_epochs, "Passes over the rows")
      ->check(number_above(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--max_steps", a.max_steps, "Optimizer steps; overrides --num_train_epochs")
      ->check(whole_number(-1, kMostSteps))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--per_device_train_batch_size", a.per_device_train_batch_size,
                  "Rows a rank and micro-batch; all ranks' rows are candidates of each other")
      ->check(whole_number(1))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--gradient_accumulation_steps", a.gradient_accumulation_steps,
                  "Micro-batches an optimizer step; they add no candidates")
      ->check(whole_number(1, kMostSteps))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--learning_rate", a.learning_rate, "Peak rate of AdamW")
      ->check(number_from(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--learning_rate_mapping", a.learning_rate_mapping,
                  "'regex=rate': other peak rate for parameters whose name matches; repeatable")
      ->group(group);
  line.app()
      .add_option("--weight_decay", a.weight_decay, "Decoupled; not of biases and LayerNorm")
      ->check(number_from(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--adam_beta1", a.adam_beta1)
      ->check(number_between(0, 1))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--adam_beta2", a.adam_beta2)
      ->check(number_between(0, 1))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--adam_epsilon", a.adam_epsilon)
      ->check(number_above(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--max_grad_norm", a.max_grad_norm, "Clip the global gradient norm (0: do not)")
      ->check(number_from(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--lr_scheduler_type", a.lr_scheduler_type, "Shape of the learning rate")
      ->check(CLI::IsMember(schedule_types()))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--warmup_steps", a.warmup_steps, "Steps of linear warm-up")
      ->check(whole_number(0, kMostSteps))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--warmup_ratio", a.warmup_ratio, "Share of all steps, when --warmup_steps is 0")
      ->check(number_between(0, 1))
      ->capture_default_str()
      ->group(group);
}

void add_output_flags(CommandLine& line, TrainingArguments& a) {
  const char* group = "Output";
  line.app()
      .add_option("--output_dir", a.output_dir,
                  "Gets the final model, checkpoint-STEP directories and metrics.jsonl")
      ->required()
      ->group(group);
  line.app()
      .add_option("--run_name", a.run_name, "Name in the start record (default: the directory's)")
      ->check(valid_utf8())
      ->group(group);
  line.add_boolean(
          "--overwrite_output_dir", a.overwrite_output_dir,
          "Train into a directory that holds an earlier run; its files are replaced one by one")
      ->group(group);
  line.app()
      .add_option("--logging_steps", a.logging_steps, "Steps a record of metrics.jsonl")
      ->check(whole_number(1))
      ->capture_default_str()
      ->group(group);
  line.add_boolean("--log_row_ids", a.log_row_ids,
                   "Add the row numbers of each step since the last record")
      ->group(group);
  line.app()
      .add_option("--save_steps", a.save_steps, "Steps a checkpoint (0: only the final model)")
      ->check(whole_number(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--save_total_limit", a.save_total_limit,
                  "Keep this many checkpoints, and the best (0: all)")
      ->check(whole_number(0))
      ->capture_default_str()
      ->group(group);
}

void add_run_flags(CommandLine& line, TrainingArguments& a) {
  const char* group = "Running";
  line.add_boolean("--bf16", a.bf16,
                   "Compute in bfloat16 on a GPU; weights, optimizer state and sums stay float32")
      ->group(group);
  line.add_boolean("--fp16", a.fp16, "As --bf16 with float16 and dynamic loss scaling")
      ->group(group);
  line.add_boolean("--tf32", a.model.tf32,
                   "Let a GPU round the operands of float32 matrix products to 10 bits of mantissa")
      ->group(group);
  line.add_boolean("--shard_optimizer", a.shard_optimizer,
                   "Each rank keeps and updates its share of the optimizer's state (ZeRO-1)")
      ->group(group);
  line.app()
      .add_option("--reduce_dtype", a.reduce_dtype,
                  "Gradients between ranks: float32, or with --bf16 bfloat16 (half the bytes)")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--ddp_bucket_cap_mb", a.ddp_bucket_cap_mb,
                  "MiB of gradients that are summed over the ranks at a time")
      ->check(number_above(0))
      ->capture_default_str()
      ->group(group);
  line.app()
      .add_option("--check_sync", a.check_sync,
                  "Verify every so many steps that all ranks have the same weights (0: never)")
      ->check(whole_number(0))
      ->capture_default_str()
      ->group(group);
  line.add_boolean("--dry_run", a.dry_run,
                   "Check everything, print the plan of steps and memory, and exit")
      ->group(group);
}

// Training computes in float32. 1/x is what a divisor is used as.
void check_floats(const TrainingArguments& a) {
  const auto refuse = [](const char* flag, double value, const char* reason) {
    fail_input("{} {}: {} in float32, in which training computes", flag, value, reason);
  };
  for (const auto& [flag, value] : {std::pair{"--learning_rate", a.learning_rate},
                                    {"--weight_decay", a.weight_decay},
                                    {"--temperature", a.temperature},
                                    {"--adam_epsilon", a.adam_epsilon},
                                    {"--max_grad_norm", a.max_grad_norm}})
    if (!std::isfinite(static_cast<float>(value))) refuse(flag, value, "infinite");
  for (const auto& [flag, value] :
       {std::pair{"--temperature", a.temperature}, {"--adam_epsilon", a.adam_epsilon}})
    if (!std::isfinite(1 / static_cast<float>(value))) refuse(flag, value, "0");
  if (a.max_grad_norm > 0 && static_cast<float>(a.max_grad_norm) == 0)  // 0 would not clip
    refuse("--max_grad_norm", a.max_grad_norm, "0");
  for (const auto& [flag, value] :
       {std::pair{"--adam_beta1", a.adam_beta1}, {"--adam_beta2", a.adam_beta2}})
    if (static_cast<float>(value) >= 1) refuse(flag, value, "1");
}

}  // namespace

void add_training_arguments(CommandLine& line, TrainingArguments& arguments) {
  add_model_flags(line, arguments);
  add_data_flags(line, arguments);
  add_evaluation_flags(line, arguments);
  add_loss_flags(line, arguments);
  add_optimization_flags(line, arguments);
  add_output_flags(line, arguments);
  add_run_flags(line, arguments);
}

void check_training_arguments(const TrainingArguments& a) {
  const bool evaluates = !a.eval_file.empty() || a.eval_size > 0 || !a.eval_beir_dir.empty();
  if (!a.eval_file.empty() && a.eval_size > 0)
    fail_input("--eval_file and --eval_size exclude each other: one says which triplets to use");
  if (a.eval_size >= 1 && a.eval_size != std::floor(a.eval_size))
    fail_input("--eval_size {}: a whole number of rows, or a share below 1", a.eval_size);
  if (!evaluates && (a.eval_steps > 0 || a.load_best_model_at_end))
    fail_input("{} needs something to evaluate on: --eval_file, --eval_size or --eval_beir_dir",
               a.eval_steps > 0 ? "--eval_steps" : "--load_best_model_at_end");
  if (a.warmup_steps > 0 && a.warmup_ratio > 0)
    fail_input("--warmup_steps {} and --warmup_ratio {} exclude each other", a.warmup_steps,
               a.warmup_ratio);
  if (a.max_bad_rows >= 0 && a.bad_rows != "skip")
    fail_input("--max_bad_rows {} needs --bad_rows skip", a.max_bad_rows);
  check_floats(a);
  if (a.max_steps == 0) fail_input("--max_steps 0: expected at least 1, or -1 for whole epochs");
  if (a.bf16 && a.fp16) fail_input("--bf16 and --fp16 exclude each other");
  if (a.reduce_dtype != "float32" && !a.bf16)
    fail_input("--reduce_dtype {} needs --bf16", a.reduce_dtype);
  if (a.output_dir.empty()) fail_input("--output_dir is empty");
  parse_learning_rate_mapping(a.learning_rate_mapping);
}

std::vector<std::pair<std::string, float>> parse_learning_rate_mapping(
    const std::vector<std::string>& mapping) {
  std::vector<std::pair<std::string, float>> result;
  for (const std::string& entry : mapping) {
    const size_t equals = entry.rfind('=');
    const std::string rate = equals == std::string::npos ? "" : entry.substr(equals + 1);
    char* end = nullptr;
    const float value = std::strtof(rate.c_str(), &end);
    if (equals == 0 || rate.empty() || *end != 0 || !std::isfinite(value) || value < 0)
      fail_input("--learning_rate_mapping '{}': expected 'regex=rate' with a rate of at least 0",
                 entry);
    result.emplace_back(entry.substr(0, equals), value);
  }
  return result;
}

}  // namespace maxim
