// SPDX-License-Identifier: MIT
#include "device/forward.h"

#include <algorithm>
#include <optional>

#include "device/layers_ahead.h"

namespace sharpi::device {
namespace {

struct LayerEvents {
  const DeviceWorkspace* ws;
  Status record(uint32_t i) const { return ws->record(i); }
  Status wait(uint32_t i) const { return ws->wait(i); }
};

/// Passes that take long enough to be stopped within, or whose layers somebody wants to hear of.
/// Steps are none; nor is a pass that the host does something else beside.
bool is_watched(const Pass& p, const std::atomic<bool>* cancel) {
  if (p.rows == nullptr || p.recorded || p.single_rows || p.rows->meanwhile != nullptr)
    return false;
  return p.rows->progress != nullptr || (cancel != nullptr && p.n_rows() >= kWatchedRows);
}

}  // namespace

PassFacts Forward::facts(const Pass& p) const {
  PassFacts f;
  f.spec = &m_.spec();
  f.placement = &m_.plan->placement;
  f.n_rows = p.n_rows();
  f.fuses = p.fuses;
  f.streamed = p.streamed;
  f.rows_to_ring = p.rows_to_ring();
  f.keeps_hidden = p.keeps_hidden;
  f.head = head_rows(m_.plan->model.deterministic, p.n_head_rows, p.head_rows_in_order);
  f.replays = replays(p);
  f.expert_slots = m_.uses_slots(p.n_rows());
  f.n_adapters = p.n_adapters;
  // Rows without adapters have the same bits beside others and alone.
  const ModelShape& model = m_.plan->model;
  f.gates_apart = p.n_adapters != 0 || (model.deterministic && model.adapter_rank != 0);
  return f;
}

/// A chunk that nobody runs (Calls::record_chunk()) is one of those that give scores.
bool Forward::replays(const Pass& p) const {
  if (p.rows == nullptr) return !p.step && m_.plan->session.replay_every != 0;
  return !p.transient && std::any_of(p.rows->sequences.begin(), p.rows->sequences.end(),
                                     [](const SequenceRows& q) { return q.replay; });
}

Status Forward::run(const Segment& segment, Pass& p) const {
  const LaunchList list = m_.kernels->fuse(m_, segment.program, facts(p), p.step);
  if (list.unknown != nullptr) {
    return Status::error(Code::kInternal, "the GPU's tier does not know the operation \"%s\"",
                         list.unknown);
  }
  ChainCounts& counts = p.n_rows() == 1 ? chains_of_one_ : chains_of_several_;
  counts.launched.fetch_add(list.n_chains, std::memory_order_relaxed);
  counts.apart.fetch_add(list.n_apart, std::memory_order_relaxed);
  const std::atomic<bool>* cancel = p.rows == nullptr ? nullptr : p.rows->cancel;
  // A ring row that was overwritten cannot be brought back, so windowed models finish their chunk.
  if (!p.transient && m_.spec().has_window()) cancel = nullptr;
  std::optional<LayersAhead<LayerEvents>> ahead;
  if (is_watched(p, cancel)) ahead.emplace(LayerEvents{&p.ws}, cancel, p.rows->progress);
  for (const Launch& l : list.launches) {
    if (l.opens && cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Status::error(Code::kCancelled, "the call was cancelled");
    }
    SHARPI_TRY(launch(p, list, l));
    if (const LaunchWatch seen = launch_watch())
      seen(list, l, p.n_rows() == 1 && p.fuses && p.recorded);
    if (ahead && l.kind == LaunchKind::kLayerEnd) SHARPI_TRY(ahead->submitted(l.layer));
  }
  return ahead ? ahead->finish() : Status::ok();
}

Status Forward::launch(Pass& p, const LaunchList& list, const Launch& l) const {
  switch (l.kind) {
    case LaunchKind::kFetchWeights:
      if (!m_.stream_weights->has(l.layer)) return Status::ok();
      return m_.stream_weights->load(l.layer, m_.experts.get(), p.ws.queue());
    case LaunchKind::kReleaseWeights:
      if (!m_.stream_weights->has(l.layer)) return Status::ok();
      return m_.stream_weights->done(l.layer, p.ws.queue());
    case LaunchKind::kLayerEnd:
      return Status::ok();
    case LaunchKind::kRows:
      note_rows(p, l.layer);
      return m_.kernels->launch(p, list, l);
    case LaunchKind::kKeepRing:
      return keep_ring(p, list, l);
    case LaunchKind::kReplay:
      return replay_.of_pass(p, l.layer);
    case LaunchKind::kSendRows:  // a recorded step hands over without the queue
      return p.recorded ? m_.kernels->launch(p, list, l) : send_rows(p, l.layer);
    case LaunchKind::kAnswers:
      if (!p.recorded) SHARPI_TRY(ask_host(p, l.layer));
      return m_.kernels->launch(p, list, l);
    default:
      return m_.kernels->launch(p, list, l);
  }
}

/// Rows of a windowed layer go to its ring, or wait until it is known who reads both.
void Forward::note_rows(Pass& p, uint32_t layer) const {
  const AttentionSpec& a = m_.spec().layers[layer].attention;
  if (a.kv_source >= 0 || a.window == 0) return;
  if (p.rows_to_ring()) {
    p.writes_rings();
  } else {
    p.ws.pending_ring = static_cast<int32_t>(layer);
  }
}

/// Rows that wait in the chunk scratch go to their ring, if any wait.
Status Forward::keep_ring(Pass& p, const LaunchList& list, Launch l) const {
  if (p.ws.pending_ring < 0) return Status::ok();
  l.layer = static_cast<uint32_t>(p.ws.pending_ring);
  p.ws.pending_ring = -1;
  if (p.transient && !(p.rows != nullptr && p.rows->stores_rings)) return Status::ok();
  p.writes_rings();
  return m_.kernels->launch(p, list, l);
}

/// What the experts' host needs of a layer, on its way.
Status Forward::send_rows(Pass& p, uint32_t layer) const {
  const ExpertHandover& h = p.ws.experts;
  const uint32_t n_used = m_.spec().layers[layer].ffn.n_used;
  const auto fetch = [&](uint64_t to, const void* from, uint64_t bytes) {
    return p.ws.queue().copy(h.memory.data() + to, from, bytes, Way::kToHost, "rows for experts");
  };
  const uint64_t n = p.n_rows();
  SHARPI_TRY(fetch(h.layout.x, p.ws.get(Buf::kX), n * m_.spec().n_embd * sizeof(float)));
  SHARPI_TRY(fetch(h.layout.ids, p.ws.get(Buf::kMoeIds), n * n_used * sizeof(int32_t)));
  SHARPI_TRY(fetch(h.layout.weights, p.ws.get(Buf::kMoeWeight), n * n_used * sizeof(float)));
  return p.ws.queue().record(*h.sent, "rows for experts");
}

/// The host's answer to send_rows(). Rows of no session (a warm-up) want none.
Status Forward::ask_host(Pass& p, uint32_t layer) const {
  if (p.rows == nullptr) return Status::ok();
  const ExpertHandover& h = p.ws.experts;
  SHARPI_TRY(h.sent->wait("rows for experts"));
  const uint32_t n = p.n_rows() * m_.spec().layers[layer].ffn.n_used;
  auto* ids = h.at<int32_t>(h.layout.ids);
  const bool slots = m_.uses_slots(p.n_rows());
  if (slots) (void)leave_out_resident(*m_.experts, layer, ids, n);
  if (!p.rows->sequences.empty()) m_.experts->note(layer, ids, n, slots);  // not of a measurement
  return h.host->compute({layer, p.n_rows(), h.at<float>(h.layout.x), ids,
                          h.at<float>(h.layout.weights), h.at<float>(h.layout.y)});
}

std::vector<std::string> Forward::step_text(const Segment& segment) const {
  PassFacts f = step_facts(m_.spec(), m_.plan->placement, m_.plan->model.deterministic);
  f.expert_slots = m_.uses_slots(1);
  f.gates_apart = m_.plan->model.deterministic && m_.plan->model.adapter_rank != 0;
  return launch_text(m_.kernels->fuse(m_, segment.program, f, true));
}

std::string Forward::chain_path() const {
  const auto text_of = [](const char* rows, const ChainCounts& counts) -> std::string {
    const bool launched = counts.launched.load(std::memory_order_relaxed) != 0,
               apart = counts.apart.load(std::memory_order_relaxed) != 0;
    if (!launched && !apart) return {};
    const std::string text = std::string("; steps of ") + rows + ": ";
    if (!launched) return text + "launch by launch, no room for chains";
    return text + "fixed point, chained" +
           (apart ? ", in part launch by launch for want of room" : "");
  };
  return text_of("one row", chains_of_one_) + text_of("several rows", chains_of_several_);
}

}  // namespace sharpi::device
