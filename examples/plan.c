/* SPDX-License-Identifier: MIT */
/* What would this file need? Plans a GGUF model from its header and prints every byte, as a table,
 * as JSON, or as an SVG drawing. Loads no weights. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sharpi.h"
#include "system.h"
#include "util.h"

enum { kMaxDevices = 16 };

typedef struct {
  const char *model_path, *svg_path;
  sharpi_plan_params plan;
  sharpi_session_params session;
  const char* devices[kMaxDevices]; /* as sharpi_device_find() reads them, in the order of layers */
  sharpi_device_request requests[kMaxDevices];
  uint32_t n_threads, n_devices;
  int json, ignore_env;
} options;

static const char kHelp[] =
    "usage: plan MODEL.gguf [flags]\n"
    "  -c N|auto          context in tokens (auto = what fits, see sharpi.h)\n"
    "  -g N|auto          layers on the GPU (auto)\n"
    "  --gpu-ffn N|auto   FFN blocks on the GPU (auto)\n"
    "  --gpu-experts N|auto  layers whose routed experts are all on the GPU (auto)\n"
    "  --expert-slots N|auto  single experts on the GPU besides (auto)\n"
    "  --kv-type T|K,V    KV rows: auto, fp32, bf16, q8_0, q4 (auto)\n"
    "  -t N               threads of the CPU tier, of which each has rows of the plan (all)\n"
    "  --sessions N       conversations at once (1)\n"
    "  --chunk N          tokens of one prefill chunk (what pays and fits)\n"
    "  --checkpoints N    recurrent checkpoints of a session (0)\n"
    "  --device D         a device to use, by index, id or name; again for one more\n"
    "  --all-devices      layers on all of them (on as few as hold them)\n"
    "  --gpu-mib N        GPU budget in MiB, of each (all that is free)\n"
    "  --host-mib N       host budget in MiB (all that is free)\n"
    "  --rates D,L,H      GB/s of GPU memory, of the link and of host memory (measured)\n"
    "  --map              weights of the CPU in place in the mapped file, not copied\n"
    "  --exact            f32 activations\n"
    "  --ignore-env       do not read SHARPI_KV_DTYPE and SHARPI_SNAPKV_*, as is done otherwise\n"
    "  --json             the plan as JSON\n"
    "  --svg FILE         the plan as a drawing\n";

static void parse_rates(const char* flag, const char* text, sharpi_plan_params* plan) {
  double* const to[3] = {&plan->device_rate, &plan->pcie_rate, &plan->host_rate};
  for (int i = 0; i < 3; ++i) {
    char* end = NULL;
    *to[i] = strtod(text, &end) * 1e9;
    if (end == text || *to[i] < 0 || *end != (i < 2 ? ',' : '\0')) {
      fprintf(stderr, "%s: %s: three numbers are expected, as 500,13,40\n", program_name, flag);
      exit(EXIT_USAGE);
    }
    text = end + 1;
  }
}

static void parse_flag(int argc, char** argv, int* i, options* o) {
  const char* flag = argv[*i];
  if (strcmp(flag, "-c") == 0) {
    o->session.n_ctx = parse_context(flag, flag_value(argc, argv, i));
  } else if (strcmp(flag, "-g") == 0) {
    o->plan.n_gpu_layers = parse_layers(flag, flag_value(argc, argv, i));
  } else if (strcmp(flag, "--gpu-ffn") == 0) {
    o->plan.n_gpu_ffn = parse_layers(flag, flag_value(argc, argv, i));
  } else if (strcmp(flag, "--gpu-experts") == 0) {
    o->plan.n_gpu_experts = parse_layers(flag, flag_value(argc, argv, i));
  } else if (strcmp(flag, "--expert-slots") == 0) {
    o->plan.n_expert_slots = parse_layers(flag, flag_value(argc, argv, i));
  } else if (strcmp(flag, "--kv-type") == 0) {
    parse_kv_type(flag, flag_value(argc, argv, i), &o->session.k_dtype, &o->session.v_dtype);
    o->session.tail_k_dtype = o->session.k_dtype;
    o->session.tail_v_dtype = o->session.v_dtype;
  } else if (strcmp(flag, "-t") == 0) {
    o->n_threads = parse_count(flag, flag_value(argc, argv, i), 0, 1024);
  } else if (strcmp(flag, "--sessions") == 0) {
    o->plan.n_sessions = parse_count(flag, flag_value(argc, argv, i), 1, 4096);
  } else if (strcmp(flag, "--chunk") == 0) {
    o->plan.n_chunk = parse_count(flag, flag_value(argc, argv, i), 1, 65536);
  } else if (strcmp(flag, "--checkpoints") == 0) {
    o->session.n_checkpoints = parse_count(flag, flag_value(argc, argv, i), 0, 1024);
  } else if (strcmp(flag, "--device") == 0) {
    if (o->n_devices == kMaxDevices) {
      fprintf(stderr, "%s: at most %d devices can be named\n", program_name, kMaxDevices);
      exit(EXIT_USAGE);
    }
    o->devices[o->n_devices++] = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--all-devices") == 0) {
    o->plan.split = SHARPI_SPLIT_ALL;
  } else if (strcmp(flag, "--gpu-mib") == 0) {
    o->plan.device_budget = (uint64_t)parse_count(flag, flag_value(argc, argv, i), 0, INT32_MAX)
                            << 20;
  } else if (strcmp(flag, "--host-mib") == 0) {
    o->plan.host_budget = (uint64_t)parse_count(flag, flag_value(argc, argv, i), 0, INT32_MAX)
                          << 20;
  } else if (strcmp(flag, "--svg") == 0) {
    o->svg_path = flag_value(argc, argv, i);
  } else if (strcmp(flag, "--rates") == 0) {
    parse_rates(flag, flag_value(argc, argv, i), &o->plan);
  } else if (strcmp(flag, "--json") == 0) {
    o->json = 1;
  } else if (strcmp(flag, "--map") == 0) {
    o->plan.load_mode = SHARPI_LOAD_MAP;
  } else if (strcmp(flag, "--exact") == 0) {
    o->plan.arithmetic = SHARPI_ARITHMETIC_EXACT;
  } else if (strcmp(flag, "--ignore-env") == 0) {
    o->ignore_env = 1;
  } else if (strcmp(flag, "-h") == 0 || strcmp(flag, "--help") == 0) {
    fputs(kHelp, stdout);
    exit(0);
  } else if (flag[0] == '-' || o->model_path != NULL) {
    unknown_flag(flag);
  } else {
    o->model_path = flag;
  }
}

static void parse_options(int argc, char** argv, options* o) {
  memset(o, 0, sizeof *o);
  sharpi_plan_params_init(&o->plan, sizeof o->plan);
  sharpi_session_params_init(&o->session, sizeof o->session);
  for (int i = 1; i < argc; ++i) parse_flag(argc, argv, &i, o);
  if (o->model_path == NULL) {
    fputs(kHelp, stderr);
    exit(EXIT_USAGE);
  }
  o->plan.session = &o->session;
}

/* One device is the plain case; several are a list, with the limits of the one for each. */
static int find_devices(const sharpi_context* context, options* o) {
  sharpi_error err = SHARPI_ERROR_INIT;
  for (uint32_t i = 0; i < o->n_devices; ++i) {
    uint32_t index = 0;
    if (sharpi_device_find(context, o->devices[i], &index, &err) != SHARPI_OK)
      return report_error("device", &err);
    if (o->n_devices == 1) o->plan.device = index;
    sharpi_device_request* r = &o->requests[i];
    sharpi_device_request_init(r, sizeof *r);
    r->device = index;
    r->budget = o->plan.device_budget;
    r->rate = o->plan.device_rate;
    r->link_rate = o->plan.pcie_rate;
  }
  if (o->n_devices < 2) return 0;
  o->plan.devices = o->requests;
  o->plan.n_devices = o->n_devices;
  o->plan.device_budget = SHARPI_ALL_FREE;
  o->plan.device_rate = o->plan.pcie_rate = 0;
  return 0;
}

/* What each device has, where there are several besides the host. */
static void print_devices(const sharpi_plan* plan) {
  sharpi_plan_device rows[kMaxDevices + 1];
  uint32_t n = 0;
  if (sharpi_plan_devices(plan, rows, sizeof rows[0], kMaxDevices + 1, &n, NULL) != SHARPI_OK ||
      n < 3)
    return;
  for (uint32_t i = 0; i < n; ++i) {
    printf("device %u, %s: %u layers, %u FFN blocks%s%s, %s%s%s\n", rows[i].device, rows[i].name,
           rows[i].n_layers, rows[i].n_ffn, rows[i].has_embedding ? ", the embedding" : "",
           rows[i].has_head ? ", the head" : "", human_bytes(rows[i].held_bytes).text,
           rows[i].refusal[0] != '\0' ? "; not used: " : "", rows[i].refusal);
  }
  putchar('\n');
}

static int print_json(const sharpi_plan* plan) {
  sharpi_error err = SHARPI_ERROR_INIT;
  size_t len = 0;
  sharpi_status status = sharpi_plan_json(plan, NULL, 0, &len, &err);
  char* text = checked_malloc(len);
  if (status == SHARPI_E_BUFFER_TOO_SMALL) status = sharpi_plan_json(plan, text, len, &len, &err);
  if (status == SHARPI_OK) {
    fwrite(text, 1, len, stdout);
    fputc('\n', stdout);
  }
  free(text);
  return status == SHARPI_OK ? 0 : report_error("json", &err);
}

static void print_summary(const options* o, const sharpi_plan_summary* s) {
  printf("%s: %u layers, %u of them and %u FFN blocks on the GPU", o->model_path, s->n_layers,
         s->n_gpu_layers, s->n_gpu_ffn);
  if (s->expert_slot_bytes != 0) {
    printf(", routed experts of %u layers and %u slots of %s", s->n_gpu_experts, s->n_expert_slots,
           human_bytes(s->expert_slot_bytes).text);
  }
  putchar('\n');
  printf("context %u, KV %s/%s%s, %s of KV a session, chunk %u, %u session%s\n\n", s->n_ctx,
         kv_name(s->k_dtype), kv_name(s->v_dtype), s->narrowed ? " (narrowed to fit)" : "",
         human_bytes(s->kv_payload_bytes).text, s->n_chunk, s->n_sessions,
         s->n_sessions == 1 ? "" : "s");
}

/* What a decoded token reads; the time is a lower bound, known where rates are. */
static void print_prediction(const sharpi_plan_summary* s) {
  printf("a token reads %s of weights on the GPU and %s on the host",
         human_bytes(s->device_token_bytes).text, human_bytes(s->host_token_bytes).text);
  printf(", and up to %s and %s of KV rows and state", human_bytes(s->device_token_row_bytes).text,
         human_bytes(s->host_token_row_bytes).text);
  if (s->token_seconds > 0) {
    printf(": %.2f ms, %.2f ms at the end of the context", s->token_seconds * 1e3,
           s->full_token_seconds * 1e3);
  }
  putchar('\n');
}

static uint64_t bytes_of(const sharpi_memory_row* row, const sharpi_plan_summary* s) {
  if (row->transient) return 0; /* gone when the model is loaded */
  return row->held_bytes * (row->per_session ? s->n_sessions : 1);
}

static void write_escaped(FILE* out, const char* text) {
  for (; *text != '\0'; ++text) {
    switch (*text) {
      case '<':
        fputs("&lt;", out);
        break;
      case '>':
        fputs("&gt;", out);
        break;
      case '&':
        fputs("&amp;", out);
        break;
      default:
        fputc(*text, out);
    }
  }
}

/* One bar: the rows of one kind, side by side, and their names below it. Returns the next y. */
static int write_bar(FILE* out, const sharpi_memory_row* rows, uint32_t n,
                     const sharpi_plan_summary* s, sharpi_row_kind kind, uint64_t largest, int y) {
  static const char* const kColours[] = {"#4e79a7", "#f28e2b", "#59a14f", "#e15759",
                                         "#76b7b2", "#edc948", "#b07aa1", "#9c755f"};
  enum { kLeft = 20, kWidth = 760, kBar = 34, kLine = 18 };
  uint64_t total = 0;
  for (uint32_t i = 0; i < n; ++i) total += rows[i].kind == kind ? bytes_of(&rows[i], s) : 0;
  if (total == 0) return y;
  fprintf(out, "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s: %s</text>\n", kLeft, y + 14,
          kind_name(kind), human_bytes(total).text);
  y += 22;
  double x = kLeft;
  int line = y + kBar + kLine;
  for (uint32_t i = 0, shown = 0; i < n; ++i) {
    const uint64_t bytes = bytes_of(&rows[i], s);
    if (rows[i].kind != kind || bytes == 0) continue;
    const char* colour = kColours[shown++ % (sizeof kColours / sizeof kColours[0])];
    const double width = (double)bytes / (double)largest * (double)kWidth;
    fprintf(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n", x, y,
            width, kBar, colour);
    fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/>", kLeft,
            line - 9, colour);
    fprintf(out, "<text x=\"%d\" y=\"%d\">%s ", kLeft + 18, line, human_bytes(bytes).text);
    write_escaped(out, rows[i].label);
    fputs("</text>\n", out);
    x += width;
    line += kLine;
  }
  return line + kLine;
}

static int write_svg(const options* o, const sharpi_plan_summary* s, const sharpi_memory_row* rows,
                     uint32_t n) {
  static const sharpi_row_kind kKinds[] = {SHARPI_ROW_DEVICE, SHARPI_ROW_PINNED,
                                           SHARPI_ROW_ANONYMOUS, SHARPI_ROW_MAPPED};
  FILE* out = open_file(o->svg_path, "w");
  if (out == NULL) {
    fprintf(stderr, "%s: %s: %s\n", program_name, o->svg_path, strerror(errno));
    return EXIT_FAILED;
  }
  uint64_t largest = 1;
  for (size_t k = 0; k < 4; ++k) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; ++i) total += rows[i].kind == kKinds[k] ? bytes_of(&rows[i], s) : 0;
    if (total > largest) largest = total;
  }
  const int height = 60 + 4 * 80 + (int)n * 18;
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 %d\" "
          "font-family=\"sans-serif\" font-size=\"13\">\n"
          "<rect width=\"800\" height=\"%d\" fill=\"white\"/>\n<text x=\"20\" y=\"26\" "
          "font-size=\"16\">",
          height, height);
  write_escaped(out, o->model_path);
  fprintf(out, ", context %u</text>\n", s->n_ctx);
  int y = 44;
  for (size_t k = 0; k < 4; ++k) y = write_bar(out, rows, n, s, kKinds[k], largest, y);
  fputs("</svg>\n", out);
  if (fclose(out) != 0) {
    fprintf(stderr, "%s: %s: %s\n", program_name, o->svg_path, strerror(errno));
    return EXIT_FAILED;
  }
  return 0;
}

static int show(const options* o, const sharpi_plan* plan) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_plan_summary summary = {.struct_size = sizeof summary};
  if (sharpi_plan_info(plan, &summary, &err)) return report_error("plan", &err);
  uint32_t n = 0;
  sharpi_memory_row* rows = fetch_rows(plan, &n);
  if (rows == NULL) return EXIT_FAILED;
  int result = 0;
  if (o->json) {
    result = print_json(plan);
  } else {
    print_summary(o, &summary);
    print_devices(plan);
    print_fallbacks(plan, summary.n_fallbacks, stdout);
    print_plan(&summary, rows, n, 0);
    print_prediction(&summary);
  }
  if (result == 0 && o->svg_path != NULL) result = write_svg(o, &summary, rows, n);
  free(rows);
  return result;
}

int main(int argc, char** argv) {
  start_program(&argc, &argv);
  program_name = "plan";
  options o;
  parse_options(argc, argv, &o);
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_context_params params;
  sharpi_context_params_init(&params, sizeof params);
  params.n_threads = o.n_threads;
  if (!o.ignore_env) params.flags |= SHARPI_CONTEXT_READ_ENV;
  sharpi_context* context = NULL;
  if (sharpi_context_create(&params, &context, &err)) return report_error("context", &err);
  sharpi_plan* plan = NULL;
  int result = find_devices(context, &o);
  if (result == 0) {
    result = sharpi_plan_create(context, o.model_path, &o.plan, &plan, &err)
                 ? report_error(o.model_path, &err)
                 : show(&o, plan);
  }
  sharpi_plan_destroy(plan);
  sharpi_context_destroy(context);
  return result;
}
