// SPDX-License-Identifier: MIT
// From a submission to kernels: the call table, hidden rows that change hands, captured decode
// steps, one graph for each segment and number of rows. Thread rule: a call has a workspace of its
// own.
#pragma once

#include "cuda/cuda_session.h"
#include "cuda/forward.h"
#include "cuda/loaded_model.h"

namespace sharpi::cuda {

class Calls {
 public:
  Calls(const LoadedModel& model, const Forward& forward) : m_(model), forward_(forward) {}
  /// TierModel::run().
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) const;
  /// Records a step of every batch size, and a verification of every number of drafts. Under the
  /// device's turn() where blocks_meet.
  Status warm_up(CudaWorkspace& ws) const;

 private:
  bool takes_turn(const Segment& segment, const Submission& rows) const;
  Status run_format(const Segment& segment, const Submission& rows, CudaWorkspace& ws,
                    uint32_t format) const;
  Status run_streamed(const Segment& segment, const Submission& rows, CudaWorkspace& ws,
                      uint32_t format) const;
  Status fill_table(const Submission& rows, CudaWorkspace& ws) const;
  uint32_t fill_head_rows(const Submission& rows, CudaWorkspace& ws, bool* in_order) const;
  void fill_ple(const Submission& rows, CudaWorkspace& ws) const;
  Status upload(Pass& p) const;
  Status run_segment(const Segment& segment, Pass& p) const;
  Status send_best(const Submission& rows, const CudaWorkspace& ws) const;
  void hand_out_hidden(const Segment& segment, const Submission& rows, CudaWorkspace& ws) const;
  void place(const Segment& segment, const float* in, float* out, Pass* p) const;
  Status run_graph(const Segment& segment, Pass& p, uint32_t format) const;
  Status serve_graph(const Segment& segment, Pass& p, cudaGraphExec_t graph) const;
  Status capture(const Segment& segment, Pass& p, cudaGraphExec_t* out) const;
  bool records(const Segment& segment) const;
  Status warm_up_rows(CudaWorkspace& ws, uint32_t n, bool drafted) const;

  const LoadedModel& m_;
  const Forward& forward_;
};

}  // namespace sharpi::cuda
