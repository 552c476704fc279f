#include "trainer/training_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "data/batch_loader.h"
#include "data/beir.h"
#include "data/training_data.h"
#include "runtime/fault.h"
#include "runtime/log.h"
#include "trainer/check_sync.h"
#include "trainer/command_line.h"
#include "trainer/evaluators.h"
#include "trainer/metrics_log.h"
#include "trainer/output_directory.h"
#include "trainer/progress_bar.h"
#include "trainer/schedule.h"
#include "trainer/train_step.h"

namespace maxim {
namespace {

using Json = nlohmann::ordered_json;

class Timer {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Counts over the steps of this rank; `rows` are those of all ranks.
struct Counts {
  int64_t rows = 0, tokens = 0;
  int64_t truncated_queries = 0, truncated_documents = 0, unknown_tokens = 0;
  double train_seconds = 0;          // in steps; evaluation and saving left out
  double wait_seconds = 0;           // of those, for the next batch
  double communication_seconds = 0;  // of those, in collectives, not hidden under computation
  int64_t bytes_sent = 0;            // by this rank in steps
  void add(const LoadedStep& step) {
    rows += step.global_rows;
    wait_seconds += step.wait_seconds;
    for (const LoadedMicroBatch& batch : step.micro_batches) {
      tokens += batch.tokens.tokens();
      truncated_queries += batch.tokens.truncated_queries;
      truncated_documents += batch.tokens.truncated_documents;
      unknown_tokens += batch.tokens.unknown_tokens;
    }
  }
};

class TrainingRun {
 public:
  TrainingRun(World& world, const TrainingArguments& arguments)
      : world_(world), comm_(*world.communicator), args_(arguments) {}
  int run();

 private:
  void open_data();
  void open_model();
  void choose_metric();
  void check_batch_size() const;
  void plan_steps();
  SamplerSettings sampler_settings() const;
  TrainStepSettings step_settings() const;
  void print_plan() const;
  void write_start_record();
  bool train();  // false: stopped by a signal
  void save_stopped(int64_t step);
  void log_steps(int64_t step, const StepMetrics& step_metrics);
  void evaluate(int64_t step);
  void check_trained() const;
  void save_checkpoint(int64_t step);
  void save_final();
  void write_end_record();

  double epoch_of(int64_t step) const {
    return static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
  }
  bool is_main() const { return world_.rank == 0; }
  int64_t global_batch() const { return args_.per_device_train_batch_size * world_.size; }

  World& world_;
  Communicator& comm_;
  const TrainingArguments& args_;
  Timer timer_;

  std::unique_ptr<TrainingData> data_, eval_data_;
  std::unique_ptr<ModelSession> session_;
  std::optional<RetrievalSet> retrieval_;
  std::unique_ptr<OutputDirectory> output_;  // rank 0
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<Sampler> row_ids_;  // rank 0, --log_row_ids
  std::unique_ptr<ProgressBar> progress_;

  Schedule schedule_;
  int64_t steps_per_epoch_ = 0, total_steps_ = 0;
  int64_t held_out_ = 0;
  Counts counts_, recorded_;  // so far, and at the last step record
  double last_loss_ = 0;
  StepMetrics last_metrics_;  // of the last step record
  int64_t last_logged_ = 0;   // steps at it
  Json unrecorded_row_ids_ = Json::array();
  std::string best_metric_;
  double best_value_ = -1;
  int64_t best_step_ = -1;
};

void TrainingRun::open_data() {
  const Timer timer;
  const TrainingDataOptions options{.skip_bad_rows = args_.bad_rows == "skip",
                                    .max_bad_rows = args_.max_bad_rows};
  comm_.checked([&] {
    data_ = std::make_unique<TrainingData>(args_.train_files, options);
    if (args_.eval_size > 0) {
      const int64_t rows = data_->rows();
      const double share = args_.eval_size < 1 ? static_cast<double>(rows) : 1;
      const double wanted = std::ceil(args_.eval_size * share);
      if (wanted >= static_cast<double>(rows))
        fail_input("--eval_size {}: the training files have only {} rows", args_.eval_size, rows);
      held_out_ = static_cast<int64_t>(wanted);
      eval_data_ = std::make_unique<TrainingData>(data_->hold_out(held_out_, args_.model.seed));
    }
    if (!args_.eval_file.empty())
      eval_data_ = std::make_unique<TrainingData>(std::vector{args_.eval_file}, options);
    if (eval_data_ != nullptr && eval_data_->documents_per_query() < 2)
      fail_input("{}: accuracy needs rows of query, positive and negative; these have no negative",
                 args_.eval_file.empty() ? "--eval_size" : args_.eval_file);
    if (!args_.eval_beir_dir.empty()) retrieval_ = read_beir(args_.eval_beir_dir, args_.eval_split);
    choose_metric();
  });
  comm_.demand_same(data_->fingerprint() +
                    (args_.eval_file.empty() ? "" : eval_data_->fingerprint()) +
                    (retrieval_ ? fingerprint(*retrieval_) : ""));
  for (const std::string& warning : data_->warnings()) log_warning("{}", warning);
  if (!args_.eval_file.empty())
    for (const std::string& warning : eval_data_->warnings())
      log_warning("{}: {}", args_.eval_file, warning);
  log_info("data: {} rows in {:.1f} s; {}", data_->rows(), timer.seconds(), data_->description());
}

void TrainingRun::open_model() {
  const Timer timer;
  ModelOptions options = args_.model;
  options.compute_type = args_.compute_type();
  session_ = maxim::open_model(options, /*with_gradients=*/true, world_);
  log_info("model: {:.1f} M parameters, in {:.1f} s",
           static_cast<double>(session_->parameters().count()) / 1e6, timer.seconds());
}

void TrainingRun::choose_metric() {
  Metrics metrics;  // for their names: those of a perfect ranking of one document
  if (retrieval_) metrics = retrieval_metrics({{0}}, {{{0, 1}}});
  if (eval_data_ != nullptr) metrics.emplace_back("accuracy", 0);
  if (metrics.empty()) return;
  best_metric_ =
      args_.metric_for_best_model.empty() ? metrics[0].first : args_.metric_for_best_model;
  std::string names;
  for (const auto& [name, value] : metrics) {
    if (name == best_metric_) return;
    names += " " + name;
  }
  fail_input("--metric_for_best_model {}: no such metric; there are:{}", best_metric_, names);
}

SamplerSettings TrainingRun::sampler_settings() const {
  return {.rows = data_->rows(),
          .per_device_batch = args_.per_device_train_batch_size,
          .accumulation = args_.gradient_accumulation_steps,
          .rank = world_.rank,
          .world_size = world_.size,
          .seed = args_.model.seed,
          .shuffle = true,
          .drop_last = args_.dataloader_drop_last};
}

TrainStepSettings TrainingRun::step_settings() const {
  const BertConfig& bert = session_->bert();
  TrainStepSettings settings;
  settings.loss = {.temperature = static_cast<float>(args_.temperature),
                   .gather_across_devices = args_.gathers(),
                   .documents_per_query = data_->documents_per_query()};
  settings.optimizer = {
      .learning_rate = static_cast<float>(args_.learning_rate),
      .weight_decay = static_cast<float>(args_.weight_decay),
      .beta1 = static_cast<float>(args_.adam_beta1),
      .beta2 = static_cast<float>(args_.adam_beta2),
      .epsilon = static_cast<float>(args_.adam_epsilon),
      .max_grad_norm = static_cast<float>(args_.max_grad_norm),
      .learning_rate_mapping = parse_learning_rate_mapping(args_.learning_rate_mapping)};
  settings.reducer.bucket_bytes = static_cast<int64_t>(
      std::clamp(args_.ddp_bucket_cap_mb * (1 << 20), 1.0, 1e15));  // a bucket has a unit at least
  settings.reducer.first_bucket_bytes =
      std::min(settings.reducer.first_bucket_bytes, settings.reducer.bucket_bytes);
  settings.reducer.wire = args_.reduce_dtype == "bfloat16" ? DType::bf16 : DType::f32;
  settings.reducer.sharded = args_.shard_optimizer;
  settings.size_average = args_.size_average;
  settings.dropout.hidden =
      static_cast<float>(args_.hidden_dropout.value_or(bert.hidden_dropout_prob));
  settings.dropout.attention =
      static_cast<float>(args_.attention_dropout.value_or(bert.attention_probs_dropout_prob));
  settings.dropout.seed = args_.model.seed;
  settings.per_device_batch = args_.per_device_train_batch_size;
  settings.metrics_capacity = std::min(args_.logging_steps, total_steps_);
  return settings;
}

// Tokens of the documents and queries that one rank may hold are counted in 31 bits.
void TrainingRun::check_batch_size() const {
  const ColbertConfig& config = session_->config();
  const int64_t row = config.query_length + data_->documents_per_query() * config.document_length;
  const int64_t most = INT32_MAX / row / (args_.gathers() ? world_.size : 1);
  if (args_.per_device_train_batch_size > most)
    fail_input("--per_device_train_batch_size {}: at most {} rows of up to {} tokens on {} ranks",
               args_.per_device_train_batch_size, most, row, world_.size);
}

void TrainingRun::plan_steps() {
  comm_.checked([&] {
    check_batch_size();
    const Sampler sampler(sampler_settings());
    steps_per_epoch_ = sampler.steps_per_epoch();
    const double epoch_steps =
        std::ceil(args_.num_train_epochs * static_cast<double>(steps_per_epoch_));
    if (args_.max_steps <= 0 && epoch_steps > kMostSteps)
      fail_input("--num_train_epochs {}: more than {} steps", args_.num_train_epochs, kMostSteps);
    total_steps_ = args_.max_steps > 0 ? args_.max_steps : static_cast<int64_t>(epoch_steps);
    schedule_ = {.type = args_.lr_scheduler_type,
                 .warmup_steps = args_.warmup_steps > 0
                                     ? args_.warmup_steps
                                     : static_cast<int64_t>(std::ceil(
                                           args_.warmup_ratio * static_cast<double>(total_steps_))),
                 .total_steps = total_steps_};
    step_ = std::make_unique<TrainStep>(*session_, session_->communicator(), step_settings());
    if (args_.log_row_ids && is_main()) row_ids_ = std::make_unique<Sampler>(sampler_settings());
  });
  if (args_.gather_across_devices.value_or(false) && world_.size == 1)
    log_warning(
        "--gather_across_devices: there is only one process, so there is nothing to gather");
}

void TrainingRun::print_plan() const {
  const int64_t documents = data_->documents_per_query();
  const int64_t candidates =
      documents * (args_.gathers() ? global_batch() : args_.per_device_train_batch_size);
  log_info(
      "{} rank(s) with {} thread(s), {} rows each: global batch {}, {} candidates ({} negatives) a "
      "query{}",
      world_.size, world_.threads, args_.per_device_train_batch_size, global_batch(), candidates,
      candidates - 1,
      args_.gradient_accumulation_steps > 1
          ? fmt::format("; {} such batches a step, which add no candidates",
                        args_.gradient_accumulation_steps)
          : "");
  log_info("{} steps, {} an epoch", total_steps_, steps_per_epoch_);
}

void TrainingRun::write_start_record() {
  const std::vector<std::string> hosts = comm_.all_gather_text(world_.host);
  const std::vector<std::string> devices = comm_.all_gather_text(session_->device().name());
  const int64_t documents = data_->documents_per_query();
  Json memory;
  for (const auto& [purpose, bytes] : step_->memory_plan()) memory[purpose] = bytes;
  metrics_->write(
      {{"type", "start"},
       {"version", kVersion},
       {"run_name", args_.run_name.empty()
                        ? std::filesystem::path(args_.output_dir).filename().string()
                        : args_.run_name},
       {"ranks", world_.size},
       {"threads_per_rank", world_.threads},
       {"hosts", hosts},
       {"devices", devices},
       {"gemm_library", session_->ops().gemm_library()},
       {"model", args_.model.model_name_or_path},
       {"model_format", session_->format()},
       {"parameters", session_->parameters().count()},
       {"rows", data_->rows()},
       {"rows_rejected", data_->rejected()},
       {"rows_held_out", held_out_},
       {"eval_rows", eval_data_ == nullptr ? 0 : eval_data_->rows()},
       {"eval_rows_rejected", args_.eval_file.empty() ? 0 : eval_data_->rejected()},
       {"documents_per_query", documents},
       {"global_batch_size", global_batch()},
       {"gradient_accumulation_steps", args_.gradient_accumulation_steps},
       {"candidates_per_query",
        documents * (args_.gathers() ? global_batch() : args_.per_device_train_batch_size)},
       {"steps", total_steps_},
       {"steps_per_epoch", steps_per_epoch_},
       {"warmup_steps", schedule_.warmup_steps},
       {"learning_rate", args_.learning_rate},
       {"temperature", args_.temperature},
       {"query_length", session_->config().query_length},
       {"document_length", session_->config().document_length},
       {"seed", args_.model.seed},
       {"memory_bytes", memory},
       {"start_up_seconds", timer_.seconds()}});
}

void TrainingRun::log_steps(int64_t step, const StepMetrics& step_metrics) {
  double loss = 0;
  for (double value : step_metrics.losses) loss += value;
  last_loss_ = loss / static_cast<double>(step_metrics.losses.size());
  const double tokens = comm_.sum_host({static_cast<double>(counts_.tokens - recorded_.tokens)})[0];
  const double seconds = counts_.train_seconds - recorded_.train_seconds;
  const int64_t rows = counts_.rows - recorded_.rows;
  const double rate = args_.learning_rate * learning_rate_factor(schedule_, step);
  const double rows_per_second = static_cast<double>(rows) / seconds;
  Json record = {{"type", "step"},
                 {"step", step + 1},
                 {"epoch", epoch_of(step + 1)},
                 {"loss", last_loss_},
                 {"learning_rate", rate},
                 {"grad_norm", step_metrics.gradient_norm},
                 {"rows", rows},
                 {"tokens", static_cast<int64_t>(tokens)},
                 {"tokens_per_second", tokens / seconds},
                 {"rows_per_second", rows_per_second},
                 {"data_wait_share", (counts_.wait_seconds - recorded_.wait_seconds) / seconds},
                 {"communication_share",
                  (counts_.communication_seconds - recorded_.communication_seconds) / seconds},
                 {"bytes_sent", counts_.bytes_sent - recorded_.bytes_sent},
                 {"skipped_steps", step_metrics.skipped_steps}};
  if (row_ids_ != nullptr) record["row_ids"] = unrecorded_row_ids_;
  metrics_->write(record);
  progress_->report(step + 1, last_loss_, rate, rows_per_second);
  const int64_t skipped = step_metrics.skipped_steps - last_metrics_.skipped_steps;
  if (skipped > 0 || !std::isfinite(last_loss_)) {
    progress_->clear();
    log_warning("step {}: loss {}; {} of the last {} steps had no finite gradient and were skipped",
                step + 1, last_loss_, skipped, step + 1 - last_logged_);
  }
  last_metrics_ = step_metrics;
  last_logged_ = step + 1;
  recorded_ = counts_;
  unrecorded_row_ids_ = Json::array();
}

bool TrainingRun::train() {
  progress_ = std::make_unique<ProgressBar>(total_steps_, is_main());
  BatchLoader loader(*data_, session_->text_encoder(), Sampler(sampler_settings()), 0,
                     total_steps_);
  for (int64_t step = 0; step < total_steps_; ++step) {
    if (!world_.lifeline->begin_step(step)) {
      save_stopped(step);
      return false;
    }
    fault_before_step(step);
    const Timer timer;
    const LoadedStep& loaded = loader.next();
    const Communicator& communicator = session_->communicator();
    const double communicated = communicator.seconds();
    const int64_t sent = communicator.bytes_sent();
    step_->run(loaded, step, learning_rate_factor(schedule_, step));
    counts_.add(loaded);
    counts_.communication_seconds += communicator.seconds() - communicated;
    counts_.bytes_sent += communicator.bytes_sent() - sent;
    if (row_ids_ != nullptr) {
      Json ids = Json::array();
      for (int64_t row : row_ids_->global_rows(step)) ids.push_back(data_->row_number(row));
      unrecorded_row_ids_.push_back(ids);
    }
    progress_->advance(step + 1, last_loss_);

    const int64_t done = step + 1;
    const bool last = done == total_steps_;
    const bool log = done % args_.logging_steps == 0 || last;
    StepMetrics metrics;
    if (log) metrics = step_->read_metrics();  // waits for the device
    counts_.train_seconds += timer.seconds();
    if (log) log_steps(step, metrics);
    if (args_.check_sync > 0 && done % args_.check_sync == 0)
      check_sync(session_->parameters(), session_->device(), comm_, done);
    if (last) break;
    if (args_.eval_steps > 0 && done % args_.eval_steps == 0) evaluate(done);
    if (args_.save_steps > 0 && done % args_.save_steps == 0) save_checkpoint(done);
  }
  progress_->clear();
  return true;
}

// `step` steps are done.
void TrainingRun::save_stopped(int64_t step) {
  progress_->clear();
  if (step > 0) save_checkpoint(step);
  metrics_->write({{"type", "stop"}, {"step", step}, {"signal", world_.lifeline->stopped_by()}});
  log_warning("stopped by signal {} after {} of {} steps{}", world_.lifeline->stopped_by(), step,
              total_steps_, step > 0 ? fmt::format("; saved in checkpoint-{}", step) : "");
}

void TrainingRun::evaluate(int64_t step) {
  if (eval_data_ == nullptr && !retrieval_) return;
  progress_->clear();
  const Timer timer;
  Json metrics;
  const EncodeSettings settings{.batch_size = args_.per_device_eval_batch_size};
  const auto add = [&](const Metrics& values) {
    for (const auto& [name, value] : values) metrics[name] = value;
  };
  if (eval_data_ != nullptr)
    add(evaluate_triplets(*session_, session_->communicator(), *eval_data_, settings));
  if (retrieval_)
    add(evaluate_retrieval(*session_, session_->communicator(), *retrieval_, settings));
  const double value = metrics[best_metric_];
  const bool best = value > best_value_;
  if (best) {
    best_value_ = value;
    best_step_ = step;
  }
  Json record = {{"type", "eval"}, {"step", step}, {"epoch", epoch_of(step)}};
  record.update(metrics);
  record["seconds"] = timer.seconds();
  metrics_->write(record);
  log_info("step {}: {} {:.4f}{} ({:.1f} s)", step, best_metric_, value,
           best ? ", the best so far" : "", timer.seconds());
  // The best model has to be on disk when the run ends with it; the last step's is there already.
  if (best && args_.load_best_model_at_end && step != total_steps_) save_checkpoint(step);
}

// Throws Error when the last record says that there is nothing worth saving. Weights that are not
// finite are refused by save_model.
void TrainingRun::check_trained() const {
  if (last_logged_ == 0) return;
  if (!std::isfinite(last_metrics_.losses.back()))
    fail(
        "the loss of step {} is {}: the model is broken and is not saved (is --learning_rate {} "
        "too high?)",
        last_logged_, last_metrics_.losses.back(), args_.learning_rate);
  if (last_metrics_.skipped_steps == last_logged_)
    fail("none of the {} steps had a finite gradient: nothing was trained, nothing is saved",
         last_logged_);
}

void TrainingRun::save_checkpoint(int64_t step) {
  comm_.checked([&] {
    check_trained();
    if (!is_main()) return;
    output_->save_checkpoint(step, args_.save_total_limit, best_step_,
                             [&](const std::string& directory) { session_->save(directory); });
  });
}

// The model is saved before it is evaluated, so that what fails there (memory, the disk) loses no
// training; a better one of an earlier step takes its place.
void TrainingRun::save_final() {
  comm_.checked([&] {
    check_trained();
    if (is_main())
      output_->save_final([&](const std::string& directory) { session_->save(directory); });
  });
  evaluate(total_steps_);
  if (!args_.load_best_model_at_end || best_step_ == total_steps_) return;
  comm_.checked([&] {
    if (!is_main()) return;
    log_info("the best model is that of step {} ({} {:.4f})", best_step_, best_metric_,
             best_value_);
    output_->save_final([&](const std::string& directory) {
      std::filesystem::copy(output_->checkpoint(best_step_), directory,
                            std::filesystem::copy_options::recursive);
    });
  });
}

void TrainingRun::write_end_record() {
  const std::vector<double> sums = comm_.sum_host(
      {static_cast<double>(counts_.tokens), static_cast<double>(counts_.truncated_queries),
       static_cast<double>(counts_.truncated_documents),
       static_cast<double>(counts_.unknown_tokens),
       [] {
         rusage usage{};
         getrusage(RUSAGE_SELF, &usage);
         return static_cast<double>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
       }(),
       static_cast<double>(session_->device().allocated_bytes())});
  // The tails that --dataloader_drop_last left out, one for each whole epoch.
  const int64_t dropped = (data_->rows() - Sampler(sampler_settings()).rows_per_epoch()) *
                          (total_steps_ / steps_per_epoch_);
  const auto whole = [&](int i) { return static_cast<int64_t>(sums[i]); };
  const int64_t documents = counts_.rows * data_->documents_per_query();
  metrics_->write({{"type", "end"},
                   {"steps", total_steps_},
                   {"rows_read", data_->rows_read()},
                   {"rows_trained", counts_.rows},
                   {"rows_dropped", dropped},
                   {"rows_rejected", data_->rejected()},
                   {"rows_held_out", held_out_},
                   {"queries_truncated", whole(1)},
                   {"documents_truncated", whole(2)},
                   {"unknown_tokens", whole(3)},
                   {"tokens", whole(0)},
                   {"seconds", timer_.seconds()},
                   {"train_seconds", counts_.train_seconds},
                   {"communication_share", counts_.communication_seconds / counts_.train_seconds},
                   {"bytes_sent", counts_.bytes_sent},
                   {"tokens_per_second", sums[0] / counts_.train_seconds},
                   {"rows_per_second", static_cast<double>(counts_.rows) / counts_.train_seconds},
                   {"peak_memory_bytes", whole(4)},  // of the processes
                   {"device_memory_bytes", whole(5)},
                   {"best_step", best_step_ < 0 ? Json() : Json(best_step_)}});
  log_info(
      "{} rows trained in {} steps, {:.1f} s; truncated: {:.1f}% of queries, {:.1f}% of documents; "
      "unknown tokens {:.2f}%; peak memory {:.2f} GiB{}",
      counts_.rows, total_steps_, timer_.seconds(),
      100.0 * sums[1] / static_cast<double>(counts_.rows),
      100.0 * sums[2] / static_cast<double>(documents), 100.0 * sums[3] / std::max(1.0, sums[0]),
      sums[4] / (1 << 30),
      session_->on_gpu() ? fmt::format(", on the GPUs {:.2f} GiB", sums[5] / (1 << 30)) : "");
}

int TrainingRun::run() {
  check_training_arguments(args_);
  world_.lifeline->stop_on_signals();
  comm_.checked([&] {  // before the work of loading; it changes nothing that was saved
    if (is_main() && !args_.dry_run)
      output_ = std::make_unique<OutputDirectory>(args_.output_dir, args_.overwrite_output_dir);
  });
  open_data();
  open_model();
  plan_steps();
  print_plan();
  if (args_.dry_run) {
    for (const auto& [purpose, bytes] : step_->memory_plan())
      log_info("{:<30} {:>10.1f} MiB a rank", purpose, static_cast<double>(bytes) / (1 << 20));
    return 0;
  }
  comm_.checked(
      [&] { metrics_ = std::make_unique<MetricsLog>(is_main() ? output_->metrics_file() : ""); });
  write_start_record();
  if (!train()) return 128 + world_.lifeline->stopped_by();
  save_final();
  write_end_record();
  return 0;
}

}  // namespace

int run_training(World& world, const TrainingArguments& arguments) {
  return TrainingRun(world, arguments).run();
}

}  // namespace maxim
