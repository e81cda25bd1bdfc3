// SPDX-License-Identifier: MIT
// Steps of few rows in few launches (chains, experts of one row) on every kind of device: which
// form they take, that a block asks for no more shared memory than it may have, and that the
// published models' layers all go this way. Host code alone, no device needed.
#include "cuda/kernels/kernel_limits.h"
#include "cuda/kernels/moe/moe_step_plan.h"
#include "cuda/kernels/products/chain_launch.h"
#include "cuda/kernels/products/unit_shares.h"
#include "cuda/published_models.h"

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

KernelConfig config_of(const Card& card) {
  KernelConfig c;
  for (int i = 0; i < kNamedCards; ++i) {
    if (named_card(i).profile.capability == card.capability) c.device = named_card(i).profile;
  }
  EXPECT_EQ(c.device.capability, card.capability);
  EXPECT_EQ(c.device.shared_per_block, card.shared);
  c.device.n_sm = card.n_sm;
  return c;
}

bool has_rings(const Card& card) {
  return card.capability >= 90 && card.shared >= 200 << 10;
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

/// A layer from its mixer's output on, up to the next one's projections, of so many rows.
std::vector<ChainLink> links_of(const Layer& l, uint32_t n_rows) {
  Addresses at;
  float *mix = at.row(), *x = at.row(), *ffn = at.row(), *norm = at.row();
  std::vector<ChainLink> links(4);
  links[0].product = product(mix, nullptr, {{at.matrix(l.type, l.mix, l.d), x, l.d}});
  links[0].product.epilogue = Epilogue::kAdd;
  links[1].product = product(
      x, norm,
      {{at.matrix(l.type, l.d, l.ff), ffn, l.ff}, {at.matrix(l.type, l.d, l.ff), ffn, l.ff}});
  links[1].product.epilogue = Epilogue::kSwiGlu;
  links[2].product = product(ffn, nullptr, {{at.matrix(l.down, l.ff, l.d), x, l.d}});
  links[2].product.epilogue = Epilogue::kAdd;
  links[3].product = product(x, norm,
                             {{at.matrix(l.type, l.d, l.q), at.row(), l.q},
                              {at.matrix(l.down, l.d, l.kv), at.row(), l.kv}});
  for (ChainLink& s : links) {
    s.product.n_rows = n_rows;
    s.product.x_stride = s.product.tasks[0].w.n_in;
  }
  return links;
}

TEST(StepPlans, ChainsHaveRoomOnEveryDevice) {
  for (const Card& card : kCards) {
    const KernelConfig config = config_of(card);
    EXPECT_TRUE(has_chains(config)) << card.name;
    const bool rings = has_rings(card);
    EXPECT_EQ(chain_form(config, {}), rings ? ChainForm::kRings : ChainForm::kRegisters)
        << card.name;
    for (const Layer& l : kLayers) {
      const std::vector<ChainLink> links = links_of(l, 1);
      for (const ChainLink& s : links) EXPECT_TRUE(chain_takes(config, s)) << card.name << l.name;
      ChainLaunch launch;
      ASSERT_TRUE(make_chain_launch(config, links.data(), 4, nullptr, {}, &launch))
          << card.name << ", " << l.name;
      EXPECT_LE(launch.shared_bytes, static_cast<uint32_t>(card.shared))
          << card.name << ", " << l.name;
      EXPECT_EQ(launch.ring_bytes != 0, rings) << card.name << ", " << l.name;
      ChainTuning tight;
      tight.shared_bytes = static_cast<int>(launch.shared_bytes) - 1;
      if (!rings) {
        EXPECT_FALSE(chain_fits(config, links.data(), 4, tight)) << card.name << ", " << l.name;
      }
    }
  }
}

/// Every column of a product is in one of its parts, which begin where the ones before end; all but
/// the last carry their sums on.
void expect_parts(const std::vector<ChainLink>& links, const ChainLaunch& launch) {
  uint32_t at = 0;
  for (const ChainLink& s : links) {
    const MatmulParams& m = s.product;
    const uint32_t all = m.tasks[0].w.n_in / kUnitColumns;
    uint32_t units = 0;
    do {
      ASSERT_LT(at, launch.n_products);
      const ChainProduct& q = launch.products[at];
      EXPECT_EQ(launch.columns[at].stride, m.tasks[0].w.n_in);
      for (uint32_t t = 0; t < m.n_tasks; ++t) {
        EXPECT_EQ(q.tasks[t].data, reinterpret_cast<const uint8_t*>(m.tasks[t].w.data) +
                                       uint64_t{units} * q.tasks[t].unit_bytes);
        EXPECT_EQ(q.tasks[t].width * kPanelRows, m.tasks[t].w.n_out);
      }
      if (q.x.handed == kNotHanded) {
        EXPECT_EQ(q.x.plain, m.x + uint64_t{units} * kUnitColumns);
      }
      units += q.units;
      EXPECT_EQ(launch.columns[at].carries, units < all);
      EXPECT_TRUE(!launch.columns[at].carries || q.norm_weight == nullptr);
    } while (++at, units < all);
    EXPECT_EQ(units, all);
  }
  EXPECT_EQ(at, launch.n_products);
}

TEST(StepPlans, ChainsOfSeveralRowsHaveRoomOnEveryDeviceWithoutRings) {
  uint32_t n_parted = 0, n_whole = 0;
  for (const Card& card : kCards) {
    if (has_rings(card)) continue;
    const KernelConfig config = config_of(card);
    EXPECT_EQ(max_chain_rows(config), kMaxChainRows) << card.name;
    for (const Layer& l : kLayers) {
      for (uint32_t n_rows = 2; n_rows <= kMaxChainRows; ++n_rows) {
        SCOPED_TRACE(std::string(card.name) + ", " + l.name + ", rows " + std::to_string(n_rows));
        const std::vector<ChainLink> links = links_of(l, n_rows);
        for (const ChainLink& s : links) EXPECT_TRUE(chain_takes(config, s));
        ChainLaunch launch;
        ASSERT_TRUE(make_chain_launch(config, links.data(), 4, nullptr, {}, &launch));
        EXPECT_EQ(launch.n_rows, n_rows);
        EXPECT_LE(launch.shared_bytes, static_cast<uint32_t>(card.shared));
        EXPECT_EQ(launch.ring_bytes, 0u);
        EXPECT_LE(launch.n_handed, kHandedFloats);
        EXPECT_EQ(launch.n_handed, n_rows * (l.d + l.ff + l.d));
        expect_parts(links, launch);
        (launch.n_products == 4 ? n_whole : n_parted) += 1;
      }
    }
  }
  EXPECT_GT(n_parted, 0u);  // else a kind of launch is not tested here
  EXPECT_GT(n_whole, 0u);
}

/// Several rows are faster launch by launch there; whoever measures may ask for registers.
TEST(StepPlans, CardsWithRingsChainOneRow) {
  uint32_t n_cards = 0;
  ChainTuning rings, registers;
  rings.form = ChainForm::kRings;
  registers.form = ChainForm::kRegisters;
  for (const Card& card : kCards) {
    if (!has_rings(card)) continue;
    ++n_cards;
    const KernelConfig config = config_of(card);
    EXPECT_EQ(max_chain_rows(config), 1u) << card.name;
    for (uint32_t n_rows = 2; n_rows <= kMaxChainRows; ++n_rows) {
      SCOPED_TRACE(std::string(card.name) + ", rows " + std::to_string(n_rows));
      const std::vector<ChainLink> links = links_of(kLayers[0], n_rows);
      for (const ChainLink& s : links) {
        EXPECT_FALSE(chain_takes(config, s));
        EXPECT_FALSE(chain_takes(config, s, rings));
        EXPECT_TRUE(chain_takes(config, s, registers));
      }
      EXPECT_FALSE(chain_fits(config, links.data(), 4));
      EXPECT_FALSE(chain_fits(config, links.data(), 4, rings));
      EXPECT_TRUE(chain_fits(config, links.data(), 4, registers));
    }
  }
  EXPECT_EQ(n_cards, 2u);
}

TEST(StepPlans, RowsOfAChainFollowEachOther) {
  const KernelConfig config = config_of(kCards[4]);
  const std::vector<ChainLink> good = links_of(kLayers[0], 4);
  const auto takes = [&](auto edit) {
    ChainLink s = good[3];
    edit(&s.product);
    return chain_takes(config, s);
  };
  const float scale = 1.0f;
  EXPECT_TRUE(takes([](MatmulParams*) {}));
  EXPECT_FALSE(takes([](MatmulParams* m) { m->n_rows = kMaxChainRows + 1; }));
  EXPECT_FALSE(takes([](MatmulParams* m) { m->n_rows = 0; }));
  EXPECT_FALSE(takes([](MatmulParams* m) { m->x_stride += 4; }));
  EXPECT_FALSE(takes([](MatmulParams* m) { m->tasks[1].y_stride += 16; }));
  EXPECT_TRUE(takes([&](MatmulParams* m) { m->row_scale = &scale; }));
  std::vector<ChainLink> mixed = good;
  mixed[2].product.n_rows = 3;
  EXPECT_TRUE(chain_fits(config, good.data(), 4));
  EXPECT_FALSE(chain_fits(config, mixed.data(), 4));
}

TEST(StepPlans, RingsNeedBulkCopies) {
  const KernelConfig config = config_of(kCards[0]);
  Addresses at;
  ChainLink link;
  link.product =
      product(at.row(), nullptr, {{at.matrix(GgmlType::kQ4_K, 4096, 4096), at.row(), 4096}});
  ChainTuning rings;
  rings.form = ChainForm::kRings;
  EXPECT_TRUE(chain_fits(config, &link, 1));
  EXPECT_FALSE(chain_fits(config, &link, 1, rings));
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
    const KernelConfig config = config_of(card);
    EXPECT_EQ(max_moe_step_rows(config), kMaxMoeLaunches * kMaxMoeStepRows) << card.name;
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
      KernelConfig small = config;
      small.device.shared_per_block = 48 << 10;
      EXPECT_FALSE(moe_step_takes(small, p)) << "no room for a unit a warp: " << l.name;
    }
  }
}

// --- every layer of the published models, with weights of every type that has such a product ---

constexpr GgmlType kTypes[] = {GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kQ4_0,
                               GgmlType::kQ8_0};

/// A layer's matrices of a type, and rows for them.
class LayerOnPaper {
 public:
  LayerOnPaper(const ModelSpec& spec, const LayerSpec& layer, GgmlType type)
      : spec_(spec), layer_(layer), type_(type) {}

  DeviceMatrix matrix(const TensorRef& w) {
    return at_.matrix(type_, static_cast<uint32_t>(w.n_in), static_cast<uint32_t>(w.n_out),
                      static_cast<uint32_t>(w.n_experts));
  }
  float* row() { return at_.row(); }
  MatmulTask task(const TensorRef& w, float* y) { return {matrix(w), y, w.n_out}; }

  const TensorRef& mixed() const { return attends() ? layer_.attention.o : layer_.delta.out; }
  MatmulParams mixer_out(const float* mix, float* x) {
    MatmulParams m = product(mix, nullptr, {task(mixed(), x)});
    m.epilogue = Epilogue::kAdd;
    return m;
  }
  MatmulParams gate_up(const float* x, const float* norm, float* ffn) {
    MatmulParams m = product(x, norm, {task(layer_.ffn.gate, ffn), task(layer_.ffn.up, ffn)});
    m.epilogue = Epilogue::kSwiGlu;
    return m;
  }
  MatmulParams down(const float* ffn, float* x) {
    MatmulParams m = product(ffn, nullptr, {task(layer_.ffn.down, x)});
    m.epilogue = Epilogue::kAdd;
    return m;
  }
  /// What the mixer of such a layer reads of its input.
  MatmulParams mixer_in(const float* x, const float* norm) {
    if (!attends()) {
      const DeltaNetSpec& d = layer_.delta;
      return product(x, norm, {task(d.qkv, row()), task(d.gate, row())});
    }
    const AttentionSpec& a = layer_.attention;
    if (a.kv_source >= 0) return product(x, norm, {task(a.q, row())});
    if (a.v_from_k) return product(x, norm, {task(a.q, row()), task(a.k, row())});
    return product(x, norm, {task(a.q, row()), task(a.k, row()), task(a.v, row())});
  }
  MoeStepParams experts() {
    const FfnSpec& f = layer_.ffn;
    MoeStepParams p;
    p.moe.x = p.moe.y = row();
    p.moe.add = true;
    p.moe.n_rows = 1;
    p.moe.n_used = f.n_used;
    p.moe.gate = f.fused_gate_up ? output_slice(matrix(f.gate), 0, f.d_ff) : matrix(f.gate);
    p.moe.up = f.fused_gate_up ? output_slice(matrix(f.gate), f.d_ff, f.d_ff) : matrix(f.up);
    p.moe.down = matrix(f.down);
    p.router = at_.matrix(GgmlType::kF32, spec_.n_embd, f.n_experts);
    if (f.d_shared != 0) {
      p.shared_gate = matrix(f.shared_gate);
      p.shared_up = matrix(f.shared_up);
      p.shared_down = matrix(f.shared_down);
      p.shared_gate_inp = row();
    }
    p.before = mixer_out(row(), p.moe.y);
    p.after = mixer_in(p.moe.y, row());
    p.sync_bytes = moe_step_sync_bytes(spec_.n_embd, f.n_used * f.d_ff, f.d_shared);
    return p;
  }

 private:
  bool attends() const { return layer_.mixer == MixerKind::kAttention; }

  const ModelSpec& spec_;
  const LayerSpec& layer_;
  GgmlType type_;
  Addresses at_;
};

/// The layer's products as a step of one row asks for them: true if one launch takes them all.
bool chain_of(const KernelConfig& config, LayerOnPaper layer, ChainLaunch* launch) {
  float *mix = layer.row(), *x = layer.row(), *ffn = layer.row(), *norm = layer.row();
  ChainLink links[4];
  links[0].product = layer.mixer_out(mix, x);
  links[1].product = layer.gate_up(x, norm, ffn);
  links[2].product = layer.down(ffn, x);
  links[3].product = layer.mixer_in(x, norm);
  for (const ChainLink& s : links) {
    if (!chain_takes(config, s)) return false;
  }
  return make_chain_launch(config, links, 4, nullptr, {}, launch);
}

TEST(StepPlans, EveryDenseLayerIsAChainThatFits) {
  each_card([](const NamedCard&, const DeviceProfile& device) {
    KernelConfig config;
    config.device = device;
    for (const PublishedModel& model : published_models()) {
      for (uint32_t l = 0; l < model.spec->n_layers(); ++l) {
        const LayerSpec& layer = model.spec->layers[l];
        if (layer.ffn.kind != FfnKind::kDense) continue;
        for (const GgmlType type : kTypes) {
          SCOPED_TRACE(std::string(model.name) + ", layer " + std::to_string(l) + ", " +
                       ggml_traits(type).name);
          ChainLaunch launch;
          ASSERT_TRUE(chain_of(config, {*model.spec, layer, type}, &launch));
          EXPECT_LE(launch.shared_bytes, static_cast<uint32_t>(device.shared_per_block));
          EXPECT_EQ(launch.ring_bytes != 0, chain_form(config, {}) == ChainForm::kRings);
        }
      }
    }
  });
}

/// f(config, parameters of one row) for the experts of every layer of every published model, on
/// every card, with weights of every type; but for models that no such launch takes.
template <class F>
void each_expert_layer(const F& f) {
  each_card([&](const NamedCard&, const DeviceProfile& device) {
    KernelConfig config;
    config.device = device;
    for (const PublishedModel& model : published_models()) {
      for (uint32_t l = 0; l < model.spec->n_layers(); ++l) {
        const LayerSpec& layer = model.spec->layers[l];
        if (layer.ffn.kind != FfnKind::kMoe) continue;
        for (const GgmlType type : kTypes) {
          SCOPED_TRACE(std::string(model.name) + ", layer " + std::to_string(l) + ", " +
                       ggml_traits(type).name);
          const MoeStepParams p = LayerOnPaper(*model.spec, layer, type).experts();
          if (model.spec->n_embd % kUnitColumns != 0) {
            EXPECT_FALSE(moe_step_takes(config, p)) << "rows end within a unit of weights";
            continue;
          }
          f(config, p);
        }
      }
    }
  });
}

TEST(StepPlans, EveryLayerOfExpertsIsALaunchThatFits) {
  uint32_t n_small = 0, n_large = 0;
  each_expert_layer([&](const KernelConfig& config, const MoeStepParams& p) {
    ASSERT_TRUE(moe_step_takes(config, p));
    cuda::step::StepArgs args = {};
    const uint32_t bytes = cuda::step::shape_step(config, p, {}, &args);
    EXPECT_GT(bytes, 0u);
    EXPECT_LE(bytes, static_cast<uint32_t>(config.device.shared_per_block));
    EXPECT_EQ(cuda::step::place_step(p, nullptr, &args), p.sync_bytes);
    (args.small ? n_small : n_large) += 1;
  });
  EXPECT_GT(n_small, 0u);  // else a kind of launch is not tested here
  EXPECT_GT(n_large, 0u);
}

/// Several rows: all of them where a block has room, in one launch or two, fewer where it has not,
/// and then the launch does not say that it could. Rows lie as far apart whatever a layer takes.
TEST(StepPlans, ExpertsOfSeveralRowsFitOrAreNotTaken) {
  constexpr uint32_t kMost = kMaxMoeLaunches * kMaxMoeStepRows;
  uint32_t n_taken[kMost + 1] = {}, n_refused = 0;
  each_expert_layer([&](const KernelConfig& config, MoeStepParams p) {
    for (uint32_t rows = 2; rows <= kMost + 1; ++rows) {
      SCOPED_TRACE("rows " + std::to_string(rows));
      p.moe.n_rows = p.before.n_rows = p.after.n_rows = rows;
      if (!moe_step_takes(config, p)) {
        n_refused += 1;
        EXPECT_TRUE(rows > kMost || config.device.shared_per_block < (200 << 10));
        continue;
      }
      ASSERT_LE(rows, kMost);
      n_taken[rows] += 1;
      // The first launch of them.
      p.moe.n_rows = p.before.n_rows = p.after.n_rows = std::min(rows, kMaxMoeStepRows);
      cuda::step::StepArgs args = {};
      const uint32_t bytes = cuda::step::shape_step(config, p, {}, &args);
      EXPECT_LE(bytes, static_cast<uint32_t>(config.device.shared_per_block));
      EXPECT_GE(args.ring_bytes, unit_bytes_of(p.moe.gate.type));
      EXPECT_EQ(cuda::step::place_step(p, nullptr, &args), p.sync_bytes);
      EXPECT_EQ(args.area * kMaxMoeStepRows, p.sync_bytes);
    }
  });
  for (uint32_t rows = 2; rows <= kMost; ++rows) EXPECT_GT(n_taken[rows], 0u);
  EXPECT_GT(n_refused, 0u);
}

/// A ring that is just large enough goes on for ever: what units take of it all comes back, also of
/// those whose bytes are no whole pieces (Q6_K), with whatever is lost at the ring's end.
TEST(RingUse, AllOfItComesBack) {
  for (const GgmlType widest : {GgmlType::kQ6_K, GgmlType::kQ8_0}) {
    const uint32_t ring = (2 * unit_bytes_of(widest) + 127) / 128 * 128;
    for (const GgmlType type : {GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ5_K, widest}) {
      RingUse use;
      uint32_t head = 0;
      const uint32_t bytes = unit_bytes_of(type);
      for (uint32_t n = 0; n < 10000; ++n) {
        const bool wraps = ring_wraps(head, bytes, ring);
        const uint32_t taken = ring_taken(wraps, head, bytes, ring);
        while (use.units != 0 && !use.has_room(taken, ring)) use.give_back();
        ASSERT_TRUE(use.has_room(taken, ring)) << "unit " << n << " of " << bytes << " bytes";
        use.take(taken);
        head = (wraps ? 0 : head) + bytes;
      }
      while (use.units != 0) use.give_back();
      EXPECT_EQ(use.bytes, 0u);
      EXPECT_EQ(use.pieces, 0u);
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
