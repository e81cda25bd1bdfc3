/* SPDX-License-Identifier: MIT */
/* A host in C: plans and loads a model, and takes a sentence through the tokenizer and back. */
#include <sharpi.h>
#include <stdio.h>
#include <string.h>

static int failed(const char* what, const sharpi_error* err) {
  fprintf(stderr, "%s: %s: %s\n", what, sharpi_status_name(err->status), err->text);
  return 1;
}

static int round_trip(const sharpi_model* model, const char* text, sharpi_error* err) {
  int32_t tokens[64];
  char back[256];
  uint32_t n = 0;
  size_t len = 0;
  if (sharpi_tokenize(model, text, strlen(text), 0, tokens, 64, &n, err))
    return failed("tokenize", err);
  if (sharpi_detokenize(model, tokens, n, 0, back, sizeof back, &len, err))
    return failed("detokenize", err);
  if (len != strlen(text) || memcmp(text, back, len) != 0) {
    fprintf(stderr, "the text came back as \"%.*s\"\n", (int)len, back);
    return 1;
  }
  printf("%u tokens\n", (unsigned)n);
  return 0;
}

static int use_model(sharpi_context* context, const char* path, sharpi_error* err) {
  sharpi_session_params session;
  sharpi_plan_params params;
  sharpi_plan_summary summary;
  sharpi_plan* plan = NULL;
  sharpi_model* model = NULL;
  int result = 1;

  sharpi_session_params_init(&session, sizeof session);
  session.n_ctx = 256;
  sharpi_plan_params_init(&params, sizeof params);
  params.n_gpu_layers = 0;
  params.session = &session;
  memset(&summary, 0, sizeof summary);
  summary.struct_size = sizeof summary;
  if (sharpi_plan_create(context, path, &params, &plan, err)) return failed("plan", err);
  if (sharpi_plan_info(plan, &summary, err) || summary.n_layers == 0) {
    result = failed("plan info", err);
  } else if (sharpi_model_load(plan, NULL, NULL, &model, err)) {
    result = failed("load", err);
  } else {
    result = round_trip(model, "Plans don't lie: KV is storage.", err);
  }
  sharpi_model_destroy(model);
  sharpi_plan_destroy(plan);
  return result;
}

int main(int argc, char** argv) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_context_params params;
  sharpi_context* context = NULL;
  int result;
  if (argc != 2) return 2;
  if (sharpi_version() / 10000 != SHARPI_VERSION_MAJOR || sharpi_version() < SHARPI_VERSION) {
    fprintf(stderr, "header %d, library %u\n", SHARPI_VERSION, (unsigned)sharpi_version());
    return 1;
  }
  printf("%s\n", sharpi_build_info());
  sharpi_context_params_init(&params, sizeof params);
  params.n_threads = 1;
  if (sharpi_context_create(&params, &context, &err)) return failed("context", &err);
  result = use_model(context, argv[1], &err);
  sharpi_context_destroy(context);
  return result;
}
