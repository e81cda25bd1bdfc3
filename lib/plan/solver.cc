// SPDX-License-Identifier: MIT
// The solver: placement, context and KV dtype that fit the budgets. The requested context is a hard
// constraint; `auto` context is the largest that fits; `auto` dtype narrows only when it must.
#include <algorithm>
#include <cstring>

#include "plan/placement.h"
#include "plan/plan.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

const TierSizer* find_host(const std::vector<const TierSizer*>& sizers) {
  const auto it = std::find_if(sizers.begin(), sizers.end(),
                               [](const TierSizer* s) { return s->tier() == TierId::kCpu; });
  return it == sizers.end() ? nullptr : *it;
}

/// The GPU that the plan's blocks may go to: the one that is named, else the first; nullptr if
/// there is none.
Result<const TierSizer*> find_device(const std::vector<const TierSizer*>& sizers,
                                     const sharpi_plan_params& p) {
  const bool named = p.device != SHARPI_UNSET && p.device != 0;
  bool any = false;
  for (const TierSizer* s : sizers) {
    if (s->tier() != TierId::kCuda) continue;
    any = true;
    if (p.device != 0 && (!named || s->device_index() == p.device)) return s;
  }
  if (named && any) {
    return Status::error(Code::kNotFound, "device %u does not exist; this context has %zu",
                         p.device, sizers.size());
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
  for (MemoryRow& r : engine_session_rows(*plan->spec, plan->session, plan->model.n_chunk))
    plan->rows.push_back(r);
}

/// What a GPU's driver takes besides what is asked of it: images of kernels, graphs, its tables.
constexpr uint64_t kDriverReserve = 256ull << 20;

struct Budget {
  uint64_t bytes = 0;
  bool is_free_memory = false;
  const char* memory = "";  // "host" or "device"
};

Budget make_budget(const TierSizer* sizer, uint64_t param, const char* memory) {
  Budget b;
  b.memory = memory;
  b.is_free_memory = param == SHARPI_ALL_FREE;
  b.bytes = b.is_free_memory ? (sizer == nullptr ? 0 : sizer->free_bytes()) : param;
  if (sizer != nullptr && sizer->tier() == TierId::kCuda && b.is_free_memory) {
    b.bytes -= std::min(b.bytes, kDriverReserve);
  }
  return b;
}

/// Ok, or how many bytes the plan is over and its largest row of that memory.
Status check_budget(const Plan& plan, const Budget& budget, bool device) {
  const sharpi_plan_summary s = plan.summary();
  const uint64_t held = device ? s.device_held_bytes : s.host_held_bytes;
  if (held <= budget.bytes) return Status::ok();
  const MemoryRow* largest = nullptr;
  uint64_t most = 0;
  for (const MemoryRow& r : plan.rows) {
    if (r.kind == SHARPI_ROW_MAPPED || (r.kind == SHARPI_ROW_DEVICE) != device) continue;
    const uint64_t bytes = r.held_bytes * (r.per_session ? plan.model.n_sessions : 1);
    if (bytes > most) most = bytes, largest = &r;
  }
  const std::string name =
      budget.is_free_memory ? "free memory" : std::string(budget.memory) + "_budget";
  return Status::error(Code::kDoesNotFit,
                       "the plan takes %llu bytes of %s memory, %llu more than the %s of %llu; the "
                       "largest row is \"%s\" with %llu",
                       static_cast<ull>(held), budget.memory, static_cast<ull>(held - budget.bytes),
                       name.c_str(), static_cast<ull>(budget.bytes), largest ? largest->label : "?",
                       static_cast<ull>(most));
}

// An automatic context must not drive blocks off the device: the placement is the one for this many
// tokens, and the context then grows as far as that placement allows.
constexpr uint32_t kPlacedContext = 8192;

class Solver {
 public:
  Solver(const std::vector<const TierSizer*>& sizers, const PlacementLadder& ladder,
         const sharpi_plan_params& params, const PlanEnvironment& environment,
         const TierSizer* device, Plan* plan)
      : sizers_(sizers),
        ladder_(ladder),
        session_(*params.session),
        environment_(environment),
        plan_(plan),
        host_(make_budget(find_host(sizers), params.host_budget, "host")),
        device_(make_budget(device, params.device_budget, "device")) {}

  Status solve() {
    automatic_ = plan_->spec->default_kv_dtype;
    while (true) {
      const Status fits = place();
      if (fits.is_ok() || fits.code() != Code::kDoesNotFit) return fits;
      // Narrowing saves context the caller asked for; an automatic context shrinks instead.
      const KvDtype next = narrower(automatic_);
      if (!any_auto_ || plan_->n_ctx_is_auto || next == automatic_) return with_hint(fits);
      // Rows that the narrower codec cannot store are no reason to refuse what nobody asked for.
      const KvDtype before = automatic_;
      automatic_ = next;
      if (!set_placement(ladder_.size() - 1).is_ok()) {
        automatic_ = before;
        SHARPI_TRY(set_placement(ladder_.size() - 1));
        return with_hint(fits);
      }
      plan_->narrowed = true;
    }
  }

 private:
  static KvDtype narrower(KvDtype d) {
    return d == KvDtype::kF32 ? KvDtype::kBf16 : KvDtype::kQ8_0;
  }

  /// The placement of a rung and the dtypes that go with it.
  Status set_placement(size_t rung) {
    plan_->placement = ladder_.at(rung);
    SHARPI_TRY_ASSIGN(SessionDtypes d, resolve_dtypes(*plan_->spec, plan_->placement, session_,
                                                      environment_, automatic_));
    any_auto_ = d.any_auto;
    plan_->session.dtypes = std::move(d.per_layer);
    const std::vector<bool> all(plan_->spec->layers.size(), true);
    return check_kv_geometry(*plan_->spec, all, plan_->session.dtypes);
  }

  Status fit(uint32_t n_ctx) {
    plan_->session.n_ctx = n_ctx;
    price(sizers_, plan_);
    SHARPI_TRY(check_budget(*plan_, device_, true));
    return check_budget(*plan_, host_, false);
  }

  /// The first rung that fits. Device bytes fall from rung to rung, so it is found by bisection.
  Status place() {
    const uint32_t n_ctx = plan_->n_ctx_is_auto ? std::min(plan_->spec->n_ctx_train, kPlacedContext)
                                                : plan_->session.n_ctx;
    size_t low = 0, high = ladder_.size() - 1;
    const auto fits_device = [&](size_t rung, bool* fits) {
      SHARPI_TRY(set_placement(rung));
      plan_->session.n_ctx = n_ctx;
      price(sizers_, plan_);
      *fits = check_budget(*plan_, device_, true).is_ok();
      return Status::ok();
    };
    // The first rung is tried by itself: from the second on there is staging for weights that
    // stream, which may take more than one block gives back.
    bool fits = false;
    SHARPI_TRY(fits_device(0, &fits));
    if (fits)
      high = 0;
    else
      low = std::min<size_t>(1, high);
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      SHARPI_TRY(fits_device(middle, &fits));
      if (fits) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    SHARPI_TRY(set_placement(low));
    return plan_->n_ctx_is_auto ? largest_context() : fit(n_ctx);
  }

  /// Bytes grow with the context, so the largest that fits is found by bisection.
  Status largest_context() {
    uint32_t low = 0, high = plan_->spec->n_ctx_train;
    if (fit(high).is_ok()) return Status::ok();
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (fit(middle).is_ok() ? low : high) = middle;
    }
    if (low == 0) return fit(1);
    return fit(low);
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
  const PlacementLadder& ladder_;
  const sharpi_session_params& session_;
  const PlanEnvironment& environment_;
  Plan* plan_;
  const Budget host_, device_;
  KvDtype automatic_ = KvDtype::kF32;
  bool any_auto_ = false;
};

}  // namespace

uint64_t compaction_table_bytes(const ModelSpec& spec, const SessionShape& session,
                                uint32_t n_chunk) {
  uint64_t lists = 0;
  for (const LayerSpec& l : spec.layers) {
    if (l.owns_kv() && l.attention.window == 0) lists += l.attention.n_kv_heads;
  }
  const uint64_t rows = session.capacity(n_chunk);
  return (3 * lists * rows + 4 * rows + session.n_ctx) * sizeof(uint32_t);
}

std::vector<MemoryRow> engine_session_rows(const ModelSpec& spec, const SessionShape& session,
                                           uint32_t n_chunk) {
  const uint64_t history = uint64_t{session.n_ctx} * sizeof(int32_t);
  MemoryRow tokens = make_row(TierId::kCpu, 0, SHARPI_ROW_TABLES, SHARPI_ROW_ANONYMOUS,
                              "token history", history, history);
  // A copy of the logits, a list of ids, a bit per token, and 2048 sums.
  const uint64_t scratch = uint64_t{spec.n_vocab} * (sizeof(float) + sizeof(uint32_t)) +
                           div_up(spec.n_vocab, 64) * sizeof(uint64_t) + 2048 * sizeof(uint64_t);
  MemoryRow sampler = make_row(TierId::kCpu, 0, SHARPI_ROW_TABLES, SHARPI_ROW_ANONYMOUS, "sampler",
                               scratch, scratch);
  tokens.per_session = sampler.per_session = 1;
  std::vector<MemoryRow> rows{tokens, sampler};
  if (score_queries(session) != 0) {
    const uint64_t tables = compaction_table_bytes(spec, session, n_chunk);
    rows.push_back(make_row(TierId::kCpu, 0, SHARPI_ROW_TABLES, SHARPI_ROW_ANONYMOUS,
                            "compaction tables", tables, tables));
    rows.back().per_session = 1;
  }
  return rows;
}

namespace {

/// A model that the GPU's kernels cannot compute: refused if blocks are asked for there, else the
/// plan goes on without the GPU and says why.
Status leave_out_if_unsupported(const ModelSpec& spec, const sharpi_plan_params& params,
                                const TierSizer** device, Plan* plan) {
  Status can = (*device)->check_model(spec, Placement::all(spec, TierId::kCuda));
  if (can.is_ok() || params.n_gpu_layers > 0 || params.n_gpu_ffn > 0) return can;
  plan->placement_reason = can.text();
  *device = nullptr;
  return Status::ok();
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
                           params.n_sessions,
                           params.stream_rows};
  SHARPI_TRY_ASSIGN(const TierSizer* device, find_device(sizers, params));
  if (device != nullptr) SHARPI_TRY(leave_out_if_unsupported(*spec, params, &device, plan.get()));
  plan->device = device == nullptr ? 0 : device->device_index();
  SHARPI_TRY_ASSIGN(const PlacementLadder ladder,
                    PlacementLadder::create(*spec, params, device != nullptr));
  SHARPI_TRY_ASSIGN(plan->session, resolve_session_shape(*spec, *params.session, environment));
  plan->n_ctx_is_auto = plan->session.n_ctx == SHARPI_UNSET;
  Solver solver(sizers, ladder, params, environment, device, plan.get());
  SHARPI_TRY(solver.solve());
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace sharpi
