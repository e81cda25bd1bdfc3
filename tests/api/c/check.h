/* SPDX-License-Identifier: MIT */
/* A test of the C API in C: the smallest possible harness, and the objects the tests share. */
#ifndef SHARPI_TESTS_API_CHECK_H_
#define SHARPI_TESTS_API_CHECK_H_

#include <stddef.h>
#include <stdint.h>

#include "sharpi.h"

extern int n_checks, n_failures;

void check_true(int ok, const char* text, const char* file, int line);
/* Compares the status; after a failure the error must agree with it and hold one line of text. */
void check_status(sharpi_status expected, sharpi_status got, const sharpi_error* err,
                  const char* call, const char* file, int line);
void check_contains(const char* text, const char* part, const char* file, int line);

#define CHECK(condition) check_true((condition) != 0, #condition, __FILE__, __LINE__)

/* `call` uses `err`, a local sharpi_error. */
#define EXPECT(expected, call)                                       \
  do {                                                               \
    err = fresh_error();                                             \
    const sharpi_status got_ = (call);                               \
    check_status((expected), got_, &err, #call, __FILE__, __LINE__); \
  } while (0)
/* The text of the last failure names this. */
#define NAMES(part) check_contains(err.text, (part), __FILE__, __LINE__)

sharpi_error fresh_error(void);

/* One context, plan and model over the fixture that all tests may read. */
typedef struct {
  const char* path;
  sharpi_context* context;
  sharpi_plan* plan;
  sharpi_model* model;
} fixture;

/* Plan parameters of the fixture: small, CPU only. `session` must live as long as the result. */
sharpi_plan_params small_plan(sharpi_session_params* session);
sharpi_context* make_context(void);
sharpi_session* make_session(const fixture* f);
uint32_t length_of(const sharpi_session* session);
/* n valid token ids that differ. */
const int32_t* some_tokens(void);

enum { kCtx = 64, kChunk = 16, kBatch = 2, kLogitRows = 4, kVocab = 2048 };

void test_params(const fixture* f);
void test_context(const fixture* f);
void test_plan(const fixture* f);
void test_model(const fixture* f);
void test_text(const fixture* f);
void test_grammar(const fixture* f);
void test_session(const fixture* f);
void test_sampling(const fixture* f);
void test_storage(const fixture* f);
void test_callbacks(const fixture* f);
void test_lifetime(const fixture* f);
void test_memory(const fixture* f);
void test_embed(const fixture* f);
void test_adapter(const fixture* f);

#endif
