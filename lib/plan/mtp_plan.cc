// SPDX-License-Identifier: MIT
#include "plan/mtp_plan.h"

#include <algorithm>

namespace sharpi {
namespace {

/// Rows that the block reads at a time: enough that its products are worth their weights, and few
/// enough that its activations are small beside the model's.
constexpr uint32_t kMtpChunk = 128;

bool wants_mtp(const SessionShape& session) {
  return (session.drafters & SHARPI_DRAFT_MTP) != 0;
}

/// As the last layer of the same tier that stores rows of full attention, or the last of any.
KvDtypePair dtypes_of_last(const Plan& whole, const SessionShape& session) {
  const ModelSpec& spec = *whole.spec;
  KvDtypePair last{spec.default_kv_dtype, spec.default_kv_dtype};
  bool is_here = false;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const bool here = whole.placement.mixer[l] == whole.placement.head;
    if (!spec.layers[l].owns_kv() || (is_here && !here)) continue;
    last = session.dtypes[l];
    is_here = here;
  }
  return last;
}

template <class RowsOf>
std::vector<MemoryRow> rows_of(const std::vector<const TierSizer*>& sizers, const Plan& whole,
                               const SessionShape& session, const RowsOf& ask) {
  std::vector<MemoryRow> rows;
  if (!wants_mtp(session)) return rows;
  const Plan own = make_mtp_plan(whole, session);
  for (const TierSizer* s : sizers) {
    if (!own.uses(*s)) continue;
    for (const MemoryRow& r : ask(*s, own)) rows.push_back(mtp_row(r, *whole.spec));
  }
  return rows;
}

}  // namespace

Status check_mtp(const ModelSpec& spec, const std::vector<const TierSizer*>& devices) {
  if (!spec.mtp) {
    return Status::error(Code::kUnsupported,
                         "drafters has MTP, but the file has no block for multi-token prediction");
  }
  if (spec.n_mtp_layers != 1) {
    return Status::error(Code::kUnsupported,
                         "drafters has MTP, but the file has %u blocks for multi-token prediction; "
                         "only one is supported",
                         spec.n_mtp_layers);
  }
  if (devices.empty()) return Status::ok();
  const std::shared_ptr<const ModelSpec> own = make_mtp_spec(spec);
  for (const TierSizer* d : devices)
    SHARPI_TRY(d->check_model(*own, Placement::all(*own, DeviceIndex::kHere)));
  return Status::ok();
}

Plan make_mtp_plan(const Plan& whole, const SessionShape& session) {
  const ModelShape& model = whole.model;
  Plan p;
  const Placement& at = whole.placement;
  p.spec = make_mtp_spec(*whole.spec, whole.session.n_draft_vocab, at.embedding != at.head);
  p.placement = Placement::all(*p.spec, at.head);
  p.devices = whole.devices;
  p.model.exact = model.exact;
  p.model.deterministic = model.deterministic;
  p.model.n_chunk = std::min(model.n_chunk, kMtpChunk);
  p.model.max_batch = p.model.max_logit_rows = 1;
  p.model.max_concurrent = model.max_concurrent;
  p.model.n_sessions = model.n_sessions;
  p.model.copy_weights = true;  // of the host's: they are another plan's rows
  p.session.n_ctx = session.n_ctx;
  p.session.kv_budget = session.kv_budget;
  p.session.dtypes = {dtypes_of_last(whole, session)};
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
                                      const Plan& whole, const SessionShape& session) {
  return rows_of(sizers, whole, session,
                 [](const TierSizer& tier, const Plan& p) { return p.model_rows(tier); });
}

std::vector<MemoryRow> mtp_session_rows(const std::vector<const TierSizer*>& sizers,
                                        const Plan& whole, const SessionShape& session) {
  return rows_of(sizers, whole, session, [](const TierSizer& tier, const Plan& p) {
    return p.session_rows(tier, p.session);
  });
}

}  // namespace sharpi
