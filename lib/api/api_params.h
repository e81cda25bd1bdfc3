// SPDX-License-Identifier: MIT
// Parameter structs at the boundary: their defaults, what happens when caller and library were
// built from different headers, and the range of every field. What comes out is complete, of the
// current size and in range; contradictions that need a model are the planner's and the engine's
// business. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "sharpi.h"

namespace sharpi::api {

/// How one struct of the ABI has grown. Structs are appended to only.
struct StructInfo {
  const char* name;
  size_t v1_size;  // in the first version that had it; less is a forgotten init
  size_t size;     // now
};

/// Copies the part of `in` that both sides know over `out`, which holds the defaults.
/// kInvalidArgument: struct_size below v1 or absurd. kUnsupported: a non-zero byte behind what this
/// library knows, named by its offset.
Status adopt_struct(const StructInfo& info, const void* in, void* out);
/// Writes `defaults` as far as the caller's struct goes, zeroes behind them, struct_size = size.
void init_struct(const StructInfo& info, const void* defaults, void* out, size_t size) noexcept;

sharpi_context_params default_context_params() noexcept;
sharpi_session_params default_session_params() noexcept;
sharpi_device_request default_device_request() noexcept;
sharpi_plan_params default_plan_params() noexcept;
sharpi_prefill_params default_prefill_params() noexcept;
sharpi_compact_params default_compact_params() noexcept;
sharpi_recall_params default_recall_params() noexcept;

/// A plan's parameters with their session template and list of devices beside them, which
/// `params.session` and `params.devices` point to.
struct PlanRequest {
  sharpi_plan_params params;
  sharpi_session_params session;
  std::vector<sharpi_device_request> devices;
  PlanRequest() = default;
  PlanRequest(const PlanRequest&) = delete;
  PlanRequest& operator=(const PlanRequest&) = delete;
};

/// The range of every field; kInvalidArgument names field, value and range. Pre: complete.
Status check_params(const sharpi_context_params& p);
Status check_params(const sharpi_session_params& p);
Status check_params(const sharpi_device_request& p);
Status check_params(const sharpi_plan_params& p);  // without the session template
Status check_params(const sharpi_prefill_params& p);
Status check_params(const sharpi_compact_params& p);
Status check_params(const sharpi_recall_params& p);

/// Completes and checks; a null `in` gives the defaults.
Status read_params(const sharpi_context_params* in, sharpi_context_params* out);
Status read_params(const sharpi_session_params* in, sharpi_session_params* out);
Status read_params(const sharpi_plan_params* in, PlanRequest* out);
Status read_params(const sharpi_prefill_params* in, sharpi_prefill_params* out);
Status read_params(const sharpi_compact_params* in, sharpi_compact_params* out);
Status read_params(const sharpi_recall_params* in, sharpi_recall_params* out);
/// Completes only: the sampler checks its own fields, whose limits depend on the vocabulary.
Status read_params(const sharpi_sampler_params* in, sharpi_sampler_params* out);
Status read_params(const sharpi_sample_params* in, sharpi_sample_params* out);

}  // namespace sharpi::api
