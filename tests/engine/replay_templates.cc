// SPDX-License-Identifier: MIT
// The models and settings that sequences of calls are tried with.
#include "api/api_handles.h"
#include "cpu/cpu_backend.h"
#include "replay_sequence.h"
#include "support/watched_new.h"

namespace sharpi::testing {
namespace {

test::ModelRecipe smallest(test::ModelRecipe r) {
  r.n_layers = 2;
  r.n_embd = r.d_ff = 32;
  r.n_vocab = kReplayVocab;
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

}  // namespace

std::vector<Template> replay_templates() {
  using P = sharpi_session_params*;
  static const int32_t probe[] = {3, 1, 4};
  const auto bounded = [](P s) { s->kv_budget = 16, s->capture_window = 6, s->recency = 4; };
  const auto watching = [](P s) { s->capture_window = 6; };
  const test::ModelRecipe qwen = smallest(test::tiny_qwen3()),
                          gemma = smallest(test::tiny_gemma4kv()),
                          hybrid = smallest(test::tiny_qwen35()),
                          mamba = smallest(test::tiny_granite());
  test::ModelRecipe with_mtp = hybrid, heads = qwen;
  heads.n_heads = 4;
  heads.n_kv_heads = 2;
  heads.head_dim = 16;
  with_mtp.n_mtp = 1;
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
      {"granite bounded", mamba, [=](P s) { bounded(s), s->n_checkpoints = 2; }},
      {"granite drafts", mamba, [=](P s) { watching(s), s->n_checkpoints = 2; }, true},
      {"qwen3 drafts", qwen, watching, true},
      {"gemma4kv bounded, drafts", gemma, bounded, true},
      {"qwen35 drafts", hybrid, [=](P s) { watching(s), s->n_checkpoints = 2; }, true},
      {"qwen3 captures, q8_0 and q4", qwen,
       [=](P s) { watching(s), s->k_dtype = SHARPI_KV_Q8_0, s->v_dtype = SHARPI_KV_Q4; }},
      {"gemma4kv bounded, q4", gemma,
       [=](P s) { bounded(s), s->k_dtype = s->v_dtype = SHARPI_KV_Q4; }},
      {"qwen35 q4 and bf16, drafts", hybrid,
       [=](P s) { s->n_checkpoints = 2, s->k_dtype = SHARPI_KV_Q4, s->v_dtype = SHARPI_KV_BF16; },
       true},
      // Drafts are read in one pass or token by token, and rows that have waited for capture_window
      // tokens are scored before a pass; so with drafts none waits for that many.
      {"qwen3 replay scores", qwen,
       [=](P s) { s->replay = 1, s->capture_window = 192, s->per_layer_budgets = 1; }, true, 192},
      {"gemma4kv bounded, replay scores", gemma,
       [=](P s) { bounded(s), s->replay = 1, s->replay_every = 4, s->capture_window = 64; }},
      {"qwen35 replay scores, q8_0", hybrid,
       [=](P s) {
         s->replay = 1, s->capture_window = 192, s->n_checkpoints = 2;
         s->k_dtype = s->v_dtype = SHARPI_KV_Q8_0;
       },
       true, 192},
      {"qwen3 of two KV heads, bf16", heads,
       [=](P s) { watching(s), s->k_dtype = s->v_dtype = SHARPI_KV_BF16; }, true, 192},
      {"qwen3 of two KV heads, bounded", heads, bounded, true},
      {"qwen3 of two KV heads, replay scores and forks", heads,
       [=](P s) { s->replay = 1, s->capture_window = 64; }, false, 192},
      {"qwen3 of two KV heads, nothing captured", heads, [](P) {}},
      {"qwen3 forks", qwen, watching, false, 192},
      {"qwen3 forks, q4, drafts by ngrams", qwen,
       [=](P s) {
         watching(s), s->k_dtype = s->v_dtype = SHARPI_KV_Q4, s->drafters = SHARPI_DRAFT_NGRAM;
       },
       true, 192},
      {"gemma4kv forks", gemma, watching, false, 192},
      {"gemma4kv bounded, drafts by ngrams", gemma,
       [=](P s) { bounded(s), s->drafters = SHARPI_DRAFT_NGRAM; }, true},
      {"qwen35 forks, drafts by both", with_mtp,
       [=](P s) {
         watching(s), s->n_checkpoints = 2;
         s->drafters = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP;
       },
       true, 192},
      {"qwen35 bounded, drafts by MTP", with_mtp,
       [=](P s) { bounded(s), s->n_checkpoints = 2, s->drafters = SHARPI_DRAFT_MTP; }, true},
      {"qwen3 forks, drafts by a model", qwen,
       [=](P s) { watching(s), s->drafters = SHARPI_DRAFT_MODEL; }, true, 192},
      {"qwen35 bounded, drafts by all", with_mtp,
       [=](P s) {
         bounded(s), s->n_checkpoints = 2;
         s->drafters = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL;
       },
       true},
  };
}

MemoryMeter& Ready::meter() const {
  return cpu::meter_of(*loaded.context->p->backends()[0]);
}

Held Ready::held() const {
  const HeldBytes held = loaded.model->p->allowance()->held();
  return {library_bytes(), meter().live_bytes(), held.at(DeviceIndex::kHost)};
}

Ready prepare_replay(const Template& s) {
  Ready r;
  r.name = s.name;
  r.file = std::make_unique<MadeModel>(s.recipe);
  ModelSetup setup = setup_with(
      [&](sharpi_plan_params* p, sharpi_session_params* session) {
        p->n_chunk = kReplayChunk;
        p->n_sessions = 3;
        p->max_logit_rows = 3;
        session->n_ctx = s.n_ctx;
        session->rewind = 5;
        s.edit(session);
        if ((session->drafters & SHARPI_DRAFT_MODEL) != 0) p->draft_path = r.file->path().c_str();
        if (s.drafts) p->deterministic = 1, session->n_draft = 4;
        r.drafts = s.drafts;
        r.n_ctx = s.n_ctx;
        r.begin_long = std::string(s.name).find("forks") != std::string::npos;
        r.bounded = session->kv_budget != 0;
      },
      1);
  r.loaded = load(r.file->path(), setup);
  if (!r.loaded.model) return r;
  const Chat first(r.loaded.model.get());  // the model remembers how its rows are stored
  const uint64_t before = library_bytes();
  {
    const LibraryCall in;
    const Chat one(r.loaded.model.get());
    r.beside = library_bytes() - before;
    for (const sharpi_memory_row& row : rows_of_handle(sharpi_session_memory, one.get()))
      r.beside -= row.purpose == SHARPI_ROW_TABLES ? row.held_bytes : 0;
  }
  return r;
}

}  // namespace sharpi::testing
