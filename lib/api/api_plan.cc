// SPDX-License-Identifier: MIT
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "api/session_price.h"
#include "engine/log_lines.h"
#include "gguf/gguf_file.h"
#include "model/adapter_file.h"
#include "model/model_spec.h"
#include "plan/part_plan.h"
#include "plan/session_plan.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Status;

namespace {

sharpi::Result<std::vector<sharpi::AdapterFile>> open_adapters(const sharpi_plan_params& p,
                                                               const sharpi::ModelSpec& spec) {
  std::vector<sharpi::AdapterFile> out;
  for (uint32_t i = 0; i < p.n_adapters; ++i) {
    SHARPI_TRY(api::require(p.adapters[i], "a path of adapters"));
    SHARPI_TRY_ASSIGN(auto one, sharpi::open_adapter(p.adapters[i], spec));
    out.push_back(std::move(one));
  }
  return out;
}

/// This rank's layers.
sharpi::Result<std::shared_ptr<const sharpi::ModelSpec>> part_of(const sharpi::ModelSpec& whole,
                                                                 const sharpi_plan_params& p,
                                                                 const sharpi::Group& group) {
  sharpi::ModelPart part;
  part.rank = group.rank();
  part.n_ranks = group.n_ranks();
  const size_t n = p.rank_layers == nullptr ? 0 : part.n_ranks;
  return sharpi::make_part(whole, part, {p.rank_layers, n});
}

Status create_plan(const sharpi_context& context, const char* path,
                   const sharpi_plan_params* params, sharpi_plan** out) {
  api::PlanRequest request;
  SHARPI_TRY(api::read_params(params, &request));
  auto handle = std::make_unique<sharpi_plan>();
  handle->context = context.p;
  SHARPI_TRY_ASSIGN(auto file, sharpi::GgufFile::open(path));
  SHARPI_TRY_ASSIGN(auto spec, sharpi::load_model_spec(std::move(file)));
  std::shared_ptr<const sharpi::ModelSpec> draft;
  if (request.params.draft_path != nullptr) {
    SHARPI_TRY_ASSIGN(auto its_file, sharpi::GgufFile::open(request.params.draft_path));
    SHARPI_TRY_ASSIGN(draft, sharpi::load_model_spec(std::move(its_file)));
  }
  SHARPI_TRY_ASSIGN(const std::vector<sharpi::AdapterFile> adapters,
                    open_adapters(request.params, *spec));
  if (request.params.group != nullptr) {
    handle->group = request.params.group->p;
    SHARPI_TRY_ASSIGN(spec, part_of(*spec, request.params, *handle->group));
  }
  SHARPI_TRY_ASSIGN(handle->p, sharpi::make_plan(std::move(spec), context.p->sizers(),
                                                 request.params, context.p->environment(),
                                                 context.p.get(), std::move(draft), adapters));
  sharpi::log_plan(*context.p, *handle->p);
  *out = handle.release();
  return Status::ok();
}

}  // namespace

sharpi_status sharpi_plan_create(sharpi_context* context, const char* gguf_path,
                                 const sharpi_plan_params* params, sharpi_plan** out,
                                 sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    SHARPI_TRY(api::require(context, "context"));
    SHARPI_TRY(api::require(gguf_path, "gguf_path"));
    api::ExclusiveCall call(context->gate);
    if (!call) return Status::error(Code::kBusy, "another call is planning on this context");
    return create_plan(*context, gguf_path, params, out);
  });
}

void sharpi_plan_destroy(sharpi_plan* plan) SHARPI_NOEXCEPT {
  const sharpi::CallEnvironment environment;
  delete plan;
}

sharpi_status sharpi_plan_info(const sharpi_plan* plan, sharpi_plan_summary* out,
                               sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    SHARPI_TRY(api::check_out_struct(out, 280, "sharpi_plan_summary"));
    api::write_out(plan->p->summary(), out);
    return Status::ok();
  });
}

sharpi_status sharpi_plan_rows(const sharpi_plan* plan, sharpi_memory_row* rows, uint32_t row_size,
                               uint32_t cap, uint32_t* out_n, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    return api::copy_rows(plan->p->rows, rows, row_size, cap, out_n);
  });
}

sharpi_status sharpi_plan_devices(const sharpi_plan* plan, sharpi_plan_device* rows,
                                  uint32_t row_size, uint32_t cap, uint32_t* out_n,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    const std::vector<sharpi_plan_device> devices = plan->p->device_rows();
    return api::copy_structs(std::span<const sharpi_plan_device>(devices), "sharpi_plan_device",
                             rows, row_size, cap, out_n);
  });
}

sharpi_status sharpi_plan_layer(const sharpi_plan* plan, uint32_t layer, sharpi_layer_info* out,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    SHARPI_TRY(api::check_out_struct(out, 48, "sharpi_layer_info"));
    sharpi_layer_info info{};
    SHARPI_TRY(sharpi::describe_layer(*plan->p, layer, &info));
    api::write_out(info, out);
    return Status::ok();
  });
}

sharpi_status sharpi_plan_fallback(const sharpi_plan* plan, uint32_t index, char* out, size_t cap,
                                   size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    const auto& list = plan->p->fallbacks;
    if (index < list.size()) return api::copy_text(list[index], out, cap, out_len);
    return Status::error(Code::kNotFound, "fallback %u does not exist; the plan has %zu", index,
                         list.size());
  });
}

sharpi_status sharpi_plan_json(const sharpi_plan* plan, char* out, size_t cap, size_t* out_len,
                               sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(plan, "plan"));
    return api::copy_text(plan->p->json(), out, cap, out_len);
  });
}

sharpi_status sharpi_plan_session(const sharpi_model* model, const sharpi_session_params* params,
                                  sharpi_plan** out, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    SHARPI_TRY(api::require_weights(model));
    const sharpi::Model& m = *model->p;
    auto handle = std::make_unique<sharpi_plan>();
    if (params == nullptr) {
      SHARPI_TRY_ASSIGN(handle->p, api::price_session(m, m.plan().session));
    } else {
      sharpi_session_params complete;
      SHARPI_TRY(api::read_params(params, &complete));
      SHARPI_TRY_ASSIGN(auto shape,
                        sharpi::resolve_session(m.spec(), m.plan().placement, m.plan().session,
                                                complete, m.context().environment()));
      SHARPI_TRY_ASSIGN(handle->p, api::price_session(m, shape));
    }
    *out = handle.release();
    return Status::ok();
  });
}
