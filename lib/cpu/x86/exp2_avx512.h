// SPDX-License-Identifier: MIT
// Powers of two for the weights of attention, for kernel files that include vec_avx512.h before it:
// internal linkage. Thread rule: pure functions.
#pragma once

namespace sharpi::cpu {
namespace {

/// 2^t for t <= 0, good to 3e-6, a tenth or less of what weights are rounded to (bf16, 15 bits).
/// 2^t = 2^floor(t) (1 + f q(f)), f the fraction; minimax fit. 2^-inf is 0 and 2^0 is 1.
[[gnu::always_inline]] inline V::R exp2_for_weights(V::R t) {
  const V::R f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  V::R q = V::set1(1.342668066e-2f);
  q = V::fma(q, f, V::set1(5.224248144e-2f));
  q = V::fma(q, f, V::set1(0.2412802003f));
  q = V::fma(q, f, V::set1(0.6930448457f));
  return _mm512_scalef_ps(V::fma(q, f, V::set1(1.0f)), t);
}

}  // namespace
}  // namespace sharpi::cpu
