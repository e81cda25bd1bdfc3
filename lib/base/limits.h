// SPDX-License-Identifier: MIT
// Limits that more than one layer checks, or sizes arrays by. sharpi.h names them where a caller
// meets them. Thread rule: constants.
#pragma once

#include <cstdint>

namespace sharpi {

/// Sessions of one decode call: the most that a plan's max_batch may say, and that the tables of a
/// call have room for.
inline constexpr uint32_t kMaxBatch = 64;
/// Queries that a session captures, and tokens of a probe.
inline constexpr uint32_t kMaxCaptureWindow = 65536;
inline constexpr uint32_t kDefaultCaptureWindow = 64;
/// Rows that a windowed layer keeps beyond its window.
inline constexpr uint32_t kMaxRewind = 65536;
/// Neighbours that a score is averaged over (odd), and rows that a hit marks.
inline constexpr uint32_t kMaxPoolKernel = 1023;
inline constexpr uint32_t kMaxSpan = 65536;
/// Draft tokens that one step verifies.
inline constexpr uint32_t kMaxDraft = 32;

}  // namespace sharpi
