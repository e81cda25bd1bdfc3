// SPDX-License-Identifier: MIT
// Rows as the tier stores them and as they come back, by the plain functions. Thread rule: pure
// functions.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi::cpu {
namespace {

void encode_rotated(KvDtype dtype, uint32_t dim, std::vector<float> x, std::byte* row) {
  kv_rotate(x.data(), x.size(), kv_rotation(dtype, dim));
  ASSERT_TRUE(kv_encode_row(dtype, x.data(), x.size(), row).is_ok());
}

std::vector<float> stored_row(KvDtype dtype, uint32_t dim, const std::vector<float>& x) {
  std::vector<std::byte> row(kv_row_bytes(dtype, x.size()));
  std::vector<float> y(x.size());
  encode_rotated(dtype, dim, x, row.data());
  EXPECT_TRUE(kv_decode_row(dtype, row.data(), x.size(), 0, x.size(), y.data()).is_ok());
  kv_unrotate(y.data(), y.size(), kv_rotation(dtype, dim));
  return y;
}

}  // namespace
}  // namespace sharpi::cpu
