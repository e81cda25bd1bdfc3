// SPDX-License-Identifier: MIT
// replay_sequence.h with random numbers.
// SHARPI_REPLAY_SEQUENCES says how many sequences (10000), SHARPI_REPLAY_SEED the first one's seed.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/pcg32.h"
#include "replay_sequence.h"

namespace sharpi::testing {
namespace {

uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// One case for each template; a seed belongs to one of them.
class Replay : public ::testing::TestWithParam<size_t> {
 protected:
  static void SetUpTestSuite() { ran_ = failed_new_ = failed_meter_ = 0; }
  static void TearDownTestSuite() {
    if (ran_ != replay_templates().size()) return;  // some were left out
    std::printf("%llu allocations failed of operator new, %llu of the meter\n",
                static_cast<unsigned long long>(failed_new_),
                static_cast<unsigned long long>(failed_meter_));
    EXPECT_TRUE(count() < 1000 || (failed_new_ != 0 && failed_meter_ != 0))
        << "no allocation failed";
  }
  static uint64_t count() { return number("SHARPI_REPLAY_SEQUENCES", 10000); }
  static inline uint64_t ran_ = 0, failed_new_ = 0, failed_meter_ = 0;
};

TEST_P(Replay, RandomSequencesOfCalls) {
  const std::vector<Template> all = replay_templates();
  const Ready r = prepare_replay(all[GetParam()]);
  ASSERT_TRUE(r.loaded.model) << r.name;
  const uint64_t n = count(), first = number("SHARPI_REPLAY_SEED", 1);
  for (uint64_t seed = first; seed < first + n; ++seed) {
    if (seed % all.size() != GetParam()) continue;
    SCOPED_TRACE(r.name + ", SHARPI_REPLAY_SEED=" + std::to_string(seed));
    Pcg32 random(seed);
    const Below below = [&](uint32_t of) { return static_cast<uint32_t>(random.uniform() * of); };
    uint32_t left = 6 + below(10);
    replay(r, below, [&] { return --left > 0; });
    ASSERT_FALSE(HasFailure());
  }
  ++ran_, failed_new_ += r.n_failed_new, failed_meter_ += r.n_failed_meter;
  EXPECT_TRUE(!r.begin_long || r.n_shared > 0 || n < 1000) << r.name << " shared no rows";
}

std::string template_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = replay_templates()[info.param].name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Templates, Replay, ::testing::Range(size_t{0}, replay_templates().size()),
                         template_name);

}  // namespace
}  // namespace sharpi::testing
