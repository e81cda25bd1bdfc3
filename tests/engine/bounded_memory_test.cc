// SPDX-License-Identifier: MIT
// What a session takes of the engine's tables is what their rows say, to the byte: whatever the
// context, only small bookkeeping is beside them. Counts operator new.
#include "engine_case.h"
#include "support/watched_new.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kChunk = 64, kBudget = 256;

/// Heads of 512 and a long context, where tables of angles are largest.
test::ModelRecipe wide(test::ModelRecipe r) {
  r.n_layers = 2;
  r.n_ctx = 1048576;
  r.head_dim = 512;
  r.n_heads = 2;
  r.n_kv_heads = 1;
  r.global_every = r.attention_every = 2;
  return r;
}

uint64_t of_tables(const MemoryRows& rows) {
  uint64_t bytes = 0;
  for (const sharpi_memory_row& r : rows)
    bytes += r.purpose == SHARPI_ROW_TABLES && r.per_session != 0 ? r.held_bytes : 0;
  return bytes;
}

uint64_t bytes_of(const MemoryRows& rows, const std::string& label) {
  uint64_t bytes = 0;
  for (const sharpi_memory_row& r : rows) bytes += label == r.label ? r.held_bytes : 0;
  return bytes;
}

struct Taken {
  uint64_t tables = 0, turns = 0;  // by the rows
  uint64_t beside = 0;             // of operator new, in no row
};

Taken take_session(const MadeModel& file, uint32_t n_ctx, uint32_t kv_budget) {
  const Loaded l = load(file.path(), setup_with([=](sharpi_plan_params* p, auto* s) {
                          p->n_chunk = kChunk;
                          s->n_ctx = n_ctx;
                          s->kv_budget = kv_budget;
                          s->capture_window = 8;
                          s->k_dtype = s->v_dtype = SHARPI_KV_Q8_0;
                        }));
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_session* raw = nullptr;
  const uint64_t before = allocated_bytes();
  EXPECT_EQ(sharpi_session_create(l.model.get(), nullptr, &raw, &e), SHARPI_OK) << text_of(e);
  const uint64_t taken = allocated_bytes() - before;
  const SessionPtr session(raw);
  const MemoryRows held = rows_of_handle(sharpi_session_memory, raw);
  sharpi_plan* priced = nullptr;
  EXPECT_EQ(sharpi_plan_session(l.model.get(), nullptr, &priced, &e), SHARPI_OK) << text_of(e);
  const PlanPtr one(priced);
  for (const sharpi_plan* plan : {l.plan.get(), one.get()}) {
    const MemoryRows planned = rows_of_handle(sharpi_plan_rows, plan);
    EXPECT_EQ(of_tables(planned), of_tables(held));
    EXPECT_EQ(bytes_of(planned, "key shift"), bytes_of(held, "key shift"));
  }
  const uint64_t tables = of_tables(held);
  EXPECT_GE(taken, tables);
  return {tables, bytes_of(held, "key shift"), taken - tables};
}

TEST(BoundedMemory, RowsOfTablesAreWhatASessionTakes) {
  for (const test::ModelRecipe& recipe :
       {wide(test::tiny_qwen3()), wide(test::tiny_gemma4kv()), wide(test::tiny_qwen35())}) {
    const MadeModel file(recipe);
    const uint64_t plain = take_session(file, 4096, 0).beside;
    EXPECT_LT(plain, 16384u) << recipe.arch;
    uint64_t last = 0;
    for (const uint32_t n_ctx : {300u, 400u, 4096u, 32768u, 262144u, 1048576u}) {
      const Taken t = take_session(file, n_ctx, kBudget);
      EXPECT_EQ(t.beside, plain) << recipe.arch << ", n_ctx " << n_ctx;
      EXPECT_EQ(t.turns > 0, n_ctx >= kBudget + kChunk) << recipe.arch << ", n_ctx " << n_ctx;
      if (n_ctx > 32768) {
        EXPECT_EQ(t.turns, last) << "grows with long contexts";
      }
      last = t.turns;
    }
    EXPECT_EQ(take_session(file, 4096, 0).turns, 0u) << recipe.arch;
  }
}

/// Keys of sliding windows are never turned, however wide they are.
TEST(BoundedMemory, TurnsAreOfLayersThatSeeEverything) {
  uint64_t turns[2];
  for (const size_t i : {size_t{0}, size_t{1}}) {
    test::ModelRecipe recipe = wide(test::tiny_gemma4kv());
    recipe.head_dim_swa = i == 0 ? 64 : 1024;
    turns[i] = take_session(MadeModel(recipe), 4096, kBudget).turns;
  }
  EXPECT_GT(turns[0], 0u);
  EXPECT_EQ(turns[0], turns[1]);
}

}  // namespace
}  // namespace sharpi::testing
