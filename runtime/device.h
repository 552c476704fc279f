// Memory of the device that computes. HostDevice is the CPU; a GPU backend implements the same
// class.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace maxim {

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // for the start record: "cpu", …

  // Uninitialised memory, aligned to 256 bytes. Throws Error naming `purpose` and the size when
  // there is none. Counted: see allocations().
  virtual void* allocate(int64_t bytes, const char* purpose) = 0;
  virtual void free(void* pointer) = 0;

  // Copies are ordered after everything issued before. `source` of copy_in may be reused when the
  // call returns; `destination` of copy_out is complete when it returns.
  virtual void copy_in(const Tensor& destination, const void* source) = 0;
  virtual void copy_out(void* destination, const Tensor& source) = 0;
  virtual void copy(const Tensor& destination, const Tensor& source) = 0;
  virtual void zero(const Tensor& tensor) = 0;
  virtual void synchronize() = 0;

  // Copies beside the work issued before, into two slots of memory in turn: between begin_ahead(s)
  // and end_ahead(), copy_in() waits only for the work that was issued before the last release(s),
  // and what is issued after end_ahead() comes after the copies. Nothing else is issued in between.
  virtual void begin_ahead(int slot) = 0;
  virtual void end_ahead() = 0;
  virtual void release(int slot) = 0;

  // Number of allocate() calls so far. A training step makes none after the first.
  int64_t allocations() const { return allocations_; }
  int64_t allocated_bytes() const { return allocated_bytes_; }  // and not freed yet
  // Times that the host waited for the device so far. A training step never does.
  int64_t synchronizations() const { return synchronizations_; }

 protected:
  int64_t allocations_ = 0;
  int64_t allocated_bytes_ = 0;
  int64_t synchronizations_ = 0;
};

// Host memory. Large blocks are anonymous maps, so pages cost nothing until they are touched.
class HostDevice final : public Device {
 public:
  ~HostDevice() override;
  std::string name() const override { return "cpu"; }
  void* allocate(int64_t bytes, const char* purpose) override;
  void free(void* pointer) override;
  void copy_in(const Tensor& destination, const void* source) override;
  void copy_out(void* destination, const Tensor& source) override;
  void copy(const Tensor& destination, const Tensor& source) override;
  void zero(const Tensor& tensor) override;
  void synchronize() override {}
  void begin_ahead(int) override {}
  void end_ahead() override {}
  void release(int) override {}

 private:
  struct Block {
    void* pointer;
    int64_t bytes;
  };
  std::vector<Block> blocks_;
};

// A tensor that owns device memory for the life of the program's part that holds it (parameters,
// optimizer state).
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(Device& device, DType dtype, int64_t size,
               const char* purpose);  // [size], uninitialised
  ~DeviceTensor();
  DeviceTensor(DeviceTensor&& other) noexcept;
  DeviceTensor& operator=(DeviceTensor&& other) noexcept;
  const Tensor& view() const { return view_; }

 private:
  Device* device_ = nullptr;
  Tensor view_;
};

// Bump allocator for what lives within one step. One block of `capacity` bytes is taken at the
// start; take() hands out pieces aligned to 256 bytes; a Mark gives back all that was taken after
// it. Throws Error (bytes wanted, bytes left, purpose) when the block is too small.
class Arena {
 public:
  Arena(Device& device, int64_t capacity, const char* purpose);
  ~Arena();
  Arena(const Arena&) = delete;

  Tensor take(DType dtype, int64_t d0, const char* purpose);
  Tensor take(DType dtype, int64_t d0, int64_t d1, const char* purpose);

  // What take() uses up for a tensor of so many elements.
  static int64_t bytes_of(DType dtype, int64_t elements);

  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }  // largest used() so far
  int64_t capacity() const { return capacity_; }
  void reset() { used_ = 0; }

  class Mark {
   public:
    explicit Mark(Arena& arena) : arena_(arena), used_(arena.used_) {}
    ~Mark() { arena_.used_ = used_; }
    Mark(const Mark&) = delete;

   private:
    Arena& arena_;
    int64_t used_;
  };

 private:
  void* take_bytes(int64_t bytes, const char* purpose);

  Device& device_;
  char* base_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t peak_ = 0;
  std::string purpose_;
};

}  // namespace maxim
