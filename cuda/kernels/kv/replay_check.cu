// SPDX-License-Identifier: MIT
// The part of attention_check that concerns replay scores: they are those of loops in double, and
// what they cost a chunk of a prompt.
#include <cstring>
#include <memory>

#include "base/limits.h"
#include "cuda/kernels/check_util.h"
#include "cuda/kernels/kv/kv_replay.h"
#include "kv/codec.h"

namespace sharpi::cuda::check {
namespace {

using device::ReplayParams;

struct ReplayCase {
  uint32_t n_heads, n_kv, dim;
  KvDtype k;
  uint32_t first_slot, n_rows, tail_slot, first_place, every;
  uint32_t n_half;
  bool neighbours = false, rotated = true, exact = false;
  uint32_t ring = 0;        // rows of queries in memory; 0 = as many as there are
  bool small_room = false;  // blocks of 99 KiB, as most cards have
};

/// A layer's rows and queries on host and device.
struct ReplayData {
  ReplayParams p;
  std::vector<float> keys, queries, cos, sin;  // keys decoded; queries as RoPE left them
  std::unique_ptr<Buffer<std::byte>> rows;
  std::unique_ptr<Buffer<float>> stored, angles, scores;
};

void fill_params(const ReplayCase& c, ReplayParams* p) {
  p->first_slot = c.first_slot;
  p->n_rows = c.n_rows;
  p->tail_slot = c.tail_slot;
  p->first_place = c.first_place;
  p->every = c.every;
  p->first_asked = (c.every - c.first_place % c.every) % c.every;
  p->query_stride = uint64_t{c.n_heads} * c.dim;
  p->query_rows = c.ring == 0 ? c.n_rows : c.ring;
  p->first_query = c.ring == 0 ? 0 : c.ring * 3 - 5;
  p->rotated = c.rotated;
  p->n_heads = c.n_heads;
  p->scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  p->n_half = c.n_half;
  p->neighbours = c.neighbours;
  p->exact = c.exact;
  p->kv.k_dtype = c.k;
  p->kv.n_heads = c.n_kv;
  p->kv.head_dim = c.dim;
  p->kv.k_row_bytes = static_cast<uint32_t>(kv_row_bytes(c.k, uint64_t{c.n_kv} * c.dim));
  p->kv.block_stride = 64ull * p->kv.k_row_bytes + 1024;
}

ReplayData make_data(const ReplayCase& c) {
  ReplayData d;
  fill_params(c, &d.p);
  const uint32_t n_slots = c.first_slot + c.n_rows, n = c.n_kv * c.dim;
  std::vector<std::byte> host(blocks_of(n_slots) * d.p.kv.block_stride, std::byte{0xFF});
  d.p.kv.k = host.data();
  d.keys.resize(uint64_t{n_slots} * n);
  for (uint32_t t = 0; t < n_slots; ++t)
    put_row(c.k, c.dim, random_floats(n, 1.5f).data(), n, d.p.kv.k_row(t),
            &d.keys[uint64_t{t} * n]);
  d.rows = std::make_unique<Buffer<std::byte>>(host);
  d.p.kv.k = d.rows->p;
  d.queries = random_floats(uint64_t{c.n_rows} * d.p.query_stride, 1.5f);
  std::vector<float> stored(uint64_t{d.p.query_rows} * d.p.query_stride, NAN);
  for (uint32_t r = 0; r < c.n_rows; ++r) {
    float* to = &stored[(d.p.first_query + r) % d.p.query_rows * d.p.query_stride];
    std::memcpy(to, &d.queries[r * d.p.query_stride], d.p.query_stride * sizeof(float));
    if (c.rotated) kv_rotate(to, d.p.query_stride, kv_rotation(c.k, c.dim));
  }
  d.stored = std::make_unique<Buffer<float>>(stored);
  d.p.queries = d.stored->p;
  std::vector<float> angles;
  for (uint32_t j = 0; j < c.n_half; ++j) {
    d.cos.push_back(std::cos(static_cast<float>(1 + j)));
    d.sin.push_back(std::sin(static_cast<float>(1 + j)));
  }
  angles = d.cos;
  angles.insert(angles.end(), d.sin.begin(), d.sin.end());
  d.angles = std::make_unique<Buffer<float>>(angles);
  d.p.cos = d.angles->p;
  d.p.sin = d.p.cos + c.n_half;
  d.p.stride = n_slots + 3;
  d.scores = std::make_unique<Buffer<float>>(c.n_kv * d.p.stride);
  d.p.scores = d.scores->p;
  return d;
}

std::vector<double> turned_query(const ReplayCase& c, const ReplayData& d, const float* q) {
  std::vector<double> x(q, q + c.dim);
  for (uint32_t j = 0; j < c.n_half; ++j) {
    double &a = x[c.neighbours ? 2 * j : j], &b = x[c.neighbours ? 2 * j + 1 : j + c.n_half];
    const double before = a, cos = static_cast<double>(d.cos[j]),
                 sin = static_cast<double>(d.sin[j]);
    a = before * cos - b * sin;
    b = before * sin + b * cos;
  }
  return x;
}

/// What one query head raises the scores of its rows to.
void ask_plainly(const ReplayCase& c, const ReplayData& d, uint32_t row, uint32_t head,
                 std::vector<double>* scores) {
  const uint32_t kv = head / (c.n_heads / c.n_kv), at = c.first_slot + row;
  const int start = static_cast<int>(c.first_slot) - static_cast<int>(c.first_place);
  const int first = start + static_cast<int>((c.first_place + row) / kReplayChunk * kReplayChunk);
  const auto low = static_cast<uint32_t>(std::max(first, static_cast<int>(c.tail_slot)));
  const uint32_t end = std::min(static_cast<uint32_t>(first + static_cast<int>(kReplayChunk)),
                                c.first_slot + c.n_rows);
  const float* q = &d.queries[row * d.p.query_stride + uint64_t{head} * c.dim];
  const std::vector<double> now(q, q + c.dim), later = turned_query(c, d, q);
  const auto weight = [&](const std::vector<double>& x, uint32_t t) {
    const float* k = &d.keys[(uint64_t{t} * c.n_kv + kv) * c.dim];
    double s = 0;
    for (uint32_t e = 0; e < c.dim; ++e) s += x[e] * static_cast<double>(k[e]);
    return std::exp(s * static_cast<double>(d.p.scale));
  };
  double all = 0;
  std::vector<double> mine(end);
  for (uint32_t t = 0; t < std::min(kReplaySinks, low); ++t) all += weight(later, t);
  for (uint32_t t = low; t < end; ++t) all += mine[t] = weight(later, t);
  for (uint32_t t = low; t <= at; ++t) all += weight(now, t);
  for (uint32_t t = std::max(low, c.first_slot); t < end; ++t) {
    double& most = (*scores)[kv * c.n_rows + t - c.first_slot];
    most = std::max(most, mine[t] / all);
  }
}

std::string describe(const ReplayCase& c) {
  char text[200];
  std::snprintf(text, sizeof text,
                "replay %s, heads %u/%u x %u %s, rows %u at %u (place %u, tail %u), every %u, "
                "turned %u%s%s",
                c.exact ? "exact" : "fast", c.n_heads, c.n_kv, c.dim, name_of(c.k), c.n_rows,
                c.first_slot, c.first_place, c.tail_slot, c.every, c.n_half,
                c.neighbours ? " neighbours" : "", c.rotated ? "" : ", unrotated");
  return text;
}

void check_replay(const ReplayCase& c) {
  std::printf("%s\n", describe(c).c_str());
  std::fflush(stdout);
  ReplayData d = make_data(c);
  std::vector<std::vector<double>> of_head(c.n_heads,
                                           std::vector<double>(uint64_t{c.n_kv} * c.n_rows));
  parallel_for(c.n_heads, [&](size_t h) {
    for (uint32_t r = d.p.first_asked; r < c.n_rows; r += c.every)
      ask_plainly(c, d, r, static_cast<uint32_t>(h), &of_head[h]);
  });
  std::vector<double> want(of_head[0].size());
  for (const std::vector<double>& one : of_head)
    for (size_t i = 0; i < want.size(); ++i) want[i] = std::max(want[i], one[i]);
  DeviceProfile device = this_device();
  if (c.small_room) device.shared_per_block = std::min(device.shared_per_block, 99 * 1024);
  must(launch_replay_scores(device, d.p, nullptr), "replay scores");
  must(cudaDeviceSynchronize(), describe(c).c_str());
  const std::vector<float> all = d.scores->host();
  std::vector<float> got;
  for (uint32_t kv = 0; kv < c.n_kv; ++kv) {
    const float* of = &all[kv * d.p.stride + c.first_slot];
    got.insert(got.end(), of, of + c.n_rows);
  }
  expect_close(describe(c), got, want, c.exact ? 1e-4 : 5e-3);
  bool untouched = true;  // what is in front of the rows
  for (uint32_t i = 0; i < c.first_slot; ++i) untouched = untouched && std::isnan(all[i]);
  expect(untouched, describe(c) + ": scores of other rows");
}

}  // namespace

void check_replays(bool small) {
  const std::vector<ReplayCase> cases = {
      {8, 2, 128, kB, 0, 300, 0, 0, 1, 64},
      {8, 2, 128, kB, 100, 530, 37, 45, 1, 64},
      {8, 2, 128, kB, 256, 256, 0, 0, 4, 32},
      {4, 4, 64, kQ, 70, 600, 70, 250, 1, 32, false, true},
      {16, 2, 64, kT, 300, 290, 40, 7, 3, 16, true, false, false, 320},
      {8, 1, 128, kT, 5, 400, 2, 255, 1, 64, false, true},
      {8, 2, 128, kF, 12, 40, 3, 10, 1, 0},
      {8, 2, 96, kB, 100, 300, 37, 45, 1, 48},
      {4, 2, 256, kQ, 100, 300, 37, 45, 1, 64},
      {2, 1, 512, kB, 250, 150, 3, 246, 1, 128, false, true, false, 0, true},
      {2, 1, 512, kT, 250, 20, 3, 246, 1, 64, true, false, false, 0, true},
  };
  for (size_t i = 0; i < (small ? 4 : cases.size()); ++i) {
    for (const bool exact : {false, true}) {
      ReplayCase c = cases[i];
      c.exact = exact;
      check_replay(c);
    }
  }
}

void bench_replays() {
  const DeviceProfile device = this_device();
  std::printf("replay scores of a layer, us:\n");
  for (const KvDtype k : {kB, kQ, kT}) {
    for (const uint32_t rows : {64u, 2048u}) {
      for (const uint32_t every : {1u, 4u}) {
        const ReplayCase c = {32, 8, 128, k, 2048, rows, 0, 0, every, 64};
        ReplayData d = make_data(c);
        const double ms = time_graph([&](cudaStream_t s) {
          for (int i = 0; i < 8; ++i) must(launch_replay_scores(device, d.p, s), "replay scores");
        });
        std::printf("%s %5u rows, every %u: %10.1f\n", name_of(k), rows, every, ms * 1e3 / 8);
      }
    }
  }
}

}  // namespace sharpi::cuda::check
