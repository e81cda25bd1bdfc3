// SPDX-License-Identifier: MIT
#include "cuda/pass_launches.h"

#include <cmath>

#include "cuda/kernels/adapters.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/products/chain.h"
#include "device/loaded_model.h"
#include "model/adapter_file.h"

namespace sharpi::cuda {
namespace {

/// What a list of launches names, where it is for a pass.
class PassBinding final : public Binding {
 public:
  PassBinding(const LoadedModel& model, const Pass& p)
      : Binding(model.spec(), p.n_rows(), p.n_head_rows), model_(model), ws_(p.ws) {}
  std::byte* at(Buf b) const override { return ws_.get<std::byte>(b); }
  uint64_t size(Buf b) const override { return ws_.size(b); }
  DeviceMatrix matrix(const TensorRef& w) const override { return matrix_at(model_, w); }
  const float* floats(const TensorRef& w) const override { return model_.floats(w); }

 private:
  const LoadedModel& model_;
  const DeviceWorkspace& ws_;
};

}  // namespace

Status PassLaunches::make(Pass& p, const LaunchList& list, const Launch& l) const {
  const PassBinding at(m_, p);
  switch (l.kind) {
    case LaunchKind::kEmbed:
      return embed(p);
    case LaunchKind::kEmbedPairs:
      return embed_pairs(p);
    case LaunchKind::kPerLayerTable:
      return per_layer_table(p);
    case LaunchKind::kPerLayerCombine:
      return combine_per_layer(p);
    case LaunchKind::kRopeTables:
      return rope_tables(p);
    case LaunchKind::kProduct:
      return launch_link(s_.of(p), at.link(list.links[l.first_link]), raw_stream(p));
    case LaunchKind::kChain:
    case LaunchKind::kAdapters:
      return launch_links(p, at, list, l);
    case LaunchKind::kResidual:
      return launch_branch_sum(s_.of(p), l.sum.x == kNoRows ? nullptr : at.row(l.sum.x),
                               at.branch(l.sum), p.n_rows(), m_.spec().n_embd, raw_stream(p));
    case LaunchKind::kKeepRing:
      return mixers_.flush_ring(p, l.layer);
    case LaunchKind::kRows:
      return mixers_.store_rows(p, l.layer);
    case LaunchKind::kAttention:
      return mixers_.attend(p, l.layer);
    case LaunchKind::kLatentQueries:
    case LaunchKind::kLatentOutputs:
      return heads(p, l);
    case LaunchKind::kDeltaNet:
      return mixers_.delta_net(p, l.layer);
    case LaunchKind::kMamba:
      return mixers_.mamba(p, l.layer);
    case LaunchKind::kActivation:
      return activation(p, l.layer);
    case LaunchKind::kRouter:
    case LaunchKind::kSharedGate:
    case LaunchKind::kExperts:
    case LaunchKind::kMoeStep:
    case LaunchKind::kSendRows:
    case LaunchKind::kSlotExperts:
    case LaunchKind::kAnswers:
      return ffn_.launch(p, at, list, l);
    case LaunchKind::kPerLayerGate:
      return ffn_.per_layer_gate(p, l.layer);
    case LaunchKind::kHeadRows:
      return pick_head_rows(p);
    case LaunchKind::kLogits:
      return send_logits(p);
    case LaunchKind::kHiddenRows:
      return hidden_rows(p);
    case LaunchKind::kFetchWeights:
    case LaunchKind::kReleaseWeights:
    case LaunchKind::kReplay:
    case LaunchKind::kLayerEnd:
      break;  // no kernel's, or device/replay.h has it
  }
  return Status::error(Code::kInternal, "a launch has a kind that is no kernel's");
}

namespace {

EmbedRowsParams embedding_of(const LoadedModel& model, const Pass& p, Buf to) {
  EmbedRowsParams e;
  e.table = matrix_at(model, model.spec().token_embd);
  e.ids = p.ws.tokens();
  e.n_rows = p.n_rows();
  e.scale = model.spec().embedding_scale;
  e.y = p.ws.get(to);
  e.y_stride = model.spec().n_embd;
  return e;
}

}  // namespace

Status PassLaunches::embed(Pass& p) const {
  return launch_embed_rows(embedding_of(m_, p, Buf::kX), raw_stream(p));
}

/// Of the hidden rows that came in and the tokens behind them, whose embeddings may have come too.
Status PassLaunches::embed_pairs(Pass& p) const {
  const PairInput& s = m_.spec().pair;
  if (!s.table_on_host) {
    SHARPI_TRY(launch_embed_rows(embedding_of(m_, p, Buf::kY), raw_stream(p)));
  }
  PairRowsParams pair;
  pair.first = p.ws.get(Buf::kY);
  pair.second = p.ws.get(Buf::kX);
  pair.first_weight = m_.floats(s.embd_norm);
  pair.second_weight = m_.floats(s.hidden_norm);
  pair.n_rows = p.n_rows();
  pair.width = m_.spec().n_embd;
  pair.eps = m_.spec().rms_eps;
  pair.y = p.ws.get(Buf::kPair);
  return launch_pair_rows(pair, s_.on(p));
}

Status PassLaunches::per_layer_table(Pass& p) const {
  const ModelSpec& s = m_.spec();
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
  d.n_out = p.n_rows();
  d.y_f32 = p.ws.get(Buf::kPleTable);
  return launch_dequantize(d, raw_stream(p));
}

Status PassLaunches::combine_per_layer(Pass& p) const {
  const ModelSpec& s = m_.spec();
  PleCombineParams c;
  c.c = p.ws.get(Buf::kPle);
  c.table = p.ws.get(Buf::kPleTable);
  c.weight = m_.floats(s.ple_proj_norm);
  c.n_rows = p.n_rows();
  c.n_slices = s.n_layers();
  c.width = s.d_ple;
  c.eps = s.rms_eps;
  c.to_unit = 1.0f / std::sqrt(static_cast<float>(s.n_embd));
  c.table_scale = std::sqrt(static_cast<float>(s.d_ple));
  c.half = 1.0f / std::sqrt(2.0f);
  return launch_ple_combine(c, s_.on(p));
}

Status PassLaunches::pick_head_rows(Pass& p) const {
  const ModelSpec& s = m_.spec();
  NormRowsParams n;
  n.x = p.ws.get(Buf::kX);
  n.ids = p.ws.head_rows();
  n.n_rows = p.n_head_rows;
  n.width = s.n_embd;
  n.weight = m_.floats(s.output_norm);
  n.eps = s.rms_eps;
  n.y = p.ws.get(Buf::kHead);
  return launch_norm_rows(n, s_.on(p));
}

/// As the head reads them.
Status PassLaunches::hidden_rows(Pass& p) const {
  NormRowsParams n;
  n.x = p.ws.get(Buf::kX);
  n.n_rows = p.n_rows();
  n.width = m_.spec().n_embd;
  n.weight = m_.floats(m_.spec().output_norm);
  n.eps = m_.spec().rms_eps;
  n.y = p.ws.get(Buf::kY);
  return launch_norm_rows(n, s_.on(p));
}

Status PassLaunches::send_logits(Pass& p) const {
  LogitRowsParams l;
  l.logits = p.ws.get(Buf::kLogits);
  l.to = p.ws.logits();
  l.n_rows = p.n_head_rows;
  l.n_vocab = m_.spec().n_vocab;
  l.scale = m_.spec().logit_scale;
  l.softcap = m_.spec().logit_softcap;
  return launch_logit_rows(l, s_.on(p));
}

/// Products of heads with matrices of their own, of latent attention.
Status PassLaunches::heads(Pass& p, const Launch& l) const {
  const AttentionSpec& a = m_.spec().layers[l.layer].attention;
  const bool queries = l.kind == LaunchKind::kLatentQueries;
  return mixers_.heads(p, queries ? device::latent_queries(a) : device::latent_outputs(a));
}

/// Of an FFN without a gate, or with one that the product has not applied.
Status PassLaunches::activation(Pass& p, uint32_t layer) const {
  const FfnSpec& f = m_.spec().layers[layer].ffn;
  const uint64_t n = uint64_t{p.n_rows()} * device::hidden_width(f);
  if (device::has_gate(f))
    return launch_gate({p.ws.get(Buf::kFfn), p.ws.get(Buf::kUp), n, device::hidden_epilogue(f)},
                       s_.on(p));
  return launch_square({p.ws.get(Buf::kFfn), n}, s_.on(p));
}

/// Behind a product, whose input is still there.
Status PassLaunches::adapters(Pass& p, const RowLink& link) const {
  const RowProduct& product = link.product;
  AdapterParams a;
  a.rows = p.batch.table.rows;
  a.adapters = p.ws.adapters();
  a.n_rows = p.n_rows();
  a.n_in = static_cast<uint32_t>(product.tasks[0].w->n_in);
  a.x = p.ws.get(link.sum.adds ? link.sum.to : product.x);
  a.norm_weight = product.norm == nullptr ? nullptr : m_.floats(*product.norm);
  a.norm_eps = m_.spec().rms_eps;
  a.rank = m_.plan->model.adapter_rank;
  a.t = p.ws.get(Buf::kAdapter);
  a.n_tasks = product.n_tasks;
  for (uint32_t t = 0; t < product.n_tasks; ++t) {
    a.weights[t] = tensor_index(m_.spec(), *product.tasks[t].w);
    a.n_out[t] = static_cast<uint32_t>(product.tasks[t].w->n_out);
    a.y[t] = p.ws.get(product.tasks[t].y);
  }
  if (product.shared_scale) a.shares = p.ws.get(Buf::kSharedGate);
  for (a.k = 0; a.k < p.n_adapters; ++a.k) SHARPI_TRY(launch_adapters(a, s_.on(p)));
  return Status::ok();
}

Status PassLaunches::rope_tables(Pass& p) const {
  const uint64_t stride = uint64_t{p.ws.layout().max_rows} * p.ws.layout().n_half;
  for (size_t i = 0; i < m_.ropes.size(); ++i) {
    RopeTableParams r;
    r.batch = p.batch;
    r.inv_freq = m_.rope_memory.as<double>() + m_.rope_offset[i];
    r.n_half = m_.ropes[i].spec.n_rot / 2;
    r.mscale = m_.ropes[i].mscale;
    r.cos = p.ws.get(Buf::kCos) + i * stride;
    r.sin = p.ws.get(Buf::kSin) + i * stride;
    if (r.n_half != 0) SHARPI_TRY(launch_rope_table(r, s_.of(p).pdl, raw_stream(p)));
  }
  return Status::ok();
}

Status PassLaunches::launch_links(Pass& p, const Binding& at, const LaunchList& list,
                                  const Launch& l) const {
  if (l.kind == LaunchKind::kAdapters) return adapters(p, list.links[l.first_link]);
  ChainLink links[kMaxChainLinks];
  for (uint32_t i = 0; i < l.n_links; ++i) links[i] = at.link(list.links[l.first_link + i]);
  ChainTuning tuning;
  tuning.shared_bytes = s_.device.chain_bytes();
  return launch_chain(s_.of(p), links, l.n_links, p.ws.get<std::byte>(Buf::kChainSync),
                      raw_stream(p), tuning);
}

}  // namespace sharpi::cuda
