// SPDX-License-Identifier: MIT
// Scoring of a session's rows on the device: the observed queries of every layer that reads an
// owner's rows, in place; the results go to pinned host memory, where the policies read them.
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "cuda/cuda_model.h"
#include "cuda/kernels/kv_score.h"

namespace sharpi::cuda {
namespace {

struct Widest {
  uint32_t kv_heads = 0, heads = 0, dim = 0;
};

Widest widest(const ModelSpec& spec, const Placement& placement) {
  Widest w;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.mixer != MixerKind::kAttention || layer.attention.window != 0 ||
        placement.mixer[l] != TierId::kCuda) {
      continue;
    }
    w.kv_heads = std::max(w.kv_heads, layer.attention.n_kv_heads);
    w.heads = std::max(w.heads, layer.attention.n_heads);
    w.dim = std::max(w.dim, layer.attention.head_dim);
  }
  return w;
}

/// Sizes of the parts: results (device and host alike), then what only the device has.
struct ScoreSizes {
  uint64_t row = 0, norms = 0, visible = 0, weights = 0, kernel = 0;
  uint64_t results() const { return 2 * row + norms; }
  uint64_t inputs() const { return visible + weights; }
  uint64_t host() const { return results() + inputs(); }
  uint64_t device() const { return host() + kernel; }
};

ScoreSizes score_sizes(const Widest& w, uint32_t n_slots, uint32_t n_queries, bool values) {
  ScoreSizes s;
  if (w.heads == 0) return s;
  s.row = round_up(uint64_t{w.kv_heads} * n_slots * sizeof(float), 256);
  s.norms = values ? s.row : 0;
  s.visible = round_up(uint64_t{w.kv_heads} * n_queries * sizeof(uint32_t), 256);
  s.weights = round_up(uint64_t{n_queries} * sizeof(float), 256);
  s.kernel = score_workspace_bytes(n_slots, n_queries, w.heads, w.kv_heads, w.dim);
  if (values) s.kernel = std::max(s.kernel, value_norm_workspace_bytes(w.heads, w.kv_heads, w.dim));
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

class CudaScoreScratch final : public ScoreScratch {
 public:
  std::vector<MemoryRow> memory_rows() const override {
    return rows_of(device, memory.bytes(), host.bytes());
  }
  uint32_t device = 0;
  ScoreSizes sizes;
  DeviceBuffer memory;
  PinnedBuffer host;
  uint32_t n_slots = 0, n_queries = 0;
  bool values = false;
};

}  // namespace

std::vector<MemoryRow> score_rows(uint32_t device, const ModelSpec& spec,
                                  const Placement& placement, uint32_t n_slots, uint32_t n_queries,
                                  bool values) {
  const ScoreSizes s = score_sizes(widest(spec, placement), n_slots, n_queries, values);
  return rows_of(device, s.device(), s.host());
}

Result<std::unique_ptr<ScoreScratch>> CudaModel::create_score_scratch(uint32_t n_slots,
                                                                      uint32_t n_queries,
                                                                      bool values) const {
  auto out = std::make_unique<CudaScoreScratch>();
  out->device = device_->index();
  out->sizes = score_sizes(widest(spec(), plan_->placement), n_slots, n_queries, values);
  SHARPI_TRY_ASSIGN(out->memory,
                    DeviceBuffer::allocate(*device_, out->sizes.device(), "scoring scratch"));
  SHARPI_TRY_ASSIGN(out->host, PinnedBuffer::allocate(*device_, out->sizes.host(), "scores"));
  out->n_slots = n_slots;
  out->n_queries = n_queries;
  out->values = values;
  return std::unique_ptr<ScoreScratch>(std::move(out));
}

Status CudaModel::score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
                        LayerScores* out) const {
  auto& s = static_cast<CudaScoreScratch&>(scratch);
  const auto& own = static_cast<CudaSession&>(session);
  const AttentionSpec& a = spec().layers[request.layer].attention;
  const uint32_t n_slots = request.ledger->n_slots(request.layer);
  if (n_slots > s.n_slots || request.n_queries > s.n_queries || (request.values && !s.values)) {
    return Status::error(Code::kInternal, "scoring scratch is too small for %u rows and %u queries",
                         n_slots, request.n_queries);
  }
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  const cudaStream_t stream = stream_.get();
  ScoreParams t;
  t.kv = own.view(request.layer);
  t.n_slots = n_slots;
  t.n_queries = request.n_queries;
  t.sum = s.memory.as<float>();
  t.max = reinterpret_cast<float*>(s.memory.data() + s.sizes.row);
  t.workspace = s.memory.data() + s.sizes.host();
  t.workspace_bytes = s.sizes.kernel;
  t.query_rows = own.query_rows(request.source);
  t.first_query = request.source == Capture::kRing ? request.first_position : 0;
  auto* visible = reinterpret_cast<uint32_t*>(s.host.data() + s.sizes.results());
  for (uint32_t h = 0; h < t.kv.n_heads; ++h) {
    for (uint32_t i = 0; i < request.n_queries; ++i) {
      visible[h * request.n_queries + i] =
          request.ledger->rows_up_to(request.layer, h, request.first_position + i);
    }
  }
  auto* weights = reinterpret_cast<float*>(s.host.data() + s.sizes.results() + s.sizes.visible);
  for (uint32_t i = 0; i < request.n_queries; ++i) {
    const auto age = static_cast<float>(request.n_queries - 1 - i);
    weights[i] = request.half_life == 0.0f ? 1.0f : std::exp2(-age / request.half_life);
  }
  std::byte* inputs = s.memory.data() + s.sizes.results();
  t.visible = reinterpret_cast<const uint32_t*>(inputs);
  t.weight = reinterpret_cast<const float*>(inputs + s.sizes.visible);
  SHARPI_TRY(device_->check(
      cudaMemcpyAsync(inputs, visible, s.sizes.inputs(), cudaMemcpyHostToDevice, stream),
      "upload of visible rows"));
  uint32_t n_readers = 0;
  for (uint32_t l = request.layer; l < spec().n_layers(); ++l) {
    const LayerSpec& layer = spec().layers[l];
    const bool reads =
        l == request.layer || (layer.mixer == MixerKind::kAttention &&
                               layer.attention.kv_source == static_cast<int32_t>(request.layer));
    if (!reads) continue;
    t.queries = own.queries(l, request.source);
    if (t.queries == nullptr)
      return Status::error(Code::kInternal, "layer %u has no observed queries", l);
    t.n_heads = layer.attention.n_heads;
    t.scale = layer.attention.scale;
    t.add = n_readers != 0;
    SHARPI_TRY(device_->settle(launch_score(t, stream)));
    ++n_readers;
  }
  const uint64_t norms_at = 2 * s.sizes.row;
  if (request.values) {
    ValueNormParams v;
    v.kv = t.kv;
    v.n_slots = n_slots;
    v.n_heads = a.n_heads;
    v.o = matrix(a.o);
    v.norms = reinterpret_cast<float*>(s.memory.data() + norms_at);
    v.workspace = t.workspace;
    v.workspace_bytes = t.workspace_bytes;
    SHARPI_TRY(device_->settle(launch_value_norms(v, stream)));
  }
  const uint64_t bytes = uint64_t{t.kv.n_heads} * n_slots * sizeof(float);
  const uint64_t parts[] = {0, s.sizes.row, norms_at};
  for (size_t i = 0; i < (request.values ? 3u : 2u); ++i) {
    SHARPI_TRY(device_->check(cudaMemcpyAsync(s.host.data() + parts[i], s.memory.data() + parts[i],
                                              bytes, cudaMemcpyDeviceToHost, stream),
                              "reading scores"));
  }
  SHARPI_TRY(stream_.wait());
  *out = LayerScores{t.kv.n_heads,
                     n_slots,
                     n_readers * (a.n_heads / a.n_kv_heads) * request.n_queries,
                     s.host.as<float>(),
                     reinterpret_cast<float*>(s.host.data() + s.sizes.row),
                     request.values ? reinterpret_cast<float*>(s.host.data() + norms_at) : nullptr};
  return Status::ok();
}

}  // namespace sharpi::cuda
