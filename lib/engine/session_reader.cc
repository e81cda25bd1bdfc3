// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>

#include "base/no_throw.h"
#include "engine/session_state.h"
#include "engine/text_reader.h"
#include "plan/encoder_plan.h"

namespace sharpi {

class SessionReader final : public TextReader {
 public:
  SessionReader(std::shared_ptr<const Model> model, float* hidden)
      : model_(std::move(model)), hidden_(hidden) {}

  Status create(uint32_t n_ctx, uint32_t n_sessions) {
    for (uint32_t i = 0; i < n_sessions; ++i) {
      SHARPI_TRY_ASSIGN(std::unique_ptr<Session> s,
                        Session::create(model_, reading_shape(model_->plan(), n_ctx)));
      sessions_.push_back(std::move(s));
    }
    return Status::ok();
  }

  Status read(std::span<const Text> texts, const std::atomic<bool>& cancel,
              RowSink* sink) override {
    places_.fill({});
    next_ = 0;
    Status done;
    do {
      give_out(texts);
      done = pass(texts, cancel, sink);
    } while (done.is_ok() && is_reading());
    if (!done.is_ok()) forget_all();
    return done;
  }

  std::vector<MemoryRow> memory_rows() const override {
    std::vector<MemoryRow> all;
    for (const auto& s : sessions_) {
      for (const MemoryRow& r : s->memory_rows()) all.push_back(r);
    }
    return all;
  }

 private:
  /// What a session reads.
  struct Place {
    bool taken = false;
    uint32_t text = 0, n_read = 0;
  };
  struct Part {
    uint32_t slot = 0;
    std::span<const int32_t> tokens;
  };
  static SessionState& state_of(Session& s) { return *s.state_; }

  bool is_reading() const {
    return std::any_of(places_.begin(), places_.end(), [](const Place& p) { return p.taken; }) ||
           next_ < n_texts_;
  }

  void give_out(std::span<const Text> texts) {
    n_texts_ = texts.size();
    for (size_t s = 0; s < sessions_.size() && next_ < texts.size(); ++s) {
      if (!places_[s].taken) places_[s] = {true, static_cast<uint32_t>(next_++), 0};
    }
  }

  /// One pass over as many rows of the texts in hand as fit.
  Status pass(std::span<const Text> texts, const std::atomic<bool>& cancel, RowSink* sink) {
    const uint64_t width = model_->spec().n_embd;
    const uint32_t most = model_->plan().model.n_chunk;
    std::array<SequenceRows, kMaxTexts> rows;
    std::array<std::span<TierSession* const>, kMaxTexts> lists;
    std::array<Part, kMaxTexts> parts;
    tokens_.clear();
    size_t n = 0;
    for (uint32_t s = 0; s < sessions_.size() && tokens_.size() < most; ++s) {
      if (!places_[s].taken) continue;
      const std::span<const int32_t> rest =
          texts[places_[s].text].tokens.subspan(places_[s].n_read);
      const auto part = rest.first(std::min<size_t>(rest.size(), most - tokens_.size()));
      SessionState& state = state_of(*sessions_[s]);
      rows[n].first_row = static_cast<uint32_t>(tokens_.size());
      SHARPI_TRY(state.runner.begin(static_cast<uint32_t>(part.size()), &rows[n]));
      rows[n].first_logit_row = rows[n].n_rows;  // none
      rows[n].n_best = 0;
      rows[n].hidden = hidden_ + rows[n].first_row * width;
      lists[n] = state.core.tier_list;
      parts[n++] = {s, part};
      tokens_.insert(tokens_.end(), part.begin(), part.end());
    }
    Submission all;
    all.tokens = tokens_.data();
    all.n_rows = static_cast<uint32_t>(tokens_.size());
    all.sequences = {rows.data(), n};
    all.cancel = &cancel;
    SHARPI_TRY(no_throw([&] { return model_->run(all, {lists.data(), n}); }));
    for (size_t i = 0; i < n; ++i) SHARPI_TRY(commit(texts, parts[i], rows[i].hidden, sink));
    return sink->end_pass(all.n_rows);
  }

  Status commit(std::span<const Text> texts, const Part& part, const float* hidden, RowSink* sink) {
    Place& place = places_[part.slot];
    Session& session = *sessions_[part.slot];
    const auto n = static_cast<uint32_t>(part.tokens.size());
    state_of(session).runner.commit(part.tokens, 0);
    sink->take(place.text, part.slot, place.n_read, n, hidden);
    place.n_read += n;
    if (place.n_read < texts[place.text].tokens.size()) return Status::ok();
    place.taken = false;
    return session.truncate(0);
  }

  void forget_all() noexcept {
    for (const auto& s : sessions_) state_of(*s).forget_all();
  }

  const std::shared_ptr<const Model> model_;
  float* const hidden_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::array<Place, kMaxTexts> places_;
  size_t next_ = 0, n_texts_ = 0;
  std::vector<int32_t> tokens_;
};

SessionShape reading_shape(const Plan& plan, uint32_t n_ctx) {
  SessionShape s;
  s.n_ctx = n_ctx;
  s.dtypes = plan.session.dtypes;
  s.rewind = 0;
  return s;
}

Result<std::unique_ptr<TextReader>> make_session_reader(std::shared_ptr<const Model> model,
                                                        uint32_t n_ctx, uint32_t n_sessions,
                                                        float* hidden) {
  auto reader = std::make_unique<SessionReader>(std::move(model), hidden);
  SHARPI_TRY(reader->create(n_ctx, n_sessions));
  return std::unique_ptr<TextReader>(std::move(reader));
}

}  // namespace sharpi
