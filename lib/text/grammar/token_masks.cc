// SPDX-License-Identifier: MIT
#include "text/grammar/token_masks.h"

#include <algorithm>

namespace sharpi::grammar {
namespace {

void add_bits(const std::vector<uint32_t>& bits, uint32_t* out) {
  for (size_t i = 0; i < bits.size(); ++i) out[i] |= bits[i];
}

}  // namespace

void TerminalMask::add_to(uint32_t* out) const {
  add_bits(bits, out);
  for (const int32_t token : tokens) allow_token(out, static_cast<uint32_t>(token));
}

void CountedTokens::add_to(uint32_t low, uint32_t high, uint32_t* out) const {
  const size_t n = high >= n_up_to.size() ? tokens.size() : n_up_to[high];
  if (n == tokens.size()) {
    add_bits(bits, out);
  } else if (n < tokens.size() / 2) {
    for (size_t i = 0; i < n; ++i) allow_token(out, static_cast<uint32_t>(tokens[i]));
  } else {
    std::vector<uint32_t> some = bits;
    for (size_t i = n; i < tokens.size(); ++i) {
      const auto token = static_cast<uint32_t>(tokens[i]);
      some[token / 32] &= ~(1u << (token % 32));
    }
    add_bits(some, out);
  }
  for (const Entry& entry : closing) {
    if (entry.count >= low && entry.count <= high) allow_token(out, entry.what);
  }
}

std::shared_ptr<const CountedTokens> SharedMasks::find(uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : found->second;
}

void SharedMasks::keep(uint64_t key, std::shared_ptr<const CountedTokens> tokens) {
  const std::lock_guard lock(mutex_);
  known_.try_emplace(key, std::move(tokens));
}

}  // namespace sharpi::grammar
