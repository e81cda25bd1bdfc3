// SPDX-License-Identifier: MIT
#include "cpu/cpu_workspace.h"

#include <algorithm>

#include "cpu/adapter_products.h"
#include "cpu/attention.h"
#include "cpu/cpu_session.h"
#include "cpu/delta_shape.h"
#include "cpu/mamba2_shape.h"
#include "cpu/replay.h"

namespace sharpi::cpu {
namespace {

/// Widths that buffers must serve: the maximum over the blocks placed on this tier.
struct Widths {
  uint64_t q = 0, gate = 0, kv = 0, mix = 0, conv = 0, heads_v = 0;
  uint64_t ffn = 0, wide_in = 0;
  uint32_t n_experts = 0, n_used = 0, d_expert = 0;
  uint32_t attn_heads = 0, attn_kv_heads = 0, attn_dim = 0, half_rot = 0;
  uint32_t latent_heads = 0;
  uint64_t latent_in = 0;  // of products of single heads
  bool beside_dense = false, chooses_apart = false;
  DeltaNetShape delta;
  Mamba2Shape mamba;
};

void take(uint64_t* most, uint64_t value) {
  *most = std::max(*most, value);
}
void take32(uint32_t* most, uint32_t value) {
  *most = std::max(*most, value);
}

void add_latent(Widths* w, const AttentionSpec& a) {
  take(&w->gate, std::max(a.q.n_out, a.mixed_row()));
  take(&w->mix, a.latent.q_a.n_out);
  take(&w->wide_in, a.latent.q_a.n_out);
  take32(&w->latent_heads, a.n_heads);
  take(&w->latent_in, std::max(a.latent.key_dim, a.latent.rank));
}

void add_attention(Widths* w, const AttentionSpec& a) {
  const uint64_t q = uint64_t{a.n_heads} * a.head_dim;
  take(&w->q, a.output_gate ? 2 * q : a.fused_qkv ? a.q.n_out : q);
  take(&w->gate, a.output_gate ? q : 0);
  take(&w->kv, uint64_t{a.n_kv_heads} * a.head_dim);
  take(&w->mix, q);
  take(&w->wide_in, a.mixed_row());
  if (a.latent) add_latent(w, a);
  take32(&w->attn_heads, a.n_heads);
  take32(&w->attn_kv_heads, a.n_kv_heads);
  take32(&w->attn_dim, a.head_dim);
  take32(&w->half_rot, a.rope.n_rot / 2);
}

void add_delta(Widths* w, const DeltaNetSpec& d) {
  take(&w->conv, d.conv_dim());
  take(&w->gate, d.value_dim());
  take(&w->mix, d.value_dim());
  take(&w->wide_in, d.value_dim());
  take(&w->heads_v, d.n_v_heads);
  w->delta = delta_shape(d);
}

void add_mamba(Widths* w, const Mamba2Spec& m) {
  take(&w->conv, m.conv_dim());
  take(&w->gate, m.inner());
  take(&w->mix, m.inner());
  take(&w->wide_in, m.inner());
  take(&w->heads_v, m.n_heads);
  w->mamba = mamba2_shape(m);
}

void add_ffn(Widths* w, const FfnSpec& f, bool ffn_here, bool experts_here) {
  if (f.kind == FfnKind::kNone) return;
  if (f.kind == FfnKind::kDense) {
    if (ffn_here) take(&w->ffn, f.d_ff), take(&w->wide_in, f.d_ff);
    return;
  }
  if (ffn_here || experts_here) {
    take32(&w->n_experts, f.n_experts);
    take32(&w->n_used, f.n_used);
  }
  if (experts_here) take32(&w->d_expert, f.fused_gate_up ? 2 * f.d_ff : f.d_ff);
  if (experts_here) take(&w->wide_in, f.d_ff);
  if (ffn_here && f.d_shared != 0) take(&w->ffn, f.d_shared), take(&w->wide_in, f.d_shared);
  w->beside_dense = w->beside_dense || (ffn_here && f.beside_dense());
  w->chooses_apart = w->chooses_apart || (ffn_here && f.choice_bias);
}

Widths measure(const ModelSpec& spec, const Placement& placement) {
  Widths w;
  if (spec.pair) take(&w.wide_in, 2 * uint64_t{spec.n_embd});
  for (const TensorRef& t : spec.pooled.projections) take(&w.wide_in, t.n_in);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (placement.mixer[l] == DeviceIndex::kHost) {
      switch (layer.mixer) {
        case MixerKind::kAttention:
          add_attention(&w, layer.attention);
          break;
        case MixerKind::kGatedDeltaNet:
          add_delta(&w, layer.delta);
          break;
        case MixerKind::kMamba2:
          add_mamba(&w, layer.mamba);
          break;
        case MixerKind::kNone:
          break;
      }
    }
    add_ffn(&w, layer.ffn, placement.ffn[l] == DeviceIndex::kHost,
            placement.experts[l] == DeviceIndex::kHost);
    if (layer.ple_gate) take(&w.wide_in, spec.d_ple);
  }
  if (w.half_rot == 0) return w;
  for (const LayerSpec& l : spec.layers) {  // every table is made, also those of layers elsewhere
    if (const AttentionSpec* a = l.attends()) take32(&w.half_rot, a->rope.n_rot / 2);
  }
  return w;
}

void add_moe_buffers(WorkspaceLayout* out, const Widths& w, uint64_t rows, uint64_t n_embd) {
  const uint64_t slots = rows * w.n_used;
  out->add_floats(Buf::kFfnGate, std::max(rows * w.ffn, slots * w.d_expert));
  out->add_floats(Buf::kFfnUp, std::max(rows * w.ffn, slots * w.d_expert));
  out->add_floats(Buf::kMoeOut, slots * n_embd);
  out->add_floats(Buf::kMoeSum, w.beside_dense ? rows * n_embd : 0);
  out->add_floats(Buf::kRouter, rows * w.n_experts);
  out->add_floats(Buf::kScores, w.chooses_apart ? rows * w.n_experts : 0);
  out->add(Buf::kMoeIds, slots * sizeof(uint32_t));
  out->add_floats(Buf::kMoeWeights, slots);
  out->add(Buf::kMoeRows, slots * sizeof(uint32_t));
  out->add(Buf::kMoeSlot, slots * sizeof(uint32_t));
  out->add(Buf::kMoeIota, slots * sizeof(uint32_t));
  out->add(Buf::kMoeFirst, (w.n_experts + 1ull) * sizeof(uint32_t));
  out->add(Buf::kMoeTasks, 2ull * w.n_experts * sizeof(MatmulTask));
}

/// Prepared inputs of products, and the scratch of their kernels.
void add_products(WorkspaceLayout* out, const Widths& w, uint32_t rows, uint64_t e,
                  const MatmulConfig& matmul, uint32_t n_threads) {
  const uint64_t wide_rows = uint64_t{rows} * std::max(1u, w.n_used);
  out->add(Buf::kActE, Matmul::prepared_bytes(matmul, e, rows));
  out->add(Buf::kActWide,
           std::max({Matmul::prepared_bytes(matmul, w.wide_in, rows),
                     Matmul::prepared_bytes(matmul, w.latent_in, rows * w.latent_heads),
                     w.d_expert == 0 ? 0
                                     : Matmul::prepared_bytes(matmul, w.d_expert,
                                                              static_cast<uint32_t>(wide_rows))}));
  out->add(Buf::kMatmul,
           Matmul::scratch_bytes(matmul, n_threads, std::max({e, w.wide_in, w.latent_in}),
                                 static_cast<uint32_t>(w.d_expert == 0 ? rows : wide_rows)));
}

}  // namespace

uint64_t ple_slice_floats(const ModelSpec& spec) {
  if (!spec.ple_embd) return spec.d_ple;
  const uint64_t block = ggml_traits(spec.ple_embd.tensor->type).block_elements;
  return spec.d_ple % block == 0 ? spec.d_ple : spec.d_ple + 2 * block;
}

uint64_t adapter_scratch_bytes(const WorkspaceLayout& layout) {
  return round_up(layout.size_of(Buf::kAdapter), 64);
}

WorkspaceLayout make_workspace_layout(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model, const SessionShape& session,
                                      const MatmulConfig& matmul, uint32_t n_threads) {
  WorkspaceLayout out;
  if (!placement.uses(DeviceIndex::kHost)) return out;
  const Widths w = measure(spec, placement);
  const uint32_t rows = model.max_rows();
  const uint64_t e = spec.n_embd;
  out.max_rows = rows;
  out.add_floats(Buf::kX, rows * e);
  out.add_floats(Buf::kNorm, rows * e);
  out.add_floats(Buf::kQ, rows * w.q);
  out.add_floats(Buf::kGate, rows * w.gate);
  out.add_floats(Buf::kK, rows * w.kv);
  out.add_floats(Buf::kV, rows * w.kv);
  out.add_floats(Buf::kMix, rows * w.mix);
  out.add_floats(Buf::kQkv, rows * w.conv);
  out.add_floats(Buf::kAlpha, rows * w.heads_v);
  out.add_floats(Buf::kBeta, w.delta.n_v_heads == 0 ? 0 : rows * w.heads_v);
  out.add_floats(Buf::kY, rows * e);
  add_moe_buffers(&out, w, rows, e);
  out.add(Buf::kHeadRows, uint64_t{rows} * w.latent_heads * sizeof(uint32_t));
  out.add(Buf::kHeadTasks, w.latent_heads * sizeof(MatmulTask));
  out.add_floats(Buf::kPair, spec.pair ? 2 * rows * e : 0);
  out.add_floats(Buf::kPle, rows * spec.n_layers() * uint64_t{spec.d_ple});
  out.add_floats(Buf::kPleTmp, rows * ple_slice_floats(spec));
  std::vector<int32_t> table_of_layer;
  const uint64_t n_tables = make_rope_tables(spec, &table_of_layer).size();
  out.add_floats(Buf::kCos, n_tables * rows * w.half_rot);
  out.add_floats(Buf::kSin, n_tables * rows * w.half_rot);

  const KvLayout kv = make_tier_kv_layout(spec, placement, DeviceIndex::kHost, model, session);
  out.chunk_slot_bytes = kv.chunk_slot_bytes;
  out.chunk_blocks = static_cast<uint32_t>(div_up(rows, kKvBlockSlots)) + model.max_batch;
  out.add(Buf::kKvChunk, out.chunk_blocks * kKvBlockSlots * out.chunk_slot_bytes);
  out.add_floats(Buf::kLogits,
                 placement.head == DeviceIndex::kHost && spec.output && model.max_batch > 1
                     ? uint64_t{model.head_rows()} * spec.n_vocab
                     : 0);
  add_products(&out, w, rows, e, matmul, n_threads);
  out.add(Buf::kAttention, w.attn_heads == 0
                               ? 0
                               : attention_scratch_bytes(*matmul.kernels, n_threads, rows,
                                                         w.attn_heads, w.attn_dim, session.n_ctx));
  out.add(Buf::kDelta,
          std::max(w.delta.n_v_heads == 0 ? 0 : delta_net_scratch_bytes(w.delta, n_threads, rows),
                   w.mamba.n_heads == 0 ? 0 : mamba2_scratch_bytes(w.mamba, n_threads, rows)));
  out.add(Buf::kReplay, session.replay_every == 0 || w.attn_heads == 0
                            ? 0
                            : replay_scratch_bytes(n_threads, rows, w.attn_kv_heads, w.attn_dim));
  out.add_floats(Buf::kAdapter, adapter_scratch_floats(rows, model.adapter_rank));
  return out;
}

Result<std::unique_ptr<CpuWorkspace>> CpuWorkspace::create(MemoryMeter* meter,
                                                           const WorkspaceLayout& layout,
                                                           const MatmulConfig& config,
                                                           ThreadPool* pool) {
  std::unique_ptr<CpuWorkspace> w(new CpuWorkspace());
  w->layout_ = layout;
  SHARPI_TRY_ASSIGN(w->memory_, HostBuffer::allocate(*meter, layout.bytes, "activations"));
  const auto iota_n = w->size(Buf::kMoeIota) / sizeof(uint32_t);
  auto* iota = w->get<uint32_t>(Buf::kMoeIota);
  for (uint32_t i = 0; i < iota_n; ++i) iota[i] = i;
  w->matmul_ = std::make_unique<Matmul>(config, pool, w->get<std::byte>(Buf::kMatmul),
                                        w->size(Buf::kMatmul));
  return w;
}

}  // namespace sharpi::cpu
