// SPDX-License-Identifier: MIT
// One pass for several sessions: a token each, or a token and drafts behind it. Owns nothing.
// Thread rule: one call at a time a session.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "sharpi.h"

namespace sharpi {

class Model;
class Session;
struct SequenceRows;
struct SessionState;

/// One session's part, as sharpi_session_verify() takes it.
struct BatchRead {
  Session* session = nullptr;
  std::span<const int32_t> tokens;  // of the call: those that were tried
  sharpi_sample_params params{};
  uint32_t n_read = 0;
};

/// Sessions of a batch are of one model, and none is there twice.
class SessionBatch {
 public:
  /// One token each, of 1 to max_batch sessions; all read theirs, or none. Nothing allocates.
  static Status decode(std::span<Session* const> sessions, std::span<const int32_t> tokens);
  /// 1 to max_batch sessions, each with as many drafts as it likes. All rows together are at most
  /// the plan's head_rows(): of more, the longest reads try fewer drafts.
  /// What is refused and a pass that fails leave every session as it was; a draw that the device
  /// fails ends the call, and n_read says who has read what.
  static Status verify(std::span<BatchRead> reads);

 private:
  static SessionState& state_of(Session& session);
  static Status check(const BatchRead& read, uint32_t index, const Model& model);
  static Status run(std::span<BatchRead> reads);
  static Status begin_rows(SessionState* s, SequenceRows* rows);
};

}  // namespace sharpi
