// SPDX-License-Identifier: MIT
#include "os/pages.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace sharpi::os {
namespace {

std::byte* map(uint64_t bytes, Access access) {
  int error = 0;
  std::byte* p = map_pages(bytes, access, &error);
  EXPECT_NE(p, nullptr) << error;
  return p;
}

bool all_are(const std::byte* p, uint64_t n, int value) {
  for (uint64_t i = 0; i < n; ++i)
    if (p[i] != static_cast<std::byte>(value)) return false;
  return true;
}

TEST(Pages, SizesAreTheSystems) {
  EXPECT_EQ(page_size(), static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(kHugePage % page_size(), 0u);
}

TEST(Pages, BeginAtHugePagesAndAreZero) {
  const uint64_t bytes = 3 * page_size();
  std::byte* p = map(bytes, Access::kReadWrite);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % kHugePage, 0u);
  EXPECT_TRUE(all_are(p, bytes, 0));
  unmap_pages(p, bytes);
}

TEST(Pages, MoreThanTheAddressSpaceIsRefusedWithANumber) {
  int error = 0;
  EXPECT_EQ(map_pages(uint64_t{1} << 60, Access::kNone, &error), nullptr);
  EXPECT_NE(error, 0);
}

TEST(Pages, ComeAndGoWithinARange) {
  const uint64_t page = page_size();
  std::byte* p = map(4 * page, Access::kNone);
  ASSERT_EQ(protect_pages(p, 2 * page, Access::kReadWrite), 0);
  ASSERT_EQ(populate_pages(p, 2 * page), 0);
  std::memset(p, 7, 2 * page);
  release_pages(p + page, page);
  EXPECT_TRUE(all_are(p, page, 7));
  ASSERT_EQ(protect_pages(p + page, page, Access::kReadWrite), 0);
  EXPECT_TRUE(all_are(p + page, page, 0));
  unmap_pages(p, 4 * page);
}

TEST(Pages, SpareMemoryTakesAPlaceWithItsContents) {
  const uint64_t page = page_size();
  std::byte* p = map(2 * page, Access::kReadWrite);
  std::memset(p, 1, 2 * page);
  int error = 0;
  std::byte* spare = map_spare(page, &error);
  ASSERT_NE(spare, nullptr) << error;
  std::memset(spare, 2, page);
  ASSERT_EQ(move_pages(spare, page, p + page), 0);
  EXPECT_TRUE(all_are(p, page, 1));
  EXPECT_TRUE(all_are(p + page, page, 2));
  unmap_pages(p, 2 * page);
}

TEST(SharedMemory, IsReadWhereItIsMappedUntilItIsDropped) {
  const uint64_t page = page_size();
  std::byte* one = map(2 * page, Access::kNone);
  std::byte* other = map(2 * page, Access::kNone);
  {
    SharedMemory shared;
    ASSERT_EQ(shared.create(2 * page), 0);
    std::byte text[] = {std::byte{'k'}, std::byte{'v'}};
    ASSERT_EQ(shared.write(page + 5, text, sizeof text), 0);
    ASSERT_EQ(shared.map_read_only(page, page, one), 0);
    ASSERT_EQ(shared.map_read_only(0, 2 * page, other), 0);
    EXPECT_EQ(std::memcmp(one + 5, text, sizeof text), 0);
    EXPECT_EQ(std::memcmp(other + page + 5, text, sizeof text), 0);
    shared.drop(page, page);
    EXPECT_TRUE(all_are(one, page, 0));
  }
  clear_mapping(one, page);
  unmap_pages(one, 2 * page);
  unmap_pages(other, 2 * page);
}

TEST(SharedMemory, OfMoreThanTheSystemHasIsRefusedWithANumber) {
  SharedMemory shared;
  EXPECT_NE(shared.create(uint64_t{1} << 63), 0);
}

}  // namespace
}  // namespace sharpi::os
