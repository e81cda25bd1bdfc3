// SPDX-License-Identifier: MIT
// What tests of rows by head share: compactions that share rows out over all heads, what heads keep
// afterwards, and models of every kind that has such rows. Thread rule: as sharpi.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/engine_case.h"
#include "support/needle.h"

namespace sharpi::testing {

using Report = sharpi_compact_report;

inline sharpi_compact_params params(sharpi_layer_budget mode, sharpi_policy policy, uint32_t budget,
                                    uint32_t headroom = 200) {
  sharpi_compact_params p = compact_params(policy, budget);
  p.recency = 4;
  p.headroom = headroom;
  p.layer_budget = mode;
  return p;
}

inline Report compact(const Chat& chat, const sharpi_compact_params& p) {
  Report r{};
  r.struct_size = sizeof r;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_compact(chat.get(), &p, &r, &e), SHARPI_OK) << text_of(e);
  return r;
}

inline std::vector<uint32_t> kept(const Chat& chat, uint32_t layer, uint32_t head) {
  std::vector<uint32_t> out(8192);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_kept(chat.get(), layer, head, out.data(), 8192, &n, &e);
  EXPECT_TRUE(s == SHARPI_OK || s == SHARPI_E_UNSUPPORTED || s == SHARPI_E_INVALID_ARGUMENT)
      << text_of(e);
  out.resize(s == SHARPI_OK ? n : 0);
  return out;
}

/// Rows of every head of every layer, as far as there are any.
inline std::vector<uint32_t> counts(const Chat& chat) {
  std::vector<uint32_t> out;
  for (uint32_t l = 0; l < 8; ++l) {
    for (uint32_t h = 0; h < 4; ++h) {
      const size_t n = kept(chat, l, h).size();
      if (n != 0) out.push_back(static_cast<uint32_t>(n));
    }
  }
  return out;
}

struct Case {
  const char* name;
  test::ModelRecipe recipe;
  std::vector<sharpi_kv_dtype> dtypes = {SHARPI_KV_F32};
};

inline test::ModelRecipe deep(test::ModelRecipe r, uint32_t n_layers) {
  r.n_layers = n_layers;
  return r;
}

/// Of kinds that GPUs compute.
inline std::vector<Case> device_cases() {
  test::ModelRecipe shared = deep(test::tiny_gemma4(), 8);
  shared.n_shared_kv = 3;
  test::ModelRecipe same = deep(test::tiny_gemma4kv(), 8);
  test::ModelRecipe hybrid = deep(test::tiny_qwen35(), 8);
  test::ModelRecipe one = deep(test::tiny_qwen3(), 3);
  one.n_kv_heads = 1;
  return {{"qwen3", deep(test::tiny_qwen3(), 3), stored_dtypes()},
          {"gemma4 with shared layers", shared, {SHARPI_KV_BF16}},
          {"gemma4 with K = V", same, {SHARPI_KV_Q8_0}},
          {"qwen35", hybrid, {SHARPI_KV_F32, SHARPI_KV_Q4}},
          {"one KV head", one, {SHARPI_KV_Q8_0}}};
}

/// Of all kinds that this program's models are of.
inline std::vector<Case> cases() {
  std::vector<Case> out = device_cases();
  if (!on_gpu() || on_vulkan())
    out.push_back({"rows that are keys and values", test::tiny_deepseek2(), stored_dtypes()});
  return out;
}

inline Edit watching(sharpi_kv_dtype kv, bool exact, bool deterministic) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 64;
    p->n_sessions = 4;
    p->arithmetic = exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
    p->deterministic = deterministic ? 1 : 0;
    p->max_batch = 4;
    s->n_ctx = 700;
    s->k_dtype = s->v_dtype = kv;
    s->capture_window = 16;
    s->n_draft = 3;
  };
}

inline uint64_t held_by_rows(const Chat& chat) {
  uint64_t bytes = 0;
  for (const sharpi_memory_row& r : rows_of_handle(sharpi_session_memory, chat.get()))
    bytes += r.purpose == SHARPI_ROW_KV ? r.held_bytes : 0;
  return bytes;
}

}  // namespace sharpi::testing
