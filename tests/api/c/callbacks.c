/* SPDX-License-Identifier: MIT */
/* What a callback may do, when calls overlap, in which order objects may go, and what happens when
 * the host's allocator says no. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

typedef struct {
  sharpi_session* session;
  uint32_t n_calls, cancel_at, wrong_phase;
  int reenter, use_cancel;
  uint64_t last_done, total;
} observer;

/* Calls back into the session that is being read: every call must say BUSY, nothing may hang. */
static void reenter(sharpi_session* s) {
  sharpi_error err;
  uint32_t n = 0;
  uint64_t len = 0;
  int32_t token = 0;
  float logit = 0;
  sharpi_session* copy = NULL;
  sharpi_session_summary sum = {.struct_size = sizeof sum};
  sharpi_layer_info layer = {.struct_size = sizeof layer};
  sharpi_compact_params compact;
  sharpi_compact_params_init(&compact, sizeof compact);
  compact.budget = 8;
  compact.recency = 0;
  EXPECT(SHARPI_E_BUSY, sharpi_session_prefill(s, some_tokens(), 1, NULL, NULL, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_decode(s, 1, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_decode_batch(&s, some_tokens(), 1, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_set_sampler(s, NULL, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_sample(s, NULL, &token, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_step(s, NULL, &token, 1, &n, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_reserve(s, 1, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_truncate(s, 0, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_checkpoint(s, 0, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_restore(s, &len, sizeof len, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_compact(s, &compact, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_session_info(s, &sum, &err)); /* the one that works here */
  EXPECT(SHARPI_E_BUSY, sharpi_session_layer(s, 0, &layer, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_logits(s, 0, &logit, 1, &n, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_reachable(s, NULL, 0, &n, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_fork(s, &copy, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_save(s, NULL, 0, &len, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_memory(s, NULL, sizeof(sharpi_memory_row), 0, &n, &err));
  EXPECT(SHARPI_E_BUSY, sharpi_session_kept(s, 0, 0, NULL, 0, &n, &err));
}

static int32_t observe(void* user_data, uint32_t phase, uint64_t done, uint64_t total) {
  observer* o = user_data;
  ++o->n_calls;
  if (phase != SHARPI_PHASE_PREFILL) o->wrong_phase = 1;
  o->last_done = done;
  o->total = total;
  if (o->reenter) reenter(o->session);
  if (o->cancel_at == 0 || done != (uint64_t)o->cancel_at * kChunk) return 0; /* chunk by chunk */
  if (!o->use_cancel) return 1;
  sharpi_session_cancel(o->session);
  return 0;
}

static void test_prefill_callbacks(const fixture* f) {
  sharpi_error err;
  observer o = {.session = make_session(f), .reenter = 1};
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.progress = observe;
  p.user_data = &o;
  uint32_t done = 0;
  EXPECT(SHARPI_OK, sharpi_session_prefill(o.session, some_tokens(), 40, &p, &done, &err));
  CHECK(done == 40 && o.n_calls > 3 && o.last_done == 40 && o.total == 40 && !o.wrong_phase);
  EXPECT(SHARPI_OK, sharpi_session_decode(o.session, 1, &err)); /* and nothing is left locked */

  for (int use_cancel = 0; use_cancel < 2; ++use_cancel) {
    EXPECT(SHARPI_OK, sharpi_session_truncate(o.session, 0, &err));
    o.n_calls = 0;
    o.reenter = 0;
    o.cancel_at = 2;
    o.use_cancel = use_cancel;
    EXPECT(SHARPI_E_CANCELLED,
           sharpi_session_prefill(o.session, some_tokens(), 50, &p, &done, &err));
    CHECK(done == 2 * kChunk && length_of(o.session) == 2 * kChunk);
    o.cancel_at = 0; /* what is left can be read */
    EXPECT(SHARPI_OK,
           sharpi_session_prefill(o.session, some_tokens() + done, 50 - done, &p, &done, &err));
    CHECK(length_of(o.session) == 50);
  }
  sharpi_session_cancel(o.session); /* idle: the next call answers it, once */
  EXPECT(SHARPI_E_CANCELLED, sharpi_session_decode(o.session, 1, &err));
  EXPECT(SHARPI_OK, sharpi_session_decode(o.session, 1, &err));
  sharpi_session_cancel(o.session);
  sharpi_session_resume(o.session); /* taken back */
  sharpi_session_resume(NULL);
  EXPECT(SHARPI_OK, sharpi_session_decode(o.session, 1, &err));
  EXPECT(SHARPI_OK, sharpi_session_prefill(o.session, some_tokens(), 2, NULL, NULL, &err));
  sharpi_session_destroy(o.session);
}

typedef struct {
  uint32_t n_calls, cancel_at;
  uint64_t last_done, total;
} load_observer;

static int32_t observe_load(void* user_data, uint32_t phase, uint64_t done, uint64_t total) {
  load_observer* o = user_data;
  CHECK(phase == SHARPI_PHASE_LOAD && done <= total && done >= o->last_done);
  o->last_done = done;
  o->total = total;
  return ++o->n_calls == o->cancel_at;
}

static void test_load_callbacks(const fixture* f) {
  sharpi_error err;
  sharpi_model* model = NULL;
  load_observer o = {0};
  EXPECT(SHARPI_OK, sharpi_model_load(f->plan, observe_load, &o, &model, &err));
  CHECK(o.n_calls > 0 && o.last_done == o.total && o.total > 0);
  sharpi_model_destroy(model);
  const uint32_t n = o.n_calls;
  for (uint32_t at = 1; at <= n; ++at) {
    load_observer c = {.cancel_at = at};
    EXPECT(SHARPI_E_CANCELLED, sharpi_model_load(f->plan, observe_load, &c, &model, &err));
    CHECK(model == NULL && c.n_calls == at);
  }
}

void test_callbacks(const fixture* f) {
  test_prefill_callbacks(f);
  test_load_callbacks(f);
}

/* Every order of giving up four handles; the session is used after each step while it lives. */
void test_lifetime(const fixture* f) {
  sharpi_error err;
  for (int order = 0; order < 24; ++order) {
    sharpi_session_params sp;
    const sharpi_plan_params pp = small_plan(&sp);
    sharpi_context* context = make_context();
    sharpi_plan* plan = NULL;
    sharpi_model* model = NULL;
    sharpi_session* session = NULL;
    EXPECT(SHARPI_OK, sharpi_plan_create(context, f->path, &pp, &plan, &err));
    EXPECT(SHARPI_OK, sharpi_model_load(plan, NULL, NULL, &model, &err));
    EXPECT(SHARPI_OK, sharpi_session_create(model, NULL, &session, &err));
    int left[4] = {0, 1, 2, 3}, rest = order;
    for (int n = 4; n > 0; --n) {
      const int at = rest % n;
      const int which = left[at];
      rest /= n;
      memmove(&left[at], &left[at + 1], (size_t)(n - at - 1) * sizeof left[0]);
      if (which == 0) sharpi_context_destroy(context);
      if (which == 1) sharpi_plan_destroy(plan);
      if (which == 2) sharpi_model_destroy(model);
      if (which == 3) sharpi_session_destroy(session), session = NULL;
      if (session != NULL) EXPECT(SHARPI_OK, sharpi_session_decode(session, 1, &err));
    }
  }
}

/* An allocator that fails at the n-th request and counts what is live. */
typedef struct {
  uint64_t n_requests, fail_at;
  int64_t live_blocks, live_bytes;
  int misaligned;
} counting_host;

static void* counting_alloc(void* user_data, uint64_t bytes, uint64_t alignment) {
  counting_host* h = user_data;
  if (++h->n_requests == h->fail_at) return NULL;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) h->misaligned = 1;
  void* p =
      aligned_alloc((size_t)alignment, (size_t)((bytes + alignment - 1) / alignment * alignment));
  if (p != NULL) ++h->live_blocks, h->live_bytes += (int64_t)bytes;
  return p;
}

static void counting_free(void* user_data, void* pointer, uint64_t bytes) {
  counting_host* h = user_data;
  --h->live_blocks;
  h->live_bytes -= (int64_t)bytes;
  free(pointer);
}

/* Creates everything and reads two chunks. The first failure ends it; its status is returned. */
static sharpi_status whole_life(const fixture* f, counting_host* h, sharpi_error* err) {
  sharpi_context_params cp;
  sharpi_context_params_init(&cp, sizeof cp);
  cp.n_threads = 2;
  cp.alloc = counting_alloc;
  cp.free = counting_free;
  cp.alloc_user_data = h;
  sharpi_session_params sp;
  const sharpi_plan_params pp = small_plan(&sp);
  sharpi_context* context = NULL;
  sharpi_plan* plan = NULL;
  sharpi_model* model = NULL;
  sharpi_session *session = NULL, *copy = NULL;
  sharpi_status status = sharpi_context_create(&cp, &context, err);
  if (status == SHARPI_OK) status = sharpi_plan_create(context, f->path, &pp, &plan, err);
  if (status == SHARPI_OK) status = sharpi_model_load(plan, NULL, NULL, &model, err);
  if (status == SHARPI_OK) status = sharpi_session_create(model, NULL, &session, err);
  if (status == SHARPI_OK)
    status = sharpi_session_prefill(session, some_tokens(), 32, NULL, NULL, err);
  if (status == SHARPI_OK) status = sharpi_session_fork(session, &copy, err);
  sharpi_session_destroy(copy);
  sharpi_session_destroy(session);
  sharpi_model_destroy(model);
  sharpi_plan_destroy(plan);
  sharpi_context_destroy(context);
  return status;
}

void test_memory(const fixture* f) {
  sharpi_error err;
  counting_host h = {0};
  EXPECT(SHARPI_OK, whole_life(f, &h, &err));
  CHECK(h.n_requests > 0 && h.live_blocks == 0 && h.live_bytes == 0 && !h.misaligned);
  const uint64_t n = h.n_requests;
  for (uint64_t at = 1; at <= n; ++at) {
    h = (counting_host){.fail_at = at};
    EXPECT(SHARPI_E_OUT_OF_MEMORY, whole_life(f, &h, &err));
    CHECK(h.live_blocks == 0 && h.live_bytes == 0);
  }
}
