// SPDX-License-Identifier: MIT
// From a request to a plan: which device, which limits, how large a chunk; the solver does the
// rest.
#include <algorithm>
#include <array>

#include "plan/adapter_plan.h"
#include "plan/device_requests.h"
#include "plan/drafter_plan.h"
#include "plan/encoder_plan.h"
#include "plan/mtp_plan.h"
#include "plan/part_plan.h"
#include "plan/placement.h"
#include "plan/plan.h"
#include "plan/session_plan.h"
#include "plan/solver.h"
#include "plan/token_checks.h"

namespace sharpi {
namespace {

using Sizers = std::vector<const TierSizer*>;

/// A model, or adapters, that the kernels of a device cannot compute: refused if blocks are asked
/// for there, else the plan goes on without the device and says why.
Status leave_out_if_unsupported(const ModelSpec& spec, const sharpi_plan_params& params,
                                DeviceRequests* requests, Plan* plan) {
  const Placement whole = Placement::all(spec, DeviceIndex::kHere);
  std::vector<DeviceRequest> can;
  Status first;
  for (const DeviceRequest& d : requests->devices) {
    Status s = d.sizer->check_model(spec, whole);
    if (s.is_ok() && plan->model.adapter_rank != 0) s = d.sizer->check_adapters();
    if (s.is_ok()) can.push_back(d);
    if (s.is_ok()) continue;
    if (first.is_ok()) first = s;
    if (requests->named) SHARPI_TRY(s);
    for (PlanDevice& of : plan->devices) {
      if (of.index == d.sizer->device()) of.refusal = s.text();
    }
  }
  if (!first.is_ok() && !can.empty()) {
    for (const PlanDevice& d : plan->devices) {
      if (!d.refusal.empty())
        plan->fallbacks.push_back("device " + std::to_string(index_of(d.index)) + " (" + d.name +
                                  ") is left out: " + d.refusal);
    }
  }
  requests->devices = std::move(can);
  if (first.is_ok() || !requests->devices.empty()) return Status::ok();
  if (device_pin(params) != nullptr) return first;
  plan->placement_reason = first.text();
  return Status::ok();
}

PlanDevice plan_device(const DeviceRequest& r) {
  PlanDevice d;
  d.tier = r.sizer->tier();
  d.index = r.sizer->device();
  d.name = r.sizer->device_name();
  d.id = r.sizer->device_id();
  d.budget = r.budget;
  d.reserve = r.reserve;
  return d;
}

/// The largest slot for a routed expert on any of them, whose slots are alike; 0 = one has none.
uint64_t slot_bytes_of(const ModelSpec& spec, const Sizers& devices) {
  Placement parted = Placement::all(spec, DeviceIndex::kHere);
  std::fill(parted.experts.begin(), parted.experts.end(), DeviceIndex::kHost);
  uint64_t bytes = 0;
  for (const TierSizer* d : devices) {
    const uint64_t own = d->expert_slot_bytes(spec, parted);
    if (own == 0) return 0;
    bytes = std::max(bytes, own);
  }
  return bytes;
}

/// Layers that a list of devices pins are layers on devices.
Result<sharpi_plan_params> pin_listed_layers(const ModelSpec& spec, const sharpi_plan_params& p) {
  sharpi_plan_params out = p;
  const uint32_t pinned = listed_layers(p);
  if (pinned > spec.n_layers()) {
    return Status::error(Code::kInvalidArgument,
                         "the list of devices asks for %u layers, but the model has only %u",
                         pinned, spec.n_layers());
  }
  const bool all = std::all_of(p.devices, p.devices + p.n_devices,
                               [](const auto& d) { return d.device == 0 || d.n_layers >= 0; });
  if (all && pinned != 0) out.n_gpu_layers = static_cast<int32_t>(pinned);
  return out;
}

/// Whether the model may be on all of them.
Status check_together(const ModelSpec& spec, const std::vector<DeviceRequest>& devices) {
  for (const DeviceRequest& d : devices) {
    std::vector<const TierSizer*> others;
    for (const DeviceRequest& o : devices)
      if (o.sizer != d.sizer) others.push_back(o.sizer);
    if (!others.empty()) SHARPI_TRY(d.sizer->check_beside(spec, others));
  }
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
  placed.slots_of = usual.placement.slots_of;
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
  if (!usual.is_ok() || usual.value()->placement.route().empty()) return usual;
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
  return solved.is_ok() && !is_host(solved.value()->placement.head);
}

/// The plan with the draft model where the head is. Where the head is on the device only without
/// it, or nothing fits with it, it is on the host.
template <class Solve>
Solved place_draft_model(Plan* request, const Sizers& devices, const Solve& solve_all) {
  if (devices.empty() || !has_draft_model(*request, request->session)) return solve_all();
  const ModelSpec& spec = *request->draft_spec;
  Status can;
  for (const TierSizer* d : devices)
    if (can.is_ok()) can = d->check_model(spec, Placement::all(spec, DeviceIndex::kHere));
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
Solved choose_drafters(Plan* request, const Sizers& devices, const Solve& solve_one) {
  uint32_t& drafters = request->session.drafters;
  const ModelSpec* draft = request->draft_spec.get();
  const auto solve_all = [&] { return place_draft_model(request, devices, solve_one); };
  SHARPI_TRY(check_draft_model(*request->spec, draft, drafters));
  if (drafters != SHARPI_DRAFT_AUTO) {
    if ((drafters & SHARPI_DRAFT_MTP) != 0) SHARPI_TRY(check_mtp(*request->spec, devices));
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
  const Status has_block = check_mtp(*request->spec, devices);
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

/// The session template, but for dtypes; of an encoder what its embedders read.
Status resolve_template(const ModelSpec& spec, const sharpi_plan_params& params,
                        const PlanEnvironment& environment, Plan* plan) {
  if (spec.is_encoder()) return resolve_encoder(spec, params, plan);
  SHARPI_TRY_ASSIGN(plan->session, resolve_session_shape(spec, *params.session, environment));
  if (!spec.part.is_part()) return Status::ok();
  SHARPI_TRY(check_part_request(params));
  return check_part_session(plan->session);
}

/// The model's shape as it is asked for.
ModelShape asked_shape(const sharpi_plan_params& p) {
  const uint32_t logit_rows = p.max_logit_rows == SHARPI_UNSET
                                  ? std::min(kDefaultMaxLogitRows, p.n_chunk)
                                  : p.max_logit_rows;
  return ModelShape{p.arithmetic == SHARPI_ARITHMETIC_EXACT,
                    p.deterministic != 0,
                    p.n_chunk,
                    p.max_batch,
                    logit_rows,
                    p.max_concurrent,
                    p.n_sessions,
                    p.stream_rows,
                    p.load_mode == SHARPI_LOAD_COPY,
                    0};
}

}  // namespace

Result<std::shared_ptr<const Plan>> make_plan(std::shared_ptr<const ModelSpec> spec,
                                              const std::vector<const TierSizer*>& sizers,
                                              const sharpi_plan_params& params,
                                              const PlanEnvironment& environment,
                                              const PlanMachine* machine,
                                              std::shared_ptr<const ModelSpec> draft,
                                              std::span<const AdapterFile> adapters) {
  auto plan = std::make_shared<Plan>();
  plan->spec = spec;
  plan->draft_spec = std::move(draft);
  plan->file_fingerprint = spec->file->fingerprint();
  plan->model = asked_shape(params);
  SHARPI_TRY_ASSIGN(plan->model.adapter_rank,
                    resolve_adapter_rank(*spec, params.adapter_rank, adapters));
  if (!adapters.empty()) {
    plan->adapters =
        std::make_shared<const std::vector<AdapterFile>>(adapters.begin(), adapters.end());
  }
  plan->split = params.split;
  SHARPI_TRY_ASSIGN(DeviceRequests requests, resolve_devices(sizers, params, environment.device));
  if (requests.host.sizer != nullptr) plan->devices.push_back(plan_device(requests.host));
  for (const DeviceRequest& d : requests.devices) plan->devices.push_back(plan_device(d));
  SHARPI_TRY(leave_out_if_unsupported(*spec, params, &requests, plan.get()));
  Sizers devices;
  for (const DeviceRequest& d : requests.devices) devices.push_back(d.sizer);
  plan->expert_slot_bytes = slot_bytes_of(*spec, devices);
  DeviceAbility ability;
  ability.exists = !devices.empty();
  ability.why_none = machine == nullptr ? "no GPU" : machine->why_no_device();
  ability.expert_slots = plan->expert_slot_bytes != 0;
  SHARPI_TRY_ASSIGN(const sharpi_plan_params pinned, pin_listed_layers(*spec, params));
  SHARPI_TRY_ASSIGN(const PlacementLadder ladder, PlacementLadder::create(*spec, pinned, ability));
  SHARPI_TRY(resolve_template(*spec, params, environment, plan.get()));
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
  const SolveInputs inputs{
      sizers,           params,         environment,  requests.host,
      requests.devices, requests.named, requests.all, check_together(*spec, requests.devices),
      machine};
  const auto solve_with = [&](uint32_t n_chunk) -> Solved {
    auto one = std::make_shared<Plan>(*plan);
    PlacementLadder own = ladder;
    one->model.n_chunk = n_chunk;
    SHARPI_TRY(solve(inputs, &own, one.get()));
    return one;
  };
  Solved solved = choose_drafters(plan.get(), devices, [&]() -> Solved {
    if (spec->is_encoder()) return solve_with(plan->model.n_chunk);
    if (params.n_chunk != SHARPI_UNSET) return solve_with(params.n_chunk);
    if (spec->part.is_part()) return solve_with(kUsualChunk);  // every rank takes the same
    const auto probe = static_cast<uint32_t>(plan->session.probe.size());
    return choose_chunk(*plan, std::max(plan->model.max_logit_rows, probe), solve_with);
  });
  if (!solved.is_ok()) return solved.status();
  const std::shared_ptr<Plan> made = solved.take();
  made->spec = spec_for_context(made->spec, made->session.n_ctx);
  return std::shared_ptr<const Plan>(made);
}

}  // namespace sharpi
