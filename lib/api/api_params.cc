// SPDX-License-Identifier: MIT
#include "api/api_params.h"

#include <algorithm>
#include <cstring>

#include "api/api_guard.h"
#include "base/limits.h"
#include "engine/draw.h"
#include "engine/sampler.h"

namespace sharpi::api {
namespace {

constexpr StructInfo kContext{"sharpi_context_params", 64, sizeof(sharpi_context_params)};
constexpr StructInfo kSession{"sharpi_session_params", 88, sizeof(sharpi_session_params)};
constexpr StructInfo kDeviceRequest{"sharpi_device_request", 48, sizeof(sharpi_device_request)};
constexpr StructInfo kPlan{"sharpi_plan_params", 112, sizeof(sharpi_plan_params)};
constexpr StructInfo kPrefill{"sharpi_prefill_params", 32, sizeof(sharpi_prefill_params)};
constexpr StructInfo kSampler{"sharpi_sampler_params", 56, sizeof(sharpi_sampler_params)};
constexpr StructInfo kSample{"sharpi_sample_params", 64, sizeof(sharpi_sample_params)};
constexpr StructInfo kCompact{"sharpi_compact_params", 80, sizeof(sharpi_compact_params)};
constexpr StructInfo kRecall{"sharpi_recall_params", 48, sizeof(sharpi_recall_params)};

}  // namespace

Status adopt_struct(const StructInfo& info, const void* in, void* out) {
  const auto* bytes = static_cast<const unsigned char*>(in);
  uint32_t given = 0;
  std::memcpy(&given, bytes, sizeof given);
  if (given < info.v1_size || given > kMaxStructBytes) {
    return Status::error(Code::kInvalidArgument,
                         "%s has struct_size %u, but the first version has %zu bytes (was its init "
                         "function not called?)",
                         info.name, given, info.v1_size);
  }
  for (size_t i = info.size; i < given; ++i) {
    if (bytes[i] != 0) {
      return Status::error(
          Code::kUnsupported,
          "%s has %u bytes and byte %zu is set, but this library knows only %zu bytes", info.name,
          given, i, info.size);
    }
  }
  std::memcpy(out, bytes, std::min<size_t>(given, info.size));
  const auto size = static_cast<uint32_t>(info.size);
  std::memcpy(out, &size, sizeof size);
  return Status::ok();
}

void init_struct(const StructInfo& info, const void* defaults, void* out, size_t size) noexcept {
  if (out == nullptr || size < sizeof(uint32_t)) return;
  const size_t known = std::min(size, info.size);
  std::memcpy(out, defaults, known);
  std::memset(static_cast<char*>(out) + known, 0, size - known);
  const auto given = static_cast<uint32_t>(std::min<size_t>(size, UINT32_MAX));
  std::memcpy(out, &given, sizeof given);
}

sharpi_context_params default_context_params() noexcept {
  sharpi_context_params p{};
  p.struct_size = sizeof p;
  p.cpu_isa = SHARPI_ISA_AUTO;
  p.log_level = SHARPI_LOG_WARN;
  return p;
}

sharpi_session_params default_session_params() noexcept {
  sharpi_session_params p{};
  p.struct_size = sizeof p;
  p.n_ctx = SHARPI_UNSET;
  p.rewind = kDefaultRewind;
  p.prompt_budget = SHARPI_UNSET;
  p.capture_window = SHARPI_UNSET;
  p.recency = SHARPI_UNSET;
  p.sinks = SHARPI_UNSET;
  p.policy = SHARPI_POLICY_AUTO;
  p.lookahead = 1;
  p.replay_every = 1;
  return p;
}

sharpi_device_request default_device_request() noexcept {
  sharpi_device_request d{};
  d.struct_size = sizeof d;
  d.device = SHARPI_UNSET;
  d.n_layers = -1;
  d.budget = SHARPI_ALL_FREE;
  d.reserve = SHARPI_RESERVE_AUTO;
  return d;
}

sharpi_plan_params default_plan_params() noexcept {
  sharpi_plan_params p{};
  p.struct_size = sizeof p;
  p.n_gpu_layers = -1;
  p.n_gpu_ffn = -1;
  p.n_expert_slots = -1;
  p.n_gpu_experts = -1;
  p.gpu_ends = -1;
  p.arithmetic = SHARPI_ARITHMETIC_FAST;
  p.n_chunk = SHARPI_UNSET;
  p.max_batch = kDefaultMaxBatch;
  p.max_logit_rows = SHARPI_UNSET;
  p.max_concurrent = 1;
  p.n_sessions = 1;
  p.device = SHARPI_UNSET;
  p.device_budget = SHARPI_ALL_FREE;
  p.host_budget = SHARPI_ALL_FREE;
  p.stream_rows = 0;
  p.load_mode = SHARPI_LOAD_COPY;
  p.adapter_rank = SHARPI_UNSET;
  return p;
}

sharpi_prefill_params default_prefill_params() noexcept {
  sharpi_prefill_params p{};
  p.struct_size = sizeof p;
  p.n_logit_rows = 1;
  return p;
}

sharpi_compact_params default_compact_params() noexcept {
  sharpi_compact_params p{};
  p.struct_size = sizeof p;
  p.policy = SHARPI_POLICY_AUTO;
  p.budget = SHARPI_UNSET;
  p.window = SHARPI_UNSET;
  p.recency = SHARPI_UNSET;
  p.sinks = SHARPI_UNSET;
  p.headroom = kDefaultHeadroom;
  p.pool_kernel = kDefaultPoolKernel;
  p.span = SHARPI_UNSET;
  p.layer_budget = SHARPI_LAYER_BUDGET_EQUAL;
  return p;
}

sharpi_recall_params default_recall_params() noexcept {
  sharpi_recall_params p{};
  p.struct_size = sizeof p;
  p.budget = SHARPI_UNSET;
  p.window = SHARPI_UNSET;
  p.recency = SHARPI_UNSET;
  p.sinks = SHARPI_UNSET;
  return p;
}

Status read_params(const sharpi_context_params* in, sharpi_context_params* out) {
  *out = default_context_params();
  if (in == nullptr) return Status::ok();
  SHARPI_TRY(adopt_struct(kContext, in, out));
  return check_params(*out);
}

Status read_params(const sharpi_session_params* in, sharpi_session_params* out) {
  *out = default_session_params();
  if (in == nullptr) return Status::ok();
  SHARPI_TRY(adopt_struct(kSession, in, out));
  return check_params(*out);
}

namespace {

/// The caller's array, whose elements are as large as its header has them.
Status read_devices(const sharpi_plan_params& p, std::vector<sharpi_device_request>* out) {
  const auto* at = reinterpret_cast<const unsigned char*>(p.devices);
  uint32_t stride = 0;
  for (uint32_t i = 0; i < p.n_devices; ++i, at += stride) {
    sharpi_device_request d = default_device_request();
    SHARPI_TRY(adopt_struct(kDeviceRequest, at, &d));
    uint32_t given = 0;
    std::memcpy(&given, at, sizeof given);
    if (i != 0 && given != stride) {
      return Status::error(Code::kInvalidArgument,
                           "devices has elements of %u and of %u bytes; all are of one size",
                           stride, given);
    }
    stride = given;
    SHARPI_TRY(check_params(d));
    out->push_back(d);
  }
  return Status::ok();
}

}  // namespace

Status read_params(const sharpi_plan_params* in, PlanRequest* out) {
  out->params = default_plan_params();
  if (in != nullptr) SHARPI_TRY(adopt_struct(kPlan, in, &out->params));
  SHARPI_TRY(check_params(out->params));
  SHARPI_TRY(read_params(out->params.session, &out->session));
  out->params.session = &out->session;
  SHARPI_TRY(read_devices(out->params, &out->devices));
  out->params.devices = out->devices.data();
  return Status::ok();
}

Status read_params(const sharpi_prefill_params* in, sharpi_prefill_params* out) {
  *out = default_prefill_params();
  if (in == nullptr) return Status::ok();
  SHARPI_TRY(adopt_struct(kPrefill, in, out));
  return check_params(*out);
}

Status read_params(const sharpi_compact_params* in, sharpi_compact_params* out) {
  *out = default_compact_params();
  if (in != nullptr) SHARPI_TRY(adopt_struct(kCompact, in, out));
  return check_params(*out);
}

Status read_params(const sharpi_recall_params* in, sharpi_recall_params* out) {
  *out = default_recall_params();
  if (in != nullptr) SHARPI_TRY(adopt_struct(kRecall, in, out));
  return check_params(*out);
}

Status read_params(const sharpi_sampler_params* in, sharpi_sampler_params* out) {
  *out = default_sampler_params();
  return in == nullptr ? Status::ok() : adopt_struct(kSampler, in, out);
}

Status read_params(const sharpi_sample_params* in, sharpi_sample_params* out) {
  *out = default_sample_params();
  return in == nullptr ? Status::ok() : adopt_struct(kSample, in, out);
}

}  // namespace sharpi::api

using sharpi::api::init_struct;

void sharpi_context_params_init(sharpi_context_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::api::default_context_params();
  init_struct(sharpi::api::kContext, &defaults, p, size);
}
void sharpi_session_params_init(sharpi_session_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::api::default_session_params();
  init_struct(sharpi::api::kSession, &defaults, p, size);
}
void sharpi_device_request_init(sharpi_device_request* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::api::default_device_request();
  init_struct(sharpi::api::kDeviceRequest, &defaults, p, size);
}
void sharpi_plan_params_init(sharpi_plan_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::api::default_plan_params();
  init_struct(sharpi::api::kPlan, &defaults, p, size);
}
void sharpi_prefill_params_init(sharpi_prefill_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::api::default_prefill_params();
  init_struct(sharpi::api::kPrefill, &defaults, p, size);
}
void sharpi_sampler_params_init(sharpi_sampler_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::default_sampler_params();
  init_struct(sharpi::api::kSampler, &defaults, p, size);
}
void sharpi_sample_params_init(sharpi_sample_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::default_sample_params();
  init_struct(sharpi::api::kSample, &defaults, p, size);
}
void sharpi_compact_params_init(sharpi_compact_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::api::default_compact_params();
  init_struct(sharpi::api::kCompact, &defaults, p, size);
}
void sharpi_recall_params_init(sharpi_recall_params* p, size_t size) SHARPI_NOEXCEPT {
  const auto defaults = sharpi::api::default_recall_params();
  init_struct(sharpi::api::kRecall, &defaults, p, size);
}
