/* SPDX-License-Identifier: MIT */
/* Sessions: creation, reading tokens, logits, sampling. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void test_create(const fixture* f) {
  sharpi_error err;
  sharpi_session* out = NULL;
  sharpi_session_params p;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_create(NULL, NULL, &out, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_create(f->model, NULL, NULL, &err));
  sharpi_session_params_init(&p, sizeof p);
  p.n_ctx = kCtx + 1;
  EXPECT(SHARPI_E_DOES_NOT_FIT, sharpi_session_create(f->model, &p, &out, &err));
  NAMES("65");
  CHECK(out == NULL);
  p.n_ctx = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_create(f->model, &p, &out, &err));
  p.n_ctx = kCtx / 2;
  p.k_dtype = 17;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_create(f->model, &p, &out, &err));
  p.k_dtype = SHARPI_KV_Q8_0;
  EXPECT(SHARPI_OK, sharpi_session_create(f->model, &p, &out, &err));
  sharpi_session_summary s = {.struct_size = sizeof s};
  EXPECT(SHARPI_OK, sharpi_session_info(out, &s, &err));
  CHECK(s.n_ctx == kCtx / 2 && s.k_dtype == SHARPI_KV_Q8_0 && s.v_dtype == SHARPI_KV_F32);
  sharpi_session_destroy(out);
  sharpi_session_destroy(NULL);
  sharpi_session_cancel(NULL);
}

static void test_prefill(const fixture* f) {
  sharpi_error err;
  sharpi_session* s = make_session(f);
  const int32_t* tokens = some_tokens();
  uint32_t done = 77;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(NULL, tokens, 4, NULL, &done, &err));
  CHECK(done == 0);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, NULL, 4, NULL, &done, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, tokens, 0, NULL, &done, &err));
  const int32_t bad[3] = {1, 2, kVocab}, negative[2] = {1, -1};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, bad, 3, NULL, &done, &err));
  NAMES("2048");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, negative, 2, NULL, &done, &err));
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.flags = 4;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, tokens, 8, &p, &done, &err));
  NAMES("flags");
  p.flags = 0;
  p.n_logit_rows = kLogitRows + 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, tokens, 8, &p, &done, &err));
  NAMES("n_logit_rows");
  p.n_logit_rows = 3;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, tokens, 2, &p, &done, &err));
  p.n_chunk = 65537;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_prefill(s, tokens, 8, &p, &done, &err));
  NAMES("n_chunk");
  p.n_chunk = 0;
  EXPECT(SHARPI_E_KV_FULL, sharpi_session_prefill(s, tokens, kCtx + 1, NULL, &done, &err));
  CHECK(done == 0 && length_of(s) == 0);
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, tokens, 40, NULL, &done, &err));
  CHECK(done == 40);
  EXPECT(SHARPI_E_KV_FULL, sharpi_session_prefill(s, tokens, 25, NULL, &done, &err));
  CHECK(done == 0 && length_of(s) == 40);
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, tokens, 24, &p, NULL, &err));
  EXPECT(SHARPI_E_KV_FULL, sharpi_session_decode(s, 1, &err));
  CHECK(length_of(s) == kCtx);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_decode(NULL, 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_decode(s, kVocab, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_decode(s, -1, &err));
  sharpi_session_destroy(s);
}

static void test_batch(const fixture* f) {
  sharpi_error err;
  sharpi_model* other_model = NULL;
  EXPECT(SHARPI_OK, sharpi_model_load(f->plan, NULL, NULL, &other_model, &err));
  sharpi_session* other = NULL;
  EXPECT(SHARPI_OK, sharpi_session_create(other_model, NULL, &other, &err));
  sharpi_session* s[3] = {make_session(f), make_session(f), make_session(f)};
  const int32_t tokens[3] = {5, 6, 7}, bad[2] = {5, kVocab};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(NULL, tokens, 2, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(s, NULL, 2, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(s, tokens, 0, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(s, tokens, 3, &err)); /* max_batch 2 */
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(s, tokens, 1000, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(s, bad, 2, &err));
  NAMES("token 1 is");
  sharpi_session *twice[2] = {s[0], s[0]}, *with_null[2] = {s[0], NULL}, *mixed[2] = {s[0], other};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(twice, tokens, 2, &err));
  NAMES("same");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(with_null, tokens, 2, &err));
  NAMES("sessions[1]");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_decode_batch(mixed, tokens, 2, &err));
  /* All or nothing: the second is full. */
  EXPECT(SHARPI_OK, sharpi_session_prefill(s[1], some_tokens(), kCtx, NULL, NULL, &err));
  EXPECT(SHARPI_E_KV_FULL, sharpi_decode_batch(s, tokens, 2, &err));
  CHECK(length_of(s[0]) == 0 && length_of(s[1]) == kCtx);
  s[1] = (sharpi_session_destroy(s[1]), s[2]);
  EXPECT(SHARPI_OK, sharpi_decode_batch(s, tokens, 2, &err));
  CHECK(length_of(s[0]) == 1 && length_of(s[1]) == 1);
  sharpi_session_destroy(s[0]);
  sharpi_session_destroy(s[1]);
  sharpi_session_destroy(other);
  sharpi_model_destroy(other_model);
}

static void test_logits(const fixture* f) {
  sharpi_error err;
  sharpi_session* s = make_session(f);
  float* row = malloc(kVocab * sizeof *row);
  uint32_t n = 0;
  EXPECT(SHARPI_E_STATE, sharpi_session_logits(s, 0, row, kVocab, &n, &err));
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.n_logit_rows = 2;
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, some_tokens(), 20, &p, NULL, &err));
  row[0] = 12345.0f;
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_logits(s, 0, row, kVocab - 1, &n, &err));
  CHECK(n == kVocab && row[0] == 12345.0f);
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_logits(s, 0, NULL, 0, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_logits(s, 2, row, kVocab, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_logits(NULL, 0, row, kVocab, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_logits(s, 0, NULL, kVocab, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_logits(s, 0, row, kVocab, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_session_logits(s, 1, row, kVocab, &n, &err));
  CHECK(n == kVocab);
  for (uint32_t i = 0; i < n; ++i) {
    if (!isfinite(row[i])) {
      CHECK(isfinite(row[i]));
      break;
    }
  }
  EXPECT(SHARPI_OK, sharpi_session_truncate(s, 10, &err));
  EXPECT(SHARPI_E_STATE, sharpi_session_logits(s, 0, row, kVocab, &n, &err));
  free(row);
  sharpi_session_destroy(s);
}

static void test_facts(const fixture* f) {
  sharpi_error err;
  sharpi_session* s = make_session(f);
  sharpi_session_summary sum = {.struct_size = sizeof sum};
  sharpi_layer_info layer = {.struct_size = sizeof layer};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_info(NULL, &sum, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_info(s, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_layer(NULL, 0, &layer, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_layer(s, 0, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_layer(s, 4, &layer, &err));
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, some_tokens(), 20, NULL, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_session_layer(s, 3, &layer, &err));
  CHECK(layer.mixer == SHARPI_MIXER_ATTENTION && layer.kv_source == 3 && layer.n_slots == 20);
  CHECK(layer.n_kv_heads == 2 && layer.head_dim == 128 && layer.k_dtype == SHARPI_KV_F32);
  EXPECT(SHARPI_OK, sharpi_session_info(s, &sum, &err));
  CHECK(sum.n_tokens == 20 && sum.n_prefill_tokens == 20 && sum.n_logit_rows == 1);
  CHECK(sum.n_slots_max == 20 && sum.capacity >= kCtx && sum.paths[0] != '\0');
  const uint32_t row = (uint32_t)sizeof(sharpi_memory_row);
  uint32_t n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_memory(NULL, NULL, row, 0, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_memory(s, NULL, row, 0, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_memory(s, NULL, row, 3, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_memory(s, NULL, 8, 0, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_memory(s, NULL, row, 0, &n, &err));
  CHECK(n > 0);
  sharpi_session_destroy(s);
}

void test_session(const fixture* f) {
  test_create(f);
  test_prefill(f);
  test_batch(f);
  test_logits(f);
  test_facts(f);
}

void test_sampling(const fixture* f) {
  sharpi_error err;
  sharpi_session* s = make_session(f);
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_sampler(NULL, &p, &err));
  p.top_p = 1.5f;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_sampler(s, &p, &err));
  NAMES("top_p is 1.5");
  sharpi_sampler_params_init(&p, sizeof p);
  p.n_bias = 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_sampler(s, &p, &err));
  NAMES("bias_tokens");
  EXPECT(SHARPI_OK, sharpi_session_set_sampler(s, NULL, &err)); /* the defaults */

  int32_t token = -5, tokens[4];
  uint32_t n = 9;
  EXPECT(SHARPI_E_STATE, sharpi_session_sample(s, NULL, &token, &err));
  EXPECT(SHARPI_E_STATE, sharpi_session_step(s, NULL, tokens, 4, &n, &err));
  CHECK(token == -5);
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, some_tokens(), kCtx - 1, NULL, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_sample(NULL, NULL, &token, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_sample(s, NULL, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_step(NULL, NULL, tokens, 4, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_step(s, NULL, NULL, 4, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_step(s, NULL, tokens, 4, NULL, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_step(s, NULL, NULL, 0, &n, &err));
  CHECK(n >= 1 && length_of(s) == kCtx - 1);

  /* Forbid the ends, so that a step reads what it draws. */
  const int32_t ends[2] = {2045, 2043};
  const float never[2] = {-INFINITY, -INFINITY};
  sharpi_sampler_params_init(&p, sizeof p);
  p.n_bias = 2;
  p.bias_tokens = ends;
  p.bias_values = never;
  p.temperature = 1.5f;
  p.seed = 7;
  EXPECT(SHARPI_OK, sharpi_session_set_sampler(s, &p, &err));
  EXPECT(SHARPI_OK, sharpi_session_step(s, NULL, tokens, 4, &n, &err));
  CHECK(n == 1 && length_of(s) == kCtx);
  /* Full: the draw is undone, so that the next one is the same as if nothing had happened. */
  EXPECT(SHARPI_E_KV_FULL, sharpi_session_step(s, NULL, tokens, 4, &n, &err));
  EXPECT(SHARPI_E_KV_FULL, sharpi_session_step(s, NULL, tokens, 4, &n, &err));
  int32_t after_steps = 0, direct = 0;
  EXPECT(SHARPI_OK, sharpi_session_sample(s, NULL, &after_steps, &err));
  EXPECT(SHARPI_OK, sharpi_session_set_sampler(s, &p, &err));
  EXPECT(SHARPI_OK, sharpi_session_sample(s, NULL, &token, &err)); /* the step's draw */
  EXPECT(SHARPI_OK, sharpi_session_sample(s, NULL, &direct, &err));
  CHECK(after_steps == direct && length_of(s) == kCtx);
  sharpi_session_destroy(s);
}
