// SPDX-License-Identifier: MIT
// File bytes to tiles (one thread per lane and block of a unit), rows by index, and whole matrices
// to f32 or f16. All are bound by memory: every byte is read and written once.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/rows.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/products/weight_layout.h"
#include "cuda/kernels/products/weight_types.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

SHARPI_HD constexpr bool is_super(GgmlType type) {
  return type == GgmlType::kQ4_K || type == GgmlType::kQ5_K || type == GgmlType::kQ6_K;
}

SHARPI_HD void store_u32(uint8_t* p, uint32_t v) {
  *reinterpret_cast<uint32_t*>(p) = v;
}
SHARPI_HD void store_u16(uint8_t* p, uint32_t v) {
  *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(v);
}

/// What one lane's 16 codes of a block become.
struct LaneBits {
  uint32_t low[4] = {};  // nibbles: [row half]; bytes: [2 row half + i]
  uint32_t high = 0;     // fifth bits (16 bits used) or pairs of bits
};

template <GgmlType kType>
SHARPI_HD LaneBits pack_lane(const uint8_t* panel, uint64_t row_bytes, uint32_t column,
                             uint32_t lane) {
  constexpr BlockShape kShape = block_shape(kType);
  LaneBits r;
  for (uint32_t h = 0; h < 2; ++h) {
    const uint8_t* row = panel + (lane / 4 + 8 * h) * row_bytes;
    for (uint32_t n = 0; n < 8; ++n) {
      const uint32_t i = n / 4, j = n % 4, k = column + 16 * i + lane % 4 * 4 + j;
      const uint32_t code = block_code<kType>(row + uint64_t{k / kShape.elements} * kShape.bytes,
                                              k % kShape.elements);
      const uint32_t reg = 4 * h + 2 * i + j / 2, wide = j % 2;
      if constexpr (kType == GgmlType::kQ8_0) {
        r.low[2 * h + i] |= code << (wide * 16 + j / 2 * 8);
      } else {
        r.low[h] |= (code & 15u) << (8 * i + j / 2 * 4 + 16 * wide);
      }
      if constexpr (kType == GgmlType::kQ5_0 || kType == GgmlType::kQ5_1 ||
                    kType == GgmlType::kQ5_K) {
        r.high |= (code >> 4) << (reg / 2 + reg % 2 * 4 + 8 * wide);
      } else if constexpr (kType == GgmlType::kQ6_K) {
        const uint32_t pair = reg / 4 * 4 + reg % 2 * 2 + reg / 2 % 2;
        r.high |= (code >> 4) << (2 * pair + 16 * wide);
      }
    }
  }
  return r;
}

SHARPI_HD void copy_bytes(uint8_t* to, const uint8_t* from, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) to[i] = from[i];
}

/// Lane `lane` of block `b` of a unit. `panel` points at column 0 of the panel's first row.
template <GgmlType kType>
SHARPI_HD void pack_small(const uint8_t* panel, uint64_t row_bytes, uint32_t column, uint32_t lane,
                          uint8_t* block) {
  constexpr BlockShape kShape = block_shape(kType);
  const LaneBits bits = pack_lane<kType>(panel, row_bytes, column, lane);
  uint32_t at = 256;
  if constexpr (kType == GgmlType::kQ8_0) {
    for (uint32_t n = 0; n < 4; ++n) store_u32(block + lane * 16 + 4 * n, bits.low[n]);
    at = 512;
  } else {
    for (uint32_t h = 0; h < 2; ++h) store_u32(block + lane * 8 + 4 * h, bits.low[h]);
  }
  if constexpr (kType == GgmlType::kQ5_0 || kType == GgmlType::kQ5_1) {
    // Device order: even registers' bits in the low byte of the even half-words and so on.
    store_u16(block + 256 + lane * 2, bits.high);
    at = 320;
  }
  if (lane >= kPanelRows) return;
  constexpr uint32_t kScaleBytes = kType == GgmlType::kMXFP4 ? 1
                                   : kType == GgmlType::kQ4_1 || kType == GgmlType::kQ5_1
                                       ? 4
                                       : 2;       // d, or d and m
  const uint32_t slot = lane % 8 * 2 + lane / 8;  // rows g and g + 8 side by side
  copy_bytes(block + at + slot * kScaleBytes,
             panel + lane * row_bytes + uint64_t{column / 32} * kShape.bytes, kScaleBytes);
}

template <GgmlType kType>
SHARPI_HD void pack_super(const uint8_t* panel, uint64_t row_bytes, uint32_t column, uint32_t b,
                          uint32_t lane, uint8_t* unit) {
  constexpr BlockShape kShape = block_shape(kType);
  const LaneBits bits = pack_lane<kType>(panel, row_bytes, column + 32 * b, lane);
  for (uint32_t h = 0; h < 2; ++h) store_u32(unit + b * 256 + lane * 8 + 4 * h, bits.low[h]);
  if constexpr (kType == GgmlType::kQ5_K) {
    // Two blocks share a word, byte-interleaved; 8 bits of each half-word per block.
    uint8_t* word = unit + 2048 + b / 2 * 128 + lane * 4 + b % 2;
    word[0] = static_cast<uint8_t>(bits.high);
    word[2] = static_cast<uint8_t>(bits.high >> 8);
  } else if constexpr (kType == GgmlType::kQ6_K) {
    store_u32(unit + 2048 + b * 128 + lane * 4, bits.high);
  }
  if (b != 0 || lane >= kPanelRows) return;
  const uint8_t* block = panel + lane * row_bytes + uint64_t{column / 256} * kShape.bytes;
  if constexpr (kType == GgmlType::kQ6_K) {
    copy_bytes(unit + 3072 + lane * 16, block + 192, 16);
    copy_bytes(unit + 3328 + (lane % 8 * 2 + lane / 8) * 2, block + 208, 2);
  } else {
    copy_bytes(unit + (kType == GgmlType::kQ4_K ? 2048 : 2560) + lane * 16, block, 16);
  }
}

/// Block `block` (32 columns) of panel `panel`, lane `lane`.
template <GgmlType kType>
SHARPI_HD void pack(const uint8_t* src, uint8_t* dst, uint64_t row_bytes, uint64_t panel,
                    uint32_t block, uint32_t lane) {
  const uint8_t* from = src + panel * kPanelRows * row_bytes;
  uint8_t* to = dst + panel * kPanelRows * row_bytes;
  constexpr uint32_t kBlockBytes =
      block_shape(kType).bytes * kPanelRows;  // of a panel's block column
  if constexpr (is_super(kType)) {
    pack_super<kType>(from, row_bytes, block / 8 * 256, block % 8, lane,
                      to + uint64_t{block / 8} * kBlockBytes);
  } else {
    pack_small<kType>(from, row_bytes, block * 32, lane, to + uint64_t{block} * kBlockBytes);
  }
}

constexpr int kRepackThreads = 256;

template <GgmlType kType>
__global__ void __launch_bounds__(kRepackThreads)
    repack_kernel(const uint8_t* src, uint8_t* dst, uint64_t row_bytes, uint32_t n_panels,
                  uint32_t n_blocks) {
  const uint32_t block = blockIdx.x * (kRepackThreads / 32) + threadIdx.x / 32;
  if (block >= n_blocks) return;
  for (uint32_t panel = blockIdx.y; panel < n_panels; panel += gridDim.y) {
    pack<kType>(src, dst, row_bytes, panel, block, threadIdx.x % 32);
  }
}

constexpr int kRowThreads = 128;
constexpr uint32_t kMaxGridY = 65535;

/// Values [16 i + 4 t, + 4) of block `block`, row `row` of a tile matrix, i = 0 and 1.
template <GgmlType kType>
__device__ __forceinline__ void tile_row_values(const uint8_t* data, uint64_t row_bytes,
                                                uint32_t row, uint32_t block, uint32_t t,
                                                float4 (&v)[2]) {
  using T = Tile<kType>;
  const uint32_t r = row % kPanelRows;
  const int lane = static_cast<int>(r % 8 * 4 + t);
  const uint8_t* panel = data + uint64_t{row / kPanelRows} * kPanelRows * row_bytes;
  constexpr uint32_t kBytes = block_shape(kType).bytes * kPanelRows;
  const uint8_t* unit = panel + uint64_t{is_super(kType) ? block / 8 : block} * kBytes;
  const int b = is_super(kType) ? static_cast<int>(block % 8) : 0;
  const typename T::Meta meta = T::meta(unit, lane);
  uint32_t a[8];
  T::codes(unit, b, lane, a);
  const Scales s = T::scales(unit, meta, b, lane);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 low = tile_values<kType>(a, s, meta, 0, i),
                 high = tile_values<kType>(a, s, meta, 1, i);
    v[i] = r < 8 ? low : high;
  }
}

struct RowsOut {
  const int32_t* ids;  // rows to read, or nullptr: first_row + r
  uint32_t first_row, n_rows, n_in, n_table;
  float scale;
  float* f32;
  __half* f16;
  uint64_t stride;
};

__device__ __forceinline__ uint32_t source_row(const RowsOut& o, uint32_t r) {
  if (o.ids == nullptr) return o.first_row + r;
  const int32_t id = o.ids[r];
  return id < 0 ? 0u : min(static_cast<uint32_t>(id), o.n_table - 1);
}
__device__ __forceinline__ void store_four(const RowsOut& o, uint32_t r, uint32_t k, float4 v) {
  const uint64_t at = r * o.stride + k;
  if (o.f32 != nullptr) {
    const float4 w = {v.x * o.scale, v.y * o.scale, v.z * o.scale, v.w * o.scale};
    *reinterpret_cast<float4*>(o.f32 + at) = w;
  } else {
    const __half2 h[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
    *reinterpret_cast<uint2*>(o.f16 + at) = *reinterpret_cast<const uint2*>(h);
  }
}

/// Grid (blocks of 32 columns x 4 lanes, rows).
template <GgmlType kType>
__global__ void __launch_bounds__(kRowThreads)
    tile_rows_kernel(const uint8_t* data, uint64_t row_bytes, const __grid_constant__ RowsOut o) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t at = blockIdx.x * kRowThreads + threadIdx.x;
  const uint32_t block = at / 4, t = at % 4;
  if (block >= o.n_in / 32) return;
  for (uint32_t r = blockIdx.y; r < o.n_rows; r += gridDim.y) {
    float4 v[2];
    tile_row_values<kType>(data, row_bytes, source_row(o, r), block, t, v);
    store_four(o, r, block * 32 + 4 * t, v[0]);
    store_four(o, r, block * 32 + 16 + 4 * t, v[1]);
  }
}

__global__ void __launch_bounds__(kRowThreads)
    plain_rows_kernel(GgmlType type, const uint8_t* data, uint64_t row_bytes,
                      const __grid_constant__ RowsOut o) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t k = (blockIdx.x * kRowThreads + threadIdx.x) * 8;
  if (k >= o.n_in) return;
  for (uint32_t r = blockIdx.y; r < o.n_rows; r += gridDim.y) {
    float v[8];
    row_values(type, data + source_row(o, r) * row_bytes, k, v);
    store_four(o, r, k, {v[0], v[1], v[2], v[3]});
    store_four(o, r, k + 4, {v[4], v[5], v[6], v[7]});
  }
}

using TileRowsKernel = void (*)(const uint8_t*, uint64_t, RowsOut);
TileRowsKernel tile_rows_instance(GgmlType type) {
  TileRowsKernel kernel = nullptr;
  TiledTypes::visit(type, [&]<GgmlType kType>() { kernel = tile_rows_kernel<kType>; });
  return kernel;
}

Status launch_rows(const DeviceMatrix& w, const RowsOut& o, const char* name, cudaStream_t stream) {
  if (!w || o.n_rows == 0 || w.n_in % 8 != 0) {
    return Status::error(Code::kInternal, "kernel %s cannot take %u rows of a matrix of %u x %u",
                         name, w.n_out, w.n_in, o.n_rows);
  }
  SHARPI_TRY(check_weights(name, w.type, w.layout));
  const auto* data = reinterpret_cast<const uint8_t*>(w.data);
  const uint64_t row_bytes = ggml_row_bytes(w.type, w.n_in);
  const uint32_t threads = w.n_in / 8;
  LaunchShape shape;
  shape.grid = dim3((threads + kRowThreads - 1) / kRowThreads, std::min(o.n_rows, kMaxGridY));
  shape.block = dim3(kRowThreads);
  shape.stream = stream;
  if (w.layout == WeightLayout::kRows) {
    return launch_kernel(name, shape, plain_rows_kernel, w.type, data, row_bytes, o);
  }
  return launch_kernel(name, shape, tile_rows_instance(w.type), data, row_bytes, o);
}

using RepackKernel = void (*)(const uint8_t*, uint8_t*, uint64_t, uint32_t, uint32_t);
RepackKernel repack_kernel_of(GgmlType type) {
  RepackKernel kernel = nullptr;
  TiledTypes::visit(type, [&]<GgmlType kType>() { kernel = repack_kernel<kType>; });
  return kernel;
}

}  // namespace

Status launch_repack(const RepackParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_weights("repack", p.type, WeightLayout::kTiles));
  if (p.n_weight_rows % kPanelRows != 0 || p.n_in % 32 != 0) {
    return Status::error(
        Code::kInternal, "kernel repack cannot take weights of type %s with %llu rows of %u",
        ggml_traits(p.type).name, static_cast<unsigned long long>(p.n_weight_rows), p.n_in);
  }
  if (p.n_weight_rows == 0) return Status::ok();
  const auto n_panels = static_cast<uint32_t>(p.n_weight_rows / kPanelRows);
  const uint32_t n_blocks = p.n_in / 32, per_grid = kRepackThreads / 32;
  LaunchShape shape;
  shape.grid = dim3((n_blocks + per_grid - 1) / per_grid, std::min(n_panels, kMaxGridY));
  shape.block = dim3(kRepackThreads);
  shape.stream = stream;
  return launch_kernel("repack", shape, repack_kernel_of(p.type),
                       reinterpret_cast<const uint8_t*>(p.src), reinterpret_cast<uint8_t*>(p.dst),
                       ggml_row_bytes(p.type, p.n_in), n_panels, n_blocks);
}

Status launch_embed_rows(const EmbedRowsParams& p, cudaStream_t stream) {
  const RowsOut o{p.ids,   0,   p.n_rows, p.table.n_in, p.table.n_out,
                  p.scale, p.y, nullptr,  p.y_stride};
  return launch_rows(p.table, o, "embed_rows", stream);
}

Status launch_dequantize(const DequantizeParams& p, cudaStream_t stream) {
  const RowsOut o{nullptr,   p.first_out, p.n_out, p.w.n_in,
                  p.w.n_out, 1.0f,        p.y_f32, static_cast<__half*>(p.y_f16),
                  p.w.n_in};
  if ((p.y_f32 == nullptr) == (p.y_f16 == nullptr) || p.first_out + p.n_out > p.w.n_out) {
    return Status::error(
        Code::kInternal,
        "kernel dequantize cannot take rows %u to %u of %u, or has not exactly one place for them",
        p.first_out, p.first_out + p.n_out, p.w.n_out);
  }
  return launch_rows(p.w, o, "dequantize", stream);
}

}  // namespace sharpi::cuda
