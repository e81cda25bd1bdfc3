// SPDX-License-Identifier: MIT
#include "cpu/cpu_model.h"

#include <algorithm>
#include <map>

#include "base/host_info.h"
#include "cpu/expert_host.h"

namespace sharpi::cpu {
namespace {

MatmulConfig matmul_config(const ModelShape& model, Isa isa) {
  return MatmulConfig{isa, model.exact, model.deterministic};
}

/// Weights in place in the mapped file, summed by what they serve.
struct MappedBytes {
  uint64_t embedding = 0, head = 0, mixers = 0, ffn = 0, experts = 0;
};

uint64_t mixer_bytes(const LayerSpec& l) {
  const AttentionSpec& a = l.attention;
  const DeltaNetSpec& d = l.delta;
  uint64_t n = l.mixer_norm.bytes() + l.mixer_post_norm.bytes();
  for (const TensorRef* t : {&a.q, &a.k, &a.v, &a.o, &a.q_norm, &a.k_norm, &d.qkv, &d.gate,
                             &d.alpha, &d.beta, &d.out, &d.conv1d, &d.dt_bias, &d.a, &d.norm}) {
    n += t->bytes();
  }
  return n;
}

uint64_t ffn_bytes(const LayerSpec& l) {
  const FfnSpec& f = l.ffn;
  uint64_t n = l.ffn_norm.bytes() + l.ffn_post_norm.bytes() + l.ple_gate.bytes() +
               l.ple_proj.bytes() + l.ple_post_norm.bytes() + f.router.bytes() +
               f.shared_gate_inp.bytes() + f.shared_gate.bytes() + f.shared_up.bytes() +
               f.shared_down.bytes();
  if (f.kind == FfnKind::kDense) n += f.gate.bytes() + f.up.bytes() + f.down.bytes();
  return n;
}

/// First FFN on the CPU that takes a per-layer embedding although the embedding block is elsewhere;
/// -1 = none.
int64_t first_per_layer_embedding(const ModelSpec& s, const Placement& p) {
  if (s.d_ple == 0 || p.embedding == TierId::kCpu) return -1;
  for (uint32_t l = 0; l < s.n_layers(); ++l) {
    if (p.ffn[l] == TierId::kCpu && s.layers[l].ple_gate) return l;
  }
  return -1;
}

MappedBytes measure(const ModelSpec& s, const Placement& p) {
  MappedBytes m;
  const bool embeds = p.embedding == TierId::kCpu || first_per_layer_embedding(s, p) >= 0;
  if (embeds) m.embedding += s.token_embd.bytes();
  if (p.per_layer_embedding == TierId::kCpu) {
    m.embedding += s.ple_embd.bytes() + s.ple_model_proj.bytes() + s.ple_proj_norm.bytes();
  }
  if (p.head == TierId::kCpu) {
    const bool counted = s.tied_output && embeds;
    m.head += s.output_norm.bytes() + (counted ? 0 : s.output.bytes());
  }
  for (uint32_t l = 0; l < s.n_layers(); ++l) {
    const LayerSpec& layer = s.layers[l];
    if (p.mixer[l] == TierId::kCpu) m.mixers += mixer_bytes(layer);
    if (p.ffn[l] == TierId::kCpu) m.ffn += ffn_bytes(layer);
    if (layer.ffn.kind == FfnKind::kMoe && p.experts[l] == TierId::kCpu) {
      m.experts += layer.ffn.gate.bytes() + layer.ffn.up.bytes() + layer.ffn.down.bytes();
    }
  }
  return m;
}

void push_mapped(std::vector<MemoryRow>* rows, const char* label, uint64_t bytes) {
  if (bytes == 0) return;
  rows->push_back(
      make_row(TierId::kCpu, 0, SHARPI_ROW_WEIGHTS, SHARPI_ROW_MAPPED, label, bytes, bytes));
}

std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                  uint64_t workspace_bytes, uint32_t n_workspaces) {
  std::vector<MemoryRow> rows;
  const MappedBytes m = measure(spec, placement);
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

/// Reads the mapped weights ahead, in pieces, so that the first token does not wait for the disk.
Status page_in(const GgufFile& file, const LoadProgress& progress) {
  constexpr uint64_t kPiece = 64ull << 20;  // large enough to stream, small enough to cancel soon
  const uint64_t total = file.file_bytes();
  uint64_t done = 0;
  for (uint32_t shard = 0; shard < file.n_shards(); ++shard) {
    const uint64_t n = file.shard_bytes(shard);
    for (uint64_t at = 0; at < n; at += kPiece) {
      const uint64_t piece = std::min(kPiece, n - at);
      populate_read(file.shard_data(shard) + at, piece);
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
  if (plan->placement.uses(TierId::kCpu)) SHARPI_TRY(page_in(*plan->spec->file, progress));
  return m;
}

Result<std::unique_ptr<TierSession>> CpuModel::create_session(const SessionShape& shape) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<CpuSession> s, CpuSession::create(meter_, plan_, shape));
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

std::string CpuModel::paths() const {
  std::map<std::string, std::string> by_type;
  const Matmul probe(config_, pool_, nullptr, 0);
  const auto add = [&](const TensorRef& w) {
    if (!w) return;
    const std::string one = probe.path(w.tensor->type, 1, false);
    const std::string many = probe.path(w.tensor->type, plan_->model.n_chunk, false);
    by_type[ggml_traits(w.tensor->type).name] = one == many ? one : one + "/" + many;
  };
  for (const LayerSpec& l : spec().layers) {
    for (const TensorRef* t : {&l.attention.q, &l.attention.v, &l.delta.qkv, &l.delta.out,
                               &l.ffn.gate, &l.ffn.up, &l.ffn.down}) {
      add(*t);
    }
  }
  add(spec().output);
  std::string text = std::string("cpu ") + isa_name(isa_);
  for (const auto& [type, path] : by_type) text += " " + type + ":" + path;
  return text;
}

}  // namespace sharpi::cpu
