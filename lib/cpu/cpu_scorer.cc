// SPDX-License-Identifier: MIT
#include "cpu/cpu_scorer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "cpu/cpu_session.h"
#include "cpu/pass.h"
#include "cpu/score.h"
#include "cpu/value_norms.h"
#include "kv/row_archive.h"

namespace sharpi::cpu {
namespace {

/// The plan row of a scratch of that size.
std::vector<MemoryRow> score_rows_of(uint64_t bytes) {
  if (bytes == 0) return {};
  MemoryRow row = make_row(TierId::kCpu, 0, SHARPI_ROW_COMPACTION, SHARPI_ROW_ANONYMOUS,
                           "scoring scratch", bytes, bytes);
  row.per_session = 1;
  return {row};
}

}  // namespace

/// One block: results, gathered queries, visible counts, kernel scratch.
class CpuScoreScratch final : public ScoreScratch {
 public:
  std::vector<MemoryRow> memory_rows() const override { return score_rows_of(memory.bytes()); }
  HostBuffer memory;
  uint32_t n_slots = 0, n_queries = 0, n_kv = 0;
  bool values = false;
  float *sum = nullptr, *max = nullptr, *norms = nullptr, *queries = nullptr, *weights = nullptr;
  uint32_t* visible = nullptr;
  std::byte* kernel = nullptr;
  uint64_t kernel_bytes = 0;
  std::byte* keys = nullptr;  // of one head in a recall
};

namespace {

struct Widest {
  uint32_t kv_heads = 0, heads = 0, dim = 0;
  uint64_t q = 0;
};

Widest widest(const ModelSpec& spec, const Placement& placement) {
  Widest w;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.attends_to_all() == nullptr || placement.mixer[l] != DeviceIndex::kHost) continue;
    const AttentionSpec& a = layer.attention;
    w.kv_heads = std::max(w.kv_heads, a.n_kv_heads);
    w.heads = std::max(w.heads, a.n_heads);
    w.dim = std::max({w.dim, a.head_dim, a.latent.value_dim});
    w.q = std::max(w.q, uint64_t{a.n_heads} * a.head_dim);
  }
  return w;
}

/// Sizes of the parts, in the order they lie in memory.
struct ScoreSizes {
  uint64_t row, norms, queries, weights, visible, keys, kernel, total;
};

ScoreSizes score_sizes(const Widest& w, uint32_t n_threads, const ScoreShape& shape) {
  const uint32_t n_slots = shape.n_slots, n_queries = shape.n_queries;
  const bool values = shape.values, replay = shape.replay;
  ScoreSizes s{};
  s.row = round_up(uint64_t{w.kv_heads} * n_slots * sizeof(float), 64);
  s.norms = values ? s.row : 0;
  s.queries = round_up(w.q * n_queries * sizeof(float), 64);
  s.weights = round_up(n_queries * sizeof(float), 64);
  s.visible = round_up(uint64_t{w.kv_heads} * n_queries * sizeof(uint32_t), 64);
  s.keys = round_up(round_up(n_slots, kKvBlockSlots) * uint64_t{shape.key_bytes}, 64);
  s.kernel = score_scratch_bytes(n_threads, n_queries, w.heads, w.dim, n_slots);
  if (values) s.kernel = std::max(s.kernel, value_norm_scratch_bytes(n_threads, w.heads, w.dim));
  // Of replay scores, which are asked for after a pass that the ring holds.
  if (replay)
    s.kernel = std::max(s.kernel, replay_scratch_bytes(n_threads, n_queries, w.kv_heads, w.dim));
  s.total = 2 * s.row + s.norms + s.queries + s.weights + s.visible + s.keys + s.kernel;
  return s;
}

/// What a scoring of one layer starts from: empty sums, the rows that each query sees, the weights
/// of the queries.
void prepare(const ScoreRequest& request, uint32_t n_heads, uint32_t n_slots, CpuScoreScratch* s) {
  std::memset(s->sum, 0, uint64_t{n_heads} * n_slots * sizeof(float));
  std::memset(s->max, 0, uint64_t{n_heads} * n_slots * sizeof(float));
  describe_queries(request, n_heads, s->visible, s->weights);
}

/// A piece of work on the rows of a layer: on those of all heads, where they are stored together,
/// otherwise on each head's. Calls body(view, first head, rows of each).
template <class Body>
Status each_view(const CpuSession& session, const KvLedger& ledger, uint32_t layer, Body&& body) {
  if (!session.is_layer_by_head(layer)) return body(session.view(layer), 0u, ledger.n_slots(layer));
  for (uint32_t h = 0; h < session.layout().find(layer)->n_heads; ++h)
    SHARPI_TRY(body(session.head_view(layer, h), h, ledger.n_slots(layer, h)));
  return Status::ok();
}

bool reads_rows_of(const ModelSpec& spec, uint32_t layer, uint32_t owner) {
  return layer == owner || spec.layers[layer].kv_source() == static_cast<int32_t>(owner);
}

/// Queries of a layer from a position on, one behind the other: [n][dim].
Status gather_queries(const CpuSession& session, uint32_t layer, Capture source, uint64_t first,
                      uint32_t n, uint64_t dim, float* to) {
  const float* q = session.queries(layer, source);
  if (q == nullptr)
    return Status::error(Code::kInternal, "layer %u has no observed queries", layer);
  const uint32_t ring = session.query_rows(source);
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t slot = is_by_position(source) ? (first + i) % ring : i;
    std::memcpy(to + i * dim, q + slot * dim, dim * sizeof(float));
  }
  return Status::ok();
}

}  // namespace

std::vector<MemoryRow> CpuScorer::plan_rows(const ModelSpec& spec, const Placement& placement,
                                            uint32_t n_threads, const ScoreShape& shape) {
  const Widest w = widest(spec, placement);
  return score_rows_of(w.heads == 0 ? 0 : score_sizes(w, n_threads, shape).total);
}

Result<std::unique_ptr<ScoreScratch>> CpuScorer::create_scratch(const ScoreShape& shape) const {
  auto out = std::make_unique<CpuScoreScratch>();
  const Widest w = widest(*plan_.spec, plan_.placement);
  const ScoreSizes s = score_sizes(w, pool_.size(), shape);
  SHARPI_TRY_ASSIGN(out->memory,
                    HostBuffer::allocate(meter_, w.heads == 0 ? 0 : s.total, "scoring scratch"));
  out->n_slots = shape.n_slots;
  out->n_queries = shape.n_queries;
  out->values = shape.values;
  if (w.heads == 0) return std::unique_ptr<ScoreScratch>(std::move(out));  // nothing to score here
  std::byte* at = out->memory.data();
  const auto take = [&](uint64_t bytes) {
    std::byte* p = at;
    at += bytes;
    return p;
  };
  out->sum = reinterpret_cast<float*>(take(s.row));
  out->max = reinterpret_cast<float*>(take(s.row));
  out->norms = shape.values ? reinterpret_cast<float*>(take(s.norms)) : nullptr;
  out->queries = reinterpret_cast<float*>(take(s.queries));
  out->weights = reinterpret_cast<float*>(take(s.weights));
  out->visible = reinterpret_cast<uint32_t*>(take(s.visible));
  out->keys = take(s.keys);
  out->kernel = at;
  out->kernel_bytes = s.kernel;
  return std::unique_ptr<ScoreScratch>(std::move(out));
}

/// Adds what the gathered queries of one layer give the rows of the request's.
Status CpuScorer::score_by(const CpuSession& session, const ScoreRequest& request,
                           const AttentionSpec& reader, CpuScoreScratch& s) const {
  const uint32_t stride = request.ledger->n_slots(request.layer);
  return each_view(session, *request.ledger, request.layer,
                   [&](const KvView& kv, uint32_t head, uint32_t n) {
                     const uint32_t group = reader.n_heads / reader.n_kv_heads;
                     ScoreTask t;
                     t.kv = kv;
                     t.n_slots = n;
                     t.q = s.queries + uint64_t{head} * group * reader.head_dim;
                     t.q_stride = uint64_t{reader.n_heads} * reader.head_dim;
                     t.n_queries = request.n_queries;
                     t.n_heads = group * kv.n_heads;
                     t.scale = reader.scale;
                     if (reader.sinks) t.sinks = f32_weights(reader.sinks) + uint64_t{head} * group;
                     t.visible = s.visible + uint64_t{head} * request.n_queries;
                     t.sum = s.sum + uint64_t{head} * stride;
                     t.max = s.max + uint64_t{head} * stride;
                     t.weight = s.weights;
                     return score_rows(pool_, kernels_, t, s.kernel, s.kernel_bytes);
                   });
}

Status CpuScorer::norms_of(const CpuSession& session, const ScoreRequest& request,
                           CpuScoreScratch& s) const {
  const ModelSpec& spec = *plan_.spec;
  const AttentionSpec& a = spec.layers[request.layer].attention;
  const uint32_t stride = request.ledger->n_slots(request.layer);
  return each_view(session, *request.ledger, request.layer,
                   [&](const KvView& kv, uint32_t head, uint32_t n) {
                     ValueNormTask t;
                     t.kv = kv;
                     t.n_slots = n;
                     t.n_heads = a.n_heads;
                     t.group = a.n_heads / a.n_kv_heads;
                     t.first_kv = head;
                     t.o_type = a.o.tensor->type;
                     t.o_data = a.o.tensor->data;
                     t.o_row_bytes = a.o.row_bytes();
                     t.n_outputs = std::min<uint64_t>(spec.n_embd, kNormOutputs);
                     if (a.latent) {
                       const TensorRef& v = a.latent.v_b;
                       t.map = {v.tensor->type, v.tensor->data, v.n_in, v.n_out, a.rope.n_rot};
                     }
                     t.norms = s.norms + uint64_t{head} * stride;
                     return value_norms(pool_, kernels_, t, s.kernel, s.kernel_bytes);
                   });
}

Status CpuScorer::score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
                        LayerScores* out) const {
  auto& s = static_cast<CpuScoreScratch&>(scratch);
  const auto& own = static_cast<CpuSession&>(session);
  const ModelSpec& spec = *plan_.spec;
  const AttentionSpec& a = spec.layers[request.layer].attention;
  const uint32_t n_slots = request.ledger->n_slots(request.layer);
  if (n_slots > s.n_slots || request.n_queries > s.n_queries || (request.values && !s.values)) {
    return Status::error(Code::kInternal,
                         "the scratch of scoring is too small for %u rows and %u queries", n_slots,
                         request.n_queries);
  }
  prepare(request, a.n_kv_heads, n_slots, &s);
  uint32_t n_readers = 0;
  for (uint32_t l = request.layer; request.n_queries != 0 && l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (!reads_rows_of(spec, l, request.layer)) continue;
    SHARPI_TRY(gather_queries(own, l, request.source, request.first_position, request.n_queries,
                              uint64_t{layer.attention.n_heads} * layer.attention.head_dim,
                              s.queries));
    SHARPI_TRY(score_by(own, request, layer.attention, s));
    ++n_readers;
  }
  if (request.values) SHARPI_TRY(norms_of(own, request, s));
  *out =
      LayerScores{a.n_kv_heads, n_slots, n_readers * (a.n_heads / a.n_kv_heads) * request.n_queries,
                  s.sum,        s.max,   request.values ? s.norms : nullptr};
  if (!request.replay) return Status::ok();
  out->replay = own.replay_scores(request.layer, &out->replay_stride);
  if (out->replay != nullptr) return Status::ok();
  return Status::error(Code::kInternal, "layer %u has no replay scores", request.layer);
}

namespace {

/// out[block] = max(that, the largest product that any key within a block's bounds can have with a
/// query of one head), with the logarithm of what the query's terms count.
void raise_bounds(std::span<const uint16_t> bounds, const float* q, uint32_t dim, float scale,
                  float weight, float* out) {
  for (const uint16_t* low = bounds.data(); low < bounds.data() + bounds.size(); low += 2 * dim) {
    const uint16_t* high = low + dim;
    float most = 0;
    for (uint32_t e = 0; e < dim; ++e)
      most += std::max(q[e] * f32_from_bf16(low[e]), q[e] * f32_from_bf16(high[e]));
    *out = std::max(*out, most * scale + std::log(weight));
    ++out;
  }
}

/// A head's own keys, one behind the other.
void gather_keys(const CpuSession& session, uint32_t layer, uint32_t head, uint32_t n,
                 std::byte* to) {
  const bool by_head = session.is_layer_by_head(layer);
  const KvView v = by_head ? session.head_view(layer, head) : session.view(layer);
  const KvHeadParts parts(v, false, by_head ? 0 : head);
  for (uint32_t slot = 0; slot < n; ++slot) {
    for (const KvPart& part : parts) {
      std::memcpy(to, v.k_row(slot) + part.offset, part.bytes);
      to += part.bytes;
    }
  }
}

}  // namespace

Status CpuScorer::score_bounds(TierSession& session, const ScoreRequest& request,
                               const RowArchive& archive, ScoreScratch& scratch, float* out,
                               uint32_t stride) const {
  auto& s = static_cast<CpuScoreScratch&>(scratch);
  const auto& own = static_cast<CpuSession&>(session);
  const ModelSpec& spec = *plan_.spec;
  const uint32_t n_heads = archive.n_heads(request.layer);
  if (request.n_queries > s.n_queries)
    return Status::error(Code::kInternal, "the scratch of scoring is too small for %u queries",
                         request.n_queries);
  describe_queries(request, n_heads, s.visible, s.weights);
  std::fill_n(out, uint64_t{n_heads} * stride, -std::numeric_limits<float>::infinity());
  for (uint32_t l = request.layer; l < spec.n_layers(); ++l) {
    if (!reads_rows_of(spec, l, request.layer)) continue;
    const AttentionSpec& a = spec.layers[l].attention;
    const uint64_t dim = a.head_dim, row = a.n_heads * dim;
    const uint32_t group = a.n_heads / a.n_kv_heads;
    SHARPI_TRY(gather_queries(own, l, request.source, request.first_position, request.n_queries,
                              row, s.queries));
    for (uint32_t h = 0; h < n_heads; ++h) {
      const uint64_t blocks = div_up(archive.positions(request.layer, h).size(), kArchiveBlock);
      const std::span<const uint16_t> bounds{archive.bounds(request.layer, h, 0).data(),
                                             blocks * 2 * dim};
      for (uint32_t i = 0; i < request.n_queries * group; ++i)
        raise_bounds(bounds, s.queries + i / group * row + (h * group + i % group) * dim,
                     a.head_dim, a.scale, s.weights[i / group], out + uint64_t{h} * stride);
    }
  }
  return Status::ok();
}

Status CpuScorer::score_head_beside(const CpuSession& session, const ScoreRequest& request,
                                    const ArchivedRows& archived, uint32_t head, CpuScoreScratch& s,
                                    float* out) const {
  const ModelSpec& spec = *plan_.spec;
  const KvLayerLayout& own = *session.layout().find(request.layer);
  const uint32_t n_archived = archived.n[head],
                 n_own = request.ledger->n_slots(request.layer, head), n = n_archived + n_own;
  const uint64_t k_bytes = own.k_row_bytes / own.n_heads;
  const uint32_t* rows = archived.rows + uint64_t{head} * archived.stride;
  for (uint32_t i = 0; i < n_archived; ++i)
    std::memcpy(s.keys + i * k_bytes, archived.archive->row(request.layer, head, false, rows[i]),
                k_bytes);
  gather_keys(session, request.layer, head, n_own, s.keys + n_archived * k_bytes);
  ScoreTask t;
  t.kv.k = t.kv.v = s.keys;
  t.kv.block_stride = kKvBlockSlots * k_bytes;
  t.kv.k_row_bytes = t.kv.v_row_bytes = static_cast<uint32_t>(k_bytes);
  t.kv.k_dtype = t.kv.v_dtype = own.k_dtype;
  t.kv.n_heads = 1;
  t.kv.head_dim = own.head_dim;
  t.n_slots = n;
  t.n_queries = request.n_queries;
  t.visible = s.visible + uint64_t{head} * request.n_queries;
  t.sum = s.sum;
  t.max = out;
  t.weight = s.weights;
  std::fill_n(s.sum, n, 0.0f);
  std::fill_n(out, n, 0.0f);
  for (uint32_t l = request.layer; l < spec.n_layers(); ++l) {
    if (!reads_rows_of(spec, l, request.layer)) continue;
    const AttentionSpec& a = spec.layers[l].attention;
    const uint32_t group = a.n_heads / a.n_kv_heads;
    t.q_stride = uint64_t{a.n_heads} * a.head_dim;
    SHARPI_TRY(gather_queries(session, l, request.source, request.first_position, request.n_queries,
                              t.q_stride, s.queries));
    t.q = s.queries + uint64_t{head} * group * a.head_dim;
    t.n_heads = group;
    t.scale = a.scale;
    t.sinks = a.sinks ? f32_weights(a.sinks) + uint64_t{head} * group : nullptr;
    SHARPI_TRY(score_rows(pool_, kernels_, t, s.kernel, s.kernel_bytes));
  }
  return Status::ok();
}

Status CpuScorer::score_beside(TierSession& session, const ScoreRequest& request,
                               const ArchivedRows& archived, ScoreScratch& scratch, float* out,
                               uint32_t stride) const {
  auto& s = static_cast<CpuScoreScratch&>(scratch);
  const auto& own = static_cast<CpuSession&>(session);
  const uint32_t n_heads = archived.archive->n_heads(request.layer);
  for (uint32_t h = 0; h < n_heads; ++h) {
    const uint32_t n = archived.n[h] + request.ledger->n_slots(request.layer, h);
    if (n <= s.n_slots && n <= stride && request.n_queries <= s.n_queries) continue;
    return Status::error(Code::kInternal,
                         "the scratch of scoring is too small for %u keys and %u queries", n,
                         request.n_queries);
  }
  describe_queries(request, n_heads, s.visible, s.weights);
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t i = 0; i < request.n_queries; ++i)
      s.visible[uint64_t{h} * request.n_queries + i] += archived.n[h];
    SHARPI_TRY(score_head_beside(own, request, archived, h, s, out + uint64_t{h} * stride));
  }
  return Status::ok();
}

Status CpuScorer::score_waiting(TierSession& session, const KvLedger& ledger, uint32_t layer,
                                ScoreScratch& scratch) const {
  auto& s = static_cast<CpuScoreScratch&>(scratch);
  const auto& own = static_cast<CpuSession&>(session);
  const ModelSpec& spec = *plan_.spec;
  const uint32_t n = ledger.n_tokens() - ledger.scored_tokens();
  if (n > s.n_queries || n > ledger.n_tokens() - ledger.capture_low()) {
    return Status::error(Code::kInternal,
                         "%u rows wait for replay scores, but their queries are gone", n);
  }
  for (uint32_t l = layer; l < spec.n_layers(); ++l) {
    if (!reads_rows_of(spec, l, layer)) continue;
    const AttentionSpec& a = spec.layers[l].attention;
    ReplayTask t = own.replay_task(layer, ledger, a, turns_, l);
    t.first_position = ledger.next_position() - n;
    t.first_slot = ledger.n_slots(layer) - n;
    t.n_rows = n;
    t.q = s.queries;
    t.q_stride = uint64_t{a.n_heads} * a.head_dim;
    SHARPI_TRY(gather_queries(own, l, Capture::kRing, t.first_position, n, t.q_stride, s.queries));
    if (!own.is_layer_by_head(layer)) {
      SHARPI_TRY(score_replay(pool_, kernels_, t, s.kernel, s.kernel_bytes));
      continue;
    }
    for (uint32_t h = 0; h < a.n_kv_heads; ++h)
      SHARPI_TRY(score_replay(pool_, kernels_, own.replay_task_of_head(t, layer, h, ledger),
                              s.kernel, s.kernel_bytes));
  }
  return Status::ok();
}

}  // namespace sharpi::cpu
