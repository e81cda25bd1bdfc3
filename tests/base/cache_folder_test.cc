// SPDX-License-Identifier: MIT
#include "base/cache_folder.h"

#include <gtest/gtest.h>

namespace sharpi {
namespace {

TEST(CacheFolder, IsWhatTheEnvironmentNames) {
  EXPECT_EQ(cache_folder({nullptr, nullptr, nullptr}), "");
  EXPECT_EQ(cache_folder({nullptr, nullptr, "/who"}), "/who/.cache/sharpi");
  EXPECT_EQ(cache_folder({nullptr, "/caches/", "/who"}), "/caches/sharpi");
  EXPECT_EQ(cache_folder({"", "", "/who/"}), "/who/.cache/sharpi");
  EXPECT_EQ(cache_folder({"/here//", "/caches", "/who"}), "/here");
  EXPECT_EQ(cache_folder({"off", "/caches", "/who"}), "");
  EXPECT_EQ(cache_folder({"0", "/caches", "/who"}), "");
}

}  // namespace
}  // namespace sharpi
