// SPDX-License-Identifier: MIT
// The range of every parameter field. Limits that depend on a file are checked by the planner.
#include <cmath>
#include <string>

#include "api/api_guard.h"
#include "api/api_params.h"
#include "api/backends.h"
#include "base/limits.h"
#include "kv/codec.h"
#include "kv/policy.h"
#include "plan/devices.h"

namespace sharpi::api {
namespace {

// Threads of one pool: more than any machine this code is for, few enough to create.
constexpr uint32_t kMaxThreads = 1024;
// Positions are 32-bit and are added to windows and chunks.
constexpr uint32_t kMaxTokens = 0x7FFFFFFFu;
constexpr uint32_t kMaxChunk = 65535;  // rows of a CUDA grid
constexpr uint32_t kMaxConcurrent = 16;
constexpr uint32_t kMaxSessions = 4096;
constexpr uint32_t kMaxCheckpoints = 1024;

Status in_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s %lld is out of range; it must be %lld to %lld",
                       name, static_cast<long long>(value), static_cast<long long>(low),
                       static_cast<long long>(high));
}

Status in_range_or(const char* name, uint32_t value, uint32_t low, uint32_t high, uint32_t special,
                   const char* special_name) {
  if (value == special || (value >= low && value <= high)) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s %u is out of range; it must be %u to %u, or %s",
                       name, value, low, high, special_name);
}

Status one_of(const char* name, uint32_t value, uint32_t low, uint32_t high, const char* list) {
  if (value >= low && value <= high) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s %u is unknown; allowed are %s", name, value,
                       list);
}

/// "0 (AUTO), 1 (GLOBAL), ..."
std::string policy_names() {
  std::string names = "0 (AUTO)";
  for (const PolicyRow& row : policy_rows())
    names += ", " + std::to_string(row.policy) + " (" + row.name + ")";
  return names;
}

Status is_policy(uint32_t policy, const std::string& names) {
  if (policy_row(policy).name != nullptr) return Status::ok();
  return Status::error(Code::kInvalidArgument, "policy %u is unknown; allowed are %s", policy,
                       names.c_str());
}

Status is_switch(const char* name, uint32_t value) {
  return one_of(name, value, 0, 1, "0 (off), 1 (on)");
}

Status is_dtype(const char* name, sharpi_kv_dtype value) {
  return one_of(name, value, 0, kKvCodecs, kv_dtype_numbers().c_str());
}

Status is_isa(const char* name, sharpi_cpu_isa value) {
  std::string names;
  uint32_t n = 0;
  for (; api::isa_name(n) != nullptr; ++n)
    names += (n == 0 ? "" : ", ") + std::to_string(n) + " (" + api::isa_name(n) + ")";
  return one_of(name, value, 0, n - 1, names.c_str());
}

Status is_rate(const char* name, double value) {
  if (std::isfinite(value) && value >= 0.0) return Status::ok();
  return Status::error(
      Code::kInvalidArgument,
      "%s %g is out of range; it must be 0 (measure) or a finite number of bytes per second", name,
      value);
}

Status is_reserved(const char* name, uint32_t value) {
  if (value == 0) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "%s is %u, but this library has no use for it; it must be 0", name, value);
}

Status check_prompt_budget(uint32_t value) {
  if (value <= kMaxTokens || value == SHARPI_BUDGET_AUTO || value == SHARPI_UNSET) {
    return Status::ok();
  }
  return Status::error(
      Code::kInvalidArgument,
      "prompt_budget %u is out of range; it must be 0 to %u, UNSET, or BUDGET_AUTO", value,
      kMaxTokens);
}

/// Settings of scoring that a policy does not read; their defaults ask for nothing.
Status check_scoring(const sharpi_compact_params& p) {
  const sharpi_compact_params defaults = default_compact_params();
  const PolicySmoothing smoothing = policy_row(p.policy).smoothing;
  const bool pools = smoothing == PolicySmoothing::kPool;
  const bool marks = smoothing == PolicySmoothing::kSpread;
  if (!pools && p.pool_kernel != defaults.pool_kernel) {
    return Status::error(Code::kInvalidArgument,
                         "pool_kernel is %u, but policy %u averages no rows", p.pool_kernel,
                         p.policy);
  }
  if (!marks && p.span != SHARPI_UNSET) {
    return Status::error(Code::kInvalidArgument,
                         "span is %u, but policy %u marks no rows after a hit", p.span, p.policy);
  }
  return Status::ok();
}

/// Fields that the policy, or a probe, leaves without a use.
Status check_used(const sharpi_compact_params& p) {
  const bool keeps = p.policy == SHARPI_POLICY_KEEP;
  const bool replays = p.policy == SHARPI_POLICY_REPLAY;
  const struct {
    bool unused;
    const char* name;
    uint32_t value;
    const char* why;
  } fields[] = {
      {keeps && p.budget != SHARPI_UNSET, "budget", p.budget,
       "policy 7 (KEEP) keeps just the n_keep rows of keep"},
      {keeps && p.sinks != 0 && p.sinks != SHARPI_UNSET, "sinks", p.sinks,
       "policy 7 (KEEP) keeps just the rows of keep"},
      {keeps && p.window != SHARPI_UNSET, "window", p.window, "policy 7 (KEEP) scores nothing"},
      {keeps && p.n_probe != 0, "n_probe", p.n_probe, "policy 7 (KEEP) scores nothing"},
      {replays && p.window != SHARPI_UNSET, "window", p.window,
       "policy 8 (REPLAY) asks no captured queries"},
      {replays && p.n_probe != 0, "n_probe", p.n_probe, "policy 8 (REPLAY) asks no probe"},
      {p.n_probe != 0 && p.window != SHARPI_UNSET, "window", p.window,
       "the queries of a probe are all used"},
      {(keeps || policy_row(p.policy).scope == PolicyScope::kModel) &&
           p.layer_budget != SHARPI_LAYER_BUDGET_EQUAL,
       "layer_budget", p.layer_budget,
       "policies 1 (GLOBAL) and 7 (KEEP) keep the same rows in every layer"},
      {keeps && p.recency != 0 && p.recency != SHARPI_UNSET, "recency", p.recency,
       "policy 7 (KEEP) keeps just the rows of keep"},
  };
  for (const auto& f : fields) {
    if (!f.unused) continue;
    return Status::error(Code::kInvalidArgument, "%s is %u, but %s", f.name, f.value, f.why);
  }
  return Status::ok();
}

}  // namespace

Status check_params(const sharpi_context_params& p) {
  SHARPI_TRY(require_flags(p.flags, SHARPI_CONTEXT_READ_ENV, "flags"));
  SHARPI_TRY(in_range("n_threads", p.n_threads, 0, kMaxThreads));
  SHARPI_TRY(is_isa("cpu_isa", p.cpu_isa));
  SHARPI_TRY(one_of("log_level", p.log_level, SHARPI_LOG_ERROR, SHARPI_LOG_DEBUG,
                    "1 (ERROR), 2 (WARN), 3 (INFO), 4 (DEBUG)"));
  SHARPI_TRY(is_reserved("reserved", p.reserved));
  if ((p.alloc == nullptr) != (p.free == nullptr)) {
    return Status::error(Code::kInvalidArgument,
                         "alloc and free must be given together; %s is null",
                         p.alloc == nullptr ? "alloc" : "free");
  }
  return Status::ok();
}

Status check_params(const sharpi_session_params& p) {
  SHARPI_TRY(in_range_or("n_ctx", p.n_ctx, 1, kMaxTokens, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(is_dtype("k_dtype", p.k_dtype));
  SHARPI_TRY(is_dtype("v_dtype", p.v_dtype));
  SHARPI_TRY(is_dtype("tail_k_dtype", p.tail_k_dtype));
  SHARPI_TRY(is_dtype("tail_v_dtype", p.tail_v_dtype));
  SHARPI_TRY(in_range("rewind", p.rewind, 0, kMaxRewind));
  SHARPI_TRY(in_range("n_checkpoints", p.n_checkpoints, 0, kMaxCheckpoints));
  SHARPI_TRY(in_range("kv_budget", p.kv_budget, 0, kMaxTokens));
  SHARPI_TRY(check_prompt_budget(p.prompt_budget));
  SHARPI_TRY(
      in_range_or("capture_window", p.capture_window, 0, kMaxCaptureWindow, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range_or("recency", p.recency, 0, kMaxTokens, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range_or("sinks", p.sinks, 0, kMaxTokens, SHARPI_UNSET, "UNSET"));
  if (p.policy == SHARPI_POLICY_KEEP) {
    return Status::error(Code::kInvalidArgument,
                         "policy 7 (KEEP) needs rows and belongs to compact; allowed are %s",
                         policy_names().c_str());
  }
  SHARPI_TRY(is_policy(p.policy, policy_names()));
  SHARPI_TRY(is_switch("lookahead", p.lookahead));
  SHARPI_TRY(is_switch("per_layer_budgets", p.per_layer_budgets));
  SHARPI_TRY(is_switch("replay", p.replay));
  SHARPI_TRY(in_range("replay_every", p.replay_every, 1, kMaxReplayEvery));
  SHARPI_TRY(in_range("archive_rows", p.archive_rows, 0, kMaxTokens));
  SHARPI_TRY(is_reserved("reserved", p.reserved));
  SHARPI_TRY(in_range("n_probe", p.n_probe, 0, kMaxCaptureWindow));
  SHARPI_TRY(in_range("n_draft", p.n_draft, 0, kMaxDraft));
  const uint32_t named = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL;
  if (p.drafters != SHARPI_DRAFT_AUTO && (p.drafters & ~named) != 0) {
    return Status::error(Code::kInvalidArgument,
                         "drafters %u is unknown; allowed are 0 (the host), 1 (NGRAM), 2 (MTP), "
                         "8 (MODEL) and sums of these, or 4 (AUTO)",
                         p.drafters);
  }
  if (p.n_draft_vocab % kDraftVocabStep != 0) {
    return Status::error(Code::kInvalidArgument,
                         "n_draft_vocab %u is no multiple of %u; 0 = all tokens", p.n_draft_vocab,
                         kDraftVocabStep);
  }
  return require_array(p.probe, p.n_probe, "probe");
}

Status check_params(const sharpi_device_request& p) {
  if (p.device == SHARPI_UNSET) {
    return Status::error(Code::kInvalidArgument,
                         "a device of the list of devices is UNSET; name one by its index");
  }
  SHARPI_TRY(in_range("n_layers", p.n_layers, -1, INT32_MAX));
  SHARPI_TRY(is_reserved("reserved", p.reserved));
  SHARPI_TRY(is_rate("rate", p.rate));
  SHARPI_TRY(is_rate("link_rate", p.link_rate));
  if (p.device != 0 || p.link_rate == 0) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "link_rate of device 0 is %g, but the host has no link", p.link_rate);
}

Status check_params(const sharpi_plan_params& p) {
  SHARPI_TRY(in_range("n_gpu_layers", p.n_gpu_layers, -1, INT32_MAX));
  SHARPI_TRY(in_range("n_gpu_ffn", p.n_gpu_ffn, -1, INT32_MAX));
  SHARPI_TRY(in_range("n_expert_slots", p.n_expert_slots, -1, INT32_MAX));
  SHARPI_TRY(in_range("n_gpu_experts", p.n_gpu_experts, -1, INT32_MAX));
  SHARPI_TRY(in_range("gpu_ends", p.gpu_ends, -1, 2));
  SHARPI_TRY(one_of("arithmetic", p.arithmetic, SHARPI_ARITHMETIC_FAST, SHARPI_ARITHMETIC_EXACT,
                    "0 (FAST), 1 (EXACT)"));
  SHARPI_TRY(is_switch("deterministic", p.deterministic));
  SHARPI_TRY(in_range_or("n_chunk", p.n_chunk, 1, kMaxChunk, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range("max_batch", p.max_batch, 1, kMaxBatch));
  SHARPI_TRY(in_range_or("max_logit_rows", p.max_logit_rows, 1, std::min(p.n_chunk, kMaxChunk),
                         SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range("max_concurrent", p.max_concurrent, 1, kMaxConcurrent));
  SHARPI_TRY(in_range("n_sessions", p.n_sessions, 1, kMaxSessions));
  SHARPI_TRY(is_rate("device_rate", p.device_rate));
  SHARPI_TRY(is_rate("pcie_rate", p.pcie_rate));
  SHARPI_TRY(is_rate("host_rate", p.host_rate));
  SHARPI_TRY(in_range_or("stream_rows", p.stream_rows, 0, kMaxTokens, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range("n_devices", p.n_devices, 0, kMaxDevices));
  SHARPI_TRY(require_array(p.devices, p.n_devices, "devices"));
  SHARPI_TRY(in_range("n_adapters", p.n_adapters, 0, kMaxPlanAdapters));
  SHARPI_TRY(require_array(p.adapters, p.n_adapters, "adapters"));
  if (p.group == nullptr && p.rank_layers != nullptr) {
    return Status::error(Code::kInvalidArgument, "rank_layers is given, but group is null");
  }
  SHARPI_TRY(
      in_range_or("adapter_rank", p.adapter_rank, 0, kMaxAdapterRank, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(one_of("split", p.split, SHARPI_SPLIT_FEWEST, SHARPI_SPLIT_TENSOR,
                    "0 (FEWEST), 1 (ALL), 2 (TENSOR)"));
  return one_of("load_mode", p.load_mode, SHARPI_LOAD_COPY, SHARPI_LOAD_MAP, "0 (COPY), 1 (MAP)");
}

Status check_params(const sharpi_prefill_params& p) {
  SHARPI_TRY(require_flags(p.flags, SHARPI_PREFILL_CHECKPOINT | SHARPI_PREFILL_MORE, "flags"));
  SHARPI_TRY(in_range("n_logit_rows", p.n_logit_rows, 0, kMaxChunk));
  return in_range("n_chunk", p.n_chunk, 0, kMaxChunk);
}

Status check_params(const sharpi_compact_params& p) {
  const bool keeps = p.policy == SHARPI_POLICY_KEEP;
  if (!keeps) SHARPI_TRY(is_policy(p.policy, policy_names() + ", 7 (KEEP)"));
  if (keeps != (p.n_keep > 0)) {
    return Status::error(Code::kInvalidArgument,
                         "n_keep is %u with policy %u; rows to keep are given with policy 7 "
                         "(KEEP), and only with it",
                         p.n_keep, p.policy);
  }
  SHARPI_TRY(require_array(p.keep, p.n_keep, "keep"));
  for (uint32_t i = 1; i < p.n_keep; ++i) {
    if (p.keep[i] <= p.keep[i - 1]) {
      return Status::error(Code::kInvalidArgument, "keep[%u] is %u after %u; the rows must ascend",
                           i, p.keep[i], p.keep[i - 1]);
    }
  }
  SHARPI_TRY(check_used(p));
  if (!keeps) {
    const bool is_auto = p.budget == SHARPI_BUDGET_AUTO;
    if (p.budget == SHARPI_UNSET) {
      return Status::error(Code::kInvalidArgument, "budget is unset; it is required");
    }
    SHARPI_TRY(in_range_or("budget", p.budget, 1, kMaxTokens, SHARPI_BUDGET_AUTO, "BUDGET_AUTO"));
    SHARPI_TRY(in_range_or("recency", p.recency, 0, is_auto ? kMaxTokens : p.budget, SHARPI_UNSET,
                           "UNSET"));
    SHARPI_TRY(
        in_range_or("sinks", p.sinks, 0, is_auto ? kMaxTokens : p.budget, SHARPI_UNSET, "UNSET"));
  }
  SHARPI_TRY(in_range_or("window", p.window, 1, kMaxCaptureWindow, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range("headroom", p.headroom, 0, kMaxTokens));
  SHARPI_TRY(in_range("pool_kernel", p.pool_kernel, 1, kMaxPoolKernel));
  if (p.pool_kernel % 2 == 0) {
    return Status::error(Code::kInvalidArgument, "pool_kernel %u is even; it must be odd",
                         p.pool_kernel);
  }
  SHARPI_TRY(in_range_or("span", p.span, 0, kMaxSpan, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(one_of("layer_budget", p.layer_budget, SHARPI_LAYER_BUDGET_EQUAL,
                    SHARPI_LAYER_BUDGET_SHARED, "0 (EQUAL), 1 (PYRAMID), 2 (ENTROPY), 3 (SHARED)"));
  SHARPI_TRY(check_scoring(p));
  SHARPI_TRY(in_range("n_probe", p.n_probe, 0, kMaxCaptureWindow));
  return require_array(p.probe, p.n_probe, "probe");
}

Status check_params(const sharpi_recall_params& p) {
  if (p.budget == SHARPI_UNSET) {
    return Status::error(Code::kInvalidArgument, "budget is unset; it is required");
  }
  SHARPI_TRY(in_range("budget", p.budget, 1, kMaxTokens));
  SHARPI_TRY(in_range_or("window", p.window, 1, kMaxCaptureWindow, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range_or("recency", p.recency, 0, kMaxTokens, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range_or("sinks", p.sinks, 0, kMaxTokens, SHARPI_UNSET, "UNSET"));
  SHARPI_TRY(in_range("n_probe", p.n_probe, 0, kMaxCaptureWindow));
  if (p.n_probe != 0 && p.window != SHARPI_UNSET) {
    return Status::error(Code::kInvalidArgument,
                         "window is %u, but the queries of a probe are all used", p.window);
  }
  return require_array(p.probe, p.n_probe, "probe");
}

}  // namespace sharpi::api
