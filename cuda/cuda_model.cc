// SPDX-License-Identifier: MIT
#include "cuda/cuda_model.h"

#include <algorithm>

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/delta/delta_net.h"
#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/products/gemm.h"

namespace sharpi::cuda {
namespace {

uint64_t rope_doubles(const std::vector<RopeTable>& ropes) {
  uint64_t n = 0;
  for (const RopeTable& r : ropes) n += r.inv_freq.size();
  return n;
}

std::vector<MemoryRow> rope_rows(const ModelSpec& spec, uint32_t device) {
  std::vector<int32_t> table_of_layer;
  const uint64_t n = rope_doubles(make_rope_tables(spec, &table_of_layer)) * sizeof(double);
  if (n == 0) return {};
  return {make_row(TierId::kCuda, device, SHARPI_ROW_TABLES, SHARPI_ROW_DEVICE, "rope frequencies",
                   n, device_held_bytes(n))};
}

/// The per-layer table stays in the file: the rows of a call are fetched from there. A copy of it
/// is among the host's weights.
std::vector<MemoryRow> table_rows(const ModelSpec& spec, const Placement& placement,
                                  const ModelShape& model, uint32_t device) {
  if (spec.d_ple == 0 || !placement.uses(TierId::kCuda) || model.copy_weights) return {};
  const uint64_t n = spec.ple_embd.bytes();
  return {make_row(TierId::kCuda, device, SHARPI_ROW_WEIGHTS, SHARPI_ROW_MAPPED,
                   "per-layer embeddings", n, n)};
}

std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                  const ModelShape& model, const WorkspaceLayout& layout,
                                  uint32_t n_workspaces, uint32_t device) {
  std::vector<MemoryRow> rows = weight_rows(make_weight_plan(spec, placement), device);
  for (const auto& more : {stream_rows(make_stream_plan(spec, placement, model), device),
                           table_rows(spec, placement, model, device), rope_rows(spec, device),
                           workspace_rows(layout, n_workspaces, device),
                           expert_rows(spec, placement, model, n_workspaces, device)}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

KvFormat make_format(const ModelSpec& spec, const KvLayout& layout) {
  KvFormat f;
  f.layers.resize(spec.n_layers());
  uint32_t entry = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const KvLayerLayout* from = layout.find(l);
    if (from == nullptr) continue;
    const auto g = static_cast<size_t>(layout.group_of_layer[l]);
    KvLayer& to = f.layers[l];
    to.group = entry++;  // of a sequence's table: one for each layer (calls.cc)
    to.n_heads = from->n_heads;
    to.head_dim = from->head_dim;
    to.window = layout.groups[g].window;
    to.k_dtype = from->k_dtype;
    to.v_dtype = from->v_dtype;
    to.k_row_bytes = from->k_row_bytes;
    to.v_row_bytes = from->v_row_bytes;
    to.block_stride = layout.groups[g].block_stride;
    to.k_offset = from->k_offset;
    to.v_offset = from->v_offset;
  }
  return f;
}

/// Steps of dense models without chains are faster without programmatic dependent launch: blocks of
/// the next grid that wait take room from the products that stream the weights
/// (docs/performance.md).
bool has_experts(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& l) { return l.ffn.kind == FfnKind::kMoe; });
}

bool same_format(const KvFormat& a, const KvFormat& b) {
  const auto same = [](const KvLayer& x, const KvLayer& y) {
    return x.group == y.group && x.k_dtype == y.k_dtype && x.v_dtype == y.v_dtype &&
           x.block_stride == y.block_stride && x.k_offset == y.k_offset && x.v_offset == y.v_offset;
  };
  return std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), same);
}

}  // namespace

MatmulConfig matmul_config(const Device& device, const ModelShape& model) {
  MatmulConfig c;
  c.exact = model.exact;
  c.deterministic = model.deterministic;
  c.device = device.profile();
  c.pdl = c.device.pdl;
  c.cublas_lt = device.cublas_lt();
  return c;
}

std::vector<MemoryRow> CudaModel::plan_rows(const Device& device, const ModelSpec& spec,
                                            const Placement& placement, const ModelShape& model,
                                            const SessionShape& session) {
  const WorkspaceLayout layout =
      make_workspace_layout(spec, placement, model, session, matmul_config(device, model));
  std::vector<MemoryRow> rows =
      model_rows(spec, placement, model, layout, model.max_concurrent, device.index());
  for (const MemoryRow& r : load_rows(make_weight_plan(spec, placement), device.index()))
    rows.push_back(r);
  return rows;
}

Result<std::unique_ptr<CudaModel>> CudaModel::create(std::shared_ptr<Device> device,
                                                     std::shared_ptr<const Plan> plan,
                                                     const LoadProgress& progress) {
  std::unique_ptr<CudaModel> m(new CudaModel());
  m->device_ = std::move(device);
  m->plan_ = std::move(plan);
  SHARPI_TRY(m->device_->open());
  const DeviceScope scope(*m->device_);
  const Plan& p = *m->plan_;
  m->config_ = matmul_config(*m->device_, p.model);
  m->step_config_ = m->config_;
  m->step_config_.pdl = m->config_.pdl && has_experts(*p.spec);
  // Where products of many rows are not by warpgroups, blocks that come early crowd a few
  // multiprocessors: a mixture of experts lost a third, dense models nothing.
  m->call_config_ = m->config_;
  m->call_config_.pdl = m->config_.pdl && have_gemm_sm90(m->config_);
  m->blocks_meet_ = has_chains(m->config_) || (has_experts(*p.spec) && has_moe_steps(m->config_));
  SHARPI_TRY(m->device_->settle(prepare_matmul(m->config_)));
  SHARPI_TRY(m->device_->settle(prepare_attention(m->config_)));
  SHARPI_TRY(m->device_->settle(prepare_delta_net(m->config_)));
  m->workspace_layout_ =
      make_workspace_layout(*p.spec, p.placement, p.model, p.session, m->config_);
  m->query_layout_ = make_query_layout(*p.spec, p.placement, TierId::kCuda);
  m->state_layout_ = make_state_layout(*p.spec, p.placement, TierId::kCuda);
  m->draft_layout_ = make_draft_layout(*p.spec, p.placement, TierId::kCuda, p.session.n_draft);
  m->segments_ = make_segments(*p.spec, p.placement);
  SHARPI_TRY_ASSIGN(m->stream_, Stream::create(*m->device_));
  SHARPI_TRY_ASSIGN(m->weights_,
                    Weights::load(*m->device_, make_weight_plan(*p.spec, p.placement), progress));
  StreamPlan streamed = make_stream_plan(*p.spec, p.placement, p.model);
  if (!streamed.empty()) {
    SHARPI_TRY_ASSIGN(m->stream_weights_, WeightStream::create(*m->device_, std::move(streamed)));
  }
  SHARPI_TRY_ASSIGN(m->experts_, ExpertSlots::create(*m->device_, m->plan_));
  SHARPI_TRY(m->upload_ropes());
  m->format_of(p.session);
  return m;
}

Status CudaModel::upload_ropes() {
  ropes_ = make_rope_tables(spec(), &rope_of_layer_);
  std::vector<double> all;
  for (const RopeTable& r : ropes_) {
    rope_offset_.push_back(all.size());
    all.insert(all.end(), r.inv_freq.begin(), r.inv_freq.end());
  }
  const uint64_t bytes = all.size() * sizeof(double);
  SHARPI_TRY_ASSIGN(rope_memory_, DeviceBuffer::allocate(*device_, bytes, "rope frequencies"));
  if (bytes == 0) return Status::ok();
  SHARPI_TRY(device_->check(cudaMemcpyAsync(rope_memory_.data(), all.data(), bytes,
                                            cudaMemcpyHostToDevice, stream_.get()),
                            "upload of rope frequencies"));
  return stream_.wait();
}

uint32_t CudaModel::format_of(const SessionShape& shape) {
  KvFormat f = make_format(
      spec(), make_tier_kv_layout(spec(), plan_->placement, TierId::kCuda, plan_->model, shape));
  const std::lock_guard<std::mutex> lock(formats_mutex_);
  for (uint32_t i = 0; i < formats_.size(); ++i) {
    if (same_format(*formats_[i], f)) return i;
  }
  formats_.push_back(std::make_unique<KvFormat>(std::move(f)));
  return static_cast<uint32_t>(formats_.size() - 1);
}

Result<std::unique_ptr<TierSession>> CudaModel::create_session(const SessionShape& shape) {
  const uint64_t slot_bytes =
      make_tier_kv_layout(spec(), plan_->placement, TierId::kCuda, plan_->model, shape)
          .chunk_slot_bytes;
  if (slot_bytes > workspace_layout_.chunk_slot_bytes) {
    return Status::error(Code::kDoesNotFit,
                         "a KV row of windowed layers takes %llu bytes, the plan priced %llu",
                         static_cast<unsigned long long>(slot_bytes),
                         static_cast<unsigned long long>(workspace_layout_.chunk_slot_bytes));
  }
  SHARPI_TRY_ASSIGN(std::unique_ptr<CudaSession> s,
                    CudaSession::create(*device_, stream_, plan_, shape, *this));
  s->format_index = format_of(shape);
  return std::unique_ptr<TierSession>(std::move(s));
}

Result<std::unique_ptr<Workspace>> CudaModel::create_workspace() {
  const DeviceScope scope(*device_);
  SHARPI_TRY_ASSIGN(std::unique_ptr<CudaWorkspace> w,
                    CudaWorkspace::create(*device_, workspace_layout_));
  std::unique_lock<std::mutex> turn(device_->turn(), std::defer_lock);
  if (blocks_meet_)
    turn.lock();  // warm_up() runs steps of one row; none of them waits for the host
  ExpertHandover& h = w->experts;
  h.layout = make_handover_layout(spec(), plan_->placement, plan_->model);
  SHARPI_TRY_ASSIGN(h.memory, PinnedBuffer::allocate(*device_, h.layout.bytes, "expert hand-over"));
  SHARPI_TRY_ASSIGN(h.sent, Event::create(*device_));
  const Status warm = warm_up(*w);
  if (!warm.is_ok()) return device_->settle(warm);
  ++n_workspaces_;
  return std::unique_ptr<Workspace>(std::move(w));
}

std::vector<MemoryRow> CudaModel::memory_rows() const {
  return model_rows(spec(), plan_->placement, plan_->model, workspace_layout_, n_workspaces_,
                    device_->index());
}

std::string CudaModel::paths() const {
  std::string text = "cuda sm_" + std::to_string(device_->capability());
  text += block_paths() + "; " + device_->library();
  if (stream_weights_) text += "; " + stream_weights_->text();
  if (experts_ != nullptr) {
    text += "; routed experts: CPU, " + std::to_string(plan_->placement.n_expert_slots) + " slots";
  }
  return text + chain_path();
}

}  // namespace sharpi::cuda
