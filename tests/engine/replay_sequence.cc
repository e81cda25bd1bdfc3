// SPDX-License-Identifier: MIT
#include "replay_sequence.h"

#include <array>

#include "support/failing_new.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kVocab = 320, kCtx = 96, kChunk = 8;

test::ModelRecipe smallest(test::ModelRecipe r) {
  r.n_layers = 2;
  r.n_embd = r.d_ff = 32;
  r.n_vocab = kVocab;
  r.n_ctx = 256;
  r.n_heads = 2;
  r.n_kv_heads = 1;
  r.window = 12;
  r.global_every = r.attention_every = 2;
  r.n_shared_kv = 0;
  r.n_kv_heads_global = 1;
  r.n_mtp = 0;
  return r;
}

/// What a call may not change unless it says so.
struct State {
  explicit State(const Chat& c) : blob(saved(c)), lengths(reachable(c)), info(c.info()) {}
  std::vector<char> blob;
  std::vector<uint32_t> lengths;
  sharpi_session_summary info;
};

using Call = std::function<sharpi_status(sharpi_session*, sharpi_error*)>;

struct Stopper {
  sharpi_session* session = nullptr;
  uint32_t at = 0, n_calls = 0;
  bool by_cancel = false;
};
int32_t stop(void* user, uint32_t, uint64_t, uint64_t) {
  auto* s = static_cast<Stopper*>(user);
  if (++s->n_calls != s->at) return 0;
  if (s->by_cancel) sharpi_session_cancel(s->session);
  return s->by_cancel ? 0 : 1;
}

class Sequence {
 public:
  Sequence(const Ready& ready, const Below& below)
      : ready_(ready), below_(below), a_(ready.loaded.model.get()), b_(ready.loaded.model.get()) {}

  void run(const std::function<bool()>& more) {
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
  uint32_t below(uint32_t n) { return below_(n); }
  bool chance(uint32_t percent) { return below(100) < percent; }
  void note(const std::string& what) { log_ += what + "; "; }

  /// On both, or on the first alone where it fails there.
  sharpi_status both(const std::string& what, const Call& call) {
    const State before(a_);
    sharpi_error e = SHARPI_ERROR_INIT, f = SHARPI_ERROR_INIT;
    const uint32_t nth = chance(8) ? 1 + below(30) : 0;
    fail_new(static_cast<int>(nth));
    const sharpi_status s = call(a_.get(), &e);
    const bool failed = nth != 0 && !new_pending();
    fail_new(0);
    note(what + " " + std::to_string(s) + (failed ? " without memory" : ""));
    if (s != SHARPI_OK) {
      expect_same(before, State(a_), what + ": " + e.text);
      return s;
    }
    EXPECT_EQ(call(b_.get(), &f), SHARPI_OK) << what << ": " << f.text;
    return s;
  }

  static void expect_same(const State& x, const State& y, const std::string& what) {
    EXPECT_TRUE(x.blob == y.blob) << what << ": the saved form changed";
    EXPECT_EQ(x.lengths, y.lengths) << what;
    EXPECT_EQ(std::memcmp(&x.info, &y.info, sizeof x.info), 0) << what << ": the summary changed";
  }

  void check() {
    const sharpi_session_summary a = a_.info(), b = b_.info();
    EXPECT_EQ(a.n_tokens, b.n_tokens);
    EXPECT_EQ(a.n_logit_rows, b.n_logit_rows);
    EXPECT_EQ(a.n_slots_min, b.n_slots_min);
    EXPECT_EQ(a.n_slots_max, b.n_slots_max);
    EXPECT_EQ(a.capacity, b.capacity);
    EXPECT_EQ(reachable(a_), reachable(b_));
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
    switch (below(14)) {
      case 0:
      case 1:
      case 2:
        return prefill();
      case 3:
      case 4:
        return decode();
      case 5:
        return ready_.drafts && chance(70) ? verify() : step();
      case 6:
      case 7:
        return compact();
      case 8:
        return truncate();
      case 9:
        both("checkpoint", [pin = below(4) == 0 ? 1u : 0u](auto* s, auto* e) {
          return sharpi_session_checkpoint(s, pin, e);
        });
        return;
      case 10:
        return fork();
      case 11:
        return restore();
      case 12:
        both("reserve",
             [n = 1 + below(120)](auto* s, auto* e) { return sharpi_session_reserve(s, n, e); });
        return;
      default:
        return nonsense();
    }
  }

  std::vector<int32_t> tokens(uint32_t n) {
    std::vector<int32_t> out(n);
    for (int32_t& t : out) t = static_cast<int32_t>(below(kVocab));
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
    const sharpi_status s = sharpi_session_prefill(a_.get(), t.data(), n, &p, &committed, &e);
    note("prefill " + std::to_string(n) + " " + std::to_string(s) + " of it " +
         std::to_string(committed));
    if (s == SHARPI_OK)
      sharpi_session_resume(a_.get());  // a cancel that came after the last chance
    if (committed == 0) return expect_same(before, State(a_), std::string("prefill: ") + e.text);
    if (s != SHARPI_OK && !ready_.bounded && committed < n) {
      EXPECT_EQ(committed % kChunk, 0u);
      p.n_logit_rows = 0;
      p.flags = SHARPI_PREFILL_MORE;
      stopper = {};
      EXPECT_EQ(sharpi_session_prefill(b_.get(), t.data(), committed, &p, &again, &e), SHARPI_OK);
      return;
    }
    stopper.n_calls = 0;
    stopper.session = b_.get();
    EXPECT_EQ(sharpi_session_prefill(b_.get(), t.data(), n, &p, &again, &e), s) << e.text;
    EXPECT_EQ(again, committed);
    sharpi_session_resume(b_.get());
  }

  void decode() {
    for (const int32_t t : tokens(1 + below(12))) {
      cancel_before(8);
      if (both("decode", [=](auto* s, auto* e) { return sharpi_session_decode(s, t, e); }) !=
          SHARPI_OK)
        return;
    }
  }

  void step() {
    if (chance(40)) {
      sharpi_sampler_params p;
      sharpi_sampler_params_init(&p, sizeof p);
      p.seed = below(1000);
      p.temperature = chance(30) ? 0.0f : 0.9f;
      p.repeat_penalty = chance(50) ? 1.3f : 1.0f;
      both("sampler", [&](auto* s, auto* e) { return sharpi_session_set_sampler(s, &p, e); });
    }
    for (uint32_t i = 1 + below(6); i > 0; --i) {
      cancel_before(8);
      std::array<int32_t, 2> drawn{-1, -1};
      size_t at = 0;
      const Call call = [&](auto* s, auto* e) {
        uint32_t n = 0;
        return sharpi_session_step(s, nullptr, &drawn.at(at++), 1, &n, e);
      };
      if (both("step", call) != SHARPI_OK) return;
      EXPECT_EQ(drawn[0], drawn[1]);
    }
  }

  /// The first session reads drafts, some of which are what it would draw; the second one draws and
  /// decodes the tokens that were read.
  void verify() {
    sharpi_session* twin = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    if (a_.info().n_logit_rows == 0) return;
    ASSERT_EQ(sharpi_session_fork(b_.get(), &twin, &e), SHARPI_OK) << e.text;
    const Chat oracle(SessionPtr(twin), kVocab);
    std::vector<int32_t> t;
    for (uint32_t i = 0; i <= below(5); ++i) {
      int32_t next = static_cast<int32_t>(below(kVocab));
      if (i == 0 || chance(80)) {
        if (sharpi_session_sample(oracle.get(), nullptr, &next, &e) != SHARPI_OK) break;
      }
      t.push_back(next);
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
    const sharpi_status s = sharpi_session_verify(
        a_.get(), t.data(), static_cast<uint32_t>(t.size()), nullptr, &read, &e);
    note("verify " + std::to_string(t.size()) + " " + std::to_string(s) + " of it " +
         std::to_string(read));
    if (s != SHARPI_OK) return expect_same(before, State(a_), std::string("verify: ") + e.text);
    for (uint32_t i = 0; i < read; ++i) {
      int32_t drawn = t[0];
      if (i > 0) {
        ASSERT_EQ(sharpi_session_sample(b_.get(), nullptr, &drawn, &e), SHARPI_OK) << e.text;
      }
      EXPECT_EQ(drawn, t[i]);
      ASSERT_EQ(sharpi_session_decode(b_.get(), drawn, &e), SHARPI_OK) << e.text;
    }
  }

  void compact() {
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.policy = below(8);
    p.budget = 1 + below(40);
    p.recency = below(6);
    p.sinks = below(3);
    p.headroom = below(40);
    p.layer_budget = p.policy == SHARPI_POLICY_GLOBAL ? 0 : below(3);
    const std::vector<int32_t> probe = tokens(1 + below(5));
    if (chance(40)) p.probe = probe.data(), p.n_probe = static_cast<uint32_t>(probe.size());
    std::vector<uint32_t> keep;
    if (p.policy == SHARPI_POLICY_KEEP) {
      for (uint32_t i = below(3); i < a_.info().n_slots_max; i += 1 + below(3)) keep.push_back(i);
      const auto n = static_cast<uint32_t>(keep.size());
      sharpi_compact_params_init(&p, sizeof p);
      p.policy = SHARPI_POLICY_KEEP;
      p.keep = keep.data(), p.n_keep = n;
    }
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
    const sharpi_status s = sharpi_session_fork(a_.get(), &twin, &e);
    note("fork " + std::to_string(s));
    ASSERT_EQ(s, SHARPI_OK) << e.text;
    // Whoever stays behind shares rows with a_, reads a little of its own, and is left alone.
    if (chance(50)) {
      a_ = Chat(SessionPtr(twin), kVocab);
      return;
    }
    Chat kept(SessionPtr(twin), kVocab);
    sharpi_session_decode(kept.get(), 7, nullptr);
    kept_blobs_.push_back(saved(kept));
    kept_.push_back(std::move(kept));
  }
  void check_kept() {
    for (size_t i = 0; i < kept_.size(); ++i)
      EXPECT_TRUE(saved(kept_[i]) == kept_blobs_[i]) << "a fork changed";
  }

  /// The session's own saved form, in its place. Bounded sessions with a probe are left alone: what
  /// they remember of it is not saved.
  void restore() {
    if (ready_.name.find("probe") != std::string::npos) return;
    std::vector<char> blob = saved(a_);
    const bool harm = chance(30);
    if (harm) blob[below(static_cast<uint32_t>(blob.size()))] ^= static_cast<char>(1 + below(255));
    const State before(a_);
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status s = sharpi_session_restore(a_.get(), blob.data(), blob.size(), &e);
    note("restore " + std::to_string(s));
    EXPECT_EQ(s != SHARPI_OK, harm) << e.text;
    EXPECT_TRUE(before.blob == saved(a_)) << "restoring changed something";
  }

  void nonsense() {
    const int32_t bad = kVocab;
    const std::vector<int32_t> many = tokens(kCtx + 1);
    uint32_t n = 0;
    const bool refuses = !ready_.bounded;
    const auto expect_refused = [&](const char* what, const Call& call) {
      EXPECT_NE(both(what, call), SHARPI_OK) << what;
    };
    expect_refused("a bad token",
                   [&](auto* s, auto* e) { return sharpi_session_decode(s, bad, e); });
    if (refuses) {
      expect_refused("a long prompt", [&](auto* s, auto* e) {
        return sharpi_session_prefill(s, many.data(), kCtx + 1, nullptr, &n, e);
      });
    }
    const uint32_t ahead = a_.info().n_tokens + 1;
    expect_refused("a length ahead",
                   [=](auto* x, auto* e) { return sharpi_session_truncate(x, ahead, e); });
  }

  const Ready& ready_;
  const Below& below_;
  Chat a_, b_;
  std::vector<Chat> kept_;
  std::vector<std::vector<char>> kept_blobs_;
  std::string log_;
};

}  // namespace

std::vector<Template> replay_templates() {
  using P = sharpi_session_params*;
  static const int32_t probe[] = {3, 1, 4};
  const auto bounded = [](P s) { s->kv_budget = 16, s->capture_window = 6, s->recency = 4; };
  const auto watching = [](P s) { s->capture_window = 6; };
  const test::ModelRecipe qwen = smallest(test::tiny_qwen3()),
                          gemma = smallest(test::tiny_gemma4kv()),
                          hybrid = smallest(test::tiny_qwen35());
  return {
      {"qwen3", qwen, [](P) {}},
      {"qwen3 captures, q8_0", qwen,
       [=](P s) { watching(s), s->k_dtype = s->v_dtype = SHARPI_KV_Q8_0; }},
      {"qwen3 memory by layer", qwen, [=](P s) { watching(s), s->per_layer_budgets = 1; }},
      {"qwen3 prompt budget", qwen, [=](P s) { s->prompt_budget = 12, s->recency = 3; }},
      {"qwen3 bounded", qwen, bounded},
      {"qwen3 bounded, memory by layer", qwen,
       [=](P s) { bounded(s), s->per_layer_budgets = 1, s->policy = SHARPI_POLICY_SNAPKV; }},
      {"qwen3 bounded with a probe", qwen,
       [=](P s) { bounded(s), s->probe = probe, s->n_probe = 3; }},
      {"gemma4kv captures", gemma, watching},
      {"gemma4kv bounded, bf16", gemma,
       [=](P s) { bounded(s), s->k_dtype = s->v_dtype = SHARPI_KV_BF16; }},
      {"qwen35 checkpoints", hybrid, [=](P s) { watching(s), s->n_checkpoints = 2; }},
      {"qwen35 bounded", hybrid, [=](P s) { bounded(s), s->n_checkpoints = 2; }},
      {"qwen3 drafts", qwen, watching, true},
      {"gemma4kv bounded, drafts", gemma, bounded, true},
      {"qwen35 drafts", hybrid, [=](P s) { watching(s), s->n_checkpoints = 2; }, true},
  };
}

Ready prepare_replay(const Template& s) {
  Ready r;
  r.name = s.name;
  r.file = std::make_unique<MadeModel>(s.recipe);
  ModelSetup setup = setup_with(
      [&](sharpi_plan_params* p, sharpi_session_params* session) {
        p->n_chunk = kChunk;
        p->n_sessions = 3;
        p->max_logit_rows = 3;
        session->n_ctx = kCtx;
        session->rewind = 5;
        s.edit(session);
        if (s.drafts) p->deterministic = 1, session->n_draft = 4;
        r.drafts = s.drafts;
        r.bounded = session->kv_budget != 0;
      },
      1);
  r.loaded = load(r.file->path(), setup);
  return r;
}

void replay(const Ready& ready, const Below& below, const std::function<bool()>& more) {
  Sequence(ready, below).run(more);
}

}  // namespace sharpi::testing
