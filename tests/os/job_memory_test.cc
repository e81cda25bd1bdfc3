// SPDX-License-Identifier: MIT
#include "os/windows/job_memory.h"

#include <gtest/gtest.h>

#include <cstring>

#include "os/pages.h"
#include "os/windows/system.h"

namespace sharpi::os {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(WithinAJob, WithoutLimitsTheMachineIsTheBound) {
  const HostMemory memory = within_job({}, {1000 * kMiB, 800 * kMiB});
  EXPECT_EQ(memory.total, 1000 * kMiB);
  EXPECT_EQ(memory.free, 800 * kMiB);
}

TEST(WithinAJob, WhatIsCommittedNowIsTakenFromTheLimit) {
  const JobMemory job{.job_limit = 500 * kMiB, .job_used = 120 * kMiB};
  const HostMemory memory = within_job(job, {1000 * kMiB, 800 * kMiB});
  EXPECT_EQ(memory.total, 500 * kMiB);
  EXPECT_EQ(memory.free, 380 * kMiB);
}

TEST(WithinAJob, EachLimitHasItsOwnUse) {
  // The job's processes use more than this process may, which has nothing to do with its own limit.
  const JobMemory job{.process_limit = 200 * kMiB,
                      .process_used = 50 * kMiB,
                      .job_limit = 900 * kMiB,
                      .job_used = 600 * kMiB};
  EXPECT_EQ(within_job(job, {1000 * kMiB, 800 * kMiB}).free, 150 * kMiB);
  const JobMemory full{.process_limit = 200 * kMiB,
                       .process_used = 10 * kMiB,
                       .job_limit = 900 * kMiB,
                       .job_used = 880 * kMiB};
  EXPECT_EQ(within_job(full, {1000 * kMiB, 800 * kMiB}).free, 20 * kMiB);
}

TEST(WithinAJob, WhatCannotBeAskedIsThePeak) {
  EXPECT_EQ(committed_by_job(GetCurrentProcess(), 77 * kMiB), 77 * kMiB);  // no job at all
}

TEST(WithinAJob, MoreThanTheLimitLeavesNextToNothing) {
  const JobMemory job{.job_limit = 100 * kMiB, .job_used = 130 * kMiB};
  EXPECT_EQ(within_job(job, {1000 * kMiB, 800 * kMiB}).free, 1u);
}

/// What was taken and given back counts no more: the peak of a job never falls.
TEST(Job, MemoryThatWasGivenBackIsFreeAgain) {
  const HANDLE job = CreateJobObjectW(nullptr, nullptr);
  ASSERT_NE(job, nullptr);
  ASSERT_TRUE(AssignProcessToJobObject(job, GetCurrentProcess()));
  const uint64_t before = committed_by_job(job, kNoLimit);
  if (before == kNoLimit) GTEST_SKIP() << "this system does not say what a job's processes hold";
  int error = 0;
  constexpr uint64_t kTaken = 256 * kMiB;
  std::byte* p = map_pages(kTaken, Access::kReadWrite, &error);
  ASSERT_NE(p, nullptr) << error;
  std::memset(p, 1, kTaken);
  const uint64_t with = committed_by_job(job, 0);
  unmap_pages(p, kTaken);
  const uint64_t after = committed_by_job(job, 0);
  EXPECT_GE(with, before + kTaken / 2);
  EXPECT_LE(after, with - kTaken / 2);
  CloseHandle(job);
}

}  // namespace
}  // namespace sharpi::os
