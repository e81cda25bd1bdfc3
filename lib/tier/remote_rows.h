// SPDX-License-Identifier: MIT
// Rows of a session that are not in host memory, on their way to its archive (kv/row_archive.h) and
// back. The archive is in host memory that the tier lends for its layers, and its kernels read and
// write there; the tier has the bounds of the keys, too. Thread rule: as TierSession.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kv/row_archive.h"
#include "tier/score_request.h"

namespace sharpi {

/// Some rows of a KV head, by ascending slots, and the slots of the archive that they take, each
/// with kBegins or without.
struct RowsOfHead {
  uint32_t head = 0;
  std::span<const uint32_t> slots, places;
};

/// Rows of a KV head that change places with archived ones: as many come in as go out. Those that
/// stay close up, and the rows that come in take the slots in between. All ascending by position.
struct HeadExchange {
  uint32_t head = 0;
  std::span<const uint32_t> from;      // by slot of the session: which row it gets, or has come in
  std::span<const uint32_t> archived;  // slots of the archive
  std::span<const uint32_t> slots_in, slots_out;
  std::span<const uint32_t> places;  // of the archive, for the rows that go out, as RowsOfHead's
};

class RemoteRows {
 public:
  virtual ~RemoteRows() = default;
  /// The memory of a layer's heads in the archive, which the tier lends it (RowArchive::Lender).
  virtual std::byte* lent(uint32_t layer) const = 0;
  /// Rows of a layer go to their places in the archive. Allocates nothing.
  virtual Status send(uint32_t layer, std::span<const RowsOfHead> lists,
                      const RowArchive& archive) = 0;
  /// Rows of a layer change places; may be under way until scratch.finish(). `scratch`: created for
  /// as many. Allocates nothing; a failure marks the device as lost.
  virtual void exchange(uint32_t layer, std::span<const HeadExchange> heads,
                        const RowArchive& archive, ScoreScratch& scratch) noexcept = 0;
  /// Takes over the bounds of a session of the same template on the same tier, whose archive has
  /// the same rows.
  virtual Status copy_from(const RemoteRows& from) = 0;
};

}  // namespace sharpi
