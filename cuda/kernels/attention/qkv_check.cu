// SPDX-License-Identifier: MIT
// The part of attention_check that concerns norms, rope, capture, appended rows and ring flushes;
// the time of a step's row.
#include <cstring>
#include <memory>

#include "cuda/kernels/attention/qkv.h"
#include "cuda/kernels/check_front.cuh"
#include "cuda/kernels/check_util.h"

namespace sharpi::cuda::check {
namespace {

struct QkvCase {
  uint32_t n_heads, n_kv, dim, n_rot;
  KvDtype k, v;
  HeadNorm norm;
  bool v_norm, v_from_k, gated;
  uint32_t window, ring;
  bool to_ring;
  uint32_t capture;  // query rows, 0 = none
  bool observer;
  bool step = false;  // a row per sequence, the last has none
  bool bias = false, neighbours = false;
  float temperature = 0.0f;
};

void norm_reference(double* x, uint32_t n, const float* w, double eps) {
  double s = 0;
  for (uint32_t i = 0; i < n; ++i) s += x[i] * x[i];
  const double r = 1 / std::sqrt(s / n + eps);
  for (uint32_t i = 0; i < n; ++i) x[i] *= r * (w != nullptr ? static_cast<double>(w[i]) : 1.0);
}

void heads_reference(double* x, uint32_t n_heads, const QkvCase& c, HeadNorm norm, const float* w,
                     const double* inv_freq, uint64_t position, double eps) {
  if (norm == HeadNorm::kWholeVector) norm_reference(x, n_heads * c.dim, w, eps);
  for (uint32_t h = 0; h < n_heads; ++h) {
    double* y = x + h * c.dim;
    if (norm == HeadNorm::kPerHead) norm_reference(y, c.dim, w, eps);
    for (uint32_t j = 0; j < c.n_rot / 2; ++j) {
      const uint32_t low = c.neighbours ? 2 * j : j, high = low + (c.neighbours ? 1 : c.n_rot / 2);
      const double a = static_cast<double>(position) * inv_freq[j], u = y[low], v = y[high];
      y[low] = u * std::cos(a) - v * std::sin(a);
      y[high] = u * std::sin(a) + v * std::cos(a);
    }
  }
}

/// Step of a codec around x in a block whose largest magnitude is m.
double codec_step(KvDtype d, double x, double m) {
  if (d == kF) return 1e-5 * (std::fabs(x) + 0.1 * m);
  if (d == kB) return 0x1p-8 * std::fabs(x) + 1e-5 * m;
  if (d == kT) return 0.16 * m;  // half of the widest step, and what the levels lack at one end
  return m / 127 * 0.51 + 0x1p-10 * std::fabs(x);
}

/// As q_out and stored rows have it.
std::vector<double> rotated(std::vector<double> x, KvDtype d, uint32_t dim) {
  const uint32_t b = kv_rotation(d, dim);
  for (uint64_t at = 0; b != 0 && at < x.size(); at += b) {
    std::vector<double> y(b);
    for (uint32_t i = 0; i < b; ++i) {
      for (uint32_t j = 0; j < b; ++j) {
        const bool turned = (kRotationSigns[j / 32] >> j % 32 & 1u) != 0;
        const bool negative = (__builtin_popcount(i & j) % 2 != 0) != turned;
        y[i] += (negative ? -x[at + j] : x[at + j]) / std::sqrt(b);
      }
    }
    std::copy(y.begin(), y.end(), x.begin() + static_cast<ptrdiff_t>(at));
  }
  return x;
}

void check_row(const std::string& name, KvDtype d, uint32_t dim, const std::byte* row,
               const std::vector<double>& plain) {
  const std::vector<double> want = rotated(plain, d, dim);
  const uint64_t n = want.size();
  std::vector<float> got(n);
  must(kv_decode_row(d, row, n, 0, n, got.data()), "decode");
  for (uint64_t i = 0; i < n; ++i) {
    double m = 0;
    for (uint64_t j = i / 32 * 32; j < std::min(n, i / 32 * 32 + 32); ++j) {
      m = std::max(m, std::fabs(want[j]));
    }
    if (!(std::fabs(static_cast<double>(got[i]) - want[i]) <= codec_step(d, want[i], m))) {
      return expect(false, name + " element " + std::to_string(i));
    }
  }
  expect(true, name);
}

void check_case(const QkvCase& c) {
  KvLayer l = make_layer(c.n_kv, c.dim, c.k, c.v, c.window);
  const uint64_t kv_dim = uint64_t{c.n_kv} * c.dim, width = uint64_t{c.n_heads} * c.dim;
  const uint64_t q_stride = width * (c.gated ? 2 : 1);
  const uint32_t many[3] = {70, 1, 3}, one[3] = {1, 1, 0};
  const uint32_t *counts = c.step ? one : many, n_rows = c.step ? 3 : 75;  // the last is padding
  const uint64_t positions[3] = {100, 1000000, 7};
  const uint32_t pasts[3] = {90, 130, 0};
  TestBatch batch(n_rows, 3, 3);
  std::vector<std::unique_ptr<Buffer<std::byte>>> stores;
  std::vector<std::unique_ptr<Buffer<float>>> queries;
  uint32_t row = 0, block = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    const uint32_t slots = c.window != 0 ? c.ring : pasts[i] + counts[i];
    stores.push_back(std::make_unique<Buffer<std::byte>>(blocks_of(slots) * l.block_stride));
    queries.push_back(std::make_unique<Buffer<float>>(3 * width * std::max(c.capture, 1u)));
    BatchSequence& s = batch.table.sequences[i];
    s.first_row = row;
    s.n_rows = counts[i];
    s.position = positions[i];
    s.chunk_block = block;
    s.flags = c.observer ? 0 : kSequenceQueryRing;
    s.queries = c.capture != 0 && i != 2 ? queries[i]->p : nullptr;
    s.query_rows = c.capture;
    batch.table.groups[i * 3 + 1] = {stores[i]->p, pasts[i], c.ring};
    row += counts[i];
    block += blocks_of(counts[i]);
  }
  Buffer<std::byte> chunk(block * kKvBlockSlots * uint64_t{l.k_row_bytes + l.v_row_bytes});
  l.chunk = chunk.p;
  std::vector<double> inv_freq(c.n_rot / 2);
  for (uint32_t j = 0; j < c.n_rot / 2; ++j) inv_freq[j] = std::pow(1e6, -2.0 * j / c.n_rot);
  const std::vector<float> q = random_floats(n_rows * q_stride, 2.0f),
                           k = random_floats(n_rows * kv_dim, 3.0f),
                           v = random_floats(n_rows * kv_dim, 0.5f),
                           wq = random_floats(width, 1.0f), wk = random_floats(kv_dim, 1.0f),
                           bq = random_floats(q_stride, 1.0f), bk = random_floats(kv_dim, 1.0f),
                           bv = random_floats(kv_dim, 1.0f);
  const Buffer<float> dq(q), dk(k), dv(v), dwq(wq), dwk(wk), dbq(bq), dbk(bk), dbv(bv);
  const Buffer<double> dfreq(inv_freq);
  Buffer<float> cos(n_rows * (c.n_rot / 2)), sin(n_rows * (c.n_rot / 2)), q_out(n_rows * width);
  QkvParams p;
  p.batch = batch.finish();
  if (c.n_rot != 0) {
    must(launch_rope_table({p.batch, dfreq.p, c.n_rot / 2, 1.0f, cos.p, sin.p}, true, nullptr),
         "rope_table");
  }
  p.kv = l;
  p.n_heads = c.n_heads;
  p.q = dq.p;
  p.q_stride = q_stride;
  p.q_head_stride = c.gated ? 2 * c.dim : c.dim;
  p.k = dk.p;
  p.v = c.v_from_k ? nullptr : dv.p;
  p.kv_stride = kv_dim;
  if (c.bias) p.q_bias = dbq.p, p.k_bias = dbk.p, p.v_bias = dbv.p;
  p.neighbours = c.neighbours;
  p.temperature = c.temperature;
  p.temperature_rows = 64;
  p.norm = c.norm;
  p.q_norm = dwq.p;
  p.k_norm = dwk.p;
  p.v_norm = c.v_norm;
  p.cos = cos.p;
  p.sin = sin.p;
  p.n_half = c.n_rot / 2;
  p.q_out = q_out.p;
  p.query_offset = c.capture != 0 ? static_cast<int64_t>(width) : -1;
  p.to_ring = c.to_ring;
  must(launch_qkv(p, true, nullptr), "qkv");
  const bool flush = c.window != 0 && !c.to_ring;
  if (flush) must(launch_ring_flush({p.batch, l}, true, nullptr), "ring_flush");
  must(cudaDeviceSynchronize(), "qkv");
  const std::vector<float> got_q = q_out.host();
  const std::vector<std::byte> got_chunk = chunk.host();
  std::string name = "qkv " + std::to_string(c.n_heads) + "/" + std::to_string(c.n_kv) + "x" +
                     std::to_string(c.dim) + " " + name_of(c.k) + "/" + name_of(c.v) + " window " +
                     std::to_string(c.window);
  for (uint32_t i = 0; i < 3; ++i) {
    const BatchSequence& s = batch.table.sequences[i];
    const std::vector<std::byte> store = stores[i]->host();
    const std::vector<float> captured = queries[i]->host();
    for (uint32_t r = 0; r < s.n_rows; ++r) {
      const uint64_t at = s.first_row + r;
      std::vector<double> wq_row(width), wk_row(kv_dim), wv_row(kv_dim);
      for (uint32_t h = 0; h < c.n_heads; ++h) {
        for (uint32_t d = 0; d < c.dim; ++d) {
          const uint64_t from = h * p.q_head_stride + d;
          wq_row[h * c.dim + d] = static_cast<double>(q[at * q_stride + from]);
          if (c.bias) wq_row[h * c.dim + d] += static_cast<double>(bq[from]);
        }
      }
      for (uint64_t d = 0; d < kv_dim; ++d) {
        wk_row[d] = static_cast<double>(k[at * kv_dim + d]);
        wv_row[d] = static_cast<double>((c.v_from_k ? k : v)[at * kv_dim + d]);
        if (c.bias) wk_row[d] += static_cast<double>(bk[d]);
        if (c.bias) wv_row[d] += static_cast<double>((c.v_from_k ? bk : bv)[d]);
      }
      heads_reference(wq_row.data(), c.n_heads, c, c.norm, wq.data(), inv_freq.data(),
                      s.position + r, 1e-6);
      heads_reference(wk_row.data(), c.n_kv, c, c.norm, wk.data(), inv_freq.data(), s.position + r,
                      1e-6);
      const double steps = std::floor(static_cast<double>(s.position + r) / 64);
      for (double& x : wq_row) x *= 1 + static_cast<double>(c.temperature) * std::log(1 + steps);
      if (c.v_norm) {
        for (uint32_t h = 0; h < c.n_kv; ++h) {
          norm_reference(wv_row.data() + h * c.dim, c.dim, nullptr, 1e-6);
        }
      }
      const std::vector<float> mine(got_q.begin() + static_cast<ptrdiff_t>(at * width),
                                    got_q.begin() + static_cast<ptrdiff_t>((at + 1) * width));
      expect_close(name + " q", mine, rotated(wq_row, c.k, c.dim), 1e-6);
      if (s.queries != nullptr && r + c.capture >= s.n_rows) {
        const uint32_t skip = s.n_rows > c.capture ? s.n_rows - c.capture : 0;
        const uint64_t slot = c.observer ? r - skip : (s.position + r) % c.capture;
        std::vector<float> seen(
            captured.begin() + static_cast<ptrdiff_t>((c.capture + slot) * width),
            captured.begin() + static_cast<ptrdiff_t>((c.capture + slot + 1) * width));
        kv_rotate(seen.data(), width, kv_rotation(c.k, c.dim));
        expect(std::memcmp(seen.data(), mine.data(), width * sizeof(float)) == 0,
               name + " capture");
      }
      const auto row_at = [&](const std::byte* base, uint64_t stride, uint64_t slot, uint64_t off,
                              uint32_t bytes) {
        return base + slot / kKvBlockSlots * stride + off + slot % kKvBlockSlots * bytes;
      };
      const auto both = [&](const std::byte* base, uint64_t stride, uint64_t slot, uint64_t ko,
                            uint64_t vo, const char* where) {
        check_row(name + where + " k", c.k, c.dim, row_at(base, stride, slot, ko, l.k_row_bytes),
                  wk_row);
        check_row(name + where + " v", c.v, c.dim, row_at(base, stride, slot, vo, l.v_row_bytes),
                  wv_row);
        if (c.norm != HeadNorm::kNone || c.n_rot != 0 || c.v_norm || c.bias) return;
        std::vector<std::byte> same(l.k_row_bytes);  // raw floats: equal bytes
        std::vector<float> values(kv_dim);
        put_row(c.k, c.dim, k.data() + at * kv_dim, kv_dim, same.data(), values.data());
        expect(std::memcmp(same.data(), row_at(base, stride, slot, ko, l.k_row_bytes),
                           same.size()) == 0,
               name + where + " bytes");
      };
      if (c.window == 0) {
        both(store.data(), l.block_stride, pasts[i] + r, l.k_offset, l.v_offset, " store");
      } else {
        both(got_chunk.data(), uint64_t{kKvBlockSlots} * (l.k_row_bytes + l.v_row_bytes),
             s.chunk_block * kKvBlockSlots + r, 0, uint64_t{kKvBlockSlots} * l.k_row_bytes,
             " chunk");
        if (r + c.ring >= s.n_rows) {
          both(store.data(), l.block_stride, (s.position + r) % c.ring, l.k_offset, l.v_offset,
               " ring");
        }
      }
    }
  }
  expect(std::isnan(got_q[(n_rows - 1) * width]), name + " padding row untouched");
}

/// Also with q4 in the place of q8_0.
void check_qkv(QkvCase c) {
  check_case(c);
  if (c.k != kQ && c.v != kQ) return;
  if (c.k == kQ) c.k = kT;
  if (c.v == kQ) c.v = kT;
  check_case(c);
}

/// An awkward float of row r.
float awkward(uint32_t r, uint32_t i) {
  uint32_t bits = g_rng();
  if (r % 8 == 0) bits &= 0x807FFFFFu;                        // subnormal
  if (r % 8 == 1) bits = (bits & 0x83FFFFFFu) | 0x3C000000u;  // around one
  if (r % 8 == 2 && i % 7 != 0) bits = (bits & 0xBFFFFFFFu);  // below two
  if (r % 8 == 4) bits = (bits & 0x80000000u) | 0x3F800000u;  // 1 or -1: several are the largest
  if (r % 8 == 5) bits = 0;
  if (r % 8 == 6) bits = (bits & 0x9FFFFFFFu) | 0x18000000u;  // about the least that q4 stores
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

/// n_rows rows of awkward floats, a head each: bytes must equal the host codec's.
void check_codec_bytes(KvDtype d, uint32_t n, uint32_t n_rows) {
  const KvLayer l = make_layer(1, n, d, d, 0);
  std::vector<float> x(n_rows * n), q(n_rows * n);
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t i = 0; i < n; ++i) x[r * n + i] = awkward(r, i);
  }
  TestBatch batch(n_rows, 1, 3);
  Buffer<std::byte> store(blocks_of(n_rows) * l.block_stride);
  batch.table.sequences[0].n_rows = n_rows;
  batch.table.groups[1] = {store.p, 0, 0};
  const Buffer<float> dx(x), dq(q);
  Buffer<float> q_out(q.size());
  QkvParams p;
  p.batch = batch.finish();
  p.kv = l;
  p.n_heads = 1;
  p.q = dq.p;
  p.q_stride = p.q_head_stride = n;
  p.k = dx.p;
  p.kv_stride = n;
  p.q_out = q_out.p;
  must(launch_qkv(p, false, nullptr), "qkv");
  const std::vector<std::byte> got = store.host();
  for (uint32_t r = 0; r < n_rows; ++r) {
    std::vector<std::byte> want(l.k_row_bytes);
    std::vector<float> values(n);
    put_row(d, n, x.data() + r * n, n, want.data(), values.data());
    for (const uint64_t at : {l.k_offset, l.v_offset}) {
      expect(std::memcmp(want.data(), got.data() + at + r * l.k_row_bytes, want.size()) == 0,
             std::string("codec bytes ") + name_of(d) + " of " + std::to_string(n) + ", row " +
                 std::to_string(r) + " of " + std::to_string(n_rows));
    }
  }
}

/// Heads of every kernel, calls of many and of few rows.
void check_codec_bytes() {
  for (const uint32_t n : {64u, 96u, 128u, 160u, 256u, 512u}) {
    for (const KvDtype d : {kF, kB, kQ, kT}) {
      check_codec_bytes(d, n, 64);
      check_codec_bytes(d, n, 8);
    }
  }
}

struct QkvModel {
  const char* name;
  uint32_t n_heads, n_kv, dim, n_rot;
  HeadNorm norm;
  bool gated, gemma;  // gemma: values normed
  uint32_t window;
};

/// The row of one session, layer after layer, each behind the launch that makes it.
void bench_qkv(Front& front, const QkvModel& m, KvDtype k, KvDtype v) {
  const uint32_t n_layers = 32, ring = 1088, n_half = m.n_rot / 2;
  const uint64_t width = uint64_t{m.n_heads} * m.dim, kv_dim = uint64_t{m.n_kv} * m.dim,
                 q_stride = width * (m.gated ? 2 : 1), all = q_stride + 2 * kv_dim;
  KvLayer l = make_layer(m.n_kv, m.dim, k, v, m.window);
  Buffer<std::byte> store(n_layers * l.block_stride * blocks_of(ring)),
      chunk(uint64_t{kKvBlockSlots} * (l.k_row_bytes + l.v_row_bytes));
  l.chunk = chunk.p;
  const Buffer<float> from(random_floats(all, 1.0f)),
      weights(random_floats(n_layers * (width + kv_dim), 1.0f)), cos(n_half), sin(n_half);
  Buffer<float> row(all), out(width);
  std::vector<std::unique_ptr<TestBatch>> batches;
  std::vector<QkvParams> layers;
  for (uint32_t i = 0; i < n_layers; ++i) {
    batches.push_back(std::make_unique<TestBatch>(1, 1, 3));
    TestBatch& b = *batches.back();
    b.table.sequences[0].n_rows = 1;
    b.table.sequences[0].position = 500;
    b.table.groups[1] = {store.p + i * l.block_stride * blocks_of(ring), 500, ring};
    QkvParams p;
    p.batch = b.finish();
    p.kv = l;
    p.n_heads = m.n_heads;
    p.q = row.p;
    p.q_stride = q_stride;
    p.q_head_stride = m.gated ? 2 * m.dim : m.dim;
    p.k = row.p + q_stride;
    p.v = row.p + q_stride + kv_dim;
    p.kv_stride = kv_dim;
    p.norm = m.norm;
    p.q_norm = weights.p + i * (width + kv_dim);
    p.k_norm = p.q_norm + width;
    p.v_norm = m.gemma;
    p.cos = cos.p;
    p.sin = sin.p;
    p.n_half = n_half;
    p.q_out = out.p;
    p.to_ring = m.window != 0;
    layers.push_back(p);
  }
  const double us = time_behind_front(
      n_layers, [&](uint32_t, cudaStream_t s) { front.launch(from.p, row.p, all, s); },
      [&](uint32_t i, cudaStream_t s) { must(launch_qkv(layers[i], true, s), m.name); });
  std::printf("row %-12s %-4s %-4s %6.2f us\n", m.name, name_of(k), name_of(v), us);
}

}  // namespace

void bench_qkvs(const KernelConfig& config) {
  Front front(config);
  const QkvModel models[] = {{"8B", 32, 8, 128, 128, HeadNorm::kPerHead, false, false, 0},
                             {"Coder-30B", 32, 4, 128, 128, HeadNorm::kPerHead, false, false, 0},
                             {"27B", 24, 4, 256, 64, HeadNorm::kPerHead, true, false, 0},
                             {"35B-A3B", 16, 2, 256, 64, HeadNorm::kPerHead, true, false, 0},
                             {"OLMoE", 16, 16, 128, 128, HeadNorm::kWholeVector, false, false, 0},
                             {"12B window", 16, 8, 256, 256, HeadNorm::kPerHead, false, true, 1024},
                             {"12B global", 16, 1, 512, 512, HeadNorm::kPerHead, false, true, 0}};
  for (const QkvModel& m : models) {
    for (const KvDtype type : {kF, kB, kQ, kT}) bench_qkv(front, m, type, type);
    bench_qkv(front, m, kQ, kT);
  }
}

void check_qkvs() {
  if (g_extent != Extent::kLeast) check_codec_bytes();
  check_qkv(
      {4, 2, 128, 128, kB, kB, HeadNorm::kPerHead, false, false, false, 0, 0, false, 16, false});
  check_qkv({4, 2, 256, 64, kQ, kB, HeadNorm::kPerHead, false, false, true, 0, 0, false, 16, true});
  check_qkv({16, 16, 128, 128, kF, kQ, HeadNorm::kWholeVector, false, false, false, 0, 0, false, 0,
             false});
  check_qkv({4, 4, 128, 128, kQ, kQ, HeadNorm::kWholeVector, false, false, false, 0, 0, false, 16,
             false, true});
  check_qkv({9, 3, 64, 64, kQ, kB, HeadNorm::kNone, false, false, false, 0, 0, false, 16, false,
             true, false, true});
  check_qkv({8, 2, 128, 128, kB, kQ, HeadNorm::kNone, false, false, false, 0, 0, false, 16, false,
             true, true, true});
  if (g_extent == Extent::kLeast) return;
  // Neighbours and biases: heads of every kernel, windows, fewer rotated elements, gates.
  check_qkv({6, 2, 64, 64, kF, kF, HeadNorm::kNone, false, false, false, 48, 112, true, 0, false,
             true, true, true});
  check_qkv({4, 1, 96, 64, kQ, kQ, HeadNorm::kPerHead, false, false, false, 0, 0, false, 4, false,
             false, true, true});
  check_qkv({14, 2, 128, 128, kQ, kB, HeadNorm::kNone, false, false, false, 0, 0, false, 8, false,
             true, true, false});
  check_qkv({4, 2, 256, 128, kB, kF, HeadNorm::kPerHead, true, false, true, 0, 0, false, 8, false,
             true, true, true});
  check_qkv({2, 1, 512, 512, kQ, kQ, HeadNorm::kNone, false, false, false, 48, 64, false, 0, false,
             false, false, true});
  check_qkv({4, 2, 80, 80, kQ, kB, HeadNorm::kNone, false, false, false, 0, 0, false, 8, false,
             false, true, true});
  check_qkv({32, 8, 128, 128, kQ, kB, HeadNorm::kPerHead, false, false, false, 0, 0, false, 16,
             false, true});
  check_qkv(
      {6, 3, 256, 64, kF, kQ, HeadNorm::kPerHead, false, false, true, 0, 0, false, 8, true, true});
  check_qkv({16, 8, 256, 256, kQ, kQ, HeadNorm::kPerHead, true, false, false, 48, 112, true, 4,
             false, true});
  check_qkv(
      {5, 3, 64, 64, kQ, kF, HeadNorm::kWholeVector, false, false, false, 0, 0, false, 4, false});
  check_qkv(
      {16, 1, 512, 512, kB, kQ, HeadNorm::kPerHead, true, true, false, 0, 0, false, 100, false});
  check_qkv(
      {9, 3, 256, 256, kQ, kQ, HeadNorm::kPerHead, true, false, false, 48, 112, true, 0, false});
  check_qkv(
      {4, 2, 80, 80, kQ, kF, HeadNorm::kPerHead, true, false, false, 48, 64, false, 0, false});
  // Queries that grow with their position, in both ways.
  check_qkv({8, 2, 128, 128, kB, kQ, HeadNorm::kNone, false, false, false, 0, 0, false, 16, false,
             true, false, true, 0.1f});
  check_qkv({6, 2, 64, 64, kF, kF, HeadNorm::kNone, false, false, false, 48, 112, true, 0, false,
             false, true, false, 0.5f});
  check_qkv({4, 2, 80, 80, kQ, kB, HeadNorm::kNone, false, false, false, 0, 0, false, 8, false,
             false, false, true, 0.1f});
  check_qkv({4, 2, 80, 0, kQ, kB, HeadNorm::kNone, false, false, false, 0, 0, false, 0, false});
  check_qkv({3, 1, 96, 96, kF, kF, HeadNorm::kNone, false, false, false, 0, 0, false, 0, false});
}

}  // namespace sharpi::cuda::check
