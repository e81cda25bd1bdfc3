// SPDX-License-Identifier: MIT
// A program of its own: chains of products of one row against the same products launch by launch,
// bit for bit from run to run, and the speed of both on the layers of published models; chains of
// several rows, which are in registers (chain_rows_check.cu), against one row after the other.
// Usage: chain_check [test] [quick] (a small part of it, for slow tools) [bench] [tune] (bench of
// every shape of launch) [time] (chains of one to four rows, in every number of parts) [8b] (only
// the first model's layer)
#include "cuda/kernels/check_device.h"
#include "cuda/kernels/products/chain_cases.cuh"

namespace {

using namespace sharpi;
using namespace sharpi::cuda;
using namespace sharpi::cuda::check;

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
    launch_apart(b, chain_links(s, m, apart.all()), s, apart.all(), nullptr);
    b.config.exact = false;
    must(cudaDeviceSynchronize(), s.name);
    return outputs(apart).rows;
  };
  const std::vector<std::vector<float>> want = run_apart(true), alike = run_apart(false);
  static const char* const kNames[] = {"x", "ffn", "q", "k", "v", "y or small", "small"};
  std::vector<std::vector<float>> first;
  for (int i = 0; i < repeats; ++i) {
    in.put(chained);
    const std::vector<ChainLink> links = chain_links(s, m, chained.all());
    must(launch_chain(b.config, links.data(), static_cast<uint32_t>(links.size()), sync.memory.p,
                      nullptr, tuning),
         s.name);
    must(cudaDeviceSynchronize(), s.name);
    const Outputs out = outputs(chained);
    const std::vector<std::vector<float>>& got = out.rows;
    if (i == 0) {
      first = got;
      for (size_t k = 0; k < got.size(); ++k) {
        const double rounding = relative_error(alike[k], want[k]);
        expect_close(std::string("chain ") + s.name + " " + kNames[k], got[k], wide(want[k]),
                     std::max(1e-3, 1.25 * rounding));
      }
      continue;
    }
    bool same = out.kept;
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
  ChainLink link;
  link.product = product(x.p, n_in, n_in <= 8192 ? norm.p : nullptr, 1);
  link.product.n_tasks = 1;
  link.product.tasks[0] = {w.m, y.p, n_out};
  must(launch_matmul(b.config, link.product, nullptr), "product");
  link.product.tasks[0].y = z.p;
  must(launch_chain(b.config, &link, 1, sync.memory.p, nullptr, tuning), "chain");
  must(cudaDeviceSynchronize(), "chain");
  expect_close(std::string("single ") + ggml_traits(t).name + " " + std::to_string(n_out) + "x" +
                   std::to_string(n_in),
               z.host(), wide(y.host()), 1e-3);
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
  ChainLink link;
  link.product = product(x.p, 256, nullptr, 1);
  link.product.n_tasks = 1;
  link.product.tasks[0] = {w.m, y.p, 64};
  b.config.pdl = mode % 2 != 0;
  const Status s = launch_chain(b.config, &link, 1, sync.memory.p, nullptr, tuning);
  const cudaError_t ended = cudaDeviceSynchronize();
  known[mode] = s.is_ok() && ended == cudaSuccess ? 1 : -1;
  if (known[mode] < 0) {
    std::printf("mode %d, %s, does not launch: %s %s\n", mode, name_of(tuning), s.text().c_str(),
                cudaGetErrorString(ended));
    cudaGetLastError();
  }
  return known[mode] > 0;
}

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
      if (!mode_works(b, mode, tuning)) continue;
      test_mode(b, mode, tuning, quick, race);
      if (max_chain_rows(b.config, tuning) > 1) check_chain_rows(b, mode, tuning, quick, race);
    }
  }
  std::printf("tests: %d passed, %d failed\n", g_passed, g_failed);
}

// ---- speed -------------------------------------------------------------------------------------

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
        const std::vector<ChainLink> links = chain_links(s, matrices(w, l), r.all());
        must(launch_chain(b.config, links.data(), static_cast<uint32_t>(links.size()),
                          sync.memory.p, stream, tuning),
             "chain");
        if (between == 0) continue;
        ResidualParams p;
        p.x = p.to = r.x.p;
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
        launch_apart(b, chain_links(s, matrices(w, l), r.all()), s, r.all(), stream);
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
  if (wants("time")) bench_chain_rows(b, wants("8b") && argc != 1);
  if (wants("bench") || wants("tune")) {
    const bool all = !wants("8b") || argc == 1;
    for (const LayerShape& s : kPublished) {
      if (all || &s == kPublished) bench_layer(b, s, wants("tune"));
    }
  }
  return g_failed == 0 ? 0 : 1;
}
