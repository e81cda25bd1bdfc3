// SPDX-License-Identifier: MIT
// From a request to a plan: which device, which limits, how large a chunk; the solver does the
// rest.
#include <algorithm>
#include <array>

#include "plan/drafter_plan.h"
#include "plan/mtp_plan.h"
#include "plan/placement.h"
#include "plan/plan.h"
#include "plan/solver.h"
#include "plan/token_checks.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

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
    return Status::error(Code::kNotFound, "device %u does not exist; this context has %zu devices",
                         p.device, sizers.size());
  }
  return static_cast<const TierSizer*>(nullptr);
}

/// A budget says how much of a memory may be taken: there must be that much.
Status check_exists(const TierSizer* sizer, uint64_t param, const char* memory) {
  if (sizer == nullptr || param == SHARPI_ALL_FREE || param <= sizer->total_bytes())
    return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s_budget is %llu bytes, but %s has only %llu",
                       memory, static_cast<ull>(param), sizer->device_name().c_str(),
                       static_cast<ull>(sizer->total_bytes()));
}

/// A model that the GPU's kernels cannot compute: refused if blocks are asked for there, else the
/// plan goes on without the GPU and says why.
Status leave_out_if_unsupported(const ModelSpec& spec, const sharpi_plan_params& params,
                                const TierSizer** device, Plan* plan) {
  Status can = (*device)->check_model(spec, Placement::all(spec, TierId::kCuda));
  if (can.is_ok() || device_pin(params) != nullptr) return can;
  plan->placement_reason = can.text();
  *device = nullptr;
  return Status::ok();
}

/// Chunks that `auto` chooses from. On the CPU more than 512 rows only cost: activations leave the
/// caches. A GPU reads long prompts faster by chunks of 2048, most of all where weights stream.
constexpr uint32_t kUsualChunk = 512;
constexpr std::array<uint32_t, 2> kLargerChunks{2048, 1024};
constexpr std::array<uint32_t, 2> kSmallerChunks{256, 128};

/// Whether a plan with a larger chunk gives up nothing for it but an eighth of what fills memory.
bool costs_little(const Plan& larger, const Plan& usual) {
  Placement placed = larger.placement;
  placed.n_expert_slots = usual.placement.n_expert_slots;
  const auto nearly = [](uint64_t n, uint64_t of) { return n * 8 >= of * 7; };
  return placed == usual.placement && larger.session.dtypes == usual.session.dtypes &&
         nearly(larger.session.n_ctx, usual.session.n_ctx) &&
         nearly(larger.placement.n_expert_slots, usual.placement.n_expert_slots);
}

using Solved = Result<std::shared_ptr<Plan>>;

/// The plan with the chunk that `auto` takes, at least `least`.
template <class SolveWith>
Solved choose_chunk(const Plan& request, uint32_t least, const SolveWith& solve_with) {
  const uint32_t n_ctx = request.session.n_ctx;
  const auto serves = [&](uint32_t chunk) { return chunk >= least; };
  const auto is_needed = [&](uint32_t chunk) { return chunk / 2 < n_ctx; };
  uint32_t first = kUsualChunk;
  for (const uint32_t c : kSmallerChunks) {
    if (!is_needed(first) && serves(c)) first = c;
  }
  first = std::max(first, least);
  Solved usual = solve_with(first);
  for (const uint32_t c : kSmallerChunks) {
    if (usual.is_ok() || usual.status().code() != Code::kDoesNotFit) break;
    if (c >= first || !serves(c)) continue;
    usual = solve_with(c);
    if (!usual.is_ok()) continue;
    usual.value()->fallbacks.push_back("prompts are read by " + std::to_string(c) +
                                       " tokens at a time: larger chunks do not fit");
    return usual;
  }
  // The rows of a chunk are part of what a bounded session holds, so it keeps to the usual one.
  if (!usual.is_ok() || !usual.value()->placement.uses(TierId::kCuda)) return usual;
  if (request.session.kv_budget != 0) return usual;
  for (const uint32_t c : kLargerChunks) {
    if (c <= first || !is_needed(c)) continue;
    Solved larger = solve_with(c);
    if (larger.is_ok() && costs_little(*larger.value(), *usual.value())) return larger;
  }
  return usual;
}

/// Which of the drafters that `auto` has go first, where the plan with them does not fit; 0 = none
/// of them is the reason.
uint32_t first_to_go(uint32_t drafters, Code why) {
  const uint32_t mtp = drafters & SHARPI_DRAFT_MTP, model = drafters & SHARPI_DRAFT_MODEL;
  if (why != Code::kDoesNotFit) return 0;
  return model != 0 ? model : mtp;
}

bool has_head_on_device(const Solved& solved) {
  return solved.is_ok() && solved.value()->placement.head == TierId::kCuda;
}

/// The plan with the draft model where the head is. Where the head is on the device only without
/// it, or nothing fits with it, it is on the host.
template <class Solve>
Solved place_draft_model(Plan* request, const TierSizer* device, const Solve& solve_all) {
  if (device == nullptr || !has_draft_model(*request, request->session)) return solve_all();
  const ModelSpec& spec = *request->draft_spec;
  const Status can = device->check_model(spec, Placement::all(spec, TierId::kCuda));
  Solved beside = can.is_ok() ? solve_all() : Solved(can);
  if (has_head_on_device(beside)) return beside;
  request->draft_on_host =
      beside.is_ok() ? "beside it the head would not fit the GPU" : beside.status().text();
  Solved apart = solve_all();
  if (has_head_on_device(apart)) {
    apart.value()->fallbacks.push_back("the draft model is on the CPU: " + request->draft_on_host);
  }
  request->draft_on_host.clear();
  return has_head_on_device(apart) || !can.is_ok() ? apart : beside;
}

/// The plan with the drafters that it asks for. Those that it leaves to the library are all that
/// fit: without the MTP block where the file or the budgets do not have it, and without the draft
/// model where the budgets do not.
template <class Solve>
Solved choose_drafters(Plan* request, const TierSizer* device, const Solve& solve_one) {
  uint32_t& drafters = request->session.drafters;
  const ModelSpec* draft = request->draft_spec.get();
  const auto solve_all = [&] { return place_draft_model(request, device, solve_one); };
  SHARPI_TRY(check_draft_model(*request->spec, draft, drafters));
  if (drafters != SHARPI_DRAFT_AUTO) {
    if ((drafters & SHARPI_DRAFT_MTP) != 0) SHARPI_TRY(check_mtp(*request->spec, device));
    return solve_all();
  }
  std::vector<std::string> left_out;
  const auto leave_out = [&](uint32_t one, const Status& why) {
    drafters &= ~one;
    if (one == SHARPI_DRAFT_MTP) request->session.n_draft_vocab = 0;
    left_out.push_back(std::string("the ") + (one == SHARPI_DRAFT_MTP ? "MTP" : "MODEL") +
                       " drafter is left out: " + why.text());
  };
  drafters = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP | (draft == nullptr ? 0 : SHARPI_DRAFT_MODEL);
  const Status has_block = check_mtp(*request->spec, device);
  if (!has_block.is_ok()) leave_out(SHARPI_DRAFT_MTP, has_block);
  while (true) {
    Solved solved = solve_all();
    const uint32_t goes = solved.is_ok() ? 0 : first_to_go(drafters, solved.status().code());
    if (goes != 0) {
      leave_out(goes, solved.status());
      continue;
    }
    if (solved.is_ok()) {
      auto& to = solved.value()->fallbacks;
      to.insert(to.end(), left_out.begin(), left_out.end());
    }
    return solved;
  }
}

}  // namespace

Result<std::shared_ptr<const Plan>> make_plan(std::shared_ptr<const ModelSpec> spec,
                                              const std::vector<const TierSizer*>& sizers,
                                              const sharpi_plan_params& params,
                                              const PlanEnvironment& environment,
                                              const PlanMachine* machine,
                                              std::shared_ptr<const ModelSpec> draft) {
  auto plan = std::make_shared<Plan>();
  plan->spec = spec;
  plan->draft_spec = std::move(draft);
  plan->file_fingerprint = spec->file->fingerprint();
  plan->model = ModelShape{params.arithmetic == SHARPI_ARITHMETIC_EXACT,
                           params.deterministic != 0,
                           params.n_chunk,
                           params.max_batch,
                           params.max_logit_rows == SHARPI_UNSET
                               ? std::min(kDefaultMaxLogitRows, params.n_chunk)
                               : params.max_logit_rows,
                           params.max_concurrent,
                           params.n_sessions,
                           params.stream_rows,
                           params.load_mode == SHARPI_LOAD_COPY};
  SHARPI_TRY_ASSIGN(const TierSizer* device, find_device(sizers, params));
  SHARPI_TRY(check_exists(device, params.device_budget, "device"));
  SHARPI_TRY(check_exists(find_host(sizers), params.host_budget, "host"));
  if (device != nullptr) SHARPI_TRY(leave_out_if_unsupported(*spec, params, &device, plan.get()));
  DeviceAbility ability;
  ability.exists = device != nullptr;
  ability.why_none = machine == nullptr ? "no CUDA device" : machine->why_no_device();
  if (device != nullptr) {
    Placement parted = Placement::all(*spec, TierId::kCuda);
    std::fill(parted.experts.begin(), parted.experts.end(), TierId::kCpu);
    plan->expert_slot_bytes = device->expert_slot_bytes(*spec, parted);
  }
  ability.expert_slots = plan->expert_slot_bytes != 0;
  plan->device = device == nullptr ? 0 : device->device_index();
  plan->device_budget = params.device_budget;
  plan->host_budget = params.host_budget;
  SHARPI_TRY_ASSIGN(const PlacementLadder ladder, PlacementLadder::create(*spec, params, ability));
  SHARPI_TRY_ASSIGN(plan->session, resolve_session_shape(*spec, *params.session, environment));
  plan->n_ctx_is_auto = plan->session.n_ctx == SHARPI_UNSET;
  const uint32_t draft_rows = plan->session.n_draft + 1;  // a pass over them wants all their logits
  if (draft_rows > params.n_chunk) {
    return Status::error(
        Code::kInvalidArgument,
        "n_draft is %u, but a chunk has only %u rows, one of which is the token before the drafts",
        plan->session.n_draft, params.n_chunk);
  }
  SHARPI_TRY(check_probe_length(plan->session.probe.size(), params.n_chunk));
  plan->model.max_logit_rows = std::max(plan->model.max_logit_rows, draft_rows);
  const SolveInputs inputs{sizers, params, environment, device, machine};
  const auto solve_with = [&](uint32_t n_chunk) -> Solved {
    auto one = std::make_shared<Plan>(*plan);
    PlacementLadder own = ladder;
    one->model.n_chunk = n_chunk;
    SHARPI_TRY(solve(inputs, &own, one.get()));
    return one;
  };
  Solved solved = choose_drafters(plan.get(), device, [&]() -> Solved {
    if (params.n_chunk != SHARPI_UNSET) return solve_with(params.n_chunk);
    const auto probe = static_cast<uint32_t>(plan->session.probe.size());
    return choose_chunk(*plan, std::max(plan->model.max_logit_rows, probe), solve_with);
  });
  if (!solved.is_ok()) return solved.status();
  return std::shared_ptr<const Plan>(solved.take());
}

}  // namespace sharpi
