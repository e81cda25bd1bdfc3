// SPDX-License-Identifier: MIT
// A step of continuous batching: one pass over the model for a token of each session and, behind
// each, the drafts that the host brought or the session's drafters found (speculative decoding). A
// session alone is a batch of one and takes the same code.
// Owns nothing.
// Thread rule: one call at a time a session.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/rank_link.h"
#include "sharpi.h"

namespace sharpi {

class Model;
class Session;
struct Meanwhile;
struct SessionState;

/// One session's part, as sharpi_session_verify() takes it.
struct BatchRead {
  Session* session = nullptr;
  std::span<const int32_t> tokens;  // of the call: those that were tried
  sharpi_sample_params params{};
  uint32_t n_read = 0;
  uint32_t first = 0;  // what the host calls tokens[0]
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

  /// The same for a session alone: errors name no list, a cancel may stop the pass, and the host's
  /// `meanwhile` function runs while the device computes.
  static Status verify_alone(BatchRead* read);
  static Status step_alone(BatchStep* step);

 private:
  using Clock = std::chrono::steady_clock;
  /// Who calls: for one session alone, or for those of a list.
  struct Caller {
    const char* list = nullptr;  // what the host calls it; null = a session alone
    Meanwhile* meanwhile = nullptr;
    Status cancelled(uint32_t index, const Status& why) const;
    Status named(uint32_t index, const Status& why) const;
    Status begin(uint32_t index, SessionState* s) const;
  };
  static SessionState& state_of(Session& session);
  static Status check_size(size_t n, const Model& model);
  static Status check(const BatchRead& read, uint32_t index, const Model& model, const Caller& by);
  static Status make_room(SessionState* s, uint32_t index, const Caller& by, bool* changed);
  static Status read(std::span<BatchRead> reads, const Caller& by);
  static Status run(std::span<BatchRead> reads, Clock::time_point start, const Caller& by);
  static Status pass(std::span<const BatchRead> reads, const Caller& by, bool* rings_written);
  static Status check(std::span<const BatchStep> steps, const Caller& by);
  static Status step(std::span<BatchStep> steps, const Caller& by);
  static Status draw(BatchStep* step, BatchDraw* out);
  static Status draw_all(std::span<BatchStep> steps, std::span<BatchDraw> drawn, const Caller& by);
  static Status read_drawn(std::span<BatchStep> steps, std::span<BatchDraw> drawn,
                           const Caller& by);
  static void learn(std::span<BatchStep> steps, std::span<BatchDraw> drawn, double seconds);
  // session_batch_ranks.cc: of models over the processes of a group
  struct Parts;
  static RankVerdict agree(RankCall call, std::span<const BatchRead> reads, const Status& own,
                           std::span<const int32_t> drawn = {});
  static Status read_with_ranks(std::span<BatchRead> reads, const Caller& by);
  static Status check_with_ranks(std::span<BatchStep> steps, const Caller& by);
  static Status draw_with_ranks(std::span<BatchStep> steps, const Caller& by, int32_t* drawn);
  static Status step_with_ranks(std::span<BatchStep> steps, const Caller& by);
  static Status run_parts(std::span<const BatchRead> reads, const Caller& by, Parts* parts);
  static Status read_parts(std::span<BatchRead> reads, int32_t n_parts, const Caller& by);
};

}  // namespace sharpi
