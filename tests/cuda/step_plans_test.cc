// SPDX-License-Identifier: MIT
// Steps of one row in few launches (chains, experts of one row) on every kind of device: which form
// they take, that a block asks for no more shared memory than it may have, and that the published
// models' layers all go this way. Host code alone, no device needed.
#include <gtest/gtest.h>

#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/products/chain_launch.h"

namespace sharpi::testing {
namespace {

using namespace cuda;

struct Card {
  const char* name;
  int capability, n_sm, shared;
};
constexpr Card kCards[] = {
    {"8.0, 108", 80, 108, 166912},   {"8.6, 28", 86, 28, 101376},   {"8.6, 82", 86, 82, 101376},
    {"8.9, 60", 89, 60, 101376},     {"8.9, 128", 89, 128, 101376}, {"9.0, 132", 90, 132, 232448},
    {"10.0, 148", 100, 148, 232448}, {"12.0, 70", 120, 70, 101376}, {"12.0, 188", 120, 188, 101376},
};

MatmulConfig config_of(const Card& card) {
  MatmulConfig c;
  for (int i = 0; i < kNamedCards; ++i) {
    if (named_card(i).profile.capability == card.capability) c.device = named_card(i).profile;
  }
  EXPECT_EQ(c.device.capability, card.capability);
  EXPECT_EQ(c.device.shared_per_block, card.shared);
  c.device.n_sm = card.n_sm;
  return c;
}

/// Matrices and rows at addresses of their own, which nobody reads.
class Addresses {
 public:
  DeviceMatrix matrix(GgmlType type, uint32_t n_in, uint32_t n_out, uint32_t n_experts = 1) {
    return make_device_matrix(type, n_in, n_out, n_experts, take<std::byte>(uint64_t{1} << 32));
  }
  float* row() { return take<float>(1 << 20); }

 private:
  template <class T>
  T* take(uint64_t bytes) {
    next_ += bytes;
    return reinterpret_cast<T*>(next_);
  }
  uintptr_t next_ = uintptr_t{1} << 40;
};

MatmulParams product(const float* x, const float* norm, std::initializer_list<MatmulTask> tasks) {
  MatmulParams m;
  m.x = x;
  m.n_rows = 1;
  m.norm_weight = norm;
  for (const MatmulTask& t : tasks) m.tasks[m.n_tasks++] = t;
  return m;
}

struct Layer {
  const char* name;
  uint32_t d, mix, ff, q, kv;
  GgmlType type, down;
};
const Layer kLayers[] = {
    {"Qwen3-8B", 4096, 4096, 12288, 4096, 1024, GgmlType::kQ4_K, GgmlType::kQ6_K},
    {"Gemma 12B", 3840, 8192, 15360, 8192, 4096, GgmlType::kQ4_0, GgmlType::kQ4_0},
    {"27B", 5120, 6144, 17408, 10240, 6144, GgmlType::kQ4_K, GgmlType::kQ6_K},
    {"27B in q8_0", 5120, 6144, 17408, 10240, 6144, GgmlType::kQ8_0, GgmlType::kQ8_0},
};

TEST(StepPlans, ChainsHaveRoomOnEveryDevice) {
  for (const Card& card : kCards) {
    const MatmulConfig config = config_of(card);
    EXPECT_TRUE(has_chains(config)) << card.name;
    const bool rings = card.capability >= 90 && card.shared >= 200 << 10;
    EXPECT_EQ(chain_form(config, {}), rings ? ChainForm::kRings : ChainForm::kRegisters)
        << card.name;
    for (const Layer& l : kLayers) {
      Addresses at;
      float *mix = at.row(), *x = at.row(), *ffn = at.row(), *norm = at.row();
      ChainStep steps[4];
      steps[0].product = product(mix, nullptr, {{at.matrix(l.type, l.mix, l.d), x, l.d}});
      steps[0].product.epilogue = Epilogue::kAdd;
      steps[1].product = product(
          x, norm,
          {{at.matrix(l.type, l.d, l.ff), ffn, l.ff}, {at.matrix(l.type, l.d, l.ff), ffn, l.ff}});
      steps[1].product.epilogue = Epilogue::kSwiGlu;
      steps[2].product = product(ffn, nullptr, {{at.matrix(l.down, l.ff, l.d), x, l.d}});
      steps[2].product.epilogue = Epilogue::kAdd;
      steps[3].product = product(x, norm,
                                 {{at.matrix(l.type, l.d, l.q), at.row(), l.q},
                                  {at.matrix(l.down, l.d, l.kv), at.row(), l.kv}});
      for (const ChainStep& s : steps) EXPECT_TRUE(chain_takes(config, s)) << card.name << l.name;
      ChainLaunch launch;
      ASSERT_TRUE(make_chain_launch(config, steps, 4, nullptr, {}, &launch))
          << card.name << ", " << l.name;
      EXPECT_LE(launch.shared_bytes, static_cast<uint32_t>(card.shared))
          << card.name << ", " << l.name;
      EXPECT_EQ(launch.ring_bytes != 0, rings) << card.name << ", " << l.name;
      ChainTuning tight;
      tight.shared_bytes = static_cast<int>(launch.shared_bytes) - 1;
      if (!rings) {
        EXPECT_FALSE(chain_fits(config, steps, 4, tight)) << card.name << ", " << l.name;
      }
    }
  }
}

TEST(StepPlans, RingsNeedBulkCopies) {
  const MatmulConfig config = config_of(kCards[0]);
  Addresses at;
  ChainStep step;
  step.product =
      product(at.row(), nullptr, {{at.matrix(GgmlType::kQ4_K, 4096, 4096), at.row(), 4096}});
  ChainTuning rings;
  rings.form = ChainForm::kRings;
  EXPECT_TRUE(chain_fits(config, &step, 1));
  EXPECT_FALSE(chain_fits(config, &step, 1, rings));
}

struct Mixture {
  const char* name;
  uint32_t d, ff, n_experts, n_used, shared, mix;
  GgmlType type, down;
};
const Mixture kMixtures[] = {
    {"35B-A3B", 2048, 512, 256, 8, 512, 4096, GgmlType::kQ4_K, GgmlType::kQ6_K},
    {"Coder-30B", 2048, 768, 128, 8, 0, 4096, GgmlType::kQ4_K, GgmlType::kQ6_K},
    {"OLMoE", 2048, 1024, 64, 8, 0, 2048, GgmlType::kQ4_K, GgmlType::kQ6_K},
};

TEST(StepPlans, ExpertsOfOneRowHaveRoomOnEveryDevice) {
  for (const Card& card : kCards) {
    const MatmulConfig config = config_of(card);
    EXPECT_TRUE(has_moe_steps(config)) << card.name;
    for (const Mixture& l : kMixtures) {
      Addresses at;
      MoeStepParams p;
      p.moe.x = p.moe.y = at.row();
      p.moe.add = true;
      p.moe.n_rows = 1;
      p.moe.n_used = l.n_used;
      p.moe.gate = p.moe.up = at.matrix(l.type, l.d, l.ff, l.n_experts);
      p.moe.down = at.matrix(l.down, l.ff, l.d, l.n_experts);
      p.router = at.matrix(GgmlType::kF32, l.d, l.n_experts);
      if (l.shared != 0) {
        p.shared_gate = p.shared_up = at.matrix(l.type, l.d, l.shared);
        p.shared_down = at.matrix(l.down, l.shared, l.d);
        p.shared_gate_inp = at.row();
      }
      p.before = product(at.row(), nullptr, {{at.matrix(l.type, l.mix, l.d), p.moe.y, l.d}});
      p.before.epilogue = Epilogue::kAdd;
      p.after = product(p.moe.y, at.row(), {{at.matrix(l.type, l.d, 8192), at.row(), 8192}});
      p.sync_bytes = moe_step_sync_bytes(l.d, l.n_used * l.ff, l.shared);
      EXPECT_TRUE(moe_step_takes(config, p)) << card.name << ", " << l.name;
      MatmulConfig small = config;
      small.device.shared_per_block = 48 << 10;
      EXPECT_FALSE(moe_step_takes(small, p)) << "no room for a unit a warp: " << l.name;
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
