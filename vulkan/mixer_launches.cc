// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/checked.h"
#include "base/limits.h"
#include "device/latent.h"
#include "kv/rotation.h"
#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {
namespace {

/// Where stored rows begin at multiples of which a thread asks for so many bytes at once
/// (shaders/attention_lanes.comp).
constexpr uint64_t kLaneBytes = 16;
/// Elements of a row in 8 bits, and of a stored row, that have a scale.
constexpr uint32_t kRun = 32;

}  // namespace

KvLayer PassLaunches::kv() const {
  const AttentionSpec& a = layer().attention;
  KvLayer kv = p_.format.layers[a.kv_source < 0 ? l_.layer : static_cast<uint32_t>(a.kv_source)];
  if (a.window != 0) kv.chunk = ws_.get<std::byte>(Buf::kKvChunk);
  return kv;
}

/// From the projection to `to`.
Status PassLaunches::head_rows(HeadRow which, const float* from, float* to) const {
  const AttentionSpec& a = layer().attention;
  const KvLayer kv = this->kv();
  const bool queries = which == kQueryRow || which == kLatentQuery;
  const uint32_t dim = a.head_dim, heads = queries ? a.n_heads : a.n_kv_heads;
  const uint32_t apart = which == kLatentQuery      ? a.latent.key_dim + a.rope.n_rot
                         : queries && a.output_gate ? 2 * dim
                                                    : dim;
  const uint64_t table = static_cast<uint64_t>(m_.rope_of_layer[l_.layer]) * ws_.layout().max_rows *
                         ws_.layout().n_half;
  const TensorRef& bias = queries ? a.q_bias : which == kKeyRow ? a.k_bias : a.v_bias;
  uint32_t norm = a.qk_norm == QkNorm::kPerHead ? 1 : a.qk_norm == QkNorm::kWholeVector ? 2 : 0;
  const float* weight = norm == 0 ? nullptr : m_.floats(queries ? a.q_norm : a.k_norm);
  if (which == kLatentRow) weight = m_.floats(a.latent.kv_norm);
  if (which == kValueRow) {
    norm = a.v_norm ? 1 : 0;
    weight = nullptr;
  }
  const int64_t at = queries ? m_.query_layout.offset_of_layer[l_.layer] : -1;
  const Args args = Args()
                        .at(p_.batch.table.rows)
                        .at(p_.batch.table.sequences)
                        .at(from)
                        .at(to)
                        .at(bias ? m_.floats(bias) : nullptr)
                        .at(weight)
                        .at(buf(Buf::kCos) + table)
                        .at(buf(Buf::kSin) + table)
                        .u(n())
                        .u(heads)
                        .u(dim)
                        .u(queries ? a.q.n_out : uint64_t{heads} * dim)
                        .u(apart)
                        .u(a.rope.n_rot / 2)
                        .f(s_.rms_eps)
                        .u(static_cast<uint64_t>(at))
                        .u(static_cast<uint64_t>(at) >> 32)
                        .f(queries ? a.temperature : 0.0f)
                        .u(a.temperature_rows);
  const uint32_t neighbours = a.rope.pairs == RopePairs::kNeighbours ? 1 : 0;
  const uint32_t rotated = kv_rotation(which == kValueRow ? kv.v_dtype : kv.k_dtype, kv.head_dim);
  Kernel k{Shader::rows, {which, norm, neighbours, rotated}, args, uint64_t{n()} * heads};
  k.beside = !queries;
  return queue_.dispatch(k);
}

Status PassLaunches::store(const KvLayer& kv, bool value, const float* from) const {
  const Args args = Args()
                        .at(p_.batch.table.rows)
                        .at(p_.batch.table.sequences)
                        .at(p_.batch.table.groups)
                        .at(from)
                        .at(pages())
                        .at(kv.chunk)
                        .u(n())
                        .u(p_.batch.table.n_groups)
                        .u(kv.group)
                        .u(uint64_t{kv.n_heads} * kv.head_dim)
                        .u(kv.k_row_bytes)
                        .u(kv.v_row_bytes)
                        .u(kv.block_stride)
                        .u(value ? kv.v_offset : kv.k_offset)
                        .u(kv.n_heads);
  const uint64_t elements = uint64_t{kv.n_heads} * kv.head_dim;
  Kernel k{Shader::store,
           {static_cast<uint32_t>(value ? kv.v_dtype : kv.k_dtype), value ? 1u : 0u,
            kv.window != 0 ? 1u : 0u, p_.rows_to_ring() ? 1u : 0u, by_head(kv)},
           args,
           n(),
           static_cast<uint32_t>(groups_of(elements / 4))};
  k.beside = value;
  return queue_.dispatch(k);
}

/// Each head's matrix times its part of every row. Rows are floats, in `fast` too.
Status PassLaunches::heads() const {
  const AttentionSpec& a = layer().attention;
  const device::HeadProduct p =
      l_.kind == LaunchKind::kLatentQueries ? device::latent_queries(a) : device::latent_outputs(a);
  const TensorRef& w = *p.w;
  const uint64_t ends = p.x.first | p.x.head | p.x.row | w.n_in;
  const bool tiles = in_tiles(m_.plan->model, n());
  const uint32_t rows = tiles ? kTile : n() == 1 ? 1 : profile().product_rows;
  Kernel k{tiles ? Shader::head_tile : Shader::head_product,
           {static_cast<uint32_t>(w.tensor->type), ends % 4 == 0 ? 1u : 0u},
           Args(),
           tiles ? div_up(w.n_out, kTile) : w.n_out,
           static_cast<uint32_t>(p.n_heads() * div_up(n(), rows)),
           tiles ? kTile : 0};
  if (!tiles) k.constants.push_back(rows);
  k.args.at(m_.weight(w))
      .at(buf(p.x.buf) + p.x.first)
      .at(buf(p.y.buf) + p.y.first)
      .u(w.n_in)
      .u(w.n_out)
      .u(n())
      .u(w.row_bytes())
      .u(p.x.head)
      .u(p.x.row)
      .u(p.y.head)
      .u(p.y.row);
  return queue_.dispatch(k);
}

/// Keys or values from the projection to where rows are stored.
Status PassLaunches::store_heads(const KvLayer& kv, bool value, const float* from) const {
  const AttentionSpec& a = layer().attention;
  const uint64_t table = static_cast<uint64_t>(m_.rope_of_layer[l_.layer]) * ws_.layout().max_rows *
                         ws_.layout().n_half;
  const TensorRef& bias = value ? a.v_bias : a.k_bias;
  uint32_t norm = a.qk_norm == QkNorm::kPerHead ? 1 : a.qk_norm == QkNorm::kWholeVector ? 2 : 0;
  if (value) norm = a.v_norm ? 1 : 0;
  const KvDtype dtype = value ? kv.v_dtype : kv.k_dtype;
  Kernel k{Shader::rows_store,
           {static_cast<uint32_t>(dtype), value ? 1u : 0u, kv.window != 0 ? 1u : 0u,
            p_.rows_to_ring() ? 1u : 0u, by_head(kv), norm,
            a.rope.pairs == RopePairs::kNeighbours ? 1u : 0u, kv_rotation(dtype, kv.head_dim)},
           Args(),
           uint64_t{n()} * kv.n_heads};
  k.args.at(p_.batch.table.rows)
      .at(p_.batch.table.sequences)
      .at(p_.batch.table.groups)
      .at(from)
      .at(bias ? m_.floats(bias) : nullptr)
      .at(!value && norm != 0 ? m_.floats(a.k_norm) : nullptr)
      .at(buf(Buf::kCos) + table)
      .at(buf(Buf::kSin) + table)
      .at(pages())
      .at(kv.chunk)
      .u(n())
      .u(kv.n_heads)
      .u(kv.head_dim)
      .u(a.rope.n_rot / 2)
      .f(s_.rms_eps)
      .u(p_.batch.table.n_groups)
      .u(kv.group)
      .u(kv.k_row_bytes)
      .u(kv.v_row_bytes)
      .u(kv.block_stride)
      .u(value ? kv.v_offset : kv.k_offset);
  k.beside = true;
  return queue_.dispatch(k);
}

Status PassLaunches::rows() const {
  const AttentionSpec& a = layer().attention;
  if (a.latent) return latent_rows();
  SHARPI_TRY(head_rows(kQueryRow, buf(Buf::kQ), buf(Buf::kQuery)));
  if (a.kv_source >= 0) return Status::ok();
  const KvLayer kv = this->kv();
  if (a.head_dim % kRun == 0) {
    SHARPI_TRY(store_heads(kv, false, buf(Buf::kK)));
    return store_heads(kv, true, buf(a.v_from_k ? Buf::kK : Buf::kV));
  }
  float* k = buf(Buf::kKernel);
  float* v = k + uint64_t{n()} * a.n_kv_heads * a.head_dim;
  SHARPI_TRY(head_rows(kKeyRow, buf(Buf::kK), k));
  SHARPI_TRY(head_rows(kValueRow, buf(a.v_from_k ? Buf::kK : Buf::kV), v));
  SHARPI_TRY(store(kv, false, k));
  return store(kv, true, v);
}

/// Queries, of which the latent's elements are there, and the one row that is stored.
Status PassLaunches::latent_rows() const {
  const AttentionSpec& a = layer().attention;
  float* row = buf(Buf::kKernel);
  SHARPI_TRY(head_rows(kLatentQuery, buf(Buf::kQ) + a.latent.key_dim, buf(Buf::kQuery)));
  SHARPI_TRY(head_rows(kLatentRow, buf(Buf::kK), row));
  return store(kv(), false, row);
}

/// What every kernel of attention is told (shaders/kv_rows.glsl).
Args PassLaunches::attention_args(const KvLayer& kv, const void* queries, float* to) const {
  const AttentionSpec& a = layer().attention;
  return Args()
      .at(p_.batch.table.rows)
      .at(p_.batch.table.sequences)
      .at(p_.batch.table.groups)
      .at(queries)
      .at(to)
      .at(buf(Buf::kQ))
      .at(pages())
      .at(kv.chunk)
      .at(m_.floats(a.sinks))
      .u(n())
      .u(p_.batch.table.n_groups)
      .u(kv.group)
      .u(a.n_heads)
      .u(kv.n_heads)
      .u(kv.k_row_bytes)
      .u(kv.v_row_bytes)
      .u(kv.block_stride)
      .u(kv.k_offset)
      .u(kv.v_offset)
      .u(a.q.n_out)
      .f(a.scale);
}

bool PassLaunches::joins_to_bytes() const {
  if (layer().mixer != MixerKind::kAttention || layer().attention.latent) return false;
  const uint32_t dim = kv().head_dim;
  return dim % kRun == 0 && attends_in_shares(profile(), m_.plan->model, dim, n()) &&
         form_of(layer().attention.o, n()) == RowForm::kBytes;
}

/// Of a few rows: stored rows go to many workgroups, whose sums another kernel joins.
Status PassLaunches::attend_in_shares(const KvLayer& kv) const {
  const AttentionSpec& a = layer().attention;
  const Profile& f = profile();
  const uint32_t group = a.n_heads / kv.n_heads;
  uint64_t ends = kv.k_row_bytes | kv.v_row_bytes | kv.k_offset | kv.v_offset | kv.block_stride;
  if (by_head(kv) != 0) ends |= kv.k_row_bytes / kv.n_heads | kv.v_row_bytes / kv.n_heads;
  const LaneShape shape = ends % kLaneBytes == 0 ? f.lane_shape(kv.head_dim, group) : LaneShape{};
  const bool lanes = shape.heads != 0;
  const uint32_t heads = lanes ? shape.heads : f.step_heads(kv.head_dim, group);
  const uint32_t shares = f.shares(a.n_heads / heads);
  float* const parts = buf(Buf::kAttention);
  Kernel k{lanes ? Shader::attention_lanes : Shader::attention_step,
           {static_cast<uint32_t>(kv.k_dtype), static_cast<uint32_t>(kv.v_dtype), kv.window, heads,
            kv.head_dim, shares,
            lanes                          ? shape.each
            : ends % sizeof(uint32_t) == 0 ? 1u
                                           : 0u,
            by_head(kv)},
           Args(),
           uint64_t{n()} * a.n_heads / heads,
           shares,
           f.step_threads};
  if (lanes) k.constants.push_back(shape.lanes);
  k.args = attention_args(kv, buf(Buf::kQuery), parts);
  SHARPI_TRY(queue_.dispatch(k));
  const bool bytes = joins_to_bytes();
  Kernel join{Shader::attention_join,
              {kv_rotation(kv.v_dtype, kv.head_dim), a.output_gate ? 1u : 0u, kv.head_dim, shares,
               bytes ? 1u : 0u},
              Args(),
              uint64_t{n()} * a.n_heads,
              1,
              f.join_threads};
  join.args.at(p_.batch.table.rows)
      .at(parts)
      .at(buf(Buf::kMix))
      .at(buf(Buf::kQ))
      .at(m_.floats(a.sinks))
      .at(bytes ? bytes_of(n(), a.n_heads * kv.head_dim) : nullptr)
      .u(n())
      .u(a.n_heads)
      .u(a.q.n_out);
  return queue_.dispatch(join);
}

/// Of many rows, in `fast`: queries and stored rows in 16 bits, sums in floats. A subgroup may have
/// a part of a head only, so sums of rotated values are rotated back, and gated, behind them.
Status PassLaunches::attend_by_matrices(const KvLayer& kv, uint32_t split) const {
  const AttentionSpec& a = layer().attention;
  const uint32_t width = a.n_heads * kv.head_dim, queries = 128 / split;
  uint32_t heads = std::min(a.n_heads / kv.n_heads, queries);
  while ((a.n_heads / kv.n_heads) % heads != 0 || queries % heads != 0) --heads;
  const uint32_t rotated = kv_rotation(kv.v_dtype, kv.head_dim), gated = a.output_gate ? 1u : 0u;
  SHARPI_TRY(halve(buf(Buf::kQuery), n(), width, false));
  Kernel k{Shader::attention_matrix,
           {static_cast<uint32_t>(kv.k_dtype), static_cast<uint32_t>(kv.v_dtype), kv.window,
            rotated == 0 ? gated : 0u, kv.head_dim, split, heads},
           Args(),
           div_up(n(), queries / heads) * (a.n_heads / heads),
           1,
           profile().matrix_threads};
  k.args = attention_args(kv, bytes_of(n(), width), buf(Buf::kMix));
  SHARPI_TRY(queue_.dispatch(k));
  if (rotated == 0) return Status::ok();
  const Args back = Args()
                        .at(p_.batch.table.rows)
                        .at(buf(Buf::kMix))
                        .at(buf(Buf::kQ))
                        .u(n())
                        .u(a.n_heads)
                        .u(a.q.n_out);
  return run(Shader::unrotate, {rotated, gated, kv.head_dim}, back, uint64_t{n()} * a.n_heads);
}

Status PassLaunches::attend() const {
  const AttentionSpec& a = layer().attention;
  const KvLayer kv = this->kv();
  // In shares sums have another order than a chunk's.
  const ModelShape& shape = m_.plan->model;
  if (attends_in_shares(profile(), shape, kv.head_dim, n())) return attend_in_shares(kv);
  if (const uint32_t split = matrix_split(profile(), shape, kv, n());
      split != 0 && by_head(kv) == 0)
    return attend_by_matrices(kv, split);
  const Args args = attention_args(kv, buf(Buf::kQuery), buf(Buf::kMix));
  const uint32_t rows = n() == 1 ? 1 : profile().attention_tile(kv.head_dim);
  return run(Shader::attention,
             {static_cast<uint32_t>(kv.k_dtype), static_cast<uint32_t>(kv.v_dtype),
              kv_rotation(kv.v_dtype, kv.head_dim), kv.window, a.output_gate ? 1u : 0u, rows,
              kv.head_dim, profile().attention_keys, by_head(kv)},
             args, uint64_t{(n() + rows - 1) / rows} * a.n_heads);
}

Status PassLaunches::keep_ring() const {
  const KvLayer kv = this->kv();
  const Args args = Args()
                        .at(p_.batch.table.sequences)
                        .at(p_.batch.table.groups)
                        .at(pages())
                        .at(kv.chunk)
                        .u(p_.batch.n_sequences)
                        .u(n())
                        .u(p_.batch.table.n_groups)
                        .u(kv.group)
                        .u(kv.k_row_bytes)
                        .u(kv.v_row_bytes)
                        .u(kv.block_stride)
                        .u(kv.k_offset)
                        .u(kv.v_offset);
  return run(Shader::keep_ring, {}, args, uint64_t{p_.batch.n_sequences} * n());
}

}  // namespace sharpi::vulkan
