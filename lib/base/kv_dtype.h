// SPDX-License-Identifier: MIT
// The KV codecs' names as numbers; equal to SHARPI_KV_* in sharpi.h. What they mean:
// kv/codec_traits.h. Thread rule: none.
#pragma once

#include <cstdint>

namespace sharpi {

enum class KvDtype : uint32_t { kAuto = 0, kF32 = 1, kBf16 = 2, kQ8_0 = 3, kQ4 = 4 };
/// Codecs have the values 1 to kKvCodecs.
inline constexpr uint32_t kKvCodecs = 4;

}  // namespace sharpi
