// SPDX-License-Identifier: MIT
// One pass of a GPU tier's model over a segment.
// Thread rule: of the call that runs; formats are immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "device/workspace.h"
#include "tier/tier.h"

namespace sharpi::device {

/// How sessions of one kind store rows: what a recorded step has baked in.
struct KvFormat {
  std::vector<KvLayer> layers;  // per layer of the model; owners only, others empty
};

class LoadedModel;

/// One pass of one submission over one segment: what every launch gets.
struct Pass {
  const LoadedModel& model;
  const Submission* rows = nullptr;  // null while a step of padding rows is recorded
  DeviceWorkspace& ws;
  const KvFormat& format;
  bool step = false;  // recorded, or to be
  Batch batch{};
  uint32_t n_head_rows = 0;
  bool head_rows_in_order = false;  // head row i is row i
  bool transient = false;
  bool single_rows = false;   // one row per sequence
  bool drafted = false;       // rows of sequences may be taken back
  bool by_head = false;       // those of some sequences are in blocks of one KV head
  bool brings_table = false;  // the segment is the call's first here
  bool streamed = false;      // weights of blocks that are placed elsewhere come over for the pass
  bool per_layer = false;     // per-layer inputs are made in this segment, of its first rows
  const float* hidden_in = nullptr;  // rows handed over before and after the segment
  float* hidden_out = nullptr;
  bool keeps_hidden = false;  // the rows that the head reads go to the workspace's handover()
  bool fuses = false;         // a captured step of few rows: its products go in few launches
  bool recorded = false;      // a recording is being made
  uint32_t n_adapters = 0;    // the most that a sequence has
  uint32_t n_rows() const { return batch.n_rows; }
  /// Rows that a windowed layer stores go to its ring at once; else they wait in the chunk scratch.
  bool rows_to_ring() const { return single_rows && !transient; }
  /// What is launched next puts rows into rings.
  void writes_rings() const {
    if (rows != nullptr && rows->rings_written != nullptr) *rows->rings_written = true;
  }
};

}  // namespace sharpi::device
