/* SPDX-License-Identifier: MIT */
/* Grammars and matchers: misuse, and what they are for. */
#include <string.h>

#include "check.h"

static const char kSchema[] =
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"boolean\"}}, \"required\": "
    "[\"a\"]}";

static sharpi_grammar_params schema_params(void) {
  sharpi_grammar_params p;
  sharpi_grammar_params_init(&p, sizeof p);
  p.kind = SHARPI_GRAMMAR_JSON_SCHEMA;
  p.text = kSchema;
  p.text_len = strlen(kSchema);
  return p;
}

static void test_refusals(const fixture* f) {
  sharpi_error err = fresh_error();
  sharpi_grammar* out = NULL;
  sharpi_grammar_params p = schema_params();
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(NULL, &p, &out, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, NULL, &out, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, NULL, &err));
  p.struct_size = 8;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, &out, &err));
  p = schema_params();
  p.kind = 4;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, &out, &err));
  NAMES("kind");
  p = schema_params();
  p.flags = 8;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, &out, &err));
  p.flags = SHARPI_GRAMMAR_MUST_CALL;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, &out, &err));
  NAMES("tools");
  p = schema_params();
  p.kind = SHARPI_GRAMMAR_ANY;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, &out, &err));
  p = schema_params();
  p.text = NULL;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, &out, &err));
  p = schema_params();
  p.text_len = 5;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_compile(f->model, &p, &out, &err));
  NAMES("byte 5");
  static const char kNot[] = "{\"not\": {\"type\": \"null\"}}";
  p.text = kNot;
  p.text_len = strlen(kNot);
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_grammar_compile(f->model, &p, &out, &err));
  NAMES("schema.not");
  CHECK(out == NULL);
  p.flags = SHARPI_GRAMMAR_LENIENT;
  EXPECT(SHARPI_OK, sharpi_grammar_compile(f->model, &p, &out, &err));
  char note[200];
  size_t len = 0;
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_grammar_note(out, 0, NULL, 0, &len, &err));
  EXPECT(SHARPI_OK, sharpi_grammar_note(out, 0, note, sizeof note, &len, &err));
  CHECK(len > 10 && memcmp(note, "schema.not", 10) == 0);
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_grammar_note(out, 1, note, sizeof note, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_grammar_note(NULL, 0, note, sizeof note, &len, &err));
  sharpi_grammar_destroy(out);
  sharpi_grammar_destroy(NULL);
}

static void test_schema_check(void) {
  sharpi_error err = fresh_error();
  static const char kNot[] = "{\"items\": {\"not\": {\"type\": \"null\"}}}";
  EXPECT(SHARPI_OK, sharpi_schema_check(kNot, strlen(kNot), " [1] ", 5, &err));
  EXPECT(SHARPI_E_MISMATCH, sharpi_schema_check(kNot, strlen(kNot), "[1,null]", 8, &err));
  NAMES("$[1] is what it must not be (not)");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_schema_check(kNot, strlen(kNot), "[1", 2, &err));
  NAMES("the text is not JSON");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_schema_check(kNot, 3, "[1]", 3, &err));
  NAMES("the schema is not JSON");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_schema_check(NULL, 0, "1", 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_schema_check("{}", 2, NULL, 0, &err));
}

static void test_matcher(sharpi_matcher* m) {
  sharpi_error err = fresh_error();
  uint32_t mask[kVocab / 32];
  uint32_t n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_mask(NULL, mask, kVocab / 32, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_mask(m, mask, kVocab / 32, NULL, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_matcher_mask(m, mask, 3, &n, &err));
  CHECK(n == kVocab / 32);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_accept(NULL, 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_accept(m, kVocab, &err));
  EXPECT(SHARPI_E_MISMATCH, sharpi_matcher_accept_text(m, "[", 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_accept_text(m, NULL, 1, &err));
  EXPECT(SHARPI_OK, sharpi_matcher_accept_text(m, NULL, 0, &err));
  CHECK(sharpi_matcher_progress(NULL) == SHARPI_MATCH_OPEN);
  CHECK(sharpi_matcher_progress(m) == SHARPI_MATCH_OPEN);

  /* The lowest token that is allowed, until the text is whole. */
  for (int i = 0; i < 64 && sharpi_matcher_progress(m) != SHARPI_MATCH_COMPLETE; ++i) {
    EXPECT(SHARPI_OK, sharpi_matcher_mask(m, mask, kVocab / 32, &n, &err));
    int32_t token = 0;
    while (token < kVocab && ((mask[token / 32] >> (token % 32)) & 1u) == 0) ++token;
    CHECK(token < kVocab);
    EXPECT(SHARPI_OK, sharpi_matcher_accept(m, token, &err));
  }
  CHECK(sharpi_matcher_progress(m) == SHARPI_MATCH_COMPLETE);
  EXPECT(SHARPI_E_MISMATCH, sharpi_matcher_accept_text(m, " ", 1, &err));
}

void test_grammar(const fixture* f) {
  test_schema_check();
  test_refusals(f);
  sharpi_error err = fresh_error();
  sharpi_grammar* grammar = NULL;
  const sharpi_grammar_params p = schema_params();
  EXPECT(SHARPI_OK, sharpi_grammar_compile(f->model, &p, &grammar, &err));
  sharpi_matcher* m = NULL;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_create(NULL, &m, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_create(grammar, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_matcher_create(grammar, &m, &err));
  sharpi_grammar_destroy(grammar); /* the matcher keeps it */
  sharpi_matcher* other = NULL;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_clone(NULL, &other, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_clone(m, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_matcher_accept_text(m, "{\"a\":t", 6, &err));
  EXPECT(SHARPI_OK, sharpi_matcher_clone(m, &other, &err));
  char text[16];
  size_t len = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_matcher_forced(NULL, text, 16, &len, &err));
  EXPECT(SHARPI_OK, sharpi_matcher_forced(m, text, 16, &len, &err));
  CHECK(len == 3 && memcmp(text, "rue", 3) == 0);
  test_matcher(m);
  CHECK(sharpi_matcher_progress(other) == SHARPI_MATCH_OPEN);
  sharpi_matcher_destroy(m);
  sharpi_matcher_destroy(other);
  sharpi_matcher_destroy(NULL);
}
