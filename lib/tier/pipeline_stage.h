// SPDX-License-Identifier: MIT
// A device's part in a pipeline: it gets passes over the chunks of a prompt before those in front
// of them are computed, and devices hand rows over by waiting for each other, not for the host. So
// all devices that share a model compute at once, each another chunk.
// Thread rule: one call at a time a workspace.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tier/tier.h"

namespace sharpi {

class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// How many passes over n_rows rows of a session may be under way at once in a workspace; 1 = of
  /// so many rows none: TierModel::run() answers each.
  virtual uint32_t passes(uint32_t n_rows) const = 0;
  /// As TierModel::run() of one session's rows that nobody stops half way, but returns when the
  /// work is given. Passes are computed in the order in which they are given. finish() follows
  /// each, in that order, or drain() all. After a failure nothing of this pass runs on here, and
  /// those in front have ended, which finish() tells.
  virtual Status start(const Segment& segment, const Submission& rows,
                       Workspace& workspace) const = 0;
  /// Waits for the oldest pass; `rows`: of its start(), but for the tokens.
  virtual Status finish(const Segment& segment, const Submission& rows,
                        Workspace& workspace) const = 0;
  /// Nothing is under way when it returns.
  virtual Status drain(Workspace& workspace) const = 0;
};

}  // namespace sharpi
