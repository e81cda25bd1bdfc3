// SPDX-License-Identifier: MIT
// Part of chain_check: chains of two to four rows against chains of one row, row after row, bit
// for bit where no product goes in parts of its columns, else against exact arithmetic; outputs
// begin as NaN, and what lies behind the last row must stay as it was. And the time of all of them.
#include "cuda/kernels/products/chain_cases.cuh"
#include "cuda/kernels/products/chain_launch.h"

namespace sharpi::cuda::check {
namespace {

/// Parts of columns that the widest product of a launch has; 0: there is no room for it. And the
/// bytes of a warp's ring.
struct Shape {
  uint32_t parts = 0, ring_bytes = 0;
};
Shape shape_of(const Bench& b, const std::vector<ChainLink>& links, const ChainTuning& tuning) {
  ChainLaunch l;
  const auto n = static_cast<uint32_t>(links.size());
  if (!make_chain_launch(b.config, links.data(), n, nullptr, tuning, &l)) return {};
  return {l.n_products - n + 1, l.ring_bytes};
}
uint32_t parts_of(const Bench& b, const std::vector<ChainLink>& links, const ChainTuning& tuning) {
  return shape_of(b, links, tuning).parts;
}

void launch(Bench& b, const std::vector<ChainLink>& links, Sync& sync, cudaStream_t stream,
            const ChainTuning& tuning) {
  must(launch_chain(b.config, links.data(), static_cast<uint32_t>(links.size()), sync.memory.p,
                    stream, tuning),
       "chain");
}

void expect(bool is, const char* what, const char* name, uint32_t n_rows, uint32_t parts) {
  (is ? g_passed : g_failed)++;
  if (!is) std::printf("FAIL %s, %u rows, %u parts: %s\n", name, n_rows, parts, what);
}

bool same_bits(const Outputs& a, const Outputs& b) {
  bool same = a.rows.size() == b.rows.size();
  for (size_t i = 0; same && i < a.rows.size(); ++i)
    same = std::memcmp(a.rows[i].data(), b.rows[i].data(), a.rows[i].size() * 4) == 0;
  return same;
}

/// Launches of one row and of all alternate on one synchronisation memory, as in a model.
void check_layer(Bench& b, const LayerShape& s, const LayerMatrices& m, uint32_t n_rows,
                 const ChainTuning& tuning, int repeats) {
  const Rows single(s, n_rows), together(s, n_rows), apart(s, n_rows);
  const Inputs in(s, n_rows);
  Sync sync;
  const std::vector<ChainLink> links = chain_links(s, m, together.all());
  const uint32_t parts = parts_of(b, links, tuning);
  expect(parts != 0, "no room", s.name, n_rows, parts);
  if (parts == 0) return;
  in.put(apart);
  b.config.exact = true;
  launch_apart(b, chain_links(s, m, apart.all()), s, apart.all(), nullptr);
  b.config.exact = false;
  must(cudaDeviceSynchronize(), s.name);
  const Outputs want = outputs(apart);
  Outputs first;
  for (int i = 0; i < repeats; ++i) {
    in.put(single);
    for (uint32_t r = 0; r < n_rows; ++r)
      launch(b, chain_links(s, m, single.at(r, 1)), sync, nullptr, tuning);
    in.put(together);
    launch(b, links, sync, nullptr, tuning);
    must(cudaDeviceSynchronize(), s.name);
    const Outputs one = outputs(single), got = outputs(together);
    expect(got.kept, "something was written behind the rows", s.name, n_rows, parts);
    if (i == 0) {
      first = got;
      for (size_t k = 0; k < got.rows.size(); ++k) {
        const double rounding = relative_error(one.rows[k], want.rows[k]);
        expect_close(std::string("chain of rows ") + s.name + " output " + std::to_string(k),
                     got.rows[k], wide(want.rows[k]), std::max(1e-3, 1.25 * rounding));
      }
    }
    expect(same_bits(got, first), "a run differs from the first", s.name, n_rows, parts);
    if (parts == 1)
      expect(same_bits(got, one), "rows differ from single ones", s.name, n_rows, parts);
  }
}

/// quick: one number of rows for each kernel, of which one has room for more.
void check_layer(Bench& b, const LayerShape& s, const ChainTuning& tuning, int repeats,
                 bool quick) {
  const Layer<std::unique_ptr<Matrix>> w(s, [](GgmlType t, uint32_t n_in, uint32_t n_out) {
    return std::make_unique<Matrix>(t, n_in, n_out, 1, false);
  });
  const LayerMatrices m = {w.o->m, w.gate->m, w.up->m, w.down->m,
                           w.q->m, w.k->m,    w.v->m,  w.small->m};
  for (uint32_t n_rows = 2; n_rows <= kMaxChainRows; ++n_rows) {
    if (quick && n_rows != 2 && n_rows != 3) continue;
    ChainTuning t = tuning;
    for (t.column_parts = 1; t.column_parts <= 2; ++t.column_parts)
      check_layer(b, s, m, n_rows, t, repeats);
  }
}

/// Every type alone.
void check_single(Bench& b, GgmlType t, uint32_t n_in, uint32_t n_out, const ChainTuning& tuning) {
  const Matrix w(t, n_in, n_out, 1, false);
  const Buffer<float> x(random_floats(size_t{n_in} * kMaxChainRows, 1.0f)),
      norm(random_floats(n_in, 1.0f)), scale(random_floats(kMaxChainRows, 1.0f));
  Buffer<float> y(size_t{n_out} * kMaxChainRows), z(y.n);
  Sync sync;
  for (uint32_t n_rows = 2; n_rows <= kMaxChainRows; ++n_rows) {
    must(cudaMemset(y.p, 0xFF, y.n * 4), "poison");
    must(cudaMemset(z.p, 0xFF, z.n * 4), "poison");
    ChainLink link;
    const auto set = [&](uint32_t first, uint32_t n, float* to) {
      link.product = product(x.p + size_t{first} * n_in, n_in, n_in <= 8192 ? norm.p : nullptr, n);
      link.product.row_scale = n_out == 144 ? scale.p + first : nullptr;
      link.product.n_tasks = 1;
      link.product.tasks[0] = {w.m, to + size_t{first} * n_out, n_out};
      return std::vector<ChainLink>{link};
    };
    for (uint32_t r = 0; r < n_rows; ++r) launch(b, set(r, 1, y.p), sync, nullptr, tuning);
    const std::vector<ChainLink> all = set(0, n_rows, z.p);
    const uint32_t parts = parts_of(b, all, tuning);
    launch(b, all, sync, nullptr, tuning);
    must(cudaDeviceSynchronize(), "chain");
    const std::string name =
        std::string(ggml_traits(t).name) + " " + std::to_string(n_out) + "x" + std::to_string(n_in);
    const std::vector<float> one = y.host(), got = z.host();
    if (parts == 1) {
      expect(std::memcmp(one.data(), got.data(), got.size() * 4) == 0,
             "rows differ from single ones", name.c_str(), n_rows, parts);
      continue;
    }
    std::vector<float> in_use(one.begin(), one.begin() + n_rows * n_out),
        got_in_use(got.begin(), got.begin() + n_rows * n_out);
    expect_close("rows " + name, got_in_use, wide(in_use), 1e-5);
  }
}

constexpr LayerShape kOdd[] = {
    {"tiny", 256, 256, 512, 64, 32, q80, q40, q5k, false, Epilogue::kSwiGlu, 16},
    {"tiny post", 512, 256, 768, 320, 32, q40, q80, q40, true, Epilogue::kGeGlu},
    {"K types", 768, 512, 2304, 1024, 256, q4k, q6k, q5k, false, Epilogue::kSwiGlu, 48},
    {"K types post", 2560, 2048, 1280, 768, 512, q5k, q4k, q6k, true, Epilogue::kGeGlu},
    {"wide post", 5376, 4096, 6144, 2048, 512, q4k, q6k, q40, true, Epilogue::kGeGlu},
    {"mixed", 2048, 4096, 6144, 2048, 512, q80, q40, q6k, false, Epilogue::kSwiGlu},
};

void report(const LayerShape& s, const Rotations& w, uint32_t n_rows, const std::string& what,
            double ms) {
  const double us = ms * 1000 / kLayers, bytes = layer_bytes(s, w);
  std::printf("%-10s %u rows  %-36s %7.2f us/layer %5.2f TB/s\n", s.name, n_rows, what.c_str(), us,
              bytes / us / 1e6);
}

void bench_rows(Bench& b, const LayerShape& s, const Rotations& w, uint32_t n_rows) {
  const Rows r(s, n_rows);
  Inputs(s, n_rows).put(r);
  Sync sync;
  const auto layers = [&](const std::function<void(const std::vector<ChainLink>&, cudaStream_t)>& f,
                          bool between) {
    return time_graph([&](cudaStream_t stream) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        f(chain_links(s, matrices(w, l), r.all()), stream);
        if (!between) continue;
        ResidualParams p;
        p.x = p.to = r.x.p;
        p.n_rows = n_rows;
        p.width = s.d;
        must(launch_residual(p, {stream, b.config.pdl}), "residual");
      }
    });
  };
  for (int pdl = 0; pdl < (b.config.device.pdl ? 2 : 1); ++pdl) {
    b.config.pdl = pdl != 0;
    const std::string with = pdl != 0 ? ", pdl" : "";
    const auto one_by_one = [&](const std::vector<ChainLink>& links, cudaStream_t stream) {
      launch_apart(b, links, s, r.all(), stream);
    };
    report(s, w, n_rows, "apart" + with, layers(one_by_one, false));
    for (ChainTuning tuning : forms_of(b)) {
      uint32_t before = 0;
      for (uint32_t parts = 1; parts <= (n_rows == 1 ? 1 : 3); ++parts) {
        tuning.column_parts = parts;
        const Shape shape = shape_of(b, chain_links(s, matrices(w, 0), r.all()), tuning);
        if (shape.parts == 0 || shape.parts == before) continue;
        before = shape.parts;
        const auto chained = [&](const std::vector<ChainLink>& links, cudaStream_t stream) {
          launch(b, links, sync, stream, tuning);
        };
        const std::string what = std::string(name_of(tuning)) + with + ", " +
                                 std::to_string(shape.parts) + " parts, " +
                                 std::to_string(shape.ring_bytes);
        report(s, w, n_rows, what, layers(chained, false));
        report(s, w, n_rows, what + " +kernel", layers(chained, true));
      }
    }
  }
}

}  // namespace

void check_chain_rows(Bench& b, int mode, const ChainTuning& tuning, bool quick, bool race) {
  b.config.pdl = mode % 2 != 0;
  for (const LayerShape& s : kOdd) {
    if (!race || &s - kOdd < 2) check_layer(b, s, tuning, race ? 1 : quick ? 2 : 6, quick);
  }
  if (quick) return;
  for (const GgmlType t : {q80, q40, q4k, q5k, q6k}) {
    check_single(b, t, 768, 144, tuning);
    check_single(b, t, 17408, 48, tuning);
    check_single(b, t, 4096, 20480, tuning);
  }
  if (mode % 3 == 0) {
    for (const LayerShape& s : kPublished) check_layer(b, s, tuning, 3, false);
  }
}

void bench_chain_rows(Bench& b, bool only_first) {
  for (const LayerShape& s : kPublished) {
    if (only_first && &s != kPublished) continue;
    const Rotations w(s, [](GgmlType t, uint32_t n_in, uint32_t n_out) {
      return std::make_unique<Rotation>(t, n_in, n_out, 600u << 20);
    });
    for (uint32_t n_rows = 1; n_rows <= kMaxChainRows; ++n_rows) bench_rows(b, s, w, n_rows);
  }
}

}  // namespace sharpi::cuda::check
