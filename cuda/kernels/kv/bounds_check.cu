// SPDX-License-Identifier: MIT
// The part of attention_check that concerns archives: blocks of keys scored by their bounds.
#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "cuda/kernels/check_util.h"
#include "cuda/kernels/kv/kv_archive.h"

namespace sharpi::cuda::check {
namespace {

struct BoundsCase {
  uint32_t dim, n_kv, group, n_queries, n_blocks;
  bool add = false;
};

/// Blocks of which each head has more than are scored, and queries in a ring.
struct Bounds {
  explicit Bounds(const BoundsCase& c)
      : stride(c.n_blocks + 3),
        query_rows(c.n_queries + 2),
        first_query(c.n_queries),
        queries(random_floats(size_t{query_rows} * c.n_kv * c.group * c.dim, 1.0f)),
        weights(c.n_queries) {
    for (uint64_t i = 0; i < uint64_t{c.n_kv} * stride; ++i) {
      std::vector<float> a = random_floats(c.dim, 1.0f), b = random_floats(c.dim, 1.0f);
      for (uint32_t e = 0; e < c.dim; ++e)
        bounds.push_back(bf16_beyond(std::min(a[e], b[e]), false));
      for (uint32_t e = 0; e < c.dim; ++e)
        bounds.push_back(bf16_beyond(std::max(a[e], b[e]), true));
    }
    for (uint32_t i = 0; i < c.n_queries; ++i) weights[i] = 1.0f / static_cast<float>(1 + i);
  }
  uint32_t stride, query_rows;
  uint64_t first_query;
  std::vector<float> queries, weights;
  std::vector<uint16_t> bounds;
};

constexpr float kScale = 0.25f;

double most_of_block(const BoundsCase& c, const Bounds& b, uint32_t g, uint32_t block) {
  const uint16_t* low = b.bounds.data() + (uint64_t{g} * b.stride + block) * 2 * c.dim;
  double most = -INFINITY;
  for (uint32_t i = 0; i < c.n_queries; ++i) {
    for (uint32_t h = 0; h < c.group; ++h) {
      const uint64_t row = (b.first_query + i) % b.query_rows;
      const float* q = b.queries.data() + (row * c.n_kv * c.group + g * c.group + h) * c.dim;
      double sum = 0.0;
      for (uint32_t e = 0; e < c.dim; ++e) {
        const double x = q[e];
        sum += std::max(x * f32_from_bf16(low[e]), x * f32_from_bf16(low[c.dim + e]));
      }
      most = std::max(most, sum * kScale + std::log(b.weights[i]));
    }
  }
  return most;
}

/// What a launch is given, and its memory on the device.
struct OnDevice {
  OnDevice(const BoundsCase& c, const Bounds& b, float before);
  Buffer<float> queries, weights, out;
  Buffer<uint16_t> bounds;
  device::BoundsParams p;
};

OnDevice::OnDevice(const BoundsCase& c, const Bounds& b, float before)
    : queries(b.queries),
      weights(b.weights),
      out(std::vector<float>(uint64_t{c.n_kv} * c.n_blocks, before)),
      bounds(b.bounds) {
  p.bounds = bounds.p;
  p.queries = queries.p;
  p.weight = weights.p;
  p.out = out.p;
  p.stride = b.stride;
  p.n_blocks = c.n_blocks;
  p.n_kv = c.n_kv;
  p.head_dim = c.dim;
  p.query_rows = b.query_rows;
  p.first_query = b.first_query;
  p.n_queries = c.n_queries;
  p.n_heads = c.n_kv * c.group;
  p.scale = kScale;
  p.add = c.add;
}

void check_case(const BoundsCase& c) {
  const Bounds b(c);
  const uint64_t n = uint64_t{c.n_kv} * c.n_blocks;
  const float before = 20.0f;  // of some blocks more than they get
  const OnDevice d(c, b, before);
  must(launch_kv_bounds(d.p, nullptr), "bounds");
  must(cudaDeviceSynchronize(), "bounds");
  std::vector<double> want(n);
  parallel_for(n, [&](size_t i) {
    want[i] = most_of_block(c, b, static_cast<uint32_t>(i / c.n_blocks),
                            static_cast<uint32_t>(i % c.n_blocks));
    if (c.add) want[i] = std::max(want[i], static_cast<double>(before));
  });
  expect_close("bounds of " + std::to_string(c.n_blocks) + " blocks, heads of " +
                   std::to_string(c.dim) + ", group " + std::to_string(c.group) + ", " +
                   std::to_string(c.n_queries) + " queries",
               d.out.host(), want, 3e-5);
}

}  // namespace

void check_bounds() {
  for (const uint32_t dim : {64u, 80u, 128u, 192u, 256u, 512u}) {
    check_case({dim, 1, 1, 1, 1});
    check_case({dim, 2, 4, 32, 130});
    check_case({dim, 3, 5, 7, 257, true});
  }
}

/// As a recall of 56 K rows a head launches it for a layer of an 8B.
void bench_bounds() {
  const BoundsCase c{128, 8, 4, 32, 3584};
  const Bounds b(c);
  const OnDevice d(c, b, 0.0f);
  std::printf("bounds 8B 56K, 8 heads, 32 queries: %.1f us\n",
              1000 * time_graph([&](cudaStream_t s) { must(launch_kv_bounds(d.p, s), "bounds"); }));
}

}  // namespace sharpi::cuda::check
