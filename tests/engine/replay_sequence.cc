// SPDX-License-Identifier: MIT
#include "replay_sequence.h"

#include "replay_memory.h"
#include "replay_parts.h"

namespace sharpi::testing {
namespace {

class Sequence {
 public:
  Sequence(const Ready& ready, const Below& below)
      : ready_(ready), below_(below), memory_(ready), a_(fresh()), b_(fresh()) {}

  void run(const std::function<bool()>& more) {
    if (ready_.begin_long) read_a_block();
    do {
      one_call();
      check();
    } while (more() && !::testing::Test::HasFailure());
    if (!::testing::Test::HasFailure()) {
      EXPECT_TRUE(saved(a_) == saved(b_)) << "the sessions differ at the end";
    }
    check_kept();
    if (::testing::Test::HasFailure()) ADD_FAILURE() << log_;
  }

 private:
  Chat fresh() const {
    const LibraryCall in;
    return Chat(ready_.loaded.model.get());
  }
  uint32_t below(uint32_t n) { return below_(n); }
  bool chance(uint32_t percent) { return below(100) < percent; }
  void note(const std::string& what) { log_ += what + "; "; }

  /// On both, or on the first alone where it fails there.
  sharpi_status both(const std::string& what, const Call& call) { return both(what, call, call); }
  sharpi_status both(const std::string& what, const Call& call, const Call& second,
                     bool may_fail = true) {
    const State before(a_);
    sharpi_error e = SHARPI_ERROR_INIT, f = SHARPI_ERROR_INIT;
    Failure failure(ready_, below_, may_fail ? 8 : 0, 30);
    const sharpi_status s = in_library([&] { return call(a_.get(), &e); });
    const bool failed = failure.end();
    note(what + " " + std::to_string(s) + (failed ? " without memory" : ""));
    if (s != SHARPI_OK) {
      expect_same(before, State(a_), what + ": " + e.text);
      return s;
    }
    EXPECT_EQ(in_library([&] { return second(b_.get(), &f); }), SHARPI_OK)
        << what << ": " << f.text;
    return s;
  }

  void check() {
    memory_.check(a_, b_, kept_);
    const sharpi_session_summary a = a_.info(), b = b_.info();
    EXPECT_EQ(a.n_tokens, b.n_tokens);
    EXPECT_EQ(a.n_logit_rows, b.n_logit_rows);
    EXPECT_EQ(a.n_slots_min, b.n_slots_min);
    EXPECT_EQ(a.n_slots_max, b.n_slots_max);
    EXPECT_EQ(a.capacity, b.capacity);
    EXPECT_EQ(reachable(a_), reachable(b_));
    EXPECT_EQ(history(a_), history(b_));
    EXPECT_LE(a.n_slots_max, a.capacity);
    for (uint32_t l = 0; l < 2; ++l) {
      sharpi_layer_info info{};
      info.struct_size = sizeof info;
      ASSERT_EQ(sharpi_session_layer(a_.get(), l, &info, nullptr), SHARPI_OK);
      EXPECT_LE(info.n_slots, info.capacity) << "layer " << l;
    }
    if (a.n_logit_rows != 0 && b.n_logit_rows != 0) {
      EXPECT_TRUE(same_bits(a_.logits(), b_.logits()));
    }
  }

  void one_call() {
    switch (below(18)) {
      case 0:
      case 1:
      case 2:
        return prefill();
      case 3:
      case 4:
        return decode();
      case 5:
      case 6:
        return ready_.drafts && chance(50) ? verify() : step();
      case 7:
      case 8:
        return compact();
      case 9:
        return truncate();
      case 10:
        both("checkpoint", [pin = below(4) == 0 ? 1u : 0u](auto* s, auto* e) {
          return sharpi_session_checkpoint(s, pin, e);
        });
        return;
      case 11:
        return fork();
      case 12:
        return restore();
      case 13:
        return go_back_to_saved();
      case 14:
        return use_fork();
      case 15:
        return batch();
      case 16:
        both("reserve",
             [n = 1 + below(120)](auto* s, auto* e) { return sharpi_session_reserve(s, n, e); });
        return;
      default:
        return nonsense();
    }
  }

  std::vector<int32_t> tokens(uint32_t n) {
    std::vector<int32_t> out(n);
    for (int32_t& t : out) t = static_cast<int32_t>(below(kReplayVocab));
    return out;
  }

  void cancel_before(uint32_t percent) {
    if (!chance(percent)) return;
    note("cancel");
    sharpi_session_cancel(a_.get());
    if (!chance(25)) return;
    note("resume");
    sharpi_session_resume(a_.get());
  }

  /// The second session reads the chunks that a cancelled call has committed; a bounded one, which
  /// looks at the whole prompt first, is cancelled alike.
  void prefill() {
    const std::vector<int32_t> t = tokens(1 + below(34));
    const auto n = static_cast<uint32_t>(t.size());
    sharpi_prefill_params p;
    sharpi_prefill_params_init(&p, sizeof p);
    p.n_logit_rows = std::min(n, 1 + below(3));
    p.flags =
        (chance(10) ? SHARPI_PREFILL_CHECKPOINT : 0u) | (chance(30) ? SHARPI_PREFILL_MORE : 0u);
    Stopper stopper{a_.get(), chance(30) ? 1 + below(3) : 0, 0, chance(50)};
    p.progress = stop;
    p.user_data = &stopper;
    cancel_before(15);
    const State before(a_);
    sharpi_error e = SHARPI_ERROR_INIT;
    uint32_t committed = 0, again = 0;
    const sharpi_status s = in_library(
        [&] { return sharpi_session_prefill(a_.get(), t.data(), n, &p, &committed, &e); });
    note("prefill " + std::to_string(n) + " " + std::to_string(s) + " of it " +
         std::to_string(committed));
    if (s == SHARPI_OK)
      sharpi_session_resume(a_.get());  // a cancel that came after the last chance
    if (committed == 0) return expect_same(before, State(a_), std::string("prefill: ") + e.text);
    if (s != SHARPI_OK && !ready_.bounded && committed < n) {
      EXPECT_EQ(committed % kReplayChunk, 0u);
      p.n_logit_rows = 0;
      p.flags = SHARPI_PREFILL_MORE;
      stopper = {};
      const LibraryCall in;
      EXPECT_EQ(sharpi_session_prefill(b_.get(), t.data(), committed, &p, &again, &e), SHARPI_OK);
      return;
    }
    stopper.n_calls = 0;
    stopper.session = b_.get();
    const LibraryCall in;
    EXPECT_EQ(sharpi_session_prefill(b_.get(), t.data(), n, &p, &again, &e), s) << e.text;
    EXPECT_EQ(again, committed);
    sharpi_session_resume(b_.get());
  }

  /// More than a block of 64 rows, so that forks have something to share.
  void read_a_block() {
    const std::vector<int32_t> t = tokens(66 + below(40));
    const LibraryCall in;
    for (const Chat* c : {&a_, &b_}) {
      ASSERT_EQ(sharpi_session_prefill(c->get(), t.data(), static_cast<uint32_t>(t.size()), nullptr,
                                       nullptr, nullptr),
                SHARPI_OK);
    }
  }

  void decode() {
    for (const int32_t t : tokens(1 + below(12))) {
      cancel_before(8);
      if (both("decode", [=](auto* s, auto* e) { return sharpi_session_decode(s, t, e); }) !=
          SHARPI_OK)
        return;
    }
  }

  void set_sampler() {
    int32_t token = 0;
    float value = 0;
    const sharpi_sampler_params p = make_sampler(below_, &token, &value);
    both("sampler", [&](auto* s, auto* e) { return sharpi_session_set_sampler(s, &p, e); });
  }

  /// The second session draws and reads one by one what a step of the first gave.
  void step() {
    if (chance(40)) set_sampler();
    for (uint32_t i = 1 + below(6); i > 0; --i) {
      cancel_before(8);
      const Draw d = make_draw(below_, 1);
      const uint32_t cap = 1 + below(6);
      std::vector<int32_t> got(cap, -1);
      std::vector<sharpi_logprob> told;
      uint32_t n = 0;
      const sharpi_sample_params all = d.params(0, cap, &told);
      const Call a = [&](auto* s, auto* e) {
        return sharpi_session_step(s, &all, got.data(), cap, &n, e);
      };
      const Call b = [&](auto* s, auto* e) {
        return read_again(s, ready_.loaded.model.get(), {got.data(), n}, d, told, e);
      };
      if (both("step of " + std::to_string(cap), a, b) != SHARPI_OK) return;
    }
  }

  /// The first session reads drafts, some of which are what it would draw; the second one draws and
  /// decodes the tokens that were read.
  void verify() {
    sharpi_session* twin = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    if (a_.info().n_logit_rows == 0) return;
    in_library([&] { return sharpi_session_fork(b_.get(), &twin, &e); });
    ASSERT_NE(twin, nullptr) << e.text;
    const Chat oracle(SessionPtr(twin), kReplayVocab);
    std::vector<int32_t> t;
    const Draw d = make_draw(below_, 5);
    std::vector<sharpi_logprob> told, told_again;
    for (uint32_t i = 0; i <= below(5); ++i) {
      int32_t next = static_cast<int32_t>(below(kReplayVocab));
      if (i == 0 || chance(80)) {
        const sharpi_sample_params p = d.params(i == 0 ? 0 : i - 1, 1, &told);
        const LibraryCall in;
        if (sharpi_session_sample(oracle.get(), i == 0 ? nullptr : &p, &next, &e) != SHARPI_OK)
          break;
      }
      t.push_back(next);
      const LibraryCall in;
      if (sharpi_session_decode(oracle.get(), next, &e) != SHARPI_OK) break;
    }
    if (t.empty()) return;
    int32_t first = -1;
    const Call sample = [&](auto* s, auto* err) {
      return sharpi_session_sample(s, nullptr, &first, err);
    };
    if (both("sample", sample) != SHARPI_OK) return;
    t[0] = first;
    cancel_before(8);
    const State before(a_);
    uint32_t read = 0;
    const sharpi_sample_params p = d.params(0, t.size() - 1, &told);
    Failure failure(ready_, below_, 8, 30);
    const auto n = static_cast<uint32_t>(t.size());
    sharpi_batch_read one{a_.get(), t.data(), n, 0, &p};
    const bool batch = chance(40) && !ready_.bounded;  // these stay compacted, as the header says
    const sharpi_status s = in_library([&] {
      return batch ? sharpi_verify_batch(&one, sizeof one, 1, &e)
                   : sharpi_session_verify(a_.get(), t.data(), n, &p, &read, &e);
    });
    if (batch) read = one.n_read;
    failure.end();
    note("verify " + std::to_string(t.size()) + " " + std::to_string(s) + " of it " +
         std::to_string(read));
    if (s != SHARPI_OK) return expect_same(before, State(a_), std::string("verify: ") + e.text);
    for (uint32_t i = 0; i < read; ++i) {
      const LibraryCall in;
      int32_t drawn = t[0];
      if (i > 0) {
        const sharpi_sample_params one = d.params(i - 1, 1, &told_again);
        ASSERT_EQ(sharpi_session_sample(b_.get(), &one, &drawn, &e), SHARPI_OK) << e.text;
        const auto from = told.begin() + (i - 1) * d.n_logprobs;
        expect_same_logprobs({from, from + d.n_logprobs}, told_again);
      }
      EXPECT_EQ(drawn, t[i]);
      ASSERT_EQ(sharpi_session_decode(b_.get(), drawn, &e), SHARPI_OK) << e.text;
    }
  }

  void compact() {
    const Compaction compaction(below_, a_.info().n_slots_max);
    sharpi_compact_params p = compaction.params();
    Stopper stopper{a_.get(), chance(25) ? 1 + below(3) : 0, 0, chance(50)};
    p.progress = stop;
    p.user_data = &stopper;
    cancel_before(10);
    both("compact by " + std::to_string(p.policy) + " to " + std::to_string(p.budget),
         [&](auto* s, auto* e) {
           stopper.session = s;
           stopper.n_calls = 0;
           return sharpi_session_compact(s, &p, nullptr, e);
         });
    sharpi_session_resume(a_.get());
    sharpi_session_resume(b_.get());
  }

  void truncate() {
    const std::vector<uint32_t> lengths = reachable(a_);
    uint32_t n = below(a_.info().n_tokens + 2);
    if (chance(60)) n = lengths[below(static_cast<uint32_t>(lengths.size()))];
    if (chance(10)) n = 0;
    both("truncate to " + std::to_string(n),
         [=](auto* s, auto* e) { return sharpi_session_truncate(s, n, e); });
  }

  void fork() {
    sharpi_session* twin = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    const State before(a_);
    Failure failure(ready_, below_, 15, 60);
    const sharpi_status s = in_library([&] { return sharpi_session_fork(a_.get(), &twin, &e); });
    const bool failed = failure.end();
    note("fork " + std::to_string(s));
    if (s != SHARPI_OK) {
      EXPECT_TRUE(failed && s == SHARPI_E_OUT_OF_MEMORY) << e.text;
      return expect_same(before, State(a_), "fork");
    }
    if (a_.info().kv_shared_bytes != 0) ++ready_.n_shared;
    // Whoever stays behind shares rows with a_, reads a little of its own, and is left alone.
    if (chance(50)) {
      a_ = Chat(SessionPtr(twin), kReplayVocab);
      return;
    }
    Chat kept(SessionPtr(twin), kReplayVocab);
    in_library([&] { return sharpi_session_decode(kept.get(), 7, nullptr); });
    kept_blobs_.push_back(saved(kept));
    kept_.push_back(std::move(kept));
  }
  /// A fork does something of its own, which no other session sees, or goes.
  void use_fork() {
    if (kept_.empty()) return;
    const size_t i = below(static_cast<uint32_t>(kept_.size()));
    sharpi_session* s = kept_[i].get();
    EXPECT_TRUE(saved(kept_[i]) == kept_blobs_[i]) << "a fork changed";
    const State before(a_);
    const uint32_t what = below(6);
    note("a fork by " + std::to_string(what));
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.budget = 1 + below(40), p.recency = 0, p.layer_budget = below(4), p.headroom = below(40);
    const std::vector<int32_t> t = tokens(1 + below(20));
    const auto n = static_cast<uint32_t>(t.size());
    const uint32_t cut = below(kept_[i].info().n_tokens + 1);
    Failure failure(ready_, below_, 15, 30);
    in_library([&] {
      if (what == 0) sharpi_session_truncate(s, cut, nullptr);
      if (what == 1) sharpi_session_prefill(s, t.data(), n, nullptr, nullptr, nullptr);
      if (what == 2) sharpi_session_compact(s, &p, nullptr, nullptr);
      if (what == 3) sharpi_session_restore(s, before.blob.data(), before.blob.size(), nullptr);
      int32_t drawn[4];
      uint32_t got = 0;
      if (what == 4) sharpi_session_step(s, nullptr, drawn, 4, &got, nullptr);
    });
    failure.end();
    if (what == 5) {
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_blobs_.erase(kept_blobs_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      kept_blobs_[i] = saved(kept_[i]);
    }
    State after(a_);
    after.info.kv_shared_bytes = before.info.kv_shared_bytes;  // the one thing that others change
    expect_same(before, after, "a call on a fork");
  }
  void check_kept() {
    for (size_t i = 0; i < kept_.size(); ++i)
      EXPECT_TRUE(saved(kept_[i]) == kept_blobs_[i]) << "a fork changed";
  }

  /// Both with a fork of theirs in one batch; models whose bits do not depend on batch mates read
  /// one by one in the second one.
  void batch() {
    sharpi_session *x = nullptr, *y = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    in_library([&] {
      sharpi_session_fork(a_.get(), &x, &e);
      sharpi_session_fork(b_.get(), &y, &e);
    });
    ASSERT_TRUE(x != nullptr && y != nullptr) << e.text;
    Chat mate(SessionPtr(x), kReplayVocab), other(SessionPtr(y), kReplayVocab);
    const std::vector<int32_t> t = tokens(2);
    if (chance(50)) {
      const LibraryCall in;
      sharpi_session_decode(x, 5, nullptr), sharpi_session_decode(y, 5, nullptr);
    }
    const State mate_before(mate);
    // Bounded sessions that made room before another one failed stay compacted, as the header says.
    if (!ready_.bounded) cancel_before(10);
    const Call a = [&](auto* s, auto* err) {
      sharpi_session* two[] = {s, x};
      return sharpi_decode_batch(two, t.data(), 2, err);
    };
    const Call b = [&](auto* s, auto* err) {
      sharpi_session* two[] = {s, y};
      if (!ready_.drafts) return sharpi_decode_batch(two, t.data(), 2, err);
      const sharpi_status one = sharpi_session_decode(s, t[0], err);
      return one != SHARPI_OK ? one : sharpi_session_decode(y, t[1], err);
    };
    StepsTogether steps(below_, x, y, ready_.loaded.model.get());
    const sharpi_status s = ready_.drafts && chance(60) ? both("steps together", steps.give(),
                                                               steps.read(), !ready_.bounded)
                                                        : both("batch", a, b, !ready_.bounded);
    if (s != SHARPI_OK) {
      return expect_same(mate_before, State(mate), "a batch");
    }
    EXPECT_TRUE(saved(mate) == saved(other)) << "mates of a batch differ";
  }

  /// The session's own saved form, in its place. Bounded sessions with a probe are left alone: what
  /// they remember of it is not saved.
  void restore() {
    if (ready_.name.find("probe") != std::string::npos) return;
    if (chance(40)) old_ = saved(b_);
    std::vector<char> blob = saved(a_);
    const bool harm = chance(30);
    if (harm) blob[below(static_cast<uint32_t>(blob.size()))] ^= static_cast<char>(1 + below(255));
    const State before(a_);
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status s =
        in_library([&] { return sharpi_session_restore(a_.get(), blob.data(), blob.size(), &e); });
    note("restore " + std::to_string(s));
    EXPECT_EQ(s != SHARPI_OK, harm) << e.text;
    EXPECT_TRUE(before.blob == saved(a_)) << "restoring changed something";
  }

  /// Both to a form that was saved earlier, in pieces; a source that fails is refused or, where it
  /// fails the second time, leaves an empty session.
  void go_back_to_saved() {
    if (old_.empty()) return;
    Source source{&old_, chance(30) ? below(40) : UINT32_MAX};
    const State before(a_);
    sharpi_error e = SHARPI_ERROR_INIT;
    Failure failure(ready_, below_, 20, 40);
    const sharpi_status s = in_library(
        [&] { return sharpi_session_restore_from(a_.get(), Source::read, &source, &e); });
    const bool failed = failure.end();
    note("back " + std::to_string(s) + " in pass " + std::to_string(source.pass));
    if (s != SHARPI_OK) {
      const bool full = s == SHARPI_E_KV_FULL && e.native_code == SHARPI_KV_FULL_SLOTS;
      EXPECT_TRUE(s == SHARPI_E_IO || full || (failed && s == SHARPI_E_OUT_OF_MEMORY)) << e.text;
      // The head is read a second time before anything changes.
      if (s != SHARPI_E_IO || source.pass < 3 || a_.info().n_tokens != 0)
        return expect_same(before, State(a_), "a restore that failed");
      const LibraryCall in;
      if (sharpi_session_restore(a_.get(), old_.data(), old_.size(), &e) != SHARPI_OK) {
        ADD_FAILURE() << e.text;
      }
    }
    const LibraryCall in;
    ASSERT_EQ(sharpi_session_restore(b_.get(), old_.data(), old_.size(), &e), SHARPI_OK) << e.text;
    EXPECT_TRUE(saved(a_) == old_) << "not what was saved";
  }

  void nonsense() {
    const int32_t bad = kReplayVocab;
    const std::vector<int32_t> many = tokens(ready_.n_ctx + 1);
    uint32_t n = 0;
    const bool refuses = !ready_.bounded;
    const auto expect_refused = [&](const char* what, const Call& call) {
      EXPECT_NE(both(what, call), SHARPI_OK) << what;
    };
    expect_refused("a bad token",
                   [&](auto* s, auto* e) { return sharpi_session_decode(s, bad, e); });
    if (refuses) {
      expect_refused("a long prompt", [&](auto* s, auto* e) {
        return sharpi_session_prefill(s, many.data(), ready_.n_ctx + 1, nullptr, &n, e);
      });
    }
    const uint32_t ahead = a_.info().n_tokens + 1;
    expect_refused("a length ahead",
                   [=](auto* x, auto* e) { return sharpi_session_truncate(x, ahead, e); });
  }

  const Ready& ready_;
  const Below& below_;
  SessionBytes memory_;
  Chat a_, b_;
  std::vector<Chat> kept_;
  std::vector<std::vector<char>> kept_blobs_;
  std::vector<char> old_;  // a form of both, some calls ago
  std::string log_;
};

}  // namespace

void replay(const Ready& ready, const Below& below, const std::function<bool()>& more) {
  const Held before = ready.held();
  Sequence(ready, below).run(more);
  EXPECT_EQ(ready.held(), before) << "sessions that are gone";
}

}  // namespace sharpi::testing
