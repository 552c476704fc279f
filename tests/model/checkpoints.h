// Model directories in many layouts, made from tests/golden/tiny_bert.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/reference/temporary_directory.h"

namespace maxim_tests {

// A tensor of a file, as bytes.
struct RawTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::vector<RawTensor> read_tensors(const std::string& path);
void write_tensors(const std::string& path, const std::vector<RawTensor>& tensors);
// F32 to "F16" or "BF16", to the nearest (F16) or cut off (BF16); and back.
RawTensor narrowed(const RawTensor& tensor, const std::string& dtype);
RawTensor widened(const RawTensor& tensor);

// A copy of tiny_bert that a test may change.
class Checkpoint {
 public:
  Checkpoint();
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  void edit_json(const std::string& name, const std::function<void(nlohmann::ordered_json&)>& edit);
  void edit_tensors(const std::function<void(std::vector<RawTensor>&)>& edit);
  void remove(const std::string& name);
  void rename(const std::string& from, const std::string& to);

  // The same model in another layout.
  void to_hugging_face();  // no modules, no projection
  void to_stanford();      // bert. prefix, linear.weight beside it, artifact.metadata
  void to_multi_vector();  // as sentence-transformers 6.2 writes it
  void to_shards();        // two files and their index

 private:
  TemporaryDirectory temporary_;
  std::string path_;
};

}  // namespace maxim_tests
