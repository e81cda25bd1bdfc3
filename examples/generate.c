/* SPDX-License-Identifier: MIT */
/* Reads a prompt with a GGUF model and prints what follows. Text goes to stdout; the plan, the
 * banner, progress and speed go to stderr. Ctrl-C ends the generation. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sharpi.h"
#include "system.h"
#include "util.h"

typedef struct {
  const char *model_path, *prompt, *prompt_file, *system, *expect;
  uint32_t n_ctx, n_predict, n_threads;
  draft_flags draft;
  lora_flags loras;
  int32_t n_gpu_layers;
  sharpi_kv_dtype k_dtype, v_dtype;
  sharpi_sampler_params sampler;
  uint32_t thinking; /* SHARPI_CHAT_*: what the template decides without */
  int chat, no_think, think, parse_special, exact, deterministic, map, ignore_env, quiet,
      show_progress;
} options;

/* Everything that is destroyed at the end; null is fine for all of them. */
typedef struct {
  sharpi_context* context;
  sharpi_plan* plan;
  sharpi_model* model;
  sharpi_session* session;
} objects;

static const char kHelp[] =
    "usage: generate -m MODEL.gguf (-p TEXT | -f FILE) [flags]\n"
    "  -m FILE            the model\n"
    "  -p TEXT            the prompt\n"
    "  -f FILE            the prompt from a file, without its last newline\n"
    "  --chat             the prompt is a user's message, in the model's chat format\n"
    "  --system TEXT      system message of the chat\n"
    "  --think --no-think ask a model to think or not to; with neither its template decides\n"
    "  --parse-special    text of control tokens in the prompt becomes these tokens\n"
    "  -n N               tokens to generate at most (256)\n"
    "  -c N|auto          context in tokens (4096); auto = the largest that fits\n"
    "  -t N               threads, 0 = one per CPU (0)\n"
    "  -g N|auto          layers on the GPU (auto)\n"
    "  --kv-type T|K,V    KV rows: auto, fp32, bf16, q8_0, q4 (auto)\n"
    "  --temp X --top-k N --top-p X --min-p X --repeat-penalty X --seed N\n"
    "                     sampling (0.7, 40, 0.95, 0.05, 1, random); --temp 0 is greedy\n"
    "  --draft N          guess up to N tokens, from the text so far and by the file's MTP\n"
    "                     block where it has one and it fits, 0 to 32 (0)\n"
    "  --draft-model FILE a smaller model of the same vocabulary guesses, too, if it fits;\n"
    "                     without --draft up to 8 tokens\n"
    "  --draft-vocab N    the MTP block guesses only tokens with ids below N, a multiple of 16,\n"
    "                     which makes a guess cheaper; 0 = all (0)\n"
    "  --lora FILE[:S]    an adapter (LoRA), and how much of it (1); may be said several times\n"
    "  --exact            f32 activations\n"
    "  --map              weights of the CPU in place in the mapped file, not copied\n"
    "  --deterministic    the same bits for any chunking and number of threads\n"
    "  --ignore-env       do not read SHARPI_KV_DTYPE and SHARPI_SNAPKV_*, as is done otherwise\n"
    "  --progress         show progress although stderr is no terminal\n"
    "  --quiet            the text and errors, nothing else\n"
    "  --expect TEXT      exit 1 unless the generated text contains TEXT\n";

static int parse_switch(const char* flag, options* o) {
  const struct {
    const char* name;
    int* field;
    int value;
  } switches[] = {{"--chat", &o->chat, 1},
                  {"--no-think", &o->no_think, 1},
                  {"--think", &o->think, 1},
                  {"--exact", &o->exact, 1},
                  {"--deterministic", &o->deterministic, 1},
                  {"--map", &o->map, 1},
                  {"--ignore-env", &o->ignore_env, 1},
                  {"--progress", &o->show_progress, 1},
                  {"--quiet", &o->quiet, 1},
                  {"--parse-special", &o->parse_special, 1}};
  for (size_t i = 0; i < sizeof switches / sizeof switches[0]; ++i) {
    if (strcmp(flag, switches[i].name) == 0) {
      *switches[i].field = switches[i].value;
      return 1;
    }
  }
  return 0;
}

static void parse_flag(int argc, char** argv, int* i, options* o) {
  const char* flag = argv[*i];
  if (parse_switch(flag, o) || parse_sampling(flag, argc, argv, i, &o->sampler)) return;
  if (parse_drafts(flag, argc, argv, i, &o->draft)) return;
  if (parse_loras(flag, argc, argv, i, &o->loras)) return;
  if (strcmp(flag, "-m") == 0) {
    o->model_path = flag_value(argc, argv, i);
  } else if (strcmp(flag, "-p") == 0) {
    o->prompt = flag_value(argc, argv, i);
  } else if (strcmp(flag, "-f") == 0) {
    o->prompt_file = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--system") == 0) {
    o->system = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--expect") == 0) {
    o->expect = flag_value(argc, argv, i);
  } else if (strcmp(flag, "-n") == 0) {
    o->n_predict = parse_count(flag, flag_value(argc, argv, i), 1, INT32_MAX);
  } else if (strcmp(flag, "-c") == 0) {
    o->n_ctx = parse_context(flag, flag_value(argc, argv, i));
  } else if (strcmp(flag, "-t") == 0) {
    o->n_threads = parse_count(flag, flag_value(argc, argv, i), 0, 1024);
  } else if (strcmp(flag, "-g") == 0) {
    o->n_gpu_layers = parse_layers(flag, flag_value(argc, argv, i));
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
  o.n_predict = 256;
  o.n_gpu_layers = -1;
  sharpi_sampler_params_init(&o.sampler, sizeof o.sampler);
  for (int i = 1; i < argc; ++i) parse_flag(argc, argv, &i, &o);
  if (o.model_path == NULL || (o.prompt == NULL) == (o.prompt_file == NULL)) {
    fprintf(stderr, "%s: -m and one of -p and -f are needed\n%s", program_name, kHelp);
    exit(EXIT_USAGE);
  }
  if (o.system != NULL && !o.chat) {
    fprintf(stderr, "%s: --system needs --chat\n", program_name);
    exit(EXIT_USAGE);
  }
  o.thinking = (o.think ? SHARPI_CHAT_THINKING : 0) | (o.no_think ? SHARPI_CHAT_NO_THINKING : 0);
  if (is_terminal(stderr) && !o.quiet) o.show_progress = 1;
  return o;
}

/* One line that is written over itself. */
static int32_t show_progress(void* user_data, uint32_t phase, uint64_t done, uint64_t total) {
  enum { kWidth = 32 };
  char bar[kWidth + 1];
  const options* o = user_data;
  if (!o->show_progress || total == 0) return 0;
  const uint64_t filled = done * kWidth / total;
  for (uint64_t i = 0; i < kWidth; ++i) bar[i] = i < filled ? '#' : '.';
  bar[kWidth] = '\0';
  fprintf(stderr, "\r%-7s [%s] %3llu%%%s", phase == SHARPI_PHASE_LOAD ? "load" : "prefill", bar,
          (unsigned long long)(done * 100 / total), done == total ? "\n" : "");
  fflush(stderr);
  return 0;
}

static sharpi_session* volatile running;

static void on_interrupt(int number) {
  (void)number;
  if (running != NULL) sharpi_session_cancel(running);
  signal(SIGINT, SIG_DFL); /* a second Ctrl-C ends the program */
}

static int open_model(options* o, objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_context_params context;
  sharpi_context_params_init(&context, sizeof context);
  context.n_threads = o->n_threads;
  if (!o->ignore_env) context.flags |= SHARPI_CONTEXT_READ_ENV;
  if (sharpi_context_create(&context, &x->context, &err)) return report_error("context", &err);

  sharpi_session_params session;
  sharpi_session_params_init(&session, sizeof session);
  session.n_ctx = o->n_ctx;
  session.k_dtype = session.tail_k_dtype = o->k_dtype;
  session.v_dtype = session.tail_v_dtype = o->v_dtype;
  sharpi_plan_params plan;
  sharpi_plan_params_init(&plan, sizeof plan);
  plan.n_gpu_layers = o->n_gpu_layers;
  plan.arithmetic = o->exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
  plan.deterministic = o->deterministic ? 1 : 0;
  plan.load_mode = o->map ? SHARPI_LOAD_MAP : SHARPI_LOAD_COPY;
  plan.session = &session;
  ask_for_drafts(&o->draft, &plan, &session);
  ask_for_loras(&o->loras, &plan);
  if (sharpi_plan_create(x->context, o->model_path, &plan, &x->plan, &err)) {
    return report_error(o->model_path, &err);
  }
  if (!o->quiet) {
    sharpi_plan_summary summary = {.struct_size = sizeof summary};
    uint32_t n = 0;
    sharpi_memory_row* rows = fetch_rows(x->plan, &n);
    if (rows == NULL || sharpi_plan_info(x->plan, &summary, &err)) return EXIT_FAILED;
    print_plan(&summary, rows, n, 1);
    print_fallbacks(x->plan, summary.n_fallbacks, stderr);
    free(rows);
  }
  if (sharpi_model_load(x->plan, show_progress, o, &x->model, &err)) {
    return report_error(o->model_path, &err);
  }
  if (sharpi_session_create(x->model, NULL, &x->session, &err)) {
    return report_error("session", &err);
  }
  if (sharpi_session_set_sampler(x->session, &o->sampler, &err)) {
    return report_error("sampler", &err);
  }
  return 0;
}

/* What is in force, as key=value: read back from the session, not from the flags. */
static int print_banner(const objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_plan_summary p = {.struct_size = sizeof p};
  sharpi_session_summary s = {.struct_size = sizeof s};
  sharpi_device host = {.struct_size = sizeof host}, gpu = {.struct_size = sizeof gpu};
  if (sharpi_plan_info(x->plan, &p, &err) || sharpi_session_info(x->session, &s, &err) ||
      sharpi_device_info(x->context, 0, 0, &host, &err) ||
      (host.n_devices > 1 && sharpi_device_info(x->context, 1, 0, &gpu, &err))) {
    return report_error("banner", &err);
  }
  const uint32_t n_cpu = p.n_layers - p.n_gpu_layers;
  const int both = p.n_gpu_layers > 0 && n_cpu > 0;
  const char *trunk_k = kv_name(s.k_dtype), *trunk_v = kv_name(s.v_dtype);
  const char* cpu_k = both ? kv_name(s.tail_k_dtype) : n_cpu > 0 ? trunk_k : "none";
  const char* cpu_v = both ? kv_name(s.tail_v_dtype) : n_cpu > 0 ? trunk_v : "none";
  fprintf(stderr,
          "sharpi: gpu_layers=%u gpu_k=%s gpu_v=%s cpu_layers=%u cpu_k=%s cpu_v=%s n_ctx=%u "
          "kv_bytes=%llu kv_held_bytes=%llu gpu_free_bytes=%llu host_free_bytes=%llu threads=%u "
          "isa=%s arithmetic=%s\n",
          p.n_gpu_layers, p.n_gpu_layers > 0 ? trunk_k : "none",
          p.n_gpu_layers > 0 ? trunk_v : "none", n_cpu, cpu_k, cpu_v, s.n_ctx,
          (unsigned long long)p.kv_payload_bytes, (unsigned long long)s.kv_held_bytes,
          (unsigned long long)gpu.free_bytes, (unsigned long long)host.free_bytes, host.n_cores,
          host.isa, p.arithmetic == SHARPI_ARITHMETIC_EXACT ? "exact" : "fast");
  return 0;
}

/* The prompt's text. malloc'ed; null after an error. */
static char* prompt_text(const options* o, size_t* len) {
  if (o->prompt_file != NULL) {
    char* text = read_file(o->prompt_file, len);
    if (text != NULL && *len > 0 && text[*len - 1] == '\n') --*len;
    return text;
  }
  *len = strlen(o->prompt);
  char* text = checked_malloc(*len + 1);
  memcpy(text, o->prompt, *len + 1);
  return text;
}

/* The chat that the prompt starts, as tokens. malloc'ed; null after an error. */
static int32_t* chat_prompt(const options* o, const objects* x, const char* text, size_t len,
                            uint32_t* n) {
  sharpi_message messages[2];
  memset(messages, 0, sizeof messages);
  messages[0].role = "system";
  messages[0].content = o->system;
  messages[0].content_len = o->system != NULL ? strlen(o->system) : 0;
  messages[1].role = "user";
  messages[1].content = text;
  messages[1].content_len = len;
  sharpi_chat_params chat;
  sharpi_chat_params_init(&chat, sizeof chat);
  chat.messages = o->system != NULL ? &messages[0] : &messages[1];
  chat.n_messages = o->system != NULL ? 2 : 1;
  chat.flags = o->thinking;
  return chat_tokens(x->model, &chat, n);
}

/* The prompt as tokens. malloc'ed; null after an error. */
static int32_t* plain_prompt(const options* o, const objects* x, const char* text, size_t len,
                             uint32_t* n) {
  sharpi_error err = SHARPI_ERROR_INIT;
  uint32_t flags = SHARPI_TOKENIZE_ADD_SPECIAL;
  if (o->parse_special) flags |= SHARPI_TOKENIZE_PARSE_SPECIAL;
  int32_t* tokens = NULL;
  sharpi_status status = sharpi_tokenize(x->model, text, len, flags, NULL, 0, n, &err);
  if (status == SHARPI_E_BUFFER_TOO_SMALL) {
    tokens = checked_malloc(*n * sizeof *tokens);
    status = sharpi_tokenize(x->model, text, len, flags, tokens, *n, n, &err);
  }
  if (status == SHARPI_OK) return tokens != NULL ? tokens : checked_malloc(sizeof *tokens);
  report_error("prompt", &err);
  free(tokens);
  return NULL;
}

static int read_prompt(options* o, objects* x) {
  sharpi_error err = SHARPI_ERROR_INIT;
  size_t len = 0;
  uint32_t n = 0;
  char* text = prompt_text(o, &len);
  if (text == NULL) return EXIT_FAILED;
  int32_t* tokens = o->chat ? chat_prompt(o, x, text, len, &n) : plain_prompt(o, x, text, len, &n);
  free(text);
  if (tokens == NULL) return EXIT_FAILED;
  if (n == 0) {
    fprintf(stderr, "%s: the prompt is empty\n", program_name);
    free(tokens);
    return EXIT_USAGE;
  }
  sharpi_prefill_params params;
  sharpi_prefill_params_init(&params, sizeof params);
  params.progress = show_progress;
  params.user_data = o;
  const sharpi_status status = sharpi_session_prefill(x->session, tokens, n, &params, NULL, &err);
  free(tokens);
  return status == SHARPI_OK ? 0 : report_error("prompt", &err);
}

/* Text as it comes, in whole characters, and a copy of it for --expect. */
typedef struct {
  sharpi_text_stream stream;
  char* all;
  size_t len, room;
} printer;

static int print_tokens(const sharpi_model* model, printer* p, const int32_t* tokens, uint32_t n) {
  sharpi_error err = SHARPI_ERROR_INIT;
  for (;;) {
    size_t len = 0;
    const sharpi_status status = sharpi_detokenize_stream(model, &p->stream, tokens, n, 0,
                                                          p->all == NULL ? NULL : p->all + p->len,
                                                          p->room - p->len, &len, &err);
    if (status == SHARPI_OK) {
      fwrite(p->all + p->len, 1, len, stdout);
      fflush(stdout);
      p->len += len;
      return 0;
    }
    if (status != SHARPI_E_BUFFER_TOO_SMALL) return report_error("text", &err);
    p->room = p->len + len + p->room;
    char* larger = checked_malloc(p->room + 1);
    if (p->len > 0) memcpy(larger, p->all, p->len);
    free(p->all);
    p->all = larger;
  }
}

/* What is left of a character that did not end. */
static int print_rest(printer* p) {
  sharpi_error err = SHARPI_ERROR_INIT;
  char rest[16];
  size_t len = 0;
  if (sharpi_text_stream_finish(&p->stream, rest, sizeof rest, &len, &err) != SHARPI_OK) {
    return report_error("text", &err);
  }
  if (len == 0) return 0;
  fwrite(rest, 1, len, stdout);
  char* larger = checked_malloc(p->len + len + 1);
  if (p->len > 0) memcpy(larger, p->all, p->len);
  memcpy(larger + p->len, rest, len);
  free(p->all);
  p->all = larger;
  p->len += len;
  p->room = p->len;
  return 0;
}

static int generate(const options* o, objects* x, printer* p) {
  sharpi_error err = SHARPI_ERROR_INIT;
  int32_t tokens[33];
  for (uint32_t made = 0; made < o->n_predict;) {
    uint32_t n = 0;
    const uint32_t left = o->n_predict - made;
    const uint32_t cap = left < 33 ? left : 33;
    const sharpi_status status = sharpi_session_step(x->session, NULL, tokens, cap, &n, &err);
    if (status == SHARPI_E_KV_FULL || status == SHARPI_E_CANCELLED) {
      if (!o->quiet) fprintf(stderr, "\n%s: stopped: %s\n", program_name, err.text);
      break;
    }
    if (status != SHARPI_OK) return report_error("generate", &err);
    const int ended = sharpi_token_is_end(x->model, tokens[n - 1]);
    const int failed = print_tokens(x->model, p, tokens, ended ? n - 1 : n);
    if (failed) return failed;
    if (ended) break;
    made += n;
  }
  return print_rest(p);
}

static void print_speed(const sharpi_session* session) {
  sharpi_session_summary s = {.struct_size = sizeof s};
  if (sharpi_session_info(session, &s, NULL) != SHARPI_OK) return;
  fprintf(stderr, "prefill: %llu tokens, %.2f s, %.1f tokens/s\n",
          (unsigned long long)s.n_prefill_tokens, s.prefill_seconds,
          s.prefill_seconds > 0 ? (double)s.n_prefill_tokens / s.prefill_seconds : 0.0);
  fprintf(stderr, "decode:  %llu tokens, %.2f s, %.1f tokens/s\n",
          (unsigned long long)s.n_decode_tokens, s.decode_seconds,
          s.decode_seconds > 0 ? (double)s.n_decode_tokens / s.decode_seconds : 0.0);
  sharpi_draft_stats d = {.struct_size = sizeof d};
  if (sharpi_session_drafts(session, &d, NULL) != SHARPI_OK || d.n_passes == 0) return;
  fprintf(stderr, "drafts:  %llu of %llu accepted in %llu passes\n",
          (unsigned long long)d.n_accepted, (unsigned long long)d.n_drafted,
          (unsigned long long)d.n_passes);
}

static int check_expected(const options* o, const printer* p) {
  if (o->expect == NULL) return 0;
  const int found = p->all != NULL && (p->all[p->len] = '\0', strstr(p->all, o->expect) != NULL);
  fprintf(stderr, "expected \"%s\": %s\n", o->expect, found ? "found" : "MISSING");
  return found ? 0 : EXIT_FAILED;
}

int main(int argc, char** argv) {
  start_program(&argc, &argv);
  program_name = "generate";
  options o = parse_options(argc, argv);
  objects x = {0};
  printer p = {0};
  int result = open_model(&o, &x);
  if (result == 0 && o.loras.n != 0) result = use_loras(&o.loras, x.model, x.session);
  if (result == 0 && !o.quiet) result = print_banner(&x);
  if (result == 0) {
    running = x.session;
    signal(SIGINT, on_interrupt);
    result = read_prompt(&o, &x);
  }
  if (result == 0) result = generate(&o, &x, &p);
  if (result == 0) {
    fputc('\n', stdout);
    if (!o.quiet) print_speed(x.session);
    result = check_expected(&o, &p);
    if (fflush(stdout) != 0 || ferror(stdout)) {
      fprintf(stderr, "%s: the text could not be written\n", program_name);
      result = 1;
    }
  }
  running = NULL;
  free(p.all);
  destroy_loras(&o.loras);
  sharpi_session_destroy(x.session);
  sharpi_model_destroy(x.model);
  sharpi_plan_destroy(x.plan);
  sharpi_context_destroy(x.context);
  return result;
}
