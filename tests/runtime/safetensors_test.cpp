#include "runtime/safetensors.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/error.h"
#include "runtime/philox.h"
#include "tests/catch.h"
#include "tests/reference/message_of.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim;
using maxim_tests::require_message;
using maxim_tests::TemporaryDirectory;

namespace {

// A file of this header and this many data bytes.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  return file + header + std::string(data_bytes, '\1');
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

// Demands that opening a file of `content` gives an InputError with its path and `words`.
void require_refused(const std::string& content, std::vector<std::string> words) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("model.safetensors", content);
  words.push_back(path);
  require_message<InputError>([&] { SafetensorsFile{path}; }, words);
}

const std::string kGood = file_of(
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"__metadata__":{"format":"pt"}})",
    11);

}  // namespace

TEST_CASE("a written safetensors file comes back", "[safetensors]") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("x.safetensors");
  const std::vector<float> weights{1, -2, 3.5f, 0, 5, 6};
  const std::vector<int64_t> offsets{0, 7};
  SafetensorsWriter writer(path,
                           {{"weights", "F32", {2, 3}},
                            {"none", "F32", {0, 4}},
                            {"scalar", "F32", {}},
                            {"offsets", "I64", {2}}},
                           {{"format", "pt"}});
  writer.write(weights.data(), 12);  // in pieces
  writer.write(weights.data() + 3, 12);
  writer.write(weights.data(), 4);
  require_message<Error>([&] { writer.finish(); }, {"16 bytes were not written"});
  require_message<Error>([&] { writer.write(offsets.data(), 17); }, {"17 bytes, 16 left"});
  writer.write(offsets.data(), 16);
  writer.finish();

  const SafetensorsFile file(path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.entries().size() == 4);
  CHECK(file.at("weights").shape == std::vector<int64_t>{2, 3});
  std::vector<float> got(6);
  read_as_float(file, "weights", got.data());
  CHECK(got == weights);
  CHECK(file.at("none").elements() == 0);
  CHECK(file.at("scalar").elements() == 1);
  CHECK(std::memcmp(file.at("offsets").data, offsets.data(), 16) == 0);
  CHECK(reinterpret_cast<uintptr_t>(file.at("weights").data) % 8 == 0);
  require_message<InputError>([&] { file.at("bias"); }, {path, "no tensor bias"});
  require_message<InputError>([&] { read_as_float(file, "offsets", got.data()); },
                              {path, "offsets is I64", "F32, F16 or BF16"});
}

TEST_CASE("F16 and BF16 become floats exactly", "[safetensors]") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("x.safetensors");
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  SafetensorsWriter writer(path, {{"half", "F16", {65536}}, {"brain", "BF16", {65536}}});
  writer.write(all.data(), 131072);
  writer.write(all.data(), 131072);
  writer.finish();
  const SafetensorsFile file(path);
  std::vector<float> half(65536), brain(65536);
  read_as_float(file, "half", half.data());
  read_as_float(file, "brain", brain.data());
  for (uint32_t i = 0; i < 65536; ++i) {
    INFO("bits " << i);
    // By the definition of the format: sign, 5 bits of exponent, 10 of mantissa.
    const uint32_t exponent = i >> 10 & 31, mantissa = i & 1023;
    double want = exponent == 0 ? mantissa * 0x1p-24
                                : std::ldexp(1024.0 + mantissa, static_cast<int>(exponent) - 25);
    if (exponent == 31) want = mantissa == 0 ? HUGE_VAL : NAN;
    if (i >> 15) want = -want;
    const bool same = std::isnan(want) ? std::isnan(half[i])
                                       : half[i] == want && std::signbit(half[i]) == i >> 15;
    if (!same) FAIL("half " << half[i] << ", want " << want);
    if (std::bit_cast<uint32_t>(brain[i]) != i << 16) FAIL("brain " << brain[i]);
  }
  CHECK(half[0x3C00] == 1.0f);
  CHECK(half[0x0001] == 0x1p-24f);
  CHECK(half[0x7BFF] == 65504.0f);
}

TEST_CASE("files that are something else are named", "[safetensors]") {
  require_refused("", {"is empty"});
  require_refused("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
                  {"Git LFS pointer", "git lfs pull"});
  require_refused(std::string("PK\x03\x04", 4) + std::string(60, 'x'), {"zip", "PyTorch"});
  require_refused(
      "\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2",
      {"pickle"});
  require_refused("<!DOCTYPE html><html>not found</html>", {"web page"});
  require_refused("1234567", {"7 bytes", "too few"});
}

TEST_CASE("cut off, lengthened and overgrown files are refused", "[safetensors]") {
  require_refused(kGood.substr(0, kGood.size() - 2), {"cut off", "ends at byte 11", "has 9"});
  require_refused(kGood.substr(0, 30), {"only 22 follow"});
  require_refused(kGood + "0123456789", {"10 bytes after the last tensor"});
  std::string huge = kGood;
  huge[7] = 0x10;  // the length's highest byte: 2^60
  require_refused(huge, {"1152921504606847", "not a safetensors file"});
}

TEST_CASE("headers that do not hold together are refused", "[safetensors]") {
  const auto header = [](const std::string& tensors, size_t bytes, std::vector<std::string> words) {
    INFO(tensors);
    require_refused(file_of("{" + tensors + "}", bytes), std::move(words));
  };
  require_refused(file_of("[1]", 0), {"no JSON object"});
  require_refused(file_of("{\"a\":", 0), {"not valid JSON"});
  header(R"("a":3)", 0, {"tensor a has no description"});
  header(R"("a":{"shape":[],"data_offsets":[0,0]})", 0, {"a has no dtype"});
  header(tensor("a", "F31", "[2]", "[0,8]"), 8, {"a has the unknown type F31"});
  header(tensor("a", "F32", "[-2]", "[0,8]"), 8, {"a: shape has -2"});
  header(tensor("a", "F32", "[2.5]", "[0,8]"), 8, {"a: shape has 2.5"});
  header(tensor("a", "F32", "[[2]]", "[0,8]"), 8, {"a: shape has array"});
  header(tensor("a", "F32", "[18446744073709551615]", "[0,8]"), 8, {"shape has 18446744073709551"});
  header(tensor("a", "F32", "[4294967296,4294967296]", "[0,8]"), 8, {"impossibly large"});
  header(tensor("a", "F32", "2", "[0,8]"), 8, {"a has no list shape"});
  header(tensor("a", "F32", "[2]", "[0,8,8]"), 8, {"[0, 8, 8] are no range"});
  header(tensor("a", "F32", "[2]", "[8,0]"), 8, {"[8, 0] are no range"});
  header(tensor("a", "F32", "[2]", "[-8,0]"), 8, {"data_offsets has -8"});
  header(tensor("a", "F32", "[3]", "[0,8]"), 8, {"takes 12 bytes", "span 8"});
  const std::string a = tensor("a", "F32", "[2]", "[0,8]");
  header(a + "," + tensor("b", "F32", "[2]", "[4,12]"), 12, {"b overlaps", "byte 4", "ends at 8"});
  header(a + "," + tensor("b", "F32", "[2]", "[12,20]"), 20, {"4 bytes before tensor b"});
  header(a + "," + a, 8, {"a appears twice"});
  header(a + R"(,"__metadata__":{"x":1})", 8, {"__metadata__", "no string"});
}

// Each mutated file is either refused with an InputError, or all of its tensors can be read: under
// AddressSanitizer no byte outside the file is touched.
TEST_CASE("a thousand broken headers crash nothing", "[safetensors]") {
  const TemporaryDirectory directory;
  const size_t header_end = kGood.size() - 11;
  int refused = 0, read = 0;
  for (uint32_t trial = 0; trial < 1000; ++trial) {
    std::string content = kGood;
    const Philox4 dice = philox(trial, 0, 0, 0, 0xF022, 0);
    for (uint32_t i = 0; i <= dice.x[0] % 3; ++i) {
      const Philox4 change = philox(trial, i + 1, 0, 0, 0xF022, 0);
      const size_t at = change.x[0] % header_end;
      const char byte = static_cast<char>(change.x[2]);
      if (change.x[1] % 4 == 0)
        content.erase(at, 1 + change.x[2] % 4);
      else if (change.x[1] % 4 == 1)
        content.insert(at, 1, change.x[3] % 2 ? byte : "0123456789[]{},:\""[change.x[2] % 17]);
      else if (change.x[1] % 4 == 2)
        content[at] = static_cast<char>('0' + change.x[2] % 10);
      else
        content[at] = byte;
    }
    const std::string path = directory.write("x.safetensors", content);
    try {
      const SafetensorsFile file(path);
      int64_t sum = 0;
      for (const auto& [name, entry] : file.entries())
        for (int64_t i = 0; i < entry.bytes; ++i) sum += static_cast<int64_t>(entry.data[i]);
      CHECK(sum >= 0);
      ++read;
    } catch (const InputError&) {
      ++refused;
    }
  }
  INFO(refused << " refused, " << read << " read");
  CHECK(refused + read == 1000);
  CHECK(refused > 500);
  CHECK(read > 5);  // names and metadata may change: mutations do reach behind the parser
}
