// What a model directory says of itself: which layout it has, where its parts lie, and how texts
// are encoded.
//
//   modules.json with a MultiVectorMask    sentence-transformers 6 multi-vector
//   modules.json with PyLate's marks       PyLate
//   modules.json                           sentence-transformers; Pooling and Normalize left out
//   HF_ColBERT, or an artifact.metadata    Stanford ColBERT
//   else                                   Hugging Face BERT
//
// PyLate's marks are its keys in config_sentence_transformers.json, or a Dense module of its own.
// What a directory does not say has PyLate's defaults.
#pragma once

#include <string>

#include "model/bert_config.h"
#include "model/colbert.h"

namespace maxim {

struct CheckpointFormat {
  std::string name;                    // one of the names above
  std::string transformer;             // directory of config.json, weights and tokenizer
  std::string dense;                   // directory of the projection, or ""
  bool projection_in_encoder = false;  // Stanford: linear.weight beside the encoder's tensors
  BertConfig bert;
  ColbertConfig colbert;  // embedding_size is not filled in
};

// Throws InputError naming file and key: what is missing or absurd, and what Maxim does not have
// (modules of another type, a projection with bias or activation, two projections, prompts of
// several tokens, other ways of query expansion).
CheckpointFormat read_checkpoint_format(const std::string& directory);

}  // namespace maxim
