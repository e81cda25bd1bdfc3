// SPDX-License-Identifier: MIT
// The forward pass of a GPU tier: a segment's operations as a list of launches, and the loop over
// it. Thread rule: as the pass; what was counted is atomic.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "device/launches.h"
#include "device/loaded_model.h"
#include "device/replay.h"

namespace sharpi::device {

class Forward {
 public:
  explicit Forward(const LoadedModel& model) : m_(model) {}
  Status run(const Segment& segment, Pass& p) const;
  /// TierModel::step_text().
  std::vector<std::string> step_text(const Segment& segment) const;
  /// Whether steps of few rows go in chains, in words.
  std::string chain_path() const;

 private:
  PassFacts facts(const Pass& p) const;
  Status launch(Pass& p, const LaunchList& list, const Launch& l) const;
  void note_rows(Pass& p, uint32_t layer) const;
  Status keep_ring(Pass& p, const LaunchList& list, Launch l) const;
  bool replays(const Pass& p) const;
  Status send_rows(Pass& p, uint32_t layer) const;
  Status ask_host(Pass& p, uint32_t layer) const;

  const LoadedModel& m_;
  const Replay replay_{m_};
  struct ChainCounts {  // of all recordings
    std::atomic<uint32_t> launched{0}, apart{0};
  };
  mutable ChainCounts chains_of_one_, chains_of_several_;
};

}  // namespace sharpi::device
