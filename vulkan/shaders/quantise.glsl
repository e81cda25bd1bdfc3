// SPDX-License-Identifier: MIT
// Rows in 8 bits: n bytes for each of `rows` rows, then for every 32 elements of each a scale and the sums of both
// halves, times it. Eight threads that follow each other in their subgroup have a run of 32.
#extension GL_KHR_shader_subgroup_shuffle : require
// Of magnitudes as bits, in which no number is the greatest.
uint most_of_eight(uvec4 bits) {
  uint x = max(max(bits.x, bits.y), max(bits.z, bits.w));
  for (uint i = 1; i < 8; i *= 2) x = max(x, subgroupShuffleXor(x, i));
  return x;
}
// A thread's number among the workgroup's, such that those of a subgroup follow each other.
uint lane() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }
// Elements 4 i to 4 i + 3 of row r; all eight threads of a run come here together.
void put_bytes(uint64_t to, uint rows, uint n, uint r, uint i, vec4 x) {
  const uint top = most_of_eight(floatBitsToUint(x) & 0x7FFFFFFFu);
  const float d = uintBitsToFloat(top) / 127.0, inverse = d < 1e-30 ? 0.0 : 1.0 / d;
  const ivec4 q = ivec4(roundEven(clamp(x * inverse, -127.0, 127.0)));
  const uvec4 b = uvec4(q) & 255u;
  U32(to).v[r * (n / 4) + i] = b.x | b.y << 8 | b.z << 16 | b.w << 24;
  float half_sum = float(q.x + q.y + q.z + q.w);
  half_sum += subgroupShuffleXor(half_sum, 1);
  half_sum += subgroupShuffleXor(half_sum, 2);
  const float other = subgroupShuffleXor(half_sum, 4);
  // What is no number in a run reaches every product with it.
  const float scale = top < 0x7F800000u ? d : uintBitsToFloat(0x7FC00000u);
  if (i % 8 == 0)
    F32x4(to + uint64_t(rows) * n).v[r * (n / 32) + i / 8] =
        vec4(scale, scale * half_sum, scale * other, 0.0);
}
