// What a model directory says of itself: which layout it has, where its parts stand, and how texts
// are encoded.
//
//   layout               told by                                              prefixes, lengths,
//   skiplist from PyLate               modules.json with a Transformer and a Dense;
//   config_sentence_transformers.json
//                        config_sentence_transformers.json
//   sentence-transformers 6 multi-vector: modules.json with MultiVectorMask   prompts,
//   sentence_bert_config.json, the mask sentence-transformers  modules.json otherwise PyLate's
//   defaults Stanford ColBERT     config.json architectures[0] = HF_ColBERT artifact.metadata
//   Hugging Face BERT    config.json                                          PyLate's defaults
#pragma once

#include <string>

#include "model/colbert.h"

namespace maxim {

struct CheckpointFormat {
  std::string name;                    // "PyLate", …
  std::string transformer;             // directory of config.json, weights and tokenizer
  std::string dense;                   // directory of the projection, or ""
  bool projection_in_encoder = false;  // Stanford: linear.weight beside the encoder's tensors
  ColbertConfig colbert;               // embedding_size is not filled in
};

// Throws InputError naming file and key.
CheckpointFormat read_checkpoint_format(const std::string& directory);

}  // namespace maxim
