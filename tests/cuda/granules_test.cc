// SPDX-License-Identifier: MIT
// Which granules of device memory ranges share, which they copy and which they give back: with a
// driver whose memory is the host's, so that every byte that a fork would read can be looked at.
#include "cuda/granules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace sharpi::cuda {
namespace {

constexpr uint64_t kGranule = 16, kMost = 8;

class FakeDriver final : public GranuleDriver {
 public:
  Result<uint64_t> create() const override {
    if (fails()) return Status::error(Code::kOutOfMemory, "no memory");
    memory[++next_] = std::vector<uint8_t>(kGranule, 0xEE);
    return uint64_t{next_};
  }
  void release(uint64_t handle) const noexcept override {
    for (const auto& [address, mapped] : at) EXPECT_NE(mapped, handle) << "mapped at " << address;
    EXPECT_EQ(memory.erase(handle), 1u);
  }
  Status map(uint64_t address, uint64_t handle) const override {
    EXPECT_TRUE(memory.contains(handle));
    EXPECT_FALSE(at.contains(address)) << "what is mapped has to be unmapped first";
    if (fails()) return Status::error(Code::kDevice, "not mapped");
    at[address] = handle;
    return Status::ok();
  }
  void unmap(uint64_t address) const noexcept override { EXPECT_EQ(at.erase(address), 1u); }
  Status clear(uint64_t address, uint64_t bytes) const override {
    if (fails()) return Status::error(Code::kDevice, "not cleared");
    for (uint64_t i = 0; i < bytes; ++i) byte(address + i) = 0;
    return Status::ok();
  }
  Status copy(uint64_t handle, uint64_t from) const override {
    if (fails()) return Status::error(Code::kDevice, "not copied");
    memory.at(handle) = memory.at(at.at(from));
    return Status::ok();
  }
  void lose(const Status&) const noexcept override { ++n_lost; }
  uint8_t& byte(uint64_t address) const {
    return memory.at(at.at(address / kGranule * kGranule))[address % kGranule];
  }

  mutable std::map<uint64_t, std::vector<uint8_t>> memory;
  mutable std::map<uint64_t, uint64_t> at;  // address -> handle
  mutable int fail_in = 0, n_lost = 0;      // the n-th request from now fails
 private:
  bool fails() const { return fail_in > 0 && --fail_in == 0; }
  mutable uint64_t next_ = 0;
};

/// A range with what it should hold.
struct Range {
  Range(const std::shared_ptr<FakeDriver>& driver, uint64_t base)
      : address(base), granules(driver, base, kGranule, kMost) {}
  uint64_t address;
  Granules granules;
  std::vector<uint8_t> want;
};

class GranulesTest : public ::testing::Test {
 protected:
  Range make() { return Range(driver_, kGranule * 1000 * ++n_ranges_); }
  std::unique_ptr<Range> made(uint64_t bytes) {
    auto r = std::make_unique<Range>(driver_, kGranule * 1000 * ++n_ranges_);
    EXPECT_TRUE(r->granules.commit(bytes).is_ok());
    r->want.resize(r->granules.committed(), 0);
    return r;
  }
  void write(Range& r, uint64_t from, uint64_t to, uint8_t value) {
    for (uint64_t i = from; i < to; ++i) {
      ASSERT_GE(i, r.granules.writable_from());
      driver_->byte(r.address + i) = r.want[i] = value;
    }
  }
  /// As Session::fork() does: what the first `rows` bytes fill is shared, the rest copied.
  std::unique_ptr<Range> fork(Range& of, uint64_t rows) {
    of.granules.make_shared(rows, [this](uint64_t bytes) { freed_ += bytes; });
    auto r = std::make_unique<Range>(driver_, kGranule * 1000 * ++n_ranges_);
    EXPECT_TRUE(r->granules.share_from(of.granules, rows).is_ok());
    EXPECT_TRUE(r->granules.commit(of.granules.committed()).is_ok());
    r->want = of.want;
    for (uint64_t i = r->granules.writable_from(); i < r->want.size(); ++i)
      driver_->byte(r->address + i) = r->want[i];
    return r;
  }
  void expect_whole(const Range& r) {
    ASSERT_EQ(r.want.size(), r.granules.committed());
    for (uint64_t i = 0; i < r.want.size(); ++i)
      ASSERT_EQ(driver_->byte(r.address + i), r.want[i]) << "byte " << i;
  }
  uint64_t taken() const { return driver_->memory.size() * kGranule; }
  std::shared_ptr<FakeDriver> driver_ = std::make_shared<FakeDriver>();
  uint64_t n_ranges_ = 0, freed_ = 0;
};

TEST_F(GranulesTest, ForksHoldTheirPrefixOnce) {
  auto a = made(6 * kGranule);
  write(*a, 0, 6 * kGranule, 7);
  auto b = fork(*a, 4 * kGranule + 5), c = fork(*b, 4 * kGranule);
  EXPECT_EQ(taken(), (6 + 2 + 2) * kGranule);
  for (const Range* r : {a.get(), b.get(), c.get()}) {
    EXPECT_EQ(r->granules.writable_from(), 4 * kGranule);
    EXPECT_EQ(r->granules.private_bytes(), 2 * kGranule);
    EXPECT_EQ(r->granules.shared_bytes(), 4 * kGranule);
    expect_whole(*r);
  }
  a.reset();  // whoever came first may go first
  expect_whole(*b);
  EXPECT_EQ(taken(), (4 + 2 + 2) * kGranule);
  b.reset();
  EXPECT_EQ(c->granules.shared_bytes(), 0u);
  EXPECT_EQ(freed_, 0u);
  c.reset();
  EXPECT_EQ(freed_, 4 * kGranule) << "once, when the last one went";
  EXPECT_EQ(taken(), 0u);
}

TEST_F(GranulesTest, AWriterTakesGranulesOfItsOwnAndNobodyElseSeesIt) {
  auto a = made(5 * kGranule);
  write(*a, 0, 5 * kGranule, 1);
  auto b = fork(*a, 4 * kGranule);
  EXPECT_EQ(a->granules.own_bytes_of(2 * kGranule + 3), 2 * kGranule);
  ASSERT_TRUE(a->granules.own(2 * kGranule + 3).is_ok());
  EXPECT_EQ(a->granules.writable_from(), 2 * kGranule);
  EXPECT_EQ(a->granules.shared_bytes(), 2 * kGranule);
  EXPECT_EQ(a->granules.private_bytes(), 3 * kGranule);
  expect_whole(*a);
  write(*a, 2 * kGranule, 5 * kGranule, 2);
  expect_whole(*b);
  // The other one is alone with them now: it writes them where they are.
  EXPECT_EQ(b->granules.own_bytes_of(2 * kGranule), 0u);
  const uint64_t before = taken();
  ASSERT_TRUE(b->granules.own(2 * kGranule).is_ok());
  EXPECT_EQ(taken(), before);
  write(*b, 2 * kGranule, 5 * kGranule, 3);
  expect_whole(*a);
  expect_whole(*b);
  EXPECT_EQ(a->granules.own_bytes_of(4 * kGranule), 0u) << "appending takes nothing";
}

TEST_F(GranulesTest, WhatFailsOnTheWayChangesNothingThatIsRead) {
  for (int n = 1; n < 12; ++n) {
    SCOPED_TRACE(n);
    auto a = made(4 * kGranule);
    write(*a, 0, 4 * kGranule, 9);
    auto b = fork(*a, 3 * kGranule);
    driver_->fail_in = n;
    const Status owned = a->granules.own(0);
    const bool failed = driver_->fail_in == 0;
    driver_->fail_in = 0;
    EXPECT_EQ(owned.is_ok(), !failed);
    expect_whole(*a);
    expect_whole(*b);
    EXPECT_EQ(a->granules.writable_from(), failed ? 3 * kGranule : 0u);
    // What was copied counts as its own; the rest is still to come.
    EXPECT_EQ(a->granules.own_bytes_of(0) + a->granules.private_bytes(), 4 * kGranule);
    ASSERT_TRUE(a->granules.own(0).is_ok());
    write(*a, 0, 4 * kGranule, 4);
    expect_whole(*b);
    auto c = fork(*a, 4 * kGranule);
    expect_whole(*c);
  }
  EXPECT_EQ(driver_->n_lost, 0);
  EXPECT_EQ(taken(), 0u);
  auto a = made(3 * kGranule);
  a->granules.make_shared(3 * kGranule, nullptr);
  Range b = make();
  driver_->fail_in = 3;
  EXPECT_FALSE(b.granules.share_from(a->granules, 3 * kGranule).is_ok());
  EXPECT_EQ(b.granules.committed(), 0u);
  EXPECT_EQ(a->granules.shared_bytes(), 0u);
  driver_->fail_in = 4;  // the second granule is not mapped
  EXPECT_FALSE(b.granules.commit(2 * kGranule).is_ok());
  EXPECT_EQ(b.granules.committed(), 0u);
}

/// Ranges that are forked, cut, grown, written and dropped at random hold what they should, and the
/// memory taken is what they count.
TEST_F(GranulesTest, RandomSequences) {
  std::mt19937 random(20261123);
  const auto upto = [&](uint64_t n) { return random() % (n + 1); };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::unique_ptr<Range>> all;
    uint64_t lent = 0;  // what left the ranges' own count for shared granules
    freed_ = 0;
    all.push_back(made(kMost * kGranule));
    for (int step = 0; step < 60; ++step) {
      Range& r = *all[upto(all.size() - 1)];
      const uint64_t held = r.granules.committed(), locked = r.granules.writable_from();
      switch (upto(4)) {
        case 0: {
          if (all.size() == 5) break;
          const uint64_t before = r.granules.private_bytes();
          all.push_back(fork(r, std::max(locked, upto(held))));
          lent += before - r.granules.private_bytes();
          break;
        }
        case 1: {
          const uint64_t from = upto(held), cost = r.granules.own_bytes_of(from);
          const uint64_t before = r.granules.private_bytes(), memory = taken();
          driver_->fail_in = static_cast<int>(upto(6));
          const Status owned = r.granules.own(from);
          const bool failed = !owned.is_ok();
          driver_->fail_in = 0;
          ASSERT_LE(r.granules.private_bytes() - before, cost);
          if (!failed) {
            ASSERT_EQ(taken() - memory, cost);
            ASSERT_LE(r.granules.writable_from(), from);
          }
          break;
        }
        case 2:
          write(r, r.granules.writable_from(), held, static_cast<uint8_t>(upto(255)));
          break;
        case 3: {
          const uint64_t kept = upto(held);
          r.granules.decommit(kept);
          ASSERT_GE(r.granules.committed(), kept);
          ASSERT_LT(r.granules.committed(), kept + kGranule);
          r.want.resize(r.granules.committed());
          break;
        }
        default:
          if (upto(3) == 0 && all.size() > 1) {
            all.erase(all.begin() + static_cast<std::ptrdiff_t>(upto(all.size() - 1)));
          } else {
            ASSERT_TRUE(r.granules.commit(upto(kMost * kGranule)).is_ok());
            r.want.resize(r.granules.committed(), 0);
          }
      }
      uint64_t own = 0;
      for (const auto& one : all) {
        expect_whole(*one);
        own += one->granules.private_bytes();
      }
      ASSERT_EQ(taken(), own + lent - freed_);
    }
    all.clear();
    ASSERT_EQ(taken(), 0u);
    ASSERT_EQ(freed_, lent);
    ASSERT_TRUE(driver_->at.empty());
  }
  EXPECT_EQ(driver_->n_lost, 0);
}

}  // namespace
}  // namespace sharpi::cuda
