/* SPDX-License-Identifier: MIT */
/* Adapters: all that may be wrong about asking for them. Good ones are adapter_test's. */
#include "check.h"

static void test_loading(const fixture* f) {
  sharpi_error err;
  sharpi_adapter* a = NULL;
  sharpi_adapter_summary info = {.struct_size = sizeof info};
  uint32_t n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_adapter_load(NULL, f->path, &a, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_adapter_load(f->model, NULL, &a, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_adapter_load(f->model, f->path, NULL, &err));
  EXPECT(SHARPI_E_NOT_FOUND, sharpi_adapter_load(f->model, "/no/such/file", &a, &err));
  EXPECT(SHARPI_E_FORMAT, sharpi_adapter_load(f->model, f->path, &a, &err));
  NAMES("no adapter");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_adapter_info(NULL, &info, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_adapter_memory(NULL, NULL, sizeof(sharpi_memory_row), 0, &n, &err));
  CHECK(a == NULL);
  sharpi_adapter_destroy(NULL);
}

static void test_choosing(const fixture* f) {
  sharpi_error err;
  sharpi_session* s = make_session(f);
  const sharpi_adapter_use none = {NULL, 1.0f, 0};
  const uint32_t size = sizeof none;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_adapters(NULL, &none, size, 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_adapters(s, NULL, size, 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_adapters(s, &none, 8, 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_adapters(s, &none, size, 1, &err));
  NAMES("uses[0].adapter is null");
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_set_adapters(s, &none, size, 17, &err));
  EXPECT(SHARPI_OK, sharpi_session_set_adapters(s, NULL, 0, 0, &err));
  sharpi_session_destroy(s);
}

static void test_planning(const fixture* f) {
  sharpi_error err;
  sharpi_plan* plan = NULL;
  sharpi_plan_summary info = {.struct_size = sizeof info};
  sharpi_session_params session;
  sharpi_plan_params p = small_plan(&session);
  const char* paths[1] = {NULL};
  CHECK(p.adapters == NULL && p.n_adapters == 0 && p.adapter_rank == SHARPI_UNSET);
  p.n_adapters = 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p, &plan, &err));
  p.adapters = paths;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p, &plan, &err));
  paths[0] = f->path;
  EXPECT(SHARPI_E_FORMAT, sharpi_plan_create(f->context, f->path, &p, &plan, &err));
  p.n_adapters = 0;
  p.adapter_rank = 5000;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_plan_create(f->context, f->path, &p, &plan, &err));
  NAMES("adapter_rank");
  p.adapter_rank = 16;
  EXPECT(SHARPI_OK, sharpi_plan_create(f->context, f->path, &p, &plan, &err));
  EXPECT(SHARPI_OK, sharpi_plan_info(plan, &info, &err));
  CHECK(info.adapter_rank == 16);
  sharpi_plan_destroy(plan);
}

void test_adapter(const fixture* f) {
  test_loading(f);
  test_choosing(f);
  test_planning(f);
}
