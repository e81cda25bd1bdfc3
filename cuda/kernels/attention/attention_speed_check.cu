// SPDX-License-Identifier: MIT
// The part of attention_check that times attention on the shapes of published models.
#include <memory>

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/attention/qkv.h"
#include "cuda/kernels/check_util.h"

namespace sharpi::cuda::check {
namespace {

struct Span {
  const char* name;
  uint32_t n_heads, n_kv, dim, window;
};

/// Bytes of a session of a layer: any bytes are valid rows, these are small numbers in every codec.
std::vector<std::byte> make_store(const KvLayer& l, uint32_t slots) {
  const std::vector<float> noise = random_floats(1u << 20, 0.3f);
  std::vector<std::byte> pattern(blocks_of(slots) * l.block_stride);
  const uint32_t elements = l.n_heads * l.head_dim;
  for (uint32_t s = 0; s < blocks_of(slots) * kKvBlockSlots; ++s) {
    std::byte* b = pattern.data() + s / kKvBlockSlots * l.block_stride;
    const float* x = noise.data() + random_below((1u << 20) - elements);
    const uint32_t in = s % kKvBlockSlots;
    must(kv_encode_row(l.k_dtype, x, elements, b + l.k_offset + in * l.k_row_bytes), "encode");
    must(kv_encode_row(l.v_dtype, x, elements, b + l.v_offset + in * l.v_row_bytes), "encode");
  }
  return pattern;
}

/// A layer's queries and rows as projected, and what else its launches need.
struct Projected {
  Buffer<float> q, k, v, q_norm, k_norm, cos, sin, rotated, o;
  Projected(const Span& m, uint32_t rows)
      : q(random_floats(uint64_t{rows} * m.n_heads * m.dim, 1.0f)),
        k(random_floats(uint64_t{rows} * m.n_kv * m.dim, 1.0f)),
        v(random_floats(uint64_t{rows} * m.n_kv * m.dim, 1.0f)),
        q_norm(random_floats(m.dim, 1.0f)),
        k_norm(random_floats(m.dim, 1.0f)),
        cos(random_floats(uint64_t{rows} * m.dim / 2, 1.0f)),
        sin(random_floats(uint64_t{rows} * m.dim / 2, 1.0f)),
        rotated(uint64_t{rows} * m.n_heads * m.dim),
        o(uint64_t{rows} * m.n_heads * m.dim) {}
};

QkvParams make_qkv(const Batch& batch, const KvLayer& l, const Span& m, const Projected& x) {
  QkvParams r;
  r.batch = batch;
  r.kv = l;
  r.n_heads = m.n_heads;
  r.q = x.q.p;
  r.q_stride = uint64_t{m.n_heads} * m.dim;
  r.q_head_stride = m.dim;
  r.k = x.k.p;
  r.v = x.v.p;
  r.kv_stride = uint64_t{m.n_kv} * m.dim;
  r.norm = HeadNorm::kPerHead;
  r.q_norm = x.q_norm.p;
  r.k_norm = x.k_norm.p;
  r.cos = x.cos.p;
  r.sin = x.sin.p;
  r.n_half = m.dim / 2;
  r.q_out = x.rotated.p;
  r.to_ring = m.window != 0;
  return r;
}

void print_speed(const Span& m, const KvLayer& l, uint32_t past, uint32_t rows, double us,
                 double with_row_us) {
  std::string codecs = name_of(l.k_dtype);
  if (l.v_dtype != l.k_dtype) codecs += std::string("/") + name_of(l.v_dtype);
  std::printf("attention %-14s %-7s past %6u rows %4u: %9.2f us", m.name, codecs.c_str(), past,
              rows, us);
  if (rows == 1) std::printf(", with its row %9.2f us", with_row_us);
  if (rows <= kSplitRows) {
    const double read = (m.window != 0 ? std::min(m.window, past + rows) : past + rows) *
                        static_cast<double>(l.k_row_bytes + l.v_row_bytes);
    std::printf("  %4.0f%% of %.1f TB/s\n", 100 * read / (us * 1e-6) / kBandwidth,
                kBandwidth / 1e12);
    return;
  }
  double pairs = 0;
  for (uint32_t r = 0; r < rows; ++r) {
    pairs += m.window != 0 ? std::min(m.window, past + r + 1) : past + r + 1;
  }
  const double width = static_cast<double>(m.n_heads) * m.dim;
  std::printf("  %6.1f TFLOP/s\n", pairs * width * 4 / us / 1e6);
}

/// `rows` rows after `past` keys, several layers so that the caches do not help. One row: also from
/// what was projected to the output, as a decode step does it.
void bench_attention(const KernelConfig& config, const Span& m, KvDtype k, KvDtype v, uint32_t past,
                     uint32_t rows) {
  KvLayer l = make_layer(m.n_kv, m.dim, k, v, m.window);
  const uint32_t ring = m.window != 0 ? m.window + 64 : 0;
  const uint32_t slots = m.window != 0 ? ring : past + rows;
  const std::vector<std::byte> pattern = make_store(l, slots);
  const uint32_t n =
      rows > 16 ? 2
                : static_cast<uint32_t>(std::clamp<uint64_t>((300u << 20) / pattern.size(), 2, 64));
  std::vector<std::unique_ptr<Buffer<std::byte>>> stores;
  std::vector<std::unique_ptr<TestBatch>> batches;
  std::vector<Batch> made;
  for (uint32_t i = 0; i < n; ++i) {
    stores.push_back(std::make_unique<Buffer<std::byte>>(pattern));
    batches.push_back(std::make_unique<TestBatch>(rows, 1, 3));
    BatchSequence& s = batches.back()->table.sequences[0];
    s.n_rows = rows;
    s.position = past;
    batches.back()->table.groups[1] = {stores.back()->p, past, ring};
    made.push_back(batches.back()->finish());
  }
  const Projected x(m, rows);
  const uint64_t block = uint64_t{kKvBlockSlots} * (l.k_row_bytes + l.v_row_bytes);
  Buffer<std::byte> chunk(blocks_of(rows) * block, 0);
  l.chunk = chunk.p;
  const uint64_t bytes = attention_workspace_bytes(config, m.n_heads, m.dim);
  Buffer<std::byte> workspace(bytes, 0);
  const auto layers = [&](bool with_row, cudaStream_t stream) {
    for (uint32_t i = 0; i < n; ++i) {
      const QkvParams own = make_qkv(made[i], l, m, x);
      if (with_row) must(launch_qkv(own, config.pdl, stream), m.name);
      AttentionParams p;
      p.batch = made[i];
      p.kv = l;
      p.n_heads = m.n_heads;
      p.scale = 1.0f / std::sqrt(static_cast<float>(m.dim));
      p.q = rows == 1 ? x.rotated.p : x.q.p;
      p.q_stride = own.q_stride;
      p.o = x.o.p;
      p.o_stride = own.q_stride;
      p.workspace = workspace.p;
      p.workspace_bytes = bytes;
      p.may_wait = rows <= 4;
      must(launch_attention(config, p, stream), m.name);
    }
  };
  const auto time = [&](bool with_row) {
    return time_graph([&](cudaStream_t stream) { layers(with_row, stream); }) * 1000 / n;
  };
  const double with_row_us = rows == 1 ? time(true) : 0.0;
  print_speed(m, l, past, rows, time(false), with_row_us);
}

void bench_attention(const KernelConfig& config, const Span& m, KvDtype d, uint32_t past,
                     uint32_t rows) {
  bench_attention(config, m, d, d, past, rows);
}

constexpr Span kDense8 = {"Qwen3-8B", 32, 8, 128, 0}, kDense27 = {"27B", 24, 4, 256, 0};
constexpr Span kCoder = {"Qwen3-Coder", 32, 4, 128, 0};
constexpr Span kGlobal = {"Gemma12B glob", 16, 1, 512, 0},
               kWindow = {"Gemma12B win", 16, 8, 256, 1024};
constexpr Span kHybrid = {"35B-A3B", 16, 2, 256, 0}, kOlmoe = {"OLMoE", 16, 16, 128, 0};

}  // namespace

/// Rows in q4, values alone or keys too, beside those that they take less memory than.
void bench_attention_q4(const KernelConfig& config) {
  for (const uint32_t past : {100u, 2048u, 16384u}) {
    bench_attention(config, kDense8, kB, past, 1);
    bench_attention(config, kDense8, kQ, past, 1);
    bench_attention(config, kDense8, kQ, kT, past, 1);
    bench_attention(config, kDense8, kT, past, 1);
  }
  for (const uint32_t rows : {1u, 4u}) {
    bench_attention(config, kDense27, kQ, 16384, rows);
    bench_attention(config, kDense27, kQ, kT, 16384, rows);
    bench_attention(config, kDense27, kT, 16384, rows);
  }
}

void bench_attentions(const KernelConfig& config) {
  for (const KvDtype d : {kB, kQ, kF}) {
    for (const uint32_t past : {100u, 2048u, 16384u, 65536u, 131072u}) {
      bench_attention(config, kDense8, d, past, 1);
    }
    bench_attention(config, kCoder, d, 16384, 1);
    for (const uint32_t past : {100u, 2048u, 16384u}) {
      bench_attention(config, kDense27, d, past, 1);
    }
    bench_attention(config, kHybrid, d, 16384, 1);
    for (const uint32_t past : {100u, 2048u, 32768u, 131072u}) {
      bench_attention(config, kGlobal, d, past, 1);
    }
    bench_attention(config, kWindow, d, 100, 1);
    bench_attention(config, kWindow, d, 131072, 1);
    bench_attention(config, kOlmoe, d, 4096, 1);
  }
  bench_attention(config, kDense8, kB, 16384, 4);
  bench_attention_q4(config);
  for (const KvDtype d : {kB, kQ, kF}) {
    bench_attention(config, kDense8, d, 0, 2048);
    bench_attention(config, kDense27, d, 0, 2048);
    bench_attention(config, kGlobal, d, 0, 2048);
    bench_attention(config, kGlobal, d, 32768, 2048);
    bench_attention(config, kWindow, d, 4096, 2048);
  }
  bench_attention(config, kDense8, kB, 16384, 2048);
}

void bench_attention_one(const KernelConfig& config, int which) {
  if (which == 1) bench_attention(config, kDense8, kB, 65536, 1);
  if (which == 2) bench_attention(config, kDense8, kQ, 65536, 1);
  if (which == 3) {
    for (const KvDtype d : {kB, kQ, kF}) bench_attention(config, kGlobal, d, 32768, 2048);
  }
  if (which == 4) bench_attention(config, kDense27, kB, 16384, 1);
  if (which == 11) {
    bench_attention(config, kDense8, kQ, kT, 30720, 2048);
    bench_attention(config, kDense27, kQ, kT, 30720, 2048);
    for (const KvDtype d : {kF, kT}) {
      for (const Span& m : {kDense8, kDense27}) bench_attention(config, m, d, 30720, 2048);
    }
  }
  for (const KvDtype d : {kB, kQ}) {
    if (which == 5) {
      for (const uint32_t past : {400u, 32768u, 131072u}) {
        bench_attention(config, kGlobal, d, past, 1);
      }
    }
    if (which == 6) {
      for (const uint32_t past : {10u, 100u, 400u, 2048u}) {
        for (const Span& m : {kDense8, kCoder, kOlmoe, kHybrid, kDense27, kGlobal, kWindow}) {
          bench_attention(config, m, d, past, 1);
        }
      }
    }
    if (which == 10) {  // drafts that are verified
      for (const uint32_t past : {100u, 2048u, 16384u}) {
        for (const Span& m : {kDense8, kHybrid, kDense27, kWindow}) {
          for (const uint32_t rows : {1u, 2u, 4u, 8u}) bench_attention(config, m, d, past, rows);
        }
      }
    }
    if (which == 11) {  // chunks of long prompts
      for (const uint32_t past : {0u, 6144u, 30720u, 63488u}) {
        for (const Span& m : {kDense8, kDense27}) bench_attention(config, m, d, past, 2048);
      }
      bench_attention(config, kWindow, d, 30720, 2048);
      bench_attention(config, kGlobal, d, 30720, 2048);
    }
    if (which == 7) bench_attention(config, kCoder, d, 100, 1);
    if (which == 8) bench_attention(config, kHybrid, d, 100, 1);
    if (which == 9) bench_attention(config, kGlobal, d, 400, 1);
  }
}

}  // namespace sharpi::cuda::check
