// SPDX-License-Identifier: MIT
// How an embedder reads texts: passes over several of them, whose hidden rows, as the final norm
// leaves them, go to a RowSink. Encoders read whole texts in one pass; other models read with
// sessions, chunk by chunk.
// Thread rule: one call at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/model.h"
#include "engine/session.h"

namespace sharpi {

struct Text {
  std::span<const int32_t> tokens;
  uint32_t n_first = 0;  // of a pair: tokens of the first text; 0 = all
};

/// Where rows go. A text keeps its slot, below kMaxTexts, until its last row.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// Rows [first, first + n) of a text.
  virtual void take(uint32_t text, uint32_t slot, uint32_t first, uint32_t n,
                    const float* rows) = 0;
  /// A pass over n_rows rows has ended. kCancelled ends the call.
  virtual Status end_pass(uint32_t n_rows) = 0;
};

class TextReader {
 public:
  virtual ~TextReader() = default;
  /// Pre: texts are not empty, and at most as long as the reader was made for.
  virtual Status read(std::span<const Text> texts, const std::atomic<bool>& cancel,
                      RowSink* sink) = 0;
  virtual std::vector<MemoryRow> memory_rows() const { return {}; }
};

/// `hidden`: memory for the rows of a pass, [n_chunk][n_embd], which outlives the reader.
std::unique_ptr<TextReader> make_encoder_reader(std::shared_ptr<const Model> model, float* hidden);
/// With so many sessions of n_ctx tokens.
Result<std::unique_ptr<TextReader>> make_session_reader(std::shared_ptr<const Model> model,
                                                        uint32_t n_ctx, uint32_t n_sessions,
                                                        float* hidden);
/// The template of those sessions: the plan's without what texts have no use for.
SessionShape reading_shape(const Plan& plan, uint32_t n_ctx);

}  // namespace sharpi
