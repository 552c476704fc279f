// The host a rank runs on: its name, and which of its CPUs the rank should use.
#pragma once

#include <string>
#include <vector>

namespace maxim {

std::string host_name();
// Name and boot: tells hosts of one name apart, and containers of one host.
std::string host_id();

// Logical CPUs, ascending.
using CpuList = std::vector<int>;

// CPUs that the scheduler lets process `pid` use (0: this one).
CpuList affinity_of(int pid);
// Binds this process to `cpus` (threads started from now on inherit it). False if the system says
// no.
bool set_affinity(const CpuList& cpus);
// What mpirun or its daemon may use, found among the ancestors of this process: the CPUs of the
// job before mpirun pinned the rank. affinity_of(0) when there is no such ancestor.
CpuList launcher_affinity();

// CPUs that a cgroup's quota pays for (cpu.max of version 2 from this process's group upwards,
// cpu.cfs_quota_us of version 1); infinite without a quota. `root` is /sys/fs/cgroup, `group` this
// process's version 2 path.
double cpu_quota(const std::string& root, const std::string& group);
double cpu_quota();

// `cpus` by physical core, the cores of one socket side by side.
std::vector<CpuList> cores_of(const CpuList& cpus);

struct CpuShare {
  CpuList cpus;     // to bind to
  int threads = 1;  // to start
};
// The share of rank `index` of `count` ranks on these cores: its own contiguous cores, sizes
// differing by at most one, one thread a core, not more than quota / count threads. More ranks than
// cores: all of them share all cores with one thread each.
CpuShare share_of(const std::vector<CpuList>& cores, double quota, int index, int count);

}  // namespace maxim
