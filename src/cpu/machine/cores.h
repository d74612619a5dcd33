// How many CPUs this process may use.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera::cpu {

// The CPUs of this process: those that its affinity allows or its cgroups' quota pays for, whichever are fewer; at least
// 1. Found once a process, at first use: asking costs microseconds. Where affinity or quota change later the number
// stays, results are the same, and the pool's threads go only where their caller may (ThreadPool::place).
int available_cores();

// The CPUs that the quotas of a process's cgroups pay for, a fraction of one counting as a whole one; none: no quota.
// The group's own and every group around it count, in cgroup v2 (cpu.max) and v1 (cpu.cfs_quota_us), under the usual
// mount point /sys/fs/cgroup. `read` gives the text of a file; empty: there is none.
using ReadFile = std::function<std::string(const std::string& path)>;
std::optional<int> cgroup_cpus(const ReadFile& read);

}  // namespace tessera::cpu
