// SPDX-License-Identifier: MIT
// The rotation of kv/rotation.h over head[0, n), b elements at a time, by all threads.
const uint kSigns[4] = {0x9E3779B9u, 0x7F4A7C15u, 0xF39CC060u, 0x5CEDC834u};
void change_signs(uint n, uint b) {
  for (uint i = me(); i < n; i += threads()) {
    const uint at = i % b;
    if ((kSigns[at / 32] >> (at % 32) & 1u) != 0) head[i] = -head[i];
  }
  barrier();
}
void hadamard(uint n, uint b) {
  for (uint apart = 1; apart < b; apart *= 2) {
    for (uint i = me(); i < n / 2; i += threads()) {
      const uint at = i / apart * 2 * apart + i % apart;
      const float low = head[at], high = head[at + apart];
      head[at] = low + high;
      head[at + apart] = low - high;
    }
    barrier();
  }
  const float scale = 1.0 / sqrt(float(b));
  for (uint i = me(); i < n; i += threads()) head[i] *= scale;
  barrier();
}
void rotate_head(uint n, uint b) {
  if (b == 0) return;
  change_signs(n, b);
  hadamard(n, b);
}
void unrotate_head(uint n, uint b) {
  if (b == 0) return;
  hadamard(n, b);
  change_signs(n, b);
}
