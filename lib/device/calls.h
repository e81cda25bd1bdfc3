// SPDX-License-Identifier: MIT
// From a submission to kernels. run() takes what a call shares with others (the device's
// launch_mutex(), the expert slots), compute() describes the pass (rows_of(), make_pass()), fills
// the table that kernels read and makes the pass. Decode steps differ from each other only in that
// table, so each is captured once as a graph, for each segment and number of rows (run_step()).
// Passes of a pipeline are given by start(), which takes the same way and waits for nothing.
// Thread rule: a call has a workspace of its own.
#pragma once

#include "device/forward.h"
#include "device/loaded_model.h"
#include "device/session.h"
#include "tier/pipeline_stage.h"

namespace sharpi::device {

class Calls final : public PipelineStage {
 public:
  Calls(const LoadedModel& model, const Forward& forward) : m_(model), forward_(forward) {}
  /// TierModel::run().
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) const;
  uint32_t passes(uint32_t n_rows) const override;
  Status start(const Segment& segment, const Submission& rows, Workspace& workspace) const override;
  Status finish(const Segment& segment, const Submission& rows,
                Workspace& workspace) const override;
  Status drain(Workspace& workspace) const override;
  /// Records a step of every batch size, and a verification of every number of drafts. Under the
  /// device's launch_mutex() where blocks_meet.
  Status warm_up(DeviceWorkspace& ws) const;

 private:
  /// What decides about a pass, whoever's rows they are.
  struct Rows {
    uint32_t n = 0, n_sequences = 0, n_head = 0, n_adapters = 0;
    bool in_order = true;       // head row i is row i
    bool drafted = false;       // rows of sequences may be taken back
    bool step = true;           // a recorded step serves them
    bool by_head = false;       // Pass::by_head
    const float* in = nullptr;  // hidden rows before and after the segment
    float* out = nullptr;
    bool one_each() const { return n == n_sequences; }
  };
  bool launches_alone(const Segment& segment, const Submission& rows) const;
  Status check_fits(const Submission& rows, const DeviceWorkspace& ws) const;
  Status compute(const Segment& segment, const Submission& rows, DeviceWorkspace& ws) const;
  Status compute_streamed(const Segment& segment, const Submission& rows,
                          DeviceWorkspace& ws) const;
  Rows rows_of(const Segment& segment, const Submission& rows, DeviceWorkspace& ws) const;
  bool is_step(const Segment& segment, const Submission& rows, const Rows& r,
               const DeviceWorkspace& ws) const;
  bool records_drafts(const Segment& segment) const;
  Pass make_pass(const Segment& segment, DeviceWorkspace& ws, uint32_t format, const Rows& r) const;
  Status fill_table(const Submission& rows, DeviceWorkspace& ws) const;
  void fill_head_rows(const Submission& rows, DeviceWorkspace& ws, Rows* r) const;
  void fill_ple(const Submission& rows, DeviceWorkspace& ws) const;
  Status give_up(const Status& why, DeviceWorkspace& ws) const;
  // calls_rows.cc
  Status upload(Pass& p) const;
  Status take_hidden(Pass& p) const;
  Status send_hidden(Pass& p) const;
  void hand_out_hidden(const Segment& segment, const Submission& rows, const float* kept) const;
  // calls.cc
  Status run_segment(const Segment& segment, Pass& p) const;
  Status send_best(const Submission& rows, const DeviceWorkspace& ws) const;
  Status run_step(const Segment& segment, Pass& p, uint32_t format) const;
  Status serve_step(const Segment& segment, Pass& p, const Recording& step) const;
  Status record(const Segment& segment, Pass& p, std::unique_ptr<Recording>* out) const;
  size_t step_kinds() const;
  size_t step_lists() const;
  size_t step_index(const Segment& segment, const Pass& p, uint32_t format) const;
  Status record_chunk(DeviceWorkspace& ws, const Rows& kind) const;
  Status warm_up_steps(DeviceWorkspace& ws, Rows kind) const;
  std::vector<Rows> warm_kinds() const;
  Rows rows_of_nobody(const Segment& segment, const DeviceWorkspace& ws, uint32_t n) const;
  Status warm_up_rows(DeviceWorkspace& ws, Rows kind) const;

  const LoadedModel& m_;
  const Forward& forward_;
};

}  // namespace sharpi::device
