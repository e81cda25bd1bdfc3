// SPDX-License-Identifier: MIT
// What recurrent mixers begin with: a causal convolution of TAPS taps, eight at most, over raw rows, and softplus.
float raw(uint64_t tail, uint64_t x, uint conv_dim, int t, uint c) {
  return t < 0 ? F32(tail).v[uint(t + int(TAPS) - 1) * conv_dim + c]
               : F32(x + uint64_t(t) * conv_dim * 4).v[c];
}
// Channel c of row t of x, in front of which `tail` has the last TAPS - 1 rows before it; bias: of channels, 0 = none.
float convolved(uint64_t taps, uint64_t bias, uint64_t tail, uint64_t x, uint conv_dim, int t, uint c) {
  float sum = bias == 0 ? 0.0 : F32(bias).v[c];
  EIGHT(i, 0,
        if (i < TAPS) sum += F32(taps).v[c * TAPS + i] * raw(tail, x, conv_dim, t + int(i) - int(TAPS) + 1, c);)
  return silu(sum);
}
// log(1 + e^x), to the last bits where e^x is small.
float softplus(float x) {
  if (x > 20.0) return x;
  const float e = exp(x), sum = 1.0 + e;
  return sum == 1.0 ? e : log(sum) * (e / (sum - 1.0));
}
