// SPDX-License-Identifier: MIT
#include "engine/embedder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/no_throw.h"
#include "engine/seconds.h"
#include "plan/encoder_plan.h"
#include "plan/token_checks.h"

namespace sharpi {
namespace {

struct EmbedderShape {
  uint32_t n_ctx = 0, n_parallel = 0;
};

Result<EmbedderShape> resolve_shape(const Model& model, const sharpi_embedder_params& params) {
  const Plan& plan = model.plan();
  const bool encoder = model.spec().is_encoder();
  const uint32_t n_ctx = params.n_ctx == SHARPI_UNSET ? plan.session.n_ctx : params.n_ctx;
  if (n_ctx == 0 || n_ctx > plan.session.n_ctx) {
    return Status::error(n_ctx == 0 ? Code::kInvalidArgument : Code::kDoesNotFit,
                         "n_ctx is %u; the plan priced texts of 1 to %u tokens", n_ctx,
                         plan.session.n_ctx);
  }
  if (encoder && params.n_parallel != 1) {
    return Status::error(Code::kInvalidArgument,
                         "n_parallel is %u, but %s is an encoder, whose texts share passes without "
                         "sessions",
                         params.n_parallel, model.spec().architecture.c_str());
  }
  if (model.ranks() != nullptr)
    return Status::error(Code::kUnsupported, "an embedder cannot be had with a group of processes");
  if (params.n_parallel == 0 || (!encoder && params.n_parallel > plan.model.max_batch)) {
    return Status::error(Code::kInvalidArgument,
                         "n_parallel is %u; it must be 1 to the plan's max_batch, %u",
                         params.n_parallel, plan.model.max_batch);
  }
  if (!is_host(plan.placement.head)) {
    return Status::error(Code::kUnsupported,
                         "the head is on a GPU, from which hidden rows do not come back; a plan "
                         "with gpu_ends 0, or without a device, has it on the CPU");
  }
  return EmbedderShape{n_ctx, encoder ? kMaxTexts : params.n_parallel};
}

std::vector<MemoryRow> rows_of(const Model& model, const EmbedderShape& shape) {
  std::vector<MemoryRow> rows = embedder_rows(model.spec(), model.plan().model.n_chunk);
  if (model.spec().is_encoder()) return rows;
  const auto session = Session::price(model, reading_shape(model.plan(), shape.n_ctx));
  for (uint32_t i = 0; i < shape.n_parallel; ++i)
    rows.insert(rows.end(), session.begin(), session.end());
  return rows;
}

Pooling pooling_of(sharpi_pooling p) {
  constexpr Pooling kAll[] = {Pooling::kUnsaid, Pooling::kNone, Pooling::kMean,
                              Pooling::kCls,    Pooling::kLast, Pooling::kRank};
  return kAll[p];
}

}  // namespace

Embedder::Embedder(std::shared_ptr<const Model> model, uint32_t n_ctx, uint32_t n_parallel)
    : model_(std::move(model)),
      n_ctx_(n_ctx),
      n_parallel_(n_parallel),
      share_(model_->allowance()) {}

Result<std::vector<MemoryRow>> Embedder::price(const Model& model,
                                               const sharpi_embedder_params& params) {
  SHARPI_TRY_ASSIGN(const EmbedderShape shape, resolve_shape(model, params));
  std::vector<MemoryRow> rows = rows_of(model, shape);
  SHARPI_TRY(model.allowance()->check(HeldBytes::of(rows)));
  return rows;
}

Result<std::unique_ptr<Embedder>> Embedder::create(std::shared_ptr<const Model> model,
                                                   const sharpi_embedder_params& params) {
  SHARPI_TRY_ASSIGN(const EmbedderShape shape, resolve_shape(*model, params));
  const ModelSpec& spec = model->spec();
  const uint32_t n_chunk = model->plan().model.n_chunk;
  std::unique_ptr<Embedder> e(new Embedder(model, shape.n_ctx, shape.n_parallel));
  const HeldBytes own = HeldBytes::of(embedder_rows(spec, n_chunk));
  SHARPI_TRY(e->share_.take(own));
  e->hidden_.resize(uint64_t{n_chunk} * spec.n_embd);
  e->vectors_.resize(pooler_floats(spec));
  SHARPI_TRY(e->find_labels());
  if (spec.is_encoder()) {
    e->reader_ = make_encoder_reader(model, e->hidden_.data());
  } else {
    SHARPI_TRY_ASSIGN(e->reader_,
                      make_session_reader(model, shape.n_ctx, shape.n_parallel, e->hidden_.data()));
  }
  e->held_bytes_ = HeldBytes::of(rows_of(*model, shape)).at(DeviceIndex::kHost);
  return e;
}

/// Of a model without a score head: what its head has for "yes" and for "no".
Status Embedder::find_labels() {
  const ModelSpec& spec = model_->spec();
  const Tokenizer* text = model_->text()->tokenizer();
  if (spec.pooled.out || !spec.output || text == nullptr) return Status::ok();
  const int32_t yes = text->find_decoded("yes"), no = text->find_decoded("no");
  if (yes < 0 || no < 0) return Status::ok();
  for (auto [row, id] : {std::pair{&labels_.yes, yes}, std::pair{&labels_.no, no}}) {
    row->resize(spec.n_embd);
    table_row(spec.output, static_cast<uint64_t>(id), row->data());
  }
  return Status::ok();
}

Status Embedder::check_texts(std::span<const Text> texts) const {
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& t = texts[i];
    if (t.tokens.empty()) {
      return Status::error(Code::kInvalidArgument, "texts[%zu] is empty; it has no vector", i);
    }
    if (t.tokens.size() > n_ctx_) {
      return Status::error(Code::kInvalidArgument,
                           "texts[%zu] has %zu tokens, but the embedder reads texts of at most %u",
                           i, t.tokens.size(), n_ctx_);
    }
    if (t.n_first > t.tokens.size()) {
      return Status::error(Code::kInvalidArgument,
                           "texts[%zu].n_first is %u, but the text has only %zu tokens", i,
                           t.n_first, t.tokens.size());
    }
    const std::string where = " of texts[" + std::to_string(i) + "]";
    SHARPI_TRY(check_token_ids(t.tokens, model_->spec().n_vocab, 0, where.c_str()));
  }
  return Status::ok();
}

Result<PoolRequest> Embedder::resolve(const sharpi_embed_params& params) const {
  const ModelSpec& spec = model_->spec();
  PoolRequest r;
  if (params.pooling == SHARPI_POOLING_RANK) {
    return Status::error(Code::kInvalidArgument,
                         "pooling RANK gives scores, which are sharpi_rerank()'s");
  }
  const Pooling own = spec.pooled.pooling;
  r.pooling = params.pooling == SHARPI_POOLING_AUTO ? own : pooling_of(params.pooling);
  if (r.pooling == Pooling::kUnsaid) {
    return Status::error(Code::kUnsupported,
                         "the file has no %s.pooling_type, so it says no pooling; name one",
                         spec.architecture.c_str());
  }
  if (r.pooling == Pooling::kRank) {
    return Status::error(
        Code::kUnsupported,
        "the file is a reranker's (%s.pooling_type is 4): it has scores, which are "
        "sharpi_rerank()'s; name a pooling for vectors",
        spec.architecture.c_str());
  }
  const uint32_t width = r.pooling == Pooling::kNone ? spec.n_embd : spec.pooled.width(spec.n_embd);
  if (params.n_dims > width) {
    return Status::error(Code::kInvalidArgument, "n_dims is %u, but vectors have %u elements",
                         params.n_dims, width);
  }
  r.n_dims = params.n_dims == 0 ? width : params.n_dims;
  r.normalize = params.normalize != 0;
  return r;
}

Result<uint64_t> Embedder::output_floats(std::span<const Text> texts,
                                         const sharpi_embed_params& params) const {
  SHARPI_TRY_ASSIGN(const PoolRequest request, resolve(params));
  SHARPI_TRY(check_texts(texts));
  uint64_t n = texts.size();
  if (request.pooling == Pooling::kNone) {
    n = 0;
    for (const Text& t : texts) n += t.tokens.size();
  }
  return n * request.n_dims;
}

Status Embedder::embed(std::span<const Text> texts, const sharpi_embed_params& params, float* out) {
  SHARPI_TRY_ASSIGN(const PoolRequest request, resolve(params));
  SHARPI_TRY(check_texts(texts));
  return run(texts, request, params.progress, params.user_data, out);
}

Status Embedder::rerank(std::span<const Text> texts, const sharpi_rerank_params& params,
                        float* out) {
  const ModelSpec& spec = model_->spec();
  if (!spec.pooled.out && !labels_) {
    return Status::error(Code::kUnsupported,
                         spec.output
                             ? "the vocabulary has no single tokens \"yes\" and \"no\", and "
                               "the file has no score head"
                             : "the file has no score head (cls.output.weight)");
  }
  SHARPI_TRY(check_texts(texts));
  PoolRequest request;
  request.pooling = Pooling::kRank;
  request.normalize = params.normalize != 0;
  return run(texts, request, params.progress, params.user_data, out);
}

Status Embedder::run(std::span<const Text> texts, const PoolRequest& request,
                     sharpi_progress_fn progress, void* user_data, float* out) {
  if (texts.empty()) return Status::ok();
  const auto start = std::chrono::steady_clock::now();
  uint64_t total = 0, read = 0;
  for (const Text& t : texts) total += t.tokens.size();
  const auto report = [&](uint32_t n_rows) -> Status {
    read += n_rows;
    const bool stops =
        progress != nullptr && progress(user_data, SHARPI_PHASE_EMBED, read, total) != 0;
    if (!stops && !cancelled_.load(std::memory_order_relaxed)) return Status::ok();
    return Status::error(Code::kCancelled, "the call was cancelled");
  };
  Status done = report(0);
  if (done.is_ok()) {
    Pooler pooler(*model_, labels_, vectors_.data(), texts, request, out, report);
    done = no_throw([&] { return reader_->read(texts, cancelled_, &pooler); });
  }
  if (done.code() == Code::kCancelled) resume();  // answered
  SHARPI_TRY(done);
  n_tokens_ += total;
  seconds_ += seconds_since(start);
  return Status::ok();
}

void Embedder::info(sharpi_embedder_summary* out) const {
  const ModelSpec& spec = model_->spec();
  sharpi_embedder_summary& s = *out;
  s.n_ctx = n_ctx_;
  s.n_parallel = n_parallel_;
  s.n_embd = spec.pooled.width(spec.n_embd);
  s.n_row = spec.n_embd;
  s.pooling = static_cast<sharpi_pooling>(spec.pooled.pooling);
  s.is_encoder = spec.is_encoder() ? 1 : 0;
  s.can_rank = spec.pooled.out || labels_ ? 1 : 0;
  s.held_bytes = held_bytes_;
  s.n_tokens = n_tokens_;
  s.seconds = seconds_;
}

}  // namespace sharpi
