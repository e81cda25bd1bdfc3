// SPDX-License-Identifier: MIT
// Random sequences of calls on two sessions of one model. The first one gets every call, also those
// that are refused, fail or are cancelled, and is replaced by its fork or by its own saved form now
// and then; the second one gets only what succeeded. They stay the same bit for bit, a call that
// failed changed nothing, and no layer holds more rows than its memory. Forks live on beside the
// first one, whose rows they share, and stay as they were but for calls of their own. Both go back
// to what was saved earlier, draw with masks, biases and log-probabilities, read drafts (the
// host's, of their own text, of the MTP block) and take part in batches; allocations fail inside of
// calls, those of operator new and those that the memory meter counts. After every call the bytes
// that the library holds are those of the sessions' rows, counted thrice: by operator new, by the
// meter, by the model's allowance. Thread rule: one sequence at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "engine_case.h"

namespace sharpi::testing {

constexpr uint32_t kReplayVocab = 320, kReplayChunk = 8;

/// One model with a template; sequences take turns.
struct Template {
  const char* name;
  test::ModelRecipe recipe;
  std::function<void(sharpi_session_params*)> edit;
  bool drafts = false;
  uint32_t n_ctx = 96;
};

std::vector<Template> replay_templates();

/// What the library holds for sessions, in bytes of the host's memory.
struct Held {
  uint64_t by_new = 0, by_meter = 0, by_allowance = 0;
  bool operator==(const Held&) const = default;
};

struct Ready {
  std::string name;
  std::unique_ptr<MadeModel> file;
  Loaded loaded;
  bool bounded = false, drafts = false, begin_long = false;
  uint32_t n_ctx = 0;
  mutable uint64_t n_shared = 0;                          // forks that shared rows so far
  mutable uint64_t n_failed_new = 0, n_failed_meter = 0;  // allocations that failed in calls
  MemoryMeter& meter() const;
  Held held() const;
  uint64_t beside = 0;  // of operator new, small bookkeeping of a session that no row counts
};

Ready prepare_replay(const Template& s);

/// A choice from 0 to n - 1.
using Below = std::function<uint32_t(uint32_t n)>;

/// Whatever is not as it should be fails the test. `more` is asked before every call but the first.
void replay(const Ready& ready, const Below& below, const std::function<bool()>& more);

}  // namespace sharpi::testing
