#include "runtime/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "runtime/error.h"
#include "runtime/fault.h"

namespace maxim {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;

// Bytes of an element; 0 for a type that the format does not have.
int64_t element_bytes(std::string_view dtype) {
  static const std::map<std::string_view, int64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2},
      {"I16", 2},  {"F16", 2}, {"BF16", 2}, {"U32", 4},     {"I32", 4},     {"F32", 4},
      {"U64", 8},  {"I64", 8}, {"F64", 8},  {"C64", 8},
  };
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

// Files that are often found under a .safetensors name, by their first bytes.
void refuse_other_formats(const std::string& path, std::string_view content) {
  if (content.empty()) fail_input("{}: the file is empty", path);
  if (content.starts_with("version https://git-lfs"))
    fail_input("{}: a Git LFS pointer, not the file itself; fetch it with `git lfs pull`", path);
  if (content.starts_with("PK\x03\x04"))
    fail_input(
        "{}: a zip archive (a PyTorch checkpoint?), not safetensors; convert it with "
        "safetensors.torch.save_file",
        path);
  if (content.size() > 1 && content[0] == '\x80' && content[1] >= 2 && content[1] <= 5 &&
      content.find("torch") != content.npos)
    fail_input("{}: a Python pickle (an old PyTorch checkpoint?), not safetensors", path);
  if (content.starts_with("<!DOCTYPE") || content.starts_with("<html"))
    fail_input("{}: a web page, not safetensors; download the file itself", path);
  if (static_cast<int64_t>(content.size()) < kLengthBytes)
    fail_input("{}: {} bytes are too few for a safetensors file", path, content.size());
}

// The JSON text between the length and the data.
std::string_view header_text(const std::string& path, std::string_view content) {
  uint64_t length = 0;  // little-endian, as every machine that Maxim runs on
  std::memcpy(&length, content.data(), kLengthBytes);
  const uint64_t rest = content.size() - kLengthBytes;
  if (length > rest)
    fail_input(
        "{}: the header should take {} bytes, but only {} follow: not a safetensors file, or cut "
        "off",
        path, length, rest);
  return content.substr(kLengthBytes, length);
}

Json parse_header(const std::string& path, std::string_view text) {
  std::set<std::string> names;
  const auto refuse_duplicates = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get<std::string>()).second)
      fail_input("{}: tensor {} appears twice in the header", path, parsed.get<std::string>());
    return true;
  };
  try {
    Json header = Json::parse(text, refuse_duplicates);
    if (!header.is_object()) fail_input("{}: the header is no JSON object", path);
    return header;
  } catch (const Json::exception& e) {
    fail_input("{}: the header is not valid JSON: {}", path, e.what());
  }
}

// A list of non-negative integers.
std::vector<int64_t> read_integers(const std::string& path, const std::string& tensor,
                                   const Json& entry, const char* key) {
  const auto list = entry.find(key);
  if (list == entry.end() || !list->is_array())
    fail_input("{}: tensor {} has no list {}", path, tensor, key);
  std::vector<int64_t> values;
  for (const Json& value : *list) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX)
      fail_input("{}: tensor {}: {} has {}, expected sizes of 0 or more", path, tensor, key,
                 value.is_number() ? value.dump() : value.type_name());
    values.push_back(value.get<int64_t>());
  }
  return values;
}

// Data offsets of a tensor, for the check that the tensors tile the data.
struct Range {
  int64_t begin, end;
  std::string name;
};

Range read_entry(const std::string& path, const std::string& name, const Json& json,
                 std::string_view data, SafetensorsEntry& entry) {
  if (!json.is_object()) fail_input("{}: tensor {} has no description", path, name);
  const auto dtype = json.find("dtype");
  if (dtype == json.end() || !dtype->is_string())
    fail_input("{}: tensor {} has no dtype", path, name);
  entry.dtype = dtype->get<std::string>();
  int64_t bytes = element_bytes(entry.dtype);
  if (bytes == 0) fail_input("{}: tensor {} has the unknown type {}", path, name, entry.dtype);
  entry.shape = read_integers(path, name, json, "shape");
  for (const int64_t size : entry.shape)
    if (__builtin_mul_overflow(bytes, size, &bytes))
      fail_input("{}: tensor {} of shape {} is impossibly large", path, name,
                 shape_text(entry.shape));
  const std::vector<int64_t> offsets = read_integers(path, name, json, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    fail_input("{}: tensor {}: data_offsets {} are no range", path, name, shape_text(offsets));
  if (offsets[1] - offsets[0] != bytes)
    fail_input("{}: tensor {} {} {} takes {} bytes, but its offsets span {}", path, name,
               entry.dtype, shape_text(entry.shape), bytes, offsets[1] - offsets[0]);
  const auto size = static_cast<int64_t>(data.size());
  if (offsets[1] > size)
    fail_input("{}: the file is cut off: tensor {} ends at byte {} of the data, which has {}", path,
               name, offsets[1], size);
  entry.data = reinterpret_cast<const std::byte*>(data.data()) + offsets[0];
  entry.bytes = bytes;
  return {offsets[0], offsets[1], name};
}

void check_tiling(const std::string& path, std::vector<Range> ranges, int64_t size) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t end = 0;
  for (const Range& range : ranges) {
    if (range.begin < end)
      fail_input("{}: tensor {} overlaps the one before it: it begins at byte {}, that ends at {}",
                 path, range.name, range.begin, end);
    if (range.begin > end)
      fail_input("{}: {} bytes before tensor {} belong to no tensor", path, range.begin - end,
                 range.name);
    end = range.end;
  }
  if (end != size) fail_input("{}: {} bytes after the last tensor", path, size - end);
}

std::map<std::string, std::string> read_metadata(const std::string& path, const Json& json) {
  if (!json.is_object()) fail_input("{}: __metadata__ is no JSON object", path);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) fail_input("{}: __metadata__ of {} is no string", path, key);
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// IEEE 754 binary16 to binary32, exact.
float float_of_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 1023;
  uint32_t bits = sign | (exponent + 112) << 23 | mantissa << 13;  // 112 = 127 - 15
  if (exponent == 31) bits = sign | 0x7F800000u | mantissa << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    value = static_cast<float>(mantissa) * 0x1p-24f;
    if (sign != 0) value = -value;
  }
  return value;
}

float float_of_bfloat16(uint16_t upper_half) {
  const uint32_t bits = static_cast<uint32_t>(upper_half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Convert>
void convert_16_bits(const SafetensorsEntry& entry, float* out, Convert convert) {
  for (int64_t i = 0; i < entry.elements(); ++i) {
    uint16_t bits;  // by memcpy: a file need not align its tensors
    std::memcpy(&bits, entry.data + 2 * i, sizeof bits);
    out[i] = convert(bits);
  }
}

std::string header_of(const std::string& path, const std::vector<SafetensorsWriter::Item>& items,
                      const std::map<std::string, std::string>& metadata, int64_t& data_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  data_bytes = 0;
  for (const SafetensorsWriter::Item& item : items) {
    int64_t bytes = element_bytes(item.dtype);
    MAXIM_CHECK(bytes > 0, "{}: {} of type {}", path, item.name, item.dtype);
    for (const int64_t size : item.shape) bytes *= size;
    MAXIM_CHECK(bytes >= 0, "{}: {} of shape {}", path, item.name, shape_text(item.shape));
    MAXIM_CHECK(!header.contains(item.name), "{}: {} appears twice", path, item.name);
    header[item.name] = {{"dtype", item.dtype},
                         {"shape", item.shape},
                         {"data_offsets", {data_bytes, data_bytes + bytes}}};
    data_bytes += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned to 8 bytes
  return text;
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

int64_t SafetensorsEntry::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), file_(path) {
  const std::string_view content = file_.text();
  refuse_other_formats(path, content);
  const std::string_view text = header_text(path, content);
  const std::string_view data = content.substr(kLengthBytes + text.size());
  const Json header = parse_header(path, text);
  std::vector<Range> ranges;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__")
      metadata_ = read_metadata(path, json);
    else
      ranges.push_back(read_entry(path, name, json, data, entries_[name]));
  }
  check_tiling(path, std::move(ranges), static_cast<int64_t>(data.size()));
}

const SafetensorsEntry& SafetensorsFile::at(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_input("{}: there is no tensor {}", path_, name);
  return found->second;
}

void read_as_float(const SafetensorsFile& file, const std::string& name, float* out) {
  const SafetensorsEntry& entry = file.at(name);
  if (entry.dtype == "F32") {
    if (entry.bytes > 0) std::memcpy(out, entry.data, entry.bytes);
  } else if (entry.dtype == "F16") {
    convert_16_bits(entry, out, float_of_half);
  } else if (entry.dtype == "BF16") {
    convert_16_bits(entry, out, float_of_bfloat16);
  } else {
    fail_input("{}: tensor {} is {}, expected F32, F16 or BF16", file.path(), name, entry.dtype);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Item>& items,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  const std::string header = header_of(path, items, metadata, remaining_);
  const uint64_t length = header.size();
  file_.write(&length, kLengthBytes);
  file_.write(header);
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  MAXIM_CHECK(bytes <= remaining_, "{} bytes, {} left", bytes, remaining_);
  fault_in_write();
  file_.write(data, bytes);
  remaining_ -= bytes;
}

void SafetensorsWriter::finish() {
  MAXIM_CHECK(remaining_ == 0, "{} bytes were not written", remaining_);
  file_.finish();
}

}  // namespace maxim
