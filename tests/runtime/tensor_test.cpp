#include "runtime/tensor.h"

#include "tests/catch.h"
#include "tests/reference/message_of.h"

using namespace maxim;
using maxim_tests::require_message;

TEST_CASE("a tensor counts its elements and bytes", "[tensor]") {
  std::vector<float> memory(24);
  const Tensor t(memory.data(), DType::f32, 2, 3, 4);
  CHECK(t.rank() == 3);
  CHECK(t.rows() == 2);
  CHECK(t.cols() == 12);
  CHECK(t.size() == 24);
  CHECK(t.bytes() == 96);
  const Tensor ids(memory.data(), DType::i64, 5);
  CHECK(ids.cols() == 1);
  CHECK(ids.bytes() == 40);
  CHECK(Tensor(memory.data(), DType::bf16, 3, 3).bytes() == 18);
}

TEST_CASE("empty and absent differ", "[tensor]") {
  const Tensor absent;
  CHECK(absent.absent());
  CHECK(absent.empty());
  CHECK(absent.size() == 0);
  std::vector<float> none;
  const Tensor empty(none.data(), DType::f32, 0, 7);
  CHECK_FALSE(empty.absent());
  CHECK(empty.empty());
  CHECK(empty.cols() == 7);
}

TEST_CASE("slice and reshape view the same memory", "[tensor]") {
  std::vector<float> memory(12);
  const Tensor t = Tensor::of(memory, 4, 3);
  const Tensor rows = t.slice(1, 3);
  CHECK(rows.rows() == 2);
  CHECK(rows.as<float>() == memory.data() + 3);
  CHECK(t.slice(4, 4).empty());
  CHECK(t.reshape(2, 6).cols() == 6);
  require_message<Error>([&] { t.slice(2, 5); }, {"rows [2, 5) of 4"});
  require_message<Error>([&] { t.slice(3, 2); }, {"rows [3, 2) of 4"});
  require_message<Error>([&] { t.reshape(5, 2); }, {"[5, 2] of 12 elements"});
}

TEST_CASE("a tensor is used as the type it has", "[tensor]") {
  std::vector<int32_t> memory(3);
  const Tensor t = Tensor::of(memory);
  CHECK(t.as<int32_t>() == memory.data());
  require_message<Error>([&] { t.as<float>(); }, {"i32", "f32"});
}
