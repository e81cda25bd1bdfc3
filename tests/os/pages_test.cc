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
#ifdef _WIN32
  EXPECT_EQ(page_size(), 4096u);  // of every processor that this is compiled for
#else
  EXPECT_EQ(page_size(), static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
#endif
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

}  // namespace
}  // namespace sharpi::os
