// SPDX-License-Identifier: MIT
#include "engine/rank_link.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "plan/part_plan.h"

namespace sharpi {

/// A RankWord on its way.
struct RankLink::Word {
  uint32_t call, model, session, n_tokens;
  uint64_t arguments;
  int32_t code, native, value;
  uint32_t n_done;
  char text[280];  // or tokens, where the status is ok

  void write(const RankWord& w, uint32_t of_model);
  /// Whether rank r, whose word this is, makes the call that rank 0 makes.
  Status compare(const Word& first, uint32_t rank) const;
};

namespace {

/// What ranks' plans have in common, and where each has its layers.
struct PlanWord {
  uint64_t content_id;
  uint32_t model, n_embd, n_vocab, n_all, first, n_layers, n_ctx, n_chunk, deterministic, exact;
  RankCost cost;
};

struct RowsWord {
  uint32_t state, model, n_rows, reserved;
};

const char* call_name(RankCall call) {
  switch (call) {
    case RankCall::kLoad:
      return "a model's loading";
    case RankCall::kCreate:
      return "a session's creation";
    case RankCall::kPrefill:
      return "prefill";
    case RankCall::kPrefillEnd:
      return "the end of a prefill";
    case RankCall::kDecode:
      return "decode";
    case RankCall::kStep:
      return "step";
    case RankCall::kPassEnd:
      return "the end of a pass";
    case RankCall::kSample:
      return "sample";
    case RankCall::kTruncate:
      return "truncate";
    case RankCall::kTruncateEnd:
      return "the end of a truncation";
  }
  return "an unknown call";
}

Status compare_plans(const PlanWord& r, const PlanWord& first, uint32_t rank) {
  if (r.content_id != first.content_id) {
    return Status::error(Code::kMismatch,
                         "rank %u has another file than rank 0: its content id is %016llx, not "
                         "%016llx",
                         rank, static_cast<unsigned long long>(r.content_id),
                         static_cast<unsigned long long>(first.content_id));
  }
  const struct {
    const char* name;
    uint32_t own, other;
  } same[] = {{"the group's model number", r.model, first.model},
              {"n_embd", r.n_embd, first.n_embd},
              {"n_vocab", r.n_vocab, first.n_vocab},
              {"the number of layers", r.n_all, first.n_all},
              {"n_ctx", r.n_ctx, first.n_ctx},
              {"n_chunk", r.n_chunk, first.n_chunk},
              {"deterministic", r.deterministic, first.deterministic},
              {"arithmetic", r.exact, first.exact}};
  for (const auto& s : same) {
    if (s.own == s.other) continue;
    return Status::error(Code::kMismatch, "%s is %u on rank %u, and %u on rank 0", s.name, s.own,
                         rank, s.other);
  }
  return Status::ok();
}

/// That every rank begins where the one before it ends.
Status check_layers(const std::vector<PlanWord>& all) {
  uint32_t at = 0;
  for (uint32_t r = 0; r < all.size(); ++r) {
    if (all[r].first != at) {
      return Status::error(Code::kMismatch,
                           "rank %u begins with layer %u, but the ranks before it end with layer "
                           "%u: rank_layers differs between ranks",
                           r, all[r].first, at - 1);
    }
    at += all[r].n_layers;
  }
  return Status::ok();
}

PlanWord plan_word(const Plan& plan, uint32_t model) {
  const ModelSpec& s = *plan.spec;
  return {s.saved_id(false),
          model,
          s.n_embd,
          s.n_vocab,
          s.part.n_all,
          s.part.first,
          s.n_layers(),
          plan.session.n_ctx,
          plan.model.n_chunk,
          plan.model.deterministic ? 1u : 0u,
          plan.model.exact ? 1u : 0u,
          rank_cost(s, plan.session)};
}

constexpr std::align_val_t kAlign{64};

}  // namespace

void RankLink::Word::write(const RankWord& w, uint32_t of_model) {
  call = static_cast<uint32_t>(w.call);
  model = of_model;
  session = w.session;
  n_tokens = w.n_tokens;
  arguments = w.arguments;
  code = static_cast<int32_t>(w.status.code());
  native = w.status.native();
  value = w.value;
  n_done = w.n_done;
  static_assert(sizeof text >= kMaxBatch * sizeof(int32_t));
  if (w.status.is_ok() && !w.tokens.empty()) {
    std::memcpy(text, w.tokens.data(), w.tokens.size_bytes());
  } else {
    std::snprintf(text, sizeof text, "%s", w.status.text().c_str());
  }
}

Status RankLink::Word::compare(const Word& first, uint32_t rank) const {
  if (call != first.call) {
    return Status::error(Code::kMismatch, "rank %u is at %s, and rank 0 at %s", rank,
                         call_name(static_cast<RankCall>(call)),
                         call_name(static_cast<RankCall>(first.call)));
  }
  if (model != first.model || session != first.session) {
    return Status::error(Code::kMismatch,
                         "rank %u calls on session %u of model %u, and rank 0 on session %u of "
                         "model %u, counted as the group made them",
                         rank, session, model, first.session, first.model);
  }
  if (n_tokens != first.n_tokens) {
    return Status::error(Code::kMismatch, "the session has %u tokens on rank %u, and %u on rank 0",
                         n_tokens, rank, first.n_tokens);
  }
  if (arguments == first.arguments) return Status::ok();
  return Status::error(Code::kMismatch, "rank %u gives %s other arguments than rank 0", rank,
                       call_name(static_cast<RankCall>(first.call)));
}

RankLink::Word* RankLink::words() const {
  return reinterpret_cast<Word*>(message_ + bytes_ - group_->n_ranks() * kRankWordBytes);
}

RankLink::RankLink(std::shared_ptr<Group> group, uint64_t bytes, uint32_t n_embd)
    : group_(std::move(group)),
      bytes_(bytes),
      row_bytes_(uint64_t{n_embd} * sizeof(float)),
      message_(static_cast<std::byte*>(::operator new(bytes, kAlign))) {
  std::memset(message_, 0, bytes);
}

RankLink::~RankLink() {
  ::operator delete(message_, kAlign);
}

Result<std::shared_ptr<RankLink>> RankLink::create(std::shared_ptr<Group> group, const Plan& plan) {
  static_assert(kHeader == kRankHeaderBytes && sizeof(RowsWord) <= kHeader);
  const ModelSpec& spec = *plan.spec;
  std::shared_ptr<RankLink> link(
      new RankLink(std::move(group), rank_message_bytes(spec, plan.model), spec.n_embd));
  Group& g = link->group();
  link->model_ = g.next_model();
  const PlanWord own = plan_word(plan, link->model_);
  std::vector<PlanWord> all(g.n_ranks());
  SHARPI_TRY(g.exchange(&own, all.data(), sizeof own, true));
  for (uint32_t r = 1; r < all.size(); ++r) SHARPI_TRY(compare_plans(all[r], all[0], r));
  SHARPI_TRY(check_layers(all));
  for (const PlanWord& w : all) link->costs_.push_back(w.cost);
  return link;
}

RankVerdict RankLink::agree(const RankWord& own, bool patient) {
  static_assert(sizeof(Word) == kRankWordBytes);
  RankVerdict out;
  Word word{};
  word.write(own, model_);
  Word* all = words();
  out.status = group_->exchange(&word, all, sizeof word, patient);
  if (!out.status.is_ok()) return out;
  const uint32_t n = group_->n_ranks();
  out.value = all[n - 1].value;
  out.first_value = all[0].value;
  std::memcpy(out.tokens.data(), all[n - 1].text, sizeof out.tokens);
  out.n_done = all[0].n_done;
  for (uint32_t r = 1; r < n; ++r) {
    out.n_done = std::min(out.n_done, all[r].n_done);
    if (out.status.is_ok()) out.status = all[r].compare(all[0], r);
  }
  for (uint32_t r = 0; out.status.is_ok() && r < n; ++r) {
    if (all[r].code == 0) continue;
    out.status =
        Status::native_error(static_cast<Code>(all[r].code), all[r].native, "rank %u: %.*s", r,
                             static_cast<int>(sizeof all[r].text) - 1, all[r].text);
  }
  return out;
}

Status RankLink::receive(uint32_t n_rows, RowsState* out) {
  SHARPI_TRY(group_->receive_on(message_, kHeader + n_rows * row_bytes_));
  RowsWord word;
  std::memcpy(&word, message_, sizeof word);
  if (word.model != model_ || word.n_rows != n_rows || word.state == 0 ||
      word.state > static_cast<uint32_t>(RowsState::kFailed)) {
    return Status::error(
        Code::kInternal,
        "hidden rows came from the rank before that belong to no pass of this one");
  }
  *out = static_cast<RowsState>(word.state);
  return Status::ok();
}

Status RankLink::send(uint32_t n_rows, RowsState state) {
  const RowsWord word{static_cast<uint32_t>(state), model_, n_rows, 0};
  std::memcpy(message_, &word, sizeof word);
  return group_->send_on(message_, kHeader + n_rows * row_bytes_);
}

uint32_t RankLink::parts_of(std::span<const uint32_t> lengths) const {
  const uint32_t asked = group_->shape().batch_parts;
  if (asked == 0) return parts_of_batch(costs_, lengths);
  return std::min(asked, static_cast<uint32_t>(lengths.size()));
}

Status RankLine::take(uint32_t n_rows, bool stop, bool* compute) {
  if (!link_.is_first()) {
    SHARPI_TRY(link_.receive(n_rows, &state_));
  } else if (stop) {
    state_ = RowsState::kStopped;
  }
  *compute = state_ == RowsState::kRows && !failed_;
  return Status::ok();
}

Status RankLine::give(uint32_t n_rows, const Status& own, bool* more) {
  failed_ = !own.is_ok();
  if (!link_.is_last() && !told_) {
    const RowsState on = failed_ ? RowsState::kFailed : state_;
    SHARPI_TRY(link_.send(n_rows, on));
    told_ = on != RowsState::kRows;
  }
  *more = state_ == RowsState::kRows && !(link_.is_first() && failed_);
  return Status::ok();
}

MemoryRow RankLink::memory_row() const {
  return make_row(TierId::kCpu, 0, SHARPI_ROW_STAGING, SHARPI_ROW_ANONYMOUS,
                  "hidden rows between ranks", bytes_, bytes_);
}

}  // namespace sharpi
