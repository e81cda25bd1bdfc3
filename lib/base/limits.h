// SPDX-License-Identifier: MIT
// Limits that several rooms check or size arrays by, and default values of parameters. sharpi.h
// states both at the parameters. Thread rule: constants.
#pragma once

#include <cstdint>

namespace sharpi {

/// Sessions of one decode call: the most that a plan's max_batch may say, and that the tables of a
/// call have room for.
inline constexpr uint32_t kMaxBatch = 64;
inline constexpr uint32_t kDefaultMaxBatch = 8;
/// Rows of a call that may want logits.
inline constexpr uint32_t kDefaultMaxLogitRows = 8;
/// Queries that a session captures, and tokens of a probe.
inline constexpr uint32_t kMaxCaptureWindow = 65536;
inline constexpr uint32_t kDefaultCaptureWindow = 64;
/// Rows that a windowed layer keeps beyond its window.
inline constexpr uint32_t kMaxRewind = 65536;
inline constexpr uint32_t kDefaultRewind = 64;
/// Rows that every compaction keeps if the budget is large enough (resolve_fixed_rows()): the last
/// ones (recency) and the first ones (attention sinks). Headroom: slots that stay committed beyond
/// the kept rows.
inline constexpr uint32_t kDefaultRecency = 64;
inline constexpr uint32_t kDefaultSinks = 4;
inline constexpr uint32_t kDefaultHeadroom = 1024;
/// Neighbours that a score is averaged over (odd), and rows that a hit marks.
inline constexpr uint32_t kMaxPoolKernel = 1023;
inline constexpr uint32_t kDefaultPoolKernel = 13;
inline constexpr uint32_t kMaxSpan = 65536;
inline constexpr uint32_t kDefaultSpan = 12;
/// Replay scores: rows that a hit marks, positions of a chunk, first rows that every query sees,
/// positions by which queries are turned, and the largest distance between queries that are asked.
inline constexpr uint32_t kReplaySpan = 4;
inline constexpr uint32_t kReplayChunk = 256;
inline constexpr uint32_t kReplaySinks = 4;
inline constexpr uint32_t kReplayDistance = 1024;
inline constexpr uint32_t kMaxReplayEvery = 16;
/// Adapters of one session.
inline constexpr uint32_t kMaxAdapters = 16;
/// That a plan names, and the largest rank that one may have.
inline constexpr uint32_t kMaxPlanAdapters = 1024;
inline constexpr uint32_t kMaxAdapterRank = 4096;
/// Draft tokens that one step verifies.
inline constexpr uint32_t kMaxDraft = 32;
/// n_draft_vocab is a multiple of this: a GPU stores so many rows of the head together.
inline constexpr uint32_t kDraftVocabStep = 16;

}  // namespace sharpi
