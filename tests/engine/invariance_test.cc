// SPDX-License-Identifier: MIT
// What must not change the numbers: chunking, threads, batch mates, and everything that is switched
// on beside the model.
#include "engine_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 230;  // wraps the rings of the windowed models (128 + 64 rows)
constexpr uint32_t kRows = 64;     // the last ones are compared
constexpr uint32_t kMates = 8;

Edit with(uint32_t n_chunk, bool deterministic) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = n_chunk;
    p->deterministic = deterministic;
    p->max_logit_rows = std::min(kRows, n_chunk);
    s->n_ctx = 512;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  };
}

class Invariance : public ModelTest {
 protected:
  std::vector<Logits> whole(const Loaded& l) const {
    const auto prompt = tokens(kPrompt);
    const uint32_t piece = l.plan_info.max_logit_rows;
    Chat chat(l.model.get());
    if (piece == kRows) {
      chat.prefill(prompt, kRows);
      return rows_of(chat, kRows);
    }
    chat.prefill(prompt.data(), kPrompt - kRows);
    return chat.all_logits(slice(prompt, kPrompt - kRows, kPrompt), piece);
  }
  /// The same rows when the prompt's head is read at once and the rest one token a call.
  std::vector<Logits> decoded(const Loaded& l) const {
    const auto prompt = tokens(kPrompt);
    Chat chat(l.model.get());
    chat.prefill(prompt.data(), kPrompt - kRows + 1);
    std::vector<Logits> out{chat.logits()};
    for (uint32_t i = kPrompt - kRows + 1; i < kPrompt; ++i) {
      chat.decode(prompt[i]);
      out.push_back(chat.logits());
    }
    return out;
  }
  /// Eight sessions that stand at different places of the prompt take three steps: together, or
  /// each alone.
  std::vector<Logits> steps(const Loaded& l, bool together) const {
    const auto prompt = tokens(kPrompt);
    std::vector<Chat> chats;
    std::vector<sharpi_session*> handles;
    for (uint32_t i = 0; i < kMates; ++i) {
      chats.emplace_back(l.model.get());
      chats.back().prefill(prompt.data(), 11 + 27 * i);
      handles.push_back(chats.back().get());
    }
    std::vector<Logits> out;
    for (uint32_t step = 0; step < 3; ++step) {
      std::vector<int32_t> next;
      for (uint32_t i = 0; i < kMates; ++i) next.push_back(prompt[11 + 27 * i + step]);
      sharpi_error e = SHARPI_ERROR_INIT;
      if (together) {
        EXPECT_EQ(sharpi_decode_batch(handles.data(), next.data(), kMates, &e), SHARPI_OK)
            << text_of(e);
      }
      for (uint32_t i = 0; i < kMates; ++i) {
        if (!together) chats[i].decode(next[i]);
        out.push_back(chats[i].logits());
      }
    }
    return out;
  }
};

struct Split {
  uint32_t n_chunk, n_threads;
};
constexpr Split kSplits[] = {{1, 2}, {7, 1}, {7, 3}, {64, 2}, {512, 1}, {512, 3}};

TEST_P(Invariance, DeterministicLogitsDoNotDependOnChunksOrThreads) {
  const std::vector<Logits> want = whole(load(path(), setup_with(with(512, true))));
  for (const Split& s : kSplits) {
    const Loaded l = load(path(), setup_with(with(s.n_chunk, true), s.n_threads));
    expect_same_rows(
        whole(l), want,
        "chunk " + std::to_string(s.n_chunk) + " threads " + std::to_string(s.n_threads));
  }
}

TEST_P(Invariance, DeterministicDecodeIsPrefill) {
  const Loaded l = load(path(), setup_with(with(512, true)));
  expect_same_rows(decoded(l), whole(l), "decode");
}

TEST_P(Invariance, DeterministicLogitsDoNotDependOnBatchMates) {
  const Loaded l = load(path(), setup_with(with(512, true)));
  expect_same_rows(steps(l, true), steps(l, false), "batch of 8");
}

/// `fast` arithmetic rounds activations, to other numbers of bits in chunks and in steps on some
/// processors. How far that takes the logits depends on the model: random weights amplify it, and
/// then a gap of 0.25 is less than the rounding. So every way is held against `exact` first; then
/// the argmax may not differ where the gap is above six times that distance (and above 0.25).
TEST_P(Invariance, ArgmaxDoesNotDependOnChunksThreadsOrDecode) {
  const std::vector<Logits> exact = whole(load(path(), setup_with([](auto* p, auto* s) {
                                                 with(512, false)(p, s);
                                                 p->arithmetic = SHARPI_ARITHMETIC_EXACT;
                                               })));
  const Loaded one = load(path(), setup_with(with(512, false)));
  std::vector<std::pair<std::string, std::vector<Logits>>> ways;
  for (const Split& s : kSplits) {
    ways.emplace_back(
        "chunk " + std::to_string(s.n_chunk) + " threads " + std::to_string(s.n_threads),
        whole(load(path(), setup_with(with(s.n_chunk, false), s.n_threads))));
  }
  ways.emplace_back("decode", decoded(one));
  ways.emplace_back("one chunk", whole(one));
  double distance = 0;
  for (const auto& [what, rows] : ways) {
    const double rms = rms_of(rows, &exact);
    EXPECT_LT(rms, 0.05 * rms_of(exact)) << what << ": far from exact arithmetic";
    distance = std::max(distance, rms);
  }
  const auto gap = static_cast<float>(std::max(0.25, 6 * distance));
  for (const auto& [what, rows] : ways) expect_same_argmax(rows, exact, what, gap);
}

TEST_P(Invariance, ArgmaxDoesNotDependOnBatchMates) {
  const Loaded l = load(path(), setup_with(with(512, false)));
  expect_same_argmax(steps(l, true), steps(l, false), "batch of 8");
}

TEST_P(Invariance, TheSameCallsGiveTheSameBits) {
  const Loaded l = load(path(), setup_with(with(64, false)));
  const std::vector<Logits> want = decoded(l);
  const Chat bystander(l.model.get());
  expect_same_rows(decoded(l), want, "again");
  expect_same_rows(decoded(load(path(), setup_with(with(64, false)))), want, "loaded again");
}

struct Beside {
  const char* name;
  Edit edit;
};

std::vector<Beside> beside() {
  using P = sharpi_plan_params*;
  using S = sharpi_session_params*;
  return {
      {"capture_window", [](P, S s) { s->capture_window = 64; }},
      {"prompt_budget", [](P, S s) { s->prompt_budget = kPrompt; }},
      {"kv_budget", [](P, S s) { s->kv_budget = 512; }},
      {"host_budget", [](P p, S) { p->host_budget = 1ull << 31; }},
      {"n_sessions",
       [](P p, S) {
         p->n_sessions = 3;
         p->max_concurrent = 2;
         p->max_batch = 2;
       }},
      {"n_ctx", [](P, S s) { s->n_ctx = 4096; }},
      {"checkpoints",
       [](P, S s) {
         s->n_checkpoints = 2;
         s->rewind = 0;
       }},
  };
}

TEST_P(Invariance, LogitsDoNotDependOnWhatIsSwitchedOnBeside) {
  const std::vector<Logits> want = decoded(load(path(), setup_with(with(64, false))));
  for (const Beside& b : beside()) {
    const Loaded l = load(path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                            with(64, false)(p, s);
                            b.edit(p, s);
                          }));
    ASSERT_TRUE(l.model) << b.name;
    const Chat bystander(l.model.get());
    expect_same_rows(decoded(l), want, b.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Invariance, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
