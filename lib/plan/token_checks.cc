// SPDX-License-Identifier: MIT
#include "plan/token_checks.h"

namespace sharpi {

Status check_token_ids(std::span<const int32_t> tokens, uint32_t n_vocab, size_t first,
                       const char* of) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && static_cast<uint32_t>(tokens[i]) < n_vocab) continue;
    return Status::error(Code::kInvalidArgument, "token %zu%s is %d, but the vocabulary has %u ids",
                         first + i, of, tokens[i], n_vocab);
  }
  return Status::ok();
}

Status check_probe_length(size_t n_probe, uint32_t n_chunk) {
  if (n_probe <= n_chunk) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "the probe has %zu tokens, which is more than a chunk of %u", n_probe,
                       n_chunk);
}

}  // namespace sharpi
