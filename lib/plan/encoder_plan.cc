// SPDX-License-Identifier: MIT
#include "plan/encoder_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/limits.h"

namespace sharpi {
namespace {

/// Longer texts have to be asked for: the scratch of a pass grows with them.
constexpr uint32_t kUsualText = 2048;
constexpr uint32_t kLeastRows = 512;  // of a pass that short texts share

}  // namespace

Status check_has_sessions(const ModelSpec& spec) {
  if (!spec.is_encoder()) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "%s is an encoder, which has no sessions: it reads whole texts; "
                       "sharpi_embedder_create() makes what reads them",
                       spec.architecture.c_str());
}

Status check_encoder_request(const ModelSpec& spec, const sharpi_plan_params& params) {
  const sharpi_session_params& s = *params.session;
  const std::pair<const char*, bool> asked[] = {
      {"k_dtype", s.k_dtype != SHARPI_KV_AUTO},
      {"v_dtype", s.v_dtype != SHARPI_KV_AUTO},
      {"tail_k_dtype", s.tail_k_dtype != SHARPI_KV_AUTO},
      {"tail_v_dtype", s.tail_v_dtype != SHARPI_KV_AUTO},
      {"kv_budget", s.kv_budget != 0},
      {"prompt_budget", s.prompt_budget != 0 && s.prompt_budget != SHARPI_UNSET},
      {"capture_window", s.capture_window != 0 && s.capture_window != SHARPI_UNSET},
      {"n_probe", s.n_probe != 0},
      {"n_draft", s.n_draft != 0},
      {"drafters", s.drafters != 0},
      {"draft_path", params.draft_path != nullptr},
  };
  for (const auto& [name, is_set] : asked) {
    if (!is_set) continue;
    return Status::error(Code::kInvalidArgument,
                         "%s is set, but %s is an encoder: it keeps no KV rows and drafts nothing",
                         name, spec.architecture.c_str());
  }
  return Status::ok();
}

Status resolve_encoder(const ModelSpec& spec, const sharpi_plan_params& params, Plan* plan) {
  SHARPI_TRY(check_encoder_request(spec, params));
  SessionShape& s = plan->session;
  s = SessionShape{};
  const uint32_t asked = params.session->n_ctx;
  if (asked != SHARPI_UNSET && asked > spec.n_ctx_train) {
    return Status::error(Code::kInvalidArgument,
                         "n_ctx is %u, but the encoder has only %u positions", asked,
                         spec.n_ctx_train);
  }
  const uint32_t rows = params.n_chunk;
  s.n_ctx = asked != SHARPI_UNSET ? asked : std::min(spec.n_ctx_train, kUsualText);
  if (asked == SHARPI_UNSET && rows != SHARPI_UNSET) s.n_ctx = std::min(s.n_ctx, rows);
  if (rows != SHARPI_UNSET && rows < s.n_ctx) {
    return Status::error(
        Code::kInvalidArgument,
        "n_chunk is %u, but an encoder reads texts of n_ctx = %u tokens in one pass", rows,
        s.n_ctx);
  }
  plan->model.n_chunk = rows != SHARPI_UNSET ? rows : std::max(s.n_ctx, kLeastRows);
  plan->model.max_batch = 1;  // of sessions
  plan->model.max_logit_rows = 1;
  return Status::ok();
}

uint64_t pooled_width(const ModelSpec& spec) {
  uint64_t most = spec.n_embd;
  for (const TensorRef& t : spec.pooled.projections) most = std::max(most, t.n_out);
  return most;
}

std::vector<MemoryRow> embedder_rows(const ModelSpec& spec, uint32_t n_chunk) {
  const auto row = [](const char* label, uint64_t floats) {
    const uint64_t bytes = floats * sizeof(float);
    MemoryRow r = make_row(TierId::kCpu, 0, SHARPI_ROW_ACTIVATIONS, SHARPI_ROW_ANONYMOUS, label,
                           bytes, bytes);
    r.per_session = 1;
    return r;
  };
  return {row("hidden rows of texts", uint64_t{n_chunk} * spec.n_embd),
          row("vectors of texts", kMaxTexts * (spec.n_embd + 2 * pooled_width(spec)))};
}

}  // namespace sharpi
