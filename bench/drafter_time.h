// SPDX-License-Identifier: MIT
// What a drafter takes for a draft, from sharpi_session_drafts(). Sessions take as many drafts as
// pay, and those of made-up weights hardly ever do: such a drafter is off after a step or a few. So
// there are many short sessions, each with another prompt of two tokens, and each ends where its
// drafter paused. The first session warms up. Of the others a step counts whose drafter had few
// tokens to read, which it does in the pass of its first draft. Where steps have few drafts, the
// time of one is too long for many. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "draft_settings.h"
#include "handles.h"
#include "median.h"
#include "sharpi.h"

namespace sharpi::bench {

struct DraftTime {
  /// Fewer drafts say nothing.
  static constexpr uint32_t kFewest = 20;
  double seconds = 0;  // of a draft: the median of the steps, each divided by its drafts
  uint32_t n_drafts = 0, n_steps = 0, n_sessions = 0;
  bool is_enough() const { return n_drafts >= kFewest; }
};

class DrafterClock {
 public:
  explicit DrafterClock(const Settings& s) {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    c.n_threads = s.n_threads;
    sharpi_context* context = nullptr;
    must(sharpi_context_create(&c, &context, &e), e, "context");
    context_.reset(context);
    const bool mtp = s.drafter == "mtp";
    sharpi_session_params session;
    sharpi_session_params_init(&session, sizeof session);
    session.n_ctx = kPrompt + kRoom;
    session.k_dtype = session.v_dtype = kv_dtype(s.kv);
    session.drafters = mtp ? SHARPI_DRAFT_MTP : SHARPI_DRAFT_MODEL;
    session.n_draft_vocab = s.draft_vocab;
    for (const double n : s.drafts)
      session.n_draft = std::max(session.n_draft, static_cast<uint32_t>(n));
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_gpu_layers = s.gpu_layers;
    p.session = &session;
    p.draft_path = mtp ? nullptr : s.drafter.c_str();
    sharpi_plan* plan = nullptr;
    must(sharpi_plan_create(context, s.model.c_str(), &p, &plan, &e), e, "plan with a drafter");
    plan_.reset(plan);
    sharpi_model* model = nullptr;
    must(sharpi_model_load(plan, nullptr, nullptr, &model, &e), e, "load with a drafter");
    model_.reset(model);
  }

  DraftTime run() {
    DraftTime t;
    time_session(0);
    seconds_.clear();
    n_drafts_ = 0;
    while (t.n_sessions < kMostSessions && n_drafts_ < kEnough) time_session(++t.n_sessions);
    t.n_drafts = n_drafts_;
    t.n_steps = static_cast<uint32_t>(seconds_.size());
    if (!seconds_.empty()) t.seconds = median(seconds_);
    return t;
  }

 private:
  static constexpr uint32_t kPrompt = 2, kRoom = 160;  // tokens, and those behind them
  static constexpr uint32_t kMostUnread = 8;           // tokens that a drafter reads in one pass
  static constexpr uint32_t kPause = 16;               // steps without drafts that end a session
  static constexpr uint32_t kEnough = 120, kMostSessions = 64;

  SessionPtr open(uint32_t number) {
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session* session = nullptr;
    must(sharpi_session_create(model_.get(), nullptr, &session, &e), e, "session with a drafter");
    SessionPtr owner(session);
    sharpi_sampler_params sampler;
    sharpi_sampler_params_init(&sampler, sizeof sampler);
    sampler.temperature = 0;
    must(sharpi_session_set_sampler(session, &sampler, &e), e, "sampler");
    int32_t prompt[kPrompt];
    for (uint32_t i = 0; i < kPrompt; ++i)
      prompt[i] = static_cast<int32_t>(7 + (i * 31 + number * 17) % 190);
    must(sharpi_session_prefill(session, prompt, kPrompt, nullptr, nullptr, &e), e, "prompt");
    return owner;
  }

  void time_session(uint32_t number) {
    const SessionPtr session = open(number);
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_draft_stats before{}, after{};
    before.struct_size = after.struct_size = sizeof before;
    uint32_t made = 0, n = 0, unread = kPrompt;
    bool has_drafted = false;
    int32_t tokens[kMostTokens];
    for (uint32_t paused = 0; paused < kPause && made + kMostTokens < kRoom; made += n) {
      must(sharpi_session_step(session.get(), nullptr, tokens, kMostTokens, &n, &e), e, "step");
      if (sharpi_token_is_end(model_.get(), tokens[n - 1]) != 0) return;
      must(sharpi_session_drafts(session.get(), &after, &e), e, "drafts");
      const uint64_t n_new = after.n_drafted - before.n_drafted;
      if (n_new == 0 && has_drafted) return;
      if (n_new != 0 && unread <= kMostUnread) {
        seconds_.push_back((after.draft_seconds - before.draft_seconds) /
                           static_cast<double>(n_new));
        n_drafts_ += static_cast<uint32_t>(n_new);
      }
      has_drafted = n_new != 0;
      unread = has_drafted ? n : unread + n;
      paused = has_drafted ? 0 : paused + 1;
      before = after;
    }
  }

  static constexpr uint32_t kMostTokens = 33;  // of a step
  uint32_t n_drafts_ = 0;
  std::vector<double> seconds_;  // of a draft, by step
  ContextPtr context_;
  PlanPtr plan_;
  ModelPtr model_;
};

}  // namespace sharpi::bench
