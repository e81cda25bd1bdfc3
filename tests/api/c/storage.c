/* SPDX-License-Identifier: MIT */
/* Sessions as storage: capacity, lengths, checkpoints, copies, blobs, compaction. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void test_lengths(const fixture* f) {
  sharpi_error err;
  sharpi_session* s = make_session(f);
  uint32_t lengths[4], n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_reserve(NULL, 1, &err));
  EXPECT(SHARPI_E_DOES_NOT_FIT, sharpi_session_reserve(s, 1u << 30, &err));
  EXPECT(SHARPI_OK, sharpi_session_reserve(s, kCtx, &err));
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, some_tokens(), 20, NULL, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_truncate(NULL, 1, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_truncate(s, 21, &err));
  NAMES("21");
  EXPECT(SHARPI_OK, sharpi_session_truncate(s, 20, &err));
  EXPECT(SHARPI_OK, sharpi_session_truncate(s, 7, &err));
  CHECK(length_of(s) == 7);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_reachable(NULL, lengths, 4, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_reachable(s, lengths, 4, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_reachable(s, NULL, 4, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_reachable(s, lengths, 1, &n, &err));
  CHECK(n == 2);
  EXPECT(SHARPI_OK, sharpi_session_reachable(s, lengths, 4, &n, &err));
  CHECK(n == 2 && lengths[0] == 0 && lengths[1] == 7);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_checkpoint(NULL, 0, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_checkpoint(s, 2, &err));
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_session_checkpoint(s, 0, &err));
  sharpi_session_destroy(s);
}

static void test_blobs(const fixture* f) {
  sharpi_error err;
  sharpi_session *s = make_session(f), *copy = NULL;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_fork(NULL, &copy, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_fork(s, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, some_tokens(), 20, NULL, NULL, &err));
  EXPECT(SHARPI_OK, sharpi_session_fork(s, &copy, &err));
  EXPECT(SHARPI_OK, sharpi_session_decode(copy, 3, &err));
  CHECK(length_of(s) == 20 && length_of(copy) == 21);

  uint64_t len = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_save(NULL, NULL, 0, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_save(s, NULL, 0, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_save(s, NULL, 9, &len, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_save(s, NULL, 0, &len, &err));
  unsigned char* blob = malloc(len);
  blob[0] = 0xA5;
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_save(s, blob, len - 1, &len, &err));
  CHECK(blob[0] == 0xA5);
  EXPECT(SHARPI_OK, sharpi_session_save(s, blob, len, &len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_restore(NULL, blob, len, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_restore(copy, NULL, len, &err));
  EXPECT(SHARPI_E_FORMAT, sharpi_session_restore(copy, blob, 0, &err));
  EXPECT(SHARPI_E_FORMAT, sharpi_session_restore(copy, blob, len - 1, &err));
  blob[len / 2] ^= 1;
  EXPECT(SHARPI_E_FORMAT, sharpi_session_restore(copy, blob, len, &err));
  blob[len / 2] ^= 1;
  blob[0] ^= 0xFF;
  EXPECT(SHARPI_E_FORMAT, sharpi_session_restore(copy, blob, len, &err));
  blob[0] ^= 0xFF;
  CHECK(length_of(copy) == 21);
  sharpi_session_params p;
  sharpi_session_params_init(&p, sizeof p);
  p.n_ctx = 10;
  sharpi_session* small = NULL;
  EXPECT(SHARPI_OK, sharpi_session_create(f->model, &p, &small, &err));
  EXPECT(SHARPI_E_KV_FULL, sharpi_session_restore(small, blob, len, &err));
  p.n_ctx = kCtx;
  p.k_dtype = p.v_dtype = SHARPI_KV_BF16;
  sharpi_session* narrow = NULL;
  EXPECT(SHARPI_OK, sharpi_session_create(f->model, &p, &narrow, &err));
  EXPECT(SHARPI_E_MISMATCH, sharpi_session_restore(narrow, blob, len, &err));
  EXPECT(SHARPI_OK, sharpi_session_restore(copy, blob, len, &err));
  CHECK(length_of(copy) == 20 && length_of(small) == 0 && length_of(narrow) == 0);
  free(blob);
  sharpi_session_destroy(narrow);
  sharpi_session_destroy(small);
  sharpi_session_destroy(copy);
  sharpi_session_destroy(s);
}

static void test_compaction(const fixture* f) {
  sharpi_error err;
  sharpi_session* s = make_session(f);
  EXPECT(SHARPI_OK, sharpi_session_prefill(s, some_tokens(), 32, NULL, NULL, &err));
  sharpi_compact_params p;
  const uint32_t keep[3] = {1, 5, 9}, unsorted[3] = {1, 5, 5};
  const int32_t probe[1] = {1};
#define REFUSED(change, name)                                                     \
  do {                                                                            \
    sharpi_compact_params_init(&p, sizeof p);                                     \
    p.budget = 16;                                                                \
    p.recency = 4;                                                                \
    change;                                                                       \
    EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_compact(s, &p, NULL, &err)); \
    NAMES(name);                                                                  \
  } while (0)
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_compact(NULL, NULL, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_compact(s, NULL, NULL, &err)); /* no budget */
  NAMES("budget");
  REFUSED(p.budget = SHARPI_UNSET, "budget is unset");
  REFUSED(p.budget = 0, "budget 0");
  REFUSED(p.policy = 10, "policy 10");
  REFUSED(p.policy = SHARPI_POLICY_KEEP, "n_keep");
  REFUSED((p.n_keep = 3, p.keep = keep), "n_keep");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3), "keep");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = unsorted), "keep[2]");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = keep), "budget is 16");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = keep, p.budget = SHARPI_UNSET,
           p.sinks = 2),
          "sinks is 2");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = keep, p.budget = SHARPI_UNSET,
           p.window = 2),
          "window is 2");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = keep, p.budget = SHARPI_UNSET,
           p.n_probe = 1, p.probe = probe),
          "n_probe is 1");
  REFUSED((p.n_probe = 1, p.probe = probe, p.window = 2),
          "window is 2, but the queries of a probe");
  REFUSED((p.policy = SHARPI_POLICY_GLOBAL, p.layer_budget = SHARPI_LAYER_BUDGET_PYRAMID),
          "layer_budget is 1");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = keep, p.budget = SHARPI_UNSET,
           p.layer_budget = SHARPI_LAYER_BUDGET_PYRAMID),
          "layer_budget is 1");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = keep, p.budget = SHARPI_UNSET,
           p.layer_budget = SHARPI_LAYER_BUDGET_ENTROPY),
          "layer_budget is 2");
  REFUSED((p.policy = SHARPI_POLICY_KEEP, p.n_keep = 3, p.keep = keep, p.budget = SHARPI_UNSET),
          "recency is 4");
  for (sharpi_policy policy = SHARPI_POLICY_AUTO; policy < SHARPI_POLICY_KEEP; ++policy) {
    const int pools = policy >= SHARPI_POLICY_SNAPKV && policy <= SHARPI_POLICY_VALUE;
    if (!pools) REFUSED((p.policy = policy, p.pool_kernel = 5), "pool_kernel is 5");
    if (pools) REFUSED((p.policy = policy, p.span = 5), "span is 5");
  }
  REFUSED((p.policy = SHARPI_POLICY_GLOBAL, p.span = 5), "span is 5");
  REFUSED(p.recency = 17, "recency 17");
  REFUSED(p.sinks = 17, "sinks 17");
  REFUSED(p.window = 0, "window 0");
  REFUSED(p.pool_kernel = 0, "pool_kernel 0");
  REFUSED(p.pool_kernel = 4, "pool_kernel 4");
  REFUSED(p.pool_kernel = 1025, "pool_kernel 1025");
  REFUSED((p.policy = SHARPI_POLICY_REPLAY, p.window = 2), "asks no captured queries");
  REFUSED((p.policy = SHARPI_POLICY_REPLAY, p.n_probe = 1, p.probe = probe), "asks no probe");
  REFUSED(p.layer_budget = 4, "layer_budget 4");
  REFUSED(p.n_probe = 2, "probe");
  REFUSED(p.headroom = SHARPI_UNSET, "headroom");
  REFUSED((p.policy = SHARPI_POLICY_SPAN, p.span = SHARPI_UNSET - 1), "span");
  REFUSED((p.policy = SHARPI_POLICY_SPAN, p.span = 65537), "0 to 65536");
#undef REFUSED
  CHECK(length_of(s) == 32);

  uint32_t positions[64], n = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_kept(NULL, 0, 0, positions, 64, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_kept(s, 0, 0, NULL, 64, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_kept(s, 0, 0, positions, 64, NULL, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_kept(s, 4, 0, positions, 64, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_session_kept(s, 0, 2, positions, 64, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_session_kept(s, 0, 0, positions, 31, &n, &err));
  EXPECT(SHARPI_OK, sharpi_session_kept(s, 3, 1, positions, 64, &n, &err));
  CHECK(n == 32 && positions[0] == 0 && positions[31] == 31);
  sharpi_session_destroy(s);
}

void test_storage(const fixture* f) {
  test_lengths(f);
  test_blobs(f);
  test_compaction(f);
}
