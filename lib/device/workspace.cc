// SPDX-License-Identifier: MIT
#include "device/workspace.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "device/kernel_params.h"
#include "device/launches.h"
#include "tier/session_layout.h"

namespace sharpi::device {
namespace {

using Widths = WorkspaceWidths;

template <class T>
void take(T* most, T value) {
  *most = std::max(*most, value);
}

/// What multi-head latent attention has beside what all attention has (latent.h).
void add_latent(Widths* w, const AttentionSpec& a) {
  take(&w->query, a.mixed_row());
  const LatentSpec& l = a.latent;
  take(&w->mix, l.q_a.n_out);
  take(&w->widest_in, std::max({a.mixed_row(), l.q_a.n_out, l.k_b.n_in, l.v_b.n_in}));
  take(&w->widest_out, std::max({l.q_a.n_out, l.k_b.n_out, l.v_b.n_out}));
}

void add_attention(Widths* w, const AttentionSpec& a) {
  const uint64_t q = uint64_t{a.n_heads} * a.head_dim;
  take(&w->q, a.q.n_out);
  take(&w->query, q);
  take(&w->kv, uint64_t{a.n_kv_heads} * a.head_dim);
  take(&w->mix, q);
  take(&w->widest_in, q);
  take(&w->widest_out, a.q.n_out);
  take(&w->attn_heads, a.n_heads);
  take(&w->attn_dim, a.head_dim);
  take(&w->n_half, a.rope.n_rot / 2);
  if (a.latent) add_latent(w, a);
}

void add_delta(Widths* w, const DeltaNetSpec& d) {
  take(&w->conv, uint64_t{d.conv_dim()});
  take(&w->z, uint64_t{d.value_dim()});
  take(&w->mix, uint64_t{d.value_dim()});
  take(&w->widest_in, uint64_t{d.value_dim()});
  take(&w->widest_out, uint64_t{d.conv_dim()});
  take(&w->heads_v, uint64_t{d.n_v_heads});
  w->deltas.push_back(&d);
}

void add_mamba(Widths* w, const Mamba2Spec& m) {
  take(&w->conv, uint64_t{m.conv_dim()});
  take(&w->z, uint64_t{m.inner()});
  take(&w->mix, uint64_t{m.inner()});
  take(&w->widest_in, uint64_t{m.inner()});
  take(&w->widest_out, uint64_t{m.conv_dim()});
  take(&w->heads_v, uint64_t{m.n_heads});
  w->mambas.push_back(&m);
}

void add_ffn(Widths* w, const FfnSpec& f) {
  const uint32_t dense = f.kind == FfnKind::kDense ? f.d_ff : f.d_shared;
  take(&w->ffn, uint64_t{dense});
  take(&w->widest_in, uint64_t{dense});
  take(&w->widest_out, uint64_t{dense});
  if (f.kind == FfnKind::kDense) return;
  take(&w->n_experts, f.n_experts);
  take(&w->n_used, f.n_used);
  take(&w->d_expert, f.d_ff);
  w->has_shared = w->has_shared || f.d_shared != 0;
  take(&w->d_shared, f.d_shared);
  w->beside_dense = w->beside_dense || f.beside_dense();
}

/// `home`: where weights are; `placement`: what a call may run here.
Widths measure(const ModelSpec& spec, const Placement& placement, const Placement& home,
               uint32_t max_sorted) {
  Widths w;
  take(&w.widest_in, uint64_t{spec.n_embd} * (spec.pair ? 2 : 1));
  take(&w.widest_out, uint64_t{spec.n_embd});
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (placement.mixer[l] == DeviceIndex::kHere) {
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
    if (placement.ffn[l] == DeviceIndex::kHere) add_ffn(&w, layer.ffn);
    w.parts_experts = w.parts_experts || home.parts_experts(spec, l);
    if (layer.ple_gate) take(&w.widest_in, uint64_t{spec.d_ple});
  }
  take(&w.widest_out, uint64_t{spec.n_layers()} * spec.d_ple);
  if (w.n_half != 0) {
    for (const LayerSpec& l : spec.layers) {  // every table is made, also those of layers elsewhere
      if (const AttentionSpec* a = l.attends()) take(&w.n_half, a->rope.n_rot / 2);
    }
  }
  w.n_slabs = w.n_experts;
  if (w.parts_experts && placement.n_expert_slots < max_sorted)
    take(&w.n_slabs, placement.n_expert_slots + 1);
  return w;
}

CallTable make_call_table(const ModelShape& model, uint32_t n_groups) {
  CallTable t;
  t.batch = BatchShape{model.max_rows(), model.max_batch, n_groups};
  t.max_head_rows = model.head_rows();
  t.head_rows = round_up(uint64_t{model.max_rows()} * sizeof(int32_t), 16);
  t.logits = t.head_rows + round_up(uint64_t{t.max_head_rows} * sizeof(uint32_t), 16);
  t.adapters = t.logits + round_up(uint64_t{t.max_head_rows} * sizeof(float*), 16);
  const uint64_t n_adapters = model.adapter_rank == 0 ? 0 : model.max_batch * kMaxAdapters;
  t.rows = t.adapters + n_adapters * sizeof(BatchAdapter);
  t.bytes = round_up(t.rows + batch_table_bytes(t.batch), 256);
  return t;
}

/// Devices that share a model and its pinned memory compute chunks of a prompt at once: as many
/// passes are under way as there are devices, and one more that waits in front of the first.
uint32_t passes_of_pipeline(const ModelSpec& spec, const Placement& placement, bool shares_pinned) {
  const size_t n = placement.route().size();
  if (n < 2 || placement.uses(DeviceIndex::kHost) || !shares_pinned || spec.pair) return 1;
  if (spec.part.is_part()) return 1;  // chunks pass the processes of a group as a pipeline
  return static_cast<uint32_t>(n + 1);
}

/// The first device of the route brings the memory for hand-overs, or each its own. In a pipeline
/// each of them on the way has a part of it, and behind them the hidden rows of each pass.
void add_handover(const ModelSpec& spec, const Placement& placement, uint32_t rows,
                  bool shares_pinned, WorkspaceLayout* out) {
  out->hands_over =
      placement.is_split() || spec.part.is_part() || device::keeps_hidden(spec, placement);
  out->n_passes = passes_of_pipeline(spec, placement, shares_pinned);
  const std::vector<DeviceIndex> route = placement.route();
  const bool first = route.front() == DeviceIndex::kHere;
  if (out->n_passes > 1 && !first) out->add_floats(Buf::kArrival, uint64_t{rows} * spec.n_embd);
  if (!out->hands_over || (shares_pinned && !first)) return;
  uint64_t handed = spec.pair.table_on_host ? 2 : 1;  // embeddings lie behind all hidden rows
  if (out->n_passes > 1) handed = route.size() - 1 + (placement.mtp ? out->n_passes : 0);
  out->handover_bytes = handed * rows * spec.n_embd * sizeof(float);
}

void add_ple_buffers(const ModelSpec& spec, uint32_t rows, WorkspaceLayout* out) {
  const bool ple = spec.d_ple != 0;
  const uint64_t ple_width = ple ? uint64_t{spec.n_layers()} * spec.d_ple : 0;
  out->ple_row_bytes = ple ? spec.ple_embd.row_bytes() : 0;
  out->add(Buf::kPleRaw, round_up(rows * out->ple_row_bytes, 256));
  out->add_floats(Buf::kPleTable, rows * ple_width);
  out->add_floats(Buf::kPle, rows * ple_width);
  out->add_floats(Buf::kPleTmp, ple ? uint64_t{rows} * spec.d_ple : 0);
}

}  // namespace

WorkspaceLayout make_workspace_layout(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model, const SessionShape& session,
                                      const PassKernels& kernels, bool shares_pinned) {
  WorkspaceLayout out;
  if (!placement.uses(DeviceIndex::kHere)) return out;
  const Widths w = measure(spec, streamed_placement(spec, placement, model), placement,
                           kernels.max_sorted_experts());
  const uint32_t rows = model.max_rows();
  const uint64_t e = spec.n_embd;
  const KvLayout kv = make_tier_kv_layout(spec, placement, DeviceIndex::kHere, model, session);
  // An entry for each layer that owns rows: layers of one group may hold different counts.
  const auto n_groups = std::count_if(kv.group_of_layer.begin(), kv.group_of_layer.end(),
                                      [](int32_t g) { return g >= 0; });
  out.table = make_call_table(model, static_cast<uint32_t>(n_groups));
  const uint32_t head_rows = has_head(spec, placement) ? out.table.max_head_rows : 0;
  const PassScratch own = kernels.scratch(spec, model, w, rows, head_rows);
  out.max_rows = rows;
  add_handover(spec, placement, rows, shares_pinned, &out);
  out.n_half = w.n_half;
  out.add_floats(Buf::kX, rows * e);
  out.add_floats(Buf::kPair, spec.pair ? rows * 2 * e : 0);
  out.add_floats(Buf::kHead, head_rows * e);
  out.add_floats(Buf::kQ, rows * w.q);
  out.add_floats(Buf::kK, rows * w.kv);
  out.add_floats(Buf::kV, rows * w.kv);
  out.add_floats(Buf::kQuery, rows * w.query);
  out.add_floats(Buf::kMix, rows * w.mix);
  out.add_floats(Buf::kQkv, rows * w.conv);
  out.add_floats(Buf::kZ, rows * w.z);
  out.add_floats(Buf::kAlpha, rows * w.heads_v);
  out.add_floats(Buf::kBeta, rows * w.heads_v);
  out.add_floats(Buf::kY, rows * e);
  out.add_floats(Buf::kFfn, rows * w.ffn);
  out.add_floats(Buf::kUp, model.adapter_rank == 0 ? 0 : rows * w.ffn);
  out.add_floats(Buf::kAdapter, uint64_t{rows} * kMaxProductTasks * model.adapter_rank);
  out.add_floats(Buf::kRouter, uint64_t{rows} * w.n_experts);
  out.add(Buf::kMoeIds, uint64_t{rows} * w.n_used * sizeof(int32_t));
  out.add_floats(Buf::kMoeWeight, uint64_t{rows} * w.n_used);
  out.add_floats(Buf::kSharedGate, w.has_shared ? rows : 0);
  out.add_floats(Buf::kMoeSum, w.beside_dense ? rows * e : 0);
  if (w.n_experts != 0) {
    out.add(Buf::kMoeSync, own.moe_sync);
  }
  out.add(Buf::kHandover, w.parts_experts ? sizeof(HandoverState) : 0);
  add_ple_buffers(spec, rows, &out);
  std::vector<int32_t> table_of_layer;
  const uint64_t n_tables = make_rope_tables(spec, &table_of_layer).size();
  out.add_floats(Buf::kCos, n_tables * rows * w.n_half);
  out.add_floats(Buf::kSin, n_tables * rows * w.n_half);
  out.chunk_slot_bytes = kv.chunk_slot_bytes;
  const uint64_t chunk_blocks = div_up(rows, kKvBlockSlots) + model.max_batch;
  out.add(Buf::kKvChunk, chunk_blocks * kKvBlockSlots * out.chunk_slot_bytes);
  out.add_floats(Buf::kLogits, uint64_t{head_rows} * spec.n_vocab);
  out.add(Buf::kTable, out.table.bytes);
  out.add(Buf::kAttention, own.attention);
  out.add(Buf::kKernel, own.kernel);
  if (own.chain_rows != 0) {
    out.add_floats(Buf::kOtherX, std::min(rows, own.chain_rows) * e);
    out.add(Buf::kChainSync, own.chain_sync);
  }
  return out;
}

std::vector<MemoryRow> workspace_rows(const WorkspaceLayout& layout, uint32_t n,
                                      const Device& device) {
  std::vector<MemoryRow> rows;
  if (layout.bytes == 0 || n == 0) return rows;
  const uint64_t adapters = round_up(layout.size_of(Buf::kAdapter), 256);  // in the same block
  rows.push_back(device.row(SHARPI_ROW_ACTIVATIONS, SHARPI_ROW_DEVICE, "activations",
                            n * (layout.bytes - adapters),
                            n * (device.held_bytes(layout.bytes) - adapters)));
  if (adapters != 0) {
    rows.push_back(device.row(SHARPI_ROW_ACTIVATIONS, SHARPI_ROW_DEVICE, "products of adapters",
                              n * adapters, n * adapters));
  }
  rows.push_back(device.row(SHARPI_ROW_TABLES, SHARPI_ROW_PINNED, "call tables",
                            n * layout.pinned_bytes(),
                            n * device.pinned_held_bytes(layout.pinned_bytes())));
  if (layout.handover_bytes == 0) return rows;
  rows.push_back(device.row(SHARPI_ROW_STAGING, SHARPI_ROW_PINNED, "hidden rows between tiers",
                            n * layout.handover_bytes,
                            n * device.pinned_held_bytes(layout.handover_bytes)));
  return rows;
}

Result<std::unique_ptr<DeviceWorkspace>> DeviceWorkspace::create(const Device& device,
                                                                 const WorkspaceLayout& layout,
                                                                 float* handover) {
  if (layout.hands_over && layout.handover_bytes == 0 && handover == nullptr) {
    return Status::error(Code::kInternal, "no device brings memory to hand hidden rows over in");
  }
  std::unique_ptr<DeviceWorkspace> w(new DeviceWorkspace());
  w->device_ = &device;
  w->layout_ = layout;
  SHARPI_TRY_ASSIGN(w->memory_, DeviceBuffer::allocate(device, layout.bytes, "activations"));
  SHARPI_TRY_ASSIGN(w->pinned_,
                    PinnedBuffer::allocate(device, layout.pinned_bytes(), "call tables"));
  SHARPI_TRY_ASSIGN(w->handover_, PinnedBuffer::allocate(device, layout.handover_bytes,
                                                         "hidden rows between tiers"));
  // warm_up() starts from these rows before anybody has written them.
  if (layout.handover_bytes != 0) std::memset(w->handover_.data(), 0, layout.handover_bytes);
  w->hand_ = layout.handover_bytes != 0 ? w->handover_.as<float>() : handover;
  w->relayed_ = layout.handover_bytes != 0 ? handover : nullptr;
  SHARPI_TRY_ASSIGN(w->stream_, device.create_queue());
  SHARPI_TRY(w->stage.create(device, layout.n_passes));
  for (std::unique_ptr<Event>& e : w->layers_) {
    SHARPI_TRY_ASSIGN(e, device.create_event());
  }
  for (const Buf b : {Buf::kMoeSync, Buf::kChainSync}) {
    if (w->size(b) == 0) continue;
    SHARPI_TRY(
        w->queue().clear(w->get<std::byte>(b), w->size(b), "clearing what launches meet at"));
  }
  SHARPI_TRY(w->stream_->wait());
  return w;
}

DeviceWorkspace::~DeviceWorkspace() {
  if (device_ == nullptr) return;
  const DeviceScope scope(*device_);
  recordings.clear();
}

BatchTable DeviceWorkspace::host_batch() const {
  return batch_table_at(layout_.table.batch, mirror<std::byte>(layout_.table.rows));
}

BatchTable DeviceWorkspace::batch() const {
  return batch_table_at(layout_.table.batch, get<std::byte>(Buf::kTable) + layout_.table.rows);
}

}  // namespace sharpi::device
