// SPDX-License-Identifier: MIT
// Where what the launches of a recall are told is written: pinned memory that crosses as one block,
// two places in turn, so that the host writes for one layer while the device works on another.
// Thread rule: one owner.
#pragma once

#include <cstdint>

#include "device/flat_rows.h"
#include "device/scoring.h"

namespace sharpi::device {

class Desk {
 public:
  explicit Desk(DeviceScoreScratch& s) : s_(s), turn_(s.turn++ % 2) {}
  /// Before anything is written: what was there has been sent.
  Status wait() const { return s_.sent[turn_]->wait("lists of a recall"); }
  Pieces pieces() const { return {s_.recall(), s_.desk(turn_)}; }
  /// The first bytes of the desk go to the device.
  Status send(uint64_t bytes) const {
    SHARPI_TRY(s_.stream->copy(s_.recall(), s_.desk(turn_), bytes, Way::kToDevice,
                               "upload of a recall's lists"));
    return s_.stream->record(*s_.sent[turn_], "lists of a recall");
  }

 private:
  DeviceScoreScratch& s_;
  uint32_t turn_;
};

/// What an exchange needs of the device, and of a desk.
uint64_t exchange_bytes(const ScoreShape& shape, uint64_t n_kv_heads);
uint64_t exchange_desk_bytes(const ScoreShape& shape, uint64_t n_kv_heads);

}  // namespace sharpi::device
