// SPDX-License-Identifier: MIT
// Embedders: vectors of texts and scores of pairs.
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "engine/embedder.h"
#include "text/rank_prompt.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Embedder;
using sharpi::Status;
using sharpi::Text;

struct sharpi_embedder {
  std::unique_ptr<Embedder> p;
  mutable api::CallGate gate;
};

static_assert(sizeof(sharpi_embedder_params) == 16);
static_assert(offsetof(sharpi_embedder_params, n_parallel) == 8);
static_assert(sizeof(sharpi_embedder_summary) == 56);
static_assert(offsetof(sharpi_embedder_summary, held_bytes) == 32);
static_assert(offsetof(sharpi_embedder_summary, seconds) == 48);
static_assert(sizeof(sharpi_text_tokens) == 16);
static_assert(offsetof(sharpi_text_tokens, n_first) == 12);
static_assert(sizeof(sharpi_embed_params) == 32);
static_assert(offsetof(sharpi_embed_params, progress) == 16);
static_assert(sizeof(sharpi_rerank_params) == 24);
static_assert(offsetof(sharpi_rerank_params, progress) == 8);

namespace {

constexpr api::StructInfo kEmbedder{"sharpi_embedder_params", 16, sizeof(sharpi_embedder_params)};
constexpr api::StructInfo kEmbed{"sharpi_embed_params", 32, sizeof(sharpi_embed_params)};
constexpr api::StructInfo kRerank{"sharpi_rerank_params", 24, sizeof(sharpi_rerank_params)};

sharpi_embedder_params default_embedder_params() noexcept {
  sharpi_embedder_params p{};
  p.struct_size = sizeof p;
  p.n_ctx = SHARPI_UNSET;
  p.n_parallel = 1;
  return p;
}
sharpi_embed_params default_embed_params() noexcept {
  sharpi_embed_params p{};
  p.struct_size = sizeof p;
  p.normalize = 1;
  return p;
}
sharpi_rerank_params default_rerank_params() noexcept {
  sharpi_rerank_params p{};
  p.struct_size = sizeof p;
  p.normalize = 1;
  return p;
}

Status check_switch(const char* name, uint32_t value) {
  if (value <= 1) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s %u is unknown; allowed are 0 (off), 1 (on)",
                       name, value);
}

template <class Params>
Status read_params(const api::StructInfo& info, const Params* in, Params* out) {
  return in == nullptr ? Status::ok() : api::adopt_struct(info, in, out);
}

Status read(const sharpi_embed_params* in, sharpi_embed_params* out) {
  *out = default_embed_params();
  SHARPI_TRY(read_params(kEmbed, in, out));
  if (out->pooling > SHARPI_POOLING_RANK) {
    return Status::error(
        Code::kInvalidArgument,
        "pooling %u is unknown; allowed are 0 (AUTO), 1 (NONE), 2 (MEAN), 3 (CLS), "
        "4 (LAST)",
        out->pooling);
  }
  return check_switch("normalize", out->normalize);
}

Status read(const sharpi_embedder_params* in, sharpi_embedder_params* out) {
  *out = default_embedder_params();
  SHARPI_TRY(read_params(kEmbedder, in, out));
  if (out->reserved == 0) return Status::ok();
  return Status::error(Code::kInvalidArgument, "reserved is %u; it must be 0", out->reserved);
}

Status read_texts(const sharpi_text_tokens* in, uint32_t size, uint32_t n, std::vector<Text>* out) {
  SHARPI_TRY(api::require_array(in, n, "texts"));
  SHARPI_TRY(api::check_row_size(size, sizeof(sharpi_text_tokens), "sharpi_text_tokens"));
  out->resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    sharpi_text_tokens t;
    std::memcpy(&t, reinterpret_cast<const char*>(in) + uint64_t{i} * size, sizeof t);
    SHARPI_TRY(api::require_array(t.tokens, t.n_tokens, "texts[].tokens"));
    (*out)[i] = {{t.tokens, t.n_tokens}, t.n_first};
  }
  return Status::ok();
}

/// Runs body(Embedder&, texts) -> Status as the one call on an embedder.
template <class Body>
sharpi_status with_texts(sharpi_embedder* embedder, const sharpi_text_tokens* texts, uint32_t size,
                         uint32_t n, sharpi_error* err, Body&& body) noexcept {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(embedder, "embedder"));
    std::vector<Text> list;
    SHARPI_TRY(read_texts(texts, size, n, &list));
    api::ExclusiveCall call(embedder->gate);
    if (!call) return Status::error(Code::kBusy, "another call is using the embedder");
    return body(*embedder->p, std::span<const Text>(list));
  });
}

Status copy_tokens(const std::vector<int32_t>& ids, int32_t* out, uint32_t cap, uint32_t* out_n) {
  return api::copy_array(std::span<const int32_t>(ids), out, cap, out_n);
}

}  // namespace

void sharpi_embedder_params_init(sharpi_embedder_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = default_embedder_params();
  api::init_struct(kEmbedder, &defaults, p, size);
}
void sharpi_embed_params_init(sharpi_embed_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = default_embed_params();
  api::init_struct(kEmbed, &defaults, p, size);
}
void sharpi_rerank_params_init(sharpi_rerank_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = default_rerank_params();
  api::init_struct(kRerank, &defaults, p, size);
}

sharpi_status sharpi_embedder_create(const sharpi_model* model,
                                     const sharpi_embedder_params* params, sharpi_embedder** out,
                                     sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    SHARPI_TRY(api::require_weights(model));
    sharpi_embedder_params complete;
    SHARPI_TRY(read(params, &complete));
    auto handle = std::make_unique<sharpi_embedder>();
    SHARPI_TRY_ASSIGN(handle->p, Embedder::create(model->p, complete));
    *out = handle.release();
    return Status::ok();
  });
}

void sharpi_embedder_destroy(sharpi_embedder* embedder) SHARPI_NOEXCEPT {
  const sharpi::CallEnvironment environment;
  delete embedder;
}

sharpi_status sharpi_embedder_price(const sharpi_model* model, const sharpi_embedder_params* params,
                                    sharpi_memory_row* rows, uint32_t row_size, uint32_t cap,
                                    uint32_t* out_n, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_weights(model));
    sharpi_embedder_params complete;
    SHARPI_TRY(read(params, &complete));
    SHARPI_TRY_ASSIGN(const std::vector<sharpi_memory_row> own,
                      Embedder::price(*model->p, complete));
    return api::copy_rows(own, rows, row_size, cap, out_n);
  });
}

sharpi_status sharpi_embedder_info(const sharpi_embedder* embedder, sharpi_embedder_summary* out,
                                   sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(embedder, "embedder"));
    SHARPI_TRY(api::check_out_struct(out, 56, "sharpi_embedder_summary"));
    api::SharedCall call(embedder->gate);
    if (!call) return Status::error(Code::kBusy, "another call is using the embedder");
    sharpi_embedder_summary summary{};
    embedder->p->info(&summary);
    api::write_out(summary, out);
    return Status::ok();
  });
}

sharpi_status sharpi_embed(sharpi_embedder* embedder, const sharpi_text_tokens* texts,
                           uint32_t text_size, uint32_t n_texts, const sharpi_embed_params* params,
                           float* out, uint64_t cap, uint64_t* out_n,
                           sharpi_error* err) SHARPI_NOEXCEPT {
  return with_texts(embedder, texts, text_size, n_texts, err,
                    [&](Embedder& e, std::span<const Text> list) -> Status {
                      sharpi_embed_params complete;
                      SHARPI_TRY(read(params, &complete));
                      SHARPI_TRY(api::check_out(out, cap, out_n));
                      SHARPI_TRY_ASSIGN(*out_n, e.output_floats(list, complete));
                      if (cap < *out_n) {
                        return Status::error(Code::kBufferTooSmall,
                                             "the buffer holds %llu floats, %llu are needed",
                                             static_cast<unsigned long long>(cap),
                                             static_cast<unsigned long long>(*out_n));
                      }
                      return e.embed(list, complete, out);
                    });
}

sharpi_status sharpi_rerank(sharpi_embedder* embedder, const sharpi_text_tokens* texts,
                            uint32_t text_size, uint32_t n_texts,
                            const sharpi_rerank_params* params, float* out,
                            sharpi_error* err) SHARPI_NOEXCEPT {
  return with_texts(embedder, texts, text_size, n_texts, err,
                    [&](Embedder& e, std::span<const Text> list) -> Status {
                      sharpi_rerank_params complete = default_rerank_params();
                      SHARPI_TRY(read_params(kRerank, params, &complete));
                      SHARPI_TRY(check_switch("normalize", complete.normalize));
                      SHARPI_TRY(api::require_array(out, n_texts, "out"));
                      return e.rerank(list, complete, out);
                    });
}

sharpi_status sharpi_rank_tokenize(const sharpi_model* model, const char* query, size_t query_len,
                                   const char* document, size_t document_len,
                                   const char* instruction, int32_t* out, uint32_t cap,
                                   uint32_t* out_n, uint32_t* out_n_first,
                                   sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    const sharpi::Tokenizer* tokenizer = nullptr;
    SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
    SHARPI_TRY(api::require_array(query, query_len, "query"));
    SHARPI_TRY(api::require_array(document, document_len, "document"));
    sharpi::RankPair pair;
    pair.query = {query == nullptr ? "" : query, query_len};
    pair.document = {document == nullptr ? "" : document, document_len};
    if (instruction != nullptr) pair.instruction = std::string_view(instruction);
    std::vector<int32_t> ids;
    uint32_t n_first = 0;
    SHARPI_TRY(encode_pair(*tokenizer, model->text->file(), pair, &ids, &n_first));
    if (out_n_first != nullptr) *out_n_first = n_first;
    return copy_tokens(ids, out, cap, out_n);
  });
}

void sharpi_embedder_cancel(sharpi_embedder* embedder) SHARPI_NOEXCEPT {
  if (embedder != nullptr) embedder->p->cancel();
}

void sharpi_embedder_resume(sharpi_embedder* embedder) SHARPI_NOEXCEPT {
  if (embedder != nullptr) embedder->p->resume();
}
