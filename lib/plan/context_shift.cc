// SPDX-License-Identifier: MIT
#include "plan/context_shift.h"

#include <algorithm>

namespace sharpi {
namespace {

// All far angles of a context of 32768 tokens are kept, so the table does not grow with longer
// contexts. In those, neighbouring rows may need different entries, which are then computed again:
// that takes 2 ms more a layer for every 131072 tokens read (heads of 64 pairs), where a table of
// all far angles would take 34 MB (heads of 512, a million tokens).
constexpr uint64_t kMostFar = 256;

}  // namespace

std::string why_context_ends(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk) {
  const auto text = [](const char* what, uint64_t least) {
    return std::string("; a bounded session goes on only if ") + what +
           " fit n_ctx: " + std::to_string(least) + " tokens";
  };
  if (session.kv_budget == 0) return " or a session with a kv_budget, which goes on";
  const uint64_t rows = uint64_t{session.kv_budget} + n_chunk;
  if (rows > session.n_ctx) return text("kv_budget and a chunk", rows);
  for (const LayerSpec& l : spec.layers) {
    const uint32_t window = l.window();
    const uint64_t ring = uint64_t{window} + session.rewind + session.n_draft + n_chunk;
    if (window != 0 && ring > session.n_ctx)
      return text("its sliding window, rewind, drafts and a chunk", ring);
  }
  return {};
}

KeyShiftSizes KeyShiftSizes::of(const ModelSpec& spec, uint32_t n_ctx) {
  KeyShiftSizes s;
  for (const LayerSpec& l : spec.layers) {
    if (!l.owns_kv() || l.attention.window != 0 || l.attention.rope.n_rot < 2) continue;
    s.pairs = std::max<uint64_t>(s.pairs, l.attention.rope.n_rot / 2);
    s.elements = std::max(s.elements, uint64_t{l.attention.n_kv_heads} * l.attention.head_dim);
  }
  // The base of positions moves on by half a context at a time.
  if (s.elements != 0) s.n_far = std::min<uint64_t>(n_ctx / 2 / kNear + 1, kMostFar);
  return s;
}

uint64_t KeyShiftSizes::bytes() const {
  const uint64_t tables = (kNear + n_far) * 2 * pairs * sizeof(float) + n_far * sizeof(uint32_t);
  return pairs * sizeof(double) + tables + (kPieceRows + 1) * elements * sizeof(float);
}

uint64_t key_shift_bytes(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk) {
  if (!why_context_ends(spec, session, n_chunk).empty()) return 0;
  return KeyShiftSizes::of(spec, session.n_ctx).bytes();
}

}  // namespace sharpi
