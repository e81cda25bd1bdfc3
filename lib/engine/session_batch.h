// SPDX-License-Identifier: MIT
// One pass for several sessions: a token each, or a token and as many drafts behind it as the host
// brought or the session's drafters found. Owns nothing.
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

/// One session's part, as sharpi_session_step() takes it.
struct BatchStep {
  Session* session = nullptr;
  sharpi_sample_params params{};
  std::span<int32_t> out;  // 1 or more: the step gives at most so many tokens
  uint32_t n = 0;          // tokens that it gave
};

struct BatchDraw;

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
  /// 1 to max_batch sessions. Each draws a token and gets drafts from its own drafters; one pass
  /// reads all, but tokens that end a generation. As verify(): unless the device fails behind the
  /// pass, all sessions step or none.
  static Status step(std::span<BatchStep> steps);

 private:
  static SessionState& state_of(Session& session);
  static Status check(const BatchRead& read, uint32_t index, const Model& model);
  static Status run(std::span<BatchRead> reads);
  static Status check(std::span<const BatchStep> steps);
  static Status draw(BatchStep* step, BatchDraw* out);
  static Status read_drawn(std::span<BatchStep> steps, std::span<BatchDraw> drawn);
  static void learn(std::span<BatchStep> steps, std::span<BatchDraw> drawn, double seconds);
  static Status begin_rows(SessionState* s, SequenceRows* rows);
};

}  // namespace sharpi
