// SPDX-License-Identifier: MIT
// The batch table: everything about a call's rows and sessions that kernels read at run time. The
// host fills a mirror of it and uploads it once per call, so that a captured graph stays valid for
// any sessions and any lengths; kernels take the table's addresses and the constants of a layer.
//   causality   full attention counts slots: row i of a sequence sees slots
//               [first, n_slots + i]; windowed layers count positions: (p - window, p].
//   full        the rows of the call lie at slots n_slots + i of the store.
//   windowed    position t < position of row 0: ring, slot t % ring_slots; else chunk scratch.
// The table and the committed states are complete before the first kernel of a call starts, so
// kernels may read them before they wait for the grid in front of them.
// Thread rule: plain values; the table is read-only while kernels that got it run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "kv/kv_view.h"

namespace sharpi::device {

/// Sessions of one call.
constexpr uint32_t kMaxSequences = kMaxBatch;
/// BatchRow::sequence of a row that pads the batch: kernels leave its outputs alone.
constexpr uint32_t kNoSequence = 0xFFFFFFFFu;

enum BatchFlags : uint32_t {
  kSequenceNoContext = 1,  // rows see each other only (Submission::no_context)
  kSequenceQueryRing = 2,  // `queries` is a ring: row position % query_rows; else row index
  kSequenceDrafted = 4,    // rows may be taken back: they go to `keep`, not to state_out
};

struct BatchRow {
  uint32_t sequence = kNoSequence;
  uint32_t index = 0;     // of the row within its sequence
  uint64_t position = 0;  // what RoPE sees
};

/// n_rows = 0 is allowed (a padded batch).
struct BatchSequence {
  uint32_t first_row = 0, n_rows = 0;
  uint64_t position = 0;     // of row 0
  uint32_t chunk_block = 0;  // its first block of 64 rows in the chunk scratch of windowed layers
  uint32_t flags = 0;
  const std::byte* state_in = nullptr;  // committed recurrent state of all layers of the session
  std::byte* state_out = nullptr;       // working copy; must not overlap state_in
  float* queries = nullptr;             // captured queries of all layers, nullptr = no capture
  uint32_t query_rows = 0;              // rows per layer there
  /// Rows of an earlier pass that recurrent layers still have to apply to state_in, and where such
  /// rows are: planes of kept_rows rows of every layer (DraftLayout, tier/session_layout.h).
  uint32_t n_pending = 0;
  const float* kept = nullptr;
  float* keep = nullptr;  // the same of this pass, where kSequenceDrafted is set
  uint32_t kept_rows = 0;
  uint32_t reserved = 0;
};

/// Rows of one sequence: of one layer in the model's calls, where several may share a base.
struct BatchGroup {
  std::byte* base = nullptr;
  uint32_t n_slots = 0;     // live slots before this call; unused by rings
  uint32_t ring_slots = 0;  // 0 = not a ring
};

/// BatchGroup::ring_slots of rows in blocks of one KV head (kv/head_blocks.h), in calls whose Pass
/// is by_head. `base` is then the address of the layer's KvHeadRows, one for each of its KV heads,
/// and n_slots counts those of its group.
constexpr uint32_t kRowsByHead = 0xFFFFFFFFu;
/// Rows of one KV head: slot s is in the block at base + blocks[s / 64], which has 64 K rows and
/// v_offset behind the first of them 64 V rows, each as a layer of one head would store it.
struct KvHeadRows {
  std::byte* base = nullptr;
  const uint64_t* blocks = nullptr;
  uint64_t v_offset = 0;
  uint32_t lag = 0;  // slots fewer than the group's
  uint32_t reserved = 0;
};

/// What an adapter has of one weight (AdapterPair), on the device; a == nullptr: nothing.
struct AdapterEntry {
  const float* a = nullptr;  // [rank][n_in]
  const float* b = nullptr;  // [rank][n_out]
  uint32_t rank = 0;
  float scale = 1.0f;
};
/// An adapter of a sequence: the k-th of sequence s is number s * kMaxAdapters + k of a call's.
struct BatchAdapter {
  const AdapterEntry* table = nullptr;  // by the index of a weight in the model's file; null: none
  float scale = 1.0f;
  uint32_t reserved = 0;
};

struct BatchShape {
  uint32_t max_rows = 0, max_sequences = 0, n_groups = 0;
};

/// Addresses inside the table, the same offsets on host and device. Rows come last: an upload of
/// batch_upload_bytes() carries what a call of n_rows needs.
struct BatchTable {
  BatchSequence* sequences = nullptr;  // [max_sequences]
  BatchGroup* groups = nullptr;        // [max_sequences][n_groups]
  BatchRow* rows = nullptr;            // [max_rows]
  uint32_t n_groups = 0;
};

constexpr uint64_t batch_rows_offset(const BatchShape& s) {
  return uint64_t{s.max_sequences} * sizeof(BatchSequence) +
         uint64_t{s.max_sequences} * s.n_groups * sizeof(BatchGroup);
}
constexpr uint64_t batch_table_bytes(const BatchShape& s) {
  return batch_rows_offset(s) + uint64_t{s.max_rows} * sizeof(BatchRow);
}
constexpr uint64_t batch_upload_bytes(const BatchShape& s, uint32_t n_rows) {
  return batch_rows_offset(s) + uint64_t{n_rows} * sizeof(BatchRow);
}
/// `memory`: batch_table_bytes(), aligned to 16, on the host or on the device.
inline BatchTable batch_table_at(const BatchShape& s, std::byte* memory) {
  BatchTable t;
  t.sequences = reinterpret_cast<BatchSequence*>(memory);
  t.groups = reinterpret_cast<BatchGroup*>(memory + s.max_sequences * sizeof(BatchSequence));
  t.rows = reinterpret_cast<BatchRow*>(memory + batch_rows_offset(s));
  t.n_groups = s.n_groups;
  return t;
}

/// A call: the table and how many rows and sequences of it are used. n_rows == n_sequences promises
/// that sequence i has row i or none (decode).
struct Batch {
  BatchTable table;     // device addresses
  uint32_t n_rows = 0;  // padding included
  uint32_t n_sequences = 0;
};

/// Constants of one layer's stored rows. K row of slot s of a sequence:
///   group.base + (s / 64) * block_stride + k_offset + (s % 64) * k_row_bytes
/// Chunk scratch of windowed layers (one for all layers, addressed with this layer's row bytes):
/// blocks of 64 * (k_row_bytes + v_row_bytes), K rows first; row i of a sequence lies in block
/// chunk_block + i / 64. Where one row is key and value, V rows are the K rows, and are written
/// once.
struct KvLayer {
  uint32_t group = 0;     // entry of a sequence in BatchTable::groups
  uint32_t n_heads = 0;   // KV heads
  uint32_t head_dim = 0;  // multiple of 8
  uint32_t window = 0;    // 0 = full attention
  KvDtype k_dtype = KvDtype::kF32, v_dtype = KvDtype::kF32;
  uint32_t k_row_bytes = 0, v_row_bytes = 0;
  uint64_t block_stride = 0, k_offset = 0, v_offset = 0;
  std::byte* chunk = nullptr;  // windowed layers: the chunk scratch, aligned to 256
};

}  // namespace sharpi::device
