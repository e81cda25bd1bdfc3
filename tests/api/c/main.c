/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "check.h"

int n_checks, n_failures;

void check_true(int ok, const char* text, const char* file, int line) {
  ++n_checks;
  if (ok) return;
  ++n_failures;
  printf("%s:%d: not true: %s\n", file, line, text);
}

void check_status(sharpi_status expected, sharpi_status got, const sharpi_error* err,
                  const char* call, const char* file, int line) {
  ++n_checks;
  const char* complaint = NULL;
  if (got != expected) {
    complaint = "wrong status";
  } else if (expected == SHARPI_OK) {
    if (err->status != SHARPI_OK || err->text[0] != '\0') complaint = "error written on success";
  } else if (err->status != expected) {
    complaint = "sharpi_error.status differs";
  } else if (err->text[0] == '\0') {
    complaint = "no text";
  } else if (memchr(err->text, '\0', sizeof err->text) == NULL) {
    complaint = "text without end";
  } else if (strchr(err->text, '\n') != NULL) {
    complaint = "text of two lines";
  }
  if (complaint == NULL) return;
  ++n_failures;
  printf("%s:%d: %s: %s\n  expected %s, got %s \"%.480s\"\n", file, line, complaint, call,
         sharpi_status_name(expected), sharpi_status_name(got), err->text);
}

void check_contains(const char* text, const char* part, const char* file, int line) {
  ++n_checks;
  if (strstr(text, part) != NULL) return;
  ++n_failures;
  printf("%s:%d: \"%s\" does not name \"%s\"\n", file, line, text, part);
}

sharpi_error fresh_error(void) {
  const sharpi_error err = SHARPI_ERROR_INIT;
  return err;
}

sharpi_plan_params small_plan(sharpi_session_params* session) {
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  sharpi_session_params_init(session, sizeof *session);
  session->n_ctx = kCtx;
  p.n_gpu_layers = 0;
  p.n_chunk = kChunk;
  p.max_batch = kBatch;
  p.max_logit_rows = kLogitRows;
  p.n_sessions = 4;
  p.session = session;
  return p;
}

sharpi_context* make_context(void) {
  sharpi_error err = fresh_error();
  sharpi_context* context = NULL;
  sharpi_context_params p;
  sharpi_context_params_init(&p, sizeof p);
  p.n_threads = 2;
  EXPECT(SHARPI_OK, sharpi_context_create(&p, &context, &err));
  return context;
}

sharpi_session* make_session(const fixture* f) {
  sharpi_error err = fresh_error();
  sharpi_session* session = NULL;
  EXPECT(SHARPI_OK, sharpi_session_create(f->model, NULL, &session, &err));
  return session;
}

uint32_t length_of(const sharpi_session* session) {
  sharpi_error err = fresh_error();
  sharpi_session_summary s = {.struct_size = sizeof s};
  EXPECT(SHARPI_OK, sharpi_session_info(session, &s, &err));
  return s.n_tokens;
}

const int32_t* some_tokens(void) {
  static int32_t tokens[4 * kCtx];
  for (int32_t i = 0; i < 4 * kCtx; ++i) tokens[i] = 1 + (i * 37) % 1000;
  return tokens;
}

static int open_fixture(fixture* f) {
  sharpi_error err = fresh_error();
  sharpi_session_params session;
  const sharpi_plan_params plan = small_plan(&session);
  f->context = make_context();
  EXPECT(SHARPI_OK, sharpi_plan_create(f->context, f->path, &plan, &f->plan, &err));
  if (f->plan == NULL) return 0;
  EXPECT(SHARPI_OK, sharpi_model_load(f->plan, NULL, NULL, &f->model, &err));
  return f->model != NULL;
}

int main(void) {
  fixture f = {.path = SHARPI_TEST_MODEL};
  static void (*const kTests[])(const fixture*) = {
      test_params,   test_context, test_plan,     test_model,   test_text,
      test_grammar,  test_session, test_sampling, test_storage, test_callbacks,
      test_lifetime, test_memory,  test_embed,    test_adapter};
  if (open_fixture(&f)) {
    for (size_t i = 0; i < sizeof kTests / sizeof kTests[0]; ++i) kTests[i](&f);
  }
  sharpi_model_destroy(f.model);
  sharpi_plan_destroy(f.plan);
  sharpi_context_destroy(f.context);
  printf("%d checks, %d failures\n", n_checks, n_failures);
  return n_failures == 0 ? 0 : 1;
}
