// SPDX-License-Identifier: MIT
// Prompts of several chunks over several posed devices: chunks are under way on all of them at
// once, whichever device is ahead, and leave the bits of one device. A pass that is cancelled or
// fails leaves whole chunks, and others get in between.
#include <algorithm>
#include <mutex>
#include <thread>

#include "device/several_devices.h"
#include "engine/engine_case.h"
#include "engine/mtp_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kChunk = 16;

void in_chunks(sharpi_plan_params* p, sharpi_session_params* s) {
  p->deterministic = 1;
  p->n_chunk = kChunk;
  p->n_sessions = 2;
  p->max_batch = 1;
  p->max_logit_rows = kChunk;
  with_checkpoints(p, s);
}
void in_chunks_without_queries(sharpi_plan_params* p, sharpi_session_params* s) {
  in_chunks(p, s);
  s->capture_window = 0;
}

std::vector<test::ModelRecipe> recipes() {
  return {with_layers(test::tiny_qwen3(), 4),
          test::tiny_gemma3(),
          test::tiny_gemma4moe(),
          test::tiny_qwen35(),
          test::tiny_qwen35moe(),
          with_layers(test::tiny_gpt_oss(), 4),
          test::tiny_granite(),
          test::tiny_nemotron_dense(),
          test::tiny_deepseek2()};
}

/// A call that reads a prompt, and what it did.
struct Prefilled {
  sharpi_status status = SHARPI_OK;
  uint32_t n = 0;
  std::string why;
};
Prefilled read(const Chat& chat, const std::vector<int32_t>& tokens,
               const sharpi_prefill_params* params = nullptr) {
  Prefilled out;
  sharpi_error e = SHARPI_ERROR_INIT;
  out.status = sharpi_session_prefill(chat.get(), tokens.data(),
                                      static_cast<uint32_t>(tokens.size()), params, &out.n, &e);
  out.why = e.text;
  return out;
}

class Pipelines : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void TearDown() override {
    host_faults().eager = host_faults().fails_on = 0;
    host_faults().fails_in = 0;
    host_faults().drops_waits = host_faults().fails_late = host_faults().throws = false;
  }
  bool has_window() const {
    return GetParam().arch.find("gemma") == 0 || GetParam().arch.find("gpt-oss") == 0;
  }
  int32_t n_layers() const { return static_cast<int32_t>(GetParam().n_layers); }
  /// Over two devices that reach each other, through pinned memory, and over three.
  std::vector<Ladder> over_devices() const {
    const int32_t n = n_layers(), half = n / 2;
    return {{{1, half}, {2, n - half}},
            {{2, half}, {3, n - half}},
            {{3, 1}, {1, 1}, {2, n - 2}},
            {{1, half}, {2, half - 1}, {3, n - 2 * half + 1}}};
  }
  Loaded one_device(const MadeModel& file, const Edit& edit = &in_chunks) const {
    return on_.load(file.path(), {{2, n_layers()}}, edit);
  }
  const RoomMachine machine_{three_cards()};
  const LadderMachine on_ = machine_.ladders();
};

TEST_P(Pipelines, GiveTheBitsOfOneDevice) {
  const MadeModel file(GetParam());
  const auto tokens = file.tokens(150);
  const Loaded one = one_device(file);
  EXPECT_FALSE(is_pipelined(one));
  const auto say = [&](const Loaded& l) {
    Chat chat(l.model.get());
    chat.prefill(slice(tokens, 0, 101), kChunk);  // rows of logits of two chunks
    std::vector<Logits> out = rows_of(chat, kChunk);
    chat.decode(7);
    out.push_back(chat.logits());
    chat.prefill(slice(tokens, 101, 149));
    for (const int32_t t : {3, 4}) chat.decode(t);
    out.push_back(chat.logits());
    return std::pair(out, saved(chat));
  };
  const auto want = say(one);
  for (const Ladder& ladder : over_devices()) {
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = on_.try_load(file.path(), ladder, &why, &in_chunks);
    if (!l.model) {
      ASSERT_TRUE(may_be_refused(why)) << why.text;
      continue;
    }
    EXPECT_TRUE(is_pipelined(l));
    for (const uint32_t eager : {0u, 1u, 2u, 3u}) {  // this device is ahead of the others
      host_faults().eager = eager;
      const auto got = say(l);
      expect_same_rows(got.first, want.first, text_of(ladder) + "ahead " + std::to_string(eager));
      EXPECT_TRUE(got.second == want.second) << text_of(ladder) << eager;
    }
  }
}

/// Chunks are under way at once: without the waits between devices they overwrite each other.
TEST_P(Pipelines, DevicesWaitForEachOther) {
  const MadeModel file(GetParam());
  const auto tokens = file.tokens(101);
  const int32_t half = n_layers() / 2;
  sharpi_error why = SHARPI_ERROR_INIT;
  const Loaded l = on_.try_load(file.path(), {{1, half}, {2, n_layers() - half}}, &why, &in_chunks);
  if (!l.model && may_be_refused(why)) GTEST_SKIP() << why.text;
  Chat chat(l.model.get()), wrong(l.model.get());
  chat.prefill(tokens);
  host_faults().drops_waits = true;
  host_faults().eager = 1;
  wrong.prefill(tokens);
  EXPECT_FALSE(same_bits(chat.logits(), wrong.logits()));
}

/// A callback that stops the call, or cancels the session, when so many tokens were read.
struct Stopper {
  uint64_t at = 0;
  sharpi_session* cancels = nullptr;
  std::vector<uint64_t> heard;
  static int32_t call(void* user, uint32_t, uint64_t done, uint64_t) {
    auto* self = static_cast<Stopper*>(user);
    self->heard.push_back(done);
    if (done < self->at) return 0;
    if (self->cancels == nullptr) return 1;
    sharpi_session_cancel(self->cancels);
    return 0;
  }
};

TEST_P(Pipelines, CancelsLeaveWholeChunks) {
  const MadeModel file(GetParam());
  const auto tokens = file.tokens(200);
  const Loaded one = one_device(file);
  for (const Ladder& ladder : over_devices()) {
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = on_.try_load(file.path(), ladder, &why, &in_chunks);
    if (!l.model) continue;
    for (const bool cancels : {false, true}) {
      Chat chat(l.model.get()), want(one.model.get());
      Stopper stop{3 * kChunk, cancels ? chat.get() : nullptr, {}};
      sharpi_prefill_params p;
      sharpi_prefill_params_init(&p, sizeof p);
      p.progress = &Stopper::call;
      p.user_data = &stop;
      const Prefilled got = read(chat, tokens, &p);
      EXPECT_EQ(got.status, SHARPI_E_CANCELLED) << text_of(ladder) << got.why;
      EXPECT_EQ(got.n % kChunk, 0u);
      EXPECT_GE(got.n, 3 * kChunk);
      EXPECT_LE(got.n, 8 * kChunk);  // what was under way is read
      EXPECT_EQ(stop.heard.front(), kChunk);
      ASSERT_EQ(chat.info().n_tokens, got.n);
      want.prefill(slice(tokens, 0, got.n));
      for (Chat* c : {&chat, &want}) c->prefill(slice(tokens, got.n, 200));
      EXPECT_TRUE(saved(chat) == saved(want)) << text_of(ladder);
    }
  }
}

/// Whichever copy a device refuses, in whichever chunk: the chunks in front count, the session goes
/// on from there, and says so where a window's rows were lost.
TEST_P(Pipelines, FailuresLeaveWholeChunks) {
  const MadeModel file(GetParam());
  const auto tokens = file.tokens(60);
  const Loaded one = one_device(file, &in_chunks_without_queries);
  const auto ladders = over_devices();
  for (const Ladder& ladder : {ladders.front(), ladders.back()}) {
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = on_.try_load(file.path(), ladder, &why, &in_chunks_without_queries);
    if (!l.model) continue;
    for (const auto& [device, n] : ladder) {
      for (int at = 1; at < 40; at += ladder.size() == 2 ? 1 : 4) {
        Chat chat(l.model.get());
        host_faults().fails_on = device;
        host_faults().fails_in = at;
        host_faults().throws = at % 3 == 0;
        const Prefilled got = read(chat, tokens);
        const bool failed = host_faults().fails_in == 0;
        host_faults().fails_on = 0;
        const std::string what = text_of(ladder) + "copy " + std::to_string(at) + " on " +
                                 std::to_string(device) + ": " + got.why;
        const sharpi_status expected = at % 3 == 0 ? SHARPI_E_OUT_OF_MEMORY : SHARPI_E_DEVICE;
        ASSERT_EQ(got.status, failed ? expected : SHARPI_OK) << what;
        EXPECT_EQ(chat.info().n_tokens, got.n) << what;
        if (!failed) break;
        EXPECT_EQ(got.n % kChunk, 0u) << what;
        Prefilled rest = read(chat, slice(tokens, got.n, 60));
        if (rest.status == SHARPI_E_STATE) {  // rows of a window are gone
          ASSERT_TRUE(has_window()) << what << rest.why;
          ASSERT_EQ(sharpi_session_truncate(chat.get(), 0, nullptr), SHARPI_OK);
          rest = read(chat, tokens);
        }
        ASSERT_EQ(rest.status, SHARPI_OK) << what << rest.why;
        Chat want(one.model.get());
        want.prefill(tokens);
        EXPECT_TRUE(same_bits(chat.logits(), want.logits())) << what;
        chat.decode(5), want.decode(5);
        EXPECT_TRUE(same_bits(chat.logits(), want.logits())) << what;
      }
    }
  }
}

/// A device that fails while it computes: chunks that had ended count, and nothing is computed from
/// a recurrent state that passes behind have overwritten.
TEST_P(Pipelines, LateFailuresAreTold) {
  const MadeModel file(GetParam());
  const auto tokens = file.tokens(100);
  const int32_t half = n_layers() / 2;
  sharpi_error why = SHARPI_ERROR_INIT;
  for (const uint32_t device : {1u, 2u}) {
    const RoomMachine machine(three_cards());  // a queue that failed does nothing any more
    const Loaded l = machine.ladders().try_load(file.path(), {{1, half}, {2, n_layers() - half}},
                                                &why, &in_chunks);
    if (!l.model && may_be_refused(why)) GTEST_SKIP() << why.text;
    Chat chat(l.model.get());
    host_faults().fails_on = device;
    host_faults().fails_in = 6;
    host_faults().fails_late = true;
    const Prefilled got = read(chat, tokens);
    ASSERT_EQ(host_faults().fails_in, 0);
    EXPECT_EQ(got.status, SHARPI_E_DEVICE) << got.why;
    EXPECT_GT(got.n, 0u);
    EXPECT_EQ(got.n % kChunk, 0u);
    EXPECT_EQ(chat.info().n_tokens, got.n);
    const Prefilled again = read(chat, tokens);
    const bool recurrent = GetParam().is_hybrid();
    if (!has_window()) {  // of which rings may still hold what is needed
      EXPECT_EQ(again.status, recurrent ? SHARPI_E_STATE : SHARPI_E_DEVICE) << again.why;
    }
    EXPECT_EQ(sharpi_session_truncate(chat.get(), 0, nullptr), SHARPI_OK);
    EXPECT_EQ(chat.info().n_tokens, 0u);
    EXPECT_EQ(read(chat, tokens).status, SHARPI_E_DEVICE);
  }
}

/// Prompts and steps of two sessions at once, with a workspace for each and with one that they
/// share: a prompt leaves it to whoever waits.
TEST_P(Pipelines, OthersGetInBetween) {
  const MadeModel file(GetParam());
  const int32_t half = n_layers() / 2;
  for (const uint32_t concurrent : {1u, 2u}) {
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l =
        on_.try_load(file.path(), {{1, half}, {2, n_layers() - half}}, &why, [&](auto* p, auto* s) {
          in_chunks(p, s);
          p->max_concurrent = concurrent;
        });
    if (!l.model && may_be_refused(why)) GTEST_SKIP() << why.text;
    const auto speak = [&](uint32_t seed) {
      Chat chat(l.model.get());
      for (int i = 0; i < 2; ++i) {
        chat.prefill(file.tokens(90, seed));
        for (int32_t t = 0; t < 6; ++t) chat.decode(3 + t);
      }
      return saved(chat);
    };
    const std::vector<char> want[] = {speak(1), speak(2)};
    for (int round = 0; round < 2; ++round) {
      std::vector<char> got[2];
      std::thread second([&] { got[1] = speak(2); });
      got[0] = speak(1);
      second.join();
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(got[i] == want[i]) << concurrent << round << i;
    }
  }
}

/// The block for multi-token prediction gets the hidden rows of each chunk: what it drafts behind a
/// prompt is what it drafts on one device, to the bit.
TEST(Pipeline, TheMtpBlockReadsEveryChunk) {
  test::ModelRecipe recipe = test::tiny_qwen35();
  ASSERT_NE(recipe.n_mtp, 0u);
  const RoomMachine machine(three_cards());
  const MadeModel file(recipe);
  const auto n = static_cast<int32_t>(recipe.n_layers);
  const auto tokens = file.tokens(150);
  const Edit by_block = [](auto* p, auto* s) {
    in_chunks(p, s);
    p->max_logit_rows = 8;
    s->n_draft = 8;
    s->drafters = SHARPI_DRAFT_MTP;
  };
  const auto say = [&](const Loaded& l) {
    Chat chat(l.model.get());
    Logits last;
    std::vector<int32_t> drafts;
    for (const size_t at : {0u, 101u}) {
      chat.prefill(slice(tokens, at, at == 0 ? 101 : 150));
      for (const int32_t d : drafts_of(chat, 7, 5, &last)) drafts.push_back(d);
    }
    return std::pair(drafts, last);
  };
  const auto want = say(machine.ladders().load(file.path(), {{2, n}}, by_block));
  EXPECT_EQ(want.first.size(), 10u);
  for (const Ladder& ladder : {Ladder{{1, 2}, {2, n - 2}}, Ladder{{3, 1}, {1, 1}, {2, n - 2}}}) {
    const Loaded l = machine.ladders().load(file.path(), ladder, by_block);
    EXPECT_TRUE(is_pipelined(l));
    for (const uint32_t eager : {0u, 1u, 2u}) {
      host_faults().eager = eager;
      const auto got = say(l);
      EXPECT_EQ(got.first, want.first) << text_of(ladder) << eager;
      EXPECT_TRUE(same_bits(got.second, want.second)) << text_of(ladder) << eager;
    }
    host_faults().eager = 0;
  }
}

/// A step has a device for itself while it computes there, so that calls at once are on different
/// devices; a prompt has none.
TEST(Pipeline, StepsTakeTurnsOnEachDevice) {
  const RoomMachine machine(three_cards());
  const MadeModel file(with_layers(test::tiny_qwen3(), 4));
  struct Seen {
    const RoomMachine& machine;
    int n = 0;
    bool is_free = true;
  };
  for (const Ladder& ladder : {Ladder{{2, 4}}, Ladder{{2, 2}, {1, 2}}}) {
    const Loaded l = machine.ladders().load(file.path(), ladder, [](auto* p, auto* s) {
      in_chunks(p, s);
      p->max_batch = 4;
    });
    Chat chat(l.model.get());
    chat.prefill(file.tokens(40));
    Seen seen{machine};
    sharpi_sample_params p;
    sharpi_sample_params_init(&p, sizeof p);
    p.user_data = &seen;
    p.meanwhile = [](void* user, int32_t) {  // while the first device of the route computes
      auto* s = static_cast<Seen*>(user);
      ++s->n;
      std::thread other([s] {
        std::unique_lock lock(s->machine.device(2).launch_mutex(), std::try_to_lock);
        s->is_free = lock.owns_lock();
      });
      other.join();
    };
    const int32_t token = 5;
    uint32_t n = 0;
    ASSERT_EQ(sharpi_session_verify(chat.get(), &token, 1, &p, &n, nullptr), SHARPI_OK);
    EXPECT_EQ(seen.n, 1);
    EXPECT_EQ(seen.is_free, ladder.size() == 1) << text_of(ladder);
  }
}

/// Bounded sessions compact between chunks, which ends a pipeline.
TEST_P(Pipelines, BoundedSessionsCompactAsOnOneDevice) {
  const MadeModel file(GetParam());
  const auto tokens = file.tokens(180);
  const Edit bounded = [](auto* p, auto* s) {
    in_chunks(p, s);
    s->kv_budget = 60;
  };
  sharpi_error why = SHARPI_ERROR_INIT;
  const Loaded one = on_.try_load(file.path(), {{2, n_layers()}}, &why, bounded);
  ASSERT_TRUE(one.model) << why.text;
  Chat want(one.model.get());
  want.prefill(tokens);
  want.decode(3);
  for (const Ladder& ladder : over_devices()) {
    const Loaded l = on_.try_load(file.path(), ladder, &why, bounded);
    if (!l.model) continue;
    Chat chat(l.model.get());
    chat.prefill(tokens);
    chat.decode(3);
    EXPECT_TRUE(saved(chat) == saved(want)) << text_of(ladder);
  }
}

/// Prompts behind a compaction that gave every head a count of rows of its own.
TEST_P(Pipelines, PromptsFollowRowsByHead) {
  const MadeModel file(GetParam());
  const auto tokens = file.tokens(170);
  const auto say = [&](const Loaded& l, uint32_t eager) {
    Chat chat(l.model.get());
    chat.prefill(slice(tokens, 0, 70));
    sharpi_compact_params c;
    sharpi_compact_params_init(&c, sizeof c);
    c.budget = 30;
    c.headroom = 150;
    c.layer_budget = SHARPI_LAYER_BUDGET_SHARED;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_compact(chat.get(), &c, nullptr, &e), SHARPI_OK) << e.text;
    host_faults().eager = eager;
    chat.prefill(slice(tokens, 70, 170), kChunk);
    chat.decode(3);
    host_faults().eager = 0;
    return saved(chat);
  };
  const std::vector<char> want = say(one_device(file), 0);
  for (const Ladder& ladder : over_devices()) {
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = on_.try_load(file.path(), ladder, &why, &in_chunks);
    if (!l.model && may_be_refused(why)) continue;
    for (const uint32_t eager : {0u, 1u})
      EXPECT_TRUE(say(l, eager) == want) << text_of(ladder) << eager;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Pipelines, ::testing::ValuesIn(recipes()), recipe_name);

}  // namespace
}  // namespace sharpi::testing
