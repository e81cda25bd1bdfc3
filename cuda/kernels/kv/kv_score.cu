// SPDX-License-Identifier: MIT
// Scoring, launch by launch: an image of the terms, their maxima and sums over parts of the rows,
// the merge of these, masses. The products are in kv_score_tiles.cu and kv_score_sm90.cu.
#include <utility>

#include "cuda/kernels/kv/kv_score.cuh"
#include "cuda/kernels/latent/latent.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

/// Where a term's vector lies.
struct TermSource {
  const float* from;         // queries, or rows of the output projection
  uint64_t stride;           // floats
  uint32_t group, per_head;  // terms: head-major
  uint32_t ring;             // rows; first: the first term's
  uint64_t first;
};

struct ImageArgs {
  TermSource terms;
  uint32_t n_kv, dim, n_terms, padded_terms, width;
  uint32_t rotation;  // of the rows that the terms meet; 0 = none
  ImageKind kind;
  uint16_t* image;
};

/// Where dims d to d + 3 of a term lie in the image: the first of its two numbers, and how far
/// behind it the second.
__device__ __forceinline__ uint64_t image_place(const ImageArgs& a, uint32_t all, uint32_t d,
                                                uint32_t* to_rest) {
  if (a.kind == ImageKind::kRows) {
    *to_rest = a.width;
    return uint64_t{all} * 2 * a.width + d;
  }
  constexpr uint32_t kBlock = kScoreTerms * kScoreColumns;
  const uint32_t row = all % kScoreTerms, c = d % kScoreColumns;
  *to_rest = kBlock;
  const uint64_t block =
      uint64_t{all / kScoreTerms} * (a.width / kScoreColumns) + d / kScoreColumns;
  return block * 2 * kBlock + row * kScoreColumns + ((c / 8) ^ (row % 8)) * 8 + c % 8;
}

/// Dims d to d + 3 of a vector whose b dims are in b / 4 neighbouring lanes, rotated. Whole warp.
__device__ __forceinline__ float4 rotated_four(float4 v, uint32_t d, uint32_t b) {
  float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) x[j] = signed_at(x[j], (d + j) % b);
  within(x[0], x[1]), within(x[2], x[3]);
  within(x[0], x[2]), within(x[1], x[3]);
  for (uint32_t apart = 1; 4 * apart < b; apart *= 2) across(x, apart);
  const float norm = rotation_norm(b);
  return {x[0] * norm, x[1] * norm, x[2] * norm, x[3] * norm};
}

/// Four dims of a term per thread; what is absent is zero.
__global__ void __launch_bounds__(kThreads)
    score_image_kernel(const __grid_constant__ ImageArgs a) {
  const uint32_t pieces = a.width / 4;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const bool there = i < a.n_kv * a.padded_terms * pieces;
  if (a.rotation == 0 && !there) return;
  const uint32_t d = i % pieces * 4, all = i / pieces, term = all % a.padded_terms,
                 kv = all / a.padded_terms;
  float4 v = {};
  if (there && term < a.n_terms && d < a.dim) {
    const uint32_t head = kv * a.terms.group + term / a.terms.per_head;
    const uint64_t row = (a.terms.first + term % a.terms.per_head) % a.terms.ring;
    v = *reinterpret_cast<const float4*>(a.terms.from + row * a.terms.stride +
                                         uint64_t{head} * a.dim + d);
  }
  if (a.rotation != 0) v = rotated_four(v, d, a.rotation);
  if (!there) return;
  const uint32_t x = pack_bf16(v.x, v.y), y = pack_bf16(v.z, v.w);
  uint32_t rest = 0;
  uint16_t* to = a.image + image_place(a, all, d, &rest);
  *reinterpret_cast<uint2*>(to) = {x, y};
  *reinterpret_cast<uint2*>(to + rest) = {pack_rest(true, v.x, v.y, x),
                                          pack_rest(true, v.z, v.w, y)};
}

constexpr uint32_t kMergeTerms = 8, kMergeGroups = 128;

/// Maximum + log2(sum) of every term over the parts and its head's sink; groups of threads take
/// parts in turn.
__global__ void __launch_bounds__(kMergeTerms* kMergeGroups)
    score_merge_kernel(const __grid_constant__ ScoreArgs a) {
  __shared__ float tops[kMergeGroups][kMergeTerms + 1], sums[kMergeGroups][kMergeTerms + 1];
  const uint32_t n = a.kv.n_heads * a.n_terms, group = threadIdx.x / kMergeTerms,
                 column = threadIdx.x % kMergeTerms, all = blockIdx.x * kMergeTerms + column,
                 term = all % a.padded_terms, kv = all / a.padded_terms, i = kv * a.n_terms + term;
  const bool there = kv < a.kv.n_heads && term < a.n_terms;
  float top = -INFINITY, sum = 0.0f;
  if (there) {
#pragma unroll 4
    for (uint32_t p = group; p < a.n_parts; p += kMergeGroups) {
      top = fmaxf(top, a.part_max[uint64_t{p} * n + i]);
    }
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll 4
    for (uint32_t p = group; p < a.n_parts; p += kMergeGroups) {
      const float m = a.part_max[uint64_t{p} * n + i], s = a.part_sum[uint64_t{p} * n + i];
      sum = fmaf(s, exp2f(m - base), sum);
    }
  }
  tops[group][column] = top;
  sums[group][column] = sum;
  __syncthreads();
  if (group != 0 || kv >= a.kv.n_heads) return;
#pragma unroll 8
  for (uint32_t g = 0; g < kMergeGroups; ++g) top = fmaxf(top, tops[g][column]);
  float sink = -INFINITY;
  if (there && a.sinks != nullptr) sink = a.sinks[kv * a.group + term / a.n_queries] * kLog2E;
  top = fmaxf(top, sink);
  const float base = top == -INFINITY ? 0.0f : top;
  float total = exp2f(sink - base);
#pragma unroll 8
  for (uint32_t g = 0; g < kMergeGroups; ++g) {
    total = fmaf(sums[g][column], exp2f(tops[g][column] - base), total);
  }
  a.factors[all] = {total > 0.0f ? top + log2f(total) : INFINITY,
                    there && a.weight != nullptr ? a.weight[term % a.n_queries] : 1.0f};
}

// --- host ---

uint32_t round_to(uint32_t n, uint32_t to) {
  return (n + to - 1) / to * to;
}
uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/// Bytes of the image of n terms in all, whatever heads they belong to.
uint64_t image_bytes(uint64_t n_terms, uint32_t n_kv, uint32_t dim) {
  return aligned((n_terms + uint64_t{n_kv} * (kScoreTerms - 1)) * 2 * round_to(dim, kScoreColumns) *
                 sizeof(uint16_t));
}

/// `rows`: the codec of the rows that the terms meet, which may be rotated.
Status make_image(ScoreArgs* a, const TermSource& terms, KvDtype rows, ImageKind kind,
                  std::byte* memory, cudaStream_t stream) {
  ImageArgs i = {};
  i.rotation = is_rotated(rows) ? device_rotation(a->kv.head_dim) : 0;
  i.kind = kind;
  i.terms = terms;
  i.n_kv = a->kv.n_heads;
  i.dim = a->kv.head_dim;
  i.n_terms = a->n_terms;
  i.padded_terms = a->padded_terms = round_to(a->n_terms, kScoreTerms);
  i.width = a->width = round_to(i.dim, kScoreColumns);
  i.image = reinterpret_cast<uint16_t*>(memory);
  a->image = i.image;
  const uint64_t pieces = uint64_t{i.n_kv} * i.padded_terms * (i.width / 4);
  const LaunchShape shape = {dim3(static_cast<uint32_t>((pieces + kThreads - 1) / kThreads)),
                             dim3(kThreads), 0, stream, false};
  return launch_kernel("score_image", shape, score_image_kernel, i);
}

/// Maxima and sums of the parts; what is merged of them.
uint64_t part_bytes(uint32_t n_slots, uint64_t n_terms, uint32_t dim) {
  const uint64_t parts = (uint64_t{n_slots} + score_part_slots(dim) - 1) / score_part_slots(dim);
  return aligned(2 * parts * n_terms * sizeof(float));
}
uint64_t factor_bytes(uint64_t n_terms, uint32_t n_kv) {
  return aligned((n_terms + uint64_t{n_kv} * (kScoreTerms - 1)) * sizeof(TermFactors));
}

template <ScoreMode kMode>
Status launch_products(const DeviceProfile& device, const char* name, ScoreArgs* a, bool warpgroups,
                       cudaStream_t stream) {
  return warpgroups ? launch_score_warpgroups<kMode>(device, name, a, stream)
                    : launch_score_tiles<kMode>(device, name, a, stream);
}
ImageKind image_kind(bool warpgroups) {
  return warpgroups ? ImageKind::kBlocks : ImageKind::kRows;
}

Status check_view(const char* name, const KvView& kv, uint32_t n_heads, KvDtype dtype) {
  if (kv.n_heads == 0 || n_heads == 0 || n_heads % kv.n_heads != 0 || kv.head_dim == 0 ||
      kv.head_dim % 16 != 0) {
    return Status::error(Code::kUnsupported,
                         "kernel %s cannot take %u query heads over %u KV heads of %u elements",
                         name, n_heads, kv.n_heads, kv.head_dim);
  }
  if (!is_kv_codec(dtype)) {
    return Status::error(Code::kInternal, "kernel %s does not know KV codec %u", name,
                         static_cast<uint32_t>(dtype));
  }
  return Status::ok();
}

Status small_workspace(const char* name, uint64_t bytes) {
  return Status::error(Code::kInternal, "kernel %s needs a workspace of more than %llu bytes", name,
                       static_cast<unsigned long long>(bytes));
}

/// Rows of the output projection as they meet stored rows.
Status make_slab(const ValueNormParams& p, uint32_t first, uint32_t n, cudaStream_t stream) {
  DequantizeParams d;
  d.w = p.o;
  d.first_out = first;
  d.n_out = n;
  d.y_f32 = reinterpret_cast<float*>(p.workspace);
  if (!p.map) return launch_dequantize(d, stream);
  LatentFoldParams f;
  f.y_stride = uint64_t{p.n_heads} * p.kv.head_dim;
  f.o_stride = p.o.n_in;
  float* const o = d.y_f32 + kMappedRows * f.y_stride;
  float* const map = o + kMappedRows * f.o_stride;
  f.map = map;
  f.n_rows = n;
  f.n_value = p.map.n_out;
  f.rank = p.map.n_in;
  f.first = p.map_first;
  f.dim = p.kv.head_dim;
  float* const slab = std::exchange(d.y_f32, o);
  SHARPI_TRY(launch_dequantize(d, stream));
  for (uint32_t h = 0; h < p.n_heads; ++h) {
    DequantizeParams of_head;
    of_head.w = p.map;
    of_head.w.data += h * p.map.expert_bytes;
    of_head.w.n_experts = 1;
    of_head.n_out = p.map.n_out;
    of_head.y_f32 = map;
    SHARPI_TRY(launch_dequantize(of_head, stream));
    f.o = o + uint64_t{h} * f.n_value;
    f.y = slab + uint64_t{h} * f.dim;
    SHARPI_TRY(launch_latent_fold(f, stream));
  }
  return Status::ok();
}

}  // namespace

uint64_t score_workspace_bytes(uint32_t n_slots, uint32_t n_queries, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t head_dim) {
  const uint64_t terms = uint64_t{n_heads} * n_queries;
  return part_bytes(n_slots, terms, head_dim) + factor_bytes(terms, n_kv_heads) +
         image_bytes(terms, n_kv_heads, head_dim);
}

Status launch_score(const DeviceProfile& device, const ScoreParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_view("score", p.kv, p.n_heads, p.kv.k_dtype));
  if (p.n_slots == 0) return Status::ok();
  if (p.queries == nullptr || p.n_queries == 0 || p.query_rows == 0 || p.visible == nullptr) {
    return Status::error(Code::kInternal, "kernel score cannot take %u queries of %u", p.n_queries,
                         p.query_rows);
  }
  const uint32_t dim = p.kv.head_dim;
  if (p.workspace_bytes <
      score_workspace_bytes(p.n_slots, p.n_queries, p.n_heads, p.kv.n_heads, dim)) {
    return small_workspace("score", p.workspace_bytes);
  }
  ScoreArgs a = {};
  a.kv = p.kv;
  a.n_slots = p.n_slots;
  a.group = p.n_heads / p.kv.n_heads;
  a.n_terms = a.group * p.n_queries;
  a.n_queries = p.n_queries;
  a.scale = p.scale * kLog2E;
  a.sinks = p.sinks;
  a.visible = p.visible;
  a.weight = p.weight;
  const uint64_t terms = uint64_t{p.n_heads} * p.n_queries;
  const uint64_t parts = part_bytes(p.n_slots, terms, dim);
  a.part_max = reinterpret_cast<float*>(p.workspace);
  a.part_sum = reinterpret_cast<float*>(p.workspace + parts / 2);
  a.factors = reinterpret_cast<TermFactors*>(p.workspace + parts);
  a.sum = p.sum;
  a.max = p.max;
  a.add = p.add;
  const uint64_t stride = p.query_stride != 0 ? p.query_stride : uint64_t{p.n_heads} * dim;
  const TermSource source = {p.queries, stride, a.group, p.n_queries, p.query_rows, p.first_query};
  std::byte* image = p.workspace + parts + factor_bytes(terms, p.kv.n_heads);
  const bool warpgroups = score_on_warpgroups(device, dim);
  SHARPI_TRY(make_image(&a, source, p.kv.k_dtype, image_kind(warpgroups), image, stream));
  SHARPI_TRY(
      launch_products<ScoreMode::kNormalise>(device, "score_normalise", &a, warpgroups, stream));
  const uint32_t n = p.kv.n_heads * a.padded_terms;
  const LaunchShape shape = {dim3((n + kMergeTerms - 1) / kMergeTerms),
                             dim3(kMergeTerms * kMergeGroups), 0, stream, false};
  SHARPI_TRY(launch_kernel("score_merge", shape, score_merge_kernel, a));
  return launch_products<ScoreMode::kMass>(device, "score_mass", &a, warpgroups, stream);
}

uint64_t value_norm_workspace_bytes(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim) {
  const uint64_t terms = uint64_t{kSlabRows} * n_heads;
  return aligned(terms * head_dim * sizeof(float)) + image_bytes(terms, n_kv_heads, head_dim);
}

Status launch_value_norms(const DeviceProfile& device, const ValueNormParams& p,
                          cudaStream_t stream) {
  SHARPI_TRY(check_view("value_norms", p.kv, p.n_heads, p.kv.v_dtype));
  if (p.n_slots == 0) return Status::ok();
  const uint32_t dim = p.kv.head_dim;
  const uint32_t value = p.map ? p.map.n_out : dim;
  if (!p.o || p.o.n_in != p.n_heads * value || p.n_outputs == 0 || p.n_outputs > p.o.n_out ||
      (p.map && !takes_value_map(p.n_heads, dim, value, p.map.n_in))) {
    return Status::error(Code::kInternal,
                         "kernel value_norms cannot take %u outputs of a projection of %u columns",
                         p.n_outputs, p.o.n_in);
  }
  if (p.workspace_bytes < value_norm_workspace_bytes(p.n_heads, p.kv.n_heads, dim)) {
    return small_workspace("value_norms", p.workspace_bytes);
  }
  ScoreArgs a = {};
  a.kv = p.kv;
  a.n_slots = p.n_slots;
  a.group = p.n_heads / (p.n_kv == 0 ? p.kv.n_heads : p.n_kv);
  a.norms = p.norms;
  auto* slab = reinterpret_cast<float*>(p.workspace);
  const uint64_t width = uint64_t{p.n_heads} * dim;
  std::byte* image = p.workspace + aligned(kSlabRows * width * sizeof(float));
  const bool warpgroups = score_on_warpgroups(device, dim);
  const uint32_t most = p.map ? kMappedRows : kSlabRows;
  for (uint32_t first = 0; first < p.n_outputs; first += most) {
    const uint32_t n = p.n_outputs - first < most ? p.n_outputs - first : most;
    SHARPI_TRY(make_slab(p, first, n, stream));
    a.n_terms = a.group * n;
    const float* first_of_view = slab + uint64_t{p.first_kv} * a.group * dim;
    const TermSource source = {first_of_view, width, a.group, n, n, 0};
    SHARPI_TRY(make_image(&a, source, p.kv.v_dtype, image_kind(warpgroups), image, stream));
    a.add = first != 0;
    a.factor = first + n == p.n_outputs ? 1.0f / static_cast<float>(a.group) : 1.0f;
    SHARPI_TRY(launch_products<ScoreMode::kNorm>(device, "value_norms", &a, warpgroups, stream));
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
