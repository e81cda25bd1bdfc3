// SPDX-License-Identifier: MIT
// The part of attention_check that concerns recurrent state, scoring and compaction.
#include <cstring>
#include <memory>

#include "cuda/kernels/check_util.h"
#include "cuda/kernels/delta_net.h"
#include "cuda/kernels/kv_move.h"
#include "cuda/kernels/kv_score.h"
#include "kv/codec.h"

namespace sharpi::cuda::check {
namespace {

// --- gated delta net ---

struct DeltaCase {
  DeltaNetShape shape;
  std::vector<uint32_t> rows;  // per sequence
};

struct DeltaWeights {
  std::vector<float> conv1d, dt_bias, a, norm;
};

DeltaWeights random_weights(const DeltaNetShape& s) {
  DeltaWeights w = {random_floats(uint64_t{s.conv_dim()} * s.conv_kernel, 0.5f),
                    random_floats(s.n_v_heads, 1.0f), random_floats(s.n_v_heads, 1.0f),
                    random_floats(s.head_dim, 1.0f)};
  // From hardly any decay to e^-20 per token and beyond.
  for (size_t i = 0; i < w.a.size(); ++i) w.a[i] = -std::exp(w.a[i] * 2.0f - 1.0f);
  return w;
}

double silu_of(double x) {
  return x / (1 + std::exp(-x));
}

/// One sequence, in place: state, tail; out gets rows of value_dim.
void delta_reference(const DeltaNetShape& s, const DeltaWeights& w, const float* qkv,
                     const float* z, const float* alpha, const float* beta, uint32_t n_rows,
                     std::vector<double>* state, std::vector<double>* tail, double* out) {
  const uint32_t cd = s.conv_dim(), dim = s.head_dim, taps = s.conv_kernel;
  std::vector<double> raw(*tail);
  for (uint64_t i = 0; i < uint64_t{n_rows} * cd; ++i) raw.push_back(static_cast<double>(qkv[i]));
  std::vector<double> y(uint64_t{n_rows} * cd);
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t c = 0; c < cd; ++c) {
      double v = 0;
      for (uint32_t i = 0; i < taps; ++i) {
        v += static_cast<double>(w.conv1d[c * taps + i]) * raw[(r + i) * uint64_t{cd} + c];
      }
      y[r * uint64_t{cd} + c] = silu_of(v);
    }
    for (uint32_t h = 0; h < 2 * s.n_k_heads; ++h) {
      double* x = y.data() + r * uint64_t{cd} + h * dim;
      double sum = 0;
      for (uint32_t i = 0; i < dim; ++i) sum += x[i] * x[i];
      const double f =
          (h < s.n_k_heads ? 1 / std::sqrt(dim) : 1.0) / std::max(std::sqrt(sum), 1e-6);
      for (uint32_t i = 0; i < dim; ++i) x[i] *= f;
    }
  }
  tail->assign(raw.end() - static_cast<ptrdiff_t>((taps - 1) * cd), raw.end());
  parallel_for(s.n_v_heads, [&](size_t item) {
    const auto h = static_cast<uint32_t>(item);
    double* st = state->data() + uint64_t{h} * dim * dim;
    for (uint32_t r = 0; r < n_rows; ++r) {
      const double* q = y.data() + r * uint64_t{cd} + h % s.n_k_heads * dim;
      const double* k = q + s.key_dim();
      const double* v = y.data() + r * uint64_t{cd} + 2 * s.key_dim() + h * dim;
      const double x =
          static_cast<double>(alpha[r * s.n_v_heads + h]) + static_cast<double>(w.dt_bias[h]);
      const double decay =
          std::exp(static_cast<double>(w.a[h]) * (x > 20 ? x : std::log1p(std::exp(x))));
      const double b = 1 / (1 + std::exp(-static_cast<double>(beta[r * s.n_v_heads + h])));
      double* o = out + r * uint64_t{s.value_dim()} + h * dim;
      double sum = 0;
      for (uint32_t j = 0; j < dim; ++j) {
        double p = 0;
        for (uint32_t i = 0; i < dim; ++i) p += (st[j * dim + i] *= decay) * k[i];
        const double d = b * (v[j] - p);
        o[j] = 0;
        for (uint32_t i = 0; i < dim; ++i) o[j] += (st[j * dim + i] += d * k[i]) * q[i];
        sum += o[j] * o[j];
      }
      const double f = 1 / std::sqrt(sum / dim + 1e-6);
      for (uint32_t j = 0; j < dim; ++j) {
        const double g = static_cast<double>(z[r * uint64_t{s.value_dim()} + h * dim + j]);
        o[j] *= f * static_cast<double>(w.norm[j]) * silu_of(g);
      }
    }
  });
}

void check_delta(const MatmulConfig& config, const DeltaCase& c) {
  const DeltaNetShape& s = c.shape;
  const DeltaWeights w = random_weights(s);
  const auto n_seq = static_cast<uint32_t>(c.rows.size());
  uint32_t n_rows = 0;
  for (uint32_t r : c.rows) n_rows += r;
  const uint64_t state_floats = uint64_t{s.n_v_heads} * s.head_dim * s.head_dim;
  const uint64_t tail_floats = uint64_t{s.conv_kernel - 1} * s.conv_dim();
  const std::vector<float> qkv = random_floats(uint64_t{n_rows} * s.conv_dim(), 1.0f),
                           z = random_floats(uint64_t{n_rows} * s.value_dim(), 1.0f),
                           alpha = random_floats(n_rows * s.n_v_heads, 1.0f),
                           beta = random_floats(n_rows * s.n_v_heads, 1.0f);
  const Buffer<float> dqkv(qkv), dz(z), dalpha(alpha), dbeta(beta), dconv(w.conv1d), ddt(w.dt_bias),
      da(w.a), dnorm(w.norm);
  Buffer<float> out(uint64_t{n_rows} * s.value_dim());
  TestBatch batch(n_rows, n_seq, 1);
  const uint64_t pad = 8, floats = pad + state_floats + tail_floats;
  std::vector<std::unique_ptr<Buffer<float>>> in, working;
  std::vector<std::vector<float>> before;
  uint32_t row = 0;
  for (uint32_t i = 0; i < n_seq; ++i) {
    before.push_back(random_floats(floats, 0.3f));
    in.push_back(std::make_unique<Buffer<float>>(before[i]));
    working.push_back(std::make_unique<Buffer<float>>(floats));
    BatchSequence& q = batch.table.sequences[i];
    q.first_row = row;
    q.n_rows = c.rows[i];
    q.state_in = reinterpret_cast<const std::byte*>(in[i]->p);
    q.state_out = reinterpret_cast<std::byte*>(working[i]->p);
    row += c.rows[i];
  }
  const uint64_t bytes = delta_net_workspace_bytes(s, n_rows);
  Buffer<std::byte> workspace(bytes);
  DeltaNetParams p;
  p.batch = batch.finish();
  p.shape = s;
  p.state_offset = pad * sizeof(float);
  p.conv_offset = (pad + state_floats) * sizeof(float);
  p.qkv = dqkv.p;
  p.z = dz.p;
  p.alpha = dalpha.p;
  p.beta = dbeta.p;
  p.conv1d = dconv.p;
  p.dt_bias = ddt.p;
  p.a = da.p;
  p.norm = dnorm.p;
  p.out = out.p;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  std::string name = "delta " + std::to_string(s.n_k_heads) + "/" + std::to_string(s.n_v_heads) +
                     "x" + std::to_string(s.head_dim) + " taps " + std::to_string(s.conv_kernel) +
                     (config.exact ? " exact:" : " fast:");
  for (uint32_t r : c.rows) name += " " + std::to_string(r);
  must(launch_delta_net(config, p, nullptr), name.c_str());
  must(cudaDeviceSynchronize(), name.c_str());
  const std::vector<float> got = out.host();
  std::vector<double> want(got.size());
  // f32 sums of up to n_rows terms; the chunked form on tensor cores rounds its operands to 2^-11.
  const double tolerance = config.exact || config.deterministic || n_rows == n_seq ? 3e-5 : 3e-3;
  for (uint32_t i = 0; i < n_seq; ++i) {
    const BatchSequence& q = batch.table.sequences[i];
    if (q.n_rows == 0) continue;
    const float* b = before[i].data() + pad;
    std::vector<double> state(b, b + state_floats), tail(b + state_floats, b + floats - pad);
    delta_reference(s, w, qkv.data() + uint64_t{q.first_row} * s.conv_dim(),
                    z.data() + uint64_t{q.first_row} * s.value_dim(),
                    alpha.data() + q.first_row * s.n_v_heads,
                    beta.data() + q.first_row * s.n_v_heads, q.n_rows, &state, &tail,
                    want.data() + uint64_t{q.first_row} * s.value_dim());
    const std::vector<float> after = working[i]->host();
    const auto at = [&](uint64_t n) { return after.begin() + static_cast<ptrdiff_t>(n); };
    expect_close(name + " state", {at(pad), at(pad + state_floats)}, state, tolerance);
    expect_close(name + " tail", {at(pad + state_floats), after.end()}, tail, 0.0);
    expect(std::memcmp(in[i]->host().data(), before[i].data(), floats * sizeof(float)) == 0,
           name + " committed state unchanged");
  }
  expect_close(name + " out", got, want, tolerance);
}

void check_deltas(const MatmulConfig& config) {
  for (const bool exact : {true, false}) {
    MatmulConfig m = config;
    m.exact = exact;
    for (const uint32_t dim : {32u, 64u, 128u}) {
      const DeltaNetShape s = {2, 6, dim, 4};
      check_delta(m, {s, {1}});
      check_delta(m, {s, {1, 0, 1}});
      check_delta(m, {s, {2}});
      check_delta(m, {s, {200, 1, 64, 3}});
      check_delta(m, {{4, 4, dim, 3}, {65, 63}});
      check_delta(m, {{1, 4, dim, 2}, {130}});
    }
    check_delta(m, {{16, 48, 128, 4}, {300}});
    check_delta(m, {{16, 32, 128, 4}, {1, 1, 1, 1}});
  }
}

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
    must(kv_encode_row(k, a.data(), n, r.view.k_row(t)), "encode");
    must(kv_encode_row(v, b.data(), n, r.view.v_row(t)), "encode");
    must(kv_decode_row(k, r.view.k_row(t), n, 0, n, r.k.data() + t * n), "decode");
    must(kv_decode_row(v, r.view.v_row(t), n, 0, n, r.v.data() + t * n), "decode");
  }
  r.device = std::make_unique<Buffer<std::byte>>(r.host);
  r.view.k = r.device->p;
  r.view.v = r.device->p + 64ull * r.view.k_row_bytes;
  return r;
}

struct ScoreCase {
  uint32_t n_heads, n_kv, dim, n_slots, n_queries, ring;
  KvDtype k;
};

void score_reference(const ScoreCase& c, const Rows& rows, const std::vector<float>& q,
                     uint64_t first, const std::vector<uint32_t>& visible, float scale,
                     std::vector<double>* sum, std::vector<double>* most) {
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
  const Buffer<float> dq(q);
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
  p.visible = dv.p;
  p.sum = sum.p;
  p.max = most.p;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  const std::string name = "score " + std::to_string(c.n_heads) + "/" + std::to_string(c.n_kv) +
                           "x" + std::to_string(c.dim) + " " + kv_dtype_name(c.k) + " slots " +
                           std::to_string(c.n_slots) + " queries " + std::to_string(c.n_queries);
  must(launch_score(p, nullptr), name.c_str());
  p.add = true;  // as if a second layer read the rows with the same queries
  must(launch_score(p, nullptr), name.c_str());
  must(cudaDeviceSynchronize(), name.c_str());
  std::vector<double> want_sum(sum.n), want_max(most.n);
  score_reference(c, rows, q, first, visible, p.scale, &want_sum, &want_max);
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
  p.norms = norms.p;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  const std::string name = "value_norms " + std::to_string(n_heads) + "/" + std::to_string(n_kv) +
                           "x" + std::to_string(dim) + " " + kv_dtype_name(v);
  must(launch_value_norms(p, nullptr), name.c_str());
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
      } else if (d == KvDtype::kQ8_0) {
        add(value, g * dim, dim, g);
        add(value, n + g * (dim / 16), dim / 16, g);
      } else {
        add(value, kv_row_bytes(d, dim) * g, kv_row_bytes(d, dim), g);
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

void check_states(const MatmulConfig& config) {
  check_deltas(config);
  std::printf("with delta net: %d passed, %d failed\n", g_passed, g_failed);
  for (const KvDtype d : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kQ8_0}) {
    check_score({8, 2, 128, 1000, 13, 16, d});
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

void bench_states(const MatmulConfig& config) {
  for (const auto& [name, shape] : {std::pair<const char*, DeltaNetShape>{"27B", {16, 48, 128, 4}},
                                    {"35B-A3B", {16, 32, 128, 4}}}) {
    const uint64_t floats = uint64_t{shape.n_v_heads} * shape.head_dim * shape.head_dim +
                            uint64_t{shape.conv_kernel - 1} * shape.conv_dim();
    const DeltaWeights w = random_weights(shape);
    const Buffer<float> dconv(w.conv1d), ddt(w.dt_bias), da(w.a), dnorm(w.norm);
    for (const uint32_t rows : {1u, 2048u}) {
      const uint32_t n = rows == 1 ? 32 : 2;
      const Buffer<float> qkv(random_floats(uint64_t{rows} * shape.conv_dim(), 1.0f)),
          z(random_floats(uint64_t{rows} * shape.value_dim(), 1.0f)),
          alpha(random_floats(rows * shape.n_v_heads, 1.0f)),
          beta(random_floats(rows * shape.n_v_heads, 1.0f));
      Buffer<float> out(uint64_t{rows} * shape.value_dim());
      std::vector<std::unique_ptr<Buffer<float>>> states;
      std::vector<std::unique_ptr<TestBatch>> batches;
      std::vector<Batch> made;
      for (uint32_t i = 0; i < n; ++i) {
        states.push_back(std::make_unique<Buffer<float>>(2 * floats, 0));
        batches.push_back(std::make_unique<TestBatch>(rows, 1, 1));
        BatchSequence& q = batches.back()->table.sequences[0];
        q.n_rows = rows;
        q.state_in = reinterpret_cast<const std::byte*>(states.back()->p);
        q.state_out = reinterpret_cast<std::byte*>(states.back()->p + floats);
        made.push_back(batches.back()->finish());
      }
      const uint64_t bytes = delta_net_workspace_bytes(shape, rows);
      Buffer<std::byte> workspace(bytes);
      const double ms = time_graph([&](cudaStream_t s) {
        for (uint32_t i = 0; i < n; ++i) {
          DeltaNetParams p;
          p.batch = made[i];
          p.shape = shape;
          p.conv_offset =
              uint64_t{shape.n_v_heads} * shape.head_dim * shape.head_dim * sizeof(float);
          p.qkv = qkv.p;
          p.z = z.p;
          p.alpha = alpha.p;
          p.beta = beta.p;
          p.conv1d = dconv.p;
          p.dt_bias = ddt.p;
          p.a = da.p;
          p.norm = dnorm.p;
          p.out = out.p;
          p.workspace = workspace.p;
          p.workspace_bytes = bytes;
          must(launch_delta_net(config, p, s), name);
        }
      });
      const double us = ms * 1000 / n, moved = 2.0 * static_cast<double>(floats) * sizeof(float);
      std::printf("delta net %-8s rows %4u: %8.2f us", name, rows, us);
      if (rows == 1) {
        std::printf("  %4.0f%% of %.1f TB/s\n", 100 * moved / (us * 1e-6) / kBandwidth,
                    kBandwidth / 1e12);
      } else {
        std::printf("\n");
      }
    }
  }
  for (const auto& [name, c] :
       {std::pair<const char*, ScoreCase>{"27B 64K", {24, 4, 256, 65536, 64, 64, KvDtype::kBf16}},
        {"Qwen3-8B 16K", {32, 8, 128, 16384, 64, 64, KvDtype::kBf16}}}) {
    const uint64_t n = uint64_t{c.n_kv} * c.dim;
    Rows rows = make_rows(c.n_kv, c.dim, c.k, c.k, 64);
    const uint32_t blocks = c.n_slots / 64;
    std::vector<std::byte> all(blocks * rows.view.block_stride);
    for (uint32_t b = 0; b < blocks; ++b) {
      std::memcpy(all.data() + b * rows.view.block_stride, rows.host.data(),
                  rows.view.block_stride);
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
    const double us = 1000 * time_graph([&](cudaStream_t s) { must(launch_score(p, s), "score"); });
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
  bench_session_moves();
}

}  // namespace sharpi::cuda::check
