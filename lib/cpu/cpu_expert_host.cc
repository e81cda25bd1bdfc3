// SPDX-License-Identifier: MIT
#include "cpu/cpu_expert_host.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/cpu_relax.h"
#include "cpu/ops.h"

namespace sharpi::cpu {
namespace {

/// Rows of a request that the threads share as described; more rows go product by product.
constexpr uint32_t kFewRows = 8;
/// Weight rows of a unit, and of a job: long ones stream better, but in the end the threads must
/// finish together. Units of several rows a job go by panels of kPanelUnit weight rows.
constexpr uint32_t kUnitRows = 8, kJobRows = 128;

/// Waits for done(): short waits with pauses, longer ones leave the CPU to whoever needs it.
template <class Done>
void wait_until(Done done) {
  constexpr uint32_t kPauses = 4096;
  for (uint32_t n = 0; !done(); ++n) {
    if (n < kPauses) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

CpuExpertHost::CpuExpertHost(const ExpertBlocks& blocks, CpuWorkspace& ws, ThreadPool* pool,
                             const KernelSet& kernels)
    : blocks_(blocks), ws_(ws), pool_(pool), kernels_(kernels) {
  uint32_t most = 0;
  for (const LayerSpec& l : blocks.spec().layers) {
    if (l.ffn.kind != FfnKind::kMoe) continue;
    most = std::max(most, std::min(l.ffn.n_experts, kFewRows * l.ffn.n_used));
  }
  experts_ = std::make_unique<Expert[]>(most);
  hidden_shares_ = std::vector<Share>(pool->size());
  output_shares_ = std::vector<Share>(pool->size());
}

Status CpuExpertHost::compute(const ExpertRequest& request) {
  if (request.n_rows > kFewRows) {
    blocks_.compute(request, ws_);
    return Status::ok();
  }
  struct One final : ExpertLine {
    const ExpertRequest* left;
    explicit One(const ExpertRequest* r) : left(r) {}
    const ExpertRequest* next() override { return std::exchange(left, nullptr); }
    void answer() override {}
  } line(&request);
  return serve(line);
}

Status CpuExpertHost::serve(ExpertLine& line) {
  over_.store(false, std::memory_order_relaxed);
  pool_->run(pool_->size(), [&](uint32_t worker) {
    if (worker == 0) {
      lead(line);
    } else {
      follow(worker);
    }
  });
  return Status::ok();
}

void CpuExpertHost::lead(ExpertLine& line) {
  while (const ExpertRequest* r = line.next()) {
    wait_until([&] { return active_.load(std::memory_order_seq_cst) == 0; });
    if (prepare(*r)) {
      const uint32_t round = ++n_rounds_ == 0 ? ++n_rounds_ : n_rounds_;
      round_.store(round, std::memory_order_seq_cst);
      in_ = blocks_.norm_request(*r, ws_);
      input_.store(round, std::memory_order_release);
      work(0, round);
      wait_until(
          [&] { return n_outputs_.load(std::memory_order_acquire) == output_phase_.n_units; });
      round_.store(0, std::memory_order_seq_cst);
    }
    line.answer();
  }
  over_.store(true, std::memory_order_seq_cst);
}

/// A thread that comes late finds the round closed, or takes what is left of it; no other thread
/// waits for it.
void CpuExpertHost::follow(uint32_t worker) {
  uint32_t seen = 0;
  while (true) {
    uint32_t round = 0;
    wait_until([&] {
      round = round_.load(std::memory_order_seq_cst);
      return (round != 0 && round != seen) || over_.load(std::memory_order_acquire);
    });
    if (round == 0 || round == seen) return;
    active_.fetch_add(1, std::memory_order_seq_cst);
    if (round_.load(std::memory_order_seq_cst) == round) {
      seen = round;
      work(worker, round);
    }
    active_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void CpuExpertHost::set_task(MatmulTask* t, const TensorRef& w, uint64_t first_row, uint64_t n_out,
                             const MatmulInput& in, float* y, uint64_t y_stride) const {
  t->w.type = w.tensor->type;
  t->w.data = w.tensor->data + first_row * w.row_bytes();
  t->w.n_in = w.n_in;
  t->w.n_out = n_out;
  t->w.row_bytes = w.row_bytes();
  t->in = &in;
  t->y = y;
  t->y_stride = y_stride;
}

void CpuExpertHost::set_phase(Phase* phase, std::vector<Share>* shares, uint32_t n_units) const {
  phase->n_units = n_units;
  const auto n = static_cast<uint32_t>(shares->size());
  for (uint32_t t = 0; t < n; ++t) {
    (*shares)[t].next.store(static_cast<uint32_t>(uint64_t{n_units} * t / n),
                            std::memory_order_relaxed);
    (*shares)[t].end = static_cast<uint32_t>(uint64_t{n_units} * (t + 1) / n);
  }
}

/// Sets the request up, but for its input; false when its answer is there already (no expert is
/// wanted).
bool CpuExpertHost::prepare(const ExpertRequest& r) {
  request_ = r;
  const FfnSpec& f = blocks_.spec().layers[r.layer].ffn;
  ffn_ = &f;
  const uint64_t e = blocks_.spec().n_embd;
  const uint32_t n_slots = blocks_.group_request(r, ws_);
  if (n_slots == 0) {
    std::memset(r.y, 0, r.n_rows * e * sizeof(float));
    return false;
  }
  prepare_tasks(r, n_slots);
  hidden_phase_.units_each =
      static_cast<uint32_t>(div_up(uint64_t{f.d_ff}, hidden_phase_.unit_rows));
  for (uint32_t i = 0; i < n_experts_; ++i) {
    experts_[i].units_left.store(hidden_phase_.units_each, std::memory_order_relaxed);
  }
  set_phase(&hidden_phase_, &hidden_shares_, n_experts_ * hidden_phase_.units_each);
  set_phase(&output_phase_, &output_shares_,
            static_cast<uint32_t>(div_up(e, output_phase_.unit_rows)));
  n_prepared_.store(0, std::memory_order_relaxed);
  n_outputs_.store(0, std::memory_order_relaxed);
  return true;
}

void CpuExpertHost::prepare_tasks(const ExpertRequest& r, uint32_t n_slots) {
  const FfnSpec& f = blocks_.spec().layers[r.layer].ffn;
  const uint64_t e = blocks_.spec().n_embd, width = f.d_ff;
  hidden_ = {ws_.get(Buf::kFfnGate), width, n_slots, width, ws_.get<std::byte>(Buf::kActWide)};
  const auto* first = ws_.get<uint32_t>(Buf::kMoeFirst);
  const auto* rows = ws_.get<uint32_t>(Buf::kMoeRows);
  const auto* iota = ws_.get<uint32_t>(Buf::kMoeIota);
  const TensorRef &up = f.fused_gate_up ? f.gate : f.up, &first_of = f.gate ? f.gate : f.up;
  bool panels = false;
  n_experts_ = 0;
  for (uint64_t id = 0; id < f.n_experts; ++id) {
    if (first[id + 1] == first[id]) continue;
    Expert& x = experts_[n_experts_++];
    x.id = static_cast<uint32_t>(id);
    x.first_slot = first[id];
    x.n_slots = first[id + 1] - first[id];
    panels = panels || x.n_slots >= kMinPanelRows;
    float* g = ws_.get(Buf::kFfnGate) + x.first_slot * width;
    float* u = ws_.get(Buf::kFfnUp) + x.first_slot * width;
    set_task(&x.gate, first_of, id * first_of.n_out, width, in_, g, width);
    set_task(&x.up, up, id * up.n_out + (f.fused_gate_up ? width : 0), width, in_, u, width);
    set_task(&x.down, f.down, id * e, e, hidden_, ws_.get(Buf::kMoeOut) + x.first_slot * e, e);
    x.gate.row_ids = x.up.row_ids = rows + x.first_slot;
    x.down.row_ids = iota + x.first_slot;
    x.gate.n_rows = x.up.n_rows = x.down.n_rows = x.n_slots;
  }
  hidden_phase_.unit_rows = output_phase_.unit_rows = panels ? kPanelUnit : kUnitRows;
  hidden_phase_.most = output_phase_.most = kJobRows / hidden_phase_.unit_rows;
}

bool CpuExpertHost::take(std::vector<Share>& shares, uint32_t most, uint32_t worker,
                         uint32_t* victim, Units* out) {
  const auto n = static_cast<uint32_t>(shares.size());
  for (; *victim < n; ++*victim) {
    Share& s = shares[(worker + *victim) % n];
    const uint32_t next = s.next.load(std::memory_order_relaxed);
    if (next >= s.end) continue;
    // Most of what is left: towards the end of a share others can help.
    const uint32_t left = s.end - next;
    const uint32_t want = *victim == 0 ? std::clamp(left - left / 4, 1u, most) : 1;
    out->first = s.next.fetch_add(want, std::memory_order_relaxed);
    if (out->first >= s.end) continue;
    out->n = std::min(want, s.end - out->first);
    return true;
  }
  return false;
}

void CpuExpertHost::look_ahead(uint32_t worker, bool hidden) const {
  constexpr uint64_t kBytes = 24 << 10;
  const Share& s = hidden ? hidden_shares_[worker] : output_shares_[worker];
  const uint32_t unit = s.next.load(std::memory_order_relaxed);
  if (unit >= s.end) return;
  if (hidden) {
    const Expert& x = experts_[unit / hidden_phase_.units_each];
    const uint64_t r = uint64_t{unit % hidden_phase_.units_each} * hidden_phase_.unit_rows;
    Matmul::prefetch(x.gate, r, ffn_->d_ff, kBytes);
    return;
  }
  const uint64_t r = uint64_t{unit} * output_phase_.unit_rows;
  for (uint32_t i = 0; i < std::min(n_experts_, 4u); ++i) {
    Matmul::prefetch(experts_[i].down, r, kJobRows, kBytes / 4);
  }
}

void CpuExpertHost::work(uint32_t worker, uint32_t round) {
  look_ahead(worker, true);
  wait_until([&] { return input_.load(std::memory_order_acquire) == round; });
  Units units;
  uint32_t victim = 0;
  while (take(hidden_shares_, hidden_phase_.most, worker, &victim, &units)) {
    while (units.n != 0) {  // one expert at a time
      const uint32_t left = hidden_phase_.units_each - units.first % hidden_phase_.units_each;
      const Units part = {units.first, std::min(units.n, left)};
      hidden_units(part, worker);
      units = {units.first + part.n, units.n - part.n};
    }
  }
  if (n_prepared_.load(std::memory_order_relaxed) != n_experts_) look_ahead(worker, false);
  wait_until([&] { return n_prepared_.load(std::memory_order_acquire) == n_experts_; });
  victim = 0;
  while (take(output_shares_, output_phase_.most, worker, &victim, &units)) {
    output_units(units, worker);
  }
}

void CpuExpertHost::hidden_units(Units units, uint32_t worker) {
  Expert& x = experts_[units.first / hidden_phase_.units_each];
  const uint64_t width = ffn_->d_ff;
  const uint64_t r = uint64_t{units.first % hidden_phase_.units_each} * hidden_phase_.unit_rows;
  const uint64_t n = std::min(uint64_t{units.n} * hidden_phase_.unit_rows, width - r);
  const Matmul& mm = ws_.matmul();
  ffn_->gate ? gated_rows(x, r, n, worker) : rows_alone(x, r, n, worker);
  if (x.units_left.fetch_sub(units.n, std::memory_order_acq_rel) != units.n) return;
  mm.prepare_rows(hidden_, x.first_slot, x.n_slots);
  n_prepared_.fetch_add(1, std::memory_order_acq_rel);
}

/// Without a gate the up stands in its place.
void CpuExpertHost::rows_alone(const Expert& x, uint64_t r, uint64_t n, uint32_t worker) {
  const uint64_t width = ffn_->d_ff;
  ws_.matmul().run_outputs(x.gate, r, n, worker);
  Matmul::prefetch(x.gate, r + n, n);  // most likely what comes next
  const float* bias = expert_row(ffn_->up_bias, x.id);
  for (uint64_t s = 0; s < x.n_slots; ++s) {
    activate_alone(kernels_, ffn_->activation, x.gate.y + s * width + r,
                   bias == nullptr ? nullptr : bias + r, n);
  }
}

void CpuExpertHost::gated_rows(const Expert& x, uint64_t r, uint64_t n, uint32_t worker) {
  const uint64_t width = ffn_->d_ff;
  const Matmul& mm = ws_.matmul();
  Matmul::prefetch(x.up, r, n);
  mm.run_outputs(x.gate, r, n, worker);
  Matmul::prefetch(x.gate, r + n, n);  // most likely what comes next
  mm.run_outputs(x.up, r, n, worker);
  const float* gate_bias = expert_row(ffn_->gate_bias, x.id);
  const float* up_bias = expert_row(ffn_->up_bias, x.id);
  for (uint64_t s = 0; s < x.n_slots; ++s) {
    float* g = x.gate.y + s * width + r;
    float* u = x.up.y + s * width + r;
    if (gate_bias != nullptr) add_inplace(kernels_, g, gate_bias + r, n);
    if (up_bias != nullptr) add_inplace(kernels_, u, up_bias + r, n);
    activate(kernels_, ffn_->activation, g, u, n, g);
  }
}

void CpuExpertHost::output_units(Units units, uint32_t worker) {
  const uint64_t e = blocks_.spec().n_embd;
  const uint64_t r = uint64_t{units.first} * output_phase_.unit_rows;
  const uint64_t n = std::min(uint64_t{units.n} * output_phase_.unit_rows, e - r);
  const Matmul& mm = ws_.matmul();
  for (uint32_t i = 0; i < n_experts_; ++i) {
    if (i + 1 < n_experts_) Matmul::prefetch(experts_[i + 1].down, r, n);
    const Expert& x = experts_[i];
    mm.run_outputs(x.down, r, n, worker);
    const float* bias = expert_row(ffn_->down_bias, x.id);
    for (uint64_t s = 0; bias != nullptr && s < x.n_slots; ++s)
      add_inplace(kernels_, x.down.y + s * e + r, bias + r, n);
  }
  const float* out = ws_.get(Buf::kMoeOut);
  const float* weights = ws_.get(Buf::kMoeWeights);
  const auto* slot_of = ws_.get<uint32_t>(Buf::kMoeSlot);
  for (uint32_t row = 0; row < request_.n_rows; ++row) {
    float* y = request_.y + row * e + r;
    std::memset(y, 0, n * sizeof(float));
    for (uint32_t j = 0; j < ffn_->n_used; ++j) {
      const uint32_t slot = slot_of[row * ffn_->n_used + j];
      if (slot == kNoSlot) continue;
      add_scaled(kernels_, y, out + slot * e + r, weights[row * ffn_->n_used + j], n);
    }
  }
  n_outputs_.fetch_add(units.n, std::memory_order_acq_rel);
}

}  // namespace sharpi::cpu
