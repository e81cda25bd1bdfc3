// SPDX-License-Identifier: MIT
// Rows change hands between kernels and the host while both run: what a recorded decode step does
// where a layer's experts are on the CPU. The device writes rows and ids into pinned memory and
// then a number that the host polls; a later kernel waits for the host's number and adds its
// answer. Numbers count the requests of a workspace, so a recorded graph needs none of its own.
// Thread rule: launches are asynchronous on the stream and can be captured.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "device/kernel_params.h"

namespace sharpi::cuda {

using device::HandoverState;

struct SendExpertsParams {
  const float* x = nullptr;  // [n_rows][n_embd]
  uint32_t n_rows = 0, n_embd = 0, n_used = 0;
  const int32_t* ids = nullptr;    // [n_rows][n_used]
  const float* weights = nullptr;  // [n_rows][n_used]
  /// [expert] negative: the host computes it; nullptr: it computes all. Rows without such an expert
  /// want no answer, and then x stays here.
  const int32_t* slot_of_expert = nullptr;
  HandoverState* state = nullptr;
  // Pinned.
  float* to_x = nullptr;
  int32_t* to_ids = nullptr;
  float* to_weights = nullptr;
  uint32_t* sent = nullptr;  // state->sent, once all of the above can be read
  bool pdl = false;
};
Status launch_send_experts(const SendExpertsParams& p, cudaStream_t stream);

struct AddAnswerParams {
  const float* answer = nullptr;  // [n_rows][n_embd] pinned
  uint32_t n_rows = 0, n_embd = 0;
  /// The request that is answered when *done has reached its number; nullptr: it is there already.
  const HandoverState* state = nullptr;
  const uint32_t* done = nullptr;  // pinned
  float* y = nullptr;              // [n_rows][n_embd]
  bool add = false;                // y += instead of y =
  bool pdl = false;
};
Status launch_add_answer(const AddAnswerParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
