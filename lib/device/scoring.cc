// SPDX-License-Identifier: MIT
#include "device/scoring.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "device/kernels.h"
#include "device/recall.h"

namespace sharpi::device {
namespace {

struct Widest {
  uint32_t kv_heads = 0, heads = 0, dim = 0;
};

std::vector<DeviceScoreScratch::Layer> own_layers(const ModelSpec& spec, const Placement& placement,
                                                  Widest* w) {
  std::vector<DeviceScoreScratch::Layer> layers;
  uint32_t n_lists = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.attends_to_all() == nullptr || placement.mixer[l] != DeviceIndex::kHere) continue;
    w->kv_heads = std::max(w->kv_heads, layer.attention.n_kv_heads);
    w->heads = std::max(w->heads, layer.attention.n_heads);
    w->dim = std::max(w->dim, layer.attention.head_dim);
    if (!layer.owns_kv()) continue;
    layers.push_back({l, layer.attention.n_kv_heads, n_lists});
    n_lists += layer.attention.n_kv_heads;
  }
  return layers;
}

ScoreSizes score_sizes(const DeviceKernels& kernels, const Widest& w,
                       std::span<const DeviceScoreScratch::Layer> layers, const ScoreShape& shape) {
  ScoreSizes s;
  if (layers.empty()) return s;
  s.n_layers = static_cast<uint32_t>(layers.size());
  s.n_lists = layers.back().first_list + layers.back().n_heads;
  s.row = round_up(uint64_t{w.kv_heads} * shape.n_slots * sizeof(float), 256);
  s.norms = shape.values ? s.row : 0;
  s.visible = round_up(uint64_t{w.kv_heads} * shape.n_queries * sizeof(uint32_t), 256);
  s.weights = round_up(uint64_t{shape.n_queries} * sizeof(float), 256);
  s.shared = round_up(uint64_t{shape.n_positions} * sizeof(float), 256);
  const uint64_t lists_of_head = shape.key_bytes == 0 ? 1 : 2;
  s.lists = round_up(lists_of_head * s.n_lists * sizeof(SelectList), 256);
  s.held = round_up(uint64_t{s.n_lists} * shape.n_slots * sizeof(float), 256);
  const uint64_t keys = uint64_t{s.n_lists} * shape.n_slots * sizeof(uint32_t);
  s.kernel = std::max(
      keys, kernels.score_bytes(shape.n_slots, shape.n_queries, w.heads, w.kv_heads, w.dim));
  if (shape.values) {
    s.kernel = std::max(s.kernel, kernels.norm_bytes(w.heads, w.kv_heads, w.dim));
  }
  s.replay_of_all = kernels.keeps_by_head();
  if (shape.replay) s.replay = s.replay_of_all ? s.held : s.row;
  const RecallBytes recall = recall_bytes(shape, w.kv_heads, s.n_lists);
  s.recall = recall.device;
  s.desk = recall.desk;
  s.found = recall.found;
  return s;
}

std::vector<MemoryRow> rows_of(const Device& device, uint64_t device_bytes, uint64_t host_bytes) {
  if (device_bytes == 0) return {};
  std::vector<MemoryRow> rows = {
      device.row(SHARPI_ROW_COMPACTION, SHARPI_ROW_DEVICE, "scoring scratch", device_bytes,
                 device.held_bytes(device_bytes)),
      device.row(SHARPI_ROW_COMPACTION, SHARPI_ROW_PINNED, "scores", host_bytes,
                 device.pinned_held_bytes(host_bytes))};
  for (MemoryRow& r : rows) r.per_session = 1;
  return rows;
}

}  // namespace

std::vector<MemoryRow> DeviceScoreScratch::memory_rows() const {
  return rows_of(*device, memory.bytes(), host.bytes());
}

void DeviceScoreScratch::finish() noexcept {
  const Status waited = stream->wait();  // a fault is kept by the device, and later calls say so
  (void)waited.is_ok();
}

DeviceScoreScratch::Layer* DeviceScoreScratch::find(uint32_t layer) {
  const auto it =
      std::find_if(layers.begin(), layers.end(), [&](const Layer& l) { return l.layer == layer; });
  return it == layers.end() ? nullptr : &*it;
}

std::vector<MemoryRow> score_rows(const Device& device, const ModelSpec& spec,
                                  const Placement& placement, const ScoreShape& shape) {
  Widest w;
  const auto layers = own_layers(spec, placement, &w);
  const ScoreSizes s = score_sizes(device.kernels(), w, layers, shape);
  return rows_of(device, s.device(), s.host());
}

Result<std::unique_ptr<ScoreScratch>> Scoring::create_scratch(const ScoreShape& shape) const {
  auto out = std::make_unique<DeviceScoreScratch>();
  Widest w;
  out->device = m_.device.get();
  out->stream = m_.stream.get();
  out->shape = shape;
  out->layers = own_layers(m_.spec(), m_.plan->placement, &w);
  out->sizes = score_sizes(m_.device->kernels(), w, out->layers, shape);
  SHARPI_TRY_ASSIGN(out->memory,
                    DeviceBuffer::allocate(*m_.device, out->sizes.device(), "scoring scratch"));
  SHARPI_TRY_ASSIGN(out->host, PinnedBuffer::allocate(*m_.device, out->sizes.host(), "scores"));
  for (std::unique_ptr<Event>& e : out->sent) {
    if (out->sizes.desk == 0) break;
    SHARPI_TRY_ASSIGN(e, m_.device->create_event());
  }
  return std::unique_ptr<ScoreScratch>(std::move(out));
}

Status Scoring::send_queries(const DeviceSession& own, const ScoreRequest& request,
                             DeviceScoreScratch& s, const DeviceScoreScratch::Layer& layer,
                             const uint32_t* n_seen, ScoreParams* t) const {
  std::byte* host = s.host_inputs(static_cast<size_t>(&layer - s.layers.data()));
  auto* visible = reinterpret_cast<uint32_t*>(host);
  describe_queries(request, layer.n_heads, visible,
                   reinterpret_cast<float*>(host + s.sizes.visible));
  for (uint32_t i = 0; n_seen != nullptr && i < layer.n_heads * request.n_queries; ++i)
    visible[i] += n_seen[i / request.n_queries];
  t->n_queries = request.n_queries;
  t->query_rows = own.query_rows(request.source);
  t->first_query = is_by_position(request.source) ? request.first_position : 0;
  t->visible = reinterpret_cast<const uint32_t*>(s.inputs());
  t->weight = reinterpret_cast<const float*>(s.inputs() + s.sizes.visible);
  t->workspace = s.kernel();
  t->workspace_bytes = s.sizes.kernel;
  return m_.stream->copy(s.inputs(), host, s.sizes.inputs(), Way::kToDevice,
                         "upload of visible rows");
}

Status Scoring::take_reader(const DeviceSession& own, const ScoreRequest& request, uint32_t reader,
                            ScoreParams* t) const {
  const AttentionSpec& a = m_.spec().layers[reader].attention;
  t->queries = own.queries(reader, request.source);
  if (t->queries == nullptr)
    return Status::error(Code::kInternal, "layer %u has no observed queries", reader);
  t->n_heads = a.n_heads;
  t->scale = a.scale;
  t->sinks = m_.floats(a.sinks);
  return Status::ok();
}

/// What `t` says of a layer, head by head where rows are in blocks of one head. Pre: the device has
/// their tables.
Status Scoring::score_heads(DeviceSession& own, const ScoreRequest& request, ScoreParams t) const {
  const DeviceKernels& kernels = m_.device->kernels();
  if (!own.is_layer_by_head(request.layer)) {
    t.kv = own.view(request.layer);
    return kernels.score(t, *m_.stream);
  }
  const uint32_t n_kv = own.layout().find(request.layer)->n_heads, group = t.n_heads / n_kv;
  const uint64_t stride = t.n_slots;
  ScoreParams one = t;
  one.n_heads = group;
  for (uint32_t h = 0; h < n_kv; ++h) {
    one.kv = own.kernel_view(request.layer, h);
    one.n_slots = request.ledger->n_slots(request.layer, h);
    one.query_stride = uint64_t{t.n_heads} * one.kv.head_dim;
    one.queries = t.queries + uint64_t{h} * group * one.kv.head_dim;
    if (t.sinks != nullptr) one.sinks = t.sinks + uint64_t{h} * group;
    one.visible = t.visible + uint64_t{h} * t.n_queries;
    one.sum = t.sum + h * stride;
    one.max = t.max + h * stride;
    SHARPI_TRY(kernels.score(one, *m_.stream));
  }
  return Status::ok();
}

/// The same of value norms.
Status Scoring::norms_of(DeviceSession& own, const ScoreRequest& request, NormParams v) const {
  const DeviceKernels& kernels = m_.device->kernels();
  if (!own.is_layer_by_head(request.layer)) {
    v.kv = own.view(request.layer);
    return kernels.value_norms(v, *m_.stream);
  }
  NormParams one = v;
  one.n_kv = own.layout().find(request.layer)->n_heads;
  for (uint32_t h = 0; h < one.n_kv; ++h) {
    one.kv = own.kernel_view(request.layer, h);
    one.n_slots = request.ledger->n_slots(request.layer, h);
    one.first_kv = h;
    one.norms = v.norms + uint64_t{h} * v.n_slots;
    SHARPI_TRY(kernels.value_norms(one, *m_.stream));
  }
  return Status::ok();
}

Status Scoring::start(DeviceSession& own, const ScoreRequest& request, DeviceScoreScratch& s,
                      const ScoreOut& out) const {
  DeviceScoreScratch::Layer* layer = s.find(request.layer);
  const uint32_t n_slots = request.ledger->n_slots(request.layer);
  if (layer == nullptr || n_slots > s.shape.n_slots || request.n_queries > s.shape.n_queries ||
      (request.values && !s.shape.values)) {
    return Status::error(Code::kInternal,
                         "the scratch of scoring is too small for %u rows and %u queries", n_slots,
                         request.n_queries);
  }
  SHARPI_TRY(m_.device->usable());
  SHARPI_TRY(own.send_tables());
  ScoreParams t;
  t.n_slots = n_slots;
  t.sum = out.sum;
  t.max = out.max;
  SHARPI_TRY(send_queries(own, request, s, *layer, nullptr, &t));
  uint32_t n_readers = 0;
  for (uint32_t l = request.layer; l < m_.spec().n_layers(); ++l) {
    if (!reads(l, request.layer)) continue;
    SHARPI_TRY(take_reader(own, request, l, &t));
    t.add = n_readers != 0;
    SHARPI_TRY(score_heads(own, request, t));
    ++n_readers;
  }
  const AttentionSpec& a = m_.spec().layers[request.layer].attention;
  layer->n_observed = n_readers * (a.n_heads / a.n_kv_heads) * request.n_queries;
  if (!request.values) return Status::ok();
  NormParams v;
  v.n_slots = n_slots;
  v.n_heads = a.n_heads;
  v.o = &a.o;
  v.n_outputs = std::min(static_cast<uint32_t>(a.o.n_out), kNormOutputs);
  v.o_data = m_.weight(a.o);
  if (a.latent) {
    v.map = &a.latent.v_b;
    v.map_data = m_.weight(a.latent.v_b);
    v.map_first = a.rope.n_rot;
  }
  v.norms = out.norms;
  v.workspace = t.workspace;
  v.workspace_bytes = t.workspace_bytes;
  return norms_of(own, request, v);
}

/// Sums, maxima and norms of a layer, to host memory. Without queries there are none.
Status Scoring::read_sums(DeviceSession& own, const ScoreRequest& request,
                          DeviceScoreScratch& s) const {
  const DeviceScoreScratch::Layer* layer = s.find(request.layer);
  if (request.n_queries == 0) {
    if (layer != nullptr) std::memset(s.host.data(), 0, s.sizes.results());
    return Status::ok();
  }
  // Behind the rows of a head that has fewer than another there is nothing.
  if (own.is_layer_by_head(request.layer))
    SHARPI_TRY(m_.stream->clear(s.results(), s.sizes.results(), "clearing scores"));
  SHARPI_TRY(start(own, request, s, s.result_rows()));
  const uint64_t bytes =
      uint64_t{layer->n_heads} * request.ledger->n_slots(request.layer) * sizeof(float);
  for (uint64_t i = 0; i < (request.values ? 3u : 2u); ++i) {
    const uint64_t at = i * s.sizes.row;
    SHARPI_TRY(m_.stream->copy(s.host.data() + at, s.results() + at, bytes, Way::kToHost,
                               "reading scores"));
  }
  return Status::ok();
}

Status Scoring::read_replay(const DeviceSession& own, const ScoreRequest& request,
                            const DeviceScoreScratch& s, const DeviceScoreScratch::Layer& layer,
                            LayerScores* out) const {
  uint64_t stride = 0;
  const float* from = own.replay_scores(request.layer, &stride);
  if (from == nullptr || s.sizes.replay == 0)
    return Status::error(Code::kInternal, "layer %u has no replay scores", request.layer);
  out->replay = s.host_replay(layer);
  out->replay_stride = out->n_slots;
  const uint64_t row = uint64_t{out->n_slots} * sizeof(float);
  return m_.stream->copy_rows({s.host_replay(layer), row}, {from, stride * sizeof(float)}, row,
                              layer.n_heads, Way::kToHost, "reading replay scores");
}

Status Scoring::score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
                      LayerScores* out) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  auto& own = static_cast<DeviceSession&>(session);
  const DeviceScoreScratch::Layer* layer = s.find(request.layer);
  const uint32_t n_slots = request.ledger->n_slots(request.layer);
  if (layer == nullptr || n_slots > s.shape.n_slots)
    return Status::error(Code::kInternal, "the scratch of scoring is too small for %u rows",
                         n_slots);
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  SHARPI_TRY(read_sums(own, request, s));
  const auto row = [&](uint64_t i) {
    return reinterpret_cast<const float*>(s.host.data() + i * s.sizes.row);
  };
  *out = LayerScores{layer->n_heads, n_slots, request.n_queries == 0 ? 0 : layer->n_observed,
                     row(0),         row(1),  request.values ? row(2) : nullptr};
  if (request.replay) SHARPI_TRY(read_replay(own, request, s, *layer, out));
  return m_.stream->wait();
}

}  // namespace sharpi::device
