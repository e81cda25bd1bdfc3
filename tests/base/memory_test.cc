// SPDX-License-Identifier: MIT
#include "base/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "base/reservation.h"
#include "os/pages.h"
#include "support/watched_new.h"

namespace sharpi {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

bool all_zero(const std::byte* p, uint64_t n) {
  return std::all_of(p, p + n, [](std::byte b) { return b == std::byte{0}; });
}

/// Pages of a mapped range that have memory behind them.
uint64_t resident_pages(const std::byte* p, uint64_t bytes) {
  std::vector<unsigned char> map(bytes / os::page_size());
  if (mincore(const_cast<std::byte*>(p), bytes, map.data()) != 0) return UINT64_MAX;
  return static_cast<uint64_t>(
      std::count_if(map.begin(), map.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

/// Whether the kernel can read the byte at p.
bool readable(const std::byte* p) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const bool ok = write(ends[1], p, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return ok;
}

struct BufferSize {
  const char* name;
  uint64_t bytes, alignment;
};
class HostBufferOf : public ::testing::TestWithParam<BufferSize> {};

TEST_P(HostBufferOf, IsZeroedAlignedAndCountedToTheByte) {
  MemoryMeter meter;
  auto buffer = HostBuffer::allocate(meter, GetParam().bytes, "rows");
  ASSERT_TRUE(buffer.is_ok()) << buffer.status().text();
  std::byte* p = buffer.value().data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % GetParam().alignment, 0u);
  EXPECT_EQ(buffer.value().bytes(), GetParam().bytes);
  EXPECT_TRUE(all_zero(p, GetParam().bytes));
  std::memset(p, 0xAB, GetParam().bytes);
  EXPECT_EQ(meter.live_bytes(), GetParam().bytes);
  buffer.value().reset();
  EXPECT_EQ(meter.live_bytes(), 0u);
  EXPECT_EQ(meter.peak_bytes(), GetParam().bytes);
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostBufferOf,
                         ::testing::Values(BufferSize{"one_byte", 1, 64},
                                           BufferSize{"odd", 12345, 64},
                                           BufferSize{"below_huge", 4 * kMiB - 1, 64},
                                           BufferSize{"huge", 4 * kMiB, 2 * kMiB},
                                           BufferSize{"huge_odd", 5 * kMiB + 77, 2 * kMiB}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(HostBuffer, ZeroBytesIsAnEmptyBufferAndNoRequest) {
  MemoryMeter meter;
  const auto buffer = HostBuffer::allocate(meter, 0, "nothing");
  ASSERT_TRUE(buffer.is_ok());
  EXPECT_EQ(buffer.value().data(), nullptr);
  EXPECT_EQ(meter.n_requests(), 0u);
}

TEST(HostBuffer, MovingKeepsTheBlockAndCountsItOnce) {
  MemoryMeter meter;
  auto first = HostBuffer::allocate(meter, 100, "first");
  auto second = HostBuffer::allocate(meter, 50, "second");
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  const std::byte* kept = first.value().data();
  HostBuffer buffer = second.take();
  second.value().reset();
  buffer = first.take();
  first.value().reset();
  EXPECT_EQ(buffer.data(), kept);
  EXPECT_EQ(meter.live_bytes(), 100u);
  EXPECT_EQ(meter.peak_bytes(), 150u);
}

TEST(HostBuffer, RefusedRequestNamesTheBlockAndLeavesTheCountsAlone) {
  MemoryMeter meter;
  for (const uint64_t bytes : {uint64_t{1} << 60, UINT64_MAX}) {
    const auto buffer = HostBuffer::allocate(meter, bytes, "the moon");
    ASSERT_FALSE(buffer.is_ok());
    EXPECT_EQ(buffer.status().code(), Code::kOutOfMemory);
    EXPECT_EQ(buffer.status().native(), ENOMEM);
    const std::string expected = "no memory for the moon: " + std::to_string(bytes) + " bytes";
    EXPECT_NE(buffer.status().text().find(expected), std::string::npos) << buffer.status().text();
  }
  EXPECT_EQ(meter.live_bytes(), 0u);
  EXPECT_EQ(meter.peak_bytes(), 0u);
}

TEST(HostBuffer, OnlyTheChosenRequestFailsUnderInjection) {
  MemoryMeter meter;
  ASSERT_TRUE(HostBuffer::allocate(meter, 8, "before").is_ok());
  meter.fail_request(2);
  EXPECT_TRUE(HostBuffer::allocate(meter, 8, "a").is_ok());
  const auto failed = HostBuffer::allocate(meter, 8, "b");
  EXPECT_EQ(failed.status().code(), Code::kOutOfMemory);
  EXPECT_EQ(meter.live_bytes(), 0u);
  EXPECT_TRUE(HostBuffer::allocate(meter, 8, "c").is_ok());
  meter.fail_request(1);
  meter.fail_request(0);
  EXPECT_TRUE(HostBuffer::allocate(meter, 8, "d").is_ok());
}

/// A host allocator that fills what it hands out and remembers what it got back.
struct TestHost {
  uint64_t live = 0, shift = 0, last_alignment = 0;
  bool refuse = false;
  HostAllocator callbacks() {
    HostAllocator a;
    a.user = this;
    a.allocate = [](void* user, uint64_t bytes, uint64_t alignment) -> void* {
      auto* host = static_cast<TestHost*>(user);
      host->last_alignment = alignment;
      if (host->refuse) return nullptr;
      host->live += bytes;
      void* p = std::aligned_alloc(alignment, (bytes + 2 * alignment - 1) / alignment * alignment);
      std::memset(p, 0xEE, bytes);
      return static_cast<char*>(p) + host->shift;
    };
    a.release = [](void* user, void* p, uint64_t bytes) {
      auto* host = static_cast<TestHost*>(user);
      host->live -= bytes;
      std::free(static_cast<char*>(p) - host->shift);
    };
    return a;
  }
};

TEST(HostBuffer, TakesMemoryFromTheHostZeroesItAndGivesItBack) {
  TestHost host;
  MemoryMeter meter(host.callbacks());
  {
    const auto buffer = HostBuffer::allocate(meter, 5 * kMiB, "weights");
    ASSERT_TRUE(buffer.is_ok());
    EXPECT_EQ(host.live, 5 * kMiB);
    EXPECT_EQ(host.last_alignment, 2 * kMiB);
    EXPECT_TRUE(all_zero(buffer.value().data(), 5 * kMiB));
  }
  EXPECT_EQ(host.live, 0u);
  EXPECT_EQ(meter.live_bytes(), 0u);
}

TEST(HostBuffer, ReturnsTheHostsBlockWhenAdmissionFails) {
  TestHost host;
  MemoryMeter meter(host.callbacks());
  meter.fail_request(1);
  EXPECT_EQ(HostBuffer::allocate(meter, 100, "x").status().code(), Code::kOutOfMemory);
  EXPECT_EQ(host.live, 0u);
}

TEST(HostBuffer, HostThatRefusesIsOutOfMemory) {
  TestHost host;
  host.refuse = true;
  MemoryMeter meter(host.callbacks());
  EXPECT_EQ(HostBuffer::allocate(meter, 100, "x").status().code(), Code::kOutOfMemory);
}

TEST(HostBuffer, MisalignedHostMemoryIsRefusedAndReturned) {
  TestHost host;
  host.shift = 16;
  MemoryMeter meter(host.callbacks());
  const auto buffer = HostBuffer::allocate(meter, 100, "scores");
  EXPECT_EQ(buffer.status().code(), Code::kInvalidArgument);
  EXPECT_NE(buffer.status().text().find("scores that is not aligned to 64"), std::string::npos);
  EXPECT_EQ(host.live, 0u);
  EXPECT_EQ(meter.live_bytes(), 0u);
}

TEST(Reservation, HoldsNoMemoryUntilCommitted) {
  MemoryMeter meter;
  auto range = Reservation::reserve(meter, 64 * kMiB + 1, "kv");
  ASSERT_TRUE(range.is_ok()) << range.status().text();
  EXPECT_EQ(range.value().reserved(), 64 * kMiB + Reservation::kGranule);
  EXPECT_EQ(range.value().committed(), 0u);
  EXPECT_EQ(meter.live_bytes(), 0u);
  EXPECT_FALSE(readable(range.value().data()));
}

TEST(Reservation, CommitMakesAPrefixResidentZeroedAndCounted) {
  MemoryMeter meter;
  auto range = Reservation::reserve(meter, 16 * kMiB, "kv");
  ASSERT_TRUE(range.is_ok());
  Reservation& kv = range.value();
  ASSERT_TRUE(kv.commit(3 * kMiB + 5).is_ok());
  const uint64_t held = 3 * kMiB + Reservation::kGranule;
  EXPECT_EQ(kv.committed(), held);
  EXPECT_EQ(meter.live_bytes(), held);
  EXPECT_EQ(resident_pages(kv.data(), held), held / os::page_size());
  EXPECT_TRUE(all_zero(kv.data(), held));
  EXPECT_TRUE(readable(kv.data() + held - 1));
  EXPECT_FALSE(readable(kv.data() + held));
}

TEST(Reservation, GrowingMovesNothingAndKeepsTheContents) {
  MemoryMeter meter;
  auto range = Reservation::reserve(meter, 8 * kMiB, "kv");
  ASSERT_TRUE(range.is_ok());
  Reservation& kv = range.value();
  ASSERT_TRUE(kv.commit(Reservation::kGranule).is_ok());
  std::byte* before = kv.data();
  std::memset(before, 0x5A, Reservation::kGranule);
  ASSERT_TRUE(kv.commit(8 * kMiB).is_ok());
  EXPECT_EQ(kv.data(), before);
  EXPECT_EQ(before[Reservation::kGranule - 1], std::byte{0x5A});
  EXPECT_TRUE(all_zero(before + Reservation::kGranule, 8 * kMiB - Reservation::kGranule));
}

TEST(Reservation, CommittingLessThanIsHeldChangesNothing) {
  MemoryMeter meter;
  auto range = Reservation::reserve(meter, kMiB, "kv");
  ASSERT_TRUE(range.is_ok());
  ASSERT_TRUE(range.value().commit(kMiB).is_ok());
  const uint64_t requests = meter.n_requests();
  EXPECT_TRUE(range.value().commit(10).is_ok());
  EXPECT_EQ(range.value().committed(), kMiB);
  EXPECT_EQ(meter.n_requests(), requests);
}

/// Two ranges over the same pages, whose contents tell where a byte is.
class SharedRange : public ::testing::Test {
 protected:
  static constexpr uint64_t kCommitted = 6 * kMiB, kShared = 5 * kMiB;
  static std::byte content(uint64_t at) { return static_cast<std::byte>(at / 251 * 7 + at % 251); }
  static bool is_intact(const Reservation& r, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += 509) {
      if (r.data()[at] != content(at)) return false;
    }
    return true;
  }
  Reservation filled() {
    Reservation r = must_reserve();
    EXPECT_TRUE(r.commit(kCommitted).is_ok());
    for (uint64_t at = 0; at < kCommitted; ++at) r.data()[at] = content(at);
    return r;
  }
  Reservation must_reserve() {
    auto made = Reservation::reserve(meter_, 8 * kMiB, "kv");
    EXPECT_TRUE(made.is_ok());
    return made.take();
  }
  Reservation sharing(Reservation* a) {
    EXPECT_TRUE(a->make_shared(kShared, on_free_).is_ok());
    Reservation b = must_reserve();
    EXPECT_TRUE(b.share_from(*a, kShared).is_ok());
    EXPECT_TRUE(b.commit(kCommitted).is_ok());
    return b;
  }
  MemoryMeter meter_;
  uint64_t freed_ = 0;
  std::function<void(uint64_t)> on_free_ = [this](uint64_t n) { freed_ += n; };
};

TEST_F(SharedRange, IsInMemoryOnce) {
  Reservation a = filled();
  Reservation b = sharing(&a);
  EXPECT_EQ(meter_.live_bytes(), kCommitted + kMiB);
  EXPECT_EQ(a.private_bytes(), kMiB);
  EXPECT_EQ(a.shared_bytes(), kShared);
  EXPECT_EQ(b.shared_bytes(), kShared);
  EXPECT_EQ(a.writable_from(), kShared);
  EXPECT_TRUE(is_intact(a, kCommitted));
  EXPECT_TRUE(is_intact(b, kShared));
  a.reset();
  EXPECT_EQ(freed_, 0u);
  EXPECT_EQ(b.shared_bytes(), 0u);
  EXPECT_TRUE(is_intact(b, kShared));
  b.reset();
  EXPECT_EQ(freed_, kShared);
  EXPECT_EQ(meter_.live_bytes(), 0u);
}

TEST_F(SharedRange, WhoOwnsAPartAgainChangesNothingOfTheOthers) {
  Reservation a = filled();
  Reservation b = sharing(&a);
  const uint64_t page = os::page_size(), from = 2 * kMiB + page;
  ASSERT_TRUE(b.own(from + page / 5, 4 * kMiB).is_ok());
  EXPECT_EQ(b.writable_from(), from);
  EXPECT_TRUE(is_intact(b, 4 * kMiB));
  std::memset(b.data() + from, 0x11, kCommitted - from);
  EXPECT_TRUE(is_intact(a, kCommitted));
  EXPECT_EQ(a.shared_bytes(), from);
  EXPECT_EQ(meter_.live_bytes(), 2 * kCommitted - from);
  // The rest of a's pages are its alone: writing them takes no memory.
  const uint64_t before = meter_.n_requests();
  EXPECT_EQ(a.own_bytes_of(3 * kMiB), 0u);
  ASSERT_TRUE(a.own(3 * kMiB, kCommitted).is_ok());
  EXPECT_EQ(meter_.n_requests(), before);
  std::memset(a.data() + 3 * kMiB, 0x22, kMiB);
  EXPECT_TRUE(is_intact(b, 2 * kMiB));
  // And can be shared again.
  Reservation c = sharing(&a);
  EXPECT_EQ(c.data()[3 * kMiB + 7], std::byte{0x22});
  EXPECT_TRUE(is_intact(c, 2 * kMiB));
  b.decommit(kMiB);
  EXPECT_EQ(c.shared_bytes(), kShared);
  a.decommit(0);
  EXPECT_EQ(c.shared_bytes(), kMiB);
  EXPECT_TRUE(is_intact(c, 3 * kMiB));
}

TEST_F(SharedRange, ARefusalChangesNothing) {
  for (uint64_t nth = 1; nth < 12; ++nth) {
    Reservation a = filled();
    const uint64_t live = meter_.live_bytes();
    meter_.fail_request(nth);
    const Status made = a.make_shared(kShared, on_free_);
    meter_.fail_request(0);
    EXPECT_EQ(made.is_ok(), nth > 6) << nth;
    EXPECT_EQ(meter_.live_bytes(), live);
    EXPECT_TRUE(is_intact(a, kCommitted));
    Reservation b = sharing(&a);
    meter_.fail_request(nth);
    const Status owned = b.own(0, kShared);
    meter_.fail_request(0);
    EXPECT_EQ(owned.is_ok(), nth > 5) << nth;
    EXPECT_TRUE(is_intact(a, kCommitted));
    EXPECT_TRUE(is_intact(b, kShared));
    EXPECT_EQ(b.writable_from(), owned.is_ok() ? 0u : kShared);
    ASSERT_TRUE(b.own(0, kShared).is_ok());
    std::memset(b.data(), 1, kShared);
    EXPECT_TRUE(is_intact(a, kCommitted));
  }
  EXPECT_EQ(meter_.live_bytes(), 0u);
}

/// What the call answers while the n-th operator new of it fails; *failed says whether one did.
Status with_failing_new(int nth, bool* failed, const std::function<Status()>& call) {
  Status done;
  testing::fail_new(nth);
  try {
    done = call();
  } catch (const std::bad_alloc&) {
    done = Status::error(Code::kOutOfMemory, "thrown");
  }
  *failed = !testing::new_pending();
  testing::fail_new(0);
  return done;
}

TEST_F(SharedRange, WantOfMemoryForBookkeepingChangesNothing) {
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    Reservation a = filled();
    const uint64_t live = meter_.live_bytes();
    const Status made =
        with_failing_new(nth, &failed, [&] { return a.make_shared(kShared, on_free_); });
    EXPECT_EQ(made.is_ok(), !failed) << nth;
    EXPECT_EQ(meter_.live_bytes(), live) << nth;
    EXPECT_TRUE(is_intact(a, kCommitted)) << nth;
    EXPECT_EQ(a.writable_from(), failed ? 0 : kShared) << nth;
    EXPECT_EQ(freed_, 0u) << "nobody had lent it";
    a.reset();
    EXPECT_EQ(meter_.live_bytes(), 0u) << nth;
    freed_ = 0;
  }
  failed = true;
  for (int nth = 1; failed; ++nth) {
    Reservation a = filled();
    ASSERT_TRUE(a.make_shared(kMiB, on_free_).is_ok());  // two files
    ASSERT_TRUE(a.make_shared(kShared, on_free_).is_ok());
    const uint64_t live = meter_.live_bytes();
    Reservation b = must_reserve();
    const Status done = with_failing_new(nth, &failed, [&] { return b.share_from(a, kShared); });
    EXPECT_EQ(done.is_ok(), !failed) << nth;
    EXPECT_EQ(b.committed(), failed ? 0 : kShared) << nth;
    EXPECT_EQ(a.shared_bytes(), failed ? 0 : kShared) << nth;
    b.reset();
    EXPECT_EQ(meter_.live_bytes(), live) << nth;
    EXPECT_TRUE(is_intact(a, kCommitted)) << nth;
  }
}

TEST(Reservation, DecommitReturnsTheMemoryAndRecommittedBytesAreZero) {
  MemoryMeter meter;
  auto range = Reservation::reserve(meter, 8 * kMiB, "kv");
  ASSERT_TRUE(range.is_ok());
  Reservation& kv = range.value();
  ASSERT_TRUE(kv.commit(8 * kMiB).is_ok());
  std::memset(kv.data(), 0x77, 8 * kMiB);
  kv.decommit(kMiB + 1);
  const uint64_t kept = kMiB + Reservation::kGranule;
  EXPECT_EQ(kv.committed(), kept);
  EXPECT_EQ(meter.live_bytes(), kept);
  EXPECT_EQ(resident_pages(kv.data(), 8 * kMiB), kept / os::page_size());
  EXPECT_FALSE(readable(kv.data() + kept));
  EXPECT_EQ(kv.data()[kept - 1], std::byte{0x77});
  ASSERT_TRUE(kv.commit(8 * kMiB).is_ok());
  EXPECT_TRUE(all_zero(kv.data() + kept, 8 * kMiB - kept));
}

TEST(Reservation, FailedCommitLeavesEverythingAsItWas) {
  MemoryMeter meter;
  auto range = Reservation::reserve(meter, 4 * kMiB, "kv of layer 3");
  ASSERT_TRUE(range.is_ok());
  Reservation& kv = range.value();
  ASSERT_TRUE(kv.commit(kMiB).is_ok());
  std::memset(kv.data(), 0x42, kMiB);
  meter.fail_request(1);
  const Status failed = kv.commit(2 * kMiB);
  EXPECT_EQ(failed.code(), Code::kOutOfMemory);
  EXPECT_NE(failed.text().find(
                "no memory for kv of layer 3: 1048576 bytes are needed, 1048576 bytes are held"),
            std::string::npos)
      << failed.text();
  EXPECT_EQ(kv.committed(), kMiB);
  EXPECT_EQ(meter.live_bytes(), kMiB);
  EXPECT_EQ(meter.peak_bytes(), kMiB);
  EXPECT_EQ(resident_pages(kv.data(), 4 * kMiB), kMiB / os::page_size());
  EXPECT_EQ(kv.data()[kMiB - 1], std::byte{0x42});
  EXPECT_TRUE(kv.commit(2 * kMiB).is_ok());
}

TEST(Reservation, CommitBeyondTheRangeIsRefusedWithBothSizes) {
  MemoryMeter meter;
  auto range = Reservation::reserve(meter, 65536, "kv");
  ASSERT_TRUE(range.is_ok());
  const Status failed = range.value().commit(65537);
  EXPECT_EQ(failed.code(), Code::kInvalidArgument);
  EXPECT_NE(failed.text().find(
                "65537 bytes were to be committed, but only 65536 bytes are reserved for kv"),
            std::string::npos);
}

TEST(Reservation, AddressSpaceThatDoesNotExistIsOutOfMemory) {
  MemoryMeter meter;
  for (const uint64_t bytes : {uint64_t{1} << 60, UINT64_MAX}) {
    const auto range = Reservation::reserve(meter, bytes, "everything");
    ASSERT_FALSE(range.is_ok());
    EXPECT_EQ(range.status().code(), Code::kOutOfMemory);
    EXPECT_NE(range.status().text().find("for everything: "), std::string::npos);
  }
}

TEST(Reservation, InjectionReachesTheReservationItself) {
  MemoryMeter meter;
  meter.fail_request(1);
  EXPECT_EQ(Reservation::reserve(meter, kMiB, "kv").status().code(), Code::kOutOfMemory);
}

TEST(Reservation, DestructionRetiresTheCommittedBytes) {
  MemoryMeter meter;
  {
    auto range = Reservation::reserve(meter, kMiB, "kv");
    ASSERT_TRUE(range.is_ok());
    ASSERT_TRUE(range.value().commit(kMiB).is_ok());
    Reservation moved = range.take();
    range.value().reset();
    EXPECT_EQ(meter.live_bytes(), kMiB);
  }
  EXPECT_EQ(meter.live_bytes(), 0u);
  EXPECT_EQ(meter.peak_bytes(), kMiB);
}

}  // namespace
}  // namespace sharpi
