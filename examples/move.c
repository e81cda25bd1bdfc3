/* SPDX-License-Identifier: MIT */
/* Moves a session from one process to another through a pipe:
 *   move -m MODEL.gguf -f PROMPT.txt --send | move -m MODEL.gguf --receive
 * The first process reads the prompt and sends the session, in the form that is the same on every
 * tier and placement; the second one takes it over and answers. Each may be on a device of its own
 * (SHARPI_DEVICE), or on another host (ssh, nc). Without --send and --receive one process does
 * both. How much went through, and how fast, goes to stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sharpi.h"
#include "system.h"
#include "util.h"

typedef struct {
  const char *model_path, *prompt_file;
  uint32_t n_ctx, n_predict, n_threads;
  sharpi_kv_dtype k_dtype, v_dtype;
  int sends, receives;
} options;

typedef struct {
  sharpi_context* context;
  sharpi_plan* plan;
  sharpi_model* model;
  sharpi_session* session;
} objects;

static const char kHelp[] =
    "usage: move -m MODEL.gguf [-f FILE] [--send | --receive] [flags]\n"
    "  -m FILE           the model; of both processes the same\n"
    "  -f FILE           a user's message, without its last newline; not with --receive\n"
    "  --send            the session goes to stdout instead of being answered\n"
    "  --receive         the session comes from stdin\n"
    "  -c N|auto         context in tokens (4096); auto = the largest that fits\n"
    "  -n N              tokens to generate at most (64)\n"
    "  -t N              threads, 0 = one per CPU (0)\n"
    "  --kv-type T|K,V   KV rows, of both the same: auto, fp32, bf16, q8_0, q4 (auto)\n";

static void parse_flag(int argc, char** argv, int* i, options* o) {
  const char* flag = argv[*i];
  if (strcmp(flag, "-m") == 0) {
    o->model_path = flag_value(argc, argv, i);
  } else if (strcmp(flag, "-f") == 0) {
    o->prompt_file = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--send") == 0) {
    o->sends = 1;
  } else if (strcmp(flag, "--receive") == 0) {
    o->receives = 1;
  } else if (strcmp(flag, "-c") == 0) {
    o->n_ctx = parse_context(flag, flag_value(argc, argv, i));
  } else if (strcmp(flag, "-n") == 0) {
    o->n_predict = parse_count(flag, flag_value(argc, argv, i), 1, INT32_MAX);
  } else if (strcmp(flag, "-t") == 0) {
    o->n_threads = parse_count(flag, flag_value(argc, argv, i), 0, 1024);
  } else if (strcmp(flag, "--kv-type") == 0) {
    parse_kv_type(flag, flag_value(argc, argv, i), &o->k_dtype, &o->v_dtype);
  } else if (strcmp(flag, "-h") == 0 || strcmp(flag, "--help") == 0) {
    fputs(kHelp, stdout);
    exit(0);
  } else {
    unknown_flag(flag);
  }
}

static options parse_options(int argc, char** argv) {
  options o;
  memset(&o, 0, sizeof o);
  o.n_ctx = 4096;
  o.n_predict = 64;
  for (int i = 1; i < argc; ++i) parse_flag(argc, argv, &i, &o);
  const int reads = o.prompt_file != NULL;
  if (o.model_path == NULL || reads == o.receives || (o.sends && o.receives)) {
    fprintf(stderr, "%s: -m, and -f or --receive are needed\n%s", program_name, kHelp);
    exit(EXIT_USAGE);
  }
  return o;
}

static int open_model(const options* o, objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_context_params context;
  sharpi_context_params_init(&context, sizeof context);
  context.n_threads = o->n_threads;
  context.flags = SHARPI_CONTEXT_READ_ENV;
  if (sharpi_context_create(&context, &x->context, &err)) return report_error("context", &err);
  sharpi_session_params session;
  sharpi_session_params_init(&session, sizeof session);
  session.n_ctx = o->n_ctx;
  session.k_dtype = session.tail_k_dtype = o->k_dtype;
  session.v_dtype = session.tail_v_dtype = o->v_dtype;
  sharpi_plan_params plan;
  sharpi_plan_params_init(&plan, sizeof plan);
  plan.session = &session;
  if (sharpi_plan_create(x->context, o->model_path, &plan, &x->plan, &err) ||
      sharpi_model_load(x->plan, NULL, NULL, &x->model, &err)) {
    return report_error(o->model_path, &err);
  }
  if (sharpi_session_create(x->model, NULL, &x->session, &err)) {
    return report_error("session", &err);
  }
  sharpi_sampler_params sampler; /* it moves with the session */
  sharpi_sampler_params_init(&sampler, sizeof sampler);
  sampler.temperature = 0.0f;
  return sharpi_session_set_sampler(x->session, &sampler, &err) ? report_error("sampler", &err) : 0;
}

static int read_prompt(const options* o, objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  size_t len = 0;
  char* text = read_file(o->prompt_file, &len);
  if (text == NULL) return EXIT_FAILED;
  if (len > 0 && text[len - 1] == '\n') --len;
  const sharpi_message message = {.role = "user", .content = text, .content_len = len};
  sharpi_chat_params chat;
  sharpi_chat_params_init(&chat, sizeof chat);
  chat.messages = &message;
  chat.n_messages = 1;
  uint32_t n = 0;
  int32_t* tokens = chat_tokens(x->model, &chat, &n);
  free(text);
  if (tokens == NULL) return EXIT_FAILED;
  const sharpi_status status = sharpi_session_prefill(x->session, tokens, n, NULL, NULL, &err);
  free(tokens);
  return status == SHARPI_OK ? 0 : report_error("prompt", &err);
}

static void print_rate(const char* what, uint64_t bytes, double seconds) {
  fprintf(stderr, "%s: a session of %s in %.3f s, %.2f GB/s\n", what, human_bytes(bytes).text,
          seconds, seconds > 0 ? (double)bytes / seconds * 1e-9 : 0.0);
}

/* The way out: pieces go to stdout as they come. */
static int32_t write_piece(void* user_data, const void* data, uint64_t bytes) {
  return fwrite(data, 1, (size_t)bytes, user_data) == bytes ? 0 : 1;
}

static int send_session(const objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  uint64_t bytes = 0;
  carry_bytes(stdout);
  const double start = seconds_now();
  if (sharpi_session_save_to(x->session, write_piece, stdout, &bytes, &err) || fflush(stdout) != 0)
    return report_error("sending", &err);
  print_rate("sent", bytes, seconds_now() - start);
  return 0;
}

/* The way in. A new session reads a blob once, in its order, as a pipe gives it. */
typedef struct {
  FILE* from;
  uint64_t n;
  double first; /* when the first byte came; 0 = not yet */
} arrived;

static int32_t read_piece(void* user_data, uint64_t offset, void* out, uint64_t bytes) {
  arrived* a = user_data;
  if (offset != a->n) return 2;
  /* It ends before the session does. */
  if (fread(out, 1, (size_t)bytes, a->from) != bytes) return 1;
  if (a->first == 0) a->first = seconds_now();
  a->n += bytes;
  return 0;
}

static int receive_session(objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  arrived in = {.from = stdin};
  carry_bytes(stdin);
  const sharpi_status status = sharpi_session_restore_from(x->session, read_piece, &in, &err);
  if (status == SHARPI_OK) print_rate("received", in.n, seconds_now() - in.first);
  return status == SHARPI_OK ? 0 : report_error("receiving", &err);
}

static int answer(const options* o, objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  int32_t* tokens = checked_malloc(o->n_predict * sizeof *tokens);
  uint32_t n_all = 0, n = 0;
  sharpi_status status = SHARPI_OK;
  while (n_all < o->n_predict && status == SHARPI_OK) {
    status = sharpi_session_step(x->session, NULL, tokens + n_all, o->n_predict - n_all, &n, &err);
    if (status != SHARPI_OK || sharpi_token_is_end(x->model, tokens[n_all + n - 1])) break;
    n_all += n;
  }
  size_t len = 0;
  char* text = NULL;
  if (status == SHARPI_OK) {
    status = sharpi_detokenize(x->model, tokens, n_all, 0, NULL, 0, &len, &err);
    if (status == SHARPI_E_BUFFER_TOO_SMALL) {
      text = checked_malloc(len + 1);
      status = sharpi_detokenize(x->model, tokens, n_all, 0, text, len, &len, &err);
    }
  }
  free(tokens);
  if (status == SHARPI_OK) printf("%.*s\n", (int)len, text == NULL ? "" : text);
  free(text);
  return status == SHARPI_OK ? 0 : report_error("answer", &err);
}

int main(int argc, char** argv) {
  start_program(&argc, &argv);
  program_name = "move";
  const options o = parse_options(argc, argv);
  objects x = {0};
  int result = open_model(&o, &x);
  if (result == 0) result = o.receives ? receive_session(&x) : read_prompt(&o, &x);
  if (result == 0) result = o.sends ? send_session(&x) : answer(&o, &x);
  sharpi_session_destroy(x.session);
  sharpi_model_destroy(x.model);
  sharpi_plan_destroy(x.plan);
  sharpi_context_destroy(x.context);
  return result;
}
