// SPDX-License-Identifier: MIT
// Attention of many rows with heads of 128 and 256 on tensor cores without warpgroups
// (FlashAttention-2, arXiv 2307.08691): a block takes 128 query vectors of one KV head (rows times
// group), a warp 32 of them, of heads of 256 16. There is one f16 tile of keys and one of values.
// While keys are multiplied, each thread turns its pieces of the values' rows, which asynchronous
// copies have brought, into f16, and sends for the next keys in their place; while values are
// multiplied, the other way round. Weights are f16, sums f32.
#include <algorithm>

#include "cuda/kernels/attention/attention_wide.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using namespace wide;

// Longer than other functions, because all of it shares what a thread holds in its registers.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    attention_wide_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  grid_dependents_launch();
  grid_dependency_wait();
  RowBlock b;
  if (!find_rows(a, gridDim.y - 1 - blockIdx.y, &b)) return;
  find_keys(a, &b);
  const uint32_t kv = blockIdx.x;
  const KvLayer& l = a.p.kv;
  if (a.p.by_head) count_keys<true>(a, kv, &b);
  const HeadMap map = find_head<true>(a, b.sequence, kv);
  const uint32_t here = shared_address(shared), lane = threadIdx.x % 32;
  const uint32_t vector0 = threadIdx.x / 32 * (16 * S::kParts);
  const uint64_t first = b.begin / S::kKeys;
  const auto n_tiles = static_cast<uint32_t>((b.end + S::kKeys - 1) / S::kKeys - first);
  constexpr uint32_t kRows = S::kKeys * 8;  // bytes of addresses of a tile's keys, or values
  const uint32_t rows = here + S::kPlan.rows;
  find_rows_of<S>(l, b, map, first * S::kKeys, rows);
  __syncthreads();
  const uint32_t e0 = first_element(map, kv, S::kDim), n = row_elements(l, map, S::kDim);
  const Lane key_lane = make_lane<S, S::kK>(here, S::kPlan.k_tile, e0, n);
  const Lane value_lane = make_lane<S, S::kV>(here, S::kPlan.v_tile, e0, n);
#pragma unroll
  for (int i = 0; i < S::kPieces; ++i) fetch<S, S::kK>(key_lane, row_of<S>(rows, i), i);
  cp_async_commit();
  load_queries<S>(a, b, kv, shared);
  cp_async_wait<0>();
  __syncthreads();
  // Where a lane reads matrices of 8 rows by 16 bytes: the next two of queries and of values are 8
  // rows further, those of keys 16 bytes.
  const uint32_t x = lane % 8 * 16;
  const uint32_t queries = here + (vector0 + lane % 16) * S::kPitch + (lane / 16 * 16 ^ x);
  const uint32_t keys =
      here + S::kPlan.k_tile + (lane % 8 + lane / 16 * 8) * S::kPitch + (lane / 8 % 2 * 16 ^ x);
  const uint32_t values = here + S::kPlan.v_tile + lane % 16 * S::kPitch + (lane / 16 * 16 ^ x);
  Queries<S> held;
  if constexpr (S::kQueriesInRegisters) {
#pragma unroll
    for (int k = 0; k < S::kDim / 16; ++k) ldmatrix_x4(held[k], queries ^ k * 32u);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < S::kPieces; ++i) {
    pieces::Piece<S::kK> piece;
    load<S, S::kK>(key_lane, i, &piece);
    turn<S, S::kK>(key_lane, i, piece);
    fetch<S, S::kV>(value_lane, row_of<S>(rows + kRows, i), i);
  }
  cp_async_commit();
  find_rows_of<S>(l, b, map, (first + 1) * S::kKeys, rows + 2 * kRows);
  // Keys that every row of the block sees.
  const uint64_t all_from = l.window != 0 && b.end > b.low + l.window ? b.end - l.window : b.low;
  Softmax<S> run = {};
  Sums<S> o = {};
#pragma unroll 1
  for (uint32_t j = 0; j < n_tiles; ++j) {
    const uint64_t t0 = (first + j) * S::kKeys;
    const uint32_t next = rows + (j + 1) % 2 * (2 * kRows);
    Weights<S> w;
    cp_async_wait<0>();
    __syncthreads();  // keys are there, the values before them are used up
    {
      Scores<S> s;
      Turning<S, S::kV, S::kK> turning = {value_lane, key_lane, next};
      score_tile<S>(held, queries, keys, run, s, &turning);
      cp_async_commit();
      if (t0 < all_from || t0 + S::kKeys > b.first_key + 1) mask_tile<S>(a, b, vector0, t0, s);
      fold_tile<S>(s, &run, w, o);
    }
    cp_async_wait<0>();
    __syncthreads();  // values are there, keys are used up
    Turning<S, S::kK, S::kV> turning = {key_lane, value_lane, next + kRows};
    weigh_tile<S>(w, values, &run, o, &turning);
    cp_async_commit();
    find_rows_of<S>(l, b, map, t0 + 2 * S::kKeys, rows + j % 2 * (2 * kRows));
  }
  cp_async_wait<0>();
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
    const bool own = lane % 4 == 0;  // all four lanes of a vector have its sum
    const flash::Running r = {{-run.base[p][0], -run.base[p][2]},
                              {own ? run.sum[p][0] : 0.0f, own ? run.sum[p][2] : 0.0f},
                              {},
                              {}};
    flash::store<S>(a, b, kv, vector0 + p * 16 + lane / 4, 0, r, o[p]);
  }
}

/// f.operator()<shape>() for keys and values that choose_wide() has a form for.
template <int kDim, class F>
Status with_codecs(const KvLayer& l, const F& f) {
  const auto of = [&]<KvDtype kK, KvDtype kV>() {
    return f.template operator()<Shape<wide_shape(kDim, kK, kV), kK, kV>>();
  };
  if (l.k_dtype != l.v_dtype) return of.template operator()<KvDtype::kQ8_0, KvDtype::kQ4>();
  return with_kv_codec(l.k_dtype,
                       [&]<KvDtype kType>() { return of.template operator()<kType, kType>(); });
}
template <class F>
Status with_shape(const KvLayer& l, const F& f) {
  return l.head_dim == 128 ? with_codecs<128>(l, f) : with_codecs<256>(l, f);
}

}  // namespace

bool attention_wide_fits(const KernelConfig& config, const KvLayer& l) {
  // Pieces are copied as wholes of up to 16 bytes; rows of one head begin where these do.
  const uint32_t n_heads = std::max(l.n_heads, 1u);
  const uint64_t starts = l.k_offset | l.v_offset | l.block_stride | l.k_row_bytes | l.v_row_bytes |
                          l.k_row_bytes / n_heads | l.v_row_bytes / n_heads;
  const uint32_t piece = std::min(wide_slot(l.k_dtype, l.v_dtype), 16u);
  return choose_wide(config.device, l.k_dtype, l.v_dtype, l.head_dim).dim != 0 &&
         starts % piece == 0;
}

Status prepare_attention_wide(const KernelConfig& config) {
  const int most = config.device.shared_per_block;
  for (const uint32_t dim : {128u, 256u}) {
    for (uint32_t i = 1; i <= kKvCodecs + 1; ++i) {  // the last one: keys in more than values
      KvLayer l;
      l.head_dim = dim;
      l.k_dtype = i <= kKvCodecs ? static_cast<KvDtype>(i) : KvDtype::kQ8_0;
      l.v_dtype = i <= kKvCodecs ? l.k_dtype : KvDtype::kQ4;
      SHARPI_TRY(with_shape(l, [&]<class S>() {
        return kernel_status(
            cudaFuncSetAttribute(attention_wide_kernel<S>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, most),
            "attention_wide");
      }));
    }
  }
  return Status::ok();
}

Status launch_attention_wide(const KernelConfig& config, const AttentionArgs& a,
                             cudaStream_t stream) {
  if (!attention_wide_fits(config, a.p.kv)) {
    return Status::error(Code::kInternal, "kernel attention_wide cannot take heads of %u elements",
                         a.p.kv.head_dim);
  }
  AttentionArgs f = a;
  f.block_rows = kWideVectors / a.group;
  f.n_blocks = most_row_blocks(a.p.batch, f.block_rows);
  return with_shape(a.p.kv, [&]<class S>() {
    const LaunchShape shape = {dim3(a.p.kv.n_heads, f.n_blocks), dim3(S::kThreads), S::kPlan.bytes,
                               stream, config.pdl};
    return launch_kernel("attention_wide", shape, attention_wide_kernel<S>, f);
  });
}

}  // namespace sharpi::cuda
