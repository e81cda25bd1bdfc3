/* SPDX-License-Identifier: MIT */
/* A saved session on its way between machines: move_blob save MODEL BLOB | pass MODEL BLOB COPY
 * `save` reads a text and saves the session; `pass` restores one and saves it again, which is to
 * give the same bytes on every machine. SHARPI_KV_DTYPE says how rows are stored. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sharpi.h"

static int fail(const char* what, const sharpi_error* err) {
  fprintf(stderr, "%s: %s\n", what, err->text);
  return 1;
}

static int write_file(const char* path, const void* data, size_t bytes) {
  FILE* f = fopen(path, "wb");
  const int ok = f != NULL && fwrite(data, 1, bytes, f) == bytes;
  if (f == NULL || fclose(f) != 0 || !ok) {
    perror(path);
    return 1;
  }
  return 0;
}

static unsigned char* read_file(const char* path, size_t* bytes) {
  FILE* f = fopen(path, "rb");
  unsigned char* data = NULL;
  long size = -1;
  if (f != NULL && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
  if (size >= 0 && fseek(f, 0, SEEK_SET) == 0) data = malloc((size_t)size + 1);
  if (data != NULL && fread(data, 1, (size_t)size, f) != (size_t)size) {
    free(data);
    data = NULL;
  }
  if (f != NULL) fclose(f);
  if (data == NULL) perror(path);
  *bytes = (size_t)size;
  return data;
}

static int fill(sharpi_model* model, sharpi_session* session) {
  static const char text[] =
      "The code of ember is 97697, the code of snow is 12345, and no other code is known to "
      "anybody.";
  sharpi_error err = SHARPI_ERROR_INIT;
  int32_t tokens[256];
  uint32_t n = 0;
  if (sharpi_tokenize(model, text, sizeof text - 1, SHARPI_TOKENIZE_ADD_SPECIAL, tokens, 256, &n,
                      &err)) {
    return fail("tokenize", &err);
  }
  if (sharpi_session_prefill(session, tokens, n, NULL, NULL, &err)) return fail("prefill", &err);
  return 0;
}

static int restore(sharpi_session* session, const char* path) {
  sharpi_error err = SHARPI_ERROR_INIT;
  size_t bytes = 0;
  unsigned char* blob = read_file(path, &bytes);
  if (blob == NULL) return 1;
  const sharpi_status status = sharpi_session_restore(session, blob, bytes, &err);
  free(blob);
  return status ? fail("restore", &err) : 0;
}

static int save(const sharpi_session* session, const char* path) {
  sharpi_error err = SHARPI_ERROR_INIT;
  uint64_t bytes = 0;
  sharpi_session_save(session, NULL, 0, &bytes, &err);
  void* blob = malloc(bytes + 1);
  if (blob == NULL) return 1;
  int failed = 0;
  if (sharpi_session_save(session, blob, bytes, &bytes, &err)) failed = fail("save", &err);
  failed = failed || write_file(path, blob, bytes);
  free(blob);
  return failed;
}

int main(int argc, char** argv) {
  const int pass = argc == 5 && strcmp(argv[1], "pass") == 0;
  if (!pass && (argc != 4 || strcmp(argv[1], "save") != 0)) {
    fprintf(stderr, "usage: move_blob save MODEL BLOB | pass MODEL BLOB COPY\n");
    return 2;
  }
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_context_params params;
  sharpi_context* context = NULL;
  sharpi_plan* plan = NULL;
  sharpi_model* model = NULL;
  sharpi_session* session = NULL;
  sharpi_context_params_init(&params, sizeof params);
  params.flags = SHARPI_CONTEXT_READ_ENV;
  int failed = 0;
  if (sharpi_context_create(&params, &context, &err) ||
      sharpi_plan_create(context, argv[2], NULL, &plan, &err) ||
      sharpi_model_load(plan, NULL, NULL, &model, &err) ||
      sharpi_session_create(model, NULL, &session, &err)) {
    failed = fail(argv[2], &err);
  }
  if (!failed) failed = pass ? restore(session, argv[3]) : fill(model, session);
  if (!failed) failed = save(session, argv[argc - 1]);
  sharpi_session_destroy(session);
  sharpi_model_destroy(model);
  sharpi_plan_destroy(plan);
  sharpi_context_destroy(context);
  return failed;
}
