// SPDX-License-Identifier: MIT
// Pages that take the place of others, where a system can do that (os/pages.h).
#include <gtest/gtest.h>

#include <cstring>

#include "os/pages.h"

namespace sharpi::os {
namespace {

std::byte* mapped(uint64_t bytes, Access access) {
  int error = 0;
  std::byte* p = map_pages(bytes, access, &error);
  EXPECT_NE(p, nullptr) << error;
  return p;
}

bool hold(const std::byte* p, uint64_t n, int value) {
  for (uint64_t i = 0; i < n; ++i)
    if (p[i] != static_cast<std::byte>(value)) return false;
  return true;
}

TEST(Pages, SpareMemoryTakesAPlaceWithItsContents) {
  const uint64_t page = page_size();
  std::byte* p = mapped(2 * page, Access::kReadWrite);
  std::memset(p, 1, 2 * page);
  int error = 0;
  std::byte* spare = map_spare(page, &error);
  ASSERT_NE(spare, nullptr) << error;
  std::memset(spare, 2, page);
  ASSERT_EQ(move_pages(spare, page, p + page), 0);
  EXPECT_TRUE(hold(p, page, 1));
  EXPECT_TRUE(hold(p + page, page, 2));
  unmap_pages(p, 2 * page);
}

TEST(SharedMemory, IsReadWhereItIsMappedUntilItIsDropped) {
  const uint64_t page = page_size();
  std::byte* one = mapped(2 * page, Access::kNone);
  std::byte* other = mapped(2 * page, Access::kNone);
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
    EXPECT_TRUE(hold(one, page, 0));
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
