// SPDX-License-Identifier: MIT
// Routed experts that one tier computes for another (expert offloading: the GPU runs a layer, the
// CPU those of its experts whose weights are in host memory). The asking tier runs the router,
// sends rows with their expert ids, and adds the answer. The engine makes the two tiers known to
// each other.
//   compute()  one request at once: chunks of prompts, and steps that are not a captured graph
//   serve()    the requests of one decode step, a layer after the other, while the asking tier goes
//              on with its graph: the GPU waits for every answer, so microseconds count
// Thread rule: one call at a time per host; the functions of an ExpertLine are called by one
// thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"

namespace sharpi {

/// Rows that want routed experts of one layer. Host memory of the asking tier.
struct ExpertRequest {
  uint32_t layer = 0, n_rows = 0;
  const float* x = nullptr;        // [n_rows][n_embd] input of the FFN block, before its norm
  const int32_t* ids = nullptr;    // [n_rows][n_used]; a negative id is not wanted
  const float* weights = nullptr;  // [n_rows][n_used]
  float* y = nullptr;              // [n_rows][n_embd] out: sum_j weight[j] * expert, j ascending
};

/// Where serve() gets its requests.
class ExpertLine {
 public:
  virtual ~ExpertLine() = default;
  /// Waits for the next request, and may do something useful meanwhile; nullptr = there is none.
  virtual const ExpertRequest* next() = 0;
  /// The last request's y is complete. Not called for what next() did not return.
  virtual void answer() = 0;
};

class ExpertHost {
 public:
  virtual ~ExpertHost() = default;
  /// Rows that one request may have.
  virtual uint32_t max_rows() const = 0;
  virtual Status compute(const ExpertRequest& request) = 0;
  /// Until next() says that there is none left. A failure, thrown or returned, ends the asking
  /// tier's step with it.
  virtual Status serve(ExpertLine& line) = 0;
};

}  // namespace sharpi
