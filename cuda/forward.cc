// SPDX-License-Identifier: MIT
#include "cuda/forward.h"

#include <cmath>
#include <optional>

#include "device/layers_ahead.h"

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

/// What a list of launches names, where it is for a pass.
class PassBinding final : public Binding {
 public:
  PassBinding(const LoadedModel& model, const Pass& p)
      : Binding(model.spec(), p.n_rows(), p.n_head_rows), model_(model), ws_(p.ws) {}
  std::byte* at(Buf b) const override { return ws_.get<std::byte>(b); }
  uint64_t size(Buf b) const override { return ws_.size(b); }
  DeviceMatrix matrix(const TensorRef& w) const override { return model_.matrix(w); }
  const float* floats(const TensorRef& w) const override { return model_.floats(w); }

 private:
  const LoadedModel& model_;
  const CudaWorkspace& ws_;
};

}  // namespace

StepFacts Forward::facts(const Pass& p) const {
  StepFacts f;
  f.spec = &m_.spec();
  f.placement = &m_.plan->placement;
  f.config = p.config;
  f.n_rows = p.n_rows();
  f.fuses = p.fuses;
  f.streamed = p.streamed;
  f.rows_to_ring = p.single_rows && !p.transient;
  f.keeps_hidden = p.keeps_hidden;
  f.head = head_rows(p.config.deterministic, p.n_head_rows, p.head_rows_in_order);
  f.expert_slots = m_.uses_slots(p.n_rows());
  f.chain_bytes = m_.device->chain_bytes();
  f.moe_sync_bytes = m_.workspace_layout.size_of(Buf::kMoeSync);
  return f;
}

Status Forward::run(const Segment& segment, Pass& p) const {
  const LaunchList list = fuse(segment.program, facts(p));
  if (list.unknown != nullptr) {
    return Status::error(Code::kInternal, "the CUDA tier does not know the operation \"%s\"",
                         list.unknown);
  }
  ChainCounts& counts = p.n_rows() == 1 ? chains_of_one_ : chains_of_several_;
  counts.launched.fetch_add(list.n_chains, std::memory_order_relaxed);
  counts.apart.fetch_add(list.n_apart, std::memory_order_relaxed);
  const std::atomic<bool>* cancel = p.rows == nullptr ? nullptr : p.rows->cancel;
  // A ring row that was overwritten cannot be brought back, so windowed models finish their chunk.
  if (!p.transient && m_.spec().has_window()) cancel = nullptr;
  std::optional<LayersAhead<LayerEvents>> ahead;
  if (is_watched(p, cancel)) ahead.emplace(LayerEvents{&p.ws}, cancel, p.rows->progress);
  const PassBinding at(m_, p);
  for (const Launch& l : list.launches) {
    if (l.opens && cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Status::error(Code::kCancelled, "the call was cancelled");
    }
    SHARPI_TRY(launch(p, at, list, l));
    if (const LaunchWatch seen = launch_watch())
      seen(list, l, p.n_rows() == 1 && p.fuses && p.recorded);
    if (ahead && l.kind == LaunchKind::kLayerEnd) SHARPI_TRY(ahead->submitted(l.layer));
  }
  return ahead ? ahead->finish() : Status::ok();
}

Status Forward::launch(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const {
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
      return launch_link(p.config, at.link(list.links[l.first_link]), p.ws.raw_stream());
    case LaunchKind::kChain:
      return launch_links(p, at, list, l);
    case LaunchKind::kResidual:
      return launch_branch_sum(p.config, at.row(l.sum.x), at.branch(l.sum), p.n_rows(),
                               m_.spec().n_embd, p.ws.raw_stream());
    case LaunchKind::kKeepRing:
      return mixers_.flush_ring(p);
    case LaunchKind::kRows:
      return mixers_.store_rows(p, l.layer);
    case LaunchKind::kAttention:
      return mixers_.attend(p, l.layer);
    case LaunchKind::kDeltaNet:
      return mixers_.delta_net(p, l.layer);
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
      if (!m_.stream_weights->has(l.layer)) return Status::ok();
      return m_.stream_weights->load(l.layer, m_.experts.get(), p.ws.raw_stream());
    case LaunchKind::kReleaseWeights:
      if (!m_.stream_weights->has(l.layer)) return Status::ok();
      return m_.stream_weights->done(l.layer, p.ws.raw_stream());
    case LaunchKind::kLayerEnd:
      return Status::ok();
  }
  return Status::error(Code::kInternal, "a launch has a kind that does not exist");
}

std::vector<std::string> Forward::step_text(const Segment& segment) const {
  StepFacts f = step_facts(m_.spec(), m_.plan->placement, m_.config);
  f.chain_bytes = m_.device->chain_bytes();
  f.expert_slots = m_.uses_slots(1);
  f.moe_sync_bytes = m_.workspace_layout.size_of(Buf::kMoeSync);
  return launch_text(fuse(segment.program, f));
}

namespace {

EmbedRowsParams embedding_of(const LoadedModel& model, const Pass& p, Buf to) {
  EmbedRowsParams e;
  e.table = model.matrix(model.spec().token_embd);
  e.ids = p.ws.tokens();
  e.n_rows = p.n_rows();
  e.scale = model.spec().embedding_scale;
  e.y = p.ws.get(to);
  e.y_stride = model.spec().n_embd;
  return e;
}

}  // namespace

Status Forward::embed(Pass& p) const {
  return launch_embed_rows(embedding_of(m_, p, Buf::kX), p.ws.raw_stream());
}

/// Of the hidden rows that came in and the tokens behind them, whose embeddings may have come too.
Status Forward::embed_pairs(Pass& p) const {
  const PairInput& s = m_.spec().pair;
  if (!s.table_on_host) {
    SHARPI_TRY(launch_embed_rows(embedding_of(m_, p, Buf::kY), p.ws.raw_stream()));
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
  return launch_pair_rows(pair, stream_of(p));
}

Status Forward::per_layer_table(Pass& p) const {
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
  return launch_dequantize(d, p.ws.raw_stream());
}

Status Forward::combine_per_layer(Pass& p) const {
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
  return launch_ple_combine(c, stream_of(p));
}

Status Forward::pick_head_rows(Pass& p) const {
  const ModelSpec& s = m_.spec();
  NormRowsParams n;
  n.x = p.ws.get(Buf::kX);
  n.ids = p.ws.head_rows();
  n.n_rows = p.n_head_rows;
  n.width = s.n_embd;
  n.weight = m_.floats(s.output_norm);
  n.eps = s.rms_eps;
  n.y = p.ws.get(Buf::kHead);
  return launch_norm_rows(n, stream_of(p));
}

/// As the head reads them.
Status Forward::hidden_rows(Pass& p) const {
  NormRowsParams n;
  n.x = p.ws.get(Buf::kX);
  n.n_rows = p.n_rows();
  n.width = m_.spec().n_embd;
  n.weight = m_.floats(m_.spec().output_norm);
  n.eps = m_.spec().rms_eps;
  n.y = p.ws.get(Buf::kY);
  return launch_norm_rows(n, stream_of(p));
}

Status Forward::send_logits(Pass& p) const {
  LogitRowsParams l;
  l.logits = p.ws.get(Buf::kLogits);
  l.to = p.ws.logits();
  l.n_rows = p.n_head_rows;
  l.n_vocab = m_.spec().n_vocab;
  l.softcap = m_.spec().logit_softcap;
  return launch_logit_rows(l, stream_of(p));
}

Status Forward::rope_tables(Pass& p) const {
  const uint64_t stride = uint64_t{p.ws.layout().max_rows} * p.ws.layout().n_half;
  for (size_t i = 0; i < m_.ropes.size(); ++i) {
    RopeTableParams r;
    r.batch = p.batch;
    r.inv_freq = m_.rope_memory.as<double>() + m_.rope_offset[i];
    r.n_half = m_.ropes[i].spec.n_rot / 2;
    r.mscale = m_.ropes[i].mscale;
    r.cos = p.ws.get(Buf::kCos) + i * stride;
    r.sin = p.ws.get(Buf::kSin) + i * stride;
    if (r.n_half != 0) SHARPI_TRY(launch_rope_table(r, p.config.pdl, p.ws.raw_stream()));
  }
  return Status::ok();
}

Status Forward::launch_links(Pass& p, const Binding& at, const LaunchList& list,
                             const Launch& l) const {
  ChainLink links[kMaxChainLinks];
  for (uint32_t i = 0; i < l.n_links; ++i) links[i] = at.link(list.links[l.first_link + i]);
  ChainTuning tuning;
  tuning.shared_bytes = m_.device->chain_bytes();
  return launch_chain(p.config, links, l.n_links, p.ws.get<std::byte>(Buf::kChainSync),
                      p.ws.raw_stream(), tuning);
}

std::string Forward::chain_path() const {
  const auto text_of = [](const char* rows, const ChainCounts& counts) -> std::string {
    const bool launched = counts.launched.load(std::memory_order_relaxed) != 0,
               apart = counts.apart.load(std::memory_order_relaxed) != 0;
    if (!launched && !apart) return {};
    const std::string text = std::string("; steps of ") + rows + ": ";
    if (!launched) return text + "launch by launch, no room for chains";
    return text + "fixed point, chained" +
           (apart ? ", in part launch by launch for want of room" : "");
  };
  return text_of("one row", chains_of_one_) + text_of("several rows", chains_of_several_);
}

}  // namespace sharpi::cuda
