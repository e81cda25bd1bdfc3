// SPDX-License-Identifier: MIT
#include "device/expert_slots.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"
#include "device/kernels.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kPiece = 32 << 10;  // of copy_piece(): some microseconds

uint32_t n_staged(const Placement& placement) {
  return std::min(kExpertsStaged, placement.n_expert_slots);
}

/// A matrix of one expert: its bytes in the file, and where they lie in a slot.
struct Part {
  const TensorRef* ref = nullptr;
  uint64_t at = 0, bytes = 0;
  const std::byte* of(uint32_t expert) const { return ref->tensor->data + expert * bytes; }
};

/// A fused gate and up leave an empty part behind.
std::array<Part, 3> parts_of(const FfnSpec& f, const SlotLayout::Layer& at) {
  const auto part = [](const TensorRef& w, uint64_t offset) {
    return Part{&w, offset, w.bytes() / w.n_experts};
  };
  return {part(f.gate, 0), part(f.up, at.up), part(f.down, at.down)};
}

}  // namespace

SlotLayout make_slot_layout(const ModelSpec& spec) {
  SlotLayout out;
  out.layers.resize(spec.n_layers());
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const FfnSpec& f = spec.layers[l].ffn;
    if (f.kind != FfnKind::kMoe) continue;
    SlotLayout::Layer& at = out.layers[l];
    at.up = round_up(f.gate.bytes() / f.n_experts, kWeightAlign);
    at.down = at.up + round_up(f.up.bytes() / f.n_experts, kWeightAlign);
    at.end = at.down + round_up(f.down.bytes() / f.n_experts, kWeightAlign);
    out.bytes = std::max(out.bytes, at.end);
    out.n_experts = std::max(out.n_experts, f.n_experts);
    out.n_used = std::max(out.n_used, f.n_used);
  }
  return out;
}

HandoverLayout make_handover_layout(const ModelSpec& spec, const Placement& placement,
                                    const ModelShape& model) {
  HandoverLayout out;
  out.place_of_layer.assign(spec.n_layers(), -1);
  uint32_t n = 0, n_used = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (!placement.parts_experts(spec, l)) continue;
    out.place_of_layer[l] = static_cast<int32_t>(n++);
    n_used = std::max(n_used, spec.layers[l].ffn.n_used);
  }
  if (n == 0) return out;
  out.layer_ids = model.max_batch * n_used;
  const uint64_t row_bytes = uint64_t{spec.n_embd} * sizeof(float);
  const uint64_t n_ids = std::max(uint64_t{model.max_rows()} * n_used, uint64_t{n} * out.layer_ids);
  const auto take = [&out](uint64_t bytes) {
    const uint64_t at = out.bytes;
    out.bytes += round_up(bytes, 128);
    return at;
  };
  out.sent = take(sizeof(uint32_t));  // lines of their own: each side polls the other's
  out.done = take(sizeof(uint32_t));
  out.x = take(model.max_rows() * row_bytes);
  out.y = take(model.max_rows() * row_bytes);
  out.ids = take(n_ids * sizeof(int32_t));
  out.weights = take(n_ids * sizeof(float));
  return out;
}

std::vector<MemoryRow> expert_rows(const ModelSpec& spec, const Placement& placement,
                                   const ModelShape& model, uint32_t n_workspaces,
                                   const Device& device) {
  std::vector<MemoryRow> rows;
  const auto push = [&](uint32_t purpose, uint32_t kind, const char* label, uint64_t payload,
                        uint64_t held) {
    if (held == 0) return;
    rows.push_back(device.row(purpose, kind, label, payload, held));
  };
  const HandoverLayout handover = make_handover_layout(spec, placement, model);
  if (handover.bytes == 0) return rows;
  push(SHARPI_ROW_STAGING, SHARPI_ROW_PINNED, "expert hand-over", n_workspaces * handover.bytes,
       n_workspaces * device.pinned_held_bytes(handover.bytes));
  const SlotLayout layout = make_slot_layout(spec);
  const uint32_t n = placement.n_expert_slots;
  if (n == 0) return rows;
  const uint64_t slots = n * layout.bytes, staged = n_staged(placement) * layout.bytes;
  const uint64_t table = layout.table_bytes();
  push(SHARPI_ROW_EXPERTS, SHARPI_ROW_DEVICE, "expert slots", slots, slots);
  push(SHARPI_ROW_EXPERTS, SHARPI_ROW_DEVICE, "empty expert slot and rounding", layout.bytes,
       device.held_bytes(layout.pool_bytes(n)) - slots);
  push(SHARPI_ROW_TABLES, SHARPI_ROW_DEVICE, "expert tables", table, device.held_bytes(table));
  push(SHARPI_ROW_TABLES, SHARPI_ROW_PINNED, "expert tables", table,
       device.pinned_held_bytes(table));
  push(SHARPI_ROW_STAGING, SHARPI_ROW_DEVICE, "expert staging", staged, device.held_bytes(staged));
  push(SHARPI_ROW_STAGING, SHARPI_ROW_PINNED, "expert staging", staged,
       device.pinned_held_bytes(staged));
  return rows;
}

Result<std::unique_ptr<ExpertSlots>> ExpertSlots::create(Device& device,
                                                         std::shared_ptr<const Plan> plan) {
  const Placement& placement = plan->placement;
  const HandoverLayout asks = make_handover_layout(*plan->spec, placement, plan->model);
  std::unique_ptr<ExpertSlots> s;
  if (asks.bytes == 0) return s;
  s.reset(new ExpertSlots());
  s->device_ = &device;
  s->plan_ = plan;
  s->layout_ = make_slot_layout(*plan->spec);
  const uint32_t n = placement.n_expert_slots;
  s->cache_ = std::make_unique<ExpertCache>(
      ExpertCacheShape{plan->spec->n_layers(), s->layout_.n_experts, n});
  s->frozen_ = plan->model.deterministic;
  if (n == 0) return s;
  const uint64_t table = s->layout_.table_bytes();
  const uint64_t staged = n_staged(placement) * s->layout_.bytes;
  SHARPI_TRY_ASSIGN(s->slots_,
                    DeviceBuffer::allocate(device, s->layout_.pool_bytes(n), "expert slots"));
  SHARPI_TRY_ASSIGN(s->table_, DeviceBuffer::allocate(device, table, "expert tables"));
  SHARPI_TRY_ASSIGN(s->staged_, DeviceBuffer::allocate(device, staged, "expert staging"));
  SHARPI_TRY_ASSIGN(s->host_table_, PinnedBuffer::allocate(device, table, "expert tables"));
  SHARPI_TRY_ASSIGN(s->pinned_, PinnedBuffer::allocate(device, staged, "expert staging"));
  SHARPI_TRY_ASSIGN(s->stream_, device.create_queue());
  SHARPI_TRY_ASSIGN(s->table_ready_, device.create_event());
  s->staged_experts_.resize(n_staged(placement));
  for (Staged& e : s->staged_experts_) {
    SHARPI_TRY_ASSIGN(e.moved, device.create_event());
  }
  std::fill_n(s->host_table_.as<int32_t>(), table / sizeof(int32_t), -1);
  SHARPI_TRY(s->fill());
  return s;
}

ExpertSlots::~ExpertSlots() {
  if (staged_experts_.empty()) return;
  const DeviceScope scope(*device_);
  const Status ended = stream_->wait();  // copies read what is freed next
  (void)ended.is_ok();
}

/// The first experts of every layer: better than nothing, and the policy moves on from there.
Status ExpertSlots::fill() {
  uint32_t next = 0;
  for (uint32_t e = 0; e < layout_.n_experts; ++e) {
    for (uint32_t l = 0; l < spec().n_layers(); ++l) {
      ExpertFill fill;
      if (!plan_->placement.parts_experts(spec(), l) || e >= spec().layers[l].ffn.n_experts)
        continue;
      if (cache_->n_resident() + cache_->n_coming() == cache_->n_slots()) continue;
      if (!cache_->force_fill({l, e}, &fill)) continue;
      SHARPI_TRY(load_now(fill, next));
      next = (next + 1) % static_cast<uint32_t>(staged_experts_.size());
    }
  }
  dirty_ = true;
  return stream_->wait();
}

/// Through staging area `index`, whose last use may still be under way.
Status ExpertSlots::load_now(const ExpertFill& fill, uint32_t index) {
  Staged& s = staged_experts_[index];
  Status sent = s.moved->wait("expert staging");
  if (sent.is_ok()) {
    s.fill = fill;
    s.copied = 0;
    copy_bytes(s, index, UINT64_MAX);
    sent = send(index);
  }
  s.state = Staged::State::kFree;
  if (!sent.is_ok()) {
    cache_->abandoned(fill);
    return sent;
  }
  cache_->filled(fill);
  put(fill.id, static_cast<int32_t>(fill.slot));
  return Status::ok();
}

void ExpertSlots::put(const ExpertId& id, int32_t slot) {
  host_table_.as<int32_t>()[id.layer * layout_.n_experts + id.expert] = slot < 0 ? -1 : slot + 1;
  dirty_ = true;
}

void ExpertSlots::copy_bytes(Staged& s, uint32_t index, uint64_t limit) {
  const SlotLayout::Layer& layer = layout_.layers[s.fill.id.layer];
  const uint64_t end = limit < layer.end - s.copied ? s.copied + limit : layer.end;
  std::byte* to = pinned_.data() + index * layout_.bytes;
  for (const Part& p : parts_of(spec().layers[s.fill.id.layer].ffn, layer)) {
    const uint64_t first = std::max(s.copied, p.at), last = std::min(end, p.at + p.bytes);
    if (first < last) {
      std::memcpy(to + first, p.of(s.fill.id.expert) + (first - p.at), last - first);
    }
  }
  s.copied = end;
  s.state = end == layer.end ? Staged::State::kReady : Staged::State::kCopying;
}

/// From staging over the bus into the slot, in the layout of the kernels.
Status ExpertSlots::send(uint32_t index) {
  Staged& s = staged_experts_[index];
  const uint32_t l = s.fill.id.layer;
  std::byte* staged = staged_.data() + index * layout_.bytes;
  std::byte* slot = slots_.data() + (s.fill.slot + 1) * layout_.bytes;
  SHARPI_TRY(stream_->copy(staged, pinned_.data() + index * layout_.bytes, layout_.layers[l].end,
                           Way::kToDevice, "sending an expert"));
  for (const Part& p : parts_of(spec().layers[l].ffn, layout_.layers[l])) {
    const TensorRef& w = *p.ref;
    if (!w) continue;
    if (device_->kernels().layout_unit(w) == 0) {
      SHARPI_TRY(
          stream_->copy(slot + p.at, staged + p.at, p.bytes, Way::kWithin, "placing an expert"));
      continue;
    }
    SHARPI_TRY(device_->kernels().lay_out(w, staged + p.at, slot + p.at, p.bytes, *stream_));
  }
  s.state = Staged::State::kMoving;
  return stream_->record(*s.moved, "placing an expert");
}

/// No call is running: arrivals enter the table, the next ones leave it and are fetched.
Status ExpertSlots::settle_arrivals() {
  for (uint32_t i = 0; i < staged_experts_.size(); ++i) {
    Staged& s = staged_experts_[i];
    if (s.state == Staged::State::kMoving) {
      SHARPI_TRY_ASSIGN(const bool moved, s.moved->has_happened("placing an expert"));
      if (!moved) continue;
      cache_->filled(s.fill);
      put(s.fill.id, static_cast<int32_t>(s.fill.slot));
      s.state = Staged::State::kFree;
    } else if (s.state == Staged::State::kReady) {
      SHARPI_TRY(send(i));
      ++n_promotions_;
      promoted_bytes_ += layout_.layers[s.fill.id.layer].end;
    }
  }
  for (Staged& s : staged_experts_) {
    if (s.state != Staged::State::kFree) continue;
    if (!cache_->next_fill(&s.fill)) break;
    if (s.fill.replaces) put(s.fill.victim, -1);
    s.copied = 0;
    s.state = Staged::State::kCopying;
    n_copying_.fetch_add(1, std::memory_order_relaxed);
  }
  return Status::ok();
}

Status ExpertSlots::begin(const Queue& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!staged_experts_.empty()) {
    if (n_running_ == 0 && !frozen_) SHARPI_TRY(settle_arrivals());
    if (dirty_ && n_running_ == 0) {
      SHARPI_TRY(stream.copy(table_.data(), host_table_.data(), table_.bytes(), Way::kToDevice,
                             "upload of expert tables"));
      SHARPI_TRY(stream.record(*table_ready_, "expert tables"));
      dirty_ = false;
    }
    SHARPI_TRY(stream.wait_for(*table_ready_, "expert tables"));
  }
  ++n_running_;
  return Status::ok();
}

void ExpertSlots::end(bool step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stepped_ = stepped_ || step;
  if (--n_running_ != 0) return;
  if (stepped_) cache_->end_call();
  stepped_ = false;
  idle_.notify_all();
}

bool ExpertSlots::copy_piece() {
  if (n_copying_.load(std::memory_order_relaxed) == 0) return false;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return true;
  for (uint32_t i = 0; i < staged_experts_.size(); ++i) {
    Staged& s = staged_experts_[i];
    if (s.state != Staged::State::kCopying) continue;
    copy_bytes(s, i, kPiece);
    if (s.state == Staged::State::kReady) n_copying_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

void ExpertSlots::note(uint32_t layer, const int32_t* ids, uint32_t n, bool served) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t i = 0; i < n; ++i) {
    const bool resident =
        cache_->use({layer, static_cast<uint32_t>(ids[i] < 0 ? ~ids[i] : ids[i])});
    n_unserved_ += resident && !served ? 1 : 0;
  }
}

/// What is on its way arrives or is given up.
Status ExpertSlots::finish_arrivals() {
  SHARPI_TRY(stream_->wait());
  for (Staged& s : staged_experts_) {
    if (s.state == Staged::State::kFree) continue;
    if (s.state == Staged::State::kMoving) {
      cache_->filled(s.fill);
      put(s.fill.id, static_cast<int32_t>(s.fill.slot));
    } else {
      if (s.state == Staged::State::kCopying) n_copying_.fetch_sub(1, std::memory_order_relaxed);
      cache_->abandoned(s.fill);
    }
    s.state = Staged::State::kFree;
  }
  return Status::ok();
}

Status ExpertSlots::pin(std::span<const ExpertId> experts) {
  for (const ExpertId& e : experts) {
    const bool known = e.layer < spec().n_layers() &&
                       plan_->placement.parts_experts(spec(), e.layer) &&
                       e.expert < spec().layers[e.layer].ffn.n_experts;
    if (!known) {
      return Status::error(Code::kInvalidArgument,
                           "expert %u of layer %u cannot be pinned: only experts on the CPU whose "
                           "router is on the GPU can",
                           e.expert, e.layer);
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [&] { return n_running_ == 0; });
  if (cache_->n_pinned() + experts.size() > cache_->n_slots()) {
    return Status::error(Code::kDoesNotFit,
                         "%zu experts cannot be pinned beside the %u that are: there are %u slots",
                         experts.size(), cache_->n_pinned(), cache_->n_slots());
  }
  const DeviceScope scope(*device_);
  SHARPI_TRY(finish_arrivals());
  Status done = Status::ok();
  for (size_t i = 0; i < experts.size() && done.is_ok(); ++i) {
    ExpertFill fill;
    if (cache_->force_fill(experts[i], &fill)) {
      if (fill.replaces) put(fill.victim, -1);
      done = load_now(fill, 0);
    }
    if (done.is_ok()) cache_->pin(experts[i]);
  }
  const Status arrived = stream_->wait();  // those in front of one that failed are in the table
  SHARPI_TRY(done);
  return arrived;
}

const int32_t* ExpertSlots::table(uint32_t layer) const {
  return table_.data() == nullptr ? nullptr : table_.as<int32_t>() + layer * layout_.n_experts;
}

const int32_t* ExpertSlots::host_table(uint32_t layer) const {
  return host_table_.data() == nullptr ? nullptr
                                       : host_table_.as<int32_t>() + layer * layout_.n_experts;
}

ExpertSlots::Residents ExpertSlots::residents(uint32_t layer, const TensorRef& w) const {
  if (slots_.data() == nullptr || !plan_->placement.parts_experts(spec(), layer)) return {};
  const FfnSpec& f = spec().layers[layer].ffn;
  for (const Part& p : parts_of(f, layout_.layers[layer])) {
    if (!*p.ref || p.ref->tensor != w.tensor || p.bytes % 16 != 0) continue;
    return {slots_.data() + p.at, layout_.bytes, host_table(layer)};
  }
  return {};
}

sharpi_expert_stats ExpertSlots::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  sharpi_expert_stats s{};
  s.n_slots = cache_->n_slots();
  s.n_resident = cache_->n_resident();
  s.n_pinned = cache_->n_pinned();
  s.slot_bytes = layout_.bytes;
  s.n_uses = cache_->n_uses();
  s.n_hits = cache_->n_hits() - n_unserved_;
  s.n_promotions = n_promotions_;
  s.n_evictions = cache_->n_evictions();
  s.promoted_bytes = promoted_bytes_;
  return s;
}

std::vector<uint64_t> ExpertSlots::uses(uint32_t layer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!plan_->placement.parts_experts(spec(), layer)) return {};
  std::vector<uint64_t> out(spec().layers[layer].ffn.n_experts);
  for (uint32_t e = 0; e < out.size(); ++e) out[e] = cache_->uses({layer, e});
  return out;
}

}  // namespace sharpi::device
