// How many CPUs this process may use.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera::cpu {

// The number of CPUs that this process may use: those of its affinity or of its cgroups' quota,
// whichever are fewer; at least 1. It is found once per process, because finding it takes
// microseconds. Where affinity or quota change later, the number stays and results are the same;
// the pool's threads still run only where their caller may (ThreadPool::place).
int available_cores();

// The CPUs that the quotas of a process's cgroups allow, with a fraction of one counted as a whole
// one; none: no quota. The group's own quota and those of all groups around it count, in cgroup v2
// (cpu.max) and v1 (cpu.cfs_quota_us), under the usual mount point /sys/fs/cgroup. `read` returns
// the text of a file; empty: there is none.
using ReadFile = std::function<std::string(const std::string& path)>;
std::optional<int> cgroup_cpus(const ReadFile& read);

}  // namespace tessera::cpu
