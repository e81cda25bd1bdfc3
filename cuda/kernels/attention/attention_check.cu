// SPDX-License-Identifier: MIT
// A program of its own: attention, qkv, delta net, scoring and compaction kernels against loops in
// double, and their speed on the shapes of published models.
// Usage: attention_check [test, or its parts: attention, rooms, states, replays] [bench] [q4]
// [rows] [replay] [small] [least] [one1 .. one10]
#include <cstring>
#include <memory>

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/attention/attention_step_plan.h"
#include "cuda/kernels/check_device.h"
#include "cuda/kernels/check_util.h"
#include "cuda/kernels/delta/delta_net.h"
#include "cuda/kernels/paths.h"
#include "kv/codec.h"

namespace sharpi::cuda::check {
namespace {

struct SequenceCase {
  uint32_t past;  // live slots (full) or position of the first row (windowed)
  uint32_t n_rows;
  bool alone = false;
};

struct AttentionCase {
  uint32_t n_heads, n_kv, dim;
  KvDtype k, v;
  uint32_t window, ring;
  std::vector<SequenceCase> sequences;
  bool gate = false;
  float spread = 1.0f;  // of the queries
};

std::string describe(const KernelConfig& c, const AttentionCase& k) {
  char text[256];
  std::snprintf(text, sizeof text, "%s heads %u/%u x %u %s/%s window %u ring %u%s:",
                c.deterministic ? "deterministic"
                : c.exact       ? "exact"
                                : "fast",
                k.n_heads, k.n_kv, k.dim, name_of(k.k), name_of(k.v), k.window, k.ring,
                k.gate ? " gate" : "");
  std::string s = text;
  for (const SequenceCase& q : k.sequences) {
    s += " " + std::to_string(q.past) + "+" + std::to_string(q.n_rows) + (q.alone ? "!" : "");
  }
  return s;
}

/// K and V of one sequence, stored on the device as a session would hold them, and their values.
struct StoredRows {
  std::vector<float> k, v;  // decoded, [past + n_rows][n_kv * dim]
  std::vector<std::byte> bytes;
  std::unique_ptr<Buffer<std::byte>> device;
};

/// Fills store and chunk scratch (its bytes in `chunk`, from block `chunk_block`).
void store_rows(const AttentionCase& c, const KvLayer& l, const SequenceCase& q,
                uint32_t chunk_block, std::vector<std::byte>* chunk, StoredRows* out) {
  const uint64_t n = uint64_t{c.n_kv} * c.dim;
  const uint32_t all = q.past + q.n_rows;
  const uint32_t slots = c.window == 0 ? all : c.ring;
  out->bytes.assign(blocks_of(slots) * l.block_stride, std::byte{0xFF});
  out->k.resize(all * n);
  out->v.resize(all * n);
  const uint64_t chunk_stride = uint64_t{kKvBlockSlots} * (l.k_row_bytes + l.v_row_bytes);
  std::vector<std::byte> lost(std::max(l.k_row_bytes, l.v_row_bytes));
  for (uint32_t t = 0; t < all; ++t) {
    const std::vector<float> k = random_floats(n, 1.0f), v = random_floats(n, 1.0f);
    std::byte *to_k = lost.data(), *to_v = lost.data();
    if (c.window != 0 && t >= q.past) {
      const uint32_t i = t - q.past;
      to_k = chunk->data() + (chunk_block + i / kKvBlockSlots) * chunk_stride +
             i % kKvBlockSlots * l.k_row_bytes;
      to_v = chunk->data() + (chunk_block + i / kKvBlockSlots) * chunk_stride +
             uint64_t{kKvBlockSlots} * l.k_row_bytes + i % kKvBlockSlots * l.v_row_bytes;
    } else if (c.window == 0 || t + c.ring >= q.past) {
      const uint32_t slot = c.window == 0 ? t : t % c.ring;
      std::byte* block = out->bytes.data() + slot / kKvBlockSlots * l.block_stride;
      to_k = block + l.k_offset + slot % kKvBlockSlots * l.k_row_bytes;
      to_v = block + l.v_offset + slot % kKvBlockSlots * l.v_row_bytes;
    }
    put_row(c.k, c.dim, k.data(), n, to_k, out->k.data() + t * n);
    put_row(c.v, c.dim, v.data(), n, to_v, out->v.data() + t * n);
  }
  out->device = std::make_unique<Buffer<std::byte>>(out->bytes);
}

struct Reference {
  std::vector<double> o, beside_sinks;
  double top = 0;  // largest |score| in nats
};

/// o of all rows, [n_rows][n_heads * dim], without sinks and with a sink of each head.
Reference reference(const AttentionCase& c, const std::vector<StoredRows>& stored,
                    const std::vector<float>& q, uint64_t q_stride, const std::vector<float>& gate,
                    const std::vector<float>& sinks, float scale) {
  uint32_t n_rows = 0;
  for (const SequenceCase& s : c.sequences) n_rows += s.n_rows;
  const uint64_t width = uint64_t{c.n_heads} * c.dim, n = uint64_t{c.n_kv} * c.dim;
  Reference r;
  r.o.assign(n_rows * width, 0.0);
  r.beside_sinks = r.o;
  std::vector<double> tops(n_rows * c.n_heads);
  parallel_for(uint64_t{n_rows} * c.n_heads, [&](size_t item) {
    const auto row = static_cast<uint32_t>(item / c.n_heads);
    const auto head = static_cast<uint32_t>(item % c.n_heads);
    uint32_t s = 0, i = row;
    while (i >= c.sequences[s].n_rows) i -= c.sequences[s++].n_rows;
    const SequenceCase& sc = c.sequences[s];
    const int64_t newest = int64_t{sc.past} + i;
    int64_t low = sc.alone ? sc.past : 0;
    if (c.window != 0) low = std::max<int64_t>(low, newest - c.window + 1);
    const uint32_t kv = head / (c.n_heads / c.n_kv);
    std::vector<double> w;
    double top = -1e300, sum = 0;
    for (int64_t t = low; t <= newest; ++t) {
      double dot = 0;
      for (uint32_t d = 0; d < c.dim; ++d) {
        dot += static_cast<double>(q[row * q_stride + head * c.dim + d]) *
               static_cast<double>(stored[s].k[static_cast<uint64_t>(t) * n + kv * c.dim + d]);
      }
      w.push_back(dot * static_cast<double>(scale));
      top = std::max(top, w.back());
      tops[item] = std::max(tops[item], std::fabs(w.back()));
    }
    for (double& x : w) sum += x = std::exp(x - top);
    double* o = r.o.data() + row * width + head * c.dim;
    for (size_t j = 0; j < w.size(); ++j) {
      const float* v = stored[s].v.data() + (static_cast<uint64_t>(low) + j) * n + kv * c.dim;
      for (uint32_t d = 0; d < c.dim; ++d) o[d] += w[j] / sum * static_cast<double>(v[d]);
    }
    if (c.gate) {
      const float* g = gate.data() + row * 2 * width + (2 * head + 1) * c.dim;
      for (uint32_t d = 0; d < c.dim; ++d) o[d] /= 1 + std::exp(-static_cast<double>(g[d]));
    }
    const double share = sum / (sum + std::exp(static_cast<double>(sinks[head]) - top));
    for (uint32_t d = 0; d < c.dim; ++d)
      r.beside_sinks[row * width + head * c.dim + d] = o[d] * share;
  });
  for (double t : tops) r.top = std::max(r.top, t);
  return r;
}

/// Unit roundoff of what the kernel rounds: scores err by it times their size, values by it once.
double tolerance(const KernelConfig& c, uint32_t rows, const AttentionCase& k, double top) {
  if (c.exact || c.deterministic) return 2e-6 * (4 + top);
  const bool bf16 = k.k == KvDtype::kBf16 || k.v == KvDtype::kBf16;
  const bool few = rows <= kSplitRows || rows == k.sequences.size();
  const uint32_t block_rows = rows == k.sequences.size() ? 1 : 16 / (k.n_heads / k.n_kv);
  const bool pairs = few && block_rows * (k.n_heads / k.n_kv) <= 8;
  double u = 0x1p-11;                     // f16 operands
  if (few && !pairs && bf16) u = 0x1p-9;  // queries and weights as bf16
  if (pairs && k.k == KvDtype::kBf16 && k.v == KvDtype::kBf16) u = 0x1p-15;
  return u * (1.5 + 0.5 * top);
}

void check_attention(const KernelConfig& config, const AttentionCase& c) {
  KvLayer l = make_layer(c.n_kv, c.dim, c.k, c.v, c.window);
  uint32_t n_rows = 0, n_blocks = 0;
  for (const SequenceCase& s : c.sequences) n_rows += s.n_rows, n_blocks += blocks_of(s.n_rows) + 1;
  const uint64_t width = uint64_t{c.n_heads} * c.dim, q_stride = width + 8;
  std::vector<std::byte> chunk(uint64_t{n_blocks} * kKvBlockSlots * (l.k_row_bytes + l.v_row_bytes),
                               std::byte{0xFF});
  TestBatch batch(n_rows, static_cast<uint32_t>(c.sequences.size()), 3);
  std::vector<StoredRows> stored(c.sequences.size());
  uint32_t row = 0, block = 0;
  for (uint32_t i = 0; i < c.sequences.size(); ++i) {
    const SequenceCase& s = c.sequences[i];
    store_rows(c, l, s, block, &chunk, &stored[i]);
    BatchSequence& q = batch.table.sequences[i];
    q.first_row = row;
    q.n_rows = s.n_rows;
    q.position = c.window != 0 ? s.past : s.past + 1000;  // full layers do not look at positions
    q.chunk_block = block;
    q.flags = s.alone ? kSequenceNoContext : 0;
    batch.table.groups[i * 3 + 1] = {stored[i].device->p, s.past, c.ring};
    row += s.n_rows;
    block += blocks_of(s.n_rows);
  }
  const Buffer<std::byte> dchunk(chunk);
  l.chunk = dchunk.p;
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  const std::vector<float> q = random_floats(n_rows * q_stride, c.spread),
                           gate = random_floats(n_rows * width * 2, 1.0f);
  std::vector<float> stored_q = q;  // as launch_qkv() leaves them
  for (uint32_t r = 0; r < n_rows; ++r) {
    kv_rotate(stored_q.data() + r * q_stride, width, kv_rotation(c.k, c.dim));
  }
  // One far above all scores, one far below.
  std::vector<float> sinks = random_floats(c.n_heads, 3.0f);
  if (c.n_heads > 2) sinks[1] = 300.0f, sinks[2] = -300.0f;
  const Buffer<float> dq(stored_q), dgate(gate), dsinks(sinks);
  Buffer<float> o(n_rows * width);
  const uint64_t bytes = attention_workspace_bytes(config, c.n_heads, c.dim);
  Buffer<std::byte> workspace(bytes);
  must(cudaMemset(workspace.p, 0, kAttentionCounterBytes), "memset");
  AttentionParams p;
  p.batch = batch.finish();
  p.kv = l;
  p.n_heads = c.n_heads;
  p.scale = scale;
  p.q = dq.p;
  p.q_stride = q_stride;
  if (c.gate) {
    p.gate = dgate.p + c.dim;
    p.gate_stride = 2 * width;
    p.gate_head_stride = 2 * c.dim;
  }
  p.o = o.p;
  p.o_stride = width;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  const std::string name = "attention " + describe(config, c);
  const Reference want = reference(c, stored, q, q_stride, gate, sinks, scale);
  const auto run = [&] {
    must(cudaMemset(o.p, 0xFF, o.n * sizeof(float)), "memset");
    must(launch_attention(config, p, nullptr), name.c_str());
    must(cudaDeviceSynchronize(), name.c_str());
    return o.host();
  };
  const double near = tolerance(config, n_rows, c, want.top);
  for (const bool wait : {false, true}) {  // true: several blocks of a unit merge
    p.may_wait = wait;
    p.sinks = nullptr;
    const std::vector<float> got = run(), again = run();
    expect_close(name, got, want.o, near);
    expect(std::memcmp(got.data(), again.data(), got.size() * sizeof(float)) == 0, name + " twice");
    p.sinks = dsinks.p;
    expect_close(name + " sinks", run(), want.beside_sinks, near);
  }
}

/// Every kernel once, where it can be told apart: rings, both of blocks of rows, a merge of its
/// own.
std::vector<AttentionCase> least_cases() {
  std::vector<AttentionCase> all;
  for (const KvDtype d : {kB, kQ, kF, kT}) {
    all.push_back({4, 2, 128, d, d, 0, 0, {{300, 1}}, true});
    all.push_back({4, 1, 512, d, d, 0, 0, {{300, 1}}});
    all.push_back({2, 1, 512, d, d, 0, 0, {{10, 40}}});
    all.push_back({2, 1, 128, d, d, 0, 0, {{10, 70}}});
    all.push_back({8, 2, 128, d, d, 48, 112, {{200, 3}, {20, 2}}});
    all.push_back({4, 2, 256, d, d, 0, 0, {{300, 3}}});
  }
  all.push_back({4, 2, 128, kQ, kT, 0, 0, {{300, 1}}, true});
  all.push_back({8, 2, 128, kQ, kT, 48, 112, {{200, 3}, {20, 2}}});
  all.push_back({4, 2, 256, kQ, kT, 0, 0, {{300, 3}}});
  all.push_back({16, 1, 128, kB, kQ, 0, 0, {{2100, 1}}});
  all.push_back({4, 2, 64, kQ, kB, 48, 112, {{200, 1}, {100, 3}}});
  all.push_back({4, 2, 80, kB, kQ, 0, 0, {{0, 40}}});
  return all;
}

/// Shapes of the step's kernels for the rows of a call: one or two slices a head, up to eight
/// vectors of a KV head or more, windows whose rings are whole tiles or not, rows that see keys of
/// their own call, about the borders of tiles and of windows, several blocks a head and their
/// merge. Behind the newest key of every sequence lie rows that are not numbers; rows of two KV
/// heads are whole pieces of 16 bytes in every codec, as the kernels want them.
void add_step_cases(KvDtype k, KvDtype v, std::vector<AttentionCase>* all) {
  const std::vector<SequenceCase> decode = {{0, 1}, {1, 1}, {64, 1}, {63, 1}, {1000, 1}, {333, 1}};
  for (const uint32_t dim : {128u, 256u}) {
    all->push_back({6, 2, dim, k, v, 0, 0, decode});
    all->push_back({24, 2, dim, k, v, 0, 0, decode, true});
    all->push_back({32, 2, dim, k, v, 0, 0, {{5000, 1}}});
    all->push_back({8, 2, dim, k, v, 0, 0, {{20000, 1}}, false, 4.0f});
    all->push_back({4, 2, dim, k, v, 100, 164, {{1000, 1}, {30, 1}, {164, 1}}});
    all->push_back({24, 2, dim, k, v, 100, 176, {{1000, 1}, {30, 1}, {176, 1}}});
    all->push_back({4, 2, dim, k, v, 0, 0, {{14, 4}, {15, 1}, {16, 5}, {0, 3}, {33, 0}, {31, 2}}});
    all->push_back({16, 2, dim, k, v, 100, 176, {{1000, 3}, {30, 2}, {176, 4}, {5, 1}, {99, 6}}});
    all->push_back({4, 2, dim, k, v, 100, 164, {{1000, 3}, {164, 4}, {163, 5}}, true});
    all->push_back({4, 2, dim, k, v, 5, 80, {{1000, 16}}});
    all->push_back({4, 2, dim, k, v, 0, 0, {{500, 3, true}, {20, 2}, {47, 4, true}}});
    all->push_back({4, 2, dim, k, v, 64, 128, {{500, 5, true}, {200, 7}}});
    all->push_back({32, 4, dim, k, v, 0, 0, {{20000, 4}}, true, 4.0f});
  }
}

/// Blocks of 128 vectors: tiles that end with a row's last key or one beside it, whole ones between
/// those that rows see parts of, one KV head, groups that leave vectors over, scores far apart (a
/// vector's first tile may be all but unseen, later ones outgrow it), windows narrower and wider
/// than a tile, contexts that are not seen.
void add_wide_cases(KvDtype k, KvDtype v, std::vector<AttentionCase>* all) {
  for (const uint32_t dim : {128u, 256u}) {
    all->push_back(
        {8, 2, dim, k, v, 0, 0, {{63, 65}, {64, 64}, {1, 127}, {0, 1}, {300, 33}}, true});
    all->push_back({6, 1, dim, k, v, 0, 0, {{1500, 45}}, false, 20.0f});
    all->push_back({32, 2, dim, k, v, 0, 0, {{190, 20}}, false, 8.0f});
    all->push_back({10, 2, dim, k, v, 40, 104, {{500, 90}, {20, 40}}, true, 8.0f});
    all->push_back({4, 1, dim, k, v, 200, 264, {{1000, 150}, {0, 70}}});
    all->push_back({8, 2, dim, k, v, 0, 0, {{333, 70, true}, {64, 40}}});
  }
}

std::vector<AttentionCase> attention_cases() {
  if (g_extent == Extent::kLeast) return least_cases();
  std::vector<AttentionCase> all;
  const std::vector<SequenceCase> decode = {{0, 1}, {1, 1}, {64, 1}, {63, 1}, {1000, 1}, {333, 1}};
  for (const KvDtype k : {kF, kB, kQ, kT}) {
    for (const KvDtype v : {kF, kB, kQ, kT}) {
      all.push_back({8, 2, 128, k, v, 0, 0, decode, k == v});
      all.push_back({8, 2, 128, k, v, 0, 0, {{0, 70}, {130, 33}}, k == v});
      all.push_back({4, 2, 64, k, v, 48, 112, {{500, 30}, {20, 40}, {100, 1}}});
    }
  }
  if (g_extent == Extent::kSmall) return all;
  for (const uint32_t dim : {64u, 80u, 96u, 128u, 256u, 512u}) {
    for (const KvDtype d : {kF, kB, kQ, kT}) {
      all.push_back({6, 2, dim, d, d, 0, 0, decode});
      const bool blocks = d == kQ || d == kT;  // rows are whole blocks of 32
      const uint32_t one = dim == 80 && blocks ? 2 : 1;
      all.push_back({16 * one, one, dim, d, d, 0, 0, {{5000, 1}}});
      all.push_back({4, 2, dim, d, d, 0, 0, {{777, 5}, {3, 2}}});
      all.push_back({8, 2, dim, d, d, 0, 0, {{0, 17}, {700, 130}, {64, 64}}, true});
      all.push_back({4, 2, dim, d, d, 100, 164, {{1000, 1}, {30, 1}, {164, 1}}});
      all.push_back({4, one, dim, d, d, 100, 164, {{1000, 200}, {30, 100}}});
      all.push_back({4, one, dim, d, d, 1, 65, {{200, 3}, {0, 70}}});
    }
  }
  for (const StepCodecs& d : kStepCodecs) add_step_cases(d.k, d.v, &all);
  for (const KvDtype k : {kF, kB, kQ, kT}) add_wide_cases(k, k, &all);
  add_wide_cases(kQ, kT, &all);
  for (uint32_t group = 1; group <= 16; ++group) {
    all.push_back({2 * group, 2, 128, kB, kB, 0, 0, {{700, 4}, {10, 2}}});
    all.push_back({group, 1, 128, kT, kT, 0, 0, {{100, 3}}});
    all.push_back({2 * group, 2, 128, kQ, kT, 0, 0, {{700, 4}, {10, 2}}});
    all.push_back({2 * group, 2, 128, kQ, kT, 0, 0, {{700, 1}, {10, 1}}});
    all.push_back({2 * group, 2, 128, kB, kB, 0, 0, {{700, 1}, {10, 1}}});
    all.push_back({group, 1, 128, kB, kB, 0, 0, {{100, 60}}});
    all.push_back({group, 1, 256, kQ, kB, 0, 0, {{100, 3}}});
  }
  all.push_back({32, 8, 128, kB, kB, 0, 0, {{20000, 1}}, false, 4.0f});
  all.push_back({32, 8, 128, kQ, kQ, 0, 0, {{20000, 1}}, false, 4.0f});
  all.push_back({32, 8, 128, kQ, kT, 0, 0, {{20000, 1}}, false, 4.0f});
  all.push_back({8, 4, 256, kB, kB, 1024, 1088, {{5000, 1}, {1087, 1}, {1088, 1}, {1089, 1}}});
  all.push_back({8, 4, 256, kB, kB, 1024, 1088, {{5000, 500}}});
  all.push_back({4, 2, 128, kB, kB, 512, 512, {{0, 700}}});
  all.push_back({4, 2, 128, kB, kQ, 0, 0, {{500, 40, true}, {20, 1, true}}});
  all.push_back({4, 2, 128, kB, kQ, 64, 128, {{500, 40, true}, {20, 1}}});
  all.push_back({4, 2, 128, kB, kF, 0, 0, {{500, 1, true}, {20, 1}}});
  all.push_back({4, 2, 128, kF, kF, 0, 0, {{3, 1}, {700, 0}, {20, 1}}});
  return all;
}

/// Every case in every mode that has kernels of its own for it.
void check_attentions(const KernelConfig& config) {
  for (const AttentionCase& c : attention_cases()) {
    for (const int mode : {0, 1, 2}) {
      if (mode != 0 && g_extent == Extent::kLeast && c.window == 0) continue;
      KernelConfig m = config;
      m.exact = mode == 1;
      m.deterministic = mode == 2;
      if (mode == 2 && c.dim != 128) continue;
      check_attention(m, c);
    }
  }
}

/// That the cases of the step's kernels are theirs: elsewhere they would pass as well.
void check_step_paths(const KernelConfig& config) {
  for (const StepCodecs& d : kStepCodecs) {
    for (const uint32_t dim : {128u, 256u}) {
      const char* path = attention_path(config, make_layer(2, dim, d.k, d.v, 0), true);
      expect(std::strcmp(path, "split, few instructions") == 0,
             std::string("path of ") + name_of(d.k) + "/" + name_of(d.v) + ": " + path);
    }
  }
}

/// The same of blocks of 128 vectors, where there are no warpgroups.
void check_wide_paths(const KernelConfig& config) {
  if (config.device.wgmma) return;
  for (const KvDtype k : {kF, kB, kQ, kT}) {
    for (const KvDtype v : {kF, kB, kQ, kT}) {
      for (const uint32_t dim : {128u, 256u}) {
        const char* path = attention_path(config, make_layer(2, dim, k, v, 0), false);
        const bool wide = std::strcmp(path, "flash, tensor cores, wide blocks") == 0;
        expect(wide == (k == v || (k == kQ && v == kT)),
               std::string("path of many rows in ") + name_of(k) + "/" + name_of(v) + ": " + path);
      }
    }
  }
}

/// The step's kernels once more as they are where a block has 99 KiB of shared memory: other forms
/// of them, with fewer stages.
void check_small_rooms(const KernelConfig& config) {
  KernelConfig small = config;
  small.device.shared_per_block = static_cast<int>(kSmallStepRoom) + 1024;
  if (g_extent == Extent::kLeast || step_room(config.device) == step_room(small.device)) return;
  must(prepare_attention(small), "prepare");
  std::vector<AttentionCase> all;
  for (const StepCodecs& d : kStepCodecs) add_step_cases(d.k, d.v, &all);
  for (const AttentionCase& c : all) check_attention(small, c);
  must(prepare_attention(config), "prepare");
}

}  // namespace
}  // namespace sharpi::cuda::check

int main(int argc, char** argv) {
  using namespace sharpi::cuda;
  using namespace sharpi::cuda::check;
  const auto wants = [&](const char* what) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], what) == 0) return true;
    }
    return false;
  };
  if (wants("small")) g_extent = Extent::kSmall;
  if (wants("least")) g_extent = Extent::kLeast;
  sharpi::cuda::check::require_device();
  KernelConfig config;
  must(make_kernel_config(&config), "config");
  must(prepare_attention(config), "prepare");
  must(prepare_delta_net(config), "prepare");
  config.pdl = true;
  const bool all = wants("test");
  if (all || wants("attention")) {
    check_step_paths(config);
    check_wide_paths(config);
    check_attentions(config);
  }
  if (all || wants("rooms")) check_small_rooms(config);
  if (!all && wants("rooms") && g_passed + g_failed == 0) {
    std::printf("skipped as a whole: blocks of this device have the smaller room anyway\n");
    return 77;
  }
  if (all || wants("states")) {
    check_qkvs();
    std::printf("qkv too: %d passed, %d failed\n", g_passed, g_failed);
    check_deltas(config);
    std::printf("delta net too: %d passed, %d failed\n", g_passed, g_failed);
    check_mambas(config);
    std::printf("Mamba-2 too: %d passed, %d failed\n", g_passed, g_failed);
    check_states();
    check_selections(g_extent != Extent::kAll);
    check_bounds();
  }
  if (all || wants("states") || wants("replays")) check_replays(g_extent != Extent::kAll);
  if (g_passed + g_failed != 0) std::printf("all: %d passed, %d failed\n", g_passed, g_failed);
  for (int i = 1; i <= 11; ++i) {
    if (wants(("one" + std::to_string(i)).c_str())) bench_attention_one(config, i);
  }
  if (wants("rows")) bench_qkvs(config);
  if (wants("q4")) bench_attention_q4(config);
  if (wants("replay")) bench_replays();
  if (wants("bench")) {
    bench_qkvs(config);
    bench_deltas(config);
    bench_states();
    bench_selections();
    bench_bounds();
    bench_replays();
    bench_attentions(config);
  }
  return g_failed == 0 ? 0 : 1;
}
