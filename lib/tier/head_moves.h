// SPDX-License-Identifier: MIT
// What the moves of a compaction are for rows in blocks of one KV head, on every tier: whether rows
// are so afterwards, whether the moves can be made, and how many rows each head has then.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_store.h"

namespace sharpi {

/// Whether a group's rows are by head after these moves.
bool ends_by_head(const KvStore& store, uint32_t group, std::span<const KvMove> moves);
/// kInternal unless every layer of a group that is by head afterwards has a move, and the store its
/// tables.
Status check_by_head(const KvStore& store, std::span<const KvMove> moves);
/// Rows that each head of a group has after these moves, which all of its layers have. Allocates
/// nothing where `out` has room.
void count_heads(const KvStore& store, uint32_t group, std::span<const KvMove> moves,
                 std::vector<uint32_t>* out);

}  // namespace sharpi
