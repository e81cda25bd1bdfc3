/* SPDX-License-Identifier: MIT */
/* Reads a long prompt, keeps the KV rows that matter, gives the rest of the memory back, and
 * answers from what is left. The answer goes to stdout; what the session held before and after goes
 * to stderr. With --probe the question is not in the prompt: compaction is aimed at it, then it is
 * asked. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sharpi.h"
#include "system.h"
#include "util.h"

typedef struct {
  const char *model_path, *prompt_file, *probe, *expect;
  uint32_t n_ctx, n_predict, n_threads, budget, window, headroom;
  sharpi_policy policy;
  sharpi_kv_dtype k_dtype, v_dtype;
} options;

typedef struct {
  sharpi_context* context;
  sharpi_plan* plan;
  sharpi_model* model;
  sharpi_session* session;
} objects;

static const char kHelp[] =
    "usage: compact -m MODEL.gguf -f FILE [flags]\n"
    "  -m FILE           the model\n"
    "  -f FILE           a user's message, without its last newline\n"
    "  --budget N        KV rows a layer keeps (256)\n"
    "  --window N        queries at the prompt's end that choose them (64)\n"
    "  --headroom N      free rows that stay committed (64)\n"
    "  --policy NAME     global, snapkv, defensive, value, span, retrieval, replay or mixed\n"
    "                    (the library's choice)\n"
    "  --probe TEXT      a question that is asked after compaction, and chooses the rows\n"
    "  -c N|auto         context in tokens (4096); auto = the largest that fits\n"
    "  -n N              tokens to generate at most (64)\n"
    "  -t N              threads, 0 = one per CPU (0)\n"
    "  --kv-type T|K,V   KV rows: auto, fp32, bf16, q8_0, q4 (auto)\n"
    "  --expect TEXT     exit 1 unless the answer contains TEXT\n"
    "KV types that are left out are read from SHARPI_KV_DTYPE where it is set; with\n"
    "SHARPI_SNAPKV_BUDGET the prompt is compacted to that budget before it is to --budget.\n";

static const char* const kPolicies[] = {"auto", "global",    "snapkv", "defensive", "value",
                                        "span", "retrieval", "keep",   "replay",    "mixed"};

static sharpi_policy parse_policy(const char* flag, const char* text) {
  for (sharpi_policy p = SHARPI_POLICY_AUTO; p <= SHARPI_POLICY_MIXED; ++p) {
    if (p != SHARPI_POLICY_KEEP && strcmp(text, kPolicies[p]) == 0) return p;
  }
  fprintf(stderr,
          "%s: %s \"%s\": auto, global, snapkv, defensive, value, span, retrieval, replay or mixed "
          "is expected\n",
          program_name, flag, text);
  exit(EXIT_USAGE);
}

static void parse_flag(int argc, char** argv, int* i, options* o) {
  const char* flag = argv[*i];
  if (strcmp(flag, "-m") == 0) {
    o->model_path = flag_value(argc, argv, i);
  } else if (strcmp(flag, "-f") == 0) {
    o->prompt_file = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--probe") == 0) {
    o->probe = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--expect") == 0) {
    o->expect = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--budget") == 0) {
    o->budget = parse_count(flag, flag_value(argc, argv, i), 1, 1u << 24);
  } else if (strcmp(flag, "--window") == 0) {
    o->window = parse_count(flag, flag_value(argc, argv, i), 1, 65536);
  } else if (strcmp(flag, "--headroom") == 0) {
    o->headroom = parse_count(flag, flag_value(argc, argv, i), 0, 1u << 24);
  } else if (strcmp(flag, "--policy") == 0) {
    o->policy = parse_policy(flag, flag_value(argc, argv, i));
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
  o.budget = 256;
  o.window = 64;
  o.headroom = 64;
  for (int i = 1; i < argc; ++i) parse_flag(argc, argv, &i, &o);
  if (o.model_path == NULL || o.prompt_file == NULL) {
    fprintf(stderr, "%s: -m and -f are needed\n%s", program_name, kHelp);
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
  session.capture_window = o->window; /* the plan prices the queries and the scratch */
  session.replay = o->policy == SHARPI_POLICY_REPLAY || o->policy == SHARPI_POLICY_MIXED;
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
  sharpi_sampler_params sampler;
  sharpi_sampler_params_init(&sampler, sizeof sampler);
  sampler.temperature = 0.0f;
  if (sharpi_session_set_sampler(x->session, &sampler, &err)) return report_error("sampler", &err);
  return 0;
}

/* A user's message as tokens of the model's chat. malloc'ed; null after an error. */
static int32_t* question_tokens(const sharpi_model* model, const char* text, size_t len,
                                uint32_t* n) {
  const sharpi_message message = {.role = "user", .content = text, .content_len = len};
  sharpi_chat_params chat;
  sharpi_chat_params_init(&chat, sizeof chat);
  chat.messages = &message;
  chat.n_messages = 1;
  chat.flags = SHARPI_CHAT_THINKING;
  return chat_tokens(model, &chat, n);
}

static int read_prompt(const options* o, objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  size_t len = 0;
  char* text = read_file(o->prompt_file, &len);
  if (text == NULL) return EXIT_FAILED;
  if (len > 0 && text[len - 1] == '\n') --len;
  uint32_t n = 0;
  int32_t* tokens = question_tokens(x->model, text, len, &n);
  free(text);
  if (tokens == NULL) return EXIT_FAILED;
  const sharpi_status status = sharpi_session_prefill(x->session, tokens, n, NULL, NULL, &err);
  free(tokens);
  return status == SHARPI_OK ? 0 : report_error("prompt", &err);
}

static int print_memory(const sharpi_session* session, const char* when) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_session_summary s = {.struct_size = sizeof s};
  if (sharpi_session_info(session, &s, &err)) return report_error("info", &err);
  fprintf(
      stderr,
      "%s: %u tokens, %u rows a layer, KV %s live, %s held; resident memory of the process %s\n",
      when, s.n_tokens, s.n_slots_max, human_bytes(s.kv_payload_bytes).text,
      human_bytes(s.kv_held_bytes).text, human_bytes(resident_bytes()).text);
  return 0;
}

static int compact(const options* o, objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_compact_params params;
  sharpi_compact_params_init(&params, sizeof params);
  params.policy = o->policy;
  params.budget = o->budget;
  params.headroom = o->headroom;
  int32_t* question = NULL;
  if (o->probe != NULL) {
    question = question_tokens(x->model, o->probe, strlen(o->probe), &params.n_probe);
    if (question == NULL) return EXIT_FAILED;
    params.probe = question;
  }
  const uint32_t n_question = params.n_probe;
  if (o->policy == SHARPI_POLICY_REPLAY) params.n_probe = 0; /* it asks nothing */
  sharpi_compact_report report = {.struct_size = sizeof report};
  int failed = print_memory(x->session, "before");
  if (!failed && sharpi_session_compact(x->session, &params, &report, &err)) {
    failed = report_error("compact", &err);
  }
  if (!failed) {
    fprintf(
        stderr,
        "policy %s: %u of %u rows stay in %u layers (%u first, %u last, %u by score), %.1f ms\n",
        kPolicies[report.policy], report.rows_after, report.rows_before, report.n_layers,
        report.kept_sinks, report.kept_recent, report.kept_scored,
        report.score_ms + report.move_ms);
    failed = print_memory(x->session, "after");
  }
  if (!failed && question != NULL &&
      sharpi_session_prefill(x->session, question, n_question, NULL, NULL, &err)) {
    failed = report_error("question", &err);
  }
  free(question);
  return failed;
}

/* Prints the answer and looks for what is expected in it. */
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
  if (status == SHARPI_OK || status == SHARPI_E_KV_FULL) {
    status = sharpi_detokenize(x->model, tokens, n_all, 0, NULL, 0, &len, &err);
    if (status == SHARPI_E_BUFFER_TOO_SMALL) {
      text = checked_malloc(len + 1);
      status = sharpi_detokenize(x->model, tokens, n_all, 0, text, len, &len, &err);
    }
  }
  free(tokens);
  int result = status == SHARPI_OK ? 0 : report_error("answer", &err);
  if (text != NULL) {
    text[len] = '\0';
    puts(text);
  }
  fflush(stdout);
  if (result == 0 && o->expect != NULL) {
    const int found = text != NULL && strstr(text, o->expect) != NULL;
    fprintf(stderr, "expected \"%s\": %s\n", o->expect, found ? "found" : "MISSING");
    if (!found) result = EXIT_FAILED;
  }
  free(text);
  return result;
}

int main(int argc, char** argv) {
  start_program(&argc, &argv);
  program_name = "compact";
  const options o = parse_options(argc, argv);
  objects x = {0};
  int result = open_model(&o, &x);
  if (result == 0) result = read_prompt(&o, &x);
  if (result == 0) result = compact(&o, &x);
  if (result == 0) result = answer(&o, &x);
  sharpi_session_destroy(x.session);
  sharpi_model_destroy(x.model);
  sharpi_plan_destroy(x.plan);
  sharpi_context_destroy(x.context);
  return result;
}
