// SPDX-License-Identifier: MIT
// Policies of the expert cache over routing traces: share of uses that find their expert in a slot,
// and experts sent per token. Traces: what the routers of model files choose for the prompts of
// their goldens (recorded by running the CPU tier block by block), and made ones (Zipf over each
// layer's experts; the same with favourites that change slowly; with a change of subject in the
// middle). Prints a table; nothing here depends on the speed of the machine.
//   expert_cache_bench [MODEL.gguf GOLDEN.json]...
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cpu/cpu_model.h"
#include "gguf/gguf_file.h"
#include "support/golden.h"
#include "tier/expert_cache.h"

namespace sharpi {
namespace {

struct Trace {
  std::string name;
  uint32_t n_layers = 0, n_experts = 0, n_used = 0;
  std::vector<uint32_t> ids;  // [token][layer][n_used]
  size_t n_tokens() const { return ids.size() / (n_layers * n_used); }
};

/// Weighted draws without replacement, favourites in an order of each layer's own.
class Made {
 public:
  Made(uint32_t n_layers, uint32_t n_experts, uint32_t n_used, double skew)
      : trace_{"", n_layers, n_experts, n_used, {}}, skew_(skew), order_(n_layers) {
    for (auto& o : order_) {
      o.resize(n_experts);
      std::iota(o.begin(), o.end(), 0u);
      std::shuffle(o.begin(), o.end(), rng_);
    }
  }
  void tokens(uint32_t n, uint32_t swaps_each = 0) {
    for (uint32_t t = 0; t < n; ++t) {
      for (auto& o : order_) {
        draw(o);
        for (uint32_t s = 0; s < swaps_each; ++s) {
          std::swap(o[rng_() % o.size()], o[rng_() % o.size()]);
        }
      }
    }
  }
  void new_subject() {
    for (auto& o : order_) std::shuffle(o.begin(), o.end(), rng_);
  }
  Trace take(const std::string& name) {
    trace_.name = name;
    return std::move(trace_);
  }

 private:
  void draw(const std::vector<uint32_t>& order) {
    std::vector<std::pair<double, uint32_t>> keys;  // exponential races: the first to finish win
    std::exponential_distribution<> race;
    for (uint32_t rank = 0; rank < order.size(); ++rank) {
      keys.emplace_back(race(rng_) * std::pow(1.0 + rank, skew_), order[rank]);
    }
    std::partial_sort(keys.begin(), keys.begin() + trace_.n_used, keys.end());
    for (uint32_t j = 0; j < trace_.n_used; ++j) trace_.ids.push_back(keys[j].second);
  }
  Trace trace_;
  double skew_;
  std::vector<std::vector<uint32_t>> order_;
  std::mt19937 rng_{5};
};

/// The CPU tier, block by block: behind every FFN block the router's choice lies in its workspace.
class Recorder {
 public:
  explicit Recorder(const std::string& path) {
    spec_ = load_model_spec(GgufFile::open(path).take()->map_tensors().take()).take();
    plan_ = std::make_shared<Plan>();
    plan_->spec = spec_;
    plan_->placement = Placement::all(*spec_, DeviceIndex::kHost);
    plan_->model.exact = true;
    plan_->model.n_chunk = 2048;
    plan_->session.n_ctx = 2048;
    plan_->session.dtypes.assign(spec_->n_layers(), {KvDtype::kF32, KvDtype::kF32});
    pool_ = ThreadPool::create(0).take();
    const cpu::KernelSet& kernels = cpu::kernel_set(*cpu::resolve_isa(cpu::Isa::kAuto).take());
    model_ = cpu::CpuModel::create(&meter_, pool_.get(), kernels, plan_, nullptr).take();
    workspace_ = model_->create_workspace(nullptr).take();
  }
  const ModelSpec& spec() const { return *spec_; }
  /// Appends one prompt's choices.
  void run(const std::vector<int32_t>& tokens, Trace* out) {
    auto session = model_->create_session(plan_->session).take();
    const KvLedger ledger(*spec_, 0, 0);
    SequenceRows q;
    q.session = session.get();
    q.ledger = &ledger;
    q.n_rows = q.first_logit_row = static_cast<uint32_t>(std::min<size_t>(tokens.size(), 2048));
    Submission rows;
    rows.tokens = tokens.data();
    rows.n_rows = q.n_rows;
    rows.sequences = {&q, 1};
    const size_t base = out->ids.size(), step = size_t{out->n_layers} * out->n_used;
    out->ids.resize(base + q.n_rows * step);
    const auto& ws = static_cast<const cpu::CpuWorkspace&>(*workspace_);
    uint32_t place = 0;
    for (const Segment& all : make_segments(*spec_, plan_->placement)) {
      for (const Block& b : all.blocks) {
        Segment one = all;
        one.blocks = {b};
        one.program = make_program(*spec_, plan_->placement, one);
        const Status ran = model_->run(one, rows, *workspace_);
        if (!ran.is_ok()) std::fprintf(stderr, "%s\n", ran.text().c_str());
        if (b.kind != BlockKind::kFfn || spec_->layers[b.layer].ffn.kind != FfnKind::kMoe) continue;
        const auto* ids = ws.get<uint32_t>(cpu::Buf::kMoeIds);
        for (uint32_t r = 0; r < q.n_rows; ++r) {
          std::copy_n(ids + r * out->n_used, out->n_used,
                      out->ids.begin() +
                          static_cast<std::ptrdiff_t>(base + r * step + place * out->n_used));
        }
        ++place;
      }
    }
  }

 private:
  MemoryMeter meter_;
  std::unique_ptr<ThreadPool> pool_;
  std::shared_ptr<const ModelSpec> spec_;
  std::shared_ptr<Plan> plan_;
  std::unique_ptr<cpu::CpuModel> model_;
  std::unique_ptr<Workspace> workspace_;
};

Trace record(const std::string& model, const std::string& golden_path) {
  Recorder recorder(model);
  Trace t;
  t.name = model.substr(model.find_last_of('/') + 1);
  for (const LayerSpec& l : recorder.spec().layers) {
    if (l.ffn.kind != FfnKind::kMoe) continue;
    ++t.n_layers;
    t.n_experts = l.ffn.n_experts;
    t.n_used = l.ffn.n_used;
  }
  const testing::Golden golden = testing::load_golden(golden_path).take();
  if (t.n_layers == 0) return t;
  for (const auto& c : golden.cases) recorder.run(c.tokens, &t);
  for (const auto& n : golden.needles) recorder.run(n.prompt, &t);
  return t;
}

struct Outcome {
  double hits = 0, sent = 0;  // share of uses; experts a token
};

/// `staged`: experts that may be on their way at a time; each arrives one token after it was sent.
/// 0: any number, at once.
Outcome play(const Trace& t, uint32_t n_slots, ExpertPolicy policy, uint32_t staged) {
  ExpertCache cache({t.n_layers, t.n_experts, n_slots, policy});
  std::vector<ExpertFill> coming;
  uint64_t n_sent = 0;
  size_t at = 0;
  for (size_t token = 0; token < t.n_tokens(); ++token) {
    for (uint32_t l = 0; l < t.n_layers; ++l) {
      for (uint32_t j = 0; j < t.n_used; ++j) cache.use({l, t.ids[at++]});
    }
    cache.end_call();
    for (const ExpertFill& f : coming) cache.filled(f);
    coming.clear();
    ExpertFill f;
    while ((staged == 0 || coming.size() < staged) && cache.next_fill(&f)) {
      ++n_sent;
      if (staged == 0) {
        cache.filled(f);
      } else {
        coming.push_back(f);
      }
    }
  }
  return {static_cast<double>(cache.n_hits()) / static_cast<double>(cache.n_uses()),
          static_cast<double>(n_sent) / static_cast<double>(t.n_tokens())};
}

void compare(const Trace& t) {
  const uint32_t all = t.n_layers * t.n_experts;
  std::printf("%s: %zu tokens, %u layers, %u of %u experts\n", t.name.c_str(), t.n_tokens(),
              t.n_layers, t.n_used, t.n_experts);
  std::printf(
      "  slots          on CPU   LRU           LFU           segmented     the same, 8 "
      "at a time\n");
  for (const uint32_t eighths : {1u, 2u, 4u}) {
    const uint32_t n = std::max(1u, all * eighths / 8);
    std::printf("  %5u (%4.1f%%)  %5.1f%% ", n, 12.5 * eighths, 0.0);
    for (const auto& [policy, staged] :
         {std::pair{ExpertPolicy::kLru, 0u}, std::pair{ExpertPolicy::kLfu, 0u},
          std::pair{ExpertPolicy::kSegmented, 0u}, std::pair{ExpertPolicy::kSegmented, 8u}}) {
      const Outcome o = play(t, n, policy, staged);
      std::printf("  %5.1f%% %5.1f", 100.0 * o.hits, o.sent);
    }
    std::printf("\n");
  }
}

int run(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const Trace t = record(argv[i], argv[i + 1]);
    if (t.n_layers != 0) compare(t);
  }
  const uint32_t n = 1500;
  for (const double skew : {0.5, 1.0}) {
    const std::string zipf = "Zipf " + std::to_string(skew).substr(0, 3);
    Made still(48, 128, 8, skew), slow(48, 128, 8, skew), subject(48, 128, 8, skew);
    still.tokens(n);
    compare(still.take(zipf));
    slow.tokens(n, 1);
    compare(slow.take(zipf + ", favourites change slowly"));
    subject.tokens(n / 2);
    subject.new_subject();
    subject.tokens(n / 2);
    compare(subject.take(zipf + ", another subject half way"));
  }
  return 0;
}

}  // namespace
}  // namespace sharpi

int main(int argc, char** argv) {
  return sharpi::run(argc, argv);
}
