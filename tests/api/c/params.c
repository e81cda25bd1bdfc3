/* SPDX-License-Identifier: MIT */
/* Struct sizes of callers that are older, newer or forgetful, and the error struct itself. */
#include <string.h>

#include "check.h"

/* A struct of a newer header: today's with a tail. */
#define NEWER(type)         \
  struct {                  \
    type known;             \
    unsigned char tail[24]; \
  }

static void test_error_struct(const fixture* f) {
  struct {
    sharpi_error err;
    char after[16];
  } box;
  memset(&box, 0x5A, sizeof box);
  box.err.struct_size = sizeof box.err + 16;
  CHECK(sharpi_plan_info(NULL, NULL, &box.err) == SHARPI_E_INVALID_ARGUMENT);
  CHECK(box.err.status == SHARPI_E_INVALID_ARGUMENT && box.err.struct_size == sizeof box.err + 16);
  CHECK(box.after[0] == 0x5A && strlen(box.err.text) > 0);

  /* An older, shorter error: nothing behind its end is written and its text still ends. */
  memset(&box, 0x5A, sizeof box);
  box.err.struct_size = (uint32_t)offsetof(sharpi_error, text) + 10;
  CHECK(sharpi_plan_info(NULL, NULL, &box.err) == SHARPI_E_INVALID_ARGUMENT);
  CHECK(strlen(box.err.text) == 9 && box.err.text[10] == 0x5A);

  memset(&box, 0x5A, sizeof box);
  box.err.struct_size = 0;
  CHECK(sharpi_plan_info(NULL, NULL, &box.err) == SHARPI_E_INVALID_ARGUMENT);
  CHECK(box.err.status == 0x5A5A5A5A && box.err.struct_size == 0);

  CHECK(sharpi_plan_info(f->plan, NULL, NULL) == SHARPI_E_INVALID_ARGUMENT);

  /* A text that is too long is cut before a character, never inside one. */
  char path[2000];
  for (size_t i = 0; i + 1 < sizeof path; i += 2) memcpy(path + i, "\xC3\xA4", 2);
  path[sizeof path - 2] = '\0';
  sharpi_error err = fresh_error();
  sharpi_plan* plan = NULL;
  const sharpi_status status = sharpi_plan_create(f->context, path, NULL, &plan, &err);
  CHECK(status != SHARPI_OK && plan == NULL);
  const size_t len = strlen(err.text);
  CHECK(len >= sizeof err.text - 3 && len < sizeof err.text);
  CHECK((unsigned char)err.text[len - 1] == 0xA4);
}

static void test_context_sizes(void) {
  sharpi_error err;
  sharpi_context* out = NULL;
  NEWER(sharpi_context_params) p;

  sharpi_context_params_init(&p.known, sizeof p); /* newer caller, zero tail */
  CHECK(p.known.struct_size == sizeof p && p.tail[0] == 0 && p.tail[23] == 0);
  EXPECT(SHARPI_OK, sharpi_context_create(&p.known, &out, &err));
  sharpi_context_destroy(out);

  p.tail[9] = 1; /* newer caller who asks for more */
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_context_create(&p.known, &out, &err));
  CHECK(out == NULL);
  NAMES("sharpi_context_params");
  NAMES("73"); /* 64 known bytes and the tenth behind them */

  memset(&p, 0, sizeof p); /* forgotten init */
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_context_create(&p.known, &out, &err));
  NAMES("struct_size 0");
  p.known.struct_size = sizeof p.known - 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_context_create(&p.known, &out, &err));
  p.known.struct_size = 0xCCCCCCCCu; /* uninitialised memory */
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_context_create(&p.known, &out, &err));
}

static void test_plan_sizes(const fixture* f) {
  sharpi_error err;
  sharpi_plan* out = NULL;
  NEWER(sharpi_plan_params) p;
  NEWER(sharpi_session_params) s;
  sharpi_plan_params_init(&p.known, sizeof p);
  sharpi_session_params_init(&s.known, sizeof s);
  s.known.n_ctx = kCtx;
  p.known.n_gpu_layers = 0;
  p.known.session = &s.known;
  EXPECT(SHARPI_OK, sharpi_plan_create(f->context, f->path, &p.known, &out, &err));
  sharpi_plan_destroy(out);
  s.tail[0] = 1;
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_plan_create(f->context, f->path, &p.known, &out, &err));
  NAMES("sharpi_session_params");
  s.tail[0] = 0;
  p.tail[23] = 1;
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_plan_create(f->context, f->path, &p.known, &out, &err));
  NAMES("sharpi_plan_params");
  p.tail[23] = 0;
  s.known.struct_size = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p.known, &out, &err));
  NAMES("sharpi_session_params");
  p.known.struct_size = 4;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p.known, &out, &err));
  NAMES("sharpi_plan_params");
}

static void test_session_sizes(const fixture* f) {
  sharpi_error err;
  sharpi_session* session = make_session(f);
  NEWER(sharpi_prefill_params) prefill;
  sharpi_prefill_params_init(&prefill.known, sizeof prefill);
  prefill.tail[0] = 1;
  EXPECT(SHARPI_E_UNSUPPORTED,
         sharpi_session_prefill(session, some_tokens(), 4, &prefill.known, NULL, &err));
  prefill.known.struct_size = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_session_prefill(session, some_tokens(), 4, &prefill.known, NULL, &err));
  NEWER(sharpi_sampler_params) sampler;
  sharpi_sampler_params_init(&sampler.known, sizeof sampler);
  EXPECT(SHARPI_OK, sharpi_session_set_sampler(session, &sampler.known, &err));
  sampler.tail[5] = 1;
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_session_set_sampler(session, &sampler.known, &err));
  sampler.known.struct_size = 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_sampler(session, &sampler.known, &err));
  NEWER(sharpi_compact_params) compact;
  sharpi_compact_params_init(&compact.known, sizeof compact);
  compact.known.budget = 8;
  compact.known.recency = 4;
  compact.tail[5] = 1;
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_session_compact(session, &compact.known, NULL, &err));
  NAMES("sharpi_compact_params");
  compact.known.struct_size = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_compact(session, &compact.known, NULL, &err));
  sharpi_session_destroy(session);

  NEWER(sharpi_session_params) s;
  sharpi_session* out = NULL;
  sharpi_session_params_init(&s.known, sizeof s);
  s.known.n_ctx = kCtx;
  s.tail[1] = 1;
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_session_create(f->model, &s.known, &out, &err));
  s.known.struct_size = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_create(f->model, &s.known, &out, &err));
  CHECK(out == NULL);
}

/* The tail of a newer caller's out-struct is zeroed; too small ones and impossible ones are
 * refused. */
static void test_out_sizes(const fixture* f) {
  sharpi_error err;
  sharpi_session* session = make_session(f);
#define OUT_STRUCT(type, first, call)                                   \
  do {                                                                  \
    struct {                                                            \
      type out;                                                         \
      unsigned char tail[4104 - sizeof(type)];                          \
    } box;                                                              \
    memset(&box, 0x77, sizeof box);                                     \
    box.out.struct_size = 4096; /* no struct will be larger */          \
    EXPECT(SHARPI_OK, call);                                            \
    CHECK(box.out.struct_size == 4096);                                 \
    size_t n_zero = 0; /* bytes that this library does not know */      \
    while (n_zero < sizeof box.tail && box.tail[n_zero] == 0) ++n_zero; \
    CHECK(n_zero + sizeof(type) == 4096);                               \
    box.out.struct_size = 4097;                                         \
    EXPECT(SHARPI_E_INVALID_ARGUMENT, call);                            \
    memset(&box, 0x77, sizeof box);                                     \
    box.out.struct_size = first; /* a caller of the first version */    \
    EXPECT(SHARPI_OK, call);                                            \
    CHECK(((unsigned char*)&box)[first] == 0x77);                       \
    box.out.struct_size = first - 1;                                    \
    EXPECT(SHARPI_E_INVALID_ARGUMENT, call);                            \
    NAMES(#type);                                                       \
    box.out.struct_size = 0;                                            \
    EXPECT(SHARPI_E_INVALID_ARGUMENT, call);                            \
    box.out.struct_size = 0x77777777; /* nobody set it */               \
    EXPECT(SHARPI_E_INVALID_ARGUMENT, call);                            \
  } while (0)
  OUT_STRUCT(sharpi_device, 200, sharpi_device_info(f->context, 0, 0, &box.out, &err));
  OUT_STRUCT(sharpi_plan_summary, 280, sharpi_plan_info(f->plan, &box.out, &err));
  OUT_STRUCT(sharpi_model_summary, 232, sharpi_model_info(f->model, &box.out, &err));
  OUT_STRUCT(sharpi_session_summary, 376, sharpi_session_info(session, &box.out, &err));
  OUT_STRUCT(sharpi_layer_info, 48, sharpi_session_layer(session, 0, &box.out, &err));
  OUT_STRUCT(sharpi_layer_info, 48, sharpi_plan_layer(f->plan, 0, &box.out, &err));
#undef OUT_STRUCT
  sharpi_compact_params compact;
  sharpi_compact_params_init(&compact, sizeof compact);
  compact.budget = 8;
  compact.recency = 4;
  sharpi_compact_report report = {.struct_size = 3};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_compact(session, &compact, &report, &err));
  NAMES("sharpi_compact_report");
  sharpi_session_destroy(session);
}

static void test_init(void) {
  sharpi_context_params_init(NULL, sizeof(sharpi_context_params)); /* harmless */
  sharpi_plan_params_init(NULL, 0);
  unsigned char bytes[8];
  memset(bytes, 0x33, sizeof bytes);
  sharpi_session_params* tiny = (void*)bytes;
  sharpi_session_params_init(tiny, 2); /* no room for the size itself */
  CHECK(bytes[0] == 0x33);
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  CHECK(s.n_ctx == SHARPI_UNSET && s.rewind == 64 && s.prompt_budget == SHARPI_UNSET);
  CHECK(s.capture_window == SHARPI_UNSET && s.recency == SHARPI_UNSET && s.lookahead == 1);
  CHECK(s.sinks == SHARPI_UNSET);
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  CHECK(p.n_gpu_layers == -1 && p.n_gpu_ffn == -1 && p.n_expert_slots == -1);
  CHECK(p.n_chunk == SHARPI_UNSET && p.max_batch == 8 && p.max_logit_rows == SHARPI_UNSET &&
        p.n_sessions == 1);
  CHECK(p.device == SHARPI_UNSET && p.device_budget == SHARPI_ALL_FREE && p.session == NULL);
  sharpi_sampler_params sampler;
  sharpi_sampler_params_init(&sampler, sizeof sampler);
  CHECK(sampler.temperature == 0.7f && sampler.top_k == 40 && sampler.repeat_last_n == 256);
  CHECK(sampler.seed == SHARPI_SEED_RANDOM);
  sharpi_compact_params c;
  sharpi_compact_params_init(&c, sizeof c);
  CHECK(c.budget == SHARPI_UNSET && c.recency == SHARPI_UNSET && c.headroom == 1024);
  CHECK(c.pool_kernel == 13 && c.sinks == SHARPI_UNSET);
}

void test_params(const fixture* f) {
  test_init();
  test_error_struct(f);
  test_context_sizes();
  test_plan_sizes(f);
  test_session_sizes(f);
  test_out_sizes(f);
}
