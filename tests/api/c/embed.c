/* SPDX-License-Identifier: MIT */
/* Embedders of a chat model, and all that may be wrong about asking them. */
#include <string.h>

#include "check.h"

static sharpi_text_tokens text_of(uint32_t n) {
  sharpi_text_tokens t = {some_tokens(), n, 0};
  return t;
}

static void test_making(const fixture* f) {
  sharpi_error err;
  sharpi_embedder* e = NULL;
  sharpi_embedder_params p;
  sharpi_memory_row rows[64];
  uint32_t n = 0;
  sharpi_embedder_params_init(NULL, sizeof p);
  sharpi_embedder_params_init(&p, sizeof p);
  CHECK(p.n_ctx == SHARPI_UNSET && p.n_parallel == 1 && p.reserved == 0);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embedder_create(NULL, NULL, &e, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embedder_create(f->model, NULL, NULL, &err));
  p.n_parallel = kBatch + 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embedder_create(f->model, &p, &e, &err));
  NAMES("n_parallel");
  p.n_parallel = 1;
  p.n_ctx = kCtx + 1;
  EXPECT(SHARPI_E_DOES_NOT_FIT, sharpi_embedder_create(f->model, &p, &e, &err));
  p.n_ctx = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embedder_create(f->model, &p, &e, &err));
  p.struct_size = 4;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embedder_create(f->model, &p, &e, &err));
  CHECK(e == NULL);
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_embedder_price(NULL, NULL, rows, sizeof rows[0], 64, &n, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL,
         sharpi_embedder_price(f->model, NULL, NULL, sizeof rows[0], 0, &n, &err));
  CHECK(n > 2 && n <= 64);
  EXPECT(SHARPI_OK, sharpi_embedder_price(f->model, NULL, rows, sizeof rows[0], 64, &n, &err));
  sharpi_embedder_destroy(NULL);
  sharpi_embedder_cancel(NULL);
  sharpi_embedder_resume(NULL);
}

static void test_asking(const fixture* f) {
  sharpi_error err;
  sharpi_embedder* e = NULL;
  sharpi_embedder_summary info;
  sharpi_embed_params p;
  sharpi_rerank_params r;
  static float out[1 << 16];
  uint64_t n = 0;
  const uint32_t size = sizeof(sharpi_text_tokens);
  sharpi_text_tokens texts[2] = {text_of(5), text_of(20)};
  EXPECT(SHARPI_OK, sharpi_embedder_create(f->model, NULL, &e, &err));
  memset(&info, 0, sizeof info);
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embedder_info(e, &info, &err));
  info.struct_size = sizeof info;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embedder_info(NULL, &info, &err));
  EXPECT(SHARPI_OK, sharpi_embedder_info(e, &info, &err));
  CHECK(info.n_ctx == kCtx && info.n_parallel == 1 && info.is_encoder == 0);
  CHECK(info.pooling == SHARPI_POOLING_AUTO && info.n_embd == info.n_row);
  sharpi_embed_params_init(&p, sizeof p);
  sharpi_rerank_params_init(&r, sizeof r);
  CHECK(p.normalize == 1 && p.n_dims == 0 && p.pooling == SHARPI_POOLING_AUTO && r.normalize == 1);
  EXPECT(SHARPI_E_UNSUPPORTED, sharpi_embed(e, texts, size, 2, NULL, out, 1 << 16, &n, &err));
  NAMES("pooling_type");
  p.pooling = SHARPI_POOLING_LAST;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(NULL, texts, size, 2, &p, out, 1 << 16, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(e, NULL, size, 2, &p, out, 1 << 16, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(e, texts, 4, 2, &p, out, 1 << 16, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(e, texts, size, 2, &p, NULL, 8, &n, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(e, texts, size, 2, &p, out, 8, NULL, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL, sharpi_embed(e, texts, size, 2, &p, NULL, 0, &n, &err));
  CHECK(n == 2ull * info.n_embd);
  EXPECT(SHARPI_OK, sharpi_embed(e, texts, size, 2, &p, out, 1 << 16, &n, &err));
  EXPECT(SHARPI_OK, sharpi_embed(e, NULL, size, 0, &p, out, 1 << 16, &n, &err));
  CHECK(n == 0);
  p.normalize = 2;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(e, texts, size, 2, &p, out, 1 << 16, &n, &err));
  r.normalize = 2;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_rerank(e, texts, size, 2, &r, out, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_rerank(e, texts, size, 2, NULL, NULL, &err));
  texts[1].tokens = NULL;
  p.normalize = 1;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(e, texts, size, 2, &p, out, 1 << 16, &n, &err));
  texts[1] = text_of(20);
  texts[1].n_first = 21;
  EXPECT(SHARPI_E_INVALID_ARGUMENT, sharpi_embed(e, texts, size, 2, &p, out, 1 << 16, &n, &err));
  NAMES("n_first");
  sharpi_embedder_destroy(e);
}

static void test_pairs(const fixture* f) {
  sharpi_error err;
  int32_t ids[512];
  uint32_t n = 0, first = 0;
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_rank_tokenize(NULL, "q", 1, "d", 1, NULL, ids, 512, &n, &first, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_rank_tokenize(f->model, NULL, 1, "d", 1, NULL, ids, 512, &n, &first, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_rank_tokenize(f->model, "q", 1, NULL, 1, NULL, ids, 512, &n, &first, &err));
  EXPECT(SHARPI_E_INVALID_ARGUMENT,
         sharpi_rank_tokenize(f->model, "q", 1, "d", 1, NULL, NULL, 512, &n, &first, &err));
  EXPECT(SHARPI_E_BUFFER_TOO_SMALL,
         sharpi_rank_tokenize(f->model, "q", 1, "d", 1, NULL, NULL, 0, &n, NULL, &err));
  CHECK(n > 2);
}

void test_embed(const fixture* f) {
  test_making(f);
  test_asking(f);
  test_pairs(f);
}
