// One line of a JSONL file: the top-level fields of one object, with the texts in them. Parsed by
// nlohmann-json's SAX interface, which keeps its own stack, so depth costs memory and no stack.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace maxim {

struct JsonField {
  enum class Kind { text, list_of_texts, null, boolean, number, object, other_list };
  std::string name;
  Kind kind = Kind::null;
  std::vector<std::string> texts;  // one for text, the elements for list_of_texts; else of no use
};

// For messages: "a text", "a list of texts", "null", …
const char* name_of(JsonField::Kind kind);

class JsonRow {
 public:
  // Returns "" or what is wrong with the line: not valid JSON (position and reason), not an object,
  // a key twice, more than 1,024 keys, not valid UTF-8. May be called again; memory is reused.
  std::string parse(std::string_view line);
  std::span<JsonField> fields() { return {fields_.data(), count_}; }
  // nullptr when the row lacks it.
  const JsonField* find(std::string_view name) const;

 private:
  class Handler;
  std::vector<JsonField> fields_;
  size_t count_ = 0;
};

}  // namespace maxim
