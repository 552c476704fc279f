#include "comm/solo_communicator.h"

#include "runtime/error.h"
#include "tests/catch.h"

using namespace maxim;

TEST_CASE("solo: the collectives of one rank copy") {
  SoloCommunicator solo;
  std::vector<float> mine = {1, 2, 3, 4, 5, 6}, all(6, -1), back(6, -1);
  solo.all_gather(Tensor::of(all, 3, 2), Tensor::of(mine, 3, 2), {3});
  CHECK(all == mine);
  solo.reduce_scatter(Tensor::of(back, 3, 2), Tensor::of(all, 3, 2), {3});
  CHECK(back == mine);
  solo.all_reduce(Tensor::of(back), Reduction::sum);
  solo.all_reduce(Tensor::of(back), Reduction::max);
  solo.broadcast(Tensor::of(back), 0);
  solo.barrier();
  CHECK(back == mine);
  CHECK(solo.bytes_sent() == 0);
  CHECK(solo.all_gather_host(7) == std::vector<int64_t>{7});
  CHECK(solo.all_gather_text("a") == std::vector<std::string>{"a"});
  CHECK(solo.sum_host({1.5, 2}) == std::vector<double>{1.5, 2});
  std::vector<int32_t> list;
  std::vector<int64_t> parts;
  solo.all_gather_list(list, parts, {4, 5});
  CHECK(list == std::vector<int32_t>{4, 5});
  CHECK(parts == std::vector<int64_t>{2});
}

TEST_CASE("solo: gathering in place, and no rows") {
  SoloCommunicator solo;
  std::vector<int32_t> all = {1, 2, 3};
  solo.all_gather(Tensor::of(all), Tensor::of(all), {3});
  CHECK(all == std::vector<int32_t>{1, 2, 3});
  const Tensor none(nullptr, DType::f32, 0, 4);
  solo.all_gather(none, none, {0});
  solo.reduce_scatter(none, none, {0});
}

TEST_CASE("solo: what does not fit is refused") {
  SoloCommunicator solo;
  std::vector<float> two(2), three(3);
  std::vector<int32_t> whole(3);
  CHECK_THROWS_AS(solo.all_gather(Tensor::of(three), Tensor::of(two), {2}), Error);
  CHECK_THROWS_AS(solo.all_gather(Tensor::of(three), Tensor::of(three), {3, 0}), Error);
  CHECK_THROWS_AS(solo.all_gather(Tensor::of(three), Tensor::of(whole), {3}), Error);
  CHECK_THROWS_AS(solo.reduce_scatter(Tensor::of(whole), Tensor::of(whole), {3}), Error);
  CHECK_THROWS_AS(solo.all_reduce(Tensor::of(whole), Reduction::sum), Error);
  CHECK_THROWS_AS(solo.broadcast(Tensor::of(two), 1), Error);
}

TEST_CASE("solo: checked keeps the message and the kind of error") {
  SoloCommunicator solo;
  int ran = 0;
  solo.checked([&] { ++ran; });
  CHECK(ran == 1);
  CHECK_THROWS_AS(solo.checked([] { fail_input("bad"); }), InputError);
  CHECK_THROWS_WITH(solo.checked([] { fail_input("bad\nrow"); }), "bad\nrow");
  CHECK_THROWS_WITH(solo.checked([] { fail("full"); }), "full");
  CHECK_THROWS_WITH(solo.checked([] { throw std::bad_alloc(); }), "out of memory");
  try {
    solo.checked([] { fail("full"); });
  } catch (const InputError&) {
    FAIL("an Error became an InputError");
  } catch (const Error&) {
  }
}
