// What a run leaves behind: output_dir/metrics.jsonl, checkpoint-STEP directories, the final model
// in output_dir itself. Rank 0 alone touches the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace maxim {

class OutputDirectory {
 public:
  // Creates and locks the directory, and removes what killed runs left half-done. Throws InputError
  // when it cannot be written, when another running job holds it (its process and host are named),
  // or when it has files of an earlier run and `overwrite` is false. One that it created and that
  // nothing was written into is gone with it.
  OutputDirectory(const std::string& path, bool overwrite);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;

  std::string metrics_file() const { return path_ + "/metrics.jsonl"; }
  std::string checkpoint(int64_t step) const;  // output_dir/checkpoint-STEP

  // Writes checkpoint-STEP whole or not at all: `write` fills the directory it is given. One that
  // an earlier run left is replaced; one that this run has written is not written again. Then
  // removes the oldest checkpoints of this run beyond `limit` (0: none), but never `keep` (a step,
  // or -1).
  void save_checkpoint(int64_t step, int64_t limit, int64_t keep,
                       const std::function<void(const std::string&)>& write);
  // Writes the final model into the directory itself: all files are complete and synced under a
  // temporary name before the first one is renamed into place.
  void save_final(const std::function<void(const std::string&)>& write);

 private:
  std::string path_;
  int lock_ = -1;
  bool created_ = false;
  std::vector<int64_t> checkpoints_;  // steps saved by this run, ascending
};

}  // namespace maxim
