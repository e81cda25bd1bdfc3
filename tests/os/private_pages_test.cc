// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "os/file.h"
#include "os/pages.h"

namespace sharpi::os {
namespace {

TEST(PrivatePages, CannotBeSharedAndEveryCallSaysSo) {
  EXPECT_FALSE(can_share_pages());
  int error = 0;
  EXPECT_EQ(map_spare(page_size(), &error), nullptr);
  EXPECT_EQ(error, kNotSupported);
  EXPECT_EQ(move_pages(nullptr, 0, nullptr), kNotSupported);
  SharedMemory shared;
  std::byte byte{};
  EXPECT_EQ(shared.create(page_size()), kNotSupported);
  EXPECT_EQ(shared.write(0, &byte, 1), kNotSupported);
  EXPECT_EQ(shared.map_read_only(0, page_size(), &byte), kNotSupported);
}

}  // namespace
}  // namespace sharpi::os
