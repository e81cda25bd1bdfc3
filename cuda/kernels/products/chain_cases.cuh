// SPDX-License-Identifier: MIT
// Layers as chain_check.cu and chain_rows_check.cu run them: shapes, matrices, device rows, and
// their links in a chain or one by one. Thread rule: one thread.
#pragma once

#include "cuda/kernels/check_support.cuh"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/products/chain.h"

namespace sharpi::cuda::check {

struct Sync {
  Buffer<std::byte> memory{kChainSyncBytes};
  Sync() { must(cudaMemset(memory.p, 0, memory.n), "sync"); }
};

/// A layer from the attention's output on, up to the next layer's projections.
struct LayerShape {
  const char* name;
  uint32_t d, mix, ff, q, kv;
  GgmlType t, down, v;
  bool post_norms;  // norms of the outputs, as Gemma has
  Epilogue act;
  uint32_t small = 0;  // one more task of the projections
};

template <class Weight>
struct Layer {
  Weight o, gate, up, down, q, k, v, small;
  Layer(const LayerShape& s, auto make)
      : o(make(s.t, s.mix, s.d)),
        gate(make(s.t, s.d, s.ff)),
        up(make(s.t, s.d, s.ff)),
        down(make(s.down, s.ff, s.d)),
        q(make(s.t, s.d, s.q)),
        k(make(s.t, s.d, s.kv)),
        v(make(s.v, s.d, s.kv)),
        small(make(s.t, s.d, s.small == 0 ? 16 : s.small)) {}
};

/// Rows of a run: of the layer's buffers, some that follow each other.
struct RowsAt {
  uint32_t n_rows;
  float *x, *x2, *y, *mix, *ffn, *q, *k, *v, *small;
  const float* n[4];
};

/// Device rows of a run. One more row than it has shows whether something is written behind them.
struct Rows {
  LayerShape s;
  uint32_t n_rows;
  Buffer<float> x, x2, y, mix, ffn, q, k, v, small, n[4];
  explicit Rows(const LayerShape& shape, uint32_t rows = 1)
      : s(shape),
        n_rows(rows),
        x(size_t{s.d} * (rows + 1)),
        x2(x.n),
        y(x.n),
        mix(size_t{s.mix} * (rows + 1)),
        ffn(size_t{s.ff} * (rows + 1)),
        q(size_t{s.q} * (rows + 1)),
        k(size_t{s.kv} * (rows + 1)),
        v(k.n),
        small(size_t{s.small + 16} * (rows + 1)),
        n{Buffer<float>(s.d), Buffer<float>(s.d), Buffer<float>(s.d), Buffer<float>(s.d)} {}

  RowsAt at(uint32_t first, uint32_t count) const {
    return {count,
            x.p + size_t{first} * s.d,
            x2.p + size_t{first} * s.d,
            y.p + size_t{first} * s.d,
            mix.p + size_t{first} * s.mix,
            ffn.p + size_t{first} * s.ff,
            q.p + size_t{first} * s.q,
            k.p + size_t{first} * s.kv,
            v.p + size_t{first} * s.kv,
            small.p + size_t{first} * s.small,
            {n[0].p, n[1].p, n[2].p, n[3].p}};
  }
  RowsAt all() const { return at(0, n_rows); }
};

inline MatmulParams product(const float* x, uint32_t width, const float* norm, uint32_t n_rows) {
  MatmulParams m;
  m.x = x;
  m.x_stride = width;
  m.n_rows = n_rows;
  m.norm_weight = norm;
  m.norm_eps = 1e-6f;
  return m;
}

struct LayerMatrices {
  DeviceMatrix o, gate, up, down, q, k, v, small;
};

constexpr float kOutScale = 0.75f;

/// The links of a layer, chained.
inline std::vector<ChainLink> chain_links(const LayerShape& s, const LayerMatrices& w,
                                          const RowsAt& r) {
  std::vector<ChainLink> links(4);
  const bool post = s.post_norms;
  float* x2 = post ? r.x2 : r.x;
  MatmulParams& o = links[0].product = product(r.mix, s.mix, nullptr, r.n_rows);
  o.n_tasks = 1;
  o.tasks[0] = {w.o, post ? r.y : r.x, s.d};
  o.epilogue = post ? Epilogue::kStore : Epilogue::kAdd;
  MatmulParams& up = links[1].product = product(r.x, s.d, r.n[0], r.n_rows);
  up.n_tasks = 2;
  up.tasks[0] = {w.gate, r.ffn, s.ff};
  up.tasks[1] = {w.up, r.ffn, s.ff};
  up.epilogue = s.act;
  if (post) links[1].branch = {r.y, r.n[1], 1e-6f, 1.0f, r.x2};
  MatmulParams& down = links[2].product = product(r.ffn, s.ff, nullptr, r.n_rows);
  down.n_tasks = 1;
  down.tasks[0] = {w.down, post ? r.y : r.x, s.d};
  down.epilogue = post ? Epilogue::kStore : Epilogue::kAdd;
  MatmulParams& qkv = links[3].product = product(x2, s.d, r.n[2], r.n_rows);
  qkv.n_tasks = s.small != 0 ? 4 : 3;
  qkv.tasks[0] = {w.q, r.q, s.q};
  qkv.tasks[1] = {w.k, r.k, s.kv};
  qkv.tasks[2] = {w.v, r.v, s.kv};
  if (s.small != 0) qkv.tasks[3] = {w.small, r.small, s.small};
  if (post) links[3].branch = {r.y, r.n[3], 1e-6f, kOutScale, r.x};
  return links;
}

/// The same links one by one; branches by the residual kernel, in place.
inline void launch_apart(const Bench& b, std::vector<ChainLink> links, const LayerShape& s,
                         const RowsAt& r, cudaStream_t stream) {
  for (ChainLink& link : links) {
    if (link.branch.y != nullptr) {
      ChainBranch in_place = link.branch;
      in_place.x_out = r.x;
      must(launch_branch_sum(b.config, r.x, in_place, r.n_rows, s.d, stream), "residual");
      link.product.x = r.x;
    }
    link.product.workspace = b.workspace.p;
    link.product.workspace_bytes = b.workspace.n;
    must(launch_matmul(b.config, link.product, stream), "product");
  }
}

inline std::vector<double> wide(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double err = 0, ref = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    err += e * e;
    ref += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(err / std::max(ref, 1e-300));
}

struct Inputs {
  std::vector<float> x, mix, n[4];
  explicit Inputs(const LayerShape& s, uint32_t n_rows = 1)
      : x(random_floats(size_t{s.d} * n_rows, 1.0f)),
        mix(random_floats(size_t{s.mix} * n_rows, 1.0f)) {
    for (auto& w : n) w = random_floats(s.d, 1.0f);
  }
  void put(const Rows& r) const {
    for (const Buffer<float>* p : {&r.x, &r.x2, &r.y, &r.ffn, &r.q, &r.k, &r.v, &r.small})
      must(cudaMemset(p->p, 0xFF, p->n * 4), "poison");
    const auto up = [](const Buffer<float>& to, const std::vector<float>& from) {
      must(cudaMemcpy(to.p, from.data(), from.size() * 4, cudaMemcpyHostToDevice), "upload");
    };
    up(r.x, x);
    up(r.mix, mix);
    for (int i = 0; i < 4; ++i) up(r.n[i], n[i]);
  }
};

/// What a run leaves, and whether nothing was written behind its rows.
struct Outputs {
  std::vector<std::vector<float>> rows;
  bool kept = true;
};
inline Outputs outputs(const Rows& r) {
  Outputs out;
  const auto add = [&](const Buffer<float>& b, uint32_t width) {
    std::vector<float> v = b.host();
    for (size_t i = size_t{width} * r.n_rows; i < v.size(); ++i) {
      uint32_t bits;
      std::memcpy(&bits, &v[i], 4);
      out.kept = out.kept && bits == ~0u;
    }
    v.resize(size_t{width} * r.n_rows);
    out.rows.push_back(std::move(v));
  };
  add(r.x, r.s.d);
  add(r.ffn, r.s.ff);
  add(r.q, r.s.q);
  add(r.k, r.s.kv);
  add(r.v, r.s.kv);
  if (r.s.post_norms) add(r.y, r.s.d);
  if (r.s.small != 0) add(r.small, r.s.small);
  return out;
}

constexpr auto q4k = GgmlType::kQ4_K, q6k = GgmlType::kQ6_K, q40 = GgmlType::kQ4_0,
               q80 = GgmlType::kQ8_0, q5k = GgmlType::kQ5_K;

inline constexpr LayerShape kPublished[] = {
    {"Qwen3-8B", 4096, 4096, 12288, 4096, 1024, q4k, q6k, q6k, false, Epilogue::kSwiGlu},
    {"Gemma-12B", 3840, 4096, 15360, 4096, 2048, q40, q40, q40, true, Epilogue::kGeGlu},
    {"27B", 5120, 6144, 17408, 10240, 6144, q4k, q6k, q4k, false, Epilogue::kSwiGlu, 48},
};

/// What a block has on most cards that people own.
constexpr int kSmallShared = 99 << 10;

/// The forms that the device can run: rings only with their own shared memory, registers always.
inline std::vector<ChainTuning> forms_of(const Bench& b) {
  std::vector<ChainTuning> forms;
  ChainTuning t;
  t.form = ChainForm::kRings;
  if (b.config.device.bulk_copies && b.config.device.shared_per_block >= 200 << 10)
    forms.push_back(t);
  t.form = ChainForm::kRegisters;
  t.shared_bytes = kSmallShared;
  forms.push_back(t);
  return forms;
}
inline const char* name_of(const ChainTuning& t) {
  return t.form == ChainForm::kRings ? "rings" : "registers";
}

constexpr uint32_t kLayers = 24;

using Rotations = Layer<std::unique_ptr<Rotation>>;

inline LayerMatrices matrices(const Rotations& w, uint32_t l) {
  return {w.o->at(l), w.gate->at(l), w.up->at(l), w.down->at(l),
          w.q->at(l), w.k->at(l),    w.v->at(l),  w.small->at(l)};
}

inline double layer_bytes(const LayerShape& s, const Rotations& w) {
  return w.o->bytes() + w.gate->bytes() + w.up->bytes() + w.down->bytes() + w.q->bytes() +
         w.k->bytes() + w.v->bytes() + (s.small != 0 ? w.small->bytes() : 0);
}

/// chain_rows_check.cu: chains of several rows against one row after the other, in a mode of launch
/// (bit 0 programmatic dependent launch); and their speed.
void check_chain_rows(Bench& b, int mode, const ChainTuning& tuning, bool quick, bool race);
void bench_chain_rows(Bench& b, bool only_first);

}  // namespace sharpi::cuda::check
