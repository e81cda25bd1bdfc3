/* SPDX-License-Identifier: MIT */
#include "util.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"

const char* program_name = "example";

int report_error(const char* what, const sharpi_error* err) {
  fprintf(stderr, "%s: %s: %s: %s\n", program_name, what, sharpi_status_name(err->status),
          err->text);
  return EXIT_FAILED;
}

static void wrong_value(const char* flag, const char* text, const char* allowed) {
  fprintf(stderr, "%s: %s: \"%s\" is not allowed; allowed: %s\n", program_name, flag, text,
          allowed);
  exit(EXIT_USAGE);
}

int parse_drafts(const char* flag, int argc, char** argv, int* i, draft_flags* d) {
  enum { kUsual = 8, kMost = 32 };
  if (strcmp(flag, "--draft") == 0) {
    d->n = parse_count(flag, flag_value(argc, argv, i), 0, kMost);
    d->is_set = 1;
  } else if (strcmp(flag, "--draft-model") == 0) {
    d->model_path = flag_value(argc, argv, i);
    if (!d->is_set) d->n = kUsual;
  } else if (strcmp(flag, "--draft-vocab") == 0) {
    d->n_vocab = parse_count(flag, flag_value(argc, argv, i), 0, 0x7FFFFFFF);
  } else {
    return 0;
  }
  return 1;
}

void ask_for_drafts(const draft_flags* d, sharpi_plan_params* plan,
                    sharpi_session_params* session) {
  session->n_draft = d->n;
  session->drafters = d->n != 0 ? SHARPI_DRAFT_AUTO : 0;
  /* With no drafts the plan refuses these. */
  session->n_draft_vocab = d->n_vocab;
  plan->draft_path = d->model_path;
}

/* The colon before a scale is cut off in place; one that no number follows is a part of the path.
 */
int parse_loras(const char* flag, int argc, char** argv, int* i, lora_flags* l) {
  if (strcmp(flag, "--lora") != 0) return 0;
  flag_value(argc, argv, i);
  char* path = argv[*i];
  if (l->n == kMostLoras) wrong_value(flag, path, "8 adapters at most");
  l->scales[l->n] = 1.0f;
  char* colon = strrchr(path, ':');
  if (colon != NULL && colon[1] != '\0') {
    char* end = NULL;
    const float scale = strtof(colon + 1, &end);
    if (*end == '\0') {
      if (!(scale >= -1e6f && scale <= 1e6f)) wrong_value(flag, path, "FILE or FILE:SCALE");
      l->scales[l->n] = scale;
      *colon = '\0';
    }
  }
  l->paths[l->n++] = path;
  return 1;
}

void ask_for_loras(const lora_flags* l, sharpi_plan_params* plan) {
  plan->adapters = l->paths;
  plan->n_adapters = l->n;
}

int use_loras(lora_flags* l, const sharpi_model* model, sharpi_session* session) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_adapter_use uses[kMostLoras];
  for (uint32_t i = 0; i < l->n; ++i) {
    if (sharpi_adapter_load(model, l->paths[i], &l->loaded[i], &err) != SHARPI_OK) {
      return report_error("adapter", &err);
    }
    uses[i] = (sharpi_adapter_use){l->loaded[i], l->scales[i], 0};
  }
  if (sharpi_session_set_adapters(session, uses, sizeof uses[0], l->n, &err) != SHARPI_OK) {
    return report_error("adapter", &err);
  }
  return 0;
}

void destroy_loras(lora_flags* l) {
  for (uint32_t i = 0; i < l->n; ++i) sharpi_adapter_destroy(l->loaded[i]);
}

void unknown_flag(const char* flag) {
  fprintf(stderr, "%s: unknown flag %s; --help lists the flags\n", program_name, flag);
  exit(EXIT_USAGE);
}

const char* flag_value(int argc, char** argv, int* i) {
  if (*i + 1 >= argc) {
    fprintf(stderr, "%s: %s needs a value\n", program_name, argv[*i]);
    exit(EXIT_USAGE);
  }
  return argv[++*i];
}

static int is_number(const char* text) {
  return *text >= '0' && *text <= '9';
}

uint64_t parse_seed(const char* flag, const char* text) {
  char* end = NULL;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (!is_number(text) || *end != '\0' || errno != 0) {
    wrong_value(flag, text, "a number from 0 to 18446744073709551615");
  }
  return (uint64_t)value;
}

uint32_t parse_count(const char* flag, const char* text, uint32_t low, uint32_t high) {
  char allowed[64];
  char* end = NULL;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (!is_number(text) || *end != '\0' || errno != 0 || value < low || value > high) {
    snprintf(allowed, sizeof allowed, "a number from %u to %u", (unsigned)low, (unsigned)high);
    wrong_value(flag, text, allowed);
  }
  return (uint32_t)value;
}

int32_t parse_layers(const char* flag, const char* text) {
  if (strcmp(text, "auto") == 0 || strcmp(text, "-1") == 0) return -1;
  char* end = NULL;
  errno = 0;
  const unsigned long value = strtoul(text, &end, 10);
  if (!is_number(text) || *end != '\0' || errno != 0 || value > INT32_MAX) {
    wrong_value(flag, text, "auto, or a number of layers from 0");
  }
  return (int32_t)value;
}

uint32_t parse_context(const char* flag, const char* text) {
  char* end = NULL;
  errno = 0;
  if (strcmp(text, "auto") == 0) return SHARPI_UNSET;
  const unsigned long value = strtoul(text, &end, 10);
  if (!is_number(text) || *end != '\0' || errno != 0 || value < 1 || value > INT32_MAX) {
    wrong_value(flag, text, "auto (what fits), or a number of tokens from 1");
  }
  return (uint32_t)value;
}

float parse_real(const char* flag, const char* text, float low, float high) {
  char allowed[64];
  char* end = NULL;
  const float value = strtof(text, &end);
  if (end == text || *end != '\0' || !(value >= low && value <= high)) {
    snprintf(allowed, sizeof allowed, "a number from %g to %g", (double)low, (double)high);
    wrong_value(flag, text, allowed);
  }
  return value;
}

static const struct {
  const char* name;
  sharpi_kv_dtype dtype;
} kKvTypes[] = {{"auto", SHARPI_KV_AUTO}, {"f32", SHARPI_KV_F32},   {"fp32", SHARPI_KV_F32},
                {"bf16", SHARPI_KV_BF16}, {"q8_0", SHARPI_KV_Q8_0}, {"q8", SHARPI_KV_Q8_0},
                {"q4", SHARPI_KV_Q4},     {"tq4", SHARPI_KV_Q4}};

static int find_kv_type(const char* text, size_t len, sharpi_kv_dtype* out) {
  for (size_t i = 0; i < sizeof kKvTypes / sizeof kKvTypes[0]; ++i) {
    if (strlen(kKvTypes[i].name) == len && memcmp(kKvTypes[i].name, text, len) == 0) {
      *out = kKvTypes[i].dtype;
      return 1;
    }
  }
  return 0;
}

void parse_kv_type(const char* flag, const char* text, sharpi_kv_dtype* k, sharpi_kv_dtype* v) {
  const char* comma = strchr(text, ',');
  const size_t k_len = comma != NULL ? (size_t)(comma - text) : strlen(text);
  const char* v_text = comma != NULL ? comma + 1 : text;
  if (!find_kv_type(text, k_len, k) || !find_kv_type(v_text, strlen(v_text), v)) {
    wrong_value(flag, text, "auto, fp32, bf16, q8_0, q4, or two of them as K,V");
  }
}

const char* kv_name(sharpi_kv_dtype dtype) {
  for (size_t i = 1; i < sizeof kKvTypes / sizeof kKvTypes[0]; ++i) {
    if (kKvTypes[i].dtype == dtype) return kKvTypes[i].name;
  }
  return "none";
}

const char* kind_name(sharpi_row_kind kind) {
  switch (kind) {
    case SHARPI_ROW_DEVICE:
      return "device";
    case SHARPI_ROW_PINNED:
      return "pinned";
    case SHARPI_ROW_ANONYMOUS:
      return "host";
    case SHARPI_ROW_MAPPED:
      return "mapped";
    default:
      return "?";
  }
}

size_text human_bytes(uint64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  size_t unit = 0;
  size_text out;
  while (value >= 1024.0 && unit + 1 < sizeof kUnits / sizeof kUnits[0]) {
    value /= 1024.0;
    ++unit;
  }
  snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return out;
}

void* checked_malloc(size_t bytes) {
  void* p = malloc(bytes > 0 ? bytes : 1);
  if (p == NULL) {
    fprintf(stderr, "%s: out of memory (%zu bytes)\n", program_name, bytes);
    exit(EXIT_FAILED);
  }
  return p;
}

char* read_file(const char* path, size_t* len) {
  FILE* file = open_file(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "%s: %s: %s\n", program_name, path, strerror(errno));
    return NULL;
  }
  size_t room = 65536, n = 0;
  char* data = checked_malloc(room + 1);
  for (;;) {
    n += fread(data + n, 1, room - n, file);
    if (n < room) break;
    char* larger = checked_malloc(room * 2 + 1);
    memcpy(larger, data, n);
    free(data);
    data = larger;
    room *= 2;
  }
  const int failed = ferror(file);
  fclose(file);
  if (failed) {
    fprintf(stderr, "%s: %s: cannot be read\n", program_name, path);
    free(data);
    return NULL;
  }
  data[n] = '\0';
  *len = n;
  return data;
}

sharpi_memory_row* fetch_rows(const sharpi_plan* plan, uint32_t* n) {
  sharpi_error err = SHARPI_ERROR_INIT;
  const uint32_t row_size = (uint32_t)sizeof(sharpi_memory_row);
  sharpi_status status = sharpi_plan_rows(plan, NULL, row_size, 0, n, &err);
  if (status != SHARPI_OK && status != SHARPI_E_BUFFER_TOO_SMALL) {
    report_error("plan", &err);
    return NULL;
  }
  sharpi_memory_row* rows = checked_malloc(sizeof *rows * *n);
  status = sharpi_plan_rows(plan, rows, row_size, *n, n, &err);
  if (status == SHARPI_OK) return rows;
  report_error("plan", &err);
  free(rows);
  return NULL;
}

void print_plan(const sharpi_plan_summary* s, const sharpi_memory_row* rows, uint32_t n,
                int to_stderr) {
  FILE* out = to_stderr ? stderr : stdout;
  fprintf(out, "%-6s %-7s %-44s %12s %12s\n", "tier", "kind", "what", "used", "taken");
  for (uint32_t i = 0; i < n; ++i) {
    const sharpi_memory_row* r = &rows[i];
    char what[sizeof r->label + 40];
    const int n_chars = snprintf(what, sizeof what, "%s", r->label);
    if (r->n_layers != 0) {
      snprintf(what + n_chars, sizeof what - (size_t)n_chars, ", %u layer%s from %u", r->n_layers,
               r->n_layers == 1 ? "" : "s", r->first_layer);
    }
    fprintf(out, "%-6s %-7s %-40s%4s %12s %12s\n", sharpi_tier_name(r->tier), kind_name(r->kind),
            what,
            r->per_session ? "/ses"
            : r->transient ? "/ldg"
                           : "",
            human_bytes(r->payload_bytes).text, human_bytes(r->held_bytes).text);
  }
  fprintf(out, "%-14s device %s, host %s, file pages in place %s; one session %s\n",
          "total:", human_bytes(s->device_held_bytes).text, human_bytes(s->host_held_bytes).text,
          human_bytes(s->mapped_bytes).text, human_bytes(s->session_held_bytes).text);
}

void print_fallbacks(const sharpi_plan* plan, uint32_t n, FILE* to) {
  for (uint32_t i = 0; i < n; ++i) {
    sharpi_error err = SHARPI_ERROR_INIT;
    char text[1024];
    size_t len = 0;
    if (sharpi_plan_fallback(plan, i, text, sizeof text, &len, &err) == SHARPI_OK)
      fprintf(to, "%.*s\n", (int)len, text);
  }
}

int32_t* chat_tokens(const sharpi_model* model, const sharpi_chat_params* chat, uint32_t* n) {
  sharpi_error err = SHARPI_ERROR_INIT;
  int32_t* tokens = NULL;
  sharpi_status status = sharpi_chat_tokenize(model, chat, NULL, 0, n, &err);
  if (status == SHARPI_E_BUFFER_TOO_SMALL) {
    tokens = checked_malloc(*n * sizeof *tokens);
    status = sharpi_chat_tokenize(model, chat, tokens, *n, n, &err);
  }
  if (status == SHARPI_OK) return tokens != NULL ? tokens : checked_malloc(sizeof *tokens);
  report_error("chat", &err);
  free(tokens);
  return NULL;
}

int parse_sampling(const char* flag, int argc, char** argv, int* i, sharpi_sampler_params* s) {
  if (strcmp(flag, "--temp") == 0) {
    s->temperature = parse_real(flag, flag_value(argc, argv, i), 0.0f, 1e6f);
  } else if (strcmp(flag, "--top-k") == 0) {
    s->top_k = parse_count(flag, flag_value(argc, argv, i), 0, INT32_MAX);
  } else if (strcmp(flag, "--top-p") == 0) {
    s->top_p = parse_real(flag, flag_value(argc, argv, i), 0.0f, 1.0f);
  } else if (strcmp(flag, "--min-p") == 0) {
    s->min_p = parse_real(flag, flag_value(argc, argv, i), 0.0f, 1.0f);
  } else if (strcmp(flag, "--repeat-penalty") == 0) {
    s->repeat_penalty = parse_real(flag, flag_value(argc, argv, i), 1e-3f, 1e3f);
  } else if (strcmp(flag, "--seed") == 0) {
    s->seed = parse_seed(flag, flag_value(argc, argv, i));
  } else {
    return 0;
  }
  return 1;
}
