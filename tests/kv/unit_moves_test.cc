// SPDX-License-Identifier: MIT
// Units that change places: whatever the targets, every unit is where it belongs after the batches,
// each of which reads all that it moves before it writes any of it.
#include "kv/unit_moves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace sharpi {
namespace {

/// Units with numbers for contents, moved as a device does it, `piece` moves at a time.
std::vector<uint32_t> moved(const std::vector<uint32_t>& targets, size_t piece) {
  std::vector<uint32_t> used = targets, units(targets.size() + 1), read(UnitMoves::kBatch);
  std::iota(units.begin(), units.end(), 0u);
  UnitMoves moves(used);
  std::vector<UnitMove> out(piece);
  while (const size_t n = moves.next(out)) {
    for (size_t first = 0; first < n; first += UnitMoves::kBatch) {
      const size_t end = std::min(n, first + UnitMoves::kBatch);
      for (size_t i = first; i < end; ++i) {
        if (out[i].from != kNoUnit) read[i - first] = units.at(out[i].from);
      }
      for (size_t i = first; i < end; ++i) {
        if (out[i].from != kNoUnit) units.at(out[i].to) = read[i - first];
      }
    }
    if (n < piece) {
      EXPECT_EQ(moves.next(out), 0u) << "moves came after the end";
      break;
    }
  }
  return units;
}

void expect_moved(const std::vector<uint32_t>& targets, const char* what) {
  for (const size_t piece : {size_t{UnitMoves::kBatch}, size_t{4 * UnitMoves::kBatch}}) {
    const std::vector<uint32_t> units = moved(targets, piece);
    for (uint32_t i = 0; i < targets.size(); ++i) {
      if (targets[i] == kNoUnit) continue;
      ASSERT_EQ(units[targets[i]], i) << what << ", unit " << i;
    }
  }
}

TEST(UnitMoves, CyclesAndPathsOfAllLengths) {
  for (const uint32_t n : {1u, 2u, 3u, 255u, 256u, 257u, 300u, 511u, 512u, 513u, 2000u}) {
    std::vector<uint32_t> targets(n);
    for (uint32_t i = 0; i < n; ++i) targets[i] = (i + 1) % n;
    expect_moved(targets, "a cycle forward");
    for (uint32_t i = 0; i < n; ++i) targets[(i + 1) % n] = i;
    expect_moved(targets, "a cycle backward");
    for (uint32_t i = 0; i < n; ++i) targets[i] = i + 1 == n ? kNoUnit : i + 1;
    expect_moved(targets, "a path forward");
    for (uint32_t i = 0; i < n; ++i) targets[i] = i == 0 ? kNoUnit : i - 1;
    expect_moved(targets, "a path backward");
  }
  expect_moved({}, "none");
  expect_moved({kNoUnit, kNoUnit}, "nobody needs any");
}

TEST(UnitMoves, AnyTargets) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random()) % n; };
    std::vector<uint32_t> targets(1 + below(1500));
    std::iota(targets.begin(), targets.end(), 0u);
    if (seed % 3 != 0) {
      std::shuffle(targets.begin(), targets.end(), random);
    } else {  // many short cycles
      for (size_t i = 0; i + 4 < targets.size(); i += 1 + below(4))
        std::swap(targets[i], targets[i + 1]);
    }
    const uint32_t dropped = seed % 4 == 0 ? 0 : below(100);
    for (uint32_t& t : targets) {
      if (below(100) < dropped) t = kNoUnit;
    }
    expect_moved(targets, "random targets");
  }
}

}  // namespace
}  // namespace sharpi
