#include "comm/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <fstream>
#include <limits>
#include <map>

#include "runtime/error.h"

namespace maxim {
namespace {

constexpr int kMaxCpus = 8192;  // the largest CONFIG_NR_CPUS; glibc's cpu_set_t stops at 1024
struct CpuMask {
  alignas(cpu_set_t) std::array<unsigned char, kMaxCpus / CHAR_BIT> bytes{};
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(bytes.data()); }
};

// The first line of a small file, empty if it cannot be read.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Parent of a process, 0 if unknown. In /proc/PID/stat the name stands in parentheses and may
// contain anything, so the fields count from the last ')': state, parent.
int parent_of(int pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  const size_t end = line.rfind(')');
  int parent = 0;
  if (end != std::string::npos) std::sscanf(line.c_str() + end + 1, " %*c %d", &parent);
  return parent;
}

// quota / period of one cgroup; infinite if there is none.
double quota_of(const std::string& quota, const std::string& period) {
  const double q = std::atof(quota.c_str()), p = std::atof(period.c_str());
  return q > 0 && p > 0 ? q / p : std::numeric_limits<double>::infinity();
}

}  // namespace

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "unknown";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string host_id() { return host_name() + " " + first_line("/proc/sys/kernel/random/boot_id"); }

CpuList affinity_of(int pid) {
  CpuMask mask;
  CpuList cpus;
  if (sched_getaffinity(pid, sizeof(mask.bytes), mask.set()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu)
    if (CPU_ISSET_S(cpu, sizeof(mask.bytes), mask.set())) cpus.push_back(cpu);
  return cpus;
}

bool set_affinity(const CpuList& cpus) {
  CpuMask mask;
  for (const int cpu : cpus) CPU_SET_S(cpu, sizeof(mask.bytes), mask.set());
  return sched_setaffinity(0, sizeof(mask.bytes), mask.set()) == 0;
}

CpuList launcher_affinity() {
  static const std::array<const char*, 6> launchers = {"mpirun", "mpiexec", "orterun",
                                                       "orted",  "prterun", "prted"};
  for (int pid = getppid(); pid > 1; pid = parent_of(pid)) {
    const std::string name = first_line(fmt::format("/proc/{}/comm", pid));
    if (std::find(launchers.begin(), launchers.end(), name) == launchers.end()) continue;
    const CpuList cpus = affinity_of(pid);
    if (!cpus.empty()) return cpus;
  }
  return affinity_of(0);
}

double cpu_quota(const std::string& root, const std::string& group) {
  double quota = quota_of(first_line(root + "/cpu/cpu.cfs_quota_us"),
                          first_line(root + "/cpu/cpu.cfs_period_us"));
  // The tightest of the group and its ancestors holds. cpu.max reads "200000 100000" or "max
  // 100000".
  for (std::string path = group;; path.resize(path.rfind('/'))) {
    const std::string line = first_line(root + path + "/cpu.max");
    const size_t space = line.find(' ');
    if (space != std::string::npos)
      quota = std::min(quota, quota_of(line.substr(0, space), line.substr(space + 1)));
    if (path.find('/') == std::string::npos) break;
  }
  return quota;
}

double cpu_quota() {
  std::ifstream file("/proc/self/cgroup");
  std::string group;
  for (std::string line; std::getline(file, line);)
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  return cpu_quota("/sys/fs/cgroup", group);
}

std::vector<CpuList> cores_of(const CpuList& cpus) {
  // Some systems number the CPUs of two sockets alternately, so sockets come first in the order.
  std::map<std::pair<int, int>, CpuList> cores;  // by socket and the core's first hardware thread
  for (const int cpu : cpus) {
    const std::string topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
    const std::string siblings = first_line(topology + "thread_siblings_list");
    const int socket = std::atoi(first_line(topology + "physical_package_id").c_str());
    cores[{socket, siblings.empty() ? cpu : std::atoi(siblings.c_str())}].push_back(cpu);
  }
  std::vector<CpuList> list;
  for (const auto& [place, threads] : cores) list.push_back(threads);
  return list;
}

CpuShare share_of(const std::vector<CpuList>& cores, double quota, int index, int count) {
  MAXIM_CHECK(0 <= index && index < count && !cores.empty(), "rank {} of {} on {} cores", index,
              count, cores.size());
  const size_t n = cores.size();
  const bool enough = n >= static_cast<size_t>(count);
  const size_t begin = enough ? n * index / count : 0;
  const size_t end = enough ? n * (index + 1) / count : n;
  CpuShare share;
  for (size_t core = begin; core < end; ++core)
    share.cpus.insert(share.cpus.end(), cores[core].begin(), cores[core].end());
  std::sort(share.cpus.begin(), share.cpus.end());
  const double own = enough ? static_cast<double>(end - begin) : 1;
  share.threads = static_cast<int>(std::max(1.0, std::min(own, quota / count)));
  return share;
}

}  // namespace maxim
