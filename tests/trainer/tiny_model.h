// The random two-layer BERT of tests/golden/tiny_bert, saved by PyLate, and what the evaluation
// tests share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/solo_communicator.h"
#include "runtime/files.h"
#include "trainer/model_session.h"

namespace maxim_tests {

inline maxim::ModelOptions tiny_options(const maxim::ModelOverrides& overrides = {}) {
  return {.model_name_or_path = "tests/golden/tiny_bert", .overrides = overrides};
}

inline std::unique_ptr<maxim::ModelSession> tiny_model(
    const maxim::ModelOverrides& overrides = {}) {
  return std::make_unique<maxim::ModelSession>(tiny_options(overrides), false);
}

inline nlohmann::ordered_json golden_json(const std::string& name) {
  return maxim::read_json("tests/golden/" + name + ".json");
}

// Texts of all lengths, made of words the tiny vocabulary knows.
inline std::vector<std::string> ragged_texts(int count) {
  const std::vector<std::string> words = {"war",  "peace", "city", "light", "plants", "food",
                                          "book", "sound", "road", "water", "!",      "france"};
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (int w = 0; w < i * 7 % 60; ++w) text += words[(i + w * (1 + i % 5)) % words.size()] + " ";
    texts.push_back(text);
  }
  return texts;
}

}  // namespace maxim_tests
