#include "data/json_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/text_lines.h"

namespace maxim {
namespace {

constexpr size_t kMaxFields = 1024;  // bounds the search for duplicate keys

}  // namespace

const char* name_of(JsonField::Kind kind) {
  switch (kind) {
    case JsonField::Kind::text:
      return "a text";
    case JsonField::Kind::list_of_texts:
      return "a list of texts";
    case JsonField::Kind::null:
      return "null";
    case JsonField::Kind::boolean:
      return "true or false";
    case JsonField::Kind::number:
      return "a number";
    case JsonField::Kind::object:
      return "an object";
    case JsonField::Kind::other_list:
      return "a list with something other than texts";
  }
  return "";
}

// depth_ 1: inside the row's object; depth_ 2 with in_list_: inside a field's list. What lies
// deeper is only checked for being JSON.
class JsonRow::Handler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Handler(JsonRow& row) : row_(row) {}
  std::string reason;

  bool null() override { return value(JsonField::Kind::null); }
  bool boolean(bool) override { return value(JsonField::Kind::boolean); }
  bool number_integer(number_integer_t) override { return value(JsonField::Kind::number); }
  bool number_unsigned(number_unsigned_t) override { return value(JsonField::Kind::number); }
  bool number_float(number_float_t, const string_t&) override {
    return value(JsonField::Kind::number);
  }
  bool binary(binary_t&) override { return false; }  // never in JSON text

  bool string(string_t& text) override {
    if (!value(JsonField::Kind::text)) return false;
    field().texts.emplace_back();
    field().texts.back().swap(text);
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ > 0 && !value(JsonField::Kind::object)) return false;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 1) {
      field().kind = JsonField::Kind::list_of_texts;
      in_list_ = true;
    } else if (!value(JsonField::Kind::other_list)) {
      return false;
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (--depth_ == 1) in_list_ = false;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    if (row_.find(name) != nullptr) {
      reason = fmt::format("the key \"{}\" stands twice", excerpt(name, 60));
      return false;
    }
    if (row_.count_ == kMaxFields) {
      reason = fmt::format("more than {} keys", kMaxFields);
      return false;
    }
    if (row_.count_ == row_.fields_.size()) row_.fields_.emplace_back();
    JsonField& added = row_.fields_[row_.count_++];
    added.name.swap(name);
    added.texts.clear();
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    // "[json.exception…] parse error at line 1, column 5: reason; last read: …": the line is ours
    // to name, and what was read may be 100 MB.
    std::string_view what = error.what();
    const size_t colon = what.find(": ");
    if (colon != std::string_view::npos) what.remove_prefix(colon + 2);
    reason = fmt::format("not valid JSON at byte {}: {}", position, excerpt(what, 160));
    return false;
  }

 private:
  JsonField& field() { return row_.fields_[row_.count_ - 1]; }

  bool value(JsonField::Kind kind) {
    if (depth_ == 0) {
      reason = fmt::format("expected an object {{\"query\": …}}, found {}",
                           kind == JsonField::Kind::other_list ? "a list" : name_of(kind));
      return false;
    }
    if (depth_ == 1)
      field().kind = kind;
    else if (depth_ == 2 && in_list_ && kind != JsonField::Kind::text)
      field().kind = JsonField::Kind::other_list;
    return true;
  }

  JsonRow& row_;
  int64_t depth_ = 0;
  bool in_list_ = false;
};

std::string JsonRow::parse(std::string_view line) {
  count_ = 0;
  const int64_t invalid = find_invalid_utf8(line);
  if (invalid >= 0) return fmt::format("not valid UTF-8 at byte {} of the line", invalid + 1);
  // nlohmann-json takes a NUL byte for the end of its input.
  const size_t nul = line.find('\0');
  if (nul != std::string_view::npos)
    return fmt::format("not valid JSON at byte {}: a NUL byte", nul + 1);
  Handler handler(*this);
  nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
  return handler.reason;
}

const JsonField* JsonRow::find(std::string_view name) const {
  for (size_t i = 0; i < count_; ++i)
    if (fields_[i].name == name) return &fields_[i];
  return nullptr;
}

}  // namespace maxim
