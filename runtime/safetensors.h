// The safetensors file format: 8 bytes header length, JSON header, data. The reader maps the file
// and checks the whole header before it hands out anything.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/files.h"

namespace maxim {

// "[384, 128]", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

struct SafetensorsEntry {
  std::string dtype;  // "F32", "F16", "BF16", "I64", …
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t elements() const;
};

class SafetensorsFile {
 public:
  // Throws InputError naming the file and, for a Git LFS pointer, a zip or pickle file, an empty or
  // cut-off file, what it seems to be; tensors that overlap, leave gaps, or do not match their
  // shape.
  explicit SafetensorsFile(const std::string& path);
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsEntry& at(const std::string& name) const;  // InputError naming file and tensor
  const std::string& path() const { return path_; }
  // Gives the memory of the pages read so far back to the system; reading again maps them again.
  void release_pages() const { file_.release_pages(); }

 private:
  std::string path_;
  MappedFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The values of an F32, F16 or BF16 entry as floats. InputError for other types.
void read_as_float(const SafetensorsFile& file, const std::string& name, float* out);

// Streams a file: all shapes first, then the data in that order. finish() syncs it.
class SafetensorsWriter {
 public:
  struct Item {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
  };
  SafetensorsWriter(const std::string& path, const std::vector<Item>& items,
                    const std::map<std::string, std::string>& metadata = {});
  // Data of the items in order, in any number of pieces.
  void write(const void* data, int64_t bytes);
  void finish();

 private:
  OutputFile file_;
  int64_t remaining_ = 0;
};

}  // namespace maxim
