#include "data/batch_loader.h"

#include <chrono>
#include <utility>

#include "runtime/error.h"

namespace maxim {

BatchLoader::BatchLoader(const TrainingData& data, const TextEncoder& encoder, Sampler sampler,
                         int64_t first_step, int64_t last_step)
    : data_(data),
      encoder_(encoder),
      sampler_(std::move(sampler)),
      first_step_(first_step),
      last_step_(last_step) {
  MAXIM_CHECK(0 <= first_step && first_step <= last_step, "steps [{}, {})", first_step, last_step);
  thread_ = std::thread([this] { run(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

const LoadedStep& BatchLoader::next() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  MAXIM_CHECK(first_step_ + taken_ < last_step_, "all steps up to {} are taken", last_step_);
  changed_.wait(lock, [&] { return made_ > taken_ || failure_; });
  if (made_ == taken_) std::rethrow_exception(failure_);
  LoadedStep& step = buffers_[taken_ % kBuffers].step;
  ++taken_;  // gives the buffer of the step before back
  changed_.notify_all();
  step.wait_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return step;
}

void BatchLoader::run() {
  try {
    for (int64_t step = first_step_; step < last_step_; ++step) {
      int64_t made = step - first_step_;
      {
        std::unique_lock lock(mutex_);
        // The step in use is taken_ - 1, so buffer `made` is free once step made - kBuffers, and
        // with it every one before, is no longer in use.
        changed_.wait(lock, [&] { return stop_ || made - taken_ < kReady; });
        if (stop_) return;
      }
      if (!load(buffers_[made % kBuffers], step)) return;
      const std::lock_guard lock(mutex_);
      ++made_;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

bool BatchLoader::load(Buffer& buffer, int64_t step) {
  std::vector<MicroBatch> parts = sampler_.micro_batches(step);
  if (buffer.micro_batches.size() < parts.size()) buffer.micro_batches.resize(parts.size());
  buffer.step.step = step;
  buffer.step.micro_batches = {buffer.micro_batches.data(), parts.size()};
  buffer.step.global_rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    buffer.step.global_rows += parts[i].global_rows;
    buffer.micro_batches[i].rows = std::move(parts[i]);
    if (!fill(buffer.micro_batches[i])) return false;
  }
  return true;
}

bool BatchLoader::fill(LoadedMicroBatch& batch) {
  const std::vector<int64_t>& rows = batch.rows.rows;
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t documents = data_.documents_per_query();
  const TextSettings& settings = encoder_.settings();
  TokenBatch& tokens = batch.tokens;
  tokens.clear();
  tokens.reserve(count * (settings.query_length + documents * settings.document_length),
                 count * (1 + documents));
  if (texts_.size() < rows.size()) texts_.resize(rows.size());
  const auto place = static_cast<uint32_t>(batch.rows.step_offset + batch.rows.first);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (stopping()) return false;
    data_.row(rows[i], texts_[i]);
    encoder_.append_query(tokens, texts_[i][0], place + static_cast<uint32_t>(i), 0);
  }
  for (size_t i = 0; i < rows.size(); ++i)
    for (uint32_t column = 1; column <= documents; ++column) {
      if (stopping()) return false;
      encoder_.append_document(tokens, texts_[i][column], place + static_cast<uint32_t>(i), column);
    }
  return true;
}

bool BatchLoader::stopping() {
  const std::lock_guard lock(mutex_);
  return stop_;
}

}  // namespace maxim
