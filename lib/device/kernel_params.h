// SPDX-License-Identifier: MIT
// What the kernels outside of passes are given: plain values, all addresses on the device. Plain
// C++ that kernels can include too. Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/kv_view.h"
#include "kv/policy.h"
#include "kv/unit_moves.h"

namespace sharpi::device {

/// One column of bytes of a layer's K or V rows: row i takes bytes [offset, offset + bytes) of row
/// keep[i], for all i < n_keep. Whole rows: one job for K, one for V. Per-head keep sets: one job
/// per head, and for q8_0 two (values at head * head_dim, scales at n_elements + head * head_dim /
/// 16, head_dim / 16 bytes). Jobs of one launch must not overlap in bytes.
struct KvMoveJob {
  std::byte* rows = nullptr;       // address of row 0
  const uint32_t* keep = nullptr;  // device, ascending: keep[i] >= i
  union {
    uint64_t block_stride = 0;
    const uint64_t* table;  // device: where blocks lie behind `rows`, which are by head
  };
  uint32_t row_bytes = 0;
  uint32_t offset = 0, bytes = 0;
  uint32_t n_keep = 0;
};

/// A column of bytes of stored rows to flat memory, or back: row i is at slot slots[i], or i where
/// there is no list, and at flat + i * flat_bytes. Jobs of one launch do not overlap in what they
/// write, and read nothing of it.
struct RowCopyJob {
  static constexpr uint32_t kByHead = 1, kToRows = 2;
  std::byte* rows = nullptr;  // of row 0: the bytes that are copied
  union {
    uint64_t block_stride = 0;
    const uint64_t* table;  // device, with kByHead: as KvMoveJob's
  };
  std::byte* flat = nullptr;
  const uint32_t* slots = nullptr;         // device
  uint32_t row_bytes = 0, flat_bytes = 0;  // from row to row
  uint32_t bytes = 0, n = 0;
  uint32_t flags = 0, reserved = 0;
};
/// `jobs` in device memory; the most rows and bytes of any of them.
struct RowCopyParams {
  const RowCopyJob* jobs = nullptr;
  uint32_t n_jobs = 0, most_rows = 0, most_bytes = 0;
};

/// What the logarithm of an unnormalised term is at most in blocks of archived keys
/// (kv/row_archive.h): out = max over queries of the group of scale * sum of max(q low, q high) +
/// log weight.
struct BoundsParams {
  const uint16_t* bounds = nullptr;  // [n_kv][stride][2][head_dim], bf16
  uint32_t stride = 0, n_blocks = 0;
  uint32_t n_kv = 0, head_dim = 0;
  /// As ScoreParams'.
  const float* queries = nullptr;
  uint32_t query_rows = 0;
  uint64_t first_query = 0;
  uint32_t n_queries = 0, n_heads = 0;
  float scale = 0.0f;
  const float* weight = nullptr;  // device, [n_queries]
  bool add = false;               // out is raised; otherwise it begins at -inf
  float* out = nullptr;           // [n_kv][n_blocks]
};

/// Keys of n rows that come to one block of archived keys: its bounds widen, or begin anew. Jobs of
/// one launch are of different blocks.
struct KeyBoundsJob {
  const std::byte* keys = nullptr;  // flat, as a head stores them
  uint16_t* bounds = nullptr;       // [2][head_dim], bf16: the lower ones, and the upper
  uint32_t row_bytes = 0, n = 0;
  uint32_t begins = 0, reserved = 0;
};
struct KeyBoundsParams {
  const KeyBoundsJob* jobs = nullptr;  // device
  uint32_t n_jobs = 0, head_dim = 0;
  KvDtype dtype = KvDtype::kF32;
};

/// A layer of a group whose rows are taken apart: in each of its first n_blocks blocks of 64 slots,
/// 64 K rows of all heads and 64 V rows become K and V rows of the first head, of the next one and
/// so on, in the same bytes.
struct ApartLayer {
  uint64_t offset = 0;         // of the layer in a block of the group
  uint32_t row_bytes[2] = {};  // of K and V rows
  /// Bytes of a head in each plane of such a row; heads of a plane lie side by side.
  uint32_t part_bytes[2][2] = {};
  uint32_t n_heads = 0, n_blocks = 0;
};
struct ApartParams {
  std::byte* base = nullptr;  // of the group's rows
  uint64_t block_stride = 0;
  const ApartLayer* layers = nullptr;  // device
  uint32_t n_layers = 0, most_blocks = 0;
  uint32_t granule = 1;  // a power of two up to 16 that divides every part_bytes
  std::byte* desks =
      nullptr;  // n_desks of desk_bytes each, aligned to 256: room for a layer's part
  uint64_t desk_bytes = 0;
  uint32_t n_desks = 0;
};

/// Moves of units of memory (kv/unit_moves.h), in batches of UnitMoves::kBatch.
struct UnitMoveParams {
  std::byte* base = nullptr;        // of unit 0
  uint64_t unit_bytes = 0;          // a multiple of 16
  std::byte* room = nullptr;        // of the unit beside the others
  uint32_t n_units = 0;             // its number
  const UnitMove* moves = nullptr;  // device
  uint32_t n_moves = 0;
};

/// One layer that reads the rows (the owner, then each layer that shares them: `add`).
struct ScoreParams {
  KvView kv;  // device addresses, the table's too
  uint32_t n_slots = 0;
  /// Query i: row (first_query + i) % query_rows of [query_rows][n_heads * head_dim]; aligned
  /// to 16.
  const float* queries = nullptr;
  uint64_t query_stride = 0;  // floats from row to row; 0: n_heads * head_dim
  uint32_t query_rows = 0;
  uint64_t first_query = 0;
  uint32_t n_queries = 0, n_heads = 0;
  float scale = 0.0f;
  const float* sinks = nullptr;       // device, [n_heads]: AttentionSpec::sinks; nullptr = none
  const uint32_t* visible = nullptr;  // device, [kv heads][n_queries]: a query sees [0, visible)
  const float* weight = nullptr;      // device, [n_queries]: factors of terms in max; nullptr = 1
  bool add = false;                   // sum += and max = max(max, .) instead of writing
  float* sum = nullptr;               // [kv heads][n_slots]
  float* max = nullptr;               // [kv heads][n_slots]
  std::byte* workspace = nullptr;     // DeviceKernels::score_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
};

/// Replay scores (cpu/replay.h) of rows that were read together, by their own queries.
struct ReplayParams {
  KvView kv;  // device addresses, the table's too
  uint32_t first_slot = 0, n_rows = 0;
  uint32_t tail_slot = 0;    // from here to first_slot slots hold consecutive positions, too
  uint32_t first_place = 0;  // of the first row among the kReplayChunk positions of its chunk
  uint32_t first_asked = 0;  // the first row whose query is asked
  uint32_t every = 1;        // rows from one of these to the next
  /// As ScoreParams'; `rotated`: as the codec of the rows' keys asks, else as RoPE left them.
  const float* queries = nullptr;
  uint64_t query_stride = 0;  // floats from row to row
  uint32_t query_rows = 0;
  uint64_t first_query = 0;
  bool rotated = false;
  uint32_t n_heads = 0;
  float scale = 0.0f;
  const float *cos = nullptr, *sin = nullptr;  // device, [n_half]: by which queries are turned
  uint32_t n_half = 0;                         // 0: they are not
  bool neighbours = false;                     // RopePairs
  float* scores = nullptr;                     // [kv heads][stride] by slot: those of the rows
  uint64_t stride = 0;
  bool add = false;    // scores are raised; otherwise they start from 0
  bool exact = false;  // ModelShape::exact; otherwise products may be of 16 bits
};

/// In lists of positions: there is no row.
inline constexpr uint32_t kNoPosition = UINT32_MAX;
/// Positions of a layer's rows: slots below n_compacted in lists, later ones follow on.
struct RowPositions {
  const uint32_t* lists = nullptr;  // seen by kernels; may be null when n_compacted is 0
  uint32_t stride = 0;              // from one KV head's list to the next; 0 = all agree
  uint32_t n_compacted = 0, tail_position = 0;
};

/// Terms of one layer, [kv heads][n_slots].
struct HeldTerms {
  float* terms = nullptr;
  uint32_t n_heads = 0, n_slots = 0;
};

/// term = (scale * sum + kValueFloor) * norm, or max(top, mean of scale * sum over the head's rows)
/// where `norms` is null.
struct JoinParams {
  HeldTerms out;
  const float *sum = nullptr, *top = nullptr, *norms = nullptr;
  float scale = 1.0f;
};

/// How terms become scores: averages over neighbours, or a hit marks what follows it.
enum class Smooth : uint8_t { kPool, kSpread };

/// One KV head's rows.
struct SelectList {
  float* terms = nullptr;    // [n_slots]; afterwards the first `kept` hold the list of kept slots
  uint32_t* keys = nullptr;  // [n_slots] scratch
  float scale = 1.0f;        // of the terms
  uint32_t n_slots = 0;
  KeepParts parts{};
};
/// `lists` in device memory.
struct SelectParams {
  const SelectList* lists = nullptr;
  uint32_t n_lists = 0;
  Smooth smooth = Smooth::kSpread;
  uint32_t reach = 12;  // rows that a hit marks, or the pool's width
};

/// The counters of a workspace's hand-over to the experts' host, in device memory.
struct HandoverState {
  uint32_t sent = 0;   // requests so far
  uint32_t waits = 0;  // the last one wants an answer
};

/// Tokens that may be chosen: bit t % 32 of word t / 32. Others, those behind the last word among
/// them, count as -inf, and their value comes out as -inf. Null: all may be chosen.
struct AllowedTokens {
  const uint32_t* words = nullptr;
  uint32_t n_words = 0;
};

/// The k best of each row, in order; equal ones by id, NaN counts as the lowest value.
struct BestParams {
  const float* logits = nullptr;  // [n_rows][n_vocab]
  uint32_t n_rows = 0, n_vocab = 0;
  uint32_t k = 0;                  // 1 .. DeviceKernels::most_best()
  AllowedTokens allowed;           // of every row
  float* values = nullptr;         // [n_rows][k], descending
  int32_t* ids = nullptr;          // [n_rows][k]
  std::byte* workspace = nullptr;  // DeviceKernels::best_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
};

}  // namespace sharpi::device
