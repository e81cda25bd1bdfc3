/* SPDX-License-Identifier: MIT */
/* Contexts, devices, plans. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void* host_alloc(void* user_data, uint64_t bytes, uint64_t alignment) {
  (void)user_data;
  return aligned_alloc((size_t)alignment,
                       (size_t)((bytes + alignment - 1) / alignment * alignment));
}
static void host_free(void* user_data, void* pointer, uint64_t bytes) {
  (void)user_data, (void)bytes;
  free(pointer);
}

void test_context(const fixture* f) {
  sharpi_error err;
  sharpi_context* out = NULL;
  sharpi_context_params p;
#define REFUSED(change, name)                                                 \
  do {                                                                        \
    sharpi_context_params_init(&p, sizeof p);                                 \
    change;                                                                   \
    out = (sharpi_context*)(void*)&p;                                         \
    EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_context_create(&p, &out, &err)); \
    CHECK(out == NULL);                                                       \
    NAMES(name);                                                              \
  } while (0)
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_context_create(NULL, NULL, &err));
  REFUSED(p.flags = 2, "flags");
  REFUSED(p.n_threads = 1025, "n_threads 1025");
  REFUSED(p.cpu_isa = 99, "cpu_isa 99");
  REFUSED(p.log_level = 0, "log_level 0");
  REFUSED(p.log_level = 5, "log_level 5");
  REFUSED(p.alloc = host_alloc, "free is null");
  REFUSED(p.free = host_free, "alloc is null");
#undef REFUSED
  sharpi_context_params_init(&p, sizeof p);
  p.reserved = 1;
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_context_create(&p, &out, &err));
  EXPECT(SHARPI_OK, sharpi_context_create(NULL, &out, &err));
  sharpi_context_destroy(out);
  sharpi_context_destroy(NULL);

  sharpi_device d = {.struct_size = sizeof d};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_device_info(NULL, 0, 0, &d, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_device_info(f->context, 0, 0, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_device_info(f->context, 0, 4, &d, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_device_info(f->context, 99, 0, &d, &err));
  EXPECT(SHARPI_OK, sharpi_device_info(f->context, 0, 0, &d, &err));
  CHECK(d.tier == SHARPI_TIER_CPU && d.n_devices >= 1 && d.n_cores == 2 && d.bandwidth == 0.0);
  CHECK(d.total_bytes >= d.free_bytes && d.free_bytes > 0 && d.isa[0] != '\0');
  CHECK(strcmp(d.id, "cpu") == 0);

  uint32_t index = 77;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_device_find(NULL, "0", &index, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_device_find(f->context, NULL, &index, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_device_find(f->context, "0", NULL, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_device_find(f->context, "", &index, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_device_find(f->context, "99", &index, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_device_find(f->context, "no such device", &index, &err));
  CHECK(index == 77);
  EXPECT(SHARPI_OK, sharpi_device_find(f->context, "0", &index, &err));
  CHECK(index == 0);
  index = 77;
  EXPECT(SHARPI_OK, sharpi_device_find(f->context, "CPU", &index, &err));
  CHECK(index == 0);

  CHECK(sharpi_version() == SHARPI_VERSION);
  CHECK(strstr(sharpi_build_info(), "libsharpi 1.0.0") != NULL);
  CHECK(strstr(sharpi_build_info(), "cpu") != NULL);
  CHECK((strstr(sharpi_build_info(), "cuda") != NULL) == SHARPI_TEST_HAS_CUDA);
  CHECK(strcmp(sharpi_tier_name(SHARPI_TIER_CPU), "cpu") == 0);
  CHECK(strcmp(sharpi_tier_name(SHARPI_TIER_CUDA), "cuda") == 0);
  CHECK(strcmp(sharpi_tier_name(SHARPI_TIER_VULKAN), "vulkan") == 0);
  CHECK(strcmp(sharpi_tier_name(0), "none") == 0);
  CHECK(strcmp(sharpi_tier_name(77), "unknown") == 0);
  CHECK(strcmp(sharpi_status_name(SHARPI_OK), "SHARPI_OK") == 0);
  CHECK(strcmp(sharpi_status_name(1), "SHARPI_E_?") == 0);
  CHECK(strcmp(sharpi_status_name(-17), "SHARPI_E_?") == 0);
  for (sharpi_status s = -16; s < 0; ++s)
    CHECK(strncmp(sharpi_status_name(s), "SHARPI_E_", 9) == 0 && sharpi_status_name(s)[9] != '?');
}

/* Every field of the two parameter structs of a plan, one wrong value each. */
static void test_plan_ranges(const fixture* f) {
  sharpi_error err;
  sharpi_plan* out = NULL;
  sharpi_plan_params p;
  sharpi_session_params s;
  const int32_t probe[2] = {1, 2};
#define REFUSED(change, name)                                                                   \
  do {                                                                                          \
    p = small_plan(&s);                                                                         \
    change;                                                                                     \
    EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p, &out, &err)); \
    CHECK(out == NULL);                                                                         \
    NAMES(name);                                                                                \
  } while (0)
  REFUSED(p.n_gpu_layers = -2, "n_gpu_layers -2");
  REFUSED(p.n_gpu_layers = 5, "n_gpu_layers"); /* the model has 4 */
  REFUSED(p.n_gpu_ffn = -2, "n_gpu_ffn -2");
  REFUSED(p.n_expert_slots = -2, "n_expert_slots -2");
  REFUSED(p.n_gpu_experts = -2, "n_gpu_experts -2");
  REFUSED(p.gpu_ends = 3, "gpu_ends 3");
  REFUSED(p.stream_rows = 0x80000000u, "stream_rows 2147483648");
  REFUSED(p.arithmetic = 2, "arithmetic 2");
  REFUSED(p.deterministic = 2, "deterministic 2");
  REFUSED(p.n_chunk = 0, "n_chunk 0");
  REFUSED(p.n_chunk = 65537, "n_chunk 65537");
  REFUSED(p.max_batch = 0, "max_batch 0");
  REFUSED(p.max_batch = 65, "max_batch 65");
  REFUSED(p.max_logit_rows = 0, "max_logit_rows 0");
  REFUSED(p.max_logit_rows = kChunk + 1, "max_logit_rows 17");
  REFUSED(p.max_concurrent = 0, "max_concurrent 0");
  REFUSED(p.max_concurrent = 17, "max_concurrent 17");
  REFUSED(p.n_sessions = 0, "n_sessions 0");
  REFUSED(p.n_sessions = 4097, "n_sessions 4097");
  REFUSED(p.device_rate = -1.0, "device_rate");
  REFUSED(p.pcie_rate = (double)NAN, "pcie_rate");
  REFUSED(p.host_rate = (double)INFINITY, "host_rate");
  REFUSED(p.split = 3, "split 3");
  REFUSED(p.n_devices = 1, "devices");
  REFUSED(p.n_devices = 33, "n_devices 33");
  REFUSED(s.n_ctx = 0, "n_ctx 0");
  REFUSED(s.n_ctx = 0xFFFFFFFEu, "n_ctx 4294967294");
  REFUSED(s.n_ctx = 32769, "n_ctx"); /* the model was trained for 32768 */
  REFUSED(s.k_dtype = 99, "k_dtype 99");
  REFUSED(s.v_dtype = 99, "v_dtype 99");
  REFUSED(s.tail_k_dtype = 99, "tail_k_dtype 99");
  REFUSED(s.tail_v_dtype = 99, "tail_v_dtype 99");
  REFUSED(s.rewind = 65537, "rewind 65537");
  REFUSED(s.n_checkpoints = 1025, "n_checkpoints 1025");
  REFUSED(s.kv_budget = SHARPI_UNSET, "kv_budget");
  REFUSED(s.kv_budget = SHARPI_BUDGET_AUTO, "kv_budget 4294967294");
  REFUSED(s.prompt_budget = 0xFFFFFFFDu, "prompt_budget");
  REFUSED(s.capture_window = 65537, "capture_window 65537");
  REFUSED(s.recency = 0xFFFFFFFEu, "recency");
  REFUSED(s.sinks = 0xFFFFFFFEu, "sinks");
  REFUSED(s.policy = 10, "policy 10");
  REFUSED(s.policy = SHARPI_POLICY_KEEP, "policy 7");
  REFUSED(s.lookahead = 2, "lookahead 2");
  REFUSED(s.per_layer_budgets = 2, "per_layer_budgets 2");
  REFUSED(s.n_draft = 33, "n_draft 33");
  REFUSED((s.n_draft = 1, s.drafters = 12), "drafters 12");
  REFUSED((s.n_draft = 1, s.drafters = 16), "drafters 16");
  REFUSED((s.n_draft = 1, s.drafters = SHARPI_DRAFT_AUTO, s.n_draft_vocab = 15),
          "n_draft_vocab 15");
  REFUSED(s.n_probe = 2, "probe");
  REFUSED((s.n_probe = 65537, s.probe = probe), "n_probe 65537");
  /* What nothing would read is not taken. */
  REFUSED((s.n_probe = 1, s.probe = probe), "n_probe is 1, but there is no kv_budget");
  const int32_t negative[2] = {1, -1}, beyond[2] = {1, INT32_MAX};
  REFUSED((s.kv_budget = 128, s.n_probe = 2, s.probe = negative), "token 1 of the probe is -1");
  REFUSED((s.kv_budget = 128, s.n_probe = 2, s.probe = beyond),
          "token 1 of the probe is 2147483647");
  REFUSED((s.n_probe = 1, s.probe = probe, s.prompt_budget = 64),
          "n_probe is 1, but there is no kv_budget");
  REFUSED(s.policy = SHARPI_POLICY_SPAN, "policy is 5, but there is no kv_budget or prompt_budget");
  REFUSED(s.sinks = 3, "sinks is 3, but there is no kv_budget");
  REFUSED(s.recency = 9, "recency is 9, but there is no kv_budget");
  REFUSED(s.n_draft_vocab = 16, "n_draft_vocab is 16, but drafters is 0");
#undef REFUSED
}

/* A list of devices: every field of an element, and elements of other headers. */
static void test_device_list(const fixture* f) {
  sharpi_error err;
  sharpi_plan* out = NULL;
  sharpi_session_params s;
  sharpi_plan_params p;
  struct {
    sharpi_device_request known;
    uint64_t newer;
  } wide[2];
  sharpi_device_request d[2];
#define REFUSED(status, change, name)                                           \
  do {                                                                          \
    p = small_plan(&s);                                                         \
    p.device = SHARPI_UNSET;                                                    \
    p.devices = d;                                                              \
    p.n_devices = 1;                                                            \
    for (int i = 0; i < 2; ++i) sharpi_device_request_init(&d[i], sizeof d[i]); \
    d[0].device = d[1].device = 0;                                              \
    change;                                                                     \
    EXPECT(status, sharpi_plan_create(f->context, f->path, &p, &out, &err));    \
    CHECK(out == NULL);                                                         \
    NAMES(name);                                                                \
  } while (0)
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].struct_size = 0, "sharpi_device_request");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].device = SHARPI_UNSET, "UNSET");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].n_layers = -2, "n_layers -2");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].n_layers = 1, "n_layers of device 0");
  REFUSED(SHARPI_E_UNSUPPORTED, d[0].reserved = 1, "reserved");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].rate = -1.0, "rate");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].link_rate = (double)NAN, "link_rate");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].link_rate = 1.0, "the host has no link");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, d[0].reserve = d[0].budget = 1, "reserve");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, p.n_devices = 2, "device 0 is twice");
  REFUSED(SHARPI_E_NOT_FOUND, d[0].device = 31, "device 31");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, p.device = 0, "device is given beside a list");
  REFUSED(SHARPI_E_INVALID_ARGUMENT, p.host_budget = 1, "host_budget is given beside a list");
  REFUSED(SHARPI_E_UNSUPPORTED, p.split = SHARPI_SPLIT_TENSOR, "split is 2 (TENSOR)");
  REFUSED(SHARPI_E_DOES_NOT_FIT, d[0].budget = 4096, "budget of device 0");
#undef REFUSED
  p = small_plan(&s);
  p.device = SHARPI_UNSET;
  for (int i = 0; i < 2; ++i) {
    sharpi_device_request_init(&wide[i].known, sizeof wide[i]);
    CHECK(wide[i].newer == 0 && wide[i].known.struct_size == sizeof wide[i]);
    wide[i].known.device = 0;
  }
  p.devices = &wide[0].known;
  p.n_devices = 2;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p, &out, &err));
  NAMES("device 0 is twice"); /* the second one was found behind the first one's tail */
  wide[1].newer = 1;
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_plan_create(f->context, f->path, &p, &out, &err));
  wide[1].known.struct_size = sizeof wide[1].known;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p, &out, &err));
  NAMES("all are of one size");
  p.n_devices = 1;
  wide[0].known.budget = 1u << 30;
  EXPECT(SHARPI_OK, sharpi_plan_create(f->context, f->path, &p, &out, &err));
  sharpi_plan_device row;
  uint32_t n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_devices(NULL, &row, sizeof row, 1, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_devices(out, &row, sizeof row, 1, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_devices(out, &row, sizeof row - 8, 1, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_plan_devices(out, NULL, sizeof row, 0, &n, &err));
  CHECK(n == 1);
  EXPECT(SHARPI_OK, sharpi_plan_devices(out, &row, sizeof row, 1, &n, &err));
  CHECK(row.device == 0 && row.tier == SHARPI_TIER_CPU && row.n_layers == 4 && row.n_ffn == 4);
  CHECK(row.has_embedding == 1 && row.has_head == 1 && row.budget == 1u << 30);
  CHECK(row.refusal[0] == '\0' && strcmp(row.id, "cpu") == 0 && row.name[0] != '\0');
  sharpi_plan_summary summary = {.struct_size = sizeof summary};
  EXPECT(SHARPI_OK, sharpi_plan_info(out, &summary, &err));
  CHECK(summary.n_devices == 1 && row.held_bytes == summary.host_held_bytes);
  CHECK(row.peak_bytes == summary.host_peak_bytes && row.token_bytes == summary.host_token_bytes);
  sharpi_plan_destroy(out);
}

static void test_plan_outputs(const fixture* f) {
  sharpi_error err;
  sharpi_plan_summary s = {.struct_size = sizeof s};
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_info(NULL, &s, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_info(f->plan, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_plan_info(f->plan, &s, &err));
  CHECK(s.n_ctx == kCtx && s.n_layers == 4 && s.n_gpu_layers == 0 && s.n_chunk == kChunk);
  CHECK(s.k_dtype == SHARPI_KV_F32 && s.n_sessions == 4 && s.n_rows > 0);

  const uint32_t row_size = (uint32_t)sizeof(sharpi_memory_row);
  uint32_t n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_rows(NULL, NULL, row_size, 0, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_rows(f->plan, NULL, row_size, 0, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_rows(f->plan, NULL, row_size, 8, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_rows(f->plan, NULL, row_size - 8, 0, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_rows(f->plan, NULL, row_size + 1, 0, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_rows(f->plan, NULL, 4104, 0, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_plan_rows(f->plan, NULL, 4096, 0, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_rows(f->plan, NULL, 0, 0, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_plan_rows(f->plan, NULL, row_size, 0, &n, &err));
  CHECK(n == s.n_rows);
  /* A newer caller's rows are larger: what this library does not know reads as zero. */
  typedef struct {
    sharpi_memory_row row;
    uint64_t newer;
  } wide_row;
  wide_row* rows = malloc(n * sizeof *rows);
  memset(rows, 0x55, n * sizeof *rows);
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL,
         sharpi_plan_rows(f->plan, &rows->row, sizeof(wide_row), n - 1, &n, &err));
  CHECK(rows[0].newer == 0x5555555555555555u); /* nothing was written */
  EXPECT(SHARPI_OK, sharpi_plan_rows(f->plan, &rows->row, sizeof(wide_row), n, &n, &err));
  uint64_t host = 0;
  for (uint32_t i = 0; i < n; ++i) {
    CHECK(rows[i].newer == 0 && rows[i].row.held_bytes >= rows[i].row.payload_bytes);
    CHECK(memchr(rows[i].row.label, 0, sizeof rows[i].row.label) != NULL);
    if (rows[i].row.kind == SHARPI_ROW_ANONYMOUS) {
      host += rows[i].row.held_bytes * (rows[i].row.per_session ? s.n_sessions : 1);
    }
  }
  CHECK(host == s.host_held_bytes);
  free(rows);

  size_t len = 0;
  char text[16];
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_json(NULL, NULL, 0, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_json(f->plan, NULL, 0, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_json(f->plan, NULL, 1, &len, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_plan_json(f->plan, text, sizeof text, &len, &err));
  CHECK(len > sizeof text);
  char* json = malloc(len);
  EXPECT(SHARPI_OK, sharpi_plan_json(f->plan, json, len, &len, &err));
  CHECK(json[0] == '{' && json[len - 1] == '}');
  sharpi_layer_info layer = {.struct_size = sizeof layer};
  EXPECT(SHARPI_OK, sharpi_plan_layer(f->plan, 0, &layer, &err));
  CHECK(layer.tier == SHARPI_TIER_CPU && layer.ffn_tier == SHARPI_TIER_CPU);
  CHECK(layer.device == 0 && layer.ffn_device == 0 && layer.experts_device == SHARPI_UNSET);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_layer(f->plan, 1u << 20, &layer, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_layer(f->plan, 0, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_layer(NULL, 0, &layer, &err));
  sharpi_plan_summary summary = {.struct_size = sizeof summary};
  EXPECT(SHARPI_OK, sharpi_plan_info(f->plan, &summary, &err));
  EXPECT(SHARPI_E_NOT_FOUND,
         sharpi_plan_fallback(f->plan, summary.n_fallbacks, NULL, 0, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_fallback(NULL, 0, NULL, 0, &len, &err));
  free(json);
}

void test_plan(const fixture* f) {
  sharpi_error err;
  sharpi_plan* out = NULL;
  sharpi_session_params s;
  sharpi_plan_params p = small_plan(&s);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(NULL, f->path, &p, &out, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, NULL, &p, &out, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p, NULL, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_plan_create(f->context, "no/such/file", &p, &out, &err));
  NAMES("no/such/file");
  p.host_budget = 1 << 16;
  EXPECT(SHARPI_E_DOES_NOT_FIT, sharpi_plan_create(f->context, f->path, &p, &out, &err));
  CHECK(out == NULL);
  sharpi_plan_destroy(NULL);
  test_plan_ranges(f);
  test_device_list(f);
  test_plan_outputs(f);
}
