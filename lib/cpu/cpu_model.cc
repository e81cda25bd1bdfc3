// SPDX-License-Identifier: MIT
#include "cpu/cpu_model.h"

#include <algorithm>
#include <utility>

#include "cpu/cpu_expert_host.h"
#include "tier/block_tensors.h"
#include "tier/host_weights.h"

namespace sharpi::cpu {
namespace {

MatmulConfig matmul_config(const ModelShape& model, const KernelSet& kernels) {
  return MatmulConfig{&kernels, model.exact, model.deterministic};
}

/// Weights in place in the mapped file; copies are rows of another object (host_weights.h). Rows of
/// tensors that do not follow each other are gathered, wherever they are placed.
std::vector<MemoryRow> mapped_rows(const ModelSpec& spec, const Placement& placement) {
  const HostTensors own(spec, placement);
  std::vector<MemoryRow> rows;
  const auto add = [&](sharpi_row_kind kind, const char* label, uint64_t bytes) {
    if (bytes == 0) return;
    rows.push_back(make_row(TierId::kCpu, 0, SHARPI_ROW_WEIGHTS, kind, label, bytes, bytes));
  };
  for (uint32_t i = 0; i < HostTensors::kUses; ++i) {
    const auto use = static_cast<HostTensors::Use>(i);
    uint64_t in_place = 0;
    for (const GgufTensor* t : own.of(use)) in_place += t->gathered == nullptr ? t->bytes : 0;
    add(SHARPI_ROW_MAPPED, HostTensors::label(use), in_place);
  }
  add(SHARPI_ROW_ANONYMOUS, "gathered weights", spec.file->gathered_bytes());
  return rows;
}

std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                  bool copy_weights, const WorkspaceLayout& workspace,
                                  uint32_t n_workspaces) {
  std::vector<MemoryRow> rows;
  if (!copy_weights) rows = mapped_rows(spec, placement);
  const uint64_t adapters = adapter_scratch_bytes(workspace);
  const std::pair<const char*, uint64_t> parts[] = {{"activations", workspace.bytes - adapters},
                                                    {"products of adapters", adapters}};
  for (const auto& [label, bytes] : parts) {
    const uint64_t all = bytes * n_workspaces;
    if (all == 0) continue;
    rows.push_back(
        make_row(TierId::kCpu, 0, SHARPI_ROW_ACTIVATIONS, SHARPI_ROW_ANONYMOUS, label, all, all));
  }
  return rows;
}

/// Reads this tier's mapped weights ahead, in pieces, so that the first token does not wait for the
/// disk.
Status page_in(const ModelSpec& spec, const Placement& placement, const LoadProgress& progress) {
  constexpr uint64_t kPiece = 64ull << 20;  // large enough to stream, small enough to cancel soon
  const HostTensors own(spec, placement);
  const uint64_t total = own.bytes();
  uint64_t done = 0;
  for (uint32_t use = 0; use < HostTensors::kUses; ++use) {
    for (const GgufTensor* t : own.of(static_cast<HostTensors::Use>(use))) {
      for (uint64_t at = 0; at < t->bytes; at += kPiece) {
        const uint64_t piece = std::min(kPiece, t->bytes - at);
        SHARPI_TRY(spec.file->page_in(*t, at, piece));
        done += piece;
        if (progress && !progress(done, total))
          return Status::error(Code::kCancelled, "loading the model was cancelled");
      }
    }
  }
  return Status::ok();
}

Status check_data(const TensorRef& w) {
  if (!w || w.tensor->data != nullptr) return {};
  return Status::error(Code::kInternal, "the tensor %.*s is not in memory",
                       static_cast<int>(w.tensor->name.size()), w.tensor->name.data());
}

/// Everything that this tier reads is in memory: a weight without data would be taken for one that
/// the model does not have.
Status check_weights(const ModelSpec& spec, const Placement& placement) {
  Status status;
  const auto check = [&](const TensorRef& w) {
    if (status.is_ok()) status = check_data(w);
  };
  each_block(spec, placement, [&](const Block& block, DeviceIndex device) {
    if (device != DeviceIndex::kHost) return;
    for (const TensorRef& w : block_tensors(spec, block)) check(w);
    if (block.kind == BlockKind::kEmbedding) check(spec.ple_embd);
    if (block.kind != BlockKind::kExperts) return;
    for (const TensorRef& w : tensors_of_experts_host(spec.layers[block.layer])) check(w);
  });
  return status;
}

}  // namespace

std::vector<MemoryRow> CpuModel::plan_rows(const ModelSpec& spec, const Placement& placement,
                                           const ModelShape& model, const SessionShape& session,
                                           const KernelSet& kernels, uint32_t n_threads) {
  const WorkspaceLayout w = make_workspace_layout(spec, placement, model, session,
                                                  matmul_config(model, kernels), n_threads);
  return model_rows(spec, placement, model.copy_weights, w, model.max_concurrent);
}

CpuModel::CpuModel(MemoryMeter* meter, ThreadPool* pool, const KernelSet& kernels,
                   std::shared_ptr<const Plan> plan)
    : meter_(meter),
      pool_(pool),
      plan_(std::move(plan)),
      config_(matmul_config(plan_->model, kernels)),
      workspace_layout_(make_workspace_layout(*plan_->spec, plan_->placement, plan_->model,
                                              plan_->session, config_, pool->size())),
      forward_(*plan_->spec, *pool, config_),
      scorer_(*meter, *pool, kernels, *plan_) {}

Result<std::unique_ptr<CpuModel>> CpuModel::create(MemoryMeter* meter, ThreadPool* pool,
                                                   const KernelSet& kernels,
                                                   std::shared_ptr<const Plan> plan,
                                                   const LoadProgress& progress) {
  SHARPI_TRY(check_weights(*plan->spec, plan->placement));
  std::unique_ptr<CpuModel> m(new CpuModel(meter, pool, kernels, plan));
  if (plan->placement.uses(DeviceIndex::kHost) && !plan->model.copy_weights) {
    SHARPI_TRY(page_in(*plan->spec, plan->placement, progress));
  }
  return m;
}

uint32_t CpuModel::format_of(const SessionShape& shape) {
  std::vector<KvDtypePair> here;
  for (uint32_t l = 0; l < spec().n_layers(); ++l) {
    const bool stores =
        plan_->placement.mixer[l] == DeviceIndex::kHost && spec().layers[l].owns_kv();
    if (stores) here.push_back(shape.dtypes[l]);
  }
  const auto same = [&](const std::vector<KvDtypePair>& other) {
    return std::equal(here.begin(), here.end(), other.begin(), other.end(),
                      [](KvDtypePair a, KvDtypePair b) { return a.k == b.k && a.v == b.v; });
  };
  const std::lock_guard<std::mutex> lock(formats_mutex_);
  const auto at = std::find_if(formats_.begin(), formats_.end(), same);
  const auto index = static_cast<uint32_t>(at - formats_.begin());
  if (at == formats_.end()) formats_.push_back(std::move(here));
  return index;
}

Result<std::unique_ptr<TierSession>> CpuModel::create_session(const SessionShape& shape) {
  SHARPI_TRY(check_chunk_rows(
      make_tier_kv_layout(spec(), plan_->placement, DeviceIndex::kHost, plan_->model, shape)
          .chunk_slot_bytes,
      workspace_layout_.chunk_slot_bytes));
  SHARPI_TRY_ASSIGN(std::unique_ptr<CpuSession> s,
                    CpuSession::create(meter_, plan_, shape, &forward_));
  s->format_index = format_of(shape);
  return std::unique_ptr<TierSession>(std::move(s));
}

Result<std::unique_ptr<Workspace>> CpuModel::create_workspace(float*) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<CpuWorkspace> w,
                    CpuWorkspace::create(meter_, workspace_layout_, config_, pool_));
  ++n_workspaces_;
  return std::unique_ptr<Workspace>(std::move(w));
}

Result<std::unique_ptr<ExpertHost>> CpuModel::create_expert_host(Workspace& workspace) {
  return std::unique_ptr<ExpertHost>(new CpuExpertHost(
      forward_.experts(), static_cast<CpuWorkspace&>(workspace), pool_, *config_.kernels));
}

Result<std::unique_ptr<const AdapterPart>> CpuModel::load_adapter(const AdapterFile& adapter) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<AdapterWeights> w,
                    AdapterWeights::create(*meter_, adapter, plan_->placement));
  return std::unique_ptr<const AdapterPart>(std::move(w));
}

std::vector<MemoryRow> CpuModel::memory_rows() const {
  return model_rows(spec(), plan_->placement, plan_->model.copy_weights, workspace_layout_,
                    n_workspaces_);
}

}  // namespace sharpi::cpu
