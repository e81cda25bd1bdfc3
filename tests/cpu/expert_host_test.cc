// SPDX-License-Identifier: MIT
// Experts for another tier: against sums in double over dequantised weights, against the CPU tier's
// own way in bits, for every instruction set, number of rows and of threads, with experts left out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "cpu/cpu_expert_host.h"
#include "cpu/cpu_model.h"
#include "gguf/gguf_file.h"
#include "isas.h"
#include "support/tiny_model.h"
#include "tier/host_weights.h"

namespace sharpi::cpu {
namespace {

struct Case {
  test::ModelRecipe recipe;
  bool exact = true;
  Isa isa = Isa::kScalar;
  uint32_t n_threads = 3;
};

/// A model whose routed experts alone are on the CPU. Nothing but what host memory serves of such a
/// model is in memory: experts that read another tensor are wrong.
class Host {
 public:
  explicit Host(const Case& c) : pool_(ThreadPool::create(c.n_threads).take()) {
    EXPECT_TRUE(test::ModelFile(c.recipe).write(file_.path()));
    plan_ = std::make_shared<Plan>();
    const auto spec = load_model_spec(GgufFile::open(file_.path()).take()).take();
    plan_->placement = Placement::all(*spec, DeviceIndex::kHere);
    for (DeviceIndex& t : plan_->placement.experts) t = DeviceIndex::kHost;
    weights_ = HostWeights::create(meter_, *pool_, *spec, plan_->placement, {}).take();
    plan_->spec = weights_->spec();
    plan_->model.exact = c.exact;
    plan_->model.n_chunk = 40;
    plan_->session.n_ctx = 64;
    plan_->session.dtypes.assign(plan_->spec->n_layers(), {KvDtype::kF32, KvDtype::kF32});
    model_ = CpuModel::create(&meter_, pool_.get(), kernels_of(c.isa), plan_, nullptr).take();
    workspace_ = model_->create_workspace(nullptr).take();
    host_ = model_->create_expert_host(*workspace_).take();
    ops_.emplace(*plan_->spec, *pool_,
                 MatmulConfig{&kernels_of(c.isa), c.exact, plan_->model.deterministic});
    blocks_.emplace(*ops_);
  }
  ExpertHost& operator*() { return *host_; }
  ExpertHost* operator->() { return host_.get(); }
  const ModelSpec& spec() const { return *plan_->spec; }
  /// The tier's own way to compute the same.
  const ExpertBlocks& blocks() const { return *blocks_; }
  CpuWorkspace& workspace() { return static_cast<CpuWorkspace&>(*workspace_); }
  uint32_t moe_layer() const {
    uint32_t l = 0;
    while (spec().layers[l].ffn.kind != FfnKind::kMoe) ++l;
    return l;
  }

 private:
  test::TempFile file_;
  MemoryMeter meter_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<HostWeights> weights_;
  std::shared_ptr<Plan> plan_;
  std::unique_ptr<CpuModel> model_;
  std::unique_ptr<Workspace> workspace_;
  std::unique_ptr<ExpertHost> host_;
  std::optional<BlockOps> ops_;
  std::optional<ExpertBlocks> blocks_;
};

/// Rows with their experts; some are left out.
struct Rows {
  std::vector<float> x, weights, y;
  std::vector<int32_t> ids;
  ExpertRequest request;
  Rows(const ModelSpec& spec, uint32_t layer, uint32_t n, uint32_t seed, double left_out = 0.3) {
    const FfnSpec& f = spec.layers[layer].ffn;
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    x.resize(uint64_t{n} * spec.n_embd);
    for (float& v : x) v = normal(rng);
    y.assign(x.size(), -1.0f);
    for (uint32_t r = 0; r < n; ++r) {
      std::vector<int32_t> all(f.n_experts);
      for (uint32_t e = 0; e < f.n_experts; ++e) all[e] = static_cast<int32_t>(e);
      std::shuffle(all.begin(), all.end(), rng);
      for (uint32_t j = 0; j < f.n_used; ++j) {
        const bool out = std::uniform_real_distribution<>()(rng) < left_out;
        ids.push_back(out ? -1 : all[j]);
        weights.push_back(std::uniform_real_distribution<float>()(rng));
      }
    }
    request = {layer, n, x.data(), ids.data(), weights.data(), y.data()};
  }
};

std::vector<double> product(const TensorRef& w, uint64_t first, uint64_t n,
                            const std::vector<double>& x) {
  std::vector<double> out(n);
  std::vector<float> row(w.n_in);
  for (uint64_t o = 0; o < n; ++o) {
    dequantize_row(w.tensor->type, w.tensor->data + (first + o) * w.row_bytes(), row.data(),
                   w.n_in);
    for (uint64_t i = 0; i < w.n_in; ++i) out[o] += static_cast<double>(row[i]) * x[i];
  }
  return out;
}

/// Adds the expert's own row of a bias, if there is one.
std::vector<double> biased(std::vector<double> y, const TensorRef& bias, uint64_t expert) {
  if (!bias) return y;
  const auto* values = reinterpret_cast<const float*>(bias.tensor->data) + expert * bias.n_in;
  for (uint64_t i = 0; i < y.size(); ++i) y[i] += values[i];
  return y;
}

double gated(Activation activation, double gate, double up) {
  if (activation != Activation::kSwigluClamped) return gate / (1.0 + std::exp(-gate)) * up;
  gate = std::min(gate, 7.0);
  return gate / (1.0 + std::exp(-1.702 * gate)) * (std::clamp(up, -7.0, 7.0) + 1);
}

std::vector<double> reference(const ModelSpec& spec, const Rows& rows, uint32_t r) {
  const LayerSpec& l = spec.layers[rows.request.layer];
  const FfnSpec& f = l.ffn;
  const uint64_t d = spec.n_embd;
  const float* x = rows.x.data() + r * d;
  const auto* norm = reinterpret_cast<const float*>(l.ffn_norm.tensor->data);
  double squares = 0;
  for (uint64_t i = 0; i < d; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double scale =
      1.0 / std::sqrt(squares / static_cast<double>(d) + static_cast<double>(spec.rms_eps));
  std::vector<double> in(d), out(d);
  for (uint64_t i = 0; i < d; ++i) in[i] = static_cast<double>(x[i]) * scale * norm[i];
  for (uint32_t j = 0; j < f.n_used; ++j) {
    const int32_t id = rows.ids[r * f.n_used + j];
    if (id < 0) continue;
    const auto e = static_cast<uint64_t>(id);
    std::vector<double> h = biased(product(f.gate, e * f.gate.n_out, f.d_ff, in), f.gate_bias, e);
    const std::vector<double> up =
        f.fused_gate_up ? product(f.gate, e * f.gate.n_out + f.d_ff, f.d_ff, in)
                        : biased(product(f.up, e * f.up.n_out, f.d_ff, in), f.up_bias, e);
    for (uint64_t i = 0; i < f.d_ff; ++i) h[i] = gated(f.activation, h[i], up[i]);
    const std::vector<double> y = biased(product(f.down, e * d, d, h), f.down_bias, e);
    for (uint64_t i = 0; i < d; ++i) {
      out[i] += static_cast<double>(rows.weights[r * f.n_used + j]) * y[i];
    }
  }
  return out;
}

/// Copies are made for a placement. Weights of a block that they were not made for have no data,
/// and would otherwise be taken for weights that the model does not have.
TEST(CpuModel, AWeightThatIsNotInMemoryIsRefusedByName) {
  const test::TempFile file;
  ASSERT_TRUE(test::ModelFile(test::tiny_qwen3moe()).write(file.path()));
  MemoryMeter meter;
  const auto pool = ThreadPool::create(2).take();
  const auto spec = load_model_spec(GgufFile::open(file.path()).take()).take();
  const auto made = [&](const Placement& copied, const Placement& placed) {
    const auto weights = HostWeights::create(meter, *pool, *spec, copied, {}).take();
    auto plan = std::make_shared<Plan>();
    plan->placement = placed;
    plan->spec = weights->spec();
    plan->model.n_chunk = 40;
    plan->session.n_ctx = 64;
    plan->session.dtypes.assign(spec->n_layers(), {KvDtype::kF32, KvDtype::kF32});
    return CpuModel::create(&meter, pool.get(), kScalarKernels, plan, nullptr).status();
  };
  Placement experts = Placement::all(*spec, DeviceIndex::kHere);
  for (DeviceIndex& t : experts.experts) t = DeviceIndex::kHost;
  Placement attention = experts;
  attention.mixer[1] = DeviceIndex::kHost;
  EXPECT_TRUE(made(experts, experts).is_ok());
  EXPECT_TRUE(made(attention, attention).is_ok());
  const Status status = made(experts, attention);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.text(), "the tensor blk.1.attn_norm.weight is not in memory");
}

class ExpertHosts : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, ExpertHosts, testing::ValuesIn(runnable_isas()),
                         [](const auto& p) { return std::string(isa_name(p.param)); });

TEST_P(ExpertHosts, SumsAreRight) {
  for (const auto& recipe :
       {test::tiny_qwen35moe(), test::tiny_olmoe(), test::tiny_qwen3moe(), test::tiny_gpt_oss()}) {
    Host host({recipe, true, GetParam(), 3});
    for (const uint32_t n : {1u, 2u, 8u, 9u, 33u}) {
      Rows rows(host.spec(), host.moe_layer(), n, n);
      ASSERT_TRUE(host->compute(rows.request).is_ok());
      for (uint32_t r = 0; r < n; ++r) {
        const std::vector<double> want = reference(host.spec(), rows, r);
        double size = 1e-3;
        for (const double v : want) size = std::max(size, std::fabs(v));
        for (uint64_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(static_cast<double>(rows.y[r * want.size() + i]), want[i], 2e-5 * size)
              << recipe.arch << ", row " << r << " of " << n << ", element " << i;
        }
      }
    }
  }
}

/// The shared way and the product by product way: one arithmetic.
TEST_P(ExpertHosts, BitsAreThoseOfTheTiersOwnBlocks) {
  for (const bool exact : {true, false}) {
    for (const uint32_t n_threads : {1u, 2u, 7u}) {
      Host host({test::tiny_qwen35moe(), exact, GetParam(), n_threads});
      for (uint32_t n = 1; n <= 8; ++n) {
        Rows shared(host.spec(), host.moe_layer(), n, 10 + n),
            apart(host.spec(), host.moe_layer(), n, 10 + n);
        ASSERT_TRUE(host->compute(shared.request).is_ok());
        host.blocks().compute(apart.request, host.workspace());
        ASSERT_EQ(std::memcmp(shared.y.data(), apart.y.data(), shared.y.size() * sizeof(float)), 0)
            << n << " rows, " << n_threads << " threads, exact " << exact;
      }
    }
  }
}

/// A line of prepared requests.
class Line final : public ExpertLine {
 public:
  explicit Line(std::vector<Rows>* rows) : rows_(rows) {}
  const ExpertRequest* next() override {
    EXPECT_EQ(n_answers_, at_);
    return at_ < rows_->size() ? &(*rows_)[at_++].request : nullptr;
  }
  void answer() override { ++n_answers_; }
  size_t n_answers() const { return n_answers_; }

 private:
  std::vector<Rows>* rows_;
  size_t at_ = 0, n_answers_ = 0;
};

/// More threads than CPUs, so that followers come late, or not at all.
TEST_P(ExpertHosts, ALineIsServedInOrder) {
  Host host({test::tiny_olmoe(), false, GetParam(), 8});
  const uint32_t layer = host.moe_layer();
  std::vector<Rows> line, want;
  for (uint32_t i = 0; i < 300; ++i) {
    const double left_out = i % 5 == 0 ? 1.1 : 0.3;  // nothing at all is wanted
    line.emplace_back(host.spec(), layer, 1 + i % 3, i, left_out);
    want.emplace_back(host.spec(), layer, 1 + i % 3, i, left_out);
  }
  for (size_t i = 0; i < line.size(); ++i) {
    for (Rows* r : {&line[i], &want[i]}) {
      r->request.x = r->x.data(), r->request.ids = r->ids.data();
      r->request.weights = r->weights.data(), r->request.y = r->y.data();
    }
    host.blocks().compute(want[i].request, host.workspace());
  }
  Line requests(&line);
  ASSERT_TRUE(host->serve(requests).is_ok());
  EXPECT_EQ(requests.n_answers(), line.size());
  for (size_t i = 0; i < line.size(); ++i) {
    ASSERT_EQ(std::memcmp(line[i].y.data(), want[i].y.data(), line[i].y.size() * sizeof(float)), 0)
        << "request " << i;
  }
}

}  // namespace
}  // namespace sharpi::cpu
