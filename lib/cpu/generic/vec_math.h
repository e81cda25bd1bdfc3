// SPDX-License-Identifier: MIT
// Elementary functions on the vectors V of vec_<isa>.h, within a few ulp over the whole range.
// Included after exactly one vec_<isa>.h; everything has internal linkage.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sharpi::cpu {
namespace {

/// exp(x) = 2^n * e^r with |r| <= ln2/2; e^r = 1 + r + r^2 q(r), q a degree-4 minimax fit
/// (3e-9 relative). Subnormal results are kept, overflow gives infinity, NaN stays NaN.
inline V::R vexp(V::R x) {
  x = V::min(V::set1(89.0f), V::max(V::set1(-104.0f), x));
  const V::R n = V::round(V::mul(x, V::set1(1.44269504f)));
  V::R r = V::fnma(n, V::set1(0.693359375f), x);  // ten bits: n times it is exact
  r = V::fnma(n, V::set1(-2.12194440e-4f), r);
  V::R q = V::set1(1.381432072e-3f);
  q = V::fma(q, r, V::set1(8.368851068e-3f));
  q = V::fma(q, r, V::set1(4.166840108e-2f));
  q = V::fma(q, r, V::set1(0.1666651952f));
  q = V::fma(q, r, V::set1(0.4999999337f));
  q = V::fma(V::mul(r, r), q, r);
  return V::scale2(V::add(q, V::set1(1.0f)), n);
}

inline V::R vsigmoid(V::R x) {
  const V::R one = V::set1(1.0f);
  return V::div(one, V::add(one, vexp(V::sub(V::zero(), x))));
}

/// tanh: x + x^3 p(x^2) near zero (fit on x^2 <= 0.4, 5e-9), else 1 - 2 / (e^2|x| + 1).
inline V::R vtanh(V::R x) {
  const V::R a = V::abs(x);
  const V::R z = V::mul(x, x);
  V::R p = V::set1(-5.660789924e-3f);
  p = V::fma(p, z, V::set1(2.060200857e-2f));
  p = V::fma(p, z, V::set1(-5.372923030e-2f));
  p = V::fma(p, z, V::set1(0.1333132896f));
  p = V::fma(p, z, V::set1(-0.3333327832f));
  const V::R near_zero = V::fma(V::mul(z, p), x, x);
  const V::R e = vexp(V::add(a, a));
  const V::R far = V::sub(V::set1(1.0f), V::div(V::set1(2.0f), V::add(e, V::set1(1.0f))));
  return V::select_lt(a, V::set1(0.625f), near_zero, V::copysign(far, x));
}

/// 0.5 g (1 + tanh(u)) = g * sigmoid(2u), which has no cancellation for negative g.
inline V::R vgelu(V::R g) {
  constexpr float kTwoSqrt2OverPi = 1.5957691216f;
  const V::R cube = V::mul(V::mul(g, g), g);
  const V::R u2 = V::mul(V::set1(kTwoSqrt2OverPi), V::fma(V::set1(0.044715f), cube, g));
  return V::mul(g, vsigmoid(u2));
}

inline V::R vsilu(V::R x) {
  return V::mul(x, vsigmoid(x));
}

}  // namespace
}  // namespace sharpi::cpu
