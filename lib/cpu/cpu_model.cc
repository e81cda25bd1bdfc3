// SPDX-License-Identifier: MIT
#include "cpu/cpu_model.h"

#include <algorithm>
#include <unordered_set>

#include "base/host_info.h"
#include "cpu/expert_host.h"
#include "tier/block_tensors.h"

namespace sharpi::cpu {
namespace {

MatmulConfig matmul_config(const ModelShape& model, Isa isa) {
  return MatmulConfig{isa, model.exact, model.deterministic};
}

/// Weights in place in the mapped file, summed by what they serve.
struct MappedBytes {
  uint64_t embedding = 0, head = 0, mixers = 0, ffn = 0, experts = 0;
};

/// First FFN on the CPU that takes a per-layer embedding although the embedding block is elsewhere;
/// -1 = none.
int64_t first_per_layer_embedding(const ModelSpec& s, const Placement& p) {
  if (s.d_ple == 0 || p.embedding == TierId::kCpu) return -1;
  for (uint32_t l = 0; l < s.n_layers(); ++l) {
    if (p.ffn[l] == TierId::kCpu && s.layers[l].ple_gate) return l;
  }
  return -1;
}

/// The tensors that this tier reads, each once, by what they serve.
class OwnTensors {
 public:
  OwnTensors(const ModelSpec& s, const Placement& p) {
    if (first_per_layer_embedding(s, p) >= 0) add(s, Block{BlockKind::kEmbedding, 0});
    if (p.per_layer_embedding == TierId::kCpu && s.d_ple != 0) {
      for (const TensorRef* t : {&s.ple_embd, &s.ple_model_proj, &s.ple_proj_norm}) {
        add(*t, &bytes_.embedding);
      }
    }
    each_block(s, p, [&](const Block& block, TierId tier) {
      if (tier == TierId::kCpu) add(s, block);
    });
  }
  const MappedBytes& bytes() const { return bytes_; }
  const std::vector<const GgufTensor*>& tensors() const { return tensors_; }

 private:
  void add(const ModelSpec& s, const Block& block) {
    uint64_t* const to = block.kind == BlockKind::kEmbedding ? &bytes_.embedding
                         : block.kind == BlockKind::kMixer   ? &bytes_.mixers
                         : block.kind == BlockKind::kFfn     ? &bytes_.ffn
                         : block.kind == BlockKind::kExperts ? &bytes_.experts
                                                             : &bytes_.head;
    for (const TensorRef& t : block_tensors(s, block)) add(t, to);
  }
  void add(const TensorRef& t, uint64_t* to) {
    if (!t || !seen_.insert(t.tensor).second) return;
    tensors_.push_back(t.tensor);
    *to += t.bytes();
  }
  MappedBytes bytes_;
  std::vector<const GgufTensor*> tensors_;
  std::unordered_set<const GgufTensor*> seen_;
};

void push_mapped(std::vector<MemoryRow>* rows, const char* label, uint64_t bytes) {
  if (bytes == 0) return;
  rows->push_back(
      make_row(TierId::kCpu, 0, SHARPI_ROW_WEIGHTS, SHARPI_ROW_MAPPED, label, bytes, bytes));
}

std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                  uint64_t workspace_bytes, uint32_t n_workspaces) {
  std::vector<MemoryRow> rows;
  const MappedBytes m = OwnTensors(spec, placement).bytes();
  push_mapped(&rows, "embedding", m.embedding);
  push_mapped(&rows, "mixers", m.mixers);
  push_mapped(&rows, "FFN", m.ffn);
  push_mapped(&rows, "routed experts", m.experts);
  push_mapped(&rows, "head", m.head);
  const uint64_t activations = workspace_bytes * n_workspaces;
  if (activations != 0) {
    rows.push_back(make_row(TierId::kCpu, 0, SHARPI_ROW_ACTIVATIONS, SHARPI_ROW_ANONYMOUS,
                            "activations", activations, activations));
  }
  return rows;
}

/// Reads this tier's mapped weights ahead, in pieces, so that the first token does not wait for the
/// disk.
Status page_in(const ModelSpec& spec, const Placement& placement, const LoadProgress& progress) {
  constexpr uint64_t kPiece = 64ull << 20;  // large enough to stream, small enough to cancel soon
  const OwnTensors own(spec, placement);
  const MappedBytes& m = own.bytes();
  const uint64_t total = m.embedding + m.head + m.mixers + m.ffn + m.experts;
  uint64_t done = 0;
  for (const GgufTensor* t : own.tensors()) {
    for (uint64_t at = 0; at < t->bytes; at += kPiece) {
      const uint64_t piece = std::min(kPiece, t->bytes - at);
      populate_read(t->data + at, piece);
      done += piece;
      if (progress && !progress(done, total))
        return Status::error(Code::kCancelled, "load cancelled");
    }
  }
  return Status::ok();
}

}  // namespace

std::vector<MemoryRow> CpuModel::plan_rows(const ModelSpec& spec, const Placement& placement,
                                           const ModelShape& model, const SessionShape& session,
                                           Isa isa, uint32_t n_threads) {
  const WorkspaceLayout w =
      make_workspace_layout(spec, placement, model, session, matmul_config(model, isa), n_threads);
  return model_rows(spec, placement, w.bytes, model.max_concurrent);
}

Result<std::unique_ptr<CpuModel>> CpuModel::create(MemoryMeter* meter, ThreadPool* pool, Isa isa,
                                                   std::shared_ptr<const Plan> plan,
                                                   const LoadProgress& progress) {
  std::unique_ptr<CpuModel> m(new CpuModel());
  m->meter_ = meter;
  m->pool_ = pool;
  m->isa_ = isa;
  m->config_ = matmul_config(plan->model, isa);
  m->plan_ = plan;
  m->workspace_layout_ = make_workspace_layout(*plan->spec, plan->placement, plan->model,
                                               plan->session, m->config_, pool->size());
  m->ropes_ = make_rope_tables(*plan->spec, &m->rope_of_layer_);
  m->first_ple_ = first_per_layer_embedding(*plan->spec, plan->placement);
  for (uint32_t l = 0; l < plan->spec->n_layers(); ++l) {
    if (plan->placement.mixer[l] == TierId::kCpu) m->last_mixer_ = l;
  }
  if (plan->placement.uses(TierId::kCpu)) {
    SHARPI_TRY(page_in(*plan->spec, plan->placement, progress));
  }
  return m;
}

uint32_t CpuModel::format_of(const SessionShape& shape) {
  std::vector<KvDtypePair> here;
  for (uint32_t l = 0; l < spec().n_layers(); ++l) {
    const bool stores = plan_->placement.mixer[l] == TierId::kCpu && spec().layers[l].owns_kv();
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
  SHARPI_TRY_ASSIGN(std::unique_ptr<CpuSession> s, CpuSession::create(meter_, plan_, shape));
  s->format_index = format_of(shape);
  return std::unique_ptr<TierSession>(std::move(s));
}

Result<std::unique_ptr<Workspace>> CpuModel::create_workspace() {
  SHARPI_TRY_ASSIGN(std::unique_ptr<CpuWorkspace> w,
                    CpuWorkspace::create(meter_, workspace_layout_, config_, pool_));
  ++n_workspaces_;
  return std::unique_ptr<Workspace>(std::move(w));
}

Result<std::unique_ptr<ExpertHost>> CpuModel::create_expert_host(Workspace& workspace) {
  return std::unique_ptr<ExpertHost>(
      new CpuExpertHost(*this, static_cast<CpuWorkspace&>(workspace), pool_, isa_));
}

std::vector<MemoryRow> CpuModel::memory_rows() const {
  return model_rows(spec(), plan_->placement, workspace_layout_.bytes, n_workspaces_);
}

}  // namespace sharpi::cpu
