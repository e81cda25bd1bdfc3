// SPDX-License-Identifier: MIT
#include "base/cache_folder.h"

#include <gtest/gtest.h>

namespace sharpi {
namespace {

TEST(CacheFolder, IsWhatTheEnvironmentNames) {
  EXPECT_EQ(cache_folder({nullptr, nullptr, nullptr}), "");
  EXPECT_EQ(cache_folder({nullptr, nullptr, "/home/me"}), "/home/me/.cache/sharpi");
  EXPECT_EQ(cache_folder({nullptr, "/caches/", "/home/me"}), "/caches/sharpi");
  EXPECT_EQ(cache_folder({"", "", "/home/me/"}), "/home/me/.cache/sharpi");
  EXPECT_EQ(cache_folder({"/here//", "/caches", "/home/me"}), "/here");
  EXPECT_EQ(cache_folder({"off", "/caches", "/home/me"}), "");
  EXPECT_EQ(cache_folder({"0", "/caches", "/home/me"}), "");
}

}  // namespace
}  // namespace sharpi
