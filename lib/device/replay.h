// SPDX-License-Identifier: MIT
// Replay scores on the device (cpu/replay.h says what they are): those of rows that a pass has
// stored, by the queries that it has at hand, and those of rows that wait, by captured queries. The
// kernels raise the session's scores where they lie; nothing of a query stays.
// Thread rule: immutable; work runs on the pass's or the model's queue.
#pragma once

#include "device/kernel_params.h"
#include "device/loaded_model.h"
#include "device/pass.h"
#include "device/session.h"

namespace sharpi::device {

class Replay {
 public:
  explicit Replay(const LoadedModel& model) : m_(model) {}
  /// Of the sequences of a pass whose rows get their scores with it. Pre: the layer's rows are
  /// stored. Of a pass that nobody runs: as of one row.
  Status of_pass(const Pass& p, uint32_t layer) const;
  /// TierModel::score_waiting(); done on return.
  Status of_waiting(DeviceSession& session, const KvLedger& ledger, uint32_t layer) const;

 private:
  struct Rows;
  ReplayParams params(uint32_t reader, uint32_t source, const Rows& rows) const;
  Status run(const DeviceSession& session, const KvLedger& ledger, uint32_t source,
             const ReplayParams& all, const Queue& queue) const;
  const LoadedModel& m_;
};

}  // namespace sharpi::device
