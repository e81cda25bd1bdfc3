// SPDX-License-Identifier: MIT
// The part of api_layout.cc that is about sessions: what they are asked and what they answer.
#include <cstddef>

#include "sharpi.h"

static_assert(sizeof(sharpi_prefill_params) == 32);
static_assert(offsetof(sharpi_prefill_params, struct_size) == 0);
static_assert(offsetof(sharpi_prefill_params, flags) == 4);
static_assert(offsetof(sharpi_prefill_params, n_logit_rows) == 8);
static_assert(offsetof(sharpi_prefill_params, n_chunk) == 12);
static_assert(offsetof(sharpi_prefill_params, progress) == 16);
static_assert(offsetof(sharpi_prefill_params, user_data) == 24);

static_assert(sizeof(sharpi_sampler_params) == 56);
static_assert(offsetof(sharpi_sampler_params, struct_size) == 0);
static_assert(offsetof(sharpi_sampler_params, temperature) == 4);
static_assert(offsetof(sharpi_sampler_params, top_k) == 8);
static_assert(offsetof(sharpi_sampler_params, top_p) == 12);
static_assert(offsetof(sharpi_sampler_params, min_p) == 16);
static_assert(offsetof(sharpi_sampler_params, repeat_penalty) == 20);
static_assert(offsetof(sharpi_sampler_params, repeat_last_n) == 24);
static_assert(offsetof(sharpi_sampler_params, n_bias) == 28);
static_assert(offsetof(sharpi_sampler_params, seed) == 32);
static_assert(offsetof(sharpi_sampler_params, bias_tokens) == 40);
static_assert(offsetof(sharpi_sampler_params, bias_values) == 48);

static_assert(sizeof(sharpi_logprob) == 8);
static_assert(offsetof(sharpi_logprob, token) == 0);
static_assert(offsetof(sharpi_logprob, logprob) == 4);

static_assert(sizeof(sharpi_sample_params) == 64);
static_assert(offsetof(sharpi_sample_params, struct_size) == 0);
static_assert(offsetof(sharpi_sample_params, mask_words) == 4);
static_assert(offsetof(sharpi_sample_params, allowed_mask) == 8);
static_assert(offsetof(sharpi_sample_params, bias_tokens) == 16);
static_assert(offsetof(sharpi_sample_params, bias_values) == 24);
static_assert(offsetof(sharpi_sample_params, n_bias) == 32);
static_assert(offsetof(sharpi_sample_params, n_logprobs) == 36);
static_assert(offsetof(sharpi_sample_params, logprobs) == 40);
static_assert(offsetof(sharpi_sample_params, meanwhile) == 48);
static_assert(offsetof(sharpi_sample_params, user_data) == 56);

static_assert(sizeof(sharpi_session_summary) == 392);
static_assert(offsetof(sharpi_session_summary, struct_size) == 0);
static_assert(offsetof(sharpi_session_summary, n_tokens) == 4);
static_assert(offsetof(sharpi_session_summary, n_ctx) == 8);
static_assert(offsetof(sharpi_session_summary, capacity) == 12);
static_assert(offsetof(sharpi_session_summary, n_slots_min) == 16);
static_assert(offsetof(sharpi_session_summary, n_slots_max) == 20);
static_assert(offsetof(sharpi_session_summary, is_compacted) == 24);
static_assert(offsetof(sharpi_session_summary, n_logit_rows) == 28);
static_assert(offsetof(sharpi_session_summary, n_checkpoints) == 32);
static_assert(offsetof(sharpi_session_summary, k_dtype) == 36);
static_assert(offsetof(sharpi_session_summary, v_dtype) == 40);
static_assert(offsetof(sharpi_session_summary, tail_k_dtype) == 44);
static_assert(offsetof(sharpi_session_summary, tail_v_dtype) == 48);
static_assert(offsetof(sharpi_session_summary, reserved) == 52);
static_assert(offsetof(sharpi_session_summary, kv_payload_bytes) == 56);
static_assert(offsetof(sharpi_session_summary, kv_held_bytes) == 64);
static_assert(offsetof(sharpi_session_summary, kv_shared_bytes) == 72);
static_assert(offsetof(sharpi_session_summary, seed) == 80);
static_assert(offsetof(sharpi_session_summary, n_prefill_tokens) == 88);
static_assert(offsetof(sharpi_session_summary, n_decode_tokens) == 96);
static_assert(offsetof(sharpi_session_summary, prefill_seconds) == 104);
static_assert(offsetof(sharpi_session_summary, decode_seconds) == 112);
static_assert(offsetof(sharpi_session_summary, paths) == 120);
static_assert(offsetof(sharpi_session_summary, adapters_id) == 376);
static_assert(offsetof(sharpi_session_summary, n_adapters) == 384);
static_assert(offsetof(sharpi_session_summary, n_other_tokens) == 388);

static_assert(sizeof(sharpi_batch_read) == 32);
static_assert(offsetof(sharpi_batch_read, session) == 0);
static_assert(offsetof(sharpi_batch_read, tokens) == 8);
static_assert(offsetof(sharpi_batch_read, n) == 16);
static_assert(offsetof(sharpi_batch_read, n_read) == 20);
static_assert(offsetof(sharpi_batch_read, params) == 24);

static_assert(sizeof(sharpi_batch_step) == 32);
static_assert(offsetof(sharpi_batch_step, session) == 0);
static_assert(offsetof(sharpi_batch_step, params) == 8);
static_assert(offsetof(sharpi_batch_step, out_tokens) == 16);
static_assert(offsetof(sharpi_batch_step, cap) == 24);
static_assert(offsetof(sharpi_batch_step, n_tokens) == 28);

static_assert(sizeof(sharpi_draft_stats) == 48);
static_assert(offsetof(sharpi_draft_stats, struct_size) == 0);
static_assert(offsetof(sharpi_draft_stats, drafters) == 4);
static_assert(offsetof(sharpi_draft_stats, n_passes) == 8);
static_assert(offsetof(sharpi_draft_stats, n_drafted) == 16);
static_assert(offsetof(sharpi_draft_stats, n_accepted) == 24);
static_assert(offsetof(sharpi_draft_stats, draft_seconds) == 32);
static_assert(offsetof(sharpi_draft_stats, verify_seconds) == 40);

static_assert(sizeof(sharpi_layer_info) == 60);
static_assert(offsetof(sharpi_layer_info, struct_size) == 0);
static_assert(offsetof(sharpi_layer_info, mixer) == 4);
static_assert(offsetof(sharpi_layer_info, tier) == 8);
static_assert(offsetof(sharpi_layer_info, kv_source) == 12);
static_assert(offsetof(sharpi_layer_info, k_dtype) == 16);
static_assert(offsetof(sharpi_layer_info, v_dtype) == 20);
static_assert(offsetof(sharpi_layer_info, n_slots) == 24);
static_assert(offsetof(sharpi_layer_info, capacity) == 28);
static_assert(offsetof(sharpi_layer_info, n_kv_heads) == 32);
static_assert(offsetof(sharpi_layer_info, head_dim) == 36);
static_assert(offsetof(sharpi_layer_info, ffn_tier) == 40);
static_assert(offsetof(sharpi_layer_info, experts_tier) == 44);
static_assert(offsetof(sharpi_layer_info, device) == 48);
static_assert(offsetof(sharpi_layer_info, ffn_device) == 52);
static_assert(offsetof(sharpi_layer_info, experts_device) == 56);

static_assert(sizeof(sharpi_compact_params) == 80);
static_assert(offsetof(sharpi_compact_params, struct_size) == 0);
static_assert(offsetof(sharpi_compact_params, policy) == 4);
static_assert(offsetof(sharpi_compact_params, budget) == 8);
static_assert(offsetof(sharpi_compact_params, window) == 12);
static_assert(offsetof(sharpi_compact_params, recency) == 16);
static_assert(offsetof(sharpi_compact_params, sinks) == 20);
static_assert(offsetof(sharpi_compact_params, headroom) == 24);
static_assert(offsetof(sharpi_compact_params, pool_kernel) == 28);
static_assert(offsetof(sharpi_compact_params, span) == 32);
static_assert(offsetof(sharpi_compact_params, layer_budget) == 36);
static_assert(offsetof(sharpi_compact_params, n_probe) == 40);
static_assert(offsetof(sharpi_compact_params, n_keep) == 44);
static_assert(offsetof(sharpi_compact_params, probe) == 48);
static_assert(offsetof(sharpi_compact_params, keep) == 56);
static_assert(offsetof(sharpi_compact_params, progress) == 64);
static_assert(offsetof(sharpi_compact_params, user_data) == 72);

static_assert(sizeof(sharpi_compact_report) == 96);
static_assert(offsetof(sharpi_compact_report, struct_size) == 0);
static_assert(offsetof(sharpi_compact_report, policy) == 4);
static_assert(offsetof(sharpi_compact_report, rows_before) == 8);
static_assert(offsetof(sharpi_compact_report, rows_after) == 12);
static_assert(offsetof(sharpi_compact_report, n_layers) == 16);
static_assert(offsetof(sharpi_compact_report, capacity) == 20);
static_assert(offsetof(sharpi_compact_report, payload_before) == 24);
static_assert(offsetof(sharpi_compact_report, payload_after) == 32);
static_assert(offsetof(sharpi_compact_report, held_before) == 40);
static_assert(offsetof(sharpi_compact_report, held_after) == 48);
static_assert(offsetof(sharpi_compact_report, score_ms) == 56);
static_assert(offsetof(sharpi_compact_report, move_ms) == 64);
static_assert(offsetof(sharpi_compact_report, kept_sinks) == 72);
static_assert(offsetof(sharpi_compact_report, kept_recent) == 76);
static_assert(offsetof(sharpi_compact_report, kept_scored) == 80);
static_assert(offsetof(sharpi_compact_report, kept_unranked) == 84);
static_assert(offsetof(sharpi_compact_report, kept_replayed) == 88);
static_assert(offsetof(sharpi_compact_report, reserved) == 92);

static_assert(sizeof(sharpi_recall_params) == 48);
static_assert(offsetof(sharpi_recall_params, struct_size) == 0);
static_assert(offsetof(sharpi_recall_params, budget) == 4);
static_assert(offsetof(sharpi_recall_params, window) == 8);
static_assert(offsetof(sharpi_recall_params, recency) == 12);
static_assert(offsetof(sharpi_recall_params, sinks) == 16);
static_assert(offsetof(sharpi_recall_params, n_probe) == 20);
static_assert(offsetof(sharpi_recall_params, probe) == 24);
static_assert(offsetof(sharpi_recall_params, progress) == 32);
static_assert(offsetof(sharpi_recall_params, user_data) == 40);

static_assert(sizeof(sharpi_recall_report) == 48);
static_assert(offsetof(sharpi_recall_report, struct_size) == 0);
static_assert(offsetof(sharpi_recall_report, n_layers) == 4);
static_assert(offsetof(sharpi_recall_report, rows_in) == 8);
static_assert(offsetof(sharpi_recall_report, n_blocks) == 12);
static_assert(offsetof(sharpi_recall_report, archived) == 16);
static_assert(offsetof(sharpi_recall_report, reserved) == 20);
static_assert(offsetof(sharpi_recall_report, total_rows) == 24);
static_assert(offsetof(sharpi_recall_report, score_ms) == 32);
static_assert(offsetof(sharpi_recall_report, move_ms) == 40);
