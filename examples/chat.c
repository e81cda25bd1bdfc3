/* SPDX-License-Identifier: MIT */
/* Talks with a GGUF model in its own chat format. Answers go to stdout as they come; everything
 * else goes to stderr. Ctrl-C stops an answer, not the program; /help lists what can be said
 * besides. */
#include "chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"
#include "terminal.h"

static const char kHelp[] =
    "usage: chat -m MODEL.gguf [flags]\n"
    "  -m FILE            the model\n"
    "  --system TEXT      system message\n"
    "  --think --no-think ask a model to think or not to; with neither its template decides\n"
    "  -n N               tokens of an answer at most (1024)\n"
    "  -c N|auto          context in tokens (auto = what fits, see sharpi.h)\n"
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
    "  --exact            f32 activations: slower, and what very small models need to answer well\n"
    "  --speeds           tokens per second after each answer\n"
    "  --ignore-env       do not read SHARPI_KV_DTYPE and SHARPI_SNAPKV_*, as is done otherwise\n";

static const char kCommands[] =
    "/regen             answer the last message again\n"
    "/compact [ROWS]    keep the rows that matter, ROWS of each layer (half, at least 256)\n"
    "/save FILE         the conversation as JSON\n"
    "/plan              what is placed where, and every byte\n"
    "/reset             forget the conversation\n"
    "/help              this list\n"
    "/exit              or the end of the input: leave\n";

/* What /compact leaves of a conversation at least, unless it is told a number. */
enum { kLeastRows = 256 };

static void parse_flag(int argc, char** argv, int* i, options* o) {
  const char* flag = argv[*i];
  if (parse_sampling(flag, argc, argv, i, &o->sampler)) return;
  if (parse_drafts(flag, argc, argv, i, &o->draft)) return;
  if (strcmp(flag, "-m") == 0) {
    o->model_path = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--system") == 0) {
    o->system = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--think") == 0) {
    o->chat_flags |= SHARPI_CHAT_THINKING;
  } else if (strcmp(flag, "--no-think") == 0) {
    o->chat_flags |= SHARPI_CHAT_NO_THINKING;
  } else if (strcmp(flag, "--speeds") == 0) {
    o->speeds = 1;
  } else if (strcmp(flag, "--exact") == 0) {
    o->exact = 1;
  } else if (strcmp(flag, "--ignore-env") == 0) {
    o->ignore_env = 1;
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
  o.n_ctx = SHARPI_UNSET;
  o.n_predict = 1024;
  o.n_gpu_layers = -1;
  sharpi_sampler_params_init(&o.sampler, sizeof o.sampler);
  for (int i = 1; i < argc; ++i) parse_flag(argc, argv, &i, &o);
  if (o.model_path == NULL) {
    fprintf(stderr, "%s: -m is needed\n%s", program_name, kHelp);
    exit(EXIT_USAGE);
  }
  o.show_progress = is_terminal(stderr);
  return o;
}

/* Ctrl-C: stops an answer. */
static int stop_answer(void) {
  sharpi_session* const session = running;
  if (session == NULL) return 0;
  sharpi_session_cancel(session);
  return 1;
}

static int open_model(chat* c) {
  sharpi_error err = SHARPI_ERROR_INIT;
  options* o = &c->o;
  sharpi_context_params context;
  sharpi_context_params_init(&context, sizeof context);
  context.n_threads = o->n_threads;
  if (!o->ignore_env) context.flags |= SHARPI_CONTEXT_READ_ENV;
  if (sharpi_context_create(&context, &c->context, &err)) return report_error("context", &err);
  sharpi_session_params session;
  sharpi_session_params_init(&session, sizeof session);
  session.n_ctx = o->n_ctx;
  session.k_dtype = session.tail_k_dtype = o->k_dtype;
  session.v_dtype = session.tail_v_dtype = o->v_dtype;
  session.capture_window = 32; /* what /compact chooses by */
  sharpi_plan_params plan;
  sharpi_plan_params_init(&plan, sizeof plan);
  plan.n_gpu_layers = o->n_gpu_layers;
  plan.arithmetic = o->exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
  plan.session = &session;
  ask_for_drafts(&o->draft, &plan, &session);
  sharpi_plan_summary summary = {.struct_size = sizeof summary};
  if (sharpi_plan_create(c->context, o->model_path, &plan, &c->plan, &err) ||
      sharpi_plan_info(c->plan, &summary, &err)) {
    return report_error(o->model_path, &err);
  }
  print_fallbacks(c->plan, summary.n_fallbacks, stderr);
  if (sharpi_model_load(c->plan, show_progress, o, &c->model, &err)) {
    return report_error(o->model_path, &err);
  }
  return new_session(c);
}

/* ---- Commands ---- */

static void compact(chat* c, const char* argument) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_session_summary s = {.struct_size = sizeof s};
  if (sharpi_session_info(c->session, &s, &err)) {
    report_error("compact", &err);
    return;
  }
  char* end = NULL;
  /* Nobody knows what will be asked next: with less than half most answers are gone. */
  const uint32_t half = s.n_slots_max / 2 > kLeastRows ? s.n_slots_max / 2 : kLeastRows;
  const unsigned long rows = *argument != '\0' ? strtoul(argument, &end, 10) : half;
  if ((end != NULL && *end != '\0') || rows == 0 || rows > UINT32_MAX - 16) {
    fprintf(stderr, "/compact takes a number of rows from 1 on\n");
    return;
  }
  if (rows >= s.n_slots_max) {
    fprintf(stderr, "%u rows a layer: nothing to compact\n", s.n_slots_max);
    return;
  }
  sharpi_compact_params params;
  sharpi_compact_params_init(&params, sizeof params);
  params.budget = (uint32_t)rows;
  params.progress = show_progress;
  params.user_data = &c->o;
  sharpi_compact_report report = {.struct_size = sizeof report};
  sharpi_session_resume(c->session);
  running = c->session;
  const sharpi_status status = sharpi_session_compact(c->session, &params, &report, &err);
  running = NULL;
  if (status != SHARPI_OK) {
    report_error("compact", &err);
    return;
  }
  fprintf(stderr, "%u of %u rows a layer kept (%u first, %u last, %u by score), %s of %s held\n",
          report.rows_after, report.rows_before, report.kept_sinks, report.kept_recent,
          report.kept_scored, human_bytes(report.held_after).text,
          human_bytes(report.held_before).text);
}

static void write_json_string(FILE* out, const char* text, size_t len) {
  fputc('"', out);
  for (size_t i = 0; i < len; ++i) {
    const unsigned char byte = (unsigned char)text[i];
    if (byte == '"' || byte == '\\') {
      fprintf(out, "\\%c", byte);
    } else if (byte < 0x20) {
      fprintf(out, "\\u%04x", byte);
    } else {
      fputc(byte, out);
    }
  }
  fputc('"', out);
}

static void save(const chat* c, const char* path) {
  FILE* out = *path != '\0' ? open_file(path, "wb") : NULL;
  if (out == NULL) {
    fprintf(stderr, "/save %s: %s\n", path, *path != '\0' ? strerror(errno) : "which FILE?");
    return;
  }
  fprintf(out, "[");
  for (uint32_t i = 0; i < c->n_turns; ++i) {
    fprintf(out, "%s\n  {\"role\": ", i > 0 ? "," : "");
    write_json_string(out, c->turns[i].role, strlen(c->turns[i].role));
    fprintf(out, ", \"content\": ");
    write_json_string(out, c->turns[i].text, c->turns[i].len);
    fprintf(out, "}");
  }
  fprintf(out, "\n]\n");
  const int failed = ferror(out);
  if (fclose(out) != 0 || failed) {
    fprintf(stderr, "/save %s: %s\n", path, strerror(errno));
    return;
  }
  fprintf(stderr, "%u messages saved\n", c->n_turns);
}

static void show_plan(const chat* c) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_plan_summary summary = {.struct_size = sizeof summary};
  uint32_t n = 0;
  sharpi_memory_row* rows = fetch_rows(c->plan, &n);
  if (rows == NULL) return;
  if (sharpi_plan_info(c->plan, &summary, &err)) {
    report_error("plan", &err);
  } else {
    print_plan(&summary, rows, n, 1);
  }
  free(rows);
}

static void reset(chat* c) {
  while (c->n_turns > 0) drop_turn(c);
  if (c->o.system != NULL) add_turn(c, "system", c->o.system, strlen(c->o.system));
}

static int regenerate(chat* c) {
  if (c->n_turns == 0 || strcmp(c->turns[c->n_turns - 1].role, "assistant") != 0) {
    fprintf(stderr, "there is no answer yet\n");
    return 0;
  }
  drop_turn(c);
  return respond(c);
}

/* What begins with a slash. 1: leave. */
static int command(chat* c, const char* line) {
  if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0) return 1;
  if (strcmp(line, "/regen") == 0) {
    regenerate(c);
  } else if (strcmp(line, "/compact") == 0 || strncmp(line, "/compact ", 9) == 0) {
    compact(c, line[8] == '\0' ? "" : line + 9);
  } else if (strcmp(line, "/save") == 0 || strncmp(line, "/save ", 6) == 0) {
    save(c, line[5] == '\0' ? "" : line + 6);
  } else if (strcmp(line, "/plan") == 0) {
    show_plan(c);
  } else if (strcmp(line, "/reset") == 0) {
    reset(c);
  } else {
    if (strcmp(line, "/help") != 0) fprintf(stderr, "no such command\n");
    fputs(kCommands, stderr);
  }
  return 0;
}

/* The next line without its end, malloc'ed; null at the end of the input. */
static char* read_line(void) {
  const int asks = is_terminal(stdin);
  size_t len = 0, room = 256;
  char* line = checked_malloc(room);
  if (asks) fprintf(stderr, "> ");
  for (;;) {
    const int byte = next_byte();
    if (byte == kInterrupted) {
      len = 0;
      fprintf(stderr, "\n(/exit leaves)\n> ");
      continue;
    }
    if (byte == EOF && len == 0) {
      free(line);
      return NULL;
    }
    if (byte == EOF || byte == '\n') break;
    if (len + 2 > room) {
      room *= 2;
      line = realloc(line, room);
      if (line == NULL) abort();
    }
    line[len++] = (char)byte;
  }
  line[len] = '\0';
  return line;
}

static int talk(chat* c) {
  int result = 0;
  for (int left = 0; !left;) {
    char* line = read_line();
    if (line == NULL) break;
    if (line[0] == '/') {
      left = command(c, line);
    } else if (line[0] != '\0') {
      add_turn(c, "user", line, strlen(line));
      result = respond(c);
      left = result != 0;
    }
    free(line);
  }
  return result;
}

int main(int argc, char** argv) {
  program_name = "chat";
  start_program(&argc, &argv);
  chat c = {0};
  c.o = parse_options(argc, argv);
  int result = open_model(&c);
  if (result == 0 && catch_interrupts(stop_answer) != 0) result = EXIT_FAILED;
  if (result == 0) {
    reset(&c);
    result = talk(&c);
  }
  while (c.n_turns > 0) drop_turn(&c);
  free(c.turns);
  free(c.held);
  sharpi_session_destroy(c.session);
  sharpi_model_destroy(c.model);
  sharpi_plan_destroy(c.plan);
  sharpi_context_destroy(c.context);
  return result;
}
