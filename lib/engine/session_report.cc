// SPDX-License-Identifier: MIT
#include "engine/session_report.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "engine/session_state.h"
#include "plan/session_plan.h"

namespace sharpi {

void summarise(const SessionState& s, sharpi_session_summary* out) {
  const SessionCore& core = s.core;
  const KvLedger& ledger = core.ledger();
  out->n_tokens = ledger.n_tokens();
  out->n_ctx = core.shape.n_ctx;
  out->capacity = core.full_capacity();
  out->n_slots_min = ledger.min_slots();
  out->n_slots_max = ledger.max_slots();
  out->is_compacted = ledger.is_compacted();
  out->n_logit_rows = core.transcript.logit_rows().n;
  out->adapters_id = core.adapters.id();
  out->n_adapters = static_cast<uint32_t>(core.adapters.uses().size());
  out->n_other_tokens = core.transcript.other_tokens();
  out->n_checkpoints = s.checkpoints.n_used();
  Plan like = core.model->plan();
  like.session = core.shape;
  const sharpi_plan_summary plan = like.summary();
  out->k_dtype = plan.k_dtype;
  out->v_dtype = plan.v_dtype;
  out->tail_k_dtype = plan.tail_k_dtype;
  out->tail_v_dtype = plan.tail_v_dtype;
  const KvTotals kv = s.compactor.totals();
  out->kv_payload_bytes = kv.payload;
  out->kv_held_bytes = kv.held;
  out->kv_shared_bytes = kv.shared;
  out->seed = s.drawer.sampler().params().seed;
  out->n_prefill_tokens = s.prompter.n_read();
  out->n_decode_tokens = s.verifier.n_read();
  out->prefill_seconds = s.prompter.seconds();
  out->decode_seconds = s.verifier.seconds();
  const std::string& paths = core.model->paths();
  const bool whole = paths.size() < sizeof out->paths;
  std::snprintf(out->paths, sizeof out->paths, "%.*s%s",
                whole ? static_cast<int>(paths.size()) : static_cast<int>(sizeof out->paths) - 4,
                paths.c_str(), whole ? "" : "...");
}

Status describe_session_layer(const SessionCore& core, uint32_t layer, sharpi_layer_info* out) {
  SHARPI_TRY(describe_layer(core.model->plan(), layer, out));
  if (!core.spec().layers[layer].owns_kv()) return Status::ok();
  const KvStore& kv = core.store(layer);
  const auto g = static_cast<uint32_t>(kv.layout().group_of_layer[layer]);
  const KvGroup& group = kv.layout().groups[g];
  out->k_dtype = static_cast<uint32_t>(kv.layout().find(layer)->k_dtype);
  if (!core.spec().layers[layer].attention.one_row())
    out->v_dtype = static_cast<uint32_t>(kv.layout().find(layer)->v_dtype);
  out->capacity = kv.capacity(g);
  out->n_slots = group.ring ? std::min(core.ledger().n_tokens(), group.ring_slots)
                            : core.ledger().n_slots(layer);
  return Status::ok();
}

std::vector<MemoryRow> session_memory(const SessionState& s) {
  std::vector<MemoryRow> rows;
  for (const auto& tier : s.core.tiers) {
    for (const MemoryRow& r : tier->memory_rows()) rows.push_back(r);
  }
  for (const MemoryRow& r : s.selector.scratch_rows()) rows.push_back(r);
  EngineBytes b;
  s.drafters.add_memory(&rows, &b);
  b.history = s.core.transcript.token_bytes();
  b.sampler = s.drawer.bytes();
  b.checkpoint_logits = s.checkpoints.bytes();
  b.compaction_tables = s.selector.table_bytes() + s.core.ledger().position_bytes();
  b.key_shift = s.bounded.bytes();
  b.archive = s.core.archive.bytes();
  const std::vector<MemoryRow> own = engine_rows(b);
  rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

Status kept_positions(const SessionCore& core, uint32_t layer, uint32_t kv_head,
                      std::vector<uint32_t>* out) {
  const ModelSpec& spec = core.spec();
  if (layer >= spec.n_layers()) {
    return Status::error(Code::kInvalidArgument, "layer %u does not exist; the model has %u layers",
                         layer, spec.n_layers());
  }
  const LayerSpec& l = spec.layers[layer];
  if (l.attends_to_all() == nullptr) {
    return Status::error(Code::kUnsupported, "layer %u stores no slots of its own length", layer);
  }
  if (kv_head >= l.attention.n_kv_heads) {
    return Status::error(Code::kInvalidArgument,
                         "KV head %u does not exist; there are %u in layer %u", kv_head,
                         l.attention.n_kv_heads, layer);
  }
  const uint32_t n = core.ledger().n_slots(layer, kv_head);
  out->resize(n);
  for (uint32_t i = 0; i < n; ++i) (*out)[i] = core.ledger().position(layer, kv_head, i);
  return Status::ok();
}

}  // namespace sharpi
