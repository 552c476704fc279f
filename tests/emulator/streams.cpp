#include "tests/emulator/streams.h"

#include <algorithm>
#include <chrono>

#include "emulated/emulator.h"
#include "tests/emulator/device_heap.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/records.h"

namespace maxim_emulated {
namespace {

constexpr uint32_t kReshuffle = 8;  // the order of priority holds for so many pieces on average

double milliseconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

}  // namespace

std::unique_lock<std::recursive_mutex> lock_device() {
  static std::recursive_mutex mutex;
  return std::unique_lock(mutex);
}

Streams::Streams() : random_(seed()) {}

Streams& Streams::instance() {
  static Streams* streams = new Streams;  // outlives every static that destroys a stream
  return *streams;
}

cudaStream_t Streams::create(bool blocking) {
  streams_.push_back(std::make_unique<CUstream_st>(
      CUstream_st{.number = ++created_, .device = current_device(), .blocking = blocking}));
  return streams_.back().get();
}

cudaError_t Streams::check(cudaStream_t stream) const {
  // nullptr, cudaStreamLegacy and cudaStreamPerThread.
  if (reinterpret_cast<uintptr_t>(stream) <= 2)
    throw Fault("work for the default stream: Maxim uses streams of its own only");
  const auto found =
      std::ranges::find(streams_, stream, [](const auto& owned) { return owned.get(); });
  return found != streams_.end() && !stream->destroyed ? cudaSuccess
                                                       : cudaErrorInvalidResourceHandle;
}

void Streams::destroy(cudaStream_t stream) {
  stream->destroyed = true;
  std::erase_if(streams_, [](const auto& s) { return s->destroyed && s->queue.empty(); });
}

void Streams::enqueue(cudaStream_t stream, Work work) {
  work.issued = ++issued_;
  if (work.records != nullptr) work.records->issued = work.issued;
  stream->queue.push_back(std::move(work));
}

bool Streams::idle() const {
  return std::ranges::all_of(streams_, [](const auto& stream) { return stream->queue.empty(); });
}

bool Streams::blocking_idle() const {
  return std::ranges::all_of(
      streams_, [](const auto& stream) { return !stream->blocking || stream->queue.empty(); });
}

void Streams::shuffle() {
  for (size_t i = streams_.size(); i > 1; --i)
    std::swap(streams_[i - 1], streams_[random_.below(static_cast<uint32_t>(i))]);
}

CUstream_st* Streams::next_stream() const {
  for (const auto& stream : streams_) {
    if (stream->queue.empty()) continue;
    const auto& event = stream->queue.front().waits_for;
    if (event == nullptr || event->done) return stream.get();
  }
  return nullptr;
}

void Streams::run_front(CUstream_st& stream) {
  const Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (work.waits_for != nullptr) stream.awaited = std::max(stream.awaited, work.waits_for->issued);
  running_ = {stream.number, work.issued, stream.awaited};
  try {
    if (work.run) work.run();
  } catch (...) {
    running_ = {};
    drop_all();
    throw;
  }
  running_ = {};
  if (work.records == nullptr) return;
  work.records->done = true;
  work.records->milliseconds = milliseconds_now();
}

void Streams::run_until(const std::function<bool()>& done) {
  if (done()) return;
  const DeviceAccess access;
  shuffle();
  while (!done()) {
    if (random_.below(kReshuffle) == 0) shuffle();
    CUstream_st* stream = next_stream();
    if (stream == nullptr) throw Fault("the host waits for work that was dropped");
    run_front(*stream);
  }
  std::erase_if(streams_, [](const auto& s) { return s->destroyed && s->queue.empty(); });
}

void Streams::run_one() {
  const DeviceAccess access;
  shuffle();
  if (CUstream_st* stream = next_stream()) run_front(*stream);
}

void Streams::drop_all() {
  for (const auto& stream : streams_) {
    for (const Work& work : stream->queue)
      if (work.records != nullptr) work.records->done = true;
    stream->queue.clear();
  }
}

}  // namespace maxim_emulated

using maxim_emulated::answer;
using maxim_emulated::lock_device;
using maxim_emulated::Recording;
using maxim_emulated::Streams;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const auto lock = lock_device();
  if (stream == nullptr || flags > cudaStreamNonBlocking) return answer(cudaErrorInvalidValue);
  *stream = Streams::instance().create(flags == cudaStreamDefault);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  Streams::instance().destroy(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  Streams::instance().run_until([=] { return stream->queue.empty(); });
  return cudaSuccess;
}

// Asking lets some work pass, so a host that asks until it is done gets there.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  Streams::instance().run_one();
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  if (event == nullptr) return answer(cudaErrorInvalidResourceHandle);
  if (event->recording != nullptr)
    Streams::instance().enqueue(stream, {.waits_for = event->recording});
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  Streams::instance().enqueue(stream, {.run = [=] {
                                maxim_emulated::trace("host function");
                                maxim_emulated::DeviceHeap::instance().close();
                                function(argument);
                                maxim_emulated::DeviceHeap::instance().open();
                              }});
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (event == nullptr) return answer(cudaErrorInvalidValue);
  *event = new CUevent_st{.device = maxim_emulated::current_device(),
                          .timed = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return answer(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  if (event == nullptr || event->device != stream->device)
    return answer(cudaErrorInvalidResourceHandle);
  event->recording = std::make_shared<Recording>();
  Streams::instance().enqueue(stream, {.records = event->recording});
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto lock = lock_device();
  if (event == nullptr) return answer(cudaErrorInvalidResourceHandle);
  if (const auto recording = event->recording)
    Streams::instance().run_until([=] { return recording->done; });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto lock = lock_device();
  if (event == nullptr) return answer(cudaErrorInvalidResourceHandle);
  if (event->recording == nullptr || event->recording->done) return cudaSuccess;
  Streams::instance().run_one();
  return event->recording->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto lock = lock_device();
  for (const cudaEvent_t event : {start, end}) {
    if (event == nullptr || !event->timed || event->recording == nullptr)
      return answer(cudaErrorInvalidResourceHandle);
    if (!event->recording->done) return answer(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>(end->recording->milliseconds - start->recording->milliseconds);
  return cudaSuccess;
}
