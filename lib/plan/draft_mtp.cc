// SPDX-License-Identifier: MIT
#include "plan/draft_mtp.h"

#include <algorithm>

namespace sharpi {
namespace {

/// Rows that the block reads at a time: enough that its products are worth their weights, and few
/// enough that its activations are small beside the model's.
constexpr uint32_t kMtpChunk = 128;

const TierSizer* host_of(const std::vector<const TierSizer*>& sizers) {
  for (const TierSizer* s : sizers) {
    if (s->tier() == TierId::kCpu) return s;
  }
  return nullptr;
}

bool wants_mtp(const SessionShape& session) {
  return (session.drafters & SHARPI_DRAFT_MTP) != 0;
}

/// As the last layer that stores rows of full attention.
KvDtypePair dtypes_of_last(const ModelSpec& spec, const SessionShape& session) {
  KvDtypePair last{spec.default_kv_dtype, spec.default_kv_dtype};
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (spec.layers[l].owns_kv()) last = session.dtypes[l];
  }
  return last;
}

template <class RowsOf>
std::vector<MemoryRow> rows_of(const std::vector<const TierSizer*>& sizers, const ModelSpec& spec,
                               const ModelShape& model, const SessionShape& session,
                               const RowsOf& ask) {
  std::vector<MemoryRow> rows;
  const TierSizer* host = host_of(sizers);
  if (!wants_mtp(session) || host == nullptr) return rows;
  const Plan own = make_mtp_plan(spec, model, session);
  for (const MemoryRow& r : ask(*host, own)) rows.push_back(mtp_row(r, spec));
  return rows;
}

}  // namespace

Status check_mtp(const ModelSpec& spec) {
  if (!spec.mtp) {
    return Status::error(Code::kUnsupported,
                         "drafters has MTP, but the file has no block for multi-token prediction");
  }
  if (spec.n_mtp_layers == 1) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "drafters has MTP, but the file has %u blocks for multi-token prediction; "
                       "only one is supported",
                       spec.n_mtp_layers);
}

Status check_mtp(const ModelSpec& spec, const Placement& placement) {
  SHARPI_TRY(check_mtp(spec));
  if (placement.head == TierId::kCpu) return Status::ok();
  return Status::error(
      Code::kUnsupported,
      "drafters has MTP, whose block runs on the CPU in this version, but the head is on the GPU: "
      "place the head on the CPU (gpu_ends 0, or n_gpu_layers 0), or take other drafters");
}

Plan make_mtp_plan(const ModelSpec& spec, const ModelShape& model, const SessionShape& session) {
  Plan p;
  p.spec = make_mtp_spec(spec);
  p.placement = Placement::all(*p.spec, TierId::kCpu);
  p.model.exact = model.exact;
  p.model.deterministic = model.deterministic;
  p.model.n_chunk = std::min(model.n_chunk, kMtpChunk);
  p.model.max_batch = p.model.max_logit_rows = 1;
  p.model.max_concurrent = model.max_concurrent;
  p.model.n_sessions = model.n_sessions;
  p.model.copy_weights = true;  // they are another plan's rows
  p.session.n_ctx = session.n_ctx;
  p.session.kv_budget = session.kv_budget;
  p.session.dtypes = {dtypes_of_last(spec, session)};
  p.session.rewind = 0;
  p.session.lookahead = false;
  return p;
}

MemoryRow mtp_row(MemoryRow row, const ModelSpec& spec) {
  const std::string label = std::string("MTP ") + row.label;
  std::snprintf(row.label, sizeof row.label, "%s", label.c_str());
  if (row.n_layers != 0) row.first_layer = spec.n_layers();
  return row;
}

uint32_t mtp_queue_rows(uint32_t n_chunk) {
  return n_chunk + kMtpWaiting;
}

uint64_t mtp_queue_bytes(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk) {
  const uint64_t rows = uint64_t{mtp_queue_rows(n_chunk)} + session.n_checkpoints + 1;
  const uint64_t kept = session.kv_budget == 0 ? 0 : session.capacity(n_chunk);
  return rows * spec.n_embd * sizeof(float) + kept * sizeof(uint32_t);
}

std::vector<MemoryRow> mtp_model_rows(const std::vector<const TierSizer*>& sizers,
                                      const ModelSpec& spec, const ModelShape& model,
                                      const SessionShape& session) {
  return rows_of(sizers, spec, model, session, [](const TierSizer& host, const Plan& p) {
    return host.model_rows(*p.spec, p.placement, p.model, p.session);
  });
}

std::vector<MemoryRow> mtp_session_rows(const std::vector<const TierSizer*>& sizers,
                                        const ModelSpec& spec, const ModelShape& model,
                                        const SessionShape& session) {
  return rows_of(sizers, spec, model, session, [](const TierSizer& host, const Plan& p) {
    return host.session_rows(*p.spec, p.placement, p.model, p.session);
  });
}

}  // namespace sharpi
