// SPDX-License-Identifier: MIT
#include "plan/drafter_plan.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "gguf/gguf_file.h"
#include "plan/encoder_plan.h"
#include "plan/session_plan.h"

namespace sharpi {
namespace {

/// Rows that the drafter reads at a time: what pays on a CPU, and few activations on a GPU.
constexpr uint32_t kDraftChunk = 512;

using Tokens = std::vector<std::string_view>;

Result<Tokens> tokens_of(const ModelSpec& spec) {
  SHARPI_TRY_ASSIGN(auto tokens, spec.file->get_string_array("tokenizer.ggml.tokens"));
  if (tokens.has_value()) return std::move(*tokens);
  return Status::error(Code::kUnsupported,
                       "%s has no tokenizer.ggml.tokens, so nothing says that a draft model's "
                       "tokens are the same",
                       spec.file->path().c_str());
}

/// Token by token: equal sizes say nothing, and a draft is an id.
Status check_same_tokens(const ModelSpec& spec, const ModelSpec& draft) {
  SHARPI_TRY_ASSIGN(const Tokens own, tokens_of(spec));
  SHARPI_TRY_ASSIGN(const Tokens other, tokens_of(draft));
  if (own.size() != other.size() || spec.n_vocab != draft.n_vocab) {
    return Status::error(Code::kMismatch,
                         "the draft model has another vocabulary: it has %zu tokens and %u logits, "
                         "the model has %zu and %u",
                         other.size(), draft.n_vocab, own.size(), spec.n_vocab);
  }
  const auto [mine, its] = std::mismatch(own.begin(), own.end(), other.begin());
  if (mine == own.end()) return Status::ok();
  const auto shown = [](std::string_view s) { return std::string(s.substr(0, 40)); };
  return Status::error(
      Code::kMismatch,
      "the draft model has another vocabulary: its token %td is \"%s\", the model's is \"%s\"",
      mine - own.begin(), shown(*its).c_str(), shown(*mine).c_str());
}

}  // namespace

Status check_draft_model(const ModelSpec& spec, const ModelSpec* draft, uint32_t drafters) {
  const bool asked = (drafters & SHARPI_DRAFT_MODEL) != 0;
  if (draft == nullptr) {
    if (!asked) return Status::ok();
    return Status::error(Code::kInvalidArgument, "drafters has MODEL, but draft_path is null");
  }
  if (!asked && drafters != SHARPI_DRAFT_AUTO) {
    return Status::error(Code::kInvalidArgument,
                         "draft_path is given, but drafters is %u: only 8 (MODEL) and 4 (AUTO) "
                         "use it",
                         drafters);
  }
  SHARPI_TRY(check_has_sessions(*draft));
  return check_same_tokens(spec, *draft);
}

bool has_draft_model(const Plan& plan, const SessionShape& session) {
  return plan.draft_spec != nullptr && (session.drafters & SHARPI_DRAFT_MODEL) != 0;
}

std::shared_ptr<const Plan> make_draft_plan(const std::vector<const TierSizer*>& sizers,
                                            const Plan& plan, const SessionShape& session) {
  auto own = std::make_shared<Plan>();
  Plan& p = *own;
  p.spec = plan.draft_spec;
  p.placement = Placement::all(*p.spec, plan.placement.draft);
  p.devices = plan.devices;
  p.model.exact = plan.model.exact;
  p.model.deterministic = plan.model.deterministic;
  p.model.n_chunk = std::min(plan.model.n_chunk, kDraftChunk);
  p.model.max_batch = p.model.max_logit_rows = 1;
  p.model.max_concurrent = plan.model.max_concurrent;
  p.model.n_sessions = plan.model.n_sessions;
  p.model.copy_weights = plan.model.copy_weights;
  p.session.n_ctx = std::min(session.capacity(plan.model.n_chunk), p.spec->n_ctx_train);
  p.spec = spec_for_context(p.spec, p.session.n_ctx);
  p.session.dtypes.assign(p.spec->layers.size(),
                          {p.spec->default_kv_dtype, p.spec->default_kv_dtype});
  p.session.n_checkpoints = p.spec->is_hybrid() ? 1 : 0;  // before what may be taken back
  p.session.lookahead = false;
  p.file_fingerprint = p.spec->file->fingerprint();
  const auto add = [&](std::vector<MemoryRow> rows) {
    p.rows.insert(p.rows.end(), rows.begin(), rows.end());
  };
  for (const TierSizer* s : sizers) {
    if (p.model.copy_weights) add(s->copied_weight_plan_rows(*p.spec, p.placement));
  }
  for (const TierSizer* s : sizers) {
    if (!p.uses(*s)) continue;
    add(p.model_rows(*s));
    add(p.session_rows(*s, p.session));
  }
  add(engine_session_rows(*p.spec, p.placement, p.session, p.model.n_chunk));
  return own;
}

MemoryRow draft_row(MemoryRow row, const ModelSpec& whole) {
  const std::string label = std::string("drafter ") + row.label;
  std::snprintf(row.label, sizeof row.label, "%s", label.c_str());
  if (row.n_layers != 0) row.first_layer += whole.n_layers();
  return row;
}

std::vector<MemoryRow> draft_rows(const std::vector<const TierSizer*>& sizers, const Plan& plan,
                                  const SessionShape& session, bool per_session) {
  std::vector<MemoryRow> rows;
  if (!has_draft_model(plan, session)) return rows;
  const std::shared_ptr<const Plan> own = make_draft_plan(sizers, plan, session);
  for (const MemoryRow& r : own->rows) {
    if ((r.per_session != 0) == per_session) rows.push_back(draft_row(r, *plan.spec));
  }
  return rows;
}

}  // namespace sharpi
