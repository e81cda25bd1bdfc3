// SPDX-License-Identifier: MIT
// How far the host runs ahead of a device in a long pass, who hears of its layers, and when it
// stops: with events that are no device's.
#include "device/layers_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sharpi::device {
namespace {

/// What a device would have done so far, if it came to an event only when somebody waits for it.
struct Log {
  std::vector<uint32_t> recorded;  // events, in order
  size_t n_reached = 0;
  size_t most_under_way = 0;
  int fails_at = -1;
};
struct FakeEvents {
  Log* log;
  Status record(uint32_t i) const {
    // An event that is recorded again before it was reached would forget a layer.
    const auto waiting = log->recorded.begin() + static_cast<std::ptrdiff_t>(log->n_reached);
    EXPECT_EQ(std::count(waiting, log->recorded.end(), i), 0) << "event " << i;
    log->recorded.push_back(i);
    log->most_under_way = std::max(log->most_under_way, log->recorded.size() - log->n_reached);
    return Status::ok();
  }
  Status wait(uint32_t i) const {
    EXPECT_EQ(log->recorded.at(log->n_reached), i) << "the oldest one first";
    if (static_cast<int>(log->n_reached) == log->fails_at)
      return Status::error(Code::kDevice, "an event failed");
    ++log->n_reached;
    return Status::ok();
  }
};

struct Heard final : PassProgress {
  std::vector<uint32_t> layers;
  uint32_t stop_at = UINT32_MAX;
  bool layer_done(uint32_t layer) override {
    layers.push_back(layer);
    return layer < stop_at;
  }
};

constexpr uint32_t kLayers = 11;

Status pass(Log* log, const std::atomic<bool>* cancel, PassProgress* progress,
            uint32_t* n_submitted) {
  LayersAhead<FakeEvents> ahead(FakeEvents{log}, cancel, progress);
  for (*n_submitted = 0; *n_submitted < kLayers; ++*n_submitted)
    SHARPI_TRY(ahead.submitted(3 + *n_submitted));
  return ahead.finish();
}

TEST(LayersAhead, TellsOfEveryLayerInOrderAndIsNeverFurtherAhead) {
  Log log;
  Heard heard;
  uint32_t n = 0;
  ASSERT_TRUE(pass(&log, nullptr, &heard, &n).is_ok());
  ASSERT_EQ(heard.layers.size(), kLayers);
  for (uint32_t i = 0; i < kLayers; ++i) EXPECT_EQ(heard.layers[i], 3 + i);
  EXPECT_EQ(log.n_reached, kLayers);
  EXPECT_EQ(log.most_under_way, kLayersAhead);
}

TEST(LayersAhead, StopsAFewLayersAfterItWasAskedTo) {
  std::atomic<bool> cancel{false};
  Log log;
  Heard heard;
  heard.stop_at = 5;
  uint32_t n = 0;
  const Status stopped = pass(&log, &cancel, &heard, &n);
  EXPECT_EQ(stopped.code(), Code::kCancelled);
  EXPECT_EQ(heard.layers.back(), 5u);
  EXPECT_EQ(n, 2 + kLayersAhead) << "layer 5 is the third; the next one that waits stops";
  cancel.store(true);
  log = {};
  EXPECT_EQ(pass(&log, &cancel, nullptr, &n).code(), Code::kCancelled);
  EXPECT_EQ(log.n_reached, 1u);
  EXPECT_EQ(n, kLayersAhead);
}

TEST(LayersAhead, FinishesWhatCannotBeTakenBack) {
  Log log;
  Heard heard;
  heard.stop_at = 0;
  uint32_t n = 0;
  EXPECT_TRUE(pass(&log, nullptr, &heard, &n).is_ok());
  EXPECT_EQ(log.n_reached, kLayers);
}

TEST(LayersAhead, SaysWhatAnEventSays) {
  std::atomic<bool> cancel{true};
  Log log;
  log.fails_at = 0;
  Heard heard;
  uint32_t n = 0;
  const Status failed = pass(&log, &cancel, &heard, &n);
  EXPECT_EQ(failed.code(), Code::kDevice);
  EXPECT_TRUE(heard.layers.empty());
}

}  // namespace
}  // namespace sharpi::device
