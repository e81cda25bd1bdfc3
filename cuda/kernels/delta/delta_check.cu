// SPDX-License-Identifier: MIT
// The part of attention_check that concerns the gated delta net.
#include <array>
#include <cstring>
#include <memory>

#include "cuda/kernels/check_front.cuh"
#include "cuda/kernels/check_util.h"
#include "cuda/kernels/delta/delta_net.h"

namespace sharpi::cuda::check {
namespace {

struct DeltaCase {
  DeltaNetShape shape;
  std::vector<uint32_t> rows;  // per sequence
  bool step = false;           // sequence i has row i, or none
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
      const double* q = y.data() + r * uint64_t{cd} + s.key_of(h) * dim;
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

void check_delta(const KernelConfig& config, const DeltaCase& c) {
  const DeltaNetShape& s = c.shape;
  const DeltaWeights w = random_weights(s);
  const auto n_seq = static_cast<uint32_t>(c.rows.size());
  uint32_t n_rows = 0;
  for (uint32_t r : c.rows) n_rows += c.step ? 1 : r;
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
    row += c.step ? 1 : c.rows[i];
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
  p.next_conv1d = dconv.p;
  p.next_state_offset = p.state_offset;
  p.next_conv_offset = p.conv_offset;
  p.out = out.p;
  p.workspace = workspace.p;
  p.workspace_bytes = bytes;
  std::string name = "delta " + std::to_string(s.n_k_heads) + "/" + std::to_string(s.n_v_heads) +
                     "x" + std::to_string(s.head_dim) + " taps " + std::to_string(s.conv_kernel) +
                     (s.grouped ? " grouped" : "") + (config.exact ? " exact:" : " fast:");
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
    const uint64_t first = uint64_t{q.first_row} * s.value_dim(),
                   end = first + uint64_t{q.n_rows} * s.value_dim();
    const auto part = [](const auto& of, uint64_t from, uint64_t to) {
      return std::decay_t<decltype(of)>(of.begin() + static_cast<ptrdiff_t>(from),
                                        of.begin() + static_cast<ptrdiff_t>(to));
    };
    expect_close(name + " out", part(got, first, end), part(want, first, end), tolerance);
    expect_close(name + " state", {at(pad), at(pad + state_floats)}, state, tolerance);
    expect_close(name + " tail", {at(pad + state_floats), after.end()}, tail, 0.0);
    expect(std::memcmp(in[i]->host().data(), before[i].data(), floats * sizeof(float)) == 0,
           name + " committed state unchanged");
  }
}

/// A session as the tier keeps it: two copies of the state, two of the rows that may be taken back.
struct DraftSession {
  static constexpr uint32_t kKept = 9, kUnit = 5;
  DeltaNetShape shape;
  uint64_t state_floats, floats;
  std::unique_ptr<Buffer<float>> state[2], kept[2];
  uint32_t current = 0, kept_now = 0, pending = 0, read = 0;
  explicit DraftSession(const DeltaNetShape& s, const std::vector<float>& start)
      : shape(s),
        state_floats(uint64_t{s.n_v_heads} * s.head_dim * s.head_dim),
        floats(start.size()) {
    state[0] = std::make_unique<Buffer<float>>(start);
    state[1] = std::make_unique<Buffer<float>>(floats);
    for (auto& k : kept) {
      k = std::make_unique<Buffer<float>>(kKept * (kUnit + s.conv_dim() + 2ull * s.n_v_heads));
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

/// One text, read in several ways.
struct DraftText {
  DeltaNetShape shape;
  DeltaWeights weights;
  std::vector<float> qkv, z, alpha, beta, start;
  DraftText(const DeltaNetShape& s, uint32_t n)
      : shape(s),
        weights(random_weights(s)),
        qkv(random_floats(uint64_t{n} * s.conv_dim(), 1.0f)),
        z(random_floats(uint64_t{n} * s.value_dim(), 1.0f)),
        alpha(random_floats(n * s.n_v_heads, 1.0f)),
        beta(random_floats(n * s.n_v_heads, 1.0f)),
        start(random_floats(uint64_t{s.n_v_heads} * s.head_dim * s.head_dim +
                                uint64_t{s.conv_kernel - 1} * s.conv_dim(),
                            0.3f)) {}
};

/// What one session reads in a call: `n` rows, of which `accepted` are right.
struct DraftPass {
  DraftSession* session;
  uint32_t n = 1, accepted = 1;
  bool drafted = false;
};

class DraftRun {
 public:
  DraftRun(const KernelConfig& config, const DraftText& text)
      : config_(config),
        text_(text),
        conv1d_(text.weights.conv1d),
        dt_bias_(text.weights.dt_bias),
        a_(text.weights.a),
        norm_(text.weights.norm) {}
  DeltaNetParams params() const {
    DeltaNetParams p;
    p.shape = text_.shape;
    p.conv_offset = uint64_t{p.shape.n_v_heads} * p.shape.head_dim * p.shape.head_dim * 4;
    p.conv1d = conv1d_.p;
    p.dt_bias = dt_bias_.p;
    p.a = a_.p;
    p.norm = norm_.p;
    p.drafts = true;
    p.kept_unit = DraftSession::kUnit;
    return p;
  }
  /// The outputs of the rows that each session keeps, to its place in *out.
  void pass(const std::vector<DraftPass>& of, std::vector<std::vector<float>*> out) const {
    const DeltaNetShape& s = text_.shape;
    uint32_t n_rows = 0;
    for (const DraftPass& d : of) n_rows += d.n;
    TestBatch batch(n_rows, static_cast<uint32_t>(of.size()), 1);
    std::vector<float> qkv, z, alpha, beta;
    DeltaNetParams p = params();
    for (size_t i = 0; i < of.size(); ++i) {
      const DraftPass& d = of[i];
      BatchSequence q = d.session->sequence(d.drafted);
      q.first_row = static_cast<uint32_t>(alpha.size() / s.n_v_heads);
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
        add(&qkv, text_.qkv, s.conv_dim());
        add(&z, text_.z, s.value_dim());
        add(&alpha, text_.alpha, s.n_v_heads);
        add(&beta, text_.beta, s.n_v_heads);
      }
    }
    const Buffer<float> dqkv(qkv), dz(z), dalpha(alpha), dbeta(beta);
    Buffer<float> y(uint64_t{n_rows} * s.value_dim());
    Buffer<std::byte> workspace(delta_net_workspace_bytes(s, n_rows));
    p.batch = batch.finish();
    p.qkv = dqkv.p;
    p.z = dz.p;
    p.alpha = dalpha.p;
    p.beta = dbeta.p;
    p.out = y.p;
    p.workspace = workspace.p;
    p.workspace_bytes = workspace.n;
    must(launch_delta_net(config_, p, nullptr), "drafts of a delta net");
    must(cudaDeviceSynchronize(), "drafts of a delta net");
    const std::vector<float> got = y.host();
    for (size_t i = 0; i < of.size(); ++i) {
      const auto first =
          got.begin() + ptrdiff_t{batch.table.sequences[i].first_row} * s.value_dim();
      out[i]->insert(out[i]->end(), first, first + ptrdiff_t{of[i].accepted} * s.value_dim());
      of[i].session->commit(of[i].drafted, of[i].accepted);
    }
  }
  /// The state and conv tail with what is pending.
  std::vector<float> state(const DraftSession& of) const {
    if (of.pending == 0) return of.state[of.current]->host();
    DeltaNetParams p = params();
    p.sequence = of.sequence(false);
    must(launch_delta_replay(config_, p, nullptr), "replay of a delta net");
    must(cudaDeviceSynchronize(), "replay of a delta net");
    return of.state[of.current ^ 1]->host();
  }

 private:
  KernelConfig config_;
  const DraftText& text_;
  Buffer<float> conv1d_, dt_bias_, a_, norm_;
};

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Rows that were drafts leave the outputs and the state of rows that were read one by one, bit for
/// bit, beside a session that drafts nothing.
void check_drafts(const KernelConfig& config, const DeltaNetShape& shape) {
  constexpr uint32_t kRows = 40;
  const DraftText text(shape, kRows);
  const DraftRun run(config, text);
  const std::string name = "delta drafts " + std::to_string(shape.n_k_heads) + "/" +
                           std::to_string(shape.n_v_heads) + "x" + std::to_string(shape.head_dim) +
                           " taps " + std::to_string(shape.conv_kernel) +
                           (config.deterministic ? " deterministic" : " steps");
  DraftSession plain(shape, text.start), chat(shape, text.start), beside(shape, text.start);
  std::vector<float> want, got, other;
  // n rows, accepted rows; 0 rows: one that is no draft.
  const std::vector<std::array<uint32_t, 2>> calls = {{4, 1}, {5, 5}, {3, 2}, {0, 1}, {2, 2},
                                                      {9, 9}, {9, 1}, {0, 1}, {0, 1}, {2, 1}};
  for (const auto& [n, accepted] : calls) {
    const bool drafted = n != 0;
    const Buffer<float>&in = *chat.state[chat.current], &working = *chat.state[chat.current ^ 1];
    const std::vector<float> committed = in.host(), scratch = working.host();
    const bool writes = !drafted || chat.pending != 0;
    run.pass({{&chat, drafted ? n : 1, accepted, drafted}, {&beside}}, {&got, &other});
    expect(equal_bits(in.host(), committed), name + ": committed state unchanged");
    if (!writes) expect(equal_bits(working.host(), scratch), name + ": nothing written");
    for (uint32_t i = 0; i < accepted; ++i) run.pass({{&plain}}, {&want});
    expect(equal_bits(got, want), name + ": outputs");
    expect(equal_bits(run.state(chat), run.state(plain)), name + ": state");
  }
  while (beside.read < plain.read) run.pass({{&beside}}, {&other});
  expect(equal_bits(other, want), name + ": outputs of a session beside it");
  expect(equal_bits(run.state(beside), run.state(plain)), name + ": state of a session beside it");
}

/// A prompt behind drafts, against the reference: 1 row of 3 is read, then all that follows.
void check_prompt_behind_drafts(const KernelConfig& config, const DeltaNetShape& s, uint32_t n) {
  const DraftText text(s, n + 3);
  const DraftRun run(config, text);
  DraftSession chat(s, text.start);
  std::vector<float> got;
  run.pass({{&chat, 3, 2, true}}, {&got});
  run.pass({{&chat, n, n, false}}, {&got});
  const auto tail_at = static_cast<ptrdiff_t>(chat.state_floats);
  std::vector<double> state(text.start.begin(), text.start.begin() + tail_at),
      tail(text.start.begin() + tail_at, text.start.end()), want(got.size());
  delta_reference(s, text.weights, text.qkv.data(), text.z.data(), text.alpha.data(),
                  text.beta.data(), n + 2, &state, &tail, want.data());
  const std::vector<float> after = run.state(chat);
  const double tolerance = config.exact || config.deterministic ? 3e-5 : 3e-3;
  const std::string name = "delta prompt of " + std::to_string(n) + " rows behind drafts";
  expect_close(name + ": out", got, want, tolerance);
  expect_close(name + ": state", {after.begin(), after.begin() + tail_at}, state, tolerance);
  expect_close(name + ": tail", {after.begin() + tail_at, after.end()}, tail, 0.0);
}

/// Layers one after the other, so that the caches do not help.
void bench_delta(const KernelConfig& config, const char* name, const DeltaNetShape& shape,
                 uint32_t rows) {
  const uint64_t floats = uint64_t{shape.n_v_heads} * shape.head_dim * shape.head_dim +
                          uint64_t{shape.conv_kernel - 1} * shape.conv_dim();
  const DeltaWeights w = random_weights(shape);
  const Buffer<float> dconv(w.conv1d), ddt(w.dt_bias), da(w.a), dnorm(w.norm);
  const uint32_t n = rows == 1 ? 32 : 2;
  Buffer<float> qkv(random_floats(uint64_t{rows} * shape.conv_dim(), 1.0f));
  const Buffer<float> z(random_floats(uint64_t{rows} * shape.value_dim(), 1.0f)),
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
  const auto layer = [&](uint32_t i, cudaStream_t stream) {
    DeltaNetParams p;
    p.batch = made[i];
    p.shape = shape;
    p.conv_offset = uint64_t{shape.n_v_heads} * shape.head_dim * shape.head_dim * sizeof(float);
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
    must(launch_delta_net(config, p, stream), name);
  };
  const auto all = [&](cudaStream_t stream) {
    for (uint32_t i = 0; i < n; ++i) layer(i, stream);
  };
  const double us = time_graph(all) * 1000 / n,
               moved = 2.0 * static_cast<double>(floats) * sizeof(float);
  std::printf("delta net %-8s rows %4u: %8.2f us", name, rows, us);
  if (rows == 1) {
    Front front(config);
    const Buffer<float> from(random_floats(shape.conv_dim(), 1.0f));
    const double behind = time_behind_front(
        n, [&](uint32_t, cudaStream_t q) { front.launch(from.p, qkv.p, from.n, q); }, layer);
    std::printf("  %4.0f%% of %.1f TB/s; behind a product %.2f us\n",
                100 * moved / (us * 1e-6) / kBandwidth, kBandwidth / 1e12, behind);
  } else {
    std::printf("\n");
  }
}

}  // namespace

void check_deltas(const KernelConfig& config) {
  if (g_extent == Extent::kLeast) {
    for (const uint32_t rows : {1u, 3u, 70u}) check_delta(config, {{1, 2, 128, 4}, {rows}});
    check_drafts(config, {1, 2, 128, 4});
    check_prompt_behind_drafts(config, {1, 2, 128, 4}, 70);
    return;
  }
  for (const bool deterministic : {false, true}) {
    KernelConfig m = config;
    m.deterministic = deterministic;
    for (const uint32_t dim : {32u, 64u, 128u}) {
      check_drafts(m, {2, 6, dim, 4});
      check_drafts(m, {3, 3, dim, 2});
      check_drafts(m, {2, 6, dim, 4, true});
      for (const uint32_t n : {5u, 150u}) check_prompt_behind_drafts(m, {2, 4, dim, 4}, n);
    }
    check_drafts(m, {16, 48, 128, 4});
    check_drafts(m, {4, 8, 128, 3});
  }
  for (const bool exact : {true, false}) {
    KernelConfig m = config;
    m.exact = exact;
    for (const uint32_t dim : {32u, 64u, 128u}) {
      const DeltaNetShape s = {2, 6, dim, 4};
      check_delta(m, {s, {1}});
      check_delta(m, {s, {1, 0, 1}});
      check_delta(m, {s, {1, 0, 1}, true});
      check_delta(m, {s, {2}});
      check_delta(m, {s, {200, 1, 64, 3}});
      for (const std::vector<uint32_t>& rows : {std::vector<uint32_t>{1}, {3}, {200, 1, 64}})
        check_delta(m, {{2, 6, dim, 4, true}, rows});
      check_delta(m, {{4, 4, dim, 3}, {65, 63}});
      check_delta(m, {{1, 4, dim, 2}, {130}});
    }
    check_delta(m, {{16, 48, 128, 4}, {300}});
    check_delta(m, {{16, 32, 128, 4}, {1, 1, 1, 1}});
    check_delta(m, {{16, 48, 128, 3}, {1}});
    check_delta(m, {{4, 4, 128, 2}, {1, 1}});
  }
}

void bench_deltas(const KernelConfig& config) {
  for (const uint32_t rows : {1u, 2048u}) {
    bench_delta(config, "27B", {16, 48, 128, 4}, rows);
    bench_delta(config, "35B-A3B", {16, 32, 128, 4}, rows);
  }
}

}  // namespace sharpi::cuda::check
