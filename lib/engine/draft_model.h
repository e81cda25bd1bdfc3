// SPDX-License-Identifier: MIT
// Speculative decoding with a draft model: a smaller model of the same vocabulary that has a
// session of its own, reads the same tokens and continues them greedily. It keeps no record of
// which drafts were accepted: before it drafts, it compares its tokens with those of the session it
// drafts for, and truncates its own to the common beginning. So it needs no notice of truncate,
// restore, fork or a context shift, and costs nothing while it is not asked.
// Thread rule: one owner (the session); cancel() and resume() from anywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/draft_pace.h"
#include "plan/tier_sizer.h"

namespace sharpi {

class Model;
class Session;

class ModelDrafter {
 public:
  /// For a session of this shape. `whole`: the model that it drafts for, with one that drafts. May
  /// throw std::bad_alloc.
  static Result<std::unique_ptr<ModelDrafter>> create(const Model& whole,
                                                      const SessionShape& shape);
  ~ModelDrafter();
  const Session& session() const { return *session_; }
  std::vector<MemoryRow> memory_rows() const;  // as rows of the whole
  size_t n_tokens() const;                     // that it has read

  /// What it takes to follow `next`, which follows the history: up to `most` tokens, to out[].
  /// history[0] stands at position `base`. out->lag, out->behind: the tokens that it had not read
  /// while nobody asked, and the seconds that it took. kCancelled leaves it able to go on.
  Status propose(std::span<const int32_t> history, uint64_t base, int32_t next, uint32_t most,
                 int32_t* drafts, Drafted* out);
  void cancel() noexcept;
  void resume() noexcept;

 private:
  ModelDrafter() = default;
  void choose_beginning(uint64_t n_history, uint64_t base, uint32_t most);
  Status cut_back(std::span<const int32_t> text);
  Status read(std::span<const int32_t> tokens);
  Status read_up_to(std::span<const int32_t> text, int32_t next, Drafted* out);
  Status draft_on(uint32_t most, int32_t* out, uint32_t* out_n);

  std::shared_ptr<const ModelSpec> whole_;
  std::unique_ptr<Session> session_;
  uint32_t n_ctx_ = 0;
  bool is_hybrid_ = false;
  uint64_t base_ = 0;        // of the history when first_ was chosen
  uint64_t first_ = 0;       // its token 0 is history[first_]
  uint32_t checkpoint_ = 0;  // a length that recurrent layers can go back to; 0 = none
};

}  // namespace sharpi
