// SPDX-License-Identifier: MIT
// The solver: placement, context and KV dtype that fit the budgets. The requested context is a hard
// constraint; `auto` context is the largest that fits; `auto` dtype narrows only when it must.
#include <algorithm>
#include <cstring>

#include "plan/plan.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

/// What may be placed where: the GPU takes all blocks of a model or none in this version.
enum class Wish : uint8_t { kHost, kDevice, kAuto };

Status not_split(const char* field, int32_t value, const char* rest) {
  return Status::error(Code::kUnsupported,
                       "%s is %d: this version places all blocks of a model on a GPU or none%s",
                       field, value, rest);
}

/// The placement that the parameters ask for. kUnsupported names the field of a split.
Result<Wish> read_wish(const ModelSpec& spec, const sharpi_plan_params& p) {
  const auto n = static_cast<int32_t>(spec.n_layers());
  if (p.n_gpu_layers > n) {
    return Status::error(Code::kInvalidArgument, "n_gpu_layers is %d, the model has %d layers",
                         p.n_gpu_layers, n);
  }
  if (p.n_gpu_ffn > n) {
    return Status::error(Code::kInvalidArgument, "n_gpu_ffn is %d, the model has %d layers",
                         p.n_gpu_ffn, n);
  }
  if (p.n_gpu_layers > 0 && p.n_gpu_layers < n) {
    return not_split("n_gpu_layers", p.n_gpu_layers, "");
  }
  if (p.n_gpu_ffn > 0 && p.n_gpu_ffn < n) return not_split("n_gpu_ffn", p.n_gpu_ffn, "");
  if (p.n_expert_slots > 0) return not_split("n_expert_slots", p.n_expert_slots, "");
  const bool is_moe = std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& l) {
    return l.ffn.kind == FfnKind::kMoe;
  });
  const bool some = p.n_gpu_layers > 0 || p.n_gpu_ffn > 0;
  const bool none = p.n_gpu_layers == 0 || p.n_gpu_ffn == 0 || (p.n_expert_slots == 0 && is_moe);
  if (some && none) {
    return p.n_gpu_layers > 0 ? not_split("n_gpu_layers", p.n_gpu_layers, ", and FFNs stay behind")
                              : not_split("n_gpu_ffn", p.n_gpu_ffn, ", and mixers stay behind");
  }
  return some ? Wish::kDevice : none || p.device == 0 ? Wish::kHost : Wish::kAuto;
}

const TierSizer* host_of(const std::vector<const TierSizer*>& sizers) {
  const auto it = std::find_if(sizers.begin(), sizers.end(),
                               [](const TierSizer* s) { return s->tier() == TierId::kCpu; });
  return it == sizers.end() ? nullptr : *it;
}

/// The GPU for the plan's blocks; nullptr when none is there and none is asked for.
Result<const TierSizer*> find_device(const std::vector<const TierSizer*>& sizers,
                                     const sharpi_plan_params& p, Wish wish) {
  const bool named = p.device != SHARPI_UNSET && p.device != 0;
  bool any = false;
  for (const TierSizer* s : sizers) {
    if (s->tier() != TierId::kCuda) continue;
    any = true;
    if (!named || s->device_index() == p.device) return s;
  }
  if (named && any) {
    return Status::error(Code::kNotFound, "device %u does not exist; this context has %zu",
                         p.device, sizers.size());
  }
  if (named || wish == Wish::kDevice) {
    return Status::error(Code::kUnsupported,
                         "blocks on a GPU are asked for, but there is no CUDA device");
  }
  return static_cast<const TierSizer*>(nullptr);
}

/// All rows for one context and dtype choice.
void price(const std::vector<const TierSizer*>& sizers, Plan* plan) {
  plan->rows.clear();
  for (const TierSizer* s : sizers) {
    if (!plan->uses(*s)) continue;
    for (MemoryRow& r : s->model_rows(*plan->spec, plan->placement, plan->model, plan->session)) {
      plan->rows.push_back(r);
    }
    for (MemoryRow& r : s->session_rows(*plan->spec, plan->placement, plan->model, plan->session)) {
      plan->rows.push_back(r);
    }
  }
  for (MemoryRow& r : engine_session_rows(*plan->spec, plan->session)) plan->rows.push_back(r);
}

/// What the driver takes besides what is asked of it: images of kernels, graphs, its own tables.
constexpr uint64_t kDriverReserve = 256ull << 20;

struct Budget {
  uint64_t host = 0, device = 0;
  bool host_is_free_memory = false, device_is_free_memory = false;
};

Status over_budget(const Plan& plan, bool device, uint64_t wanted, uint64_t budget,
                   const char* name) {
  const MemoryRow* largest = nullptr;
  uint64_t most = 0;
  for (const MemoryRow& r : plan.rows) {
    if (r.kind == SHARPI_ROW_MAPPED || (r.kind == SHARPI_ROW_DEVICE) != device) continue;
    const uint64_t bytes = r.held_bytes * (r.per_session ? plan.model.n_sessions : 1);
    if (bytes > most) most = bytes, largest = &r;
  }
  return Status::error(Code::kDoesNotFit,
                       "the plan takes %llu bytes of %s memory, %llu more than the %s of %llu; the "
                       "largest row is \"%s\" with %llu",
                       static_cast<ull>(wanted), device ? "device" : "host",
                       static_cast<ull>(wanted - budget), name, static_cast<ull>(budget),
                       largest ? largest->label : "?", static_cast<ull>(most));
}

/// Ok, or how many bytes the plan is over and its largest row.
Status check_budget(const Plan& plan, const Budget& budget) {
  const sharpi_plan_summary s = plan.summary();
  if (s.host_held_bytes > budget.host) {
    return over_budget(plan, false, s.host_held_bytes, budget.host,
                       budget.host_is_free_memory ? "free memory" : "host_budget");
  }
  if (s.device_held_bytes > budget.device) {
    return over_budget(
        plan, true, s.device_held_bytes, budget.device,
        budget.device_is_free_memory ? "free memory (less a reserve)" : "device_budget");
  }
  return Status::ok();
}

class Solver {
 public:
  Solver(const std::vector<const TierSizer*>& sizers, const sharpi_plan_params& params,
         const sharpi_session_params& session, const PlanEnvironment& environment,
         const TierSizer* device, Plan* plan)
      : sizers_(sizers), session_(session), environment_(environment), plan_(plan) {
    const TierSizer* host = host_of(sizers);
    budget_.host_is_free_memory = params.host_budget == SHARPI_ALL_FREE;
    budget_.host = !budget_.host_is_free_memory ? params.host_budget
                   : host == nullptr            ? 0
                                                : host->free_bytes();
    if (device == nullptr) return;
    budget_.device_is_free_memory = params.device_budget == SHARPI_ALL_FREE;
    const uint64_t free = budget_.device_is_free_memory ? device->free_bytes() : 0;
    budget_.device = !budget_.device_is_free_memory ? params.device_budget
                     : free > kDriverReserve        ? free - kDriverReserve
                                                    : 0;
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
  const uint64_t scratch = uint64_t{spec.n_vocab} * sizeof(float);
  MemoryRow sampler = make_row(TierId::kCpu, 0, SHARPI_ROW_TABLES, SHARPI_ROW_ANONYMOUS,
                               "sampler row", scratch, scratch);
  tokens.per_session = sampler.per_session = 1;
  return {tokens, sampler};
}

namespace {

/// An automatic context below this is no reason to leave the host's memory unused.
constexpr uint32_t kLeastAutoContext = 2048;

/// Solves the plan with all blocks on `device`, or on the host if it is null.
Status solve_on(const std::vector<const TierSizer*>& sizers, const sharpi_plan_params& params,
                const PlanEnvironment& environment, const TierSizer* device, Plan* plan) {
  plan->placement =
      Placement::all(*plan->spec, device == nullptr ? TierId::kCpu : TierId::kCuda);
  plan->device = device == nullptr ? 0 : device->device_index();
  plan->narrowed = false;
  if (plan->n_ctx_is_auto) plan->session.n_ctx = SHARPI_UNSET;
  if (device != nullptr) SHARPI_TRY(device->check_model(*plan->spec, plan->placement));
  Solver solver(sizers, params, *params.session, environment, device, plan);
  return solver.solve();
}

/// The GPU if everything fits there, else the host; the plan says why.
Status solve_auto(const std::vector<const TierSizer*>& sizers, const sharpi_plan_params& params,
                  const PlanEnvironment& environment, const TierSizer* device, Plan* plan) {
  if (device == nullptr) return solve_on(sizers, params, environment, nullptr, plan);
  const Status gpu = solve_on(sizers, params, environment, device, plan);
  const uint32_t least = std::min(kLeastAutoContext, plan->spec->n_ctx_train);
  if (gpu.is_ok() && (!plan->n_ctx_is_auto || plan->session.n_ctx >= least)) return gpu;
  if (!gpu.is_ok() && gpu.code() != Code::kDoesNotFit && gpu.code() != Code::kUnsupported)
    return gpu;
  plan->placement_reason = gpu.is_ok() ? "only " + std::to_string(plan->session.n_ctx) +
                                             " tokens of context fit on the GPU"
                                       : gpu.text();
  const Status host = solve_on(sizers, params, environment, nullptr, plan);
  if (host.is_ok() || host.code() != Code::kDoesNotFit) return host;
  return Status::error(Code::kDoesNotFit, "%s; on the GPU: %s", host.text().c_str(),
                       plan->placement_reason.c_str());
}

}  // namespace

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
  SHARPI_TRY_ASSIGN(const Wish wish, read_wish(*spec, params));
  SHARPI_TRY_ASSIGN(const TierSizer* device, find_device(sizers, params, wish));
  SHARPI_TRY_ASSIGN(plan->session, resolve_session_shape(*spec, *params.session, environment));
  plan->n_ctx_is_auto = plan->session.n_ctx == SHARPI_UNSET;
  SHARPI_TRY(wish == Wish::kAuto
                 ? solve_auto(sizers, params, environment, device, plan.get())
                 : solve_on(sizers, params, environment,
                            wish == Wish::kDevice ? device : nullptr, plan.get()));
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace sharpi
