// SPDX-License-Identifier: MIT
// Drafts on split models, seen without a GPU: a second CPU backend plays the GPU. Whoever drafts
// and however the layers are split, a session ends up where decoding token by token leaves it:
// tokens, logits, reachable lengths and saved bytes.
#include <functional>
#include <map>

#include "api/api_handles.h"
#include "cpu/cpu_backend.h"
#include "draft_case.h"
#include "support/second_tier.h"

namespace sharpi::testing {
namespace {

using test::ModelRecipe;

constexpr uint32_t kPrompt = 21, kTokens = 40, kDrafts = 32;

Result<std::vector<std::unique_ptr<Backend>>> two_backends(const BackendOptions&) {
  cpu::CpuBackendOptions options;
  options.n_threads = 1;
  std::vector<std::unique_ptr<Backend>> out;
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, cpu::make_backend(options));
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> other, cpu::make_backend(options));
  out.push_back(std::move(host));
  out.push_back(std::make_unique<SecondBackend>(std::move(other)));
  return out;
}

/// One for all: a context measures the rates of its tiers once, which takes a second.
sharpi_context* split_context() {
  static const ContextPtr kContext = [] {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    auto made = Context::create(c, &two_backends);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    auto handle = std::make_unique<sharpi_context>();
    if (made.is_ok()) handle->p = made.take();
    return ContextPtr(handle.release());
  }();
  return kContext.get();
}

struct Where {
  int32_t layers, ffn, ends;
};

/// A model whose first layers the second backend has. What is refused leaves no model, and the
/// reason.
Loaded load_split(const std::string& path, const Where& where, uint32_t drafters,
                  sharpi_kv_dtype kv, sharpi_error* why, const Edit& edit = {}) {
  Loaded l;
  const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_chunk = 48;
    p->n_sessions = 4;
    p->n_gpu_layers = where.layers;
    p->n_gpu_ffn = where.ffn;
    p->gpu_ends = where.ends;
    p->stream_rows = SHARPI_UNSET;
    if ((drafters & SHARPI_DRAFT_MODEL) != 0) p->draft_path = path.c_str();
    s->n_ctx = 160;
    s->n_checkpoints = 2;
    s->n_draft = kDrafts;
    s->drafters = drafters;
    s->k_dtype = s->v_dtype = s->tail_k_dtype = s->tail_v_dtype = kv;
    if (edit) edit(p, s);
  });
  sharpi_model* model = nullptr;
  if (try_plan(split_context(), path, setup, &l.plan, why) != SHARPI_OK ||
      sharpi_model_load(l.plan.get(), nullptr, nullptr, &model, why) != SHARPI_OK) {
    return l;
  }
  l.model.reset(model);
  return l;
}

Chat plain_chat(const Loaded& l, sharpi_kv_dtype kv) {
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 160, s.n_checkpoints = 2;
  s.k_dtype = s.v_dtype = s.tail_k_dtype = s.tail_v_dtype = kv;
  return Chat(l.model.get(), &s);
}

/// Steps in which the library drafts.
std::vector<int32_t> by_steps(const Chat& chat, size_t n_tokens) {
  std::vector<int32_t> got;
  while (got.size() < n_tokens && !::testing::Test::HasFailure()) {
    std::array<int32_t, kDrafts + 1> tokens{};
    uint32_t n = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto cap = static_cast<uint32_t>(std::min(tokens.size(), n_tokens - got.size()));
    EXPECT_EQ(sharpi_session_step(chat.get(), nullptr, tokens.data(), cap, &n, &e), SHARPI_OK)
        << e.text;
    got.insert(got.end(), tokens.begin(), tokens.begin() + n);
  }
  return got;
}

uint64_t n_drafted(const Chat& chat) {
  sharpi_draft_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(sharpi_session_drafts(chat.get(), &stats, nullptr), SHARPI_OK);
  return stats.n_drafted;
}

/// The first layer; all mixers and one FFN, with the ends; all layers without the ends; everything;
/// all but the embedding, where it is no part of the head.
std::vector<Where> splits(const ModelRecipe& recipe) {
  const auto all = static_cast<int32_t>(recipe.n_layers);
  std::vector<Where> out = {{1, 1, 0}, {all, 1, 1}, {all, all, 0}, {all, all, 1}};
  if (!recipe.tied) out.push_back({all, all, 2});
  return out;
}

std::vector<std::pair<std::string, ModelRecipe>> recipes() {
  return {{"qwen3", test::tiny_qwen3()},   {"qwen3moe", test::tiny_qwen3moe()},
          {"gemma3", test::tiny_gemma3()}, {"gemma4kv", test::tiny_gemma4kv()},
          {"qwen35", test::tiny_qwen35()}, {"qwen35moe", test::tiny_qwen35moe()}};
}

std::string text_of(const std::string& name, const Where& w, sharpi_kv_dtype kv) {
  return name + ", " + std::to_string(w.layers) + " layers and " + std::to_string(w.ffn) +
         " FFNs there, ends " + std::to_string(w.ends) + ", " + dtype_text(kv);
}

void expect_hosts_drafts_leave_no_trace(const MadeModel& file, const Where& where,
                                        sharpi_kv_dtype kv) {
  sharpi_error why = SHARPI_ERROR_INIT;
  const Loaded loaded = load_split(file.path(), where, 0, kv, &why);
  ASSERT_TRUE(loaded.model) << why.text;
  Chat plain = plain_chat(loaded, kv);
  plain.prefill(file.tokens(kPrompt));
  use_endless_sampler(plain, loaded.model.get(), 0.9f);
  const std::vector<int32_t> want = by_steps(plain, kTokens);
  for (const uint32_t n : {1u, 2u, 4u, 8u, kDrafts}) {
    for (const uint32_t wrong : {3u, 1000u}) {
      SCOPED_TRACE(std::to_string(n) + " drafts, every " + std::to_string(wrong) + "th wrong");
      Chat chat(loaded.model.get());
      chat.prefill(file.tokens(kPrompt));
      use_endless_sampler(chat, loaded.model.get(), 0.9f);
      ASSERT_EQ(with_drafts(chat, want, n, wrong, kTokens), want);
      expect_same(chat, plain, "at the end");
    }
  }
}

TEST(DraftSplits, TheHostsDraftsLeaveTheSessionThatDecodingLeaves) {
  for (const auto& [name, recipe] : recipes()) {
    const MadeModel file(recipe);
    for (const Where& where : splits(recipe)) {
      for (const sharpi_kv_dtype kv : stored_dtypes()) {
        SCOPED_TRACE(text_of(name, where, kv));
        expect_hosts_drafts_leave_no_trace(file, where, kv);
        if (HasFailure()) return;
      }
    }
  }
}

/// What drafters hold is on the tier of the head, and nowhere else.
void expect_drafters_beside_the_head(const Loaded& l, uint32_t drafters, const Where& where) {
  const uint32_t tier = where.ends > 0 ? SHARPI_TIER_CUDA : SHARPI_TIER_CPU;
  uint32_t n_found = 0;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, l.plan.get())) {
    const std::string label = r.label;
    const bool weights = label == "MTP block" || label == "drafter mixers";
    const bool kv = label == "MTP KV rows" || label.starts_with("drafter KV r");
    if (!weights && !kv) continue;
    EXPECT_EQ(r.tier, tier) << label;
    ++n_found;
  }
  const bool any = (drafters & (SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL)) != 0;
  EXPECT_EQ(n_found != 0, any);
}

/// By label: the second backend's rows do not say whose they are once they are taken. A sampler's
/// biases are the session's and in no plan.
void expect_every_byte_planned(const Loaded& l, const Chat& chat, uint64_t n_bias = 0) {
  std::map<std::string, uint64_t> want, got;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, l.plan.get()))
    want[r.label] += r.held_bytes;
  want["sampler"] += n_bias * (sizeof(int32_t) + sizeof(float));
  const auto taken = [&](const std::vector<sharpi_memory_row>& rows) {
    for (const sharpi_memory_row& r : rows) got[r.label] += r.held_bytes;
  };
  taken(rows_of_handle(sharpi_model_memory, l.model.get()));
  taken(rows_of_handle(sharpi_session_memory, chat.get()));
  EXPECT_EQ(got, want);
}

TEST(DraftSplits, TheLibrarysDraftsLeaveTheSessionThatDecodingLeaves) {
  uint64_t by_block = 0, by_model = 0, by_text = 0;
  for (const auto& [name, recipe] : recipes()) {
    const MadeModel file(recipe);
    for (const Where& where : splits(recipe)) {
      for (const uint32_t drafters : {SHARPI_DRAFT_NGRAM, SHARPI_DRAFT_MTP, SHARPI_DRAFT_MODEL,
                                      SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MODEL}) {
        const bool by_mtp = (drafters & SHARPI_DRAFT_MTP) != 0;
        if (by_mtp && recipe.n_mtp == 0) continue;
        const sharpi_kv_dtype kv = where.layers == 1 ? SHARPI_KV_Q4 : SHARPI_KV_F32;
        SCOPED_TRACE(text_of(name, where, kv) + ", drafters " + std::to_string(drafters));
        sharpi_error why = SHARPI_ERROR_INIT;
        const Loaded loaded = load_split(file.path(), where, drafters, kv, &why);
        ASSERT_TRUE(loaded.model) << why.text;
        expect_drafters_beside_the_head(loaded, drafters, where);
        Chat plain = plain_chat(loaded, kv), chat(loaded.model.get());
        expect_every_byte_planned(loaded, chat);
        // A text that repeats itself makes most of these models go on repeating.
        std::vector<int32_t> text = file.tokens(7);
        for (int i = 0; i < 14; ++i) text.push_back(text[text.size() - 7]);
        for (Chat* s : {&plain, &chat}) {
          s->prefill(text);
          use_endless_sampler(*s, loaded.model.get(), 0);
        }
        ASSERT_EQ(by_steps(chat, 60), by_steps(plain, 60));
        expect_same(chat, plain, "at the end");
        if (HasFailure()) return;
        (by_mtp                           ? by_block
         : drafters == SHARPI_DRAFT_NGRAM ? by_text
                                          : by_model) += n_drafted(chat);
      }
    }
  }
  EXPECT_GT(by_block, 0u);
  EXPECT_GT(by_model, 0u);
  EXPECT_GT(by_text, 0u);
}

/// Steps with the library's drafts beside steps without, then the same of whatever a host does to
/// both.
void expect_in_step(const Chat& chat, const Chat& plain, const std::string& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(by_steps(chat, 24), by_steps(plain, 24));
  expect_same(chat, plain, what);
}

void expect_composes(const MadeModel& file, const Loaded& loaded) {
  Chat plain = plain_chat(loaded, SHARPI_KV_F32), chat(loaded.model.get());
  sharpi_error e = SHARPI_ERROR_INIT;
  for (Chat* s : {&plain, &chat}) {
    s->prefill(file.tokens(kPrompt));
    use_endless_sampler(*s, loaded.model.get(), 0);
  }
  expect_in_step(chat, plain, "behind the prompt");
  const uint32_t mark = chat.info().n_tokens;
  for (Chat* s : {&plain, &chat}) {
    const sharpi_status kept = sharpi_session_checkpoint(s->get(), 0, &e);
    EXPECT_TRUE(kept == SHARPI_OK || kept == SHARPI_E_UNSUPPORTED) << e.text;
  }
  const std::vector<char> blob = saved(plain);
  sharpi_session* twin = nullptr;
  ASSERT_EQ(sharpi_session_fork(chat.get(), &twin, &e), SHARPI_OK) << e.text;
  Chat fork(SessionPtr(twin), chat.n_vocab());
  expect_in_step(chat, plain, "further on");
  const std::vector<char> before = saved(chat);
  std::array<int32_t, kDrafts + 1> tokens{};
  uint32_t n = 0;
  sharpi_session_cancel(chat.get());
  EXPECT_EQ(sharpi_session_step(chat.get(), nullptr, tokens.data(), 8, &n, &e), SHARPI_E_CANCELLED);
  EXPECT_TRUE(saved(chat) == before);
  for (Chat* s : {&plain, &chat})
    ASSERT_EQ(sharpi_session_truncate(s->get(), mark, &e), SHARPI_OK) << e.text;
  for (Chat* s : {&plain, &chat}) s->decode(7);
  expect_in_step(chat, plain, "cut back and on by another token");
  ASSERT_EQ(sharpi_session_restore(plain.get(), blob.data(), blob.size(), &e), SHARPI_OK);
  expect_in_step(fork, plain, "a fork");
  for (Chat* s : {&plain, &chat})
    ASSERT_EQ(sharpi_session_restore(s->get(), blob.data(), blob.size(), &e), SHARPI_OK);
  expect_in_step(chat, plain, "restored");
}

TEST(DraftSplits, DraftersBesideAHeadThereFollowTheSession) {
  for (const auto& [name, recipe] : recipes()) {
    const MadeModel file(recipe);
    for (const Where& where : splits(recipe)) {
      for (const uint32_t drafters : {SHARPI_DRAFT_MTP, SHARPI_DRAFT_MODEL}) {
        if (where.ends == 0 || (drafters == SHARPI_DRAFT_MTP && recipe.n_mtp == 0)) continue;
        SCOPED_TRACE(text_of(name, where, SHARPI_KV_F32) + ", drafters " +
                     std::to_string(drafters));
        sharpi_error why = SHARPI_ERROR_INIT;
        const Loaded loaded = load_split(file.path(), where, drafters, SHARPI_KV_F32, &why);
        ASSERT_TRUE(loaded.model) << why.text;
        expect_composes(file, loaded);
        if (HasFailure()) return;
      }
    }
  }
}

/// Bounded sessions drop the oldest rows of a block there; compacted ones leave them alone.
TEST(DraftSplits, DraftersBesideAHeadThereGoOnWhereRowsGo) {
  const auto bounded = [](sharpi_session_params* s) {
    s->n_ctx = 96, s->kv_budget = 32, s->capture_window = 6, s->recency = 4;
  };
  for (const auto& recipe : {test::tiny_qwen35(), test::tiny_qwen35moe()}) {
    const MadeModel file(recipe);
    const Where all{static_cast<int32_t>(recipe.n_layers), 1, 1};
    for (const uint32_t drafters : {SHARPI_DRAFT_MTP, SHARPI_DRAFT_MODEL}) {
      SCOPED_TRACE(text_of(recipe.arch, all, SHARPI_KV_F32) + ", drafters " +
                   std::to_string(drafters));
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded loaded =
          load_split(file.path(), all, drafters, SHARPI_KV_F32, &why,
                     [&](sharpi_plan_params*, sharpi_session_params* s) { bounded(s); });
      ASSERT_TRUE(loaded.model) << why.text;
      sharpi_session_params p;
      sharpi_session_params_init(&p, sizeof p);
      bounded(&p);
      p.n_checkpoints = 2;
      p.k_dtype = p.v_dtype = p.tail_k_dtype = p.tail_v_dtype = SHARPI_KV_F32;
      Chat plain(loaded.model.get(), &p), chat(loaded.model.get());
      expect_every_byte_planned(loaded, chat);
      for (Chat* s : {&plain, &chat}) {
        s->prefill(file.tokens(70));
        use_endless_sampler(*s, loaded.model.get(), 0);
      }
      ASSERT_EQ(by_steps(chat, 200), by_steps(plain, 200));
      expect_same(chat, plain, "far past the context");
      EXPECT_GT(n_drafted(chat), 0u);
      expect_every_byte_planned(loaded, chat, 1);  // the one end that an endless sampler forbids
    }
  }
}

std::vector<int32_t> drafts_of_block(const Chat& chat, uint32_t n) {
  Session& s = *chat.get()->p;
  std::vector<int32_t> out(n);
  Logits scratch(chat.n_vocab());
  uint32_t got = 0;
  const Status done = s.mtp()->propose(s.tokens(), s.first_position(), drawn(chat), n,
                                       scratch.data(), out.data(), &got);
  EXPECT_TRUE(done.is_ok()) << done.text();
  out.resize(got);
  return out;
}

/// It gets the same hidden rows, however it was read, and lends the same embedding and head.
TEST(DraftSplits, AnMtpBlockBesideAHeadThereDraftsTheSame) {
  for (const auto& recipe : {test::tiny_qwen35(), test::tiny_qwen35moe()}) {
    SCOPED_TRACE(recipe.arch);
    const MadeModel file(recipe);
    std::vector<std::vector<int32_t>> want;
    std::vector<std::pair<Where, sharpi_load_mode>> ways;
    for (const Where& where : splits(recipe)) ways.emplace_back(where, SHARPI_LOAD_MAP);
    ways.emplace_back(splits(recipe).back(), SHARPI_LOAD_COPY);
    for (const auto& [where, mode] : ways) {
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded loaded =
          load_split(file.path(), where, SHARPI_DRAFT_MTP, SHARPI_KV_F32, &why,
                     [mode = mode](sharpi_plan_params* p, auto) { p->load_mode = mode; });
      ASSERT_TRUE(loaded.model) << why.text;
      Chat chat(loaded.model.get());
      chat.prefill(file.tokens(60));
      use_endless_sampler(chat, loaded.model.get(), 0);
      std::vector<std::vector<int32_t>> got;
      for (int32_t i = 0; i < 6; ++i) {
        got.push_back(drafts_of_block(chat, 5));
        EXPECT_EQ(got.back().size(), 5u);
        for (int32_t t = 0; t <= i; ++t) chat.decode(3 * t + i);
      }
      if (want.empty()) want = got;
      EXPECT_EQ(got, want) << text_of(recipe.arch, where, SHARPI_KV_F32);
      EXPECT_NE(got[1], got[2]) << "its drafts say nothing";
    }
  }
}

/// A pass over drafts has rows enough for weights to stream, where a single row has not. What is
/// committed then are the rows of the other route, so sessions agree as far as the routes do.
TEST(DraftSplits, PassesThatStreamWeightsTakeRowsBack) {
  for (const auto& [name, recipe] : recipes()) {
    const MadeModel file(recipe);
    SCOPED_TRACE(name);
    sharpi_error why = SHARPI_ERROR_INIT;
    const Where mixers{static_cast<int32_t>(recipe.n_layers), 0, 0};
    const Loaded loaded = load_split(file.path(), mixers, 0, SHARPI_KV_F32, &why,
                                     [](sharpi_plan_params* p, sharpi_session_params*) {
                                       p->deterministic = 0;
                                       p->arithmetic = SHARPI_ARITHMETIC_EXACT;
                                       p->stream_rows = 4;
                                     });
    ASSERT_TRUE(loaded.model) << why.text;
    Chat plain = plain_chat(loaded, SHARPI_KV_F32), chat(loaded.model.get());
    for (Chat* s : {&plain, &chat}) {
      s->prefill(file.tokens(kPrompt));
      use_endless_sampler(*s, loaded.model.get(), 0);
    }
    const std::vector<int32_t> want = by_steps(plain, kTokens);
    const std::vector<int32_t> got = with_drafts(chat, want, 8, 5, kTokens);
    ASSERT_EQ(got, want);
    EXPECT_EQ(reachable(chat), reachable(plain));
    EXPECT_EQ(saved(chat).size(), saved(plain).size());
    const Logits a = chat.logits(), b = plain.logits();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-3) << i;
  }
}

}  // namespace
}  // namespace sharpi::testing
