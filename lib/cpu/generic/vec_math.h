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

/// x Phi(x) = x (1 - erfc(x / sqrt2) / 2), with erfc(z) = e^(-z^2) q(1 / (1 + 0.4 z)) for z >= 0; q
/// is a fit of degree 8 (2.5e-8).
inline V::R vgelu_erf(V::R x) {
  const V::R z = V::mul(V::abs(x), V::set1(0.70710678f));
  const V::R t = V::div(V::set1(1.0f), V::fma(z, V::set1(0.4f), V::set1(1.0f)));
  V::R q = V::set1(0.07309622591f);
  q = V::fma(q, t, V::set1(-0.3888491889f));
  q = V::fma(q, t, V::set1(0.6731254416f));
  q = V::fma(q, t, V::set1(-0.3620448470f));
  q = V::fma(q, t, V::set1(0.4015029328f));
  q = V::fma(q, t, V::set1(0.1422292246f));
  q = V::fma(q, t, V::set1(0.2359504982f));
  q = V::fma(q, t, V::set1(0.2249896885f));
  const V::R half =
      V::mul(V::set1(0.5f), V::mul(V::mul(q, t), vexp(V::sub(V::zero(), V::mul(z, z)))));
  const V::R below = V::mul(x, half);
  return V::select_lt(x, V::zero(), below, V::sub(x, below));
}

inline V::R vsilu(V::R x) {
  return V::mul(x, vsigmoid(x));
}

}  // namespace
}  // namespace sharpi::cpu
