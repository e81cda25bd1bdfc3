// SPDX-License-Identifier: MIT
// The solver: placement, context and KV dtype that fit the budgets. The requested context is a hard
// constraint; `auto` context is the largest that fits; `auto` dtype narrows only when it must.
#include <algorithm>
#include <cstring>

#include "plan/plan.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

const TierSizer* find_sizer(const std::vector<const TierSizer*>& sizers, TierId tier) {
  const auto it = std::find_if(sizers.begin(), sizers.end(),
                               [&](const TierSizer* s) { return s->tier() == tier; });
  return it == sizers.end() ? nullptr : *it;
}

Result<Placement> place(const ModelSpec& spec, const std::vector<const TierSizer*>& sizers,
                        const sharpi_plan_params& p) {
  const auto n = static_cast<int64_t>(spec.n_layers());
  if (p.n_gpu_layers > n) {
    return Status::error(Code::kInvalidArgument, "n_gpu_layers is %d, the model has %lld layers",
                         p.n_gpu_layers, static_cast<long long>(n));
  }
  if (p.n_gpu_ffn > n) {
    return Status::error(Code::kInvalidArgument, "n_gpu_ffn is %d, the model has %lld layers",
                         p.n_gpu_ffn, static_cast<long long>(n));
  }
  const bool wants_gpu = p.n_gpu_layers > 0 || p.n_gpu_ffn > 0 || p.n_expert_slots > 0 ||
                         (p.device != SHARPI_UNSET && p.device != 0);
  if (wants_gpu && find_sizer(sizers, TierId::kCuda) == nullptr) {
    return Status::error(Code::kUnsupported,
                         "blocks on a GPU are asked for, but there is no CUDA device");
  }
  return Placement::all(spec, TierId::kCpu);
}

/// All rows for one context and dtype choice.
void price(const std::vector<const TierSizer*>& sizers, Plan* plan) {
  plan->rows.clear();
  for (const TierSizer* s : sizers) {
    if (!plan->placement.uses(s->tier())) continue;
    for (MemoryRow& r : s->model_rows(*plan->spec, plan->placement, plan->model, plan->session)) {
      plan->rows.push_back(r);
    }
    for (MemoryRow& r : s->session_rows(*plan->spec, plan->placement, plan->model, plan->session)) {
      plan->rows.push_back(r);
    }
  }
  for (MemoryRow& r : engine_session_rows(*plan->spec, plan->session)) plan->rows.push_back(r);
}

struct Budget {
  uint64_t host = 0;
  bool host_is_free_memory = false;
};

/// Ok, or how many bytes the plan is over and its largest row.
Status check_budget(const Plan& plan, const Budget& budget) {
  const sharpi_plan_summary s = plan.summary();
  if (s.host_held_bytes <= budget.host) return Status::ok();
  const MemoryRow* largest = nullptr;
  uint64_t most = 0;
  for (const MemoryRow& r : plan.rows) {
    if (r.kind == SHARPI_ROW_MAPPED || r.kind == SHARPI_ROW_DEVICE) continue;
    const uint64_t bytes = r.held_bytes * (r.per_session ? plan.model.n_sessions : 1);
    if (bytes > most) most = bytes, largest = &r;
  }
  return Status::error(
      Code::kDoesNotFit,
      "the plan takes %llu bytes of host memory, %llu more than the %s of %llu; the "
      "largest row is \"%s\" with %llu",
      static_cast<ull>(s.host_held_bytes), static_cast<ull>(s.host_held_bytes - budget.host),
      budget.host_is_free_memory ? "free memory" : "host_budget", static_cast<ull>(budget.host),
      largest ? largest->label : "?", static_cast<ull>(most));
}

class Solver {
 public:
  Solver(const std::vector<const TierSizer*>& sizers, const sharpi_plan_params& params,
         const sharpi_session_params& session, const PlanEnvironment& environment, Plan* plan)
      : sizers_(sizers), session_(session), environment_(environment), plan_(plan) {
    const TierSizer* host = find_sizer(sizers, TierId::kCpu);
    const uint64_t free = host == nullptr ? 0 : host->free_bytes();
    budget_.host_is_free_memory = params.host_budget == SHARPI_ALL_FREE;
    budget_.host = budget_.host_is_free_memory ? free : params.host_budget;
  }

  Status solve() {
    KvDtype automatic = plan_->spec->default_kv_dtype;
    SHARPI_TRY(set_dtypes(automatic));
    while (true) {
      const Status fits =
          plan_->n_ctx_is_auto ? largest_context() : fit_context(plan_->session.n_ctx);
      if (fits.is_ok() || fits.code() != Code::kDoesNotFit) return fits;
      // Narrowing saves context the caller asked for; an automatic context shrinks instead.
      const KvDtype next = narrower(automatic);
      if (!any_auto_ || plan_->n_ctx_is_auto || next == automatic) {
        return with_hint(fits);
      }
      // Rows that the narrower codec cannot store are no reason to refuse what nobody asked for.
      if (!set_dtypes(next).is_ok()) {
        SHARPI_TRY(set_dtypes(automatic));
        return with_hint(fits);
      }
      automatic = next;
      plan_->narrowed = true;
    }
  }

 private:
  static KvDtype narrower(KvDtype d) {
    return d == KvDtype::kF32 ? KvDtype::kBf16 : KvDtype::kQ8_0;
  }

  Status set_dtypes(KvDtype automatic) {
    SHARPI_TRY_ASSIGN(SessionDtypes d, resolve_dtypes(*plan_->spec, plan_->placement, session_,
                                                      environment_, automatic));
    any_auto_ = d.any_auto;
    plan_->session.dtypes = std::move(d.per_layer);
    const std::vector<bool> all(plan_->spec->layers.size(), true);
    return check_kv_geometry(*plan_->spec, all, plan_->session.dtypes);
  }

  Status fit_context(uint32_t n_ctx) {
    plan_->session.n_ctx = n_ctx;
    price(sizers_, plan_);
    return check_budget(*plan_, budget_);
  }

  /// Bytes grow with the context, so the largest that fits is found by bisection.
  Status largest_context() {
    uint32_t low = 0, high = plan_->spec->n_ctx_train;
    if (fit_context(high).is_ok()) return Status::ok();
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (fit_context(middle).is_ok() ? low : high) = middle;
    }
    if (low == 0) return fit_context(1);
    return fit_context(low);
  }

  Status with_hint(const Status& fits) {
    if (plan_->n_ctx_is_auto) return fits;
    const uint32_t asked = plan_->session.n_ctx;
    const Status any = largest_context();
    const uint32_t would = plan_->session.n_ctx;
    plan_->session.n_ctx = asked;
    if (!any.is_ok()) return fits;
    return Status::error(Code::kDoesNotFit, "%s; n_ctx %u would fit", fits.text().c_str(), would);
  }

  const std::vector<const TierSizer*>& sizers_;
  const sharpi_session_params& session_;
  const PlanEnvironment& environment_;
  Plan* plan_;
  Budget budget_;
  bool any_auto_ = false;
};

}  // namespace

std::vector<MemoryRow> engine_session_rows(const ModelSpec& spec, const SessionShape& session) {
  const uint64_t history = uint64_t{session.n_ctx} * sizeof(int32_t);
  MemoryRow tokens = make_row(TierId::kCpu, 0, SHARPI_ROW_TABLES, SHARPI_ROW_ANONYMOUS,
                              "token history", history, history);
  // A copy of the logits, a list of ids, a bit per token, and 2048 sums.
  const uint64_t scratch = uint64_t{spec.n_vocab} * (sizeof(float) + sizeof(uint32_t)) +
                           div_up(spec.n_vocab, 64) * sizeof(uint64_t) + 2048 * sizeof(uint64_t);
  MemoryRow sampler = make_row(TierId::kCpu, 0, SHARPI_ROW_TABLES, SHARPI_ROW_ANONYMOUS, "sampler",
                               scratch, scratch);
  tokens.per_session = sampler.per_session = 1;
  return {tokens, sampler};
}

Result<std::shared_ptr<const Plan>> make_plan(std::shared_ptr<const ModelSpec> spec,
                                              const std::vector<const TierSizer*>& sizers,
                                              const sharpi_plan_params& params,
                                              const PlanEnvironment& environment) {
  auto plan = std::make_shared<Plan>();
  plan->spec = spec;
  plan->file_fingerprint = spec->file->fingerprint();
  plan->model = ModelShape{params.arithmetic == SHARPI_ARITHMETIC_EXACT,
                           params.deterministic != 0,
                           params.n_chunk,
                           params.max_batch,
                           params.max_logit_rows,
                           params.max_concurrent,
                           params.n_sessions};
  SHARPI_TRY_ASSIGN(plan->placement, place(*spec, sizers, params));
  SHARPI_TRY_ASSIGN(plan->session, resolve_session_shape(*spec, *params.session, environment));
  plan->n_ctx_is_auto = plan->session.n_ctx == SHARPI_UNSET;
  Solver solver(sizers, params, *params.session, environment, plan.get());
  SHARPI_TRY(solver.solve());
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace sharpi
