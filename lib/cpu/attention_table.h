// SPDX-License-Identifier: MIT
// What cpu/attention.cc and the attention kernels of one instruction set agree on. The driver walks
// spans and tiles and fills the row pointers; kernels prepare queries, decode K and V rows into the
// form they like, and fold a tile into the running softmax of a block of query vectors.
// Kernel files have flags of their own, so only plain data and declarations here.
// Thread rule: tables are immutable; a tile is added by one thread on memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_dtype.h"

namespace sharpi::cpu {

/// Keys per tile: the slots of one KV block, so that a full tile is one run of memory.
inline constexpr uint32_t kTileKeys = 64;
/// Keys per independently summed span: long enough that merging is nothing beside reading, short
/// enough that 8K of context feeds 8 threads. Part of the result's bits: never tuned at run time.
inline constexpr uint32_t kSpanKeys = 1024;

/// What scratch and kernels are laid out for; the models' largest is 512.
inline constexpr uint32_t kMaxHeadDim = 1024;

/// One head's part of up to 64 stored rows.
struct TileRows {
  const std::byte* const* rows = nullptr;  // row starts; entries [begin, end) are set
  uint32_t begin = 0, end = 0;             // keys of the tile that some query vector sees
  uint64_t row_elems = 0;                  // elements of a whole row
  uint64_t first = 0;                      // element at which the head starts
  uint32_t dim = 0;                        // head_dim
  KvDtype dtype = KvDtype::kF32;
  uint64_t pitch = 0;  // bytes between rows when they are evenly spaced, else 0
};

/// Memory that is wanted soon: a tile asks for it a few lines at a time between its products. In
/// one burst the requests would fill the line buffers and stop the products.
struct Ahead {
  const std::byte* row = nullptr;  // n_rows rows, pitch bytes apart, of which the first `bytes`
  uint64_t pitch = 0;
  uint32_t bytes = 0, n_rows = 0;
};

/// Running softmax of query vectors: maximum, sum of exponentials, weighted sum of V rows [padded].
struct SoftmaxState {
  float* m = nullptr;
  float* l = nullptr;
  float* o = nullptr;
};

/// One tile against the vectors of one KV head.
struct AttentionTile {
  const std::byte* q = nullptr;  // as prepare_q left them
  TileRows k, v;
  uint32_t n_vectors = 0;
  uint32_t padded = 0;           // head_dim rounded up to pad_to
  const uint32_t* lo = nullptr;  // vector i sees keys [lo[i], hi[i]) of the tile
  const uint32_t* hi = nullptr;
  std::byte* work = nullptr;  // work_bytes(n_vectors, padded), one thread's
  SoftmaxState state;
  Ahead ahead_k, ahead_v;  // hints only
};

struct AttentionTable {
  uint32_t pad_to;       // vectors are padded with zeros to a multiple of this
  uint32_t max_vectors;  // query vectors per block that make decoding a tile worth while
  bool (*has_codec)(KvDtype);
  uint64_t (*q_bytes)(uint32_t n_vectors, uint32_t padded);
  uint64_t (*work_bytes)(uint32_t n_vectors, uint32_t padded);
  /// Takes n vectors of `dim`, times scale.
  void (*prepare_q)(const float* const* vectors, uint32_t n_vectors, uint32_t dim, uint32_t padded,
                    float scale, std::byte* q);
  /// Adds the tile to its state. Pre: has_codec of both dtypes.
  void (*add_tile)(const AttentionTile&);
  /// Folds `part` into `total` for n vectors. An empty state is m = -inf, l = 0, o = 0.
  void (*merge)(const SoftmaxState& total, const SoftmaxState& part, uint32_t n, uint32_t padded);
  /// out = o / l for one vector.
  void (*finish)(const float* o, float l, uint32_t dim, float* out);
  /// Whether blocks of many rows ask for the next tile while they compute one. Measured: AVX2
  /// alone.
  bool blocks_ask = false;
};

}  // namespace sharpi::cpu
