// SPDX-License-Identifier: MIT
#include "cuda/weights.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/thread_pool.h"

namespace sharpi::cuda {
namespace {

constexpr uint64_t kStage = 32ull << 20;  // of each staging area at most: streams at full rate
constexpr uint32_t kStages = 2;           // one is filled while the other crosses the bus
constexpr uint32_t kCopyThreads = 4;      // one core reads the page cache slower than the bus takes

class PlanBuilder {
 public:
  explicit PlanBuilder(WeightPlan* plan) : plan_(plan) {}
  void add(const TensorRef& ref, WeightPart part) {
    if (!ref || plan_->offset_of.contains(ref.tensor)) return;
    plan_->offset_of[ref.tensor] = plan_->aligned;
    plan_->items.push_back({ref, part, plan_->aligned});
    plan_->part_bytes[static_cast<size_t>(part)] += ref.bytes();
    plan_->bytes += ref.bytes();
    plan_->aligned = round_up(plan_->aligned + ref.bytes(), kWeightAlign);
    const bool tiles = weight_layout(ref.tensor->type, ref.n_in, ref.n_out) == WeightLayout::kTiles;
    const uint64_t unit = tiles ? kPanelRows * ref.row_bytes() : 1;
    const uint64_t stage = std::min(kStage, round_up(round_up(ref.bytes(), unit), 4096));
    plan_->stage = std::max(plan_->stage, stage);
  }
  void add_all(std::initializer_list<const TensorRef*> refs, WeightPart part) {
    for (const TensorRef* r : refs) add(*r, part);
  }

 private:
  WeightPlan* plan_;
};

void add_mixer(PlanBuilder* b, const LayerSpec& l) {
  const AttentionSpec& a = l.attention;
  const DeltaNetSpec& d = l.delta;
  b->add_all({&l.mixer_norm, &l.mixer_post_norm, &a.q, &a.k, &a.v, &a.o, &a.q_norm, &a.k_norm,
              &d.qkv, &d.gate, &d.alpha, &d.beta, &d.out, &d.conv1d, &d.dt_bias, &d.a, &d.norm},
             WeightPart::kMixer);
}

void add_ffn(PlanBuilder* b, const LayerSpec& l) {
  const FfnSpec& f = l.ffn;
  b->add_all({&l.ffn_norm, &l.ffn_post_norm, &l.ple_gate, &l.ple_proj, &l.ple_post_norm, &f.router,
              &f.shared_gate_inp, &f.shared_gate, &f.shared_up, &f.shared_down},
             WeightPart::kFfn);
  if (f.kind == FfnKind::kDense) b->add_all({&f.gate, &f.up, &f.down}, WeightPart::kFfn);
}

}  // namespace

WeightPlan make_weight_plan(const ModelSpec& spec, const Placement& placement) {
  WeightPlan plan;
  PlanBuilder b(&plan);
  const auto here = [](TierId t) { return t == TierId::kCuda; };
  if (here(placement.embedding)) {
    b.add_all({&spec.token_embd, &spec.ple_model_proj, &spec.ple_proj_norm},
              WeightPart::kEmbedding);
  }
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (here(placement.mixer[l])) add_mixer(&b, layer);
    if (here(placement.ffn[l])) add_ffn(&b, layer);
    if (layer.ffn.kind == FfnKind::kMoe && here(placement.experts[l])) {
      b.add_all({&layer.ffn.gate, &layer.ffn.up, &layer.ffn.down}, WeightPart::kExperts);
    }
  }
  if (here(placement.head)) b.add_all({&spec.output_norm, &spec.output}, WeightPart::kHead);
  return plan;
}

std::vector<MemoryRow> weight_rows(const WeightPlan& plan, uint32_t device) {
  static const char* const kLabels[] = {"embedding", "mixers", "FFN", "routed experts", "head"};
  std::vector<MemoryRow> rows;
  const auto push = [&](const char* label, uint64_t bytes) {
    if (bytes == 0) return;
    rows.push_back(make_row(TierId::kCuda, device, SHARPI_ROW_WEIGHTS, SHARPI_ROW_DEVICE, label,
                            bytes, bytes));
  };
  for (size_t p = 0; p < std::size(kLabels); ++p) push(kLabels[p], plan.part_bytes[p]);
  push("alignment of weights", device_held_bytes(plan.aligned) - plan.bytes);
  return rows;
}

std::vector<MemoryRow> load_rows(const WeightPlan& plan, uint32_t device) {
  if (plan.stage == 0) return {};
  const uint64_t n = kStages * plan.stage;
  std::vector<MemoryRow> rows{make_row(TierId::kCuda, device, SHARPI_ROW_STAGING, SHARPI_ROW_DEVICE,
                                       "load staging", n, kStages * device_held_bytes(plan.stage)),
                              make_row(TierId::kCuda, device, SHARPI_ROW_STAGING, SHARPI_ROW_PINNED,
                                       "load staging", n, kStages * pinned_held_bytes(plan.stage))};
  for (MemoryRow& r : rows) r.transient = 1;
  return rows;
}

/// Two staging areas take turns: while one crosses the bus, the other is filled from the file.
class Weights::Uploader {
 public:
  Uploader(Device& device, std::byte* block, uint64_t stage)
      : device_(device), block_(block), stage_(stage) {}

  Status prepare() {
    SHARPI_TRY_ASSIGN(pool_, ThreadPool::create(kCopyThreads));
    SHARPI_TRY_ASSIGN(stream_, Stream::create(device_));
    for (Slot& s : slots_) {
      SHARPI_TRY_ASSIGN(s.pinned, PinnedBuffer::allocate(device_, stage_, "load staging"));
      SHARPI_TRY_ASSIGN(s.staged, DeviceBuffer::allocate(device_, stage_, "load staging"));
      SHARPI_TRY_ASSIGN(s.done, Event::create(device_));
    }
    return Status::ok();
  }

  Status upload(const WeightItem& item, const std::function<Status(uint64_t)>& advance) {
    const TensorRef& w = item.ref;
    const GgmlType type = w.tensor->type;
    const bool tiles = weight_layout(type, w.n_in, w.n_out) == WeightLayout::kTiles;
    uint64_t piece = stage_;
    if (tiles) piece = stage_ / (kPanelRows * w.row_bytes()) * (kPanelRows * w.row_bytes());
    if (piece == 0) {
      return Status::error(Code::kUnsupported, "a row of %.*s has %llu bytes",
                           static_cast<int>(w.tensor->name.size()), w.tensor->name.data(),
                           static_cast<unsigned long long>(w.row_bytes()));
    }
    for (uint64_t at = 0; at < w.bytes(); at += piece) {
      const uint64_t n = std::min(piece, w.bytes() - at);
      SHARPI_TRY(send(w, tiles, at, n, block_ + item.offset + at));
      SHARPI_TRY(advance(n));
    }
    return Status::ok();
  }

  Status finish() { return stream_.wait(); }

 private:
  struct Slot {
    PinnedBuffer pinned;
    DeviceBuffer staged;
    Event done;
    bool busy = false;
  };

  Status send(const TensorRef& w, bool tiles, uint64_t at, uint64_t n, std::byte* to) {
    Slot& s = slots_[next_ ^= 1];
    if (s.busy) SHARPI_TRY(device_.check(cudaEventSynchronize(s.done.get()), "load staging"));
    copy(s.pinned.data(), w.tensor->data + at, n);
    std::byte* first = tiles ? s.staged.data() : to;
    SHARPI_TRY(device_.check(
        cudaMemcpyAsync(first, s.pinned.data(), n, cudaMemcpyHostToDevice, stream_.get()),
        "upload of weights"));
    if (tiles) {
      RepackParams p;
      p.type = w.tensor->type;
      p.n_in = static_cast<uint32_t>(w.n_in);
      p.n_rows = n / w.row_bytes();
      p.src = first;
      p.dst = to;
      SHARPI_TRY(device_.settle(launch_repack(p, stream_.get())));
    }
    s.busy = true;
    return device_.check(cudaEventRecord(s.done.get(), stream_.get()), "load staging");
  }

  void copy(std::byte* to, const std::byte* from, uint64_t n) {
    pool_->for_range(n, 1 << 20,
                     [&](uint64_t b, uint64_t e) { std::memcpy(to + b, from + b, e - b); });
  }

  Device& device_;
  std::byte* block_;
  uint64_t stage_;
  std::unique_ptr<ThreadPool> pool_;
  Slot slots_[kStages];
  Stream stream_;  // after the slots: its work must end before they go
  uint32_t next_ = 0;
};

Result<std::unique_ptr<Weights>> Weights::load(Device& device, WeightPlan plan,
                                               const LoadProgress& progress) {
  std::unique_ptr<Weights> w(new Weights());
  w->plan_ = std::move(plan);
  SHARPI_TRY_ASSIGN(w->memory_, DeviceBuffer::allocate(device, w->plan_.aligned, "weights"));
  const DeviceScope scope(device);
  if (w->plan_.items.empty()) return w;
  Uploader up(device, w->memory_.data(), w->plan_.stage);
  SHARPI_TRY(up.prepare());
  uint64_t done = 0;
  const auto advance = [&](uint64_t n) {
    done += n;
    if (progress && !progress(done, w->plan_.bytes))
      return Status::error(Code::kCancelled, "load cancelled");
    return Status::ok();
  };
  Status sent;
  for (const WeightItem& item : w->plan_.items) {
    sent = up.upload(item, advance);
    if (!sent.is_ok()) break;
  }
  const Status finished = up.finish();  // also after a failure: staging is in use until then
  SHARPI_TRY(sent);
  SHARPI_TRY(finished);
  return w;
}

const std::byte* Weights::at(const TensorRef& ref) const {
  if (!ref) return nullptr;
  const auto it = plan_.offset_of.find(ref.tensor);
  return it == plan_.offset_of.end() ? nullptr : memory_.data() + it->second;
}

DeviceMatrix Weights::matrix(const TensorRef& ref) const {
  const std::byte* data = at(ref);
  if (data == nullptr) return {};
  return make_device_matrix(ref.tensor->type, ref.n_in, ref.n_out, ref.n_experts, data);
}

const float* Weights::floats(const TensorRef& ref) const {
  return reinterpret_cast<const float*>(at(ref));
}

}  // namespace sharpi::cuda
