// SPDX-License-Identifier: MIT
// Resolving a session template: explicit parameter over environment over auto. The boundary has
// checked the range of every parameter (api_ranges.cc); what the environment says, and what
// parameters mean together and for this model, is checked here.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/limits.h"
#include "kv/policy.h"
#include "plan/plan.h"
#include "plan/session_plan.h"
#include "plan/token_checks.h"

namespace sharpi {
namespace {

/// A count: the parameter if set, else the environment's text, else `automatic`.
Result<uint32_t> resolve_count(uint32_t param, const std::string& env, const char* env_name,
                               uint32_t automatic) {
  if (param != SHARPI_UNSET) return param;
  size_t b = 0, e = env.size();
  while (b < e && std::isspace(static_cast<unsigned char>(env[b]))) ++b;
  while (e > b && std::isspace(static_cast<unsigned char>(env[e - 1]))) --e;
  if (b == e) return automatic;
  const std::string text = env.substr(b, e - b);
  if (!std::all_of(text.begin(), text.end(),
                   [](unsigned char c) { return std::isdigit(c) != 0; }) ||
      text.size() > 9) {
    return Status::error(Code::kInvalidArgument,
                         "%s is \"%s\"; a count from 0 to 999999999 is expected", env_name,
                         text.c_str());
  }
  return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
}

struct DtypeWishes {
  KvDtype k, v, tail_k, tail_v, env;
  bool env_set = false;
};

Result<DtypeWishes> read_wishes(const sharpi_session_params& p,
                                const PlanEnvironment& environment) {
  const auto named = [](sharpi_kv_dtype value) { return static_cast<KvDtype>(value); };
  DtypeWishes w{};
  w.k = named(p.k_dtype);
  w.v = named(p.v_dtype);
  w.tail_k = named(p.tail_k_dtype);
  w.tail_v = named(p.tail_v_dtype);
  auto env = kv_dtype_parse(environment.kv_dtype.c_str(), &w.env_set);
  if (!env.is_ok()) {
    return Status::error(Code::kInvalidArgument, "SHARPI_KV_DTYPE: %s",
                         env.status().text().c_str());
  }
  w.env = env.value();
  return w;
}

/// Whether a parameter names the codec of a layer's rows; those of the tail have their own beside
/// GPUs.
bool is_given(bool split, bool in_tail, KvDtype trunk, KvDtype tail) {
  const bool by_trunk = trunk != KvDtype::kAuto && !(in_tail && split);
  return by_trunk || (in_tail && tail != KvDtype::kAuto);
}

/// Explicit over environment over automatic.
KvDtype choose(KvDtype wanted, KvDtype env, KvDtype automatic) {
  if (wanted != KvDtype::kAuto) return wanted;
  return env != KvDtype::kAuto ? env : automatic;
}

/// Where one row is key and value, a codec that is given for either is that of both.
void share_codec(const LayerSpec& l, bool k_given, bool v_given, KvDtypePair* of_layer) {
  if (l.attends() == nullptr || !l.attends()->one_row() || k_given == v_given) return;
  of_layer->k = of_layer->v = k_given ? of_layer->k : of_layer->v;
}

bool has_attention_on_a_device(const ModelSpec& spec, const Placement& placement) {
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    if (spec.layers[l].owns_kv() && !is_host(placement.mixer[l])) return true;
  }
  return false;
}

}  // namespace

Result<SessionDtypes> resolve_dtypes(const ModelSpec& spec, const Placement& placement,
                                     const sharpi_session_params& p,
                                     const PlanEnvironment& environment, KvDtype automatic) {
  SHARPI_TRY_ASSIGN(const DtypeWishes w, read_wishes(p, environment));
  const bool split = has_attention_on_a_device(spec, placement);
  SessionDtypes out;
  const KvDtypePair trunk{choose(w.k, w.env, automatic), choose(w.v, w.env, automatic)};
  KvDtypePair tail = trunk;
  if (split) tail = KvDtypePair{KvDtype::kF32, KvDtype::kF32};
  if (w.tail_k != KvDtype::kAuto) tail.k = w.tail_k;
  if (w.tail_v != KvDtype::kAuto) tail.v = w.tail_v;
  out.any_auto = (w.k == KvDtype::kAuto || w.v == KvDtype::kAuto) && w.env == KvDtype::kAuto;
  out.per_layer.resize(spec.layers.size());
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const bool in_tail = is_host(placement.mixer[l]);
    out.per_layer[l] = in_tail ? tail : trunk;
    share_codec(spec.layers[l], is_given(split, in_tail, w.k, w.tail_k),
                is_given(split, in_tail, w.v, w.tail_v), &out.per_layer[l]);
  }
  return out;
}

namespace {

/// What only the compactions that a budget brings about would read.
Status check_has_budget(const SessionShape& s, const sharpi_session_params& p) {
  if (p.n_probe != 0 && s.kv_budget == 0) {
    return Status::error(Code::kInvalidArgument, "n_probe is %u, but there is no kv_budget",
                         p.n_probe);
  }
  if (s.kv_budget != 0 || s.prompt_budget != 0) return Status::ok();
  const bool has_policy = p.policy != SHARPI_POLICY_AUTO, has_sinks = p.sinks != SHARPI_UNSET;
  if (!has_policy && !has_sinks && p.recency == SHARPI_UNSET) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "%s is %u, but there is no kv_budget or prompt_budget to use it; "
                       "sharpi_session_compact() takes its own",
                       has_policy  ? "policy"
                       : has_sinks ? "sinks"
                                   : "recency",
                       has_policy  ? p.policy
                       : has_sinks ? p.sinks
                                   : p.recency);
}

Status check_compaction_request(const SessionShape& s, const sharpi_session_params& p) {
  for (const uint32_t budget : {s.kv_budget, s.prompt_budget}) {
    if (budget == 0 || budget == SHARPI_BUDGET_AUTO) continue;
    SHARPI_TRY(resolve_fixed_rows(s.recency, s.sinks, budget).take_status());
  }
  SHARPI_TRY(check_has_budget(s, p));
  if (s.capture_window > kMaxCaptureWindow) {  // the environment's
    return Status::error(Code::kInvalidArgument, "capture_window is %u; at most %u is allowed",
                         s.capture_window, kMaxCaptureWindow);
  }
  if ((s.kv_budget != 0 || s.prompt_budget != 0) && s.capture_window == 0) {
    return Status::error(Code::kInvalidArgument,
                         "a KV budget needs a capture_window of at least 1");
  }
  return Status::ok();
}

Status check_replay_request(const SessionShape& s, const sharpi_session_params& p) {
  if (p.replay == 0 && p.replay_every != 1) {
    return Status::error(Code::kInvalidArgument, "replay_every is %u, but replay is 0",
                         p.replay_every);
  }
  if (p.replay != 0 && s.capture_window < kDefaultCaptureWindow) {
    return Status::error(Code::kInvalidArgument,
                         "replay needs a capture_window of at least %u, but it is %u",
                         kDefaultCaptureWindow, s.capture_window);
  }
  if (p.replay != 0 || !policy_row(s.policy).reads_replay) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "policy %u (%s) chooses by replay scores, which this session does not "
                       "capture: replay is 0",
                       s.policy, policy_row(s.policy).name);
}

Status check_draft_request(const sharpi_session_params& p) {
  if (p.drafters != 0 && p.n_draft == 0) {
    return Status::error(Code::kInvalidArgument, "drafters is %u but n_draft is 0", p.drafters);
  }
  if (p.n_draft_vocab != 0 && (p.drafters & (SHARPI_DRAFT_MTP | SHARPI_DRAFT_AUTO)) == 0) {
    return Status::error(
        Code::kInvalidArgument,
        "n_draft_vocab is %u, but drafters is %u: only 2 (MTP) and 4 (AUTO) use it",
        p.n_draft_vocab, p.drafters);
  }
  return Status::ok();
}

/// Who drafts in a session, of what the plan has loaded.
Status resolve_drafters(const ModelSpec& spec, const SessionShape& priced, SessionShape* s) {
  if (s->n_draft > priced.n_draft) {
    return Status::error(Code::kDoesNotFit,
                         "n_draft is %u, which is more than the %u that the plan priced",
                         s->n_draft, priced.n_draft);
  }
  if (s->drafters == SHARPI_DRAFT_AUTO) {
    const uint32_t loaded = SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL;
    s->drafters = SHARPI_DRAFT_NGRAM | (priced.drafters & loaded);
  }
  if ((s->drafters & ~priced.drafters & SHARPI_DRAFT_MTP) != 0) {
    return Status::error(
        Code::kDoesNotFit,
        "drafters has MTP, but the plan priced sessions without it, so its block is not loaded");
  }
  if ((s->drafters & ~priced.drafters & SHARPI_DRAFT_MODEL) != 0) {
    return Status::error(Code::kDoesNotFit,
                         "drafters has MODEL, but the plan priced sessions without it, so the "
                         "draft model is not loaded");
  }
  const uint32_t below = priced.n_draft_vocab == 0 ? spec.n_vocab : priced.n_draft_vocab;
  const bool has_mtp = (s->drafters & SHARPI_DRAFT_MTP) != 0;
  if (!has_mtp && s->n_draft_vocab != 0) {
    return Status::error(Code::kDoesNotFit,
                         "n_draft_vocab is %u, but the plan has no MTP block that drafts",
                         s->n_draft_vocab);
  }
  if (has_mtp && s->n_draft_vocab != 0 && s->n_draft_vocab != below) {
    return Status::error(Code::kDoesNotFit,
                         "n_draft_vocab is %u, but the plan's MTP block drafts tokens below %u",
                         s->n_draft_vocab, below);
  }
  s->n_draft_vocab = has_mtp ? priced.n_draft_vocab : 0;
  return Status::ok();
}

}  // namespace

Status check_archive(const ModelSpec& spec, const SessionShape& session) {
  for (uint32_t l = 0; session.archive_rows != 0 && l < spec.n_layers(); ++l) {
    if (spec.layers[l].attends_to_all() == nullptr) continue;
    const uint32_t dim = spec.layers[l].attention.head_dim;
    for (const KvDtype d : {session.dtypes[l].k, session.dtypes[l].v}) {
      if (!spec.layers[l].owns_kv() || dim % kv_codec(d)->block == 0) continue;
      return Status::error(
          Code::kUnsupported,
          "archive_rows is %u, but layer %u has heads of %u elements, which cannot "
          "be kept one by one in %s blocks of %u",
          session.archive_rows, l, dim, kv_codec(d)->name, kv_codec(d)->block);
    }
  }
  return Status::ok();
}

Status check_automatic_budget(const SessionShape& s) {
  if (s.prompt_budget != SHARPI_BUDGET_AUTO) return Status::ok();
  return resolve_fixed_rows(s.recency, s.sinks, auto_budget(s.n_ctx, 0)).take_status();
}

Result<SessionShape> resolve_session_shape(const ModelSpec& spec, const sharpi_session_params& p,
                                           const PlanEnvironment& environment) {
  SessionShape s;
  s.n_ctx = p.n_ctx;
  if (p.n_ctx != SHARPI_UNSET && p.n_ctx > spec.n_ctx_train) {
    return Status::error(Code::kInvalidArgument,
                         "n_ctx is %u, which is more than the model's context of %u", p.n_ctx,
                         spec.n_ctx_train);
  }
  s.rewind = p.rewind;
  s.n_checkpoints = spec.is_hybrid() ? p.n_checkpoints : 0;
  s.kv_budget = p.kv_budget;
  SHARPI_TRY_ASSIGN(s.prompt_budget,
                    resolve_count(p.prompt_budget, environment.budget, "SHARPI_SNAPKV_BUDGET", 0));
  const bool scored = s.kv_budget != 0 || s.prompt_budget != 0 || p.replay != 0;
  SHARPI_TRY_ASSIGN(const uint32_t window,
                    resolve_count(p.capture_window, environment.window, "SHARPI_SNAPKV_WINDOW",
                                  kDefaultCaptureWindow));
  s.capture_window = scored || p.capture_window != SHARPI_UNSET ? window : 0;
  SHARPI_TRY_ASSIGN(s.recency, resolve_count(p.recency, environment.recency,
                                             "SHARPI_SNAPKV_RECENCY", SHARPI_UNSET));
  s.sinks = p.sinks;
  s.policy = p.policy;
  s.lookahead = p.lookahead != 0;
  s.per_layer_budgets = p.per_layer_budgets != 0;
  s.replay_every = p.replay != 0 ? p.replay_every : 0;
  s.archive_rows = p.archive_rows;
  s.n_draft = p.n_draft;
  s.drafters = p.drafters;
  s.n_draft_vocab = std::min(p.n_draft_vocab, spec.n_vocab);
  SHARPI_TRY(check_compaction_request(s, p));
  SHARPI_TRY(check_replay_request(s, p));
  SHARPI_TRY(check_draft_request(p));
  const std::span<const int32_t> probe(p.probe, p.n_probe);
  SHARPI_TRY(check_token_ids(probe, spec.n_vocab, 0, " of the probe"));
  s.probe.assign(probe.begin(), probe.end());
  return s;
}

Result<SessionShape> resolve_session(const ModelSpec& spec, const Placement& placement,
                                     const SessionShape& priced,
                                     const sharpi_session_params& params,
                                     const PlanEnvironment& environment) {
  SHARPI_TRY_ASSIGN(SessionShape s, resolve_session_shape(spec, params, environment));
  if (s.n_ctx == SHARPI_UNSET) s.n_ctx = priced.n_ctx;
  SHARPI_TRY_ASSIGN(SessionDtypes dtypes,
                    resolve_dtypes(spec, placement, params, environment, spec.default_kv_dtype));
  if (dtypes.any_auto) {
    // What the plan chose for `auto`, narrowing included, is what its sessions get.
    s.dtypes = priced.dtypes;
    const bool split = has_attention_on_a_device(spec, placement);
    for (size_t l = 0; l < s.dtypes.size(); ++l) {
      const bool in_tail = is_host(placement.mixer[l]);
      const KvDtypePair from = dtypes.per_layer[l];
      const auto given = [&](sharpi_kv_dtype trunk, sharpi_kv_dtype tail) {
        return is_given(split, in_tail, static_cast<KvDtype>(trunk), static_cast<KvDtype>(tail));
      };
      const bool k = given(params.k_dtype, params.tail_k_dtype);
      const bool v = given(params.v_dtype, params.tail_v_dtype);
      if (k) s.dtypes[l].k = from.k;
      if (v) s.dtypes[l].v = from.v;
      share_codec(spec.layers[l], k, v, &s.dtypes[l]);
    }
  } else {
    s.dtypes = std::move(dtypes.per_layer);
  }
  const std::vector<bool> all(spec.layers.size(), true);
  SHARPI_TRY(check_kv_geometry(spec, all, s.dtypes));
  SHARPI_TRY(resolve_drafters(spec, priced, &s));
  if (s.replay_every != 0 && priced.replay_every == 0) {
    return Status::error(Code::kDoesNotFit, "replay is 1, but the plan priced sessions without it");
  }
  if (s.n_ctx > priced.n_ctx) {
    return Status::error(Code::kDoesNotFit,
                         "n_ctx is %u, which is more than the %u that the plan priced", s.n_ctx,
                         priced.n_ctx);
  }
  SHARPI_TRY(check_automatic_budget(s));
  SHARPI_TRY(check_archive(spec, s));
  return s;
}

Status check_within(const std::vector<MemoryRow>& priced, const std::vector<MemoryRow>& wanted) {
  for (const MemoryRow& w : wanted) {
    uint64_t have = 0, need = 0;
    for (const MemoryRow& r : priced) {
      const bool same = r.device == w.device && r.tier == w.tier && r.purpose == w.purpose;
      if (same && r.per_session) have += r.held_bytes;
    }
    for (const MemoryRow& r : wanted) {
      const bool same = r.device == w.device && r.tier == w.tier && r.purpose == w.purpose;
      if (same) need += r.held_bytes;
    }
    if (need > have) {
      return Status::error(
          Code::kDoesNotFit,
          "row \"%s\" is short by %llu bytes: the session takes %llu, the plan priced "
          "%llu",
          w.label, static_cast<unsigned long long>(need - have),
          static_cast<unsigned long long>(need), static_cast<unsigned long long>(have));
    }
  }
  return Status::ok();
}

}  // namespace sharpi
