// SPDX-License-Identifier: MIT
#include "device/loaded_model.h"

#include <algorithm>

#include "base/limits.h"
#include "device/kernels.h"
#include "device/launches.h"

namespace sharpi::device {
namespace {

KvFormat make_format(const ModelSpec& spec, const KvLayout& layout) {
  KvFormat f;
  f.layers.resize(spec.n_layers());
  uint32_t entry = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const KvLayerLayout* from = layout.find(l);
    if (from == nullptr) continue;
    const auto g = static_cast<size_t>(layout.group_of_layer[l]);
    KvLayer& to = f.layers[l];
    to.group = entry++;  // of a sequence's table: one for each layer (calls.cc)
    to.n_heads = from->n_heads;
    to.head_dim = from->head_dim;
    to.window = layout.groups[g].window;
    to.k_dtype = from->k_dtype;
    to.v_dtype = from->v_dtype;
    to.k_row_bytes = from->k_row_bytes;
    to.v_row_bytes = from->v_row_bytes;
    to.block_stride = layout.groups[g].block_stride;
    to.k_offset = from->k_offset;
    to.v_offset = from->v_offset;
    if (!from->one_row()) continue;
    to.v_row_bytes = to.k_row_bytes;
    to.v_offset = to.k_offset;
  }
  return f;
}

bool same_format(const KvFormat& a, const KvFormat& b) {
  const auto same = [](const KvLayer& x, const KvLayer& y) {
    return x.group == y.group && x.k_dtype == y.k_dtype && x.v_dtype == y.v_dtype &&
           x.block_stride == y.block_stride && x.k_offset == y.k_offset && x.v_offset == y.v_offset;
  };
  return std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), same);
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(std::shared_ptr<Device> device,
                                                       std::shared_ptr<const Plan> plan,
                                                       const LoadProgress& progress,
                                                       const LoadedModel* lender) {
  std::unique_ptr<LoadedModel> m(new LoadedModel());
  m->lender = lender;
  m->device = std::move(device);
  m->plan = std::move(plan);
  SHARPI_TRY(m->device->open());
  const DeviceScope scope(*m->device);
  const Plan& p = *m->plan;
  m->kernels = m->device->pass_kernels(p.model);
  m->blocks_meet = m->kernels->blocks_meet(*p.spec);
  m->leaves_hidden = device::keeps_hidden(*p.spec, p.placement);
  SHARPI_TRY(m->kernels->prepare());
  m->workspace_layout = make_workspace_layout(*p.spec, p.placement, p.model, p.session, *m->kernels,
                                              m->device->shares_pinned());
  m->query_layout = make_query_layout(*p.spec, p.placement, DeviceIndex::kHere);
  m->state_layout = make_state_layout(*p.spec, p.placement, DeviceIndex::kHere);
  m->draft_layout = make_draft_layout(*p.spec, p.placement, DeviceIndex::kHere, p.session.n_draft);
  m->segments = make_segments(*p.spec, p.placement);
  SHARPI_TRY_ASSIGN(m->stream, m->device->create_queue());
  SHARPI_TRY_ASSIGN(m->weights,
                    Weights::load(*m->device, *p.spec->file,
                                  make_weight_plan(*m->device, *p.spec, p.placement), progress));
  StreamPlan streamed = make_stream_plan(m->device->kernels(), *p.spec, p.placement, p.model);
  if (!streamed.empty()) {
    SHARPI_TRY_ASSIGN(m->stream_weights, WeightStream::create(*m->device, std::move(streamed)));
  }
  SHARPI_TRY_ASSIGN(m->experts, ExpertSlots::create(*m->device, m->plan));
  SHARPI_TRY(m->upload_ropes());
  SHARPI_TRY(m->upload_turns());
  m->format_of(p.session);
  return m;
}

Status LoadedModel::upload_ropes() {
  ropes = make_rope_tables(spec(), &rope_of_layer);
  std::vector<double> all;
  for (const RopeTable& r : ropes) {
    rope_offset.push_back(all.size());
    all.insert(all.end(), r.inv_freq.begin(), r.inv_freq.end());
  }
  const uint64_t bytes = all.size() * sizeof(double);
  SHARPI_TRY_ASSIGN(rope_memory, DeviceBuffer::allocate(*device, bytes, "rope frequencies"));
  if (bytes == 0) return Status::ok();
  SHARPI_TRY(stream->copy(rope_memory.data(), all.data(), bytes, Way::kToDevice,
                          "upload of rope frequencies"));
  return stream->wait();
}

Status LoadedModel::upload_turns() {
  if (plan->session.replay_every == 0) return Status::ok();
  std::vector<float> all;
  for (const RopeTable& r : ropes) {
    const size_t half = r.inv_freq.size(), first = all.size();
    all.resize(first + 2 * half);
    rope_angles(r.inv_freq.data(), static_cast<uint32_t>(half), kReplayDistance, 1.0f,
                all.data() + first, all.data() + first + half);
  }
  const uint64_t bytes = all.size() * sizeof(float);
  SHARPI_TRY_ASSIGN(replay_turns, DeviceBuffer::allocate(*device, bytes, "angles of replay"));
  if (bytes == 0) return Status::ok();
  SHARPI_TRY(stream->copy(replay_turns.data(), all.data(), bytes, Way::kToDevice,
                          "upload of angles of replay"));
  return stream->wait();
}

uint32_t LoadedModel::format_of(const SessionShape& shape) {
  KvFormat f = make_format(
      spec(), make_tier_kv_layout(spec(), plan->placement, DeviceIndex::kHere, plan->model, shape));
  const std::lock_guard<std::mutex> lock(formats_mutex_);
  for (uint32_t i = 0; i < formats_.size(); ++i) {
    if (same_format(*formats_[i], f)) return i;
  }
  formats_.push_back(std::make_unique<KvFormat>(std::move(f)));
  return static_cast<uint32_t>(formats_.size() - 1);
}

const KvFormat& LoadedModel::format(uint32_t index) const {
  const std::lock_guard<std::mutex> lock(formats_mutex_);
  return *formats_[index];
}

bool LoadedModel::asks_for_experts(const Segment& segment) const {
  if (experts == nullptr || segment.streamed) return false;
  for (const Block& b : segment.blocks) {
    if (b.kind == BlockKind::kFfn && parts_experts(b.layer)) return true;
  }
  return false;
}

bool LoadedModel::uses_slots(uint32_t n_rows) const {
  const uint32_t n = plan->placement.n_expert_slots;
  return n != 0 && kernels->takes_slots(n, n_rows);
}

}  // namespace sharpi::device
