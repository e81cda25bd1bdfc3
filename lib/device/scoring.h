// SPDX-License-Identifier: MIT
// Scoring of a session's rows on the device: the observed queries of every layer that reads an
// owner's rows, in place. Results stay there for choosing rows (choosing.h), or go to pinned
// host memory, where the engine reads them. The scratch of a compaction holds what both need, sized
// once for a session's largest.
// Thread rule: a scratch has one owner (a compaction).
#pragma once

#include <vector>

#include "device/device.h"
#include "device/kernel_params.h"
#include "device/kernels.h"
#include "device/loaded_model.h"
#include "device/memory.h"
#include "device/session.h"
#include "tier/tier.h"

namespace sharpi::device {

/// Sizes of the parts. Results of a layer and its inputs are on device and host alike; only the
/// device has the terms that choosing reads and the kernels' own.
struct ScoreSizes {
  uint32_t n_layers = 0, n_lists = 0;  // that own rows here; their KV heads
  uint64_t row = 0, norms = 0;         // results
  uint64_t visible = 0, weights = 0;   // inputs of a layer
  uint64_t shared = 0;                 // largest terms by position
  uint64_t lists = 0;                  // what select_kernel reads; of a recall, two a KV head
  uint64_t held = 0;                   // terms of all layers
  uint64_t kernel = 0;
  /// Replay scores on the host: of a layer, or of all where rows can be kept by head and all layers
  /// are looked at once.
  uint64_t replay = 0;
  bool replay_of_all = false;
  uint64_t recall = 0, desk = 0, found = 0;  // what a recall has there in turn (recall.h)
  uint64_t results() const { return 2 * row + norms; }
  uint64_t inputs() const { return visible + weights; }
  uint64_t host() const {
    return results() + n_layers * inputs() + shared + lists + replay + 2 * desk + found;
  }
  uint64_t device() const { return results() + inputs() + shared + lists + held + recall + kernel; }
};

/// Where a layer's results go, [kv heads][n_slots] each.
struct ScoreOut {
  float *sum = nullptr, *max = nullptr, *norms = nullptr;
};

class DeviceScoreScratch final : public ScoreScratch {
 public:
  /// A layer that owns rows here.
  struct Layer {
    uint32_t layer = 0, n_heads = 0, first_list = 0;
    uint32_t n_observed = 0;  // terms in a sum; of the last scoring
    bool held = false;        // its terms are in held()
    /// Of a recall: the first of its heads' lists that are not chosen yet, and behind each of them
    /// the next head's.
    struct Waiting {
      std::byte* from = nullptr;
      uint32_t stride = 0;
    };
    Waiting waiting[2] = {};
  };
  std::vector<MemoryRow> memory_rows() const override;
  void finish() noexcept override;
  Layer* find(uint32_t layer);

  std::byte* results() const { return memory.data(); }
  ScoreOut result_rows() const {
    const auto row = [&](uint64_t i) {
      return reinterpret_cast<float*>(results() + i * sizes.row);
    };
    return {row(0), row(1), row(2)};
  }
  std::byte* inputs() const { return results() + sizes.results(); }
  float* shared() const { return reinterpret_cast<float*>(inputs() + sizes.inputs()); }
  std::byte* lists() const { return inputs() + sizes.inputs() + sizes.shared; }
  float* held(const Layer& l) const {
    return reinterpret_cast<float*>(lists() + sizes.lists) + uint64_t{l.first_list} * shape.n_slots;
  }
  std::byte* recall() const { return lists() + sizes.lists + sizes.held; }
  std::byte* kernel() const { return recall() + sizes.recall; }

  std::byte* host_inputs(size_t index) const {
    return host.data() + sizes.results() + index * sizes.inputs();
  }
  float* host_shared() const {
    return reinterpret_cast<float*>(host_inputs(0) + sizes.n_layers * sizes.inputs());
  }
  std::byte* host_lists() const {
    return reinterpret_cast<std::byte*>(host_shared()) + sizes.shared;
  }

  float* host_replay(const Layer& l) const {
    auto* first = reinterpret_cast<float*>(host_lists() + sizes.lists);
    return sizes.replay_of_all ? first + uint64_t{l.first_list} * shape.n_slots : first;
  }

  /// What launches of a recall are told, in two places in turn: one is written while the device
  /// works by the other. And what the host reads of a step of all layers.
  std::byte* desk(uint32_t turn) const { return found() - (2 - turn % 2) * sizes.desk; }
  std::byte* found() const { return host.data() + host.bytes() - sizes.found; }

  const Device* device = nullptr;
  const Queue* stream = nullptr;
  ScoreSizes sizes;
  DeviceBuffer memory;
  PinnedBuffer host;
  ScoreShape shape;
  std::vector<Layer> layers;
  std::unique_ptr<Event> sent[2];  // when a desk can be written again; of a recall's scratch
  uint32_t turn = 0;
  /// Of a step of a recall: the lists in host_lists(), those of them that wait to be chosen from,
  /// and what these take of recall().
  uint32_t n_lists = 0, first_waiting = 0;
  uint64_t waiting_end = 0;
  bool has_scores = false;  // of a recall: the device has them by position
  bool on_host = false;     // the terms of this compaction are held there (tier/choose_rows.cc)
};

/// What a scoring scratch takes.
std::vector<MemoryRow> score_rows(const Device& device, const ModelSpec& spec,
                                  const Placement& placement, const ScoreShape& shape);

class Scoring {
 public:
  explicit Scoring(const LoadedModel& model) : m_(model) {}
  Result<std::unique_ptr<ScoreScratch>> create_scratch(const ScoreShape& shape) const;
  std::vector<MemoryRow> scratch_rows(const ScoreShape& shape) const {
    return score_rows(*m_.device, m_.spec(), m_.plan->placement, shape);
  }
  /// TierModel::score().
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const;
  /// Visible rows and weights of the queries of a layer, on their way to the device, and what
  /// launches are told of them; `n_seen`: of each head, rows in front of the session's that every
  /// query sees, or null.
  Status send_queries(const DeviceSession& own, const ScoreRequest& request, DeviceScoreScratch& s,
                      const DeviceScoreScratch::Layer& layer, const uint32_t* n_seen,
                      ScoreParams* t) const;
  /// Whether queries of a layer look at the rows that `owner` has.
  bool reads(uint32_t layer, uint32_t owner) const {
    return layer == owner || m_.spec().layers[layer].kv_source() == static_cast<int32_t>(owner);
  }
  /// What they are told of layer `reader`, whose queries look at those rows.
  Status take_reader(const DeviceSession& own, const ScoreRequest& request, uint32_t reader,
                     ScoreParams* t) const;
  /// Sums, maxima and, if wanted, norms of a layer, on their way into device memory.
  Status start(DeviceSession& own, const ScoreRequest& request, DeviceScoreScratch& s,
               const ScoreOut& out) const;

 private:
  Status score_heads(DeviceSession& own, const ScoreRequest& request, ScoreParams t) const;
  Status read_sums(DeviceSession& own, const ScoreRequest& request, DeviceScoreScratch& s) const;
  Status read_replay(const DeviceSession& own, const ScoreRequest& request,
                     const DeviceScoreScratch& s, const DeviceScoreScratch::Layer& layer,
                     LayerScores* out) const;
  Status norms_of(DeviceSession& own, const ScoreRequest& request, NormParams v) const;
  const LoadedModel& m_;
};

}  // namespace sharpi::device
