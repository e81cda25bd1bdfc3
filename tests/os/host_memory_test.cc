// SPDX-License-Identifier: MIT
#include "os/host_memory.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/host_info.h"
#include "base/thread_pool.h"
#include "os/linux/control_groups.h"
#include "os/processors.h"

namespace sharpi::os {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

/// A folder that stands for a machine's root: 1000 MiB, of which 800 can be had.
class HostFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "sharpi-host-" + std::to_string(getpid());
    std::filesystem::remove_all(root_);
    write("/proc/meminfo",
          "MemTotal:       1024000 kB\nMemFree:           1024 kB\nMemAvailable:    819200 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// A group of version 2, in MiB; no limit is "max".
  void group(const std::string& path, uint64_t limit, uint64_t used, uint64_t inactive = 0,
             uint64_t active = 0) {
    const std::string folder = "/sys/fs/cgroup" + path;
    write(folder + "/memory.max",
          limit == kNoLimit ? "max\n" : std::to_string(limit * kMiB) + "\n");
    write(folder + "/memory.current", std::to_string(used * kMiB) + "\n");
    write(folder + "/memory.stat",
          "anon 4096\nfile 8192\nworkingset_restore_active_file 77\n"
          "inactive_file " +
              std::to_string(inactive * kMiB) + "\nactive_file " + std::to_string(active * kMiB) +
              "\n");
  }
  /// A group of version 1, in MiB.
  void old_group(const std::string& path, uint64_t limit, uint64_t used, uint64_t cache) {
    const std::string folder = "/sys/fs/cgroup/memory" + path;
    const uint64_t bytes = limit == kNoLimit ? 9223372036854771712u : limit * kMiB;
    write(folder + "/memory.limit_in_bytes", std::to_string(bytes) + "\n");
    write(folder + "/memory.usage_in_bytes", std::to_string(used * kMiB) + "\n");
    write(folder + "/memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file " +
                                       std::to_string(cache * kMiB) +
                                       "\ntotal_active_file 1048576\n");
  }
  void expect(uint64_t total, uint64_t free) {
    const HostMemory memory = host_memory(root_, {50 * kMiB, 5 * kMiB});
    EXPECT_EQ(memory.total, total * kMiB);
    EXPECT_EQ(memory.free, free * kMiB);
  }

  std::string root_;
};

TEST_F(HostFiles, WithoutGroupsTheMachineIsTheBound) {
  expect(1000, 800);
}

TEST_F(HostFiles, WithoutMeminfoTheSystemCallIsAsked) {
  write("/proc/meminfo", "MemTotal:  1024000 kB\nMemFree:  1024 kB\n");
  expect(1000, 5);
  std::filesystem::remove(root_ + "/proc/meminfo");
  expect(50, 5);
}

TEST_F(HostFiles, WhatCannotBeKnownIsUnknown) {
  const HostMemory none = host_memory(root_ + "/nowhere", {});
  EXPECT_EQ(none.total, kNoLimit);
  EXPECT_EQ(none.free, kNoLimit);
  write("/sys/fs/cgroup/memory.max", "");
  expect(1000, 800);
  // The limit is known without what is used of it.
  write("/sys/fs/cgroup/memory.max", "104857600\n");
  expect(100, 100);
}

TEST_F(HostFiles, MemAvailableOfZeroIsZero) {
  write("/proc/meminfo", "MemTotal:  1024000 kB\nMemAvailable:  0 kB\n");
  expect(1000, 0);
}

TEST_F(HostFiles, TheRootGroupBoundsContainersThatSeeNoOther) {
  group("", 500, 300);
  expect(500, 200);
  write("/proc/self/cgroup", "0::/docker/that-is-not-here\n");
  expect(500, 200);
  write("/proc/self/cgroup", "0::/../../elsewhere\n");
  group("/../../elsewhere", 70, 30);  // of whatever it is
  expect(500, 200);
  group("", kNoLimit, 300);
  expect(1000, 800);
}

TEST_F(HostFiles, PageCacheOfAGroupIsNotUsed) {
  group("", 500, 490, 300, 100);
  expect(500, 410);
  group("", 500, 490, 300, 900);  // never more than the limit
  expect(500, 500);
  group("", 500, 600);
  expect(500, 0);
}

TEST_F(HostFiles, TheSmallestGroupAboveTheProcessCounts) {
  write("/proc/self/cgroup", "0::/system.slice/my:service.service\n");
  group("", kNoLimit, 900);
  group("/system.slice", 400, 100, 20, 5);
  group("/system.slice/my:service.service", kNoLimit, 10);
  expect(400, 325);
  group("/system.slice/my:service.service", 64, 24, 10, 2);
  expect(64, 52);
  group("/system.slice", 80, 70);  // the smaller limit is not always the smaller rest
  expect(64, 10);
}

TEST_F(HostFiles, GroupsOfVersionOneCountAsWell) {
  write("/proc/self/cgroup", "9:name=systemd:/x\n5:cpuset,memory,pids:/batch/job\n0::/\n");
  old_group("", kNoLimit, 900, 0);
  old_group("/batch", 300, 250, 99);
  old_group("/batch/job", kNoLimit, 1, 0);
  expect(300, 150);
  old_group("/batch/job", 100, 90, 19);
  expect(100, 30);
  write("/proc/self/cgroup", "5:notmemory:/batch/job\n");
  expect(1000, 800);
}

TEST_F(HostFiles, GroupsOfVersionTwoMayLieBesideThoseOfOne) {
  write("/proc/self/cgroup", "5:memory:/old\n0::/new\n");
  old_group("/old", 300, 200, 0);
  group("/unified/new", 400, 370);
  expect(300, 30);
}

// Files are read in pieces of 4096 bytes, of which each may end anywhere in a line.
TEST_F(HostFiles, LinesMayBeOfAnyLength) {
  group("", 500, 300);
  for (size_t length = 4050; length < 4100; ++length) {
    const std::string long_line = std::string(length, 'x') + "\n";
    write("/proc/self/cgroup", "0::/\n");
    write("/proc/meminfo", "MemTotal:  102400 kB\n" + long_line + "MemAvailable:  20480 kB");
    expect(100, 20);
    write("/proc/meminfo", "MemTotal:  1024000 kB\n" + long_line + "MemAvailable:  819200 kB\n");
    write("/proc/self/cgroup", "1:" + long_line + "0::/here\n");
    group("/here", 400, 390);
    expect(400, 10);
  }
}

TEST_F(HostFiles, GroupsWithoutALimitTellNothing) {
  old_group("", kNoLimit, 900, 0);
  const HostMemory memory = host_memory(root_, {});
  EXPECT_EQ(memory.total, 1000 * kMiB);
  std::filesystem::remove(root_ + "/proc/meminfo");
  const HostMemory none = host_memory(root_, {});
  EXPECT_EQ(none.total, kNoLimit);
  EXPECT_EQ(none.free, kNoLimit);
}

TEST_F(HostFiles, WithoutAQuotaProcessorsAreUnbounded) {
  EXPECT_EQ(cpu_quota(root_), INFINITY);
  write("/proc/self/cgroup", "2:cpu,cpuacct:/batch\n0::/new\n");
  EXPECT_EQ(cpu_quota(root_), INFINITY);
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/new/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root_), INFINITY);
  for (const char* damaged : {"", "\n", "100000\n", "100000 \n", "100000 0\n", "x 100000\n"}) {
    write("/sys/fs/cgroup/new/cpu.max", damaged);
    EXPECT_EQ(cpu_quota(root_), INFINITY) << damaged;
  }
}

TEST_F(HostFiles, TheSmallestCpuQuotaAboveTheProcessCounts) {
  write("/proc/self/cgroup", "0::/system.slice/a.service\n");
  write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/system.slice/cpu.max", "400000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 4);
  write("/sys/fs/cgroup/system.slice/a.service/cpu.max", "75000 50000\n");
  EXPECT_EQ(cpu_quota(root_), 1.5);
  write("/sys/fs/cgroup/system.slice/cpu.max", "20000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 0.2);
  write("/proc/self/cgroup", "0::/docker/that-is-not-here\n");
  write("/sys/fs/cgroup/cpu.max", "300000 100000\n");  // a container that sees no other group
  EXPECT_EQ(cpu_quota(root_), 3);
}

TEST_F(HostFiles, CpuQuotasOfVersionOneCountAsWell) {
  write("/proc/self/cgroup", "7:cpuacct:/other\n4:cpu:/batch/job\n0::/\n");
  write("/sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "200000\n");
  write("/sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), 2);
  write("/sys/fs/cgroup/cpu/batch/job/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(cpu_quota(root_), 2);  // of nothing that is known
  write("/sys/fs/cgroup/cpu/batch/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), 0.5);
  write("/sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "1000\n");
  write("/sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/unified/cpu.max", "25000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 0.25);
}

TEST(ProcessorsOfThisMachine, AreThoseOfTheAffinityAndTheQuota) {
  const uint32_t n = usable_cpus();
  const double quota = cpu_quota("");
  EXPECT_GE(n, 1u);
  EXPECT_LE(n, std::max(1.0, std::ceil(quota)));
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_LE(n, static_cast<uint32_t>(CPU_COUNT(&before)));
  EXPECT_EQ(ThreadPool::create(0).value()->size(), n);
  size_t first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cpus(), 1u);
  EXPECT_EQ(ThreadPool::create(0).value()->size(), 1u);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(HostMemoryOfThisMachine, IsKnownWithoutFileDescriptors) {
  const HostMemory system = system_memory();
  EXPECT_NE(system.total, kNoLimit);
  EXPECT_GT(system.free, 0u);
  EXPECT_GE(system.total, system.free);
  EXPECT_GT(host_free_bytes(), 0u);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const uint64_t free = host_free_bytes(), total = host_total_bytes();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_GT(free, 0u);
  EXPECT_GT(total, 0u);
  EXPECT_NE(total, kNoLimit);
}

}  // namespace
}  // namespace sharpi::os
