// SPDX-License-Identifier: MIT
// The part of attention_check that concerns scoring and compaction.
#include <cstring>
#include <memory>

#include "cuda/kernels/check_util.h"
#include "cuda/kernels/kv/kv_move.h"
#include "cuda/kernels/kv/kv_score.h"
#include "kv/codec.h"

namespace sharpi::cuda::check {
namespace {

// --- scoring ---

struct Rows {
  KvView view;
  std::vector<float> k, v;  // decoded
  std::unique_ptr<Buffer<std::byte>> device;
  std::vector<std::byte> host;
};

Rows make_rows(uint32_t n_kv, uint32_t dim, KvDtype k, KvDtype v, uint32_t n_slots) {
  Rows r;
  const uint64_t n = uint64_t{n_kv} * dim;
  r.view.k_row_bytes = static_cast<uint32_t>(kv_row_bytes(k, n));
  r.view.v_row_bytes = static_cast<uint32_t>(kv_row_bytes(v, n));
  r.view.block_stride = 64ull * (r.view.k_row_bytes + r.view.v_row_bytes) + 1024;
  r.view.k_dtype = k;
  r.view.v_dtype = v;
  r.view.n_heads = n_kv;
  r.view.head_dim = dim;
  r.host.assign((n_slots + 63) / 64 * r.view.block_stride, std::byte{0xFF});
  r.view.k = r.host.data();
  r.view.v = r.host.data() + 64ull * r.view.k_row_bytes;
  r.k.resize(n_slots * n);
  r.v.resize(n_slots * n);
  for (uint32_t t = 0; t < n_slots; ++t) {
    const std::vector<float> a = random_floats(n, 1.0f), b = random_floats(n, 1.0f);
    put_row(k, dim, a.data(), n, r.view.k_row(t), r.k.data() + t * n);
    put_row(v, dim, b.data(), n, r.view.v_row(t), r.v.data() + t * n);
  }
  r.device = std::make_unique<Buffer<std::byte>>(r.host);
  r.view.k = r.device->p;
  r.view.v = r.device->p + 64ull * r.view.k_row_bytes;
  return r;
}

struct ScoreCase {
  uint32_t n_heads, n_kv, dim, n_slots, n_queries, ring;
  KvDtype k;
  bool sinks = false;
};

void score_reference(const ScoreCase& c, const Rows& rows, const std::vector<float>& q,
                     uint64_t first, const std::vector<uint32_t>& visible,
                     const std::vector<float>& sinks, float scale, std::vector<double>* sum,
                     std::vector<double>* most) {
  const uint32_t group = c.n_heads / c.n_kv;
  parallel_for(c.n_kv, [&](size_t g) {
    for (uint32_t term = 0; term < group * c.n_queries; ++term) {
      const uint32_t head = static_cast<uint32_t>(g) * group + term / c.n_queries,
                     i = term % c.n_queries;
      const float* x = q.data() + ((first + i) % c.ring * c.n_heads + head) * c.dim;
      const uint32_t n = visible[g * c.n_queries + i];
      std::vector<double> p(n);
      double top = -1e300, all = 0;
      for (uint32_t t = 0; t < n; ++t) {
        for (uint32_t d = 0; d < c.dim; ++d) {
          p[t] += static_cast<double>(x[d]) *
                  static_cast<double>(rows.k[(uint64_t{t} * c.n_kv + g) * c.dim + d]);
        }
        top = std::max(top, p[t] *= static_cast<double>(scale));
      }
      for (double& v : p) all += v = std::exp(v - top);
      if (c.sinks && n != 0) all += std::exp(static_cast<double>(sinks[head]) - top);
      for (uint32_t t = 0; t < n; ++t) {
        (*sum)[g * c.n_slots + t] += p[t] / all;
        double& m = (*most)[g * c.n_slots + t];
        m = std::max(m, p[t] / all);
      }
    }
  });
}

void check_score(const ScoreCase& c) {
  const Rows rows = make_rows(c.n_kv, c.dim, c.k, KvDtype::kBf16, c.n_slots);
  const std::vector<float> q = random_floats(uint64_t{c.ring} * c.n_heads * c.dim, 1.5f);
  const uint64_t first = 1000;
  std::vector<uint32_t> visible(c.n_kv * c.n_queries);
  for (uint32_t g = 0; g < c.n_kv; ++g) {
    for (uint32_t i = 0; i < c.n_queries; ++i) {
      const uint32_t back = c.n_queries - 1 - i + (g % 2);
      visible[g * c.n_queries + i] = c.n_slots > back ? c.n_slots - back : 0;
    }
  }
  std::vector<float> sinks = random_floats(c.n_heads, 2.0f);
  if (c.n_heads > 2) sinks[1] = 40.0f, sinks[2] = -40.0f;
  const Buffer<float> dq(q), dsinks(sinks);
  const Buffer<uint32_t> dv(visible);
  const uint64_t bytes = score_workspace_bytes(c.n_slots, c.n_queries, c.n_heads, c.n_kv, c.dim);
  Buffer<std::byte> workspace(bytes);
  Buffer<float> sum(c.n_kv * c.n_slots), most(c.n_kv * c.n_slots);
  ScoreParams p;
  p.kv = rows.view;
  p.n_slots = c.n_slots;
  p.queries = dq.p;
  p.query_rows = c.ring;
  p.first_query = first;
  p.n_queries = c.n_queries;
  p.n_heads = c.n_heads;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  p.sinks = c.sinks ? dsinks.p : nullptr;
  p.visible = dv.p;
  p.sum = sum.p;
  p.max = most.p;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  const std::string name = "score " + std::to_string(c.n_heads) + "/" + std::to_string(c.n_kv) +
                           "x" + std::to_string(c.dim) + " " + kv_dtype_name(c.k) + " slots " +
                           std::to_string(c.n_slots) + " queries " + std::to_string(c.n_queries) +
                           (c.sinks ? " sinks" : "");
  must(launch_score(this_device(), p, nullptr), name.c_str());
  p.add = true;  // as if a second layer read the rows with the same queries
  must(launch_score(this_device(), p, nullptr), name.c_str());
  must(cudaDeviceSynchronize(), name.c_str());
  std::vector<double> want_sum(sum.n), want_max(most.n);
  score_reference(c, rows, q, first, visible, sinks, p.scale, &want_sum, &want_max);
  for (double& v : want_sum) v *= 2;
  // Scores of a few units, each product to 2^-16: exponentials err by 1e-4 at worst.
  expect_close(name + " sum", sum.host(), want_sum, 1e-4);
  expect_close(name + " max", most.host(), want_max, 1e-4);
}

void check_value_norms(uint32_t n_heads, uint32_t n_kv, uint32_t dim, KvDtype v, uint32_t n_slots,
                       uint32_t n_embd) {
  const Rows rows = make_rows(n_kv, dim, KvDtype::kBf16, v, n_slots);
  const uint32_t n_in = n_heads * dim;
  const std::vector<float> w = random_floats(uint64_t{n_embd} * n_in, 0.1f);
  const Buffer<float> dw(w);
  Buffer<float> norms(n_kv * n_slots);
  const uint64_t bytes = value_norm_workspace_bytes(n_heads, n_kv, dim);
  Buffer<std::byte> workspace(bytes);
  ValueNormParams p;
  p.kv = rows.view;
  p.n_slots = n_slots;
  p.n_heads = n_heads;
  p.o = make_device_matrix(GgmlType::kF32, n_in, n_embd, 1, dw.p);
  p.n_outputs = n_embd;
  p.norms = norms.p;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  const std::string name = "value_norms " + std::to_string(n_heads) + "/" + std::to_string(n_kv) +
                           "x" + std::to_string(dim) + " " + kv_dtype_name(v);
  must(launch_value_norms(this_device(), p, nullptr), name.c_str());
  must(cudaDeviceSynchronize(), name.c_str());
  std::vector<double> want(norms.n);
  parallel_for(norms.n, [&](size_t i) {
    const auto g = static_cast<uint32_t>(i / n_slots), t = static_cast<uint32_t>(i % n_slots);
    const uint32_t group = n_heads / n_kv;
    for (uint32_t h = g * group; h < (g + 1) * group; ++h) {
      for (uint32_t e = 0; e < n_embd; ++e) {
        double dot = 0;
        for (uint32_t d = 0; d < dim; ++d) {
          dot += static_cast<double>(w[uint64_t{e} * n_in + h * dim + d]) *
                 static_cast<double>(rows.v[(uint64_t{t} * n_kv + g) * dim + d]);
        }
        want[i] += std::fabs(dot) / group;
      }
    }
  });
  expect_close(name, norms.host(), want, 3e-5);
}

// --- moves ---

void check_moves(uint32_t n_kv, uint32_t dim, KvDtype d, bool per_head) {
  const uint32_t n_slots = 1000;
  Rows rows = make_rows(n_kv, dim, d, d, n_slots);
  const KvView& v = rows.view;
  const uint64_t n = uint64_t{n_kv} * dim;
  std::vector<std::byte> want = rows.host;
  std::vector<std::vector<uint32_t>> keeps(per_head ? n_kv : 1);
  std::vector<std::unique_ptr<Buffer<uint32_t>>> lists;
  std::vector<KvMoveJob> jobs;
  uint32_t max_bytes = 0;
  const auto add = [&](bool value, uint64_t offset, uint64_t bytes, size_t list) {
    KvMoveJob j;
    j.rows = value ? v.v : v.k;
    j.keep = lists[list]->p;
    j.block_stride = v.block_stride;
    j.row_bytes = value ? v.v_row_bytes : v.k_row_bytes;
    j.offset = static_cast<uint32_t>(offset);
    j.bytes = static_cast<uint32_t>(bytes);
    j.n_keep = static_cast<uint32_t>(keeps[list].size());
    max_bytes = std::max(max_bytes, j.bytes);
    jobs.push_back(j);
    const uint64_t first = value ? 64ull * v.k_row_bytes : 0;
    const auto at = [&](uint64_t slot) {
      return want.data() + first + slot / 64 * v.block_stride + slot % 64 * j.row_bytes + offset;
    };
    for (size_t i = 0; i < keeps[list].size(); ++i) std::memmove(at(i), at(keeps[list][i]), bytes);
  };
  for (size_t g = 0; g < keeps.size(); ++g) {
    for (uint32_t t = 0; t < n_slots; ++t) {
      if (t < 5 || random_below(3 + static_cast<uint32_t>(g)) != 0) keeps[g].push_back(t);
    }
    lists.push_back(std::make_unique<Buffer<uint32_t>>(keeps[g]));
    for (const bool value : {false, true}) {
      if (!per_head) {
        add(value, 0, v.k_row_bytes, 0);
        continue;
      }
      uint64_t plane_start = 0;
      for (const KvPlane& plane : kv_codec(d)->planes) {
        add(value, plane_start + g * plane.bytes_of(dim), plane.bytes_of(dim), g);
        plane_start += plane.bytes_of(n);
      }
    }
  }
  const Buffer<KvMoveJob> djobs(jobs);
  must(launch_kv_move(djobs.p, static_cast<uint32_t>(jobs.size()), max_bytes, nullptr), "kv_move");
  must(cudaDeviceSynchronize(), "kv_move");
  const std::string name = std::string("kv_move ") + kv_dtype_name(d) + " " + std::to_string(n_kv) +
                           "x" + std::to_string(dim);
  const std::vector<std::byte> got = rows.device->host();
  expect(got == want, name);
  // Canonical bytes of a few rows, and back.
  const uint32_t first = 37, count = 100;
  Buffer<std::byte> canonical(uint64_t{count} * v.k_row_bytes), other(rows.host.size());
  KvCanonicalParams p;
  p.rows = v.k;
  p.block_stride = v.block_stride;
  p.row_bytes = v.k_row_bytes;
  p.dtype = d;
  p.n_elements = static_cast<uint32_t>(n);
  p.first = first;
  p.n = count;
  p.canonical = canonical.p;
  must(launch_kv_canonical(p, nullptr), "kv_canonical");
  p.rows = other.p;
  p.to_store = true;
  must(launch_kv_canonical(p, nullptr), "kv_canonical");
  must(cudaDeviceSynchronize(), "kv_canonical");
  const std::vector<std::byte> blob = canonical.host(), back = other.host();
  bool same = true;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = (first + i) / 64 * v.block_stride + (first + i) % 64 * v.k_row_bytes;
    std::vector<std::byte> row(v.k_row_bytes);
    must(kv_row_to_canonical(d, got.data() + at, n, row.data()), "canonical");
    same = same && std::memcmp(row.data(), blob.data() + i * row.size(), row.size()) == 0 &&
           std::memcmp(back.data() + at, got.data() + at, row.size()) == 0;
  }
  expect(same, name + " canonical");
}

}  // namespace

void check_states() {
  if (g_extent == Extent::kLeast) {
    check_score({8, 2, 128, 100, 13, 16, kQ});
    check_score({8, 2, 128, 100, 13, 16, kQ, true});
    check_value_norms(8, 2, 128, kB, 100, 100);
    return check_moves(2, 128, kQ, true);
  }
  for (const KvDtype d : kAllKvCodecs) {
    check_score({8, 2, 128, 1000, 13, 16, d});
    check_score({8, 2, 128, 1000, 13, 16, d, true});
    check_score({4, 4, 64, 10, 16, 16, d, true});
    check_score({6, 1, 256, 777, 64, 64, d});
    check_score({24, 4, 256, 3001, 64, 64, d});
    check_score({12, 3, 192, 520, 50, 64, d});
    check_score({16, 1, 512, 300, 5, 7, d});
    check_score({4, 4, 64, 10, 16, 16, d});
    check_score({2, 2, 80, 65, 3, 3, d});
    check_value_norms(8, 2, 128, d, 100, 300);
    check_value_norms(4, 1, 512, d, 70, 64);
    for (const bool per_head : {false, true}) {
      check_moves(2, 128, d, per_head);
      check_moves(1, 96, d, per_head);
      check_moves(3, 64, d, per_head);
    }
    check_moves(2, 80, d, false);
  }
}

/// All layers of a session of the 27B model at once, as compaction launches it: half of the rows of
/// every head stay.
void bench_session_moves() {
  constexpr uint32_t kLayers = 16, kHeads = 4, kSlots = 65536, kHeadBytes = 512;
  constexpr uint64_t kRow = kHeads * kHeadBytes, kStride = kLayers * 2 * 64 * kRow;
  const Buffer<std::byte> store(kSlots / 64 * kStride, 1);
  std::vector<uint32_t> keep;
  for (uint32_t t = 0; t < kSlots; t += 2) keep.push_back(t + random_below(2));
  const Buffer<uint32_t> dkeep(keep);
  std::vector<KvMoveJob> jobs;
  for (uint32_t part = 0; part < kLayers * 2; ++part) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      KvMoveJob j;
      j.rows = store.p + part * 64 * kRow;
      j.keep = dkeep.p;
      j.block_stride = kStride;
      j.row_bytes = kRow;
      j.offset = h * kHeadBytes;
      j.bytes = kHeadBytes;
      j.n_keep = static_cast<uint32_t>(keep.size());
      jobs.push_back(j);
    }
  }
  const Buffer<KvMoveJob> djobs(jobs);
  const double us =
      1000 * time_graph([&](cudaStream_t s) {
        must(launch_kv_move(djobs.p, static_cast<uint32_t>(jobs.size()), kHeadBytes, s), "move");
      });
  const double moved = 2.0 * static_cast<double>(keep.size()) * kRow * kLayers * 2;
  std::printf(
      "move  27B 64K, 16 layers, half of the rows per head: %8.1f us  %4.0f%% of %.1f TB/s\n", us,
      100 * moved / (us * 1e-6) / kBandwidth, kBandwidth / 1e12);
}

void bench_score(const char* name, const ScoreCase& c) {
  const uint64_t n = uint64_t{c.n_kv} * c.dim;
  Rows rows = make_rows(c.n_kv, c.dim, c.k, c.k, 64);
  const uint32_t blocks = c.n_slots / 64;
  std::vector<std::byte> all(blocks * rows.view.block_stride);
  for (uint32_t b = 0; b < blocks; ++b) {
    std::memcpy(all.data() + b * rows.view.block_stride, rows.host.data(), rows.view.block_stride);
  }
  Buffer<std::byte> store(all);
  const Buffer<float> q(random_floats(c.ring * n * (c.n_heads / c.n_kv), 1.0f));
  const Buffer<uint32_t> visible(std::vector<uint32_t>(c.n_kv * c.n_queries, c.n_slots));
  const uint64_t bytes = score_workspace_bytes(c.n_slots, c.n_queries, c.n_heads, c.n_kv, c.dim);
  Buffer<std::byte> workspace(bytes);
  Buffer<float> sum(c.n_kv * c.n_slots), most(c.n_kv * c.n_slots);
  ScoreParams p;
  p.kv = rows.view;
  p.kv.k = store.p;
  p.kv.v = store.p + 64ull * rows.view.k_row_bytes;
  p.n_slots = c.n_slots;
  p.queries = q.p;
  p.query_rows = c.ring;
  p.n_queries = c.n_queries;
  p.n_heads = c.n_heads;
  p.scale = 0.1f;
  p.visible = visible.p;
  p.sum = sum.p;
  p.max = most.p;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  const double us =
      1000 * time_graph([&](cudaStream_t s) { must(launch_score(this_device(), p, s), "score"); });
  std::printf("score %-13s %u queries: %8.1f us per layer\n", name, c.n_queries, us);
  std::vector<uint32_t> keep;
  for (uint32_t t = 0; t < c.n_slots; t += 2) keep.push_back(t);
  const Buffer<uint32_t> dkeep(keep);
  std::vector<KvMoveJob> jobs;
  for (const bool value : {false, true}) {
    KvMoveJob j;
    j.rows = value ? p.kv.v : p.kv.k;
    j.keep = dkeep.p;
    j.block_stride = p.kv.block_stride;
    j.row_bytes = j.bytes = p.kv.k_row_bytes;
    j.n_keep = static_cast<uint32_t>(keep.size());
    jobs.push_back(j);
  }
  const Buffer<KvMoveJob> djobs(jobs);
  const double move_us = 1000 * time_graph([&](cudaStream_t s) {
                           must(launch_kv_move(djobs.p, 2, p.kv.k_row_bytes, s), "move");
                         });
  std::printf("move  %-13s half of the rows of one layer: %8.1f us\n", name, move_us);
}

void bench_states() {
  bench_score("27B 64K", {24, 4, 256, 65536, 64, 64, KvDtype::kBf16});
  bench_score("Qwen3-8B 16K", {32, 8, 128, 16384, 64, 64, KvDtype::kBf16});
  bench_session_moves();
}

}  // namespace sharpi::cuda::check
