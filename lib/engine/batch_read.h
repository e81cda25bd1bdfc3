// SPDX-License-Identifier: MIT
// Drafts of several sessions in one pass. Thread rule: one call at a time a session.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "sharpi.h"

namespace sharpi {

class Model;
class Session;

/// One session's part, as sharpi_session_verify() takes it.
struct BatchRead {
  Session* session = nullptr;
  std::span<const int32_t> tokens;  // of the call: those that were tried
  sharpi_sample_params params{};
  uint32_t n_read = 0;
};

/// Runs such passes. A class of its own, because it is a friend of Session.
class SessionBatch {
 public:
  /// 1 to max_batch sessions of one model, no one twice, each with as many drafts as it likes. All
  /// rows together are at most the plan's head_rows(): of more, the longest reads try fewer drafts.
  /// What is refused and a pass that fails leave every session as it was; a draw that the device
  /// fails ends the call, and n_read says who has read what.
  static Status verify(std::span<BatchRead> reads);

 private:
  static Status check(const BatchRead& read, uint32_t index, const Model& model);
  static Status run(std::span<BatchRead> reads);
};

}  // namespace sharpi
