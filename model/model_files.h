// Model directories in. Read: Hugging Face BERT, sentence-transformers, PyLate,
// sentence-transformers 6 multi-vector, Stanford ColBERT (see checkpoint_format.h). The tokenizer's
// files are data/wordpiece's business.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/bert_config.h"
#include "model/colbert.h"
#include "model/parameters.h"

namespace maxim {

// A model directory, checked but not yet copied: configs plus the mapped weight files.
class ModelFiles {
 public:
  // Throws InputError naming file and tensor: missing files, up to 5 missing and 5 unexpected
  // tensors, wrong shapes, types other than F32, F16, BF16, pytorch_model.bin only (and how to
  // convert it).
  explicit ModelFiles(const std::string& directory);

  const std::string& format() const;  // "Hugging Face BERT", "PyLate", …, for the start log
  const BertConfig& bert() const;     // vocab_size = rows of the word embedding
  const ColbertConfig& colbert()
      const;  // embedding_size: the projection's, or 128 when there is none
  bool has_projection() const;
  // The directory that holds the tokenizer and config.json (sentence-transformers may use a
  // subdirectory).
  const std::string& tokenizer_directory() const;
  // Tensors that were not used, a vocab_size that the file contradicts; one line each.
  const std::vector<std::string>& warnings() const;

  // Fills the values of `parameters`, made with bert() but perhaps more rows of the word embedding,
  // and the wanted embedding_size. New word rows are drawn around the mean of the old rows as
  // transformers' resize does (variance 1e-9 times theirs, column by column); a projection that the
  // files lack from U(-1/sqrt(H), 1/sqrt(H)), the default of torch.nn.Linear. Both from the seed,
  // by Philox. Throws InputError when the files have a projection of another width or a weight that
  // is not finite.
  void load(Parameters& parameters, Device& device, uint64_t seed) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// Writes config.json, model.safetensors, modules.json, 1_Dense/, config_sentence_transformers.json,
// sentence_bert_config.json and README.md, which with the tokenizer's files is PyLate's layout,
// into an existing directory. Files are synced. Throws Error for a weight that is not finite.
void save_model(const std::string& directory, const BertConfig& bert, const ColbertConfig& colbert,
                const Parameters& parameters, Device& device);

}  // namespace maxim
