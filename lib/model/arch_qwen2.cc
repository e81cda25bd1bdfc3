// SPDX-License-Identifier: MIT
// Qwen2 and 2.5 dense: full attention with biases on Q, K and V and without QK norms, SwiGLU.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_qwen2(SpecBuilder& b, ModelSpec& spec) {
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  // Published configurations name a window without using it; a file cannot say which layers would.
  SHARPI_TRY_ASSIGN(const uint32_t window,
                    b.uint_or("attention.sliding_window", 0, Range{0, limits::kContext}));
  SHARPI_TRY_ASSIGN(const uint32_t n_ctx,
                    b.require_uint("context_length", Range{1, limits::kContext}));
  if (window != 0 && window < n_ctx) {
    return Status::error(Code::kUnsupported,
                         "a sliding window (%s = %u, below %s = %u) is not supported for %s",
                         b.full_key("attention.sliding_window").c_str(), window,
                         b.full_key("context_length").c_str(), n_ctx, b.arch().c_str());
  }
  return load_plain_decoder(b, {.bias = QkvBias::kRequired}, spec);
}

}  // namespace sharpi
