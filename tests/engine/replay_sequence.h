// SPDX-License-Identifier: MIT
// Random sequences of calls on two sessions of one model. The first one gets every call, also those
// that are refused, fail or are cancelled, and is replaced by its fork or by its own saved form now
// and then; the second one gets only what succeeded. They stay the same bit for bit, a call that
// failed changed nothing, and no layer holds more rows than its memory. Forks live on beside the
// first one, whose rows they share, and stay as they were but for calls of their own. Both go back
// to what was saved earlier, draw with masks, biases and log-probabilities, read drafts (the
// host's, of their own text, of the MTP block) and take part in batches; allocations fail inside of
// calls. Thread rule: one sequence at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

struct Ready {
  std::string name;
  std::unique_ptr<MadeModel> file;
  Loaded loaded;
  bool bounded = false, drafts = false, begin_long = false;
  uint32_t n_ctx = 0;
  mutable uint64_t n_shared = 0;  // forks that shared rows so far
};

Ready prepare_replay(const Template& s);

/// A choice from 0 to n - 1.
using Below = std::function<uint32_t(uint32_t n)>;

/// Whatever is not as it should be fails the test. `more` is asked before every call but the first.
void replay(const Ready& ready, const Below& below, const std::function<bool()>& more);

}  // namespace sharpi::testing
