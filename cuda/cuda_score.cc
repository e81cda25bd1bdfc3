// SPDX-License-Identifier: MIT
#include "cuda/cuda_score.h"

#include <algorithm>

#include "base/checked.h"
#include "cuda/kernels/kv/kv_select.h"

namespace sharpi::cuda {
namespace {

struct Widest {
  uint32_t kv_heads = 0, heads = 0, dim = 0;
};

std::vector<CudaScoreScratch::Layer> own_layers(const ModelSpec& spec, const Placement& placement,
                                                Widest* w) {
  std::vector<CudaScoreScratch::Layer> layers;
  uint32_t n_lists = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.attends_to_all() == nullptr || placement.mixer[l] != TierId::kCuda) continue;
    w->kv_heads = std::max(w->kv_heads, layer.attention.n_kv_heads);
    w->heads = std::max(w->heads, layer.attention.n_heads);
    w->dim = std::max(w->dim, layer.attention.head_dim);
    if (!layer.owns_kv()) continue;
    layers.push_back({l, layer.attention.n_kv_heads, n_lists});
    n_lists += layer.attention.n_kv_heads;
  }
  return layers;
}

ScoreSizes score_sizes(const Widest& w, std::span<const CudaScoreScratch::Layer> layers,
                       const ScoreShape& shape) {
  ScoreSizes s;
  if (layers.empty()) return s;
  s.n_layers = static_cast<uint32_t>(layers.size());
  s.n_lists = layers.back().first_list + layers.back().n_heads;
  s.row = round_up(uint64_t{w.kv_heads} * shape.n_slots * sizeof(float), 256);
  s.norms = shape.values ? s.row : 0;
  s.visible = round_up(uint64_t{w.kv_heads} * shape.n_queries * sizeof(uint32_t), 256);
  s.weights = round_up(uint64_t{shape.n_queries} * sizeof(float), 256);
  s.shared = round_up(uint64_t{shape.n_positions} * sizeof(float), 256);
  s.lists = round_up(uint64_t{s.n_lists} * sizeof(SelectList), 256);
  s.held = round_up(uint64_t{s.n_lists} * shape.n_slots * sizeof(float), 256);
  const uint64_t keys = uint64_t{s.n_lists} * shape.n_slots * sizeof(uint32_t);
  s.kernel = std::max(
      keys, score_workspace_bytes(shape.n_slots, shape.n_queries, w.heads, w.kv_heads, w.dim));
  if (shape.values) {
    s.kernel = std::max(s.kernel, value_norm_workspace_bytes(w.heads, w.kv_heads, w.dim));
  }
  return s;
}

std::vector<MemoryRow> rows_of(uint32_t device, uint64_t device_bytes, uint64_t host_bytes) {
  if (device_bytes == 0) return {};
  std::vector<MemoryRow> rows = {
      make_row(TierId::kCuda, device, SHARPI_ROW_COMPACTION, SHARPI_ROW_DEVICE, "scoring scratch",
               device_bytes, device_held_bytes(device_bytes)),
      make_row(TierId::kCuda, device, SHARPI_ROW_COMPACTION, SHARPI_ROW_PINNED, "scores",
               host_bytes, pinned_held_bytes(host_bytes))};
  for (MemoryRow& r : rows) r.per_session = 1;
  return rows;
}

}  // namespace

std::vector<MemoryRow> CudaScoreScratch::memory_rows() const {
  return rows_of(device, memory.bytes(), host.bytes());
}

void CudaScoreScratch::finish() noexcept {
  const Status waited = stream->wait();  // a fault is kept by the device, and later calls say so
  (void)waited.is_ok();
}

CudaScoreScratch::Layer* CudaScoreScratch::find(uint32_t layer) {
  const auto it =
      std::find_if(layers.begin(), layers.end(), [&](const Layer& l) { return l.layer == layer; });
  return it == layers.end() ? nullptr : &*it;
}

std::vector<MemoryRow> score_rows(uint32_t device, const ModelSpec& spec,
                                  const Placement& placement, const ScoreShape& shape) {
  Widest w;
  const auto layers = own_layers(spec, placement, &w);
  const ScoreSizes s = score_sizes(w, layers, shape);
  return rows_of(device, s.device(), s.host());
}

Result<std::unique_ptr<ScoreScratch>> Scoring::create_scratch(const ScoreShape& shape) const {
  auto out = std::make_unique<CudaScoreScratch>();
  Widest w;
  out->device = m_.device->index();
  out->stream = &m_.stream;
  out->shape = shape;
  out->layers = own_layers(m_.spec(), m_.plan->placement, &w);
  out->sizes = score_sizes(w, out->layers, shape);
  SHARPI_TRY_ASSIGN(out->memory,
                    DeviceBuffer::allocate(*m_.device, out->sizes.device(), "scoring scratch"));
  SHARPI_TRY_ASSIGN(out->host, PinnedBuffer::allocate(*m_.device, out->sizes.host(), "scores"));
  return std::unique_ptr<ScoreScratch>(std::move(out));
}

/// Visible rows and weights of the queries, on their way to the device.
Status Scoring::send_queries(const ScoreRequest& request, CudaScoreScratch& s,
                             const CudaScoreScratch::Layer& layer, ScoreParams* t) const {
  std::byte* host = s.host_inputs(static_cast<size_t>(&layer - s.layers.data()));
  describe_queries(request, layer.n_heads, reinterpret_cast<uint32_t*>(host),
                   reinterpret_cast<float*>(host + s.sizes.visible));
  t->visible = reinterpret_cast<const uint32_t*>(s.inputs());
  t->weight = reinterpret_cast<const float*>(s.inputs() + s.sizes.visible);
  return m_.device->check(
      cudaMemcpyAsync(s.inputs(), host, s.sizes.inputs(), cudaMemcpyHostToDevice, m_.stream.get()),
      "upload of visible rows");
}

Status Scoring::start(CudaSession& own, const ScoreRequest& request, CudaScoreScratch& s,
                      const ScoreOut& out) const {
  CudaScoreScratch::Layer* layer = s.find(request.layer);
  const uint32_t n_slots = request.ledger->n_slots(request.layer);
  if (layer == nullptr || n_slots > s.shape.n_slots || request.n_queries > s.shape.n_queries ||
      (request.values && !s.shape.values)) {
    return Status::error(Code::kInternal,
                         "the scratch of scoring is too small for %u rows and %u queries", n_slots,
                         request.n_queries);
  }
  SHARPI_TRY(m_.device->usable());
  const cudaStream_t stream = m_.stream.get();
  ScoreParams t;
  t.kv = own.view(request.layer);
  t.n_slots = n_slots;
  t.n_queries = request.n_queries;
  t.sum = out.sum;
  t.max = out.max;
  t.workspace = s.kernel();
  t.workspace_bytes = s.sizes.kernel;
  t.query_rows = own.query_rows(request.source);
  t.first_query = request.source == Capture::kRing ? request.first_position : 0;
  SHARPI_TRY(send_queries(request, s, *layer, &t));
  uint32_t n_readers = 0;
  for (uint32_t l = request.layer; l < m_.spec().n_layers(); ++l) {
    const LayerSpec& reader = m_.spec().layers[l];
    const bool reads =
        l == request.layer || reader.kv_source() == static_cast<int32_t>(request.layer);
    if (!reads) continue;
    t.queries = own.queries(l, request.source);
    if (t.queries == nullptr)
      return Status::error(Code::kInternal, "layer %u has no observed queries", l);
    t.n_heads = reader.attention.n_heads;
    t.scale = reader.attention.scale;
    t.add = n_readers != 0;
    SHARPI_TRY(m_.device->settle(launch_score(m_.device->profile(), t, stream)));
    ++n_readers;
  }
  const AttentionSpec& a = m_.spec().layers[request.layer].attention;
  layer->n_observed = n_readers * (a.n_heads / a.n_kv_heads) * request.n_queries;
  if (!request.values) return Status::ok();
  ValueNormParams v;
  v.kv = t.kv;
  v.n_slots = n_slots;
  v.n_heads = a.n_heads;
  v.o = m_.matrix(a.o);
  v.norms = out.norms;
  v.workspace = t.workspace;
  v.workspace_bytes = t.workspace_bytes;
  return m_.device->settle(launch_value_norms(m_.device->profile(), v, stream));
}

Status Scoring::score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
                      LayerScores* out) const {
  auto& s = static_cast<CudaScoreScratch&>(scratch);
  const DeviceScope scope(*m_.device);
  SHARPI_TRY(start(static_cast<CudaSession&>(session), request, s, s.result_rows()));
  const CudaScoreScratch::Layer& layer = *s.find(request.layer);
  const uint32_t n_slots = request.ledger->n_slots(request.layer);
  const uint64_t bytes = uint64_t{layer.n_heads} * n_slots * sizeof(float);
  for (uint64_t i = 0; i < (request.values ? 3u : 2u); ++i) {
    const uint64_t at = i * s.sizes.row;
    SHARPI_TRY(m_.device->check(cudaMemcpyAsync(s.host.data() + at, s.results() + at, bytes,
                                                cudaMemcpyDeviceToHost, m_.stream.get()),
                                "reading scores"));
  }
  SHARPI_TRY(m_.stream.wait());
  const auto row = [&](uint64_t i) {
    return reinterpret_cast<const float*>(s.host.data() + i * s.sizes.row);
  };
  *out = LayerScores{layer.n_heads, n_slots, layer.n_observed,
                     row(0),        row(1),  request.values ? row(2) : nullptr};
  return Status::ok();
}

}  // namespace sharpi::cuda
