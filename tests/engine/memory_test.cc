// SPDX-License-Identifier: MIT
// Every byte: what a plan prices is what is taken, decode takes none, destroy gives all back, and a
// host allocator that fails at any call leaves nothing behind.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>

#include "engine_case.h"
#include "support/watched_new.h"

namespace sharpi::testing {
namespace {

/// A host allocator that counts, and fails at a chosen request.
struct HostMemory {
  std::atomic<uint64_t> live{0}, requests{0}, fail_at{0};
  static void* take(void* user, uint64_t bytes, uint64_t alignment) {
    auto* m = static_cast<HostMemory*>(user);
    if (m->requests.fetch_add(1) + 1 == m->fail_at.load()) return nullptr;
    void* p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (p != nullptr) m->live.fetch_add(bytes);
    return p;
  }
  static void give(void* user, void* p, uint64_t bytes) {
    static_cast<HostMemory*>(user)->live.fetch_sub(bytes);
    std::free(p);
  }
  ContextPtr context() {
    ModelSetup setup;
    setup.edit_context = [this](sharpi_context_params* p) {
      p->alloc = &take;
      p->free = &give;
      p->alloc_user_data = this;
    };
    return make_context(setup);
  }
};

using Rows = MemoryRows;

using Key = std::tuple<uint32_t, uint32_t, uint32_t, std::string, uint32_t, uint32_t, uint32_t>;
using Table = std::map<Key, std::pair<uint64_t, uint64_t>>;

void add(const Rows& rows, Table* to) {
  for (const sharpi_memory_row& r : rows) {
    if (r.transient != 0) continue;  // gone when loading has ended
    auto& at =
        (*to)[Key{r.tier, r.purpose, r.kind, r.label, r.first_layer, r.n_layers, r.per_session}];
    at.first += r.payload_bytes;
    at.second += r.held_bytes;
  }
}

uint64_t held(const Rows& rows, uint32_t purpose) {
  uint64_t n = 0;
  for (const sharpi_memory_row& r : rows) n += r.purpose == purpose ? r.held_bytes : 0;
  return n;
}

/// Bytes that come from the host allocator: not file pages, not KV rows (address space of their
/// own), not the engine's tables.
uint64_t from_allocator(const Rows& rows) {
  uint64_t n = 0;
  for (const sharpi_memory_row& r : rows) {
    const bool ours = r.kind == SHARPI_ROW_ANONYMOUS && r.purpose != SHARPI_ROW_KV &&
                      r.purpose != SHARPI_ROW_TABLES;
    n += ours ? r.held_bytes : 0;
  }
  return n;
}

struct Variant {
  const char* name;
  Edit edit;
};

std::vector<Variant> variants() {
  using P = sharpi_plan_params*;
  using S = sharpi_session_params*;
  std::vector<Variant> out;
  for (const sharpi_kv_dtype d : stored_dtypes()) {
    for (const uint32_t n : {512u, 8192u}) {
      out.push_back({dtype_text(d), [=](P, S s) {
                       s->n_ctx = n, s->k_dtype = s->v_dtype = d, s->n_checkpoints = 3;
                     }});
    }
  }
  out.push_back({"capture", [](P, S s) { s->capture_window = 64; }});
  out.push_back({"bounded", [](P, S s) { s->kv_budget = 256; }});
  out.push_back({"per layer", [](P, S s) { s->kv_budget = 256, s->per_layer_budgets = 1; }});
  out.push_back(
      {"exact", [](P p, S) { p->arithmetic = SHARPI_ARITHMETIC_EXACT, p->max_concurrent = 2; }});
  out.push_back(
      {"no rewind", [](P p, S s) { s->rewind = 0, p->n_chunk = 48, p->max_logit_rows = 3; }});
  return out;
}

class Memory : public ModelTest {
 protected:
  void expect_decode_allocates_nothing(const Loaded& l) const;
};

TEST_P(Memory, ThePlansRowsAreWhatIsTaken) {
  for (const Variant& v : variants()) {
    HostMemory memory;
    const ContextPtr context = memory.context();
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(try_plan(context.get(), path(), setup_with(v.edit), &plan, &e), SHARPI_OK)
        << text_of(e);
    sharpi_model* raw = nullptr;
    ASSERT_EQ(sharpi_model_load(plan.get(), nullptr, nullptr, &raw, &e), SHARPI_OK) << text_of(e);
    const ModelPtr model(raw);
    const Rows planned = rows_of_handle(sharpi_plan_rows, plan.get());
    const Rows of_model = rows_of_handle(sharpi_model_memory, raw);
    EXPECT_EQ(memory.live.load(), from_allocator(of_model)) << v.name;
    const Chat chat(raw);
    const Rows of_session = rows_of_handle(sharpi_session_memory, chat.get());
    EXPECT_EQ(memory.live.load(), from_allocator(of_model) + from_allocator(of_session)) << v.name;
    Table want, got;
    add(planned, &want);
    add(of_model, &got);
    add(of_session, &got);
    EXPECT_EQ(got, want) << v.name;
    for (const sharpi_memory_row& r : planned) {
      EXPECT_GT(r.payload_bytes, 0u) << v.name << " " << r.label;
      EXPECT_GE(r.held_bytes, r.payload_bytes) << v.name << " " << r.label;
    }
    for (const uint32_t purpose :
         {SHARPI_ROW_WEIGHTS, SHARPI_ROW_KV, SHARPI_ROW_ACTIVATIONS, SHARPI_ROW_LOGITS}) {
      EXPECT_GT(held(planned, purpose), 0u) << v.name << " " << purpose;
    }
    sharpi_plan_summary info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(sharpi_plan_info(plan.get(), &info, &e), SHARPI_OK) << text_of(e);
    // Queries are kept of layers that attend to everything, and rand-mistral has none.
    const bool captures = info.capture_window > 0 && GetParam() != "rand-mistral";
    EXPECT_EQ(held(planned, SHARPI_ROW_CAPTURE) > 0, captures) << v.name;
    EXPECT_EQ(held(planned, SHARPI_ROW_CHECKPOINTS) > 0, info.n_checkpoints > 0) << v.name;
    EXPECT_EQ(held(of_session, SHARPI_ROW_KV), chat.info().kv_held_bytes) << v.name;
  }
}

/// Mesa's software device compiles with LLVM when it runs a pipeline for the first time, which
/// allocates in this process; what is made by then is VulkanReady's to say.
bool on_software(const Loaded& l) {
  sharpi_device d{};
  d.struct_size = sizeof d;
  return on_vulkan() &&
         sharpi_device_info(l.context.get(), gpu_index(l.context.get()), 0, &d, nullptr) ==
             SHARPI_OK &&
         std::strstr(d.name, "llvmpipe") != nullptr;
}

void Memory::expect_decode_allocates_nothing(const Loaded& l) const {
  std::vector<Chat> chats;
  std::vector<sharpi_session*> handles;
  for (int i = 0; i < 4; ++i) {
    chats.emplace_back(l.model.get());
    chats.back().prefill(tokens(180));
    handles.push_back(chats.back().get());
  }
  const auto next = tokens(64);
  sharpi_error e = SHARPI_ERROR_INIT;
  int32_t failed = 0, token = 0;
  uint32_t n = 0;
  const auto decode_all = [&] {
    for (size_t i = 0; i < 16; ++i) failed |= sharpi_session_decode(handles[0], next[i], &e);
    for (size_t i = 0; i < 4; ++i)
      failed |= sharpi_decode_batch(handles.data(), next.data() + i, 4, &e);
    for (size_t i = 0; i < 4; ++i)
      failed |= sharpi_session_step(handles[1], nullptr, &token, 1, &n, &e);
  };
  if (on_software(l)) decode_all();
  const uint64_t before = allocations();
  decode_all();
  const uint64_t after = allocations();
  EXPECT_EQ(failed, SHARPI_OK) << text_of(e);
  EXPECT_EQ(after - before, 0u);
  EXPECT_GT(before, 0u) << "nothing is counted";
}

TEST_P(Memory, DecodeAllocatesNothing) {
  expect_decode_allocates_nothing(load(
      path(), setup_with([](sharpi_plan_params*, sharpi_session_params* s) { s->n_ctx = 512; })));
}

/// Experts on the CPU are asked for, and some come into slots.
TEST_P(Memory, DecodeWithExpertSlotsAllocatesNothing) {
  if (!on_gpu()) GTEST_SKIP() << "slots are on a GPU";
  const Loaded l = load(path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                          s->n_ctx = 512;
                          p->n_expert_slots = GetParam().find("moe") == std::string::npos ? -1 : 5;
                        }));
  expect_decode_allocates_nothing(l);
}

uint64_t resident_bytes() {
  long pages = 0, resident = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr) return 0;
  const int n = std::fscanf(f, "%ld %ld", &pages, &resident);
  std::fclose(f);
  return n == 2 ? static_cast<uint64_t>(resident) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))
                : 0;
}

TEST_P(Memory, ADestroyedSessionGivesItsKvBack) {
  const Loaded l = load(path(), setup_with([](sharpi_plan_params*, sharpi_session_params* s) {
                          s->n_ctx = 16384;
                          s->k_dtype = s->v_dtype = SHARPI_KV_F32;
                        }));
  // Bytes in use: of the host's memory, or of the device's.
  const auto in_use = [&] {
    return on_gpu() ? UINT64_MAX / 2 - free_device_bytes(l.context.get()) : resident_bytes();
  };
  if (GetParam() == "rand-mistral") GTEST_SKIP() << "its rows are rings of a few KiB";
  const uint64_t before = in_use();
  ASSERT_GT(before, 0u);
  uint64_t with_session = 0, kv = 0;
  {
    const Chat chat(l.model.get());
    kv = chat.info().kv_held_bytes;
    with_session = in_use();
  }
  const uint64_t after = in_use();
  ASSERT_GT(kv, 4u << 20);
  EXPECT_GE(with_session, before + kv - kv / 10) << "everything is committed at creation";
  EXPECT_LE(after, before + kv / 4);
}

INSTANTIATE_TEST_SUITE_P(Engine, Memory, ::testing::ValuesIn(all_models()), model_name);

/// Plan, load, a session that uses everything, some tokens; the first status that is not OK.
sharpi_status use_everything(sharpi_context* context, const MadeModel& file, sharpi_error* e) {
  ModelSetup setup = setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 32;
    p->max_concurrent = 2;
    s->n_ctx = 256;
    s->n_checkpoints = 2;
    s->kv_budget = 96;
    s->recency = 16;
    s->capture_window = 16;
  });
  PlanPtr plan;
  sharpi_status s = try_plan(context, file.path(), setup, &plan, e);
  if (s != SHARPI_OK) return s;
  sharpi_model* raw = nullptr;
  s = sharpi_model_load(plan.get(), nullptr, nullptr, &raw, e);
  const ModelPtr model(raw);
  if (s != SHARPI_OK) return s;
  sharpi_session* session = nullptr;
  s = sharpi_session_create(raw, nullptr, &session, e);
  const SessionPtr owner(session);
  if (s != SHARPI_OK) return s;
  const auto tokens = file.tokens(150);
  s = sharpi_session_prefill(session, tokens.data(), 150, nullptr, nullptr, e);
  if (s != SHARPI_OK) return s;
  s = sharpi_session_decode(session, 3, e);
  if (s != SHARPI_OK) return s;
  sharpi_session* twin = nullptr;
  s = sharpi_session_fork(session, &twin, e);
  sharpi_session_destroy(twin);
  return s;
}

TEST(MemoryFailure, AtEveryRequestIsReportedAndLeavesNothing) {
  if (on_gpu()) GTEST_SKIP() << "tests/cuda/faults_test fails the device's allocations";
  for (const test::ModelRecipe& recipe : {test::tiny_qwen35(), test::tiny_gemma4()}) {
    const MadeModel file(recipe);
    HostMemory memory;
    const ContextPtr context = memory.context();
    const uint64_t idle = memory.live.load();
    uint64_t n_failed = 0;
    for (uint64_t n = 1; n < 1000; ++n) {
      memory.fail_at = memory.requests.load() + n;
      sharpi_error e = SHARPI_ERROR_INIT;
      const sharpi_status s = use_everything(context.get(), file, &e);
      EXPECT_EQ(memory.live.load(), idle) << "after request " << n;
      const bool reached = memory.requests.load() >= memory.fail_at.load();
      if (s == SHARPI_OK && !reached) break;
      ASSERT_EQ(s, SHARPI_E_OUT_OF_MEMORY) << recipe.arch << " request " << n << ": " << e.text;
      EXPECT_NE(std::string(e.text).find("no memory for"), std::string::npos) << e.text;
      ++n_failed;
    }
    EXPECT_GT(n_failed, 5u) << recipe.arch;
    memory.fail_at = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(use_everything(context.get(), file, &e), SHARPI_OK) << text_of(e);
  }
}

TEST(MemoryFailure, ContextGivesEverythingBack) {
  if (on_gpu()) GTEST_SKIP() << "tests/cuda/faults_test fails the device's allocations";
  const MadeModel file(test::tiny_qwen35moe());
  HostMemory memory;
  {
    const ContextPtr context = memory.context();
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(use_everything(context.get(), file, &e), SHARPI_OK) << text_of(e);
    EXPECT_GT(memory.requests.load(), 0u);
  }
  EXPECT_EQ(memory.live.load(), 0u);
}

}  // namespace
}  // namespace sharpi::testing
