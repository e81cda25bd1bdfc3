// SPDX-License-Identifier: MIT
// Which granules ranges share, which they copy and which they give back: over a memory of numbered
// blocks, so that every byte that a fork would read can be looked at.
#include "base/granules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace sharpi {
namespace {

constexpr uint64_t kGranule = 16, kMost = 8, kAll = UINT64_MAX;

/// What all ranges of a test have in common: blocks by number, and which addresses map them.
struct Blocks {
  Result<uint64_t> create() {
    if (fails()) return Status::error(Code::kOutOfMemory, "no memory");
    memory[++last] = std::vector<uint8_t>(kGranule, 0xEE);
    return uint64_t{last};
  }
  void release(uint64_t block) {
    for (const auto& [address, mapped] : at) EXPECT_NE(mapped, block) << "mapped at " << address;
    EXPECT_EQ(memory.erase(block), 1u);
  }
  Status map(uint64_t address, uint64_t block) {
    EXPECT_TRUE(memory.contains(block));
    EXPECT_FALSE(at.contains(address)) << "what is mapped has to be unmapped first";
    if (fails()) return Status::error(Code::kDevice, "not mapped");
    at[address] = block;
    return Status::ok();
  }
  void unmap(uint64_t address) { EXPECT_EQ(at.erase(address), 1u); }
  bool fails() { return fail_in > 0 && --fail_in == 0; }
  uint8_t& byte(uint64_t address) {
    return memory.at(at.at(address / kGranule * kGranule))[address % kGranule];
  }

  std::map<uint64_t, std::vector<uint8_t>> memory;
  std::map<uint64_t, uint64_t> at;  // address -> block
  int fail_in = 0;                  // the n-th request from now fails
  uint64_t last = 0;
};

class BlockPool final : public GranulePool {
 public:
  BlockPool(Blocks& blocks, GranuleRun run, std::function<void(uint64_t)> on_free)
      : GranulePool(run, std::move(on_free)), blocks_(blocks), of_(run.count()) {}
  uint64_t& block(uint64_t granule) { return of_[granule - first()]; }
  void give_back(GranuleRun run) noexcept override {
    for (uint64_t i = run.first; i < run.end; ++i) blocks_.release(block(i));
  }

 private:
  Blocks& blocks_;
  std::vector<uint64_t> of_;
};

class BlockMemory final : public GranuleMemory {
 public:
  BlockMemory(Blocks& blocks, uint64_t address, uint64_t step)
      : blocks_(blocks), address_(address), step_(step) {}
  uint64_t step() const override { return step_; }
  Status grow(GranuleRun run) override {
    for (uint64_t i = run.first; i < run.end; ++i) {
      auto made = blocks_.create();
      const Status mapped = made.is_ok() ? blocks_.map(at(i), made.value()) : made.take_status();
      if (mapped.is_ok()) {
        std::fill_n(blocks_.memory[made.value()].begin(), kGranule, uint8_t{0});
        continue;
      }
      if (made.is_ok()) blocks_.release(made.value());
      shrink({run.first, i});
      return mapped;
    }
    return Status::ok();
  }
  void shrink(GranuleRun run) noexcept override {
    for (uint64_t i = run.first; i < run.end; ++i) {
      const uint64_t block = blocks_.at.at(at(i));
      blocks_.unmap(at(i));
      blocks_.release(block);
    }
  }
  Result<std::shared_ptr<GranulePool>> pool(GranuleRun run,
                                            const std::function<void(uint64_t)>& on_free) override {
    if (!shares) return std::shared_ptr<GranulePool>();
    if (blocks_.fails()) return Status::error(Code::kOutOfMemory, "no pool");
    return std::shared_ptr<GranulePool>(std::make_shared<BlockPool>(blocks_, run, on_free));
  }
  Status lend(GranulePool& pool, GranuleRun run) override {
    EXPECT_LE(run.count(), step_);
    if (blocks_.fails()) return Status::error(Code::kOutOfMemory, "not lent");
    for (uint64_t i = run.first; i < run.end; ++i) of(pool, i) = blocks_.at.at(at(i));
    return Status::ok();
  }
  Status map(GranulePool& pool, GranuleRun run) override {
    for (uint64_t i = run.first; i < run.end; ++i) {
      const Status mapped = blocks_.map(at(i), of(pool, i));
      if (mapped.is_ok()) continue;
      unmap({run.first, i});
      return mapped;
    }
    return Status::ok();
  }
  void unmap(GranuleRun run) noexcept override {
    for (uint64_t i = run.first; i < run.end; ++i) blocks_.unmap(at(i));
  }
  Status replace(GranulePool& pool, GranuleRun run, uint64_t live) override {
    EXPECT_LE(run.count(), step_);
    if (blocks_.fails()) return Status::error(Code::kOutOfMemory, "not copied");
    for (uint64_t i = run.first; i < run.end; ++i) {
      EXPECT_EQ(blocks_.at.at(at(i)), of(pool, i));
      const uint64_t fresh = ++blocks_.last;
      blocks_.memory[fresh] = blocks_.memory.at(of(pool, i));
      for (uint64_t b = 0; b < kGranule; ++b) {
        if (i * kGranule + b >= live) blocks_.memory[fresh][b] = 0xDD;
      }
      blocks_.at[at(i)] = fresh;
    }
    return Status::ok();
  }
  Status protect(GranuleRun run, bool writable) override {
    if (blocks_.fails()) return Status::error(Code::kOutOfMemory, "not protected");
    for (uint64_t i = run.first; i < run.end; ++i) EXPECT_TRUE(blocks_.at.contains(at(i)));
    if (writable) n_opened += run.count();
    return Status::ok();
  }
  bool shares = true;
  uint64_t n_opened = 0;

 private:
  static uint64_t& of(GranulePool& pool, uint64_t i) {
    return static_cast<BlockPool&>(pool).block(i);
  }
  uint64_t at(uint64_t granule) const { return address_ + granule * kGranule; }
  Blocks& blocks_;
  const uint64_t address_, step_;
};

/// A range with what it should hold.
struct Range {
  Range(Blocks& blocks, uint64_t base, uint64_t step)
      : address(base), granules(std::make_unique<BlockMemory>(blocks, base, step), kGranule) {}
  uint64_t address;
  GranuleRange granules;
  std::vector<uint8_t> want;
};

/// With memory that goes by single granules, and by three at a time.
class GranulesTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  std::unique_ptr<Range> empty() {
    return std::make_unique<Range>(blocks_, kGranule * 1000 * ++n_ranges_, GetParam());
  }
  std::unique_ptr<Range> made(uint64_t bytes) {
    auto r = empty();
    EXPECT_TRUE(r->granules.commit(bytes).is_ok());
    r->want.resize(r->granules.committed(), 0);
    return r;
  }
  void write(Range& r, uint64_t from, uint64_t to, uint8_t value) {
    for (uint64_t i = from; i < to; ++i) {
      ASSERT_GE(i, r.granules.writable_from());
      blocks_.byte(r.address + i) = r.want[i] = value;
    }
  }
  /// As Session::fork() does: what the first `rows` bytes fill is shared, the rest copied.
  std::unique_ptr<Range> fork(Range& of, uint64_t rows) {
    EXPECT_TRUE(of.granules.make_shared(rows, [this](uint64_t bytes) { freed_ += bytes; }).is_ok());
    auto r = empty();
    EXPECT_TRUE(r->granules.share_from(of.granules, rows).is_ok());
    EXPECT_TRUE(r->granules.commit(of.granules.committed()).is_ok());
    r->want = of.want;
    for (uint64_t i = r->granules.writable_from(); i < r->want.size(); ++i)
      blocks_.byte(r->address + i) = r->want[i];
    return r;
  }
  void expect_whole(const Range& r) {
    ASSERT_EQ(r.want.size(), r.granules.committed());
    for (uint64_t i = 0; i < r.want.size(); ++i)
      ASSERT_EQ(blocks_.byte(r.address + i), r.want[i]) << "byte " << i;
  }
  uint64_t taken() const { return blocks_.memory.size() * kGranule; }
  Blocks blocks_;
  uint64_t n_ranges_ = 0, freed_ = 0;
};

TEST_P(GranulesTest, ForksHoldTheirPrefixOnce) {
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

TEST_P(GranulesTest, AWriterTakesGranulesOfItsOwnAndNobodyElseSeesIt) {
  auto a = made(5 * kGranule);
  write(*a, 0, 5 * kGranule, 1);
  auto b = fork(*a, 4 * kGranule);
  EXPECT_EQ(a->granules.own_bytes_of(2 * kGranule + 3), 2 * kGranule);
  ASSERT_TRUE(a->granules.own(2 * kGranule + 3, kAll).is_ok());
  EXPECT_EQ(a->granules.writable_from(), 2 * kGranule);
  EXPECT_EQ(a->granules.shared_bytes(), 2 * kGranule);
  EXPECT_EQ(a->granules.private_bytes(), 3 * kGranule);
  expect_whole(*a);
  write(*a, 2 * kGranule, 5 * kGranule, 2);
  expect_whole(*b);
  // The other one is alone with them now: it writes them where they are.
  EXPECT_EQ(b->granules.own_bytes_of(2 * kGranule), 0u);
  const uint64_t before = taken();
  ASSERT_TRUE(b->granules.own(2 * kGranule, kAll).is_ok());
  EXPECT_EQ(taken(), before);
  write(*b, 2 * kGranule, 5 * kGranule, 3);
  expect_whole(*a);
  expect_whole(*b);
  EXPECT_EQ(a->granules.own_bytes_of(4 * kGranule), 0u) << "appending takes nothing";
}

TEST_P(GranulesTest, WhatFailsOnTheWayChangesNothingThatIsRead) {
  for (int n = 1; n < 12; ++n) {
    SCOPED_TRACE(n);
    auto a = made(4 * kGranule);
    write(*a, 0, 4 * kGranule, 9);
    auto b = fork(*a, 3 * kGranule);
    blocks_.fail_in = n;
    const Status owned = a->granules.own(0, kAll);
    const bool failed = blocks_.fail_in == 0;
    blocks_.fail_in = 0;
    EXPECT_EQ(owned.is_ok(), !failed);
    expect_whole(*a);
    expect_whole(*b);
    EXPECT_EQ(a->granules.writable_from(), failed ? 3 * kGranule : 0u);
    // What was copied counts as its own; the rest is still to come.
    EXPECT_EQ(a->granules.own_bytes_of(0) + a->granules.private_bytes(), 4 * kGranule);
    ASSERT_TRUE(a->granules.own(0, kAll).is_ok());
    write(*a, 0, 4 * kGranule, 4);
    expect_whole(*b);
    auto c = fork(*a, 4 * kGranule);
    expect_whole(*c);
  }
  EXPECT_EQ(taken(), 0u);
  auto a = made(3 * kGranule);
  ASSERT_TRUE(a->granules.make_shared(3 * kGranule, nullptr).is_ok());
  const auto b = empty();
  blocks_.fail_in = 3;
  EXPECT_FALSE(b->granules.share_from(a->granules, 3 * kGranule).is_ok());
  EXPECT_EQ(b->granules.committed(), 0u);
  EXPECT_EQ(a->granules.shared_bytes(), 0u);
  blocks_.fail_in = 4;  // the second granule is not mapped
  EXPECT_FALSE(b->granules.commit(2 * kGranule).is_ok());
  EXPECT_EQ(b->granules.committed(), 0u);
}

/// A range of which others map single granules in the middle copies those alone.
TEST_P(GranulesTest, OnlyWhatOthersStillMapIsCopied) {
  auto a = made(8 * kGranule);
  write(*a, 0, 8 * kGranule, 5);
  auto b = fork(*a, 8 * kGranule), c = fork(*a, 3 * kGranule);
  ASSERT_TRUE(b->granules.own(6 * kGranule, kAll).is_ok());
  b->granules.decommit(kGranule);
  // Of a's granules b maps the first, c the first three.
  EXPECT_EQ(a->granules.shared_bytes(), 3 * kGranule);
  EXPECT_EQ(a->granules.own_bytes_of(kGranule), 2 * kGranule);
  const uint64_t before = taken();
  // What is not live any more need not be copied.
  ASSERT_TRUE(a->granules.own(kGranule, 2 * kGranule).is_ok());
  EXPECT_EQ(taken() - before, 2 * kGranule);
  EXPECT_EQ(a->granules.private_bytes(), 2 * kGranule);
  for (uint64_t i = 2 * kGranule; i < 3 * kGranule; ++i) a->want[i] = blocks_.byte(a->address + i);
  expect_whole(*a);
  expect_whole(*c);
  // Shared once more, copies and what was never copied together.
  auto d = fork(*a, 8 * kGranule);
  EXPECT_EQ(d->granules.shared_bytes(), 8 * kGranule);
  expect_whole(*d);
}

/// Memory that cannot be shared is copied by whoever forks.
TEST(GranulesAlone, MemoryThatCannotBeSharedStaysItsOwn) {
  Blocks blocks;
  auto memory = std::make_unique<BlockMemory>(blocks, 0, 1);
  memory->shares = false;
  GranuleRange a(std::move(memory), kGranule);
  ASSERT_TRUE(a.commit(3 * kGranule).is_ok());
  ASSERT_TRUE(a.make_shared(3 * kGranule, nullptr).is_ok());
  EXPECT_EQ(a.writable_from(), 0u);
  EXPECT_EQ(a.private_bytes(), 3 * kGranule);
  GranuleRange b(std::make_unique<BlockMemory>(blocks, 1000 * kGranule, 1), kGranule);
  ASSERT_TRUE(b.share_from(a, 3 * kGranule).is_ok());
  EXPECT_EQ(b.committed(), 0u);
}

/// Ranges that are forked, cut, grown, written and dropped at random hold what they should, and the
/// memory taken is what they count.
TEST_P(GranulesTest, RandomSequences) {
  std::mt19937 random(20261123);
  const auto upto = [&](uint64_t n) { return random() % (n + 1); };
  for (int round = 0; round < 100; ++round) {
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
          blocks_.fail_in = static_cast<int>(upto(6));
          const Status owned = r.granules.own(from, kAll);
          const bool failed = !owned.is_ok();
          blocks_.fail_in = 0;
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
    ASSERT_TRUE(blocks_.at.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, GranulesTest, ::testing::Values(1, 3));

}  // namespace
}  // namespace sharpi
