// SPDX-License-Identifier: MIT
// Rows in 8 bits: n bytes for each of `rows` rows, then for every 16 elements of each a scale and their sum, times it.
// Four threads that follow each other in their subgroup have a run of 16.
#extension GL_KHR_shader_subgroup_shuffle : require
// Of magnitudes as bits, in which no number is the greatest.
uint most_of_four(uvec4 bits) {
  uint x = max(max(bits.x, bits.y), max(bits.z, bits.w));
  x = max(x, subgroupShuffleXor(x, 1));
  return max(x, subgroupShuffleXor(x, 2));
}
// A thread's number among the workgroup's, such that those of a subgroup follow each other.
uint lane() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }
// Elements 4 i to 4 i + 3 of row r; all four threads of a run come here together.
void put_bytes(uint64_t to, uint rows, uint n, uint r, uint i, vec4 x) {
  const uint top = most_of_four(floatBitsToUint(x) & 0x7FFFFFFFu);
  const float d = uintBitsToFloat(top) / 127.0, inverse = d < 1e-30 ? 0.0 : 1.0 / d;
  const ivec4 q = ivec4(roundEven(clamp(x * inverse, -127.0, 127.0)));
  const uvec4 b = uvec4(q) & 255u;
  U32(to).v[r * (n / 4) + i] = b.x | b.y << 8 | b.z << 16 | b.w << 24;
  float sum = float(q.x + q.y + q.z + q.w);
  sum += subgroupShuffleXor(sum, 1);
  sum += subgroupShuffleXor(sum, 2);
  // What is no number in a run reaches every product with it.
  const float scale = top < 0x7F800000u ? d : uintBitsToFloat(0x7FC00000u);
  if (i % 4 == 0) F32x2(to + uint64_t(rows) * n).v[r * (n / 16) + i / 4] = vec2(scale, scale * sum);
}
