// SPDX-License-Identifier: MIT
// replay_sequence.h with random numbers.
// SHARPI_REPLAY_SEQUENCES says how many sequences (10000), SHARPI_REPLAY_SEED the first one's seed.
#include <cstdio>
#include <cstdlib>

#include "engine/pcg32.h"
#include "replay_sequence.h"

namespace sharpi::testing {
namespace {

uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Replay, RandomSequencesOfCalls) {
  std::vector<Ready> ready;
  for (const Template& s : replay_templates()) ready.push_back(prepare_replay(s));
  for (const Ready& r : ready) ASSERT_TRUE(r.loaded.model) << r.name;
  const uint64_t n = number("SHARPI_REPLAY_SEQUENCES", 10000),
                 first = number("SHARPI_REPLAY_SEED", 1);
  for (uint64_t seed = first; seed < first + n; ++seed) {
    const Ready& r = ready[seed % ready.size()];
    SCOPED_TRACE(r.name + ", SHARPI_REPLAY_SEED=" + std::to_string(seed));
    Pcg32 random(seed);
    const Below below = [&](uint32_t of) { return static_cast<uint32_t>(random.uniform() * of); };
    uint32_t left = 6 + below(10);
    replay(r, below, [&] { return --left > 0; });
    ASSERT_FALSE(HasFailure());
  }
  uint64_t n_new = 0, n_meter = 0;
  for (const Ready& r : ready) {
    n_new += r.n_failed_new, n_meter += r.n_failed_meter;
    EXPECT_TRUE(!r.begin_long || r.n_shared > 0 || n < 1000) << r.name << " shared no rows";
  }
  std::printf("%llu sequences; %llu allocations failed of operator new, %llu of the meter\n",
              static_cast<unsigned long long>(n), static_cast<unsigned long long>(n_new),
              static_cast<unsigned long long>(n_meter));
  EXPECT_TRUE(n < 1000 || (n_new != 0 && n_meter != 0)) << "no allocation failed";
}

}  // namespace
}  // namespace sharpi::testing
