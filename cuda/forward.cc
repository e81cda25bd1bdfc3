// SPDX-License-Identifier: MIT
// The forward pass of the CUDA tier: embedding, head, and what all blocks share.
#include <cmath>
#include <optional>

#include "cuda/cuda_model.h"
#include "cuda/kernels/attention/qkv.h"

namespace sharpi::cuda {
namespace {

struct LayerEvents {
  const CudaWorkspace* ws;
  Status record(uint32_t i) const { return ws->record(i); }
  Status wait(uint32_t i) const { return ws->wait(i); }
};

/// Passes that take long enough to be stopped within, or whose layers somebody wants to hear of.
/// Steps are none; nor is a pass that the host does something else beside.
bool is_watched(const Pass& p, const std::atomic<bool>* cancel) {
  if (p.rows == nullptr || p.recorded || p.single_rows || p.rows->meanwhile != nullptr)
    return false;
  return p.rows->progress != nullptr || (cancel != nullptr && p.n_rows() >= kWatchedRows);
}

}  // namespace

Status CudaModel::run_blocks(const Segment& segment, Pass& p) const {
  const std::atomic<bool>* cancel = p.rows == nullptr ? nullptr : p.rows->cancel;
  const bool may_stop = cancel != nullptr && (p.transient || !spec().has_window());
  if (!may_stop) cancel = nullptr;
  std::optional<LayersAhead<LayerEvents>> ahead;
  if (is_watched(p, cancel)) ahead.emplace(LayerEvents{&p.ws}, cancel, p.rows->progress);
  bool has_ropes = false;
  if (p.per_layer && segment.blocks.front().kind != BlockKind::kEmbedding) {
    SHARPI_TRY(embed_per_layer(p));  // of rows that were embedded elsewhere
  }
  for (const Block& b : segment.blocks) {
    // A ring row that was overwritten cannot be brought back, so windowed models finish their
    // chunk.
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Status::error(Code::kCancelled, "cancelled");
    }
    switch (b.kind) {
      case BlockKind::kEmbedding:
        SHARPI_TRY(embed(p));
        break;
      case BlockKind::kMixer:
        if (spec().layers[b.layer].mixer == MixerKind::kAttention) {
          if (!has_ropes) SHARPI_TRY(rope_tables(p));
          has_ropes = true;
          SHARPI_TRY(attention_block(p, b.layer));
        } else {
          SHARPI_TRY(delta_block(p, b.layer));
        }
        if (b.layer == last_mixer_) SHARPI_TRY(flush_ring(p));
        break;
      case BlockKind::kFfn:
        SHARPI_TRY(segment.streamed ? streamed_ffn(p, b.layer) : ffn_block(p, b.layer));
        if (ahead) SHARPI_TRY(ahead->submitted(b.layer));
        break;
      case BlockKind::kExperts:
        break;  // run with their router in ffn_block
      case BlockKind::kHead:
        SHARPI_TRY(head(p));
        break;
    }
  }
  SHARPI_TRY(launch_waiting(p));
  SHARPI_TRY(flush(p));
  return ahead ? ahead->finish() : Status::ok();
}

/// The block with those of its weights that are not resident brought over first.
Status CudaModel::streamed_ffn(Pass& p, uint32_t layer) const {
  if (!stream_weights_->has(layer)) return ffn_block(p, layer);
  SHARPI_TRY(stream_weights_->load(layer, experts_.get(), p.ws.lane()));
  SHARPI_TRY(ffn_block(p, layer));
  return stream_weights_->done(layer, p.ws.lane());
}

Status CudaModel::embed(Pass& p) const {
  EmbedRowsParams e;
  e.table = matrix(spec().token_embd);
  e.ids = p.ws.tokens();
  e.n_rows = p.n_rows();
  e.scale = spec().embedding_scale;
  e.y = p.ws.get(Buf::kX);
  e.y_stride = spec().n_embd;
  SHARPI_TRY(launch_embed_rows(e, p.ws.lane()));
  return spec().d_ple != 0 ? embed_per_layer(p) : Status::ok();
}

Status CudaModel::embed_per_layer(Pass& p) const {
  const ModelSpec& s = spec();
  const uint32_t width = s.n_layers() * s.d_ple;
  // The rows came with the table, as file bytes: row r of the "matrix" is row r of the call.
  DeviceMatrix raw;
  raw.type = s.ple_embd.tensor->type;
  raw.layout = WeightLayout::kRows;
  raw.data = p.ws.get<std::byte>(Buf::kPleRaw);
  raw.n_in = width;
  raw.n_out = p.n_rows();
  DequantizeParams d;
  d.w = raw;
  d.n_rows = p.n_rows();
  d.y_f32 = p.ws.get(Buf::kPleTable);
  SHARPI_TRY(launch_dequantize(d, p.ws.lane()));
  MatmulParams m = product(p, Buf::kX, s.n_embd, {});
  m.n_tasks = 1;
  m.tasks[0] = {matrix(s.ple_model_proj), p.ws.get(Buf::kPle), width};
  SHARPI_TRY(multiply(p, m));
  PleCombineParams c;
  c.c = p.ws.get(Buf::kPle);
  c.table = p.ws.get(Buf::kPleTable);
  c.weight = floats(s.ple_proj_norm);
  c.n_rows = p.n_rows();
  c.n_slices = s.n_layers();
  c.width = s.d_ple;
  c.eps = s.rms_eps;
  c.to_unit = 1.0f / std::sqrt(static_cast<float>(s.n_embd));
  c.table_scale = std::sqrt(static_cast<float>(s.d_ple));
  c.half = 1.0f / std::sqrt(2.0f);
  return launch_ple_combine(c, lane(p));
}

Status CudaModel::head(Pass& p) const {
  if (p.n_head_rows == 0) return Status::ok();  // transient: nothing is wanted
  SHARPI_TRY(launch_waiting(p));
  const ModelSpec& s = spec();
  MatmulParams m;
  const bool in_order = p.head_rows_in_order && !p.config.deterministic;
  if (in_order) {
    m = product(p, Buf::kX, s.n_embd, s.output_norm);
  } else {
    SHARPI_TRY(flush(p));
    NormRowsParams n;
    n.x = p.ws.get(Buf::kX);
    n.ids = p.ws.head_rows();
    n.n_rows = p.n_head_rows;
    n.width = s.n_embd;
    n.weight = floats(s.output_norm);
    n.eps = s.rms_eps;
    n.y = p.ws.get(Buf::kHead);
    SHARPI_TRY(launch_norm_rows(n, lane(p)));
    m = product(p, Buf::kHead, s.n_embd, {});
  }
  m.n_rows = p.n_head_rows;
  m.n_tasks = 1;
  m.tasks[0] = {matrix(s.output), p.ws.get(Buf::kLogits), s.n_vocab};
  SHARPI_TRY(chain(p, m));
  SHARPI_TRY(flush(p));
  LogitRowsParams l;
  l.logits = p.ws.get(Buf::kLogits);
  l.to = p.ws.logits();
  l.n_rows = p.n_head_rows;
  l.n_vocab = s.n_vocab;
  l.softcap = s.logit_softcap;
  return launch_logit_rows(l, lane(p));
}

Status CudaModel::rope_tables(Pass& p) const {
  const uint64_t stride = uint64_t{p.ws.layout().max_rows} * p.ws.layout().n_half;
  for (size_t i = 0; i < ropes_.size(); ++i) {
    RopeTableParams r;
    r.batch = p.batch;
    r.inv_freq = rope_memory_.as<double>() + rope_offset_[i];
    r.n_half = ropes_[i].spec.n_rot / 2;
    r.mscale = ropes_[i].mscale;
    r.cos = p.ws.get(Buf::kCos) + i * stride;
    r.sin = p.ws.get(Buf::kSin) + i * stride;
    if (r.n_half != 0) SHARPI_TRY(launch_rope_table(r, p.config.pdl, p.ws.lane()));
  }
  return Status::ok();
}

MatmulParams CudaModel::product(Pass& p, Buf x, uint64_t width, const TensorRef& norm) const {
  MatmulParams m;
  m.x = x == Buf::kX ? hidden(p) : p.ws.get(x);
  m.x_stride = width;
  m.n_rows = p.n_rows();
  m.norm_weight = floats(norm);
  m.norm_eps = spec().rms_eps;
  m.workspace = p.ws.get<std::byte>(Buf::kKernel);
  m.workspace_bytes = p.ws.size(Buf::kKernel);
  return m;
}

Status CudaModel::multiply(Pass& p, const MatmulParams& m) const {
  if (p.chain.n != 0 || p.chain.has_branch)
    return Status::error(Code::kInternal, "a product overtakes a chain");
  return launch_matmul(p.config, m, p.ws.lane());
}

Status CudaModel::multiply_first(Pass& p, const MatmulParams& m) const {
  MoeStepParams step = p.moe.step;
  step.after = m;
  if (p.moe.waits && moe_step_takes(p.config, step)) {
    p.moe.waits = false;
    p.moe.step = {};
    return launch_moe_step(p.config, step, p.ws.lane());
  }
  SHARPI_TRY(launch_waiting(p));
  SHARPI_TRY(chain(p, m));
  return flush(p);
}

Status CudaModel::launch_waiting(Pass& p) const {
  if (!p.moe.waits) return Status::ok();
  const MoeStepParams step = p.moe.step;
  p.moe.waits = false;
  p.moe.step = {};
  return launch_moe_step(p.config, step, p.ws.lane());
}

Status CudaModel::mixer_back(Pass& p, uint32_t layer, Buf from, uint64_t width,
                             const TensorRef& w) const {
  const LayerSpec& l = spec().layers[layer];
  const bool chained = p.chain.n != 0 || p.chain.has_branch || p.chain.moved;
  // The layer's block must follow here: what waits for it would else never be launched.
  const bool ffn_here = plan_->placement.ffn[layer] == TierId::kCuda;
  if (!p.moe.on || chained || l.ffn.kind != FfnKind::kMoe || l.mixer_post_norm || !ffn_here ||
      parts_experts(layer))
    return project_back(p, from, width, w, l.mixer_post_norm, 1.0f);
  MatmulParams m = product(p, from, width, {});
  m.n_tasks = 1;
  m.tasks[0] = {matrix(w), p.ws.get(Buf::kX), spec().n_embd};
  m.epilogue = Epilogue::kAdd;
  p.moe.step.before = m;
  return Status::ok();
}

Status CudaModel::project_back(Pass& p, Buf from, uint64_t width, const TensorRef& w,
                               const TensorRef& post_norm, float scale) const {
  MatmulParams m = product(p, from, width, {});
  m.n_tasks = 1;
  const bool direct = !post_norm && scale == 1.0f;
  m.tasks[0] = {matrix(w), direct ? hidden(p) : p.ws.get(Buf::kY), spec().n_embd};
  if (direct) m.epilogue = Epilogue::kAdd;
  SHARPI_TRY(chain(p, m));
  return direct ? Status::ok() : chain_branch(p, post_norm, scale);
}

}  // namespace sharpi::cuda
