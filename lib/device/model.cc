// SPDX-License-Identifier: MIT
#include "device/model.h"

#include "device/adapter.h"
#include "device/kernels.h"

namespace sharpi::device {
namespace {

uint64_t rope_doubles(const std::vector<RopeTable>& ropes) {
  uint64_t n = 0;
  for (const RopeTable& r : ropes) n += r.inv_freq.size();
  return n;
}

/// Frequencies, and what queries are turned by that make replay scores.
std::vector<MemoryRow> rope_rows(const ModelSpec& spec, const SessionShape& session,
                                 const Device& device) {
  std::vector<int32_t> table_of_layer;
  const uint64_t n = rope_doubles(make_rope_tables(spec, &table_of_layer));
  std::vector<MemoryRow> rows;
  const auto add = [&](const char* label, uint64_t bytes) {
    if (bytes != 0)
      rows.push_back(
          device.row(SHARPI_ROW_TABLES, SHARPI_ROW_DEVICE, label, bytes, device.held_bytes(bytes)));
  };
  add("rope frequencies", n * sizeof(double));
  add("angles of replay", session.replay_every == 0 ? 0 : 2 * n * sizeof(float));
  return rows;
}

/// The per-layer table stays on the host: the rows of a call are fetched from there. Where it is
/// not mapped, a copy of it is among the host's weights.
std::vector<MemoryRow> table_rows(const ModelSpec& spec, const Placement& placement,
                                  const ModelShape& model, const Device& device) {
  if (spec.d_ple == 0 || !placement.uses(DeviceIndex::kHere) || model.copy_weights) return {};
  const uint64_t n = spec.ple_embd.bytes();
  return {device.row(SHARPI_ROW_WEIGHTS, SHARPI_ROW_MAPPED, "per-layer embeddings", n, n)};
}

std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                  const ModelShape& model, const SessionShape& session,
                                  const WeightPlan& weights, const WorkspaceLayout& layout,
                                  uint32_t n_workspaces, const Device& device) {
  std::vector<MemoryRow> rows = weight_plan_rows(weights, device);
  for (const auto& more :
       {stream_rows(make_stream_plan(device.kernels(), spec, placement, model), device),
        table_rows(spec, placement, model, device), rope_rows(spec, session, device),
        workspace_rows(layout, n_workspaces, device),
        expert_rows(spec, placement, model, n_workspaces, device)}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace

std::vector<MemoryRow> DeviceModel::plan_rows(const Device& device, const ModelSpec& spec,
                                              const Placement& placement, const ModelShape& model,
                                              const SessionShape& session) {
  const WorkspaceLayout layout = make_workspace_layout(
      spec, placement, model, session, *device.pass_kernels(model), device.shares_pinned());
  const WeightPlan weights = make_weight_plan(device, spec, placement);
  std::vector<MemoryRow> rows =
      model_rows(spec, placement, model, session, weights, layout, model.max_concurrent, device);
  for (const MemoryRow& r : load_rows(weights, device)) rows.push_back(r);
  return rows;
}

Result<std::unique_ptr<DeviceModel>> DeviceModel::create(std::shared_ptr<Device> device,
                                                         std::shared_ptr<const Plan> plan,
                                                         const LoadProgress& progress,
                                                         const DeviceModel* lender) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<LoadedModel> loaded,
                    LoadedModel::load(std::move(device), std::move(plan), progress,
                                      lender == nullptr ? nullptr : lender->m_.get()));
  return std::unique_ptr<DeviceModel>(new DeviceModel(std::move(loaded)));
}

Result<std::unique_ptr<TierSession>> DeviceModel::create_session(const SessionShape& shape) {
  const uint64_t slot_bytes = make_tier_kv_layout(m_->spec(), m_->plan->placement,
                                                  DeviceIndex::kHere, m_->plan->model, shape)
                                  .chunk_slot_bytes;
  SHARPI_TRY(check_chunk_rows(slot_bytes, m_->workspace_layout.chunk_slot_bytes));
  SHARPI_TRY_ASSIGN(std::unique_ptr<DeviceSession> s, DeviceSession::create(*m_, shape));
  s->format_index = m_->format_of(shape);
  return std::unique_ptr<TierSession>(std::move(s));
}

Result<std::unique_ptr<Workspace>> DeviceModel::create_workspace(float* handover) {
  const DeviceScope scope(*m_->device);
  SHARPI_TRY_ASSIGN(std::unique_ptr<DeviceWorkspace> w,
                    DeviceWorkspace::create(*m_->device, m_->workspace_layout, handover));
  std::unique_lock<std::mutex> alone(m_->device->launch_mutex(), std::defer_lock);
  if (m_->blocks_meet)
    alone.lock();  // warm_up() runs steps of one row; none of them waits for the host
  ExpertHandover& h = w->experts;
  h.layout = make_handover_layout(m_->spec(), m_->plan->placement, m_->plan->model);
  SHARPI_TRY_ASSIGN(h.memory,
                    PinnedBuffer::allocate(*m_->device, h.layout.bytes, "expert hand-over"));
  SHARPI_TRY_ASSIGN(h.sent, m_->device->create_event());
  const Status warm = calls_.warm_up(*w);
  if (!warm.is_ok()) return m_->device->settle(warm);
  ++n_workspaces_;
  return std::unique_ptr<Workspace>(std::move(w));
}

Status DeviceModel::score_waiting(TierSession& session, const KvLedger& ledger, uint32_t layer,
                                  ScoreScratch&) const {
  return replay_.of_waiting(static_cast<DeviceSession&>(session), ledger, layer);
}

/// Rows by head, before or after, are chosen in host memory, as the CPU tier chooses them; and so
/// are rows by replay scores, which are added up over layers wherever these are.
Status DeviceModel::hold_terms(TierSession& session, const ScoreRequest& request,
                               sharpi_policy policy, ScoreScratch& scratch,
                               CompactTables& tables) const {
  bool& on_host = static_cast<DeviceScoreScratch&>(scratch).on_host;
  on_host = request.on_host || request.replay || request.ledger->is_by_head();
  SHARPI_TRY(check_policy(policy_row(policy), on_host));
  return on_host ? TierModel::hold_terms(session, request, policy, scratch, tables)
                 : choosing_.hold_terms(session, request, policy, scratch, tables);
}

Status DeviceModel::share_hits(const KvLedger& ledger, std::span<const uint32_t> layers,
                               ScoreScratch& scratch, CompactTables& tables) const {
  return static_cast<DeviceScoreScratch&>(scratch).on_host
             ? TierModel::share_hits(ledger, layers, scratch, tables)
             : choosing_.share_hits(ledger, layers, scratch, tables);
}

Status DeviceModel::choose(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                           ScoreScratch& scratch, CompactTables& tables) const {
  return static_cast<DeviceScoreScratch&>(scratch).on_host
             ? TierModel::choose(ledger, layers, scratch, tables)
             : choosing_.choose(ledger, layers, scratch, tables);
}

Result<std::unique_ptr<const AdapterPart>> DeviceModel::load_adapter(const AdapterFile& adapter) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<DeviceAdapter> part, DeviceAdapter::load(*m_, adapter));
  return std::unique_ptr<const AdapterPart>(std::move(part));
}

std::vector<MemoryRow> DeviceModel::memory_rows() const {
  return model_rows(m_->spec(), m_->plan->placement, m_->plan->model, m_->plan->session,
                    m_->weights->plan(), m_->workspace_layout, n_workspaces_, *m_->device);
}

std::string DeviceModel::paths() const {
  std::string text = m_->kernels->paths(*m_);
  if (m_->stream_weights) text += "; " + m_->stream_weights->text();
  if (m_->experts != nullptr) {
    text +=
        "; routed experts: CPU, " + std::to_string(m_->plan->placement.n_expert_slots) + " slots";
  }
  if (const uint32_t rank = m_->plan->model.adapter_rank; rank != 0)
    text += "; adapters of rank " + std::to_string(rank) + " at most: f32, launch by launch";
  return text + forward_.chain_path();
}

void DeviceModel::use_expert_host(Workspace& workspace, ExpertHost* host) {
  static_cast<DeviceWorkspace&>(workspace).experts.host = host;
}

bool DeviceModel::expert_stats(sharpi_expert_stats* out) const {
  if (m_->experts == nullptr) return false;
  *out = m_->experts->stats();
  return true;
}

std::vector<uint64_t> DeviceModel::expert_uses(uint32_t layer) const {
  return m_->experts == nullptr ? std::vector<uint64_t>{} : m_->experts->uses(layer);
}

Status DeviceModel::pin_experts(std::span<const ExpertId> experts) {
  return m_->experts == nullptr ? TierModel::pin_experts(experts) : m_->experts->pin(experts);
}

}  // namespace sharpi::device
