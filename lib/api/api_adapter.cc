// SPDX-License-Identifier: MIT
// Adapters: loading, facts, and which of them a session has.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/session_calls.h"
#include "base/limits.h"
#include "engine/adapter.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Session;
using sharpi::Status;

struct sharpi_adapter {
  std::shared_ptr<const sharpi::Adapter> p;
};

static_assert(sizeof(sharpi_adapter_summary) == 168);
static_assert(offsetof(sharpi_adapter_summary, max_rank) == 8);
static_assert(offsetof(sharpi_adapter_summary, alpha) == 12);
static_assert(offsetof(sharpi_adapter_summary, n_parameters) == 16);
static_assert(offsetof(sharpi_adapter_summary, content_id) == 32);
static_assert(offsetof(sharpi_adapter_summary, name) == 40);
static_assert(sizeof(sharpi_adapter_use) == 16);
static_assert(offsetof(sharpi_adapter_use, scale) == 8);

namespace {

/// `size` is that of an element in the caller's header.
Status read_uses(const sharpi_adapter_use* in, uint32_t size, uint32_t n,
                 std::vector<sharpi::AdapterChoice>* out) {
  SHARPI_TRY(api::require_array(in, n, "uses"));
  if (n > sharpi::kMaxAdapters) {
    return Status::error(Code::kInvalidArgument, "n is %u; a session takes at most %u adapters", n,
                         sharpi::kMaxAdapters);
  }
  if (n != 0) SHARPI_TRY(api::check_row_size(size, sizeof *in, "sharpi_adapter_use"));
  for (uint32_t i = 0; i < n; ++i) {
    const char* at = reinterpret_cast<const char*>(in) + size_t{i} * size;
    sharpi_adapter_use use;
    std::memcpy(&use, at, sizeof use);
    SHARPI_TRY(api::check_row_tail(at, sizeof use, size, "uses", i));
    if (use.adapter == nullptr)
      return Status::error(Code::kInvalidArgument, "uses[%u].adapter is null", i);
    if (use.reserved != 0) {
      return Status::error(Code::kInvalidArgument, "uses[%u].reserved is %u; it must be 0", i,
                           use.reserved);
    }
    out->push_back({use.adapter->p, use.scale});
  }
  return Status::ok();
}

}  // namespace

sharpi_status sharpi_adapter_load(const sharpi_model* model, const char* gguf_path,
                                  sharpi_adapter** out, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    SHARPI_TRY(api::require_weights(model));
    SHARPI_TRY(api::require(gguf_path, "gguf_path"));
    auto handle = std::make_unique<sharpi_adapter>();
    SHARPI_TRY_ASSIGN(handle->p, sharpi::Adapter::load(model->p, gguf_path));
    *out = handle.release();
    return Status::ok();
  });
}

void sharpi_adapter_destroy(sharpi_adapter* adapter) SHARPI_NOEXCEPT {
  const sharpi::CallEnvironment environment;
  delete adapter;
}

sharpi_status sharpi_adapter_info(const sharpi_adapter* adapter, sharpi_adapter_summary* out,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(adapter, "adapter"));
    SHARPI_TRY(api::check_out_struct(out, 168, "sharpi_adapter_summary"));
    const sharpi::AdapterFile& file = adapter->p->facts();
    sharpi_adapter_summary s{};
    s.n_weights = static_cast<uint32_t>(file.pairs.size());
    s.max_rank = file.max_rank;
    s.alpha = file.alpha;
    s.n_parameters = file.parameter_count();
    s.held_bytes = adapter->p->held_bytes();
    s.content_id = file.file->content_id();
    api::copy_line(file.name, s.name, sizeof s.name);
    api::write_out(s, out);
    return Status::ok();
  });
}

sharpi_status sharpi_adapter_memory(const sharpi_adapter* adapter, sharpi_memory_row* rows,
                                    uint32_t row_size, uint32_t cap, uint32_t* out_n,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(adapter, "adapter"));
    return api::copy_rows(adapter->p->memory_rows(), rows, row_size, cap, out_n);
  });
}

sharpi_status sharpi_session_set_adapters(sharpi_session* session, const sharpi_adapter_use* uses,
                                          uint32_t use_size, uint32_t n,
                                          sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    std::vector<sharpi::AdapterChoice> choices;
    SHARPI_TRY(read_uses(uses, use_size, n, &choices));
    return s.set_adapters(choices);
  });
}
