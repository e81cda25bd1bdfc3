// SPDX-License-Identifier: MIT
// Models over the devices of a machine that a test poses: which layers each device gets, loading
// them so, and what a session says there. Thread rule: as sharpi.h.
#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft_case.h"
#include "engine/engine_case.h"

namespace sharpi::testing {

/// Layers of each device, in the order in which they come.
using Ladder = std::vector<std::pair<uint32_t, int32_t>>;
inline std::string text_of(const Ladder& ladder) {
  std::string out;
  for (const auto& [device, n] : ladder)
    out += std::to_string(n) + " on " + std::to_string(device) + ", ";
  return out;
}

inline std::vector<Logits> talk(const Loaded& l, const std::vector<int32_t>& prompt) {
  Chat chat(l.model.get());
  chat.prefill(prompt);
  std::vector<Logits> out{chat.logits()};
  for (const int32_t t : {3, 4, 5}) {
    chat.decode(t);
    out.push_back(chat.logits());
  }
  return out;
}

/// Splits of n layers over two or three devices in any order, with and without layers left to the
/// host.
inline std::vector<Ladder> ladders(int32_t n) {
  std::vector<Ladder> out;
  for (int32_t a = 1; a < n; ++a) {
    out.push_back({{1, a}, {2, n - a}});
    if (a + 1 < n) out.push_back({{2, a}, {1, 1}});
    for (int32_t b = 1; a + b < n; ++b) out.push_back({{3, a}, {1, b}, {2, n - a - b}});
  }
  return out;
}

struct LadderMachine {
  sharpi_context* context;

  /// A model with chunks of 48 tokens; without a ladder all of it is on the host.
  Loaded try_load(const std::string& path, const Ladder& ladder, sharpi_error* why,
                  const Edit& edit = {}) const {
    Loaded l;
    std::vector<sharpi_device_request> list;
    for (const auto& [device, n] : ladder) {
      list.emplace_back();
      sharpi_device_request_init(&list.back(), sizeof list.back());
      list.back().device = device;
      list.back().n_layers = n;
      list.back().rate = list.back().link_rate = 1e9;  // else each plan measures them
    }
    const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_gpu_layers = ladder.empty() ? 0 : -1;
      p->n_chunk = 48;
      p->n_sessions = 4;
      p->host_rate = 1e9;
      p->stream_rows = SHARPI_UNSET;
      p->devices = list.data();
      p->n_devices = static_cast<uint32_t>(list.size());
      if (ladder.empty()) p->device = 0;
      s->n_ctx = 256;
      s->k_dtype = s->v_dtype = s->tail_k_dtype = s->tail_v_dtype = SHARPI_KV_F32;
      if (edit) edit(p, s);
    });
    sharpi_model* model = nullptr;
    if (try_plan(context, path, setup, &l.plan, why) != SHARPI_OK ||
        sharpi_model_load(l.plan.get(), nullptr, nullptr, &model, why) != SHARPI_OK) {
      return l;
    }
    l.model.reset(model);
    l.info.struct_size = sizeof l.info;
    EXPECT_EQ(sharpi_model_info(model, &l.info, nullptr), SHARPI_OK);
    return l;
  }
  Loaded load(const std::string& path, const Ladder& ladder, const Edit& edit = {}) const {
    sharpi_error why = SHARPI_ERROR_INIT;
    Loaded l = try_load(path, ladder, &why, edit);
    EXPECT_TRUE(l.model) << why.text;
    return l;
  }
  /// Three splits that the model allows: the least that has to be on a device and the rest on
  /// another one, or a third of each.
  std::vector<Ladder> few(const std::string& path, int32_t n) const {
    std::vector<Ladder> out;
    for (const Ladder& ladder : ladders(n)) {
      sharpi_error why = SHARPI_ERROR_INIT;
      if (try_load(path, ladder, &why).model) out.push_back(ladder);
      if (out.size() == 3) break;
    }
    return out;
  }
};

/// By what the model says of its paths.
inline bool is_pipelined(const Loaded& l) {
  std::string text(1u << 16, '\0');
  size_t n = 0;
  EXPECT_EQ(sharpi_model_json(l.model.get(), text.data(), text.size(), &n, nullptr), SHARPI_OK);
  return text.find("as a pipeline") != std::string::npos;
}

inline void with_checkpoints(sharpi_plan_params*, sharpi_session_params* s) {
  s->n_checkpoints = 2;
  s->capture_window = 16;
}

/// What a session is in the course of a life: read, forked, compacted, and, with `from`, restored.
/// The model is loaded with_checkpoints().
inline std::vector<std::vector<char>> session_life(const Loaded& l, const MadeModel& file,
                                                   const std::vector<char>* from) {
  std::vector<std::vector<char>> blobs;
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_session_params own;
  sharpi_session_params_init(&own, sizeof own);
  with_checkpoints(nullptr, &own);
  own.n_ctx = 256;
  own.k_dtype = own.v_dtype = own.tail_k_dtype = own.tail_v_dtype = SHARPI_KV_F32;
  Chat chat(l.model.get(), &own);
  chat.prefill(file.tokens(70));
  blobs.push_back(saved(chat));
  Chat other = chat.fork();
  for (const int32_t t : {7, 8}) other.decode(t);
  blobs.push_back(saved(other));
  sharpi_compact_params c;
  sharpi_compact_params_init(&c, sizeof c);
  c.budget = 40;
  c.headroom = 32;
  const sharpi_status compacted = sharpi_session_compact(chat.get(), &c, nullptr, &e);
  EXPECT_TRUE(compacted == SHARPI_OK || compacted == SHARPI_E_UNSUPPORTED) << e.text;
  for (const int32_t t : {9, 10, 11}) chat.decode(t);
  blobs.push_back(saved(chat));
  if (from != nullptr) {
    Chat restored(l.model.get(), &own);
    EXPECT_EQ(sharpi_session_restore(restored.get(), from->data(), from->size(), &e), SHARPI_OK)
        << e.text;
    for (const int32_t t : {12, 13}) restored.decode(t);
    blobs.push_back(saved(restored));
  }
  return blobs;
}

/// A random sequence of calls on a session of each model, which save the same after every one:
/// read, stepped, gone back, compacted, replaced by a fork or by what the other one saved. The
/// models are loaded with_checkpoints().
inline void expect_same_sequence(const Loaded& a, const Loaded& b, const MadeModel& file,
                                 uint32_t seed, const std::string& what) {
  std::array<Chat, 2> chats{Chat(a.model.get()), Chat(b.model.get())};
  std::minstd_rand random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random()) % n; };
  std::string told = what + ", seed " + std::to_string(seed) + ":";
  for (uint32_t call = 0; call < 10 && !::testing::Test::HasFailure(); ++call) {
    const uint32_t kind = call == 0 ? 0 : below(6), n = 1 + below(30);
    told += " " + std::to_string(kind) + "/" + std::to_string(n);
    std::array<sharpi_status, 2> status{};
    std::array<std::vector<char>, 2> blobs{saved(chats[0]), saved(chats[1])};
    for (size_t i = 0; i < 2; ++i) {
      Chat& chat = chats[i];
      const std::vector<char>& other = blobs[1 - i];
      sharpi_compact_params c;
      sharpi_compact_params_init(&c, sizeof c);
      c.budget = 12 + n;
      c.headroom = 64;
      if (kind == 0 && chat.info().n_tokens + n < 200) chat.prefill(file.tokens(n, seed + call));
      if (kind == 1) chat.decode(static_cast<int32_t>(n));
      if (kind == 2)
        status[i] = sharpi_session_truncate(chat.get(), chat.info().n_tokens - 1, nullptr);
      if (kind == 3) status[i] = sharpi_session_compact(chat.get(), &c, nullptr, nullptr);
      if (kind == 4) chat = chat.fork();
      if (kind == 5)
        status[i] = sharpi_session_restore(chat.get(), other.data(), other.size(), nullptr);
    }
    EXPECT_EQ(status[0], status[1]) << told;
    EXPECT_TRUE(kind != 5 || status[0] == SHARPI_OK) << told << ": " << status[0];
    EXPECT_TRUE(saved(chats[0]) == saved(chats[1])) << told;
  }
}

/// Plans whose sessions draft up to 8 tokens; the draft model is the model itself.
inline Edit draft_by(uint32_t drafters, const std::string& path) {
  return [drafters, path](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    s->n_draft = 8;
    s->drafters = drafters;
    s->n_checkpoints = 2;
    if (drafters == SHARPI_DRAFT_MODEL) p->draft_path = path.c_str();
  };
}

/// Steps of a session with the plan's drafters leave what those of one without leave.
inline void expect_no_trace_of_drafts(const Loaded& l, const MadeModel& file,
                                      const std::string& what) {
  ASSERT_TRUE(l.model) << what;
  sharpi_session_params plain;
  sharpi_session_params_init(&plain, sizeof plain);
  plain.n_checkpoints = 2;
  plain.k_dtype = plain.v_dtype = SHARPI_KV_F32;
  plain.n_draft = 8;
  Chat with(l.model.get()), without(l.model.get(), &plain);
  std::vector<std::vector<int32_t>> texts;
  for (Chat* chat : {&without, &with}) {
    chat->prefill(file.tokens(21));
    use_endless_sampler(*chat, l.model.get(), 0.9f);
    std::vector<int32_t> text;
    while (text.size() < 40) {
      std::array<int32_t, 9> tokens{};
      uint32_t count = 0;
      sharpi_error why = SHARPI_ERROR_INIT;
      const auto cap = static_cast<uint32_t>(std::min<size_t>(9, 40 - text.size()));
      ASSERT_EQ(sharpi_session_step(chat->get(), nullptr, tokens.data(), cap, &count, &why),
                SHARPI_OK)
          << why.text;
      text.insert(text.end(), tokens.begin(), tokens.begin() + count);
    }
    texts.push_back(std::move(text));
  }
  EXPECT_EQ(texts[0], texts[1]) << what;
  expect_same(with, without, what);
}

}  // namespace sharpi::testing
