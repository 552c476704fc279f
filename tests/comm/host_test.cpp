#include "comm/host.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "runtime/files.h"
#include "tests/catch.h"

using namespace maxim;

TEST_CASE("host: every rank gets its own contiguous cores, as even as can be") {
  // 5 cores of two hardware threads, CPU numbers as Linux gives them.
  const std::vector<CpuList> cores = {{0, 5}, {1, 6}, {2, 7}, {3, 8}, {4, 9}};
  CHECK(share_of(cores, INFINITY, 0, 1).cpus == CpuList{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(share_of(cores, INFINITY, 0, 1).threads == 5);
  CHECK(share_of(cores, INFINITY, 0, 2).cpus == CpuList{0, 1, 5, 6});
  CHECK(share_of(cores, INFINITY, 1, 2).cpus == CpuList{2, 3, 4, 7, 8, 9});
  CHECK(share_of(cores, INFINITY, 1, 2).threads == 3);
  for (int count = 1; count <= 5; ++count) {
    CpuList together;
    for (int i = 0; i < count; ++i) {
      const CpuShare share = share_of(cores, INFINITY, i, count);
      CHECK(share.threads * 2 == static_cast<int>(share.cpus.size()));
      together.insert(together.end(), share.cpus.begin(), share.cpus.end());
    }
    std::sort(together.begin(), together.end());
    CHECK(together == CpuList{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
}

TEST_CASE("host: more ranks than cores share all of them, one thread each") {
  for (int i = 0; i < 3; ++i) {
    const CpuShare share = share_of({{0}, {1}}, INFINITY, i, 3);
    CHECK(share.cpus == CpuList{0, 1});
    CHECK(share.threads == 1);
  }
}

TEST_CASE("host: a quota bounds the threads, not the CPUs") {
  const std::vector<CpuList> cores = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
  CHECK(share_of(cores, 2.5, 0, 1).threads == 2);
  CHECK(share_of(cores, 2.5, 0, 1).cpus.size() == 8);
  CHECK(share_of(cores, 6, 1, 2).threads == 3);
  CHECK(share_of(cores, 0.5, 0, 1).threads == 1);
  CHECK(share_of(cores, 100, 0, 2).threads == 4);
}

TEST_CASE("host: quotas of both cgroup versions") {
  const std::string root = "build/tests/cgroup_of_" + std::to_string(getpid());
  const auto quota = [&](const std::string& group) { return cpu_quota(root, group); };
  make_directories(root + "/a/b");
  make_directories(root + "/cpu");
  CHECK(std::isinf(quota("/a/b")));  // no files
  write_text(root + "/a/b/cpu.max", "max 100000\n");
  CHECK(std::isinf(quota("/a/b")));
  write_text(root + "/a/cpu.max", "150000 50000\n");
  CHECK(quota("/a/b") == 3);  // the parent's
  CHECK(quota("/a") == 3);
  CHECK(std::isinf(quota("/")));
  CHECK(std::isinf(quota("")));
  write_text(root + "/cpu.max", "50000 100000\n");
  CHECK(quota("/a/b") == 0.5);  // the tightest, here the root's (a container sees its own as root)
  CHECK(quota("/") == 0.5);
  CHECK(quota("") == 0.5);
  write_text(root + "/cpu/cpu.cfs_quota_us", "-1\n");
  write_text(root + "/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(quota("/a") == 0.5);
  write_text(root + "/cpu/cpu.cfs_quota_us", "25000\n");
  CHECK(quota("/a") == 0.25);
}

TEST_CASE("host: affinity can be read, set and is grouped by core") {
  const CpuList before = affinity_of(0);
  REQUIRE(!before.empty());
  CHECK(affinity_of(getpid()) == before);
  REQUIRE(set_affinity({before.back()}));
  CHECK(affinity_of(0) == CpuList{before.back()});
  REQUIRE(set_affinity(before));
  CHECK(affinity_of(0) == before);
  CpuList together;
  for (const CpuList& core : cores_of(before)) {
    CHECK(!core.empty());
    together.insert(together.end(), core.begin(), core.end());
  }
  std::sort(together.begin(), together.end());
  CHECK(together == before);
  CHECK(!host_name().empty());
}
