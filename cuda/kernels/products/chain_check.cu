// SPDX-License-Identifier: MIT
// A program of its own: chains of products of one row against the same products launch by launch,
// bit for bit from run to run, and the speed of both on the layers of published models.
// Usage: chain_check [test] [quick] (a small part of it, for slow tools) [bench] [tune] (bench of
// every shape of launch) [8b] (only the first model's layer)
#include "cuda/kernels/check_device.h"
#include "cuda/kernels/check_support.cuh"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/products/chain.h"

namespace {

using namespace sharpi;
using namespace sharpi::cuda;
using namespace sharpi::cuda::check;

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

/// Device rows of a run.
struct Rows {
  Buffer<float> x, x2, y, mix, ffn, q, k, v, small, n[4];
  Rows(const LayerShape& s)
      : x(s.d),
        x2(s.d),
        y(s.d),
        mix(s.mix),
        ffn(s.ff),
        q(s.q),
        k(s.kv),
        v(s.kv),
        small(s.small + 16),
        n{Buffer<float>(s.d), Buffer<float>(s.d), Buffer<float>(s.d), Buffer<float>(s.d)} {}
};

MatmulParams product(const float* x, uint32_t width, const float* norm) {
  MatmulParams m;
  m.x = x;
  m.x_stride = width;
  m.n_rows = 1;
  m.norm_weight = norm;
  m.norm_eps = 1e-6f;
  return m;
}

struct LayerMatrices {
  DeviceMatrix o, gate, up, down, q, k, v, small;
};

constexpr float kOutScale = 0.75f;

/// The steps of a layer, chained.
std::vector<ChainStep> chain_steps(const LayerShape& s, const LayerMatrices& w, const Rows& r) {
  std::vector<ChainStep> steps(4);
  const bool post = s.post_norms;
  float* x2 = post ? r.x2.p : r.x.p;
  MatmulParams& o = steps[0].product = product(r.mix.p, s.mix, nullptr);
  o.n_tasks = 1;
  o.tasks[0] = {w.o, post ? r.y.p : r.x.p, s.d};
  o.epilogue = post ? Epilogue::kStore : Epilogue::kAdd;
  MatmulParams& up = steps[1].product = product(r.x.p, s.d, r.n[0].p);
  up.n_tasks = 2;
  up.tasks[0] = {w.gate, r.ffn.p, s.ff};
  up.tasks[1] = {w.up, r.ffn.p, s.ff};
  up.epilogue = s.act;
  if (post) steps[1].branch = {r.y.p, r.n[1].p, 1e-6f, 1.0f, r.x2.p};
  MatmulParams& down = steps[2].product = product(r.ffn.p, s.ff, nullptr);
  down.n_tasks = 1;
  down.tasks[0] = {w.down, post ? r.y.p : r.x.p, s.d};
  down.epilogue = post ? Epilogue::kStore : Epilogue::kAdd;
  MatmulParams& qkv = steps[3].product = product(x2, s.d, r.n[2].p);
  qkv.n_tasks = s.small != 0 ? 4 : 3;
  qkv.tasks[0] = {w.q, r.q.p, s.q};
  qkv.tasks[1] = {w.k, r.k.p, s.kv};
  qkv.tasks[2] = {w.v, r.v.p, s.kv};
  if (s.small != 0) qkv.tasks[3] = {w.small, r.small.p, s.small};
  if (post) steps[3].branch = {r.y.p, r.n[3].p, 1e-6f, kOutScale, r.x.p};
  return steps;
}

/// The same steps one by one; branches by the residual kernel, in place.
void launch_apart(const Bench& b, std::vector<ChainStep> steps, const LayerShape& s, const Rows& r,
                  cudaStream_t stream) {
  for (ChainStep& step : steps) {
    if (step.branch.y != nullptr) {
      ResidualParams p;
      p.x = r.x.p;
      p.y = step.branch.y;
      p.n_rows = 1;
      p.width = s.d;
      p.weight = step.branch.weight;
      p.eps = step.branch.eps;
      p.scale = step.branch.scale;
      must(launch_residual(p, {stream, b.config.pdl}), "residual");
      step.product.x = r.x.p;
    }
    step.product.workspace = b.workspace.p;
    step.product.workspace_bytes = b.workspace.n;
    must(launch_matmul(b.config, step.product, stream), "product");
  }
}

std::vector<double> wide(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
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
  Inputs(const LayerShape& s) : x(random_floats(s.d, 1.0f)), mix(random_floats(s.mix, 1.0f)) {
    for (auto& w : n) w = random_floats(s.d, 1.0f);
  }
  void put(const Rows& r) const {
    const auto up = [](const Buffer<float>& to, const std::vector<float>& from) {
      must(cudaMemcpy(to.p, from.data(), from.size() * 4, cudaMemcpyHostToDevice), "upload");
    };
    up(r.x, x);
    up(r.mix, mix);
    for (int i = 0; i < 4; ++i) up(r.n[i], n[i]);
    for (const Buffer<float>* p : {&r.x2, &r.y, &r.ffn, &r.q, &r.k, &r.v, &r.small})
      must(cudaMemset(p->p, 0xFF, p->n * 4), "poison");
  }
};

std::vector<std::vector<float>> outputs(const LayerShape& s, const Rows& r) {
  std::vector<std::vector<float>> v = {r.x.host(), r.ffn.host(), r.q.host(),
                                       r.k.host(), r.v.host(),   r.y.host()};
  if (!s.post_norms) v.pop_back();
  if (s.small != 0) {
    v.push_back(r.small.host());
    v.back().resize(s.small);
  }
  return v;
}

void check_layer(Bench& b, const LayerShape& s, const ChainTuning& tuning, int repeats) {
  const Layer<std::unique_ptr<Matrix>> w(s, [](GgmlType t, uint32_t n_in, uint32_t n_out) {
    return std::make_unique<Matrix>(t, n_in, n_out, 1, false);
  });
  const LayerMatrices m = {w.o->m, w.gate->m, w.up->m, w.down->m,
                           w.q->m, w.k->m,    w.v->m,  w.small->m};
  const Rows apart(s), chained(s);
  const Inputs in(s);
  Sync sync;
  // Both forms of the fast arithmetic round; what they are held to is the exact one.
  const auto run_apart = [&](bool exact) {
    in.put(apart);
    b.config.exact = exact;
    launch_apart(b, chain_steps(s, m, apart), s, apart, nullptr);
    b.config.exact = false;
    must(cudaDeviceSynchronize(), s.name);
    return outputs(s, apart);
  };
  const std::vector<std::vector<float>> want = run_apart(true), alike = run_apart(false);
  static const char* const kNames[] = {"x", "ffn", "q", "k", "v", "y or small", "small"};
  std::vector<std::vector<float>> first;
  for (int i = 0; i < repeats; ++i) {
    in.put(chained);
    const std::vector<ChainStep> steps = chain_steps(s, m, chained);
    must(launch_chain(b.config, steps.data(), static_cast<uint32_t>(steps.size()), sync.memory.p,
                      nullptr, tuning),
         s.name);
    must(cudaDeviceSynchronize(), s.name);
    const std::vector<std::vector<float>> got = outputs(s, chained);
    if (i == 0) {
      first = got;
      for (size_t k = 0; k < got.size(); ++k) {
        const double rounding = relative_error(alike[k], want[k]);
        expect_close(std::string("chain ") + s.name + " " + kNames[k], got[k], wide(want[k]),
                     std::max(1e-3, 1.25 * rounding));
      }
      continue;
    }
    bool same = true;
    for (size_t k = 0; k < got.size(); ++k)
      same = same && std::memcmp(got[k].data(), first[k].data(), got[k].size() * 4) == 0;
    (same ? g_passed : g_failed)++;
    if (!same) std::printf("FAIL chain %s: run %d differs from the first\n", s.name, i);
  }
}

/// Every type alone: a chain of one product against the product's own launch.
void check_single(Bench& b, GgmlType t, uint32_t n_in, uint32_t n_out, const ChainTuning& tuning) {
  const Matrix w(t, n_in, n_out, 1, false);
  const Buffer<float> x(random_floats(n_in, 1.0f)), norm(random_floats(n_in, 1.0f));
  Buffer<float> y(n_out), z(n_out);
  must(cudaMemset(z.p, 0xFF, n_out * 4), "poison");
  Sync sync;
  ChainStep step;
  step.product = product(x.p, n_in, n_in <= 8192 ? norm.p : nullptr);
  step.product.n_tasks = 1;
  step.product.tasks[0] = {w.m, y.p, n_out};
  must(launch_matmul(b.config, step.product, nullptr), "product");
  step.product.tasks[0].y = z.p;
  must(launch_chain(b.config, &step, 1, sync.memory.p, nullptr, tuning), "chain");
  must(cudaDeviceSynchronize(), "chain");
  expect_close(std::string("single ") + ggml_traits(t).name + " " + std::to_string(n_out) + "x" +
                   std::to_string(n_in),
               z.host(), wide(y.host()), 5e-4);
}

/// What a block has on most cards that people own.
constexpr int kSmallShared = 99 << 10;

/// The forms that the device can run: rings only with their own shared memory, registers always.
std::vector<ChainTuning> forms_of(const Bench& b) {
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
const char* name_of(const ChainTuning& t) {
  return t.form == ChainForm::kRings ? "rings" : "registers";
}

/// Modes of launch: bit 0 programmatic dependent launch, bit 1 cooperative.
bool mode_works(Bench& b, int mode, const ChainTuning& tuning) {
  static int all[2][4] = {};
  int(&known)[4] = all[tuning.form == ChainForm::kRings ? 0 : 1];
  if (mode % 2 != 0 && !b.config.device.bulk_copies) return false;
  if (known[mode] != 0) return known[mode] > 0;
  const Matrix w(GgmlType::kQ8_0, 256, 64, 1, false);
  const Buffer<float> x(random_floats(256, 1.0f));
  Buffer<float> y(64);
  Sync sync;
  ChainStep step;
  step.product = product(x.p, 256, nullptr);
  step.product.n_tasks = 1;
  step.product.tasks[0] = {w.m, y.p, 64};
  b.config.pdl = mode % 2 != 0;
  const Status s = launch_chain(b.config, &step, 1, sync.memory.p, nullptr, tuning);
  const cudaError_t ended = cudaDeviceSynchronize();
  known[mode] = s.is_ok() && ended == cudaSuccess ? 1 : -1;
  if (known[mode] < 0) {
    std::printf("mode %d, %s, does not launch: %s %s\n", mode, name_of(tuning), s.text().c_str(),
                cudaGetErrorString(ended));
    cudaGetLastError();
  }
  return known[mode] > 0;
}

const auto q4k = GgmlType::kQ4_K, q6k = GgmlType::kQ6_K, q40 = GgmlType::kQ4_0,
           q80 = GgmlType::kQ8_0, q5k = GgmlType::kQ5_K;

const LayerShape kPublished[] = {
    {"Qwen3-8B", 4096, 4096, 12288, 4096, 1024, q4k, q6k, q6k, false, Epilogue::kSwiGlu},
    {"Gemma-12B", 3840, 4096, 15360, 4096, 2048, q40, q40, q40, true, Epilogue::kGeGlu},
    {"27B", 5120, 6144, 17408, 10240, 6144, q4k, q6k, q4k, false, Epilogue::kSwiGlu, 48},
};

/// One form in one mode.
void test_mode(Bench& b, int mode, const ChainTuning& tuning, bool quick, bool race) {
  const LayerShape odd[] = {
      {"tiny", 256, 256, 512, 64, 32, q80, q40, q5k, false, Epilogue::kSwiGlu, 16},
      {"tiny post", 512, 256, 768, 320, 32, q40, q80, q40, true, Epilogue::kGeGlu},
      {"K types", 768, 512, 2304, 1024, 256, q4k, q6k, q5k, false, Epilogue::kSwiGlu, 48},
      {"K types post", 2560, 2048, 1280, 768, 512, q5k, q4k, q6k, true, Epilogue::kGeGlu},
      {"mixed", 2048, 4096, 6144, 2048, 512, q80, q40, q6k, false, Epilogue::kSwiGlu},
  };
  b.config.pdl = mode % 2 != 0;
  for (const LayerShape& s : odd) {
    if (!race || &s - odd < 2) check_layer(b, s, tuning, race ? 1 : quick ? 2 : 8);
  }
  if (quick) return;
  for (const GgmlType t : {q80, q40, q4k, q5k, q6k}) {
    check_single(b, t, 768, 144, tuning);
    check_single(b, t, 17408, 48, tuning);
    check_single(b, t, 4096, 20480, tuning);
  }
  if (mode % 3 == 0) {
    for (const LayerShape& s : kPublished) check_layer(b, s, tuning, 4);
  }
}

/// quick: two runs of every odd shape; race: one of the two smallest, as racecheck can follow it.
void run_tests(Bench& b, bool quick, bool race) {
  const int quick_mode = b.config.device.bulk_copies ? 3 : 2;
  for (int mode = 0; mode < 4; ++mode) {
    if (quick && mode != quick_mode) continue;
    for (ChainTuning tuning : forms_of(b)) {
      tuning.cooperative = mode / 2 != 0;
      tuning.every_lane_arrives = race;
      if (mode_works(b, mode, tuning)) test_mode(b, mode, tuning, quick, race);
    }
  }
  std::printf("tests: %d passed, %d failed\n", g_passed, g_failed);
}

// ---- speed -------------------------------------------------------------------------------------

constexpr uint32_t kLayers = 24;

using Rotations = Layer<std::unique_ptr<Rotation>>;

LayerMatrices matrices(const Rotations& w, uint32_t l) {
  return {w.o->at(l), w.gate->at(l), w.up->at(l), w.down->at(l),
          w.q->at(l), w.k->at(l),    w.v->at(l),  w.small->at(l)};
}

double layer_bytes(const LayerShape& s, const Rotations& w) {
  return w.o->bytes() + w.gate->bytes() + w.up->bytes() + w.down->bytes() + w.q->bytes() +
         w.k->bytes() + w.v->bytes() + (s.small != 0 ? w.small->bytes() : 0);
}

void report(const LayerShape& s, const Rotations& w, const char* what, double ms) {
  const double us = ms * 1000 / kLayers, bytes = layer_bytes(s, w);
  std::printf("%-10s %-34s %7.2f us/layer %5.2f TB/s %3.0f%%\n", s.name, what, us, bytes / us / 1e6,
              100 * bytes / (us * 1e-6) / kBandwidth);
}

/// One launch a layer; and a small kernel between, as attention's are.
void bench_chain(Bench& b, const LayerShape& s, const Rotations& w, const Rows& r, Sync& sync,
                 int mode, const ChainTuning& tuning) {
  b.config.pdl = mode % 2 != 0;
  for (int between = 0; between < 2; ++between) {
    const double ms = time_graph([&](cudaStream_t stream) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        const std::vector<ChainStep> steps = chain_steps(s, matrices(w, l), r);
        must(launch_chain(b.config, steps.data(), static_cast<uint32_t>(steps.size()),
                          sync.memory.p, stream, tuning),
             "chain");
        if (between == 0) continue;
        ResidualParams p;
        p.x = r.x.p;
        p.n_rows = 1;
        p.width = s.d;
        must(launch_residual(p, {stream, b.config.pdl}), "residual");
      }
    });
    char what[64];
    std::snprintf(what, sizeof what, "%s%s%s%s", name_of(tuning), b.config.pdl ? " pdl" : "",
                  tuning.cooperative ? " cooperative" : "", between != 0 ? " +kernel" : "");
    report(s, w, what, ms);
  }
}

void bench_layer(Bench& b, const LayerShape& s, bool tune) {
  const Rotations w(s, [](GgmlType t, uint32_t n_in, uint32_t n_out) {
    return std::make_unique<Rotation>(t, n_in, n_out, 600u << 20);
  });
  const Rows r(s);
  const Inputs in(s);
  in.put(r);
  Sync sync;
  for (int pdl = 0; pdl < 2; ++pdl) {
    b.config.pdl = pdl != 0;
    const double ms = time_graph([&](cudaStream_t stream) {
      for (uint32_t l = 0; l < kLayers; ++l)
        launch_apart(b, chain_steps(s, matrices(w, l), r), s, r, stream);
    });
    report(s, w, pdl != 0 ? "apart, pdl" : "apart", ms);
  }
  for (int mode = 0; mode < 4; ++mode) {
    if (!tune && mode > 1) continue;
    for (ChainTuning tuning : forms_of(b)) {
      tuning.cooperative = mode / 2 != 0;
      if (mode_works(b, mode, tuning)) bench_chain(b, s, w, r, sync, mode, tuning);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], what) == 0) return true;
    }
    return argc == 1;
  };
  sharpi::cuda::check::require_device();
  Bench b;
  must(make_kernel_config(&b.config), "config");
  must(prepare_chain(b.config), "prepare");
  if (wants("test")) run_tests(b, false, false);
  if (wants("quick") || wants("race")) run_tests(b, true, wants("race"));
  if (wants("bench") || wants("tune")) {
    const bool all = !wants("8b") || argc == 1;
    for (const LayerShape& s : kPublished) {
      if (all || &s == kPublished) bench_layer(b, s, wants("tune"));
    }
  }
  return g_failed == 0 ? 0 : 1;
}
