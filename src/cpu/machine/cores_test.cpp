#include "cpu/machine/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <map>

namespace tessera::cpu {
namespace {

using Files = std::map<std::string, std::string>;

std::optional<int> cpus(const Files& files) {
  return cgroup_cpus([&](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::string() : found->second;
  });
}

const std::string kOwn = "/proc/self/cgroup";

TEST(Cores, QuotaOfVersion2) {
  auto with = [](const std::string& cpu_max) {
    return cpus({{kOwn, "0::/\n"}, {"/sys/fs/cgroup/cpu.max", cpu_max}});
  };
  EXPECT_EQ(with("200000 100000\n"), 2);
  EXPECT_EQ(with("100000 100000\n"), 1);
  EXPECT_EQ(with("150000 100000\n"), 2) << "a fraction of a CPU counts as one";
  EXPECT_EQ(with("1000 100000\n"), 1);
  EXPECT_EQ(with("max 100000\n"), std::nullopt);
  for (const char* text : {"", "\n", "max", "0 100000", "-5 100000", "100000", "100000 0", "100000 -1", "x y",
                           "9223372036854775807 1", "99999999999999999999 100000"}) {
    EXPECT_EQ(with(text), std::nullopt) << text;
  }
}

TEST(Cores, TheSmallestQuotaOfAllGroupsAroundAProcessCounts) {
  Files files{{kOwn, "0::/user.slice/job 7:a/inner\n"},
              {"/sys/fs/cgroup/user.slice/job 7:a/inner/cpu.max", "800000 100000"},
              {"/sys/fs/cgroup/user.slice/job 7:a/cpu.max", "300000 100000"},
              {"/sys/fs/cgroup/user.slice/cpu.max", "max 100000"},
              {"/sys/fs/cgroup/user.slice/other/cpu.max", "100000 100000"}};
  EXPECT_EQ(cpus(files), 3);
  files["/sys/fs/cgroup/cpu.max"] = "50000 50000";
  EXPECT_EQ(cpus(files), 1);
}

TEST(Cores, QuotaOfVersion1) {
  Files files{{kOwn, "11:cpuset:/\n4:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n"},
              {"/sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_quota_us", "-1\n"},
              {"/sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_period_us", "100000\n"},
              {"/sys/fs/cgroup/cpuset/cpu.max", "100000 100000"}};
  EXPECT_EQ(cpus(files), std::nullopt);
  files["/sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_quota_us"] = "250000\n";
  EXPECT_EQ(cpus(files), 3);
  // A container sees its own group at the root of the mount, under whatever name the host knows it.
  files.erase("/sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs_quota_us");
  files["/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"] = "100000\n";
  files["/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us"] = "50000\n";
  EXPECT_EQ(cpus(files), 2);
}

TEST(Cores, WhatIsNoListOfGroupsIsNoQuota) {
  const std::string maximum = "/sys/fs/cgroup/cpu.max";
  for (const char* text : {"", "\n\n", "0", "0:", "0::", "::", "0::relative", "0:cpuset:/"}) {
    EXPECT_EQ(cpus({{kOwn, text}, {maximum, "100000 100000"}}), std::nullopt) << text;
  }
}

TEST(Cores, NoMoreThanTheAffinityAllows) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), CPU_COUNT(&allowed));
}

}  // namespace
}  // namespace tessera::cpu
