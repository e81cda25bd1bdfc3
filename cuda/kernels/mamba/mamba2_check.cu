// SPDX-License-Identifier: MIT
// The part of attention_check that concerns Mamba-2.
#include <array>
#include <cstring>
#include <memory>

#include "cuda/kernels/check_front.cuh"
#include "cuda/kernels/check_util.h"
#include "cuda/kernels/mamba/mamba2.h"

namespace sharpi::cuda::check {
namespace {

/// A text and the weights of a layer, in host memory and on the device.
struct MambaText {
  Mamba2Shape shape;
  uint64_t state_floats, tail_floats;
  std::vector<float> xbc, z, dt, conv1d, bias, dt_bias, a, d, norm, start;
  Buffer<float> dconv1d, dbias, ddt_bias, da, dd, dnorm;

  MambaText(const Mamba2Shape& s, uint32_t n)
      : shape(s),
        state_floats(uint64_t{s.inner()} * s.state_dim),
        tail_floats(uint64_t{s.conv_kernel - 1} * s.conv_dim()),
        xbc(random_floats(uint64_t{n} * s.conv_dim(), 1.0f)),
        z(random_floats(uint64_t{n} * s.inner(), 1.0f)),
        dt(random_floats(uint64_t{n} * s.n_heads, 1.0f)),
        conv1d(random_floats(uint64_t{s.conv_dim()} * s.conv_kernel, 0.5f)),
        bias(random_floats(s.conv_dim(), 0.5f)),
        dt_bias(random_floats(s.n_heads, 1.0f)),
        a(decays(s.n_heads)),
        d(random_floats(s.n_heads, 1.0f)),
        norm(random_floats(s.inner(), 1.0f)),
        start(random_floats(state_floats + tail_floats, 0.3f)),
        dconv1d(conv1d),
        dbias(bias),
        ddt_bias(dt_bias),
        da(a),
        dd(d),
        dnorm(norm) {}
  /// From hardly any decay to e^-20 per token and beyond.
  static std::vector<float> decays(uint32_t n) {
    std::vector<float> a = random_floats(n, 1.0f);
    for (float& x : a) x = -std::exp(x * 2.0f - 1.0f);
    return a;
  }
  Mamba2Params params() const {
    Mamba2Params p;
    p.shape = shape;
    p.conv_offset = state_floats * sizeof(float);
    p.conv1d = dconv1d.p;
    p.conv_bias = dbias.p;
    p.dt_bias = ddt_bias.p;
    p.a = da.p;
    p.d = dd.p;
    p.norm = dnorm.p;
    return p;
  }
};

double silu_of(double x) {
  return x / (1 + std::exp(-x));
}

/// The first n rows: state and tail in place, outputs.
void mamba_reference(const MambaText& t, uint32_t n, std::vector<double>* state,
                     std::vector<double>* tail, std::vector<double>* out) {
  const Mamba2Shape& s = t.shape;
  const uint64_t cd = s.conv_dim(), taps = s.conv_kernel, inner = s.inner();
  std::vector<double> raw(*tail);
  for (uint64_t i = 0; i < n * cd; ++i) raw.push_back(static_cast<double>(t.xbc[i]));
  std::vector<double> y(n * cd);
  for (uint64_t i = 0; i < n * cd; ++i) {
    double v = static_cast<double>(t.bias[i % cd]);
    for (uint64_t k = 0; k < taps; ++k)
      v += static_cast<double>(t.conv1d[i % cd * taps + k]) * raw[i + k * cd];
    y[i] = silu_of(v);
  }
  tail->assign(raw.end() - static_cast<ptrdiff_t>((taps - 1) * cd), raw.end());
  out->assign(n * inner, 0.0);
  parallel_for(inner, [&](size_t j) {
    const uint64_t h = j / s.head_dim, group = h / s.heads_of_group() * s.state_dim;
    for (uint64_t r = 0; r < n; ++r) {
      const double *x = y.data() + r * cd, *b = x + inner + group, *c = b + s.group_dim();
      const double raw_step =
          static_cast<double>(t.dt[r * s.n_heads + h]) + static_cast<double>(t.dt_bias[h]);
      const double step = raw_step > 20 ? raw_step : std::log1p(std::exp(raw_step));
      const double decay = std::exp(static_cast<double>(t.a[h]) * step);
      double o = static_cast<double>(t.d[h]) * x[j];
      for (uint64_t i = 0; i < s.state_dim; ++i) {
        double& v = (*state)[j * s.state_dim + i];
        v = decay * v + step * x[j] * b[i];
        o += v * c[i];
      }
      (*out)[r * inner + j] = o * silu_of(static_cast<double>(t.z[r * inner + j]));
    }
  });
  const uint64_t width = inner / s.n_groups;
  for (uint64_t g = 0; g < uint64_t{n} * s.n_groups; ++g) {
    double sum = 0;
    for (uint64_t i = 0; i < width; ++i) sum += (*out)[g * width + i] * (*out)[g * width + i];
    const double f = 1 / std::sqrt(sum / static_cast<double>(width) + 1e-5);
    for (uint64_t i = 0; i < width; ++i)
      (*out)[g * width + i] *= f * static_cast<double>(t.norm[(g * width + i) % inner]);
  }
}

/// A session as the tier keeps it: two copies of the state, two of the rows that may be taken back.
struct MambaSession {
  static constexpr uint32_t kKept = 9, kUnit = 5;
  std::unique_ptr<Buffer<float>> state[2], kept[2];
  uint32_t current = 0, kept_now = 0, pending = 0, read = 0;
  explicit MambaSession(const MambaText& t) {
    state[0] = std::make_unique<Buffer<float>>(t.start);
    state[1] = std::make_unique<Buffer<float>>(t.start.size());
    for (auto& k : kept) {
      k = std::make_unique<Buffer<float>>(kKept * (kUnit + t.shape.conv_dim() + t.shape.n_heads));
    }
  }
  BatchSequence sequence(bool drafted) const {
    BatchSequence q;
    q.state_in = reinterpret_cast<const std::byte*>(state[current]->p);
    q.state_out = reinterpret_cast<std::byte*>(state[current ^ 1]->p);
    q.n_pending = pending;
    q.kept = kept[kept_now]->p;
    q.kept_rows = kKept;
    if (drafted) q.keep = kept[kept_now ^ 1]->p, q.flags = kSequenceDrafted;
    return q;
  }
  void commit(bool drafted, uint32_t n) {
    if (!drafted || pending != 0) current ^= 1;
    if (drafted) kept_now ^= 1;
    pending = drafted ? n : 0;
    read += n;
  }
};

/// What one session reads in a call: `n` rows, of which `accepted` are right.
struct MambaPass {
  MambaSession* session;
  uint32_t n = 1, accepted = 1;
  bool drafted = false;
};

/// The outputs of the rows that each session keeps, behind what is in its *out.
void run_pass(const KernelConfig& config, const MambaText& t, const std::vector<MambaPass>& of,
              const std::vector<std::vector<float>*>& out) {
  const Mamba2Shape& s = t.shape;
  uint32_t n_rows = 0;
  for (const MambaPass& d : of) n_rows += d.n;
  TestBatch batch(n_rows, static_cast<uint32_t>(of.size()), 1);
  std::vector<float> xbc, z, dt;
  Mamba2Params p = t.params();
  p.drafts = true;
  p.kept_unit = MambaSession::kUnit;
  for (size_t i = 0; i < of.size(); ++i) {
    const MambaPass& d = of[i];
    BatchSequence q = d.session->sequence(d.drafted);
    q.first_row = static_cast<uint32_t>(dt.size() / s.n_heads);
    q.n_rows = d.n;
    batch.table.sequences[i] = q;
    p.drafted = p.drafted || d.drafted;
    for (uint32_t r = 0; r < d.n; ++r) {
      // Drafts that are wrong have other rows than the text.
      const float wrong = r < d.accepted ? 1.0f : -3.0f;
      const auto add = [&](std::vector<float>* to, const std::vector<float>& from, size_t width) {
        const float* x = from.data() + (d.session->read + r) * width;
        for (size_t c = 0; c < width; ++c) to->push_back(wrong * x[c]);
      };
      add(&xbc, t.xbc, s.conv_dim());
      add(&z, t.z, s.inner());
      add(&dt, t.dt, s.n_heads);
    }
  }
  const Buffer<float> dxbc(xbc), dz(z), ddt(dt);
  Buffer<float> y(uint64_t{n_rows} * s.inner());
  p.batch = batch.finish();
  p.xbc = dxbc.p;
  p.z = dz.p;
  p.dt = ddt.p;
  p.out = y.p;
  must(launch_mamba2(config, p, nullptr), "Mamba-2");
  must(cudaDeviceSynchronize(), "Mamba-2");
  const std::vector<float> got = y.host();
  for (size_t i = 0; i < of.size(); ++i) {
    const auto first = got.begin() + ptrdiff_t{batch.table.sequences[i].first_row} * s.inner();
    out[i]->insert(out[i]->end(), first, first + ptrdiff_t{of[i].accepted} * s.inner());
    of[i].session->commit(of[i].drafted, of[i].accepted);
  }
}

/// The state and conv tail with what is pending.
std::vector<float> state_of(const MambaText& t, const MambaSession& of) {
  if (of.pending == 0) return of.state[of.current]->host();
  Mamba2Params p = t.params();
  p.kept_unit = MambaSession::kUnit;
  p.sequence = of.sequence(false);
  must(launch_mamba2_replay(p, nullptr), "replay of Mamba-2");
  must(cudaDeviceSynchronize(), "replay of Mamba-2");
  return of.state[of.current ^ 1]->host();
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string name_of(const Mamba2Shape& s) {
  return "mamba " + std::to_string(s.n_heads) + "x" + std::to_string(s.head_dim) + " in " +
         std::to_string(s.n_groups) + ", states of " + std::to_string(s.state_dim) + ", taps " +
         std::to_string(s.conv_kernel);
}

/// Rows at once, in parts, as steps and as drafts: against the reference, and all with equal bits.
void check_mamba(const KernelConfig& config, const Mamba2Shape& shape, uint32_t n) {
  const MambaText text(shape, n);
  const std::string name = name_of(shape) + ", rows " + std::to_string(n);
  MambaSession whole(text), parts(text), steps(text);
  std::vector<float> want, got, other;
  run_pass(config, text, {{&whole, n, n}}, {&want});
  const auto tail_at = static_cast<ptrdiff_t>(text.state_floats);
  std::vector<double> state(text.start.begin(), text.start.begin() + tail_at),
      tail(text.start.begin() + tail_at, text.start.end()), out;
  mamba_reference(text, n, &state, &tail, &out);
  const std::vector<float> after = state_of(text, whole);
  expect_close(name + ": out", want, out, 3e-5);
  expect_close(name + ": state", {after.begin(), after.begin() + tail_at}, state, 3e-5);
  expect_close(name + ": tail", {after.begin() + tail_at, after.end()}, tail, 0.0);
  // Drafted rows and accepted ones; 0: the row is no draft.
  const std::array<std::array<uint32_t, 2>, 6> calls = {
      {{4, 1}, {5, 5}, {0, 1}, {2, 2}, {9, 9}, {3, 2}}};
  for (size_t i = 0; n > parts.read; ++i) {
    const auto [drafts, accepted] = calls[i % calls.size()];
    const bool drafted = drafts != 0 && parts.read + drafts <= n;
    const uint32_t right = drafted ? accepted : 1, before = parts.read;
    const std::vector<float> committed = parts.state[parts.current]->host();
    const uint32_t current = parts.current;
    // A replay has left what the pass has to write.
    const Buffer<float>& working = *parts.state[current ^ 1];
    must(cudaMemset(working.p, 0xFF, working.n * sizeof(float)), "clearing a working copy");
    run_pass(config, text, {{&parts, drafted ? drafts : 1, right, drafted}, {&steps, right, right}},
             {&got, &other});
    expect(equal_bits(parts.state[current]->host(), committed), name + ": committed state");
    expect(parts.read == before + right, name + ": rows read");
    expect(equal_bits(state_of(text, parts), state_of(text, steps)), name + ": state of drafts");
  }
  expect(equal_bits(got, want), name + ": outputs of drafts");
  expect(equal_bits(other, want), name + ": outputs in parts");
  expect(equal_bits(state_of(text, parts), after), name + ": state in the end");
}

}  // namespace

void check_mambas(const KernelConfig& config) {
  if (g_extent == Extent::kLeast) return check_mamba(config, {2, 1, 32, 32, 4}, 40);
  for (const uint32_t state : {16u, 32u, 64u, 128u, 256u}) {
    for (const uint32_t n : {1u, 7u, 150u}) {
      check_mamba(config, {4, 1, 64, state, 4}, n);
      check_mamba(config, {6, 2, 32, state, 3}, n);
      check_mamba(config, {4, 4, 20, state, 2}, n);
    }
  }
  check_mamba(config, {48, 1, 64, 128, 4}, 300);  // Granite 4 tiny
  check_mamba(config, {64, 8, 64, 128, 4}, 300);  // Nemotron 3 30B-A3B
}

}  // namespace sharpi::cuda::check
