// SPDX-License-Identifier: MIT
// Groups of processes: what a host brings to talk with other ranks, and what becomes of it.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "base/limits.h"
#include "group/group.h"
#include "group/nccl_transport.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Status;

static_assert(sizeof(sharpi_group_params) == 72);
static_assert(offsetof(sharpi_group_params, n_ranks) == 4);
static_assert(offsetof(sharpi_group_params, rank) == 8);
static_assert(offsetof(sharpi_group_params, timeout_ms) == 12);
static_assert(offsetof(sharpi_group_params, load_timeout_ms) == 16);
static_assert(offsetof(sharpi_group_params, batch_parts) == 20);
static_assert(offsetof(sharpi_group_params, nccl_comm) == 24);
static_assert(offsetof(sharpi_group_params, nccl_library) == 32);
static_assert(offsetof(sharpi_group_params, send) == 40);
static_assert(offsetof(sharpi_group_params, receive) == 48);
static_assert(offsetof(sharpi_group_params, abandon) == 56);
static_assert(offsetof(sharpi_group_params, user_data) == 64);
static_assert(sizeof(sharpi_group_summary) == 96);
static_assert(offsetof(sharpi_group_summary, is_lost) == 12);
static_assert(offsetof(sharpi_group_summary, device_bytes) == 24);
static_assert(offsetof(sharpi_group_summary, transport) == 32);

namespace {

constexpr api::StructInfo kGroup{"sharpi_group_params", 72, sizeof(sharpi_group_params)};

sharpi_group_params default_group_params() noexcept {
  sharpi_group_params p{};
  p.struct_size = sizeof p;
  p.timeout_ms = 60000;
  p.load_timeout_ms = 600000;
  return p;
}

/// The host's own functions.
class HostTransport final : public sharpi::Transport {
 public:
  explicit HostTransport(const sharpi_group_params& host) : host_(host) {}
  Status send(uint32_t to, const void* data, uint64_t bytes, sharpi::Deadline deadline) override {
    const int32_t failed = host_.send(host_.user_data, to, data, bytes, left(deadline));
    return check(failed, "send");
  }
  Status receive(uint32_t from, void* out, uint64_t bytes, sharpi::Deadline deadline) override {
    const int32_t failed = host_.receive(host_.user_data, from, out, bytes, left(deadline));
    return check(failed, "receive");
  }
  void abandon() noexcept override { host_.abandon(host_.user_data); }
  std::string name() const override { return "functions of the host"; }

 private:
  static uint32_t left(sharpi::Deadline deadline) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    return static_cast<uint32_t>(std::clamp<int64_t>(ms.count(), 0, UINT32_MAX));
  }
  static Status check(int32_t failed, const char* what) {
    if (failed == 0) return Status::ok();
    return Status::native_error(Code::kDevice, failed, "the host's %s function returned %d", what,
                                failed);
  }
  const sharpi_group_params host_;
};

Status read_params(const sharpi_group_params* in, sharpi_group_params* out) {
  *out = default_group_params();
  SHARPI_TRY(api::require(in, "params"));
  SHARPI_TRY(api::adopt_struct(kGroup, in, out));
  if (out->n_ranks < 2 || out->n_ranks > sharpi::kMaxRanks) {
    return Status::error(Code::kInvalidArgument, "n_ranks %u is out of range; it must be 2 to %u",
                         out->n_ranks, sharpi::kMaxRanks);
  }
  if (out->rank >= out->n_ranks) {
    return Status::error(Code::kInvalidArgument,
                         "rank %u is out of range; a group of %u ranks has ranks 0 to %u",
                         out->rank, out->n_ranks, out->n_ranks - 1);
  }
  if (out->timeout_ms == 0 || out->load_timeout_ms == 0) {
    return Status::error(Code::kInvalidArgument, "%s is 0; it must be 1 or more",
                         out->timeout_ms == 0 ? "timeout_ms" : "load_timeout_ms");
  }
  if (out->batch_parts > sharpi::kMaxBatch) {
    return Status::error(Code::kInvalidArgument,
                         "batch_parts %u is out of range; it must be 0 (by what parts read) to %u",
                         out->batch_parts, sharpi::kMaxBatch);
  }
  const int n = (out->send != nullptr) + (out->receive != nullptr) + (out->abandon != nullptr);
  if (n != (out->nccl_comm == nullptr ? 3 : 0)) {
    return Status::error(Code::kInvalidArgument,
                         "nccl_comm is %s, and %d of the three functions send, receive and abandon "
                         "are given; a group needs a communicator or all three",
                         out->nccl_comm == nullptr ? "null" : "given", n);
  }
  if (out->nccl_comm != nullptr || out->nccl_library == nullptr) return Status::ok();
  return Status::error(Code::kInvalidArgument, "nccl_library is given, but nccl_comm is null");
}

sharpi::Result<std::unique_ptr<sharpi::Transport>> make_transport(const sharpi_group_params& p) {
  if (p.nccl_comm == nullptr)
    return std::unique_ptr<sharpi::Transport>(std::make_unique<HostTransport>(p));
  sharpi::NcclOptions options;
  options.comm = p.nccl_comm;
  options.library = p.nccl_library;
  options.rank = p.rank;
  options.n_ranks = p.n_ranks;
  return sharpi::make_nccl_transport(options);
}

}  // namespace

void sharpi_group_params_init(sharpi_group_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = default_group_params();
  api::init_struct(kGroup, &defaults, p, size);
}

sharpi_status sharpi_group_create(const sharpi_group_params* params, sharpi_group** out,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    sharpi_group_params p;
    SHARPI_TRY(read_params(params, &p));
    auto handle = std::make_unique<sharpi_group>();
    SHARPI_TRY_ASSIGN(std::unique_ptr<sharpi::Transport> transport, make_transport(p));
    const sharpi::GroupShape shape{p.rank, p.n_ranks, p.timeout_ms, p.load_timeout_ms,
                                   p.batch_parts};
    SHARPI_TRY_ASSIGN(handle->p, sharpi::Group::create(std::move(transport), shape));
    *out = handle.release();
    return Status::ok();
  });
}

void sharpi_group_destroy(sharpi_group* group) SHARPI_NOEXCEPT {
  const sharpi::CallEnvironment environment;
  delete group;
}

sharpi_status sharpi_group_info(const sharpi_group* group, sharpi_group_summary* out,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(group, "group"));
    SHARPI_TRY(api::check_out_struct(out, 96, "sharpi_group_summary"));
    const sharpi::Group& g = *group->p;
    sharpi_group_summary s{};
    s.n_ranks = g.n_ranks();
    s.rank = g.rank();
    s.is_lost = g.is_lost() ? 1 : 0;
    s.timeout_ms = g.shape().timeout_ms;
    s.load_timeout_ms = g.shape().load_timeout_ms;
    s.device_bytes = g.transport().device_bytes();
    api::copy_line(g.transport().name(), s.transport, sizeof s.transport);
    api::write_out(s, out);
    return Status::ok();
  });
}
