// SPDX-License-Identifier: MIT
// Rows of a session that are not in host memory, on their way to its archive (kv/row_archive.h) and
// back. In host memory they are as the archive has them: of one KV head, as they are stored, a
// head's planes one behind the other. Thread rule: as TierSession.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kv/row_archive.h"
#include "tier/score_request.h"

namespace sharpi {

/// Some rows of a KV head, by ascending slots.
struct RowsOfHead {
  uint32_t head = 0;
  std::span<const uint32_t> slots;
};

/// Rows that have arrived, one behind the other: K, V where it is stored, and replay scores where
/// there are any.
struct ArrivedRows {
  const std::byte* sides[2] = {};
  const float* scores = nullptr;
};

class RowTaker {
 public:
  virtual ~RowTaker() = default;
  /// Rows [first, first + n) of a list of those that were asked for; they stay until it returns.
  virtual void take(uint32_t list, uint32_t first, uint32_t n,
                    const ArrivedRows& rows) noexcept = 0;
};

/// Rows of a KV head that change places with archived ones: as many come in as go out. Those that
/// stay close up, and the rows that come in take the slots in between. All ascending by position.
struct HeadExchange {
  uint32_t head = 0, n_rows = 0;       // of the session
  std::span<const uint32_t> archived;  // slots of the archive
  std::span<const uint32_t> slots_in, slots_out;
};

class RemoteRows {
 public:
  virtual ~RemoteRows() = default;
  /// Rows of a layer, list after list and piece by piece. Allocates nothing.
  virtual Status read(uint32_t layer, std::span<const RowsOfHead> lists, RowTaker& to) = 0;
  /// Rows of a layer change places; those that went out come to `to`, a list for each exchange.
  /// `scratch`: created for as many. Allocates nothing; a failure marks the device as lost.
  virtual void exchange(uint32_t layer, std::span<const HeadExchange> heads,
                        const RowArchive& archive, ScoreScratch& scratch,
                        RowTaker& to) noexcept = 0;
};

}  // namespace sharpi
