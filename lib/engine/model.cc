// SPDX-License-Identifier: MIT
#include "engine/model.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "base/limits.h"
#include "base/no_throw.h"
#include "engine/log_lines.h"
#include "engine/seconds.h"
#include "plan/drafter_plan.h"
#include "plan/solver.h"
#include "tier/host_weights.h"
#include "tier/pipeline_stage.h"

namespace sharpi {
namespace {

Status check_file(const GgufFile& planned) {
  SHARPI_TRY_ASSIGN(std::shared_ptr<const GgufFile> now, GgufFile::open(planned.path()));
  if (now->fingerprint() != planned.fingerprint()) {
    return Status::error(Code::kMismatch, "%s changed after it was planned",
                         planned.path().c_str());
  }
  return Status::ok();
}

bool same_formats(std::span<TierSession* const> a, std::span<TierSession* const> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto* x, const auto* y) { return x->format() == y->format(); });
}

/// Memory that was free at planning may be gone: said before anything is taken.
Status check_memory(const Context& context, const Plan& plan) {
  for (const TierSizer* sizer : context.sizers()) {
    if (!is_host(sizer->device()) && !plan.uses(*sizer)) continue;
    const uint64_t need = model_bytes(plan.rows, sizer->device()), free = sizer->free_bytes();
    if (need <= free) continue;
    const uint64_t copies = is_host(sizer->tier()) ? host_shares(plan).weights : 0;
    const std::string instead = copies == 0
                                    ? ""
                                    : "; load_mode MAP would leave " + std::to_string(copies) +
                                          " of them, the weights, in the mapped file";
    return Status::error(
        Code::kOutOfMemory,
        "the model takes %llu bytes of %s, of which %llu are free now: %llu are missing%s",
        static_cast<unsigned long long>(need), sizer->device_name().c_str(),
        static_cast<unsigned long long>(free), static_cast<unsigned long long>(need - free),
        instead.c_str());
  }
  return Status::ok();
}

}  // namespace

Route Route::create(std::vector<Segment> segments) {
  Route r;
  r.times = std::make_unique<SegmentTimes[]>(segments.size());
  r.segments = std::move(segments);
  return r;
}

Result<std::shared_ptr<Model>> Model::load(std::shared_ptr<Context> context,
                                           std::shared_ptr<const Plan> plan,
                                           const LoadProgress& progress) {
  if (plan->spec->part.is_part()) {
    return Status::error(Code::kInvalidArgument,
                         "the plan is for a rank of a group, and there is no group");
  }
  return load_here(std::move(context), std::move(plan), progress, nullptr);
}

Result<std::shared_ptr<Model>> Model::load_part(std::shared_ptr<Context> context,
                                                std::shared_ptr<const Plan> plan,
                                                const LoadProgress& progress,
                                                std::shared_ptr<Group> group) {
  const GroupCall call(*group);
  SHARPI_TRY(call.entered());
  SHARPI_TRY_ASSIGN(const std::shared_ptr<RankLink> link,
                    RankLink::create(std::move(group), *plan));
  RankWord word;
  std::shared_ptr<Model> made;
  word.status = no_throw([&]() -> Status {
    SHARPI_TRY_ASSIGN(made, load_here(std::move(context), std::move(plan), progress, link));
    return Status::ok();
  });
  SHARPI_TRY(link->agree(word, true).status);
  return made;
}

Result<std::shared_ptr<Model>> Model::load_here(std::shared_ptr<Context> context,
                                                std::shared_ptr<const Plan> plan,
                                                const LoadProgress& progress,
                                                std::shared_ptr<RankLink> ranks) {
  if (plan->session_only) {
    return Status::error(Code::kInvalidArgument,
                         "the plan prices only a session, so no model can be loaded from it");
  }
  const auto start = std::chrono::steady_clock::now();
  SHARPI_TRY(check_file(*plan->spec->file));
  SHARPI_TRY(check_memory(*context, *plan));
  std::shared_ptr<Model> m(new Model());
  m->context_ = std::move(context);
  m->ranks_ = std::move(ranks);
  SHARPI_TRY_ASSIGN(plan, m->place_weights(*plan, progress));
  m->plan_ = plan;
  m->allowance_ = std::make_shared<Allowance>(*plan);
  for (const auto& backend : m->context_->backends()) {
    const DeviceIndex device = backend->sizer().device();
    if (!plan->uses(backend->sizer())) continue;
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierModel> tier,
                      backend->load(seen_from(device, plan), progress));
    m->tiers_.push_back(std::move(tier));
    m->devices_.push_back(device);
  }
  if (plan->placement.mtp) SHARPI_TRY(m->load_mtp());
  if (has_draft_model(*plan, plan->session)) SHARPI_TRY(m->load_draft(progress));
  m->placed_ = Route::create(make_segments(*plan->spec, plan->placement));
  m->find_direct_ways();
  SHARPI_TRY(m->create_slots());
  if (streams_weights(*plan->spec, plan->placement, plan->model)) {
    const Placement many = streamed_placement(*plan->spec, plan->placement, plan->model);
    m->streamed_ = Route::create(make_segments(*plan->spec, many, &plan->placement));
    m->stream_rows_ = plan->model.stream_rows;
    if (m->stream_rows_ == 0) SHARPI_TRY(m->find_stream_rows());
  }
  m->paths_ = m->describe_paths();
  SHARPI_TRY_ASSIGN(m->text_, TextModel::create(plan->spec->file));
  SHARPI_TRY(m->check_unchanged());
  log_loaded(*m, seconds_since(start));
  return m;
}

Status Model::load_mtp() {
  const DeviceIndex at = plan_->placement.head;
  for (const auto& backend : context_->backends()) {
    if (backend->sizer().device() != at) continue;
    SHARPI_TRY_ASSIGN(mtp_, MtpModel::load(*backend, *tiers_[tier_index(at)], plan_));
    return Status::ok();
  }
  return Status::error(Code::kInternal, "there is no tier for the MTP block");
}

Status Model::load_draft(const LoadProgress& progress) {
  SHARPI_TRY_ASSIGN(
      draft_,
      load(context_, make_draft_plan(context_->sizers(), *plan_, plan_->session), progress));
  return Status::ok();
}

Status Model::check_unchanged() const {
  const GgufFile& file = *spec().file;
  if (!file.has_changed()) return Status::ok();
  return Status::error(Code::kMismatch, "%s was changed while the library was using it",
                       file.path().c_str());
}

Model::~Model() {
  if (text_ != nullptr) log_experts(*this);  // one that was loaded to the end
}

/// The plan with a spec whose host tensors are in memory: copies, or pages of the file.
Result<std::shared_ptr<const Plan>> Model::place_weights(const Plan& plan,
                                                         const LoadProgress& progress) {
  auto placed = std::make_shared<Plan>(plan);
  if (!plan.model.copy_weights) {
    SHARPI_TRY_ASSIGN(std::shared_ptr<const GgufFile> mapped, plan.spec->file->map_tensors());
    SHARPI_TRY_ASSIGN(placed->spec, reload_spec(*plan.spec, std::move(mapped)));
    return std::shared_ptr<const Plan>(std::move(placed));
  }
  for (const auto& backend : context_->backends()) {
    SHARPI_TRY_ASSIGN(host_weights_, backend->copy_weights(plan, progress));
    if (host_weights_ != nullptr) break;
  }
  if (host_weights_ == nullptr) {
    return Status::error(Code::kInternal, "no tier copies the host's weights");
  }
  placed->spec = host_weights_->spec();
  return std::shared_ptr<const Plan>(std::move(placed));
}

/// The tiers in the order in which a token comes to their devices, the host's behind them: the
/// first device brings the memory in which rows are handed over.
std::vector<size_t> Model::by_route() const {
  std::vector<size_t> order;
  for (const DeviceIndex d : plan_->placement.route()) order.push_back(tier_index(d));
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (std::find(order.begin(), order.end(), t) == order.end()) order.push_back(t);
  }
  return order;
}

void Model::find_direct_ways() {
  const size_t n = tiers_.size();
  direct_.assign(n * n, false);
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to)
      direct_[from * n + to] = from != to && tiers_[from]->reaches(devices_[to]);
  }
}

/// As many as a step may have.
bool Model::is_few(uint32_t n_rows) const {
  return n_rows <= std::max(plan_->model.max_batch, plan_->session.n_draft + 1);
}

/// Steps are recorded with the addresses of the hand-over, and their rows are few.
bool Model::goes_directly(size_t from, size_t to, uint32_t n_rows) const {
  return !is_few(n_rows) && direct_[from * tiers_.size() + to];
}

uint32_t Model::passes_under_way(uint32_t n_rows) const {
  if (ranks_ != nullptr || is_few(n_rows) || placed_.segments.size() < 2 || n_rows >= stream_rows_)
    return 1;
  uint32_t n = std::numeric_limits<uint32_t>::max();
  for (const Segment& segment : placed_.segments) {
    const PipelineStage* stage = tiers_[tier_index(segment.device)]->pipeline_stage();
    if (stage == nullptr || !segment.first_here) return 1;
    n = std::min(n, stage->passes(n_rows));
  }
  return n;
}

Status Model::create_slots() {
  for (uint32_t i = 0; i < plan_->model.max_concurrent; ++i) {
    auto slot = std::make_unique<CallSlot>();
    slot->workspaces.resize(tiers_.size());
    for (const size_t t : by_route()) {
      SHARPI_TRY_ASSIGN(slot->workspaces[t], tiers_[t]->create_workspace(slot->handover));
      if (slot->handover == nullptr) slot->handover = slot->workspaces[t]->handover();
    }
    if (ranks_ != nullptr && slot->handover == nullptr) slot->handover = ranks_->rows();
    if (tiers_.size() > 1 && slot->handover == nullptr) {
      return Status::error(Code::kInternal, "no tier has memory to hand hidden rows over in");
    }
    SHARPI_TRY(connect_experts(slot.get()));
    free_.push_back(slot.get());
    slots_.push_back(std::move(slot));
  }
  return mtp_ == nullptr ? Status::ok() : mtp_->create_workspaces();
}

/// Every device with routers whose experts are on the host asks the host's tier for them. Segments
/// of one call run one after the other, so all may ask with its one workspace.
Status Model::connect_experts(CallSlot* slot) const {
  const Placement& placed = plan_->placement;
  std::vector<size_t> asking;
  for (uint32_t l = 0; l < spec().n_layers(); ++l) {
    if (!placed.parts_experts(spec(), l)) continue;
    const size_t asks = tier_index(placed.ffn[l]), answers = tier_index(placed.experts[l]);
    if (std::find(asking.begin(), asking.end(), asks) != asking.end()) continue;
    asking.push_back(asks);
    SHARPI_TRY_ASSIGN(std::unique_ptr<ExpertHost> host,
                      tiers_[answers]->create_expert_host(*slot->workspaces[answers]));
    tiers_[asks]->use_expert_host(*slot->workspaces[asks], host.get());
    slot->experts.push_back(std::move(host));
  }
  return Status::ok();
}

size_t Model::tier_index(DeviceIndex device) const {
  return static_cast<size_t>(std::find(devices_.begin(), devices_.end(), device) -
                             devices_.begin());
}

std::vector<MemoryRow> Model::memory_rows() const {
  std::vector<MemoryRow> rows;
  if (host_weights_ != nullptr) rows = host_weights_->memory_rows();
  if (ranks_ != nullptr) rows.push_back(ranks_->memory_row());
  for (const auto& tier : tiers_) {
    for (const MemoryRow& r : tier->memory_rows()) rows.push_back(r);
  }
  if (mtp_ != nullptr) {
    for (const MemoryRow& r : mtp_->memory_rows()) rows.push_back(r);
  }
  if (draft_ != nullptr) {
    for (const MemoryRow& r : draft_->memory_rows()) rows.push_back(draft_row(r, spec()));
  }
  return rows;
}

std::string Model::describe_paths() const {
  std::string text;
  for (const auto& tier : tiers_) text += (text.empty() ? "" : "; ") + tier->paths();
  if (tiers_.size() == 1) return text;
  const std::vector<DeviceIndex> route = plan_->placement.route();
  for (size_t i = 1; i < route.size(); ++i) {
    const size_t from = tier_index(route[i - 1]), to = tier_index(route[i]);
    text += "; chunks from device " + std::to_string(index_of(route[i - 1])) + " to device " +
            std::to_string(index_of(route[i])) +
            (direct_[from * tiers_.size() + to] ? ": directly" : ": through pinned memory");
  }
  if (const uint32_t n = passes_under_way(plan_->model.max_rows()); n > 1)
    text += "; chunks of a prompt pass the devices as a pipeline, up to " + std::to_string(n) +
            " at once";
  if (stream_rows_ == SHARPI_UNSET) return text + "; no call streams weights";
  return text + "; calls of " + std::to_string(stream_rows_) + " rows and more stream weights";
}

sharpi_expert_stats Model::expert_stats() const {
  sharpi_expert_stats all{};
  for (const auto& tier : tiers_) {
    sharpi_expert_stats s{};
    if (!tier->expert_stats(&s)) continue;
    all.n_slots += s.n_slots;
    all.n_resident += s.n_resident;
    all.n_pinned += s.n_pinned;
    all.slot_bytes = std::max(all.slot_bytes, s.slot_bytes);
    all.n_uses += s.n_uses;
    all.n_hits += s.n_hits;
    all.n_promotions += s.n_promotions;
    all.n_evictions += s.n_evictions;
    all.promoted_bytes += s.promoted_bytes;
  }
  return all;
}

std::vector<uint64_t> Model::expert_uses(uint32_t layer) const {
  return tiers_[tier_index(plan_->placement.ffn[layer])]->expert_uses(layer);
}

/// Of the tiers that ask for experts, that with a layer's router; the first one refuses any other.
size_t Model::tier_asking(uint32_t layer, std::span<const size_t> asking) const {
  if (layer >= spec().n_layers()) return asking[0];
  const size_t t = tier_index(plan_->placement.ffn[layer]);
  return std::find(asking.begin(), asking.end(), t) == asking.end() ? asking[0] : t;
}

Status Model::pin_experts(std::span<const ExpertId> experts) const {
  std::vector<size_t> asking;
  sharpi_expert_stats slots{};
  for (size_t t = 0; t < tiers_.size(); ++t)
    if (tiers_[t]->expert_stats(&slots)) asking.push_back(t);
  if (asking.size() < 2) {  // without any, a tier says that there are no slots
    return tiers_[asking.empty() ? 0 : asking[0]]->pin_experts(experts);
  }
  for (const size_t t : asking) {
    std::vector<ExpertId> own;
    for (const ExpertId& e : experts) {
      if (tier_asking(e.layer, asking) == t) own.push_back(e);
    }
    if (!own.empty()) SHARPI_TRY(tiers_[t]->pin_experts(own));
  }
  return Status::ok();
}

/// Calls get slots in the order in which they come.
CallSlot* Model::acquire() const {
  std::unique_lock<std::mutex> lock(slots_mutex_);
  const uint64_t own = n_came_++;
  slots_free_.wait(lock, [&] { return own == n_served_ && !free_.empty(); });
  ++n_served_;
  CallSlot* slot = free_.back();
  free_.pop_back();
  if (!free_.empty()) slots_free_.notify_all();
  return slot;
}

/// A call waits until a slot is free.
bool Model::is_wanted() const {
  const std::lock_guard<std::mutex> lock(slots_mutex_);
  return n_came_ != n_served_;
}

void Model::release(CallSlot* slot) const {
  {
    const std::lock_guard<std::mutex> lock(slots_mutex_);
    free_.push_back(slot);
  }
  slots_free_.notify_all();
}

namespace {
thread_local bool computes = false;  // a call of this thread, on some model
}  // namespace

/// It would wait for a slot or a device that the call waits with, which goes on when it returns.
Status Model::check_may_compute() {
  if (!computes) return Status::ok();
  return Status::error(Code::kBusy, "a callback of a call that computes cannot compute itself");
}

Model::SlotLease::SlotLease(const Model* of) : model(of), slot(of->acquire()) {
  computes = true;
}

Model::SlotLease::~SlotLease() {
  computes = false;
  model->release(slot);
}

Status Model::product(const TensorRef& w, const float* x, uint32_t n_rows, float* y) const {
  SHARPI_TRY(check_may_compute());
  const SlotLease lease(this);
  const size_t t = tier_index(plan_->placement.head);
  return tiers_[t]->product(w, x, n_rows, y, *lease.slot->workspaces[t]);
}

Status Model::run(const Submission& rows, TierSessions tier_sessions) const {
  if (rows.sequences.size() > kMaxBatch) {
    return Status::error(Code::kInternal, "a call cannot read %zu sequences at once",
                         rows.sequences.size());
  }
  SHARPI_TRY(check_may_compute());
  const SlotLease lease(this);
  if (ranks_ != nullptr) return run_part(rows, tier_sessions, *lease.slot);
  const bool alike = std::all_of(tier_sessions.begin(), tier_sessions.end(),
                                 [&](const auto& s) { return same_formats(s, tier_sessions[0]); });
  return alike ? run_route(rows, tier_sessions, *lease.slot)
               : run_by_format(rows, tier_sessions, *lease.slot);
}

/// Each kind of session runs from the first segment to the last before the next kind starts.
Status Model::run_by_format(const Submission& rows, TierSessions tier_sessions,
                            CallSlot& slot) const {
  const size_t n = rows.sequences.size();
  std::array<bool, kMaxBatch> done{};
  std::array<SequenceRows, kMaxBatch> sequences;
  std::array<std::span<TierSession* const>, kMaxBatch> lists;
  std::vector<int32_t> tokens;
  for (size_t first = 0; first < n; ++first) {
    if (done[first]) continue;
    size_t count = 0;
    tokens.clear();
    for (size_t s = first; s < n; ++s) {
      if (done[s] || !same_formats(tier_sessions[s], tier_sessions[first])) continue;
      done[s] = true;
      const SequenceRows& q = rows.sequences[s];
      sequences[count] = q;
      sequences[count].first_row = static_cast<uint32_t>(tokens.size());
      lists[count++] = tier_sessions[s];
      tokens.insert(tokens.end(), rows.tokens + q.first_row, rows.tokens + q.first_row + q.n_rows);
    }
    Submission part = rows;
    part.tokens = tokens.data();
    part.n_rows = static_cast<uint32_t>(tokens.size());
    part.sequences = {sequences.data(), count};
    SHARPI_TRY(run_route(part, {lists.data(), count}, slot));
  }
  return Status::ok();
}

/// From the message of the rank before, and into that to the next one.
Status Model::run_part(const Submission& rows, TierSessions tier_sessions, CallSlot& slot) const {
  const uint64_t n = uint64_t{rows.n_rows} * spec().n_embd;
  float* message = ranks_->rows();
  const bool apart = slot.handover != message;
  if (apart && !ranks_->is_first()) std::copy_n(message, n, slot.handover);
  SHARPI_TRY(run_route(rows, tier_sessions, slot));
  if (apart && !ranks_->is_last()) std::copy_n(slot.handover, n, message);
  return Status::ok();
}

Status Model::run_route(const Submission& rows, TierSessions tier_sessions, CallSlot& slot) const {
  const Route& route = route_for(rows.n_rows);
  std::array<SequenceRows, kMaxBatch> sequences;
  bool landed = false;  // the segment's rows are on its device
  for (size_t i = 0; i < route.segments.size(); ++i) {
    const Segment& segment = route.segments[i];
    const size_t t = tier_index(segment.device);
    for (size_t s = 0; s < rows.sequences.size(); ++s) {
      sequences[s] = rows.sequences[s];
      if (!tier_sessions.empty()) sequences[s].session = tier_sessions[s][t];
    }
    Submission here = rows;
    here.sequences = {sequences.data(), rows.sequences.size()};
    const bool last = i + 1 == route.segments.size();
    const size_t next = last ? t : tier_index(route.segments[i + 1].device);
    const bool begins = i == 0 && spec().part.has_embedding();
    here.hidden_in = begins || landed ? nullptr : slot.handover;
    landed = !last && goes_directly(t, next, rows.n_rows);
    const bool ends = last && spec().part.has_head();
    here.hidden_out = landed ? slot.workspaces[next]->landing() : ends ? nullptr : slot.handover;
    const auto start = std::chrono::steady_clock::now();
    SHARPI_TRY(tiers_[t]->run(segment, here, *slot.workspaces[t]));
    const auto took = std::chrono::steady_clock::now() - start;
    SegmentTimes& times = route.times[i];
    times.n_calls.fetch_add(1, std::memory_order_relaxed);
    times.n_rows.fetch_add(rows.n_rows, std::memory_order_relaxed);
    times.nanoseconds.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(took).count()),
                                std::memory_order_relaxed);
  }
  return Status::ok();
}

}  // namespace sharpi
