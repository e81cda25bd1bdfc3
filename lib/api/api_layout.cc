// SPDX-License-Identifier: MIT
// Seals the ABI: numbers, sizes and offsets as version 1 published them. A change that breaks a
// compiled host does not compile here. Appending a field adds lines; it changes none.
#include <cstddef>

#include "base/kv_dtype.h"
#include "base/status.h"
#include "sharpi.h"

namespace sharpi {

static_assert(SHARPI_OK == 0 && static_cast<int>(Code::kOk) == 0);
static_assert(SHARPI_E_INVALID_ARGUMENT == -1 && static_cast<int>(Code::kInvalidArgument) == -1);
static_assert(SHARPI_E_OUT_OF_MEMORY == -2 && static_cast<int>(Code::kOutOfMemory) == -2);
static_assert(SHARPI_E_UNSUPPORTED == -3 && static_cast<int>(Code::kUnsupported) == -3);
static_assert(SHARPI_E_NOT_FOUND == -4 && static_cast<int>(Code::kNotFound) == -4);
static_assert(SHARPI_E_IO == -5 && static_cast<int>(Code::kIo) == -5);
static_assert(SHARPI_E_FORMAT == -6 && static_cast<int>(Code::kFormat) == -6);
static_assert(SHARPI_E_MISMATCH == -7 && static_cast<int>(Code::kMismatch) == -7);
static_assert(SHARPI_E_CANCELLED == -8 && static_cast<int>(Code::kCancelled) == -8);
static_assert(SHARPI_E_KV_FULL == -9 && static_cast<int>(Code::kKvFull) == -9);
static_assert(SHARPI_E_DOES_NOT_FIT == -10 && static_cast<int>(Code::kDoesNotFit) == -10);
static_assert(SHARPI_E_BUFFER_TOO_SMALL == -11 && static_cast<int>(Code::kBufferTooSmall) == -11);
static_assert(SHARPI_E_STATE == -12 && static_cast<int>(Code::kState) == -12);
static_assert(SHARPI_E_BUSY == -13 && static_cast<int>(Code::kBusy) == -13);
static_assert(SHARPI_E_DEVICE == -14 && static_cast<int>(Code::kDevice) == -14);
static_assert(SHARPI_E_DEVICE_LOST == -15 && static_cast<int>(Code::kDeviceLost) == -15);
static_assert(SHARPI_E_INTERNAL == -16 && static_cast<int>(Code::kInternal) == -16);

static_assert(SHARPI_KV_AUTO == 0 && static_cast<int>(KvDtype::kAuto) == 0);
static_assert(SHARPI_KV_F32 == 1 && static_cast<int>(KvDtype::kF32) == 1);
static_assert(SHARPI_KV_BF16 == 2 && static_cast<int>(KvDtype::kBf16) == 2);
static_assert(SHARPI_KV_Q8_0 == 3 && static_cast<int>(KvDtype::kQ8_0) == 3);
static_assert(SHARPI_KV_Q4 == 4 && static_cast<int>(KvDtype::kQ4) == 4);

}  // namespace sharpi

static_assert(sizeof(sharpi_error) == 496);
static_assert(offsetof(sharpi_error, struct_size) == 0);
static_assert(offsetof(sharpi_error, status) == 4);
static_assert(offsetof(sharpi_error, native_code) == 8);
static_assert(offsetof(sharpi_error, reserved) == 12);
static_assert(offsetof(sharpi_error, text) == 16);

static_assert(sizeof(sharpi_context_params) == 64);
static_assert(offsetof(sharpi_context_params, struct_size) == 0);
static_assert(offsetof(sharpi_context_params, flags) == 4);
static_assert(offsetof(sharpi_context_params, n_threads) == 8);
static_assert(offsetof(sharpi_context_params, cpu_isa) == 12);
static_assert(offsetof(sharpi_context_params, log) == 16);
static_assert(offsetof(sharpi_context_params, log_user_data) == 24);
static_assert(offsetof(sharpi_context_params, log_level) == 32);
static_assert(offsetof(sharpi_context_params, reserved) == 36);
static_assert(offsetof(sharpi_context_params, alloc) == 40);
static_assert(offsetof(sharpi_context_params, free) == 48);
static_assert(offsetof(sharpi_context_params, alloc_user_data) == 56);

static_assert(sizeof(sharpi_device) == 224);
static_assert(offsetof(sharpi_device, struct_size) == 0);
static_assert(offsetof(sharpi_device, tier) == 4);
static_assert(offsetof(sharpi_device, n_devices) == 8);
static_assert(offsetof(sharpi_device, n_cores) == 12);
static_assert(offsetof(sharpi_device, total_bytes) == 16);
static_assert(offsetof(sharpi_device, free_bytes) == 24);
static_assert(offsetof(sharpi_device, bandwidth) == 32);
static_assert(offsetof(sharpi_device, name) == 40);
static_assert(offsetof(sharpi_device, isa) == 168);
static_assert(offsetof(sharpi_device, link_bandwidth) == 200);
static_assert(offsetof(sharpi_device, held_bytes) == 208);
static_assert(offsetof(sharpi_device, other_bytes) == 216);

static_assert(sizeof(sharpi_session_params) == 88);
static_assert(offsetof(sharpi_session_params, struct_size) == 0);
static_assert(offsetof(sharpi_session_params, n_ctx) == 4);
static_assert(offsetof(sharpi_session_params, k_dtype) == 8);
static_assert(offsetof(sharpi_session_params, v_dtype) == 12);
static_assert(offsetof(sharpi_session_params, tail_k_dtype) == 16);
static_assert(offsetof(sharpi_session_params, tail_v_dtype) == 20);
static_assert(offsetof(sharpi_session_params, rewind) == 24);
static_assert(offsetof(sharpi_session_params, n_checkpoints) == 28);
static_assert(offsetof(sharpi_session_params, kv_budget) == 32);
static_assert(offsetof(sharpi_session_params, prompt_budget) == 36);
static_assert(offsetof(sharpi_session_params, capture_window) == 40);
static_assert(offsetof(sharpi_session_params, recency) == 44);
static_assert(offsetof(sharpi_session_params, sinks) == 48);
static_assert(offsetof(sharpi_session_params, policy) == 52);
static_assert(offsetof(sharpi_session_params, lookahead) == 56);
static_assert(offsetof(sharpi_session_params, per_layer_budgets) == 60);
static_assert(offsetof(sharpi_session_params, n_probe) == 64);
static_assert(offsetof(sharpi_session_params, n_draft) == 68);
static_assert(offsetof(sharpi_session_params, probe) == 72);
static_assert(offsetof(sharpi_session_params, drafters) == 80);
static_assert(offsetof(sharpi_session_params, n_draft_vocab) == 84);

static_assert(sizeof(sharpi_plan_params) == 120);
static_assert(offsetof(sharpi_plan_params, struct_size) == 0);
static_assert(offsetof(sharpi_plan_params, n_gpu_layers) == 4);
static_assert(offsetof(sharpi_plan_params, n_gpu_ffn) == 8);
static_assert(offsetof(sharpi_plan_params, n_expert_slots) == 12);
static_assert(offsetof(sharpi_plan_params, arithmetic) == 16);
static_assert(offsetof(sharpi_plan_params, deterministic) == 20);
static_assert(offsetof(sharpi_plan_params, n_chunk) == 24);
static_assert(offsetof(sharpi_plan_params, max_batch) == 28);
static_assert(offsetof(sharpi_plan_params, max_logit_rows) == 32);
static_assert(offsetof(sharpi_plan_params, max_concurrent) == 36);
static_assert(offsetof(sharpi_plan_params, n_sessions) == 40);
static_assert(offsetof(sharpi_plan_params, device) == 44);
static_assert(offsetof(sharpi_plan_params, device_budget) == 48);
static_assert(offsetof(sharpi_plan_params, host_budget) == 56);
static_assert(offsetof(sharpi_plan_params, device_rate) == 64);
static_assert(offsetof(sharpi_plan_params, pcie_rate) == 72);
static_assert(offsetof(sharpi_plan_params, host_rate) == 80);
static_assert(offsetof(sharpi_plan_params, session) == 88);
static_assert(offsetof(sharpi_plan_params, n_gpu_experts) == 96);
static_assert(offsetof(sharpi_plan_params, gpu_ends) == 100);
static_assert(offsetof(sharpi_plan_params, stream_rows) == 104);
static_assert(offsetof(sharpi_plan_params, load_mode) == 108);
static_assert(offsetof(sharpi_plan_params, draft_path) == 112);

static_assert(sizeof(sharpi_plan_summary) == 280);
static_assert(offsetof(sharpi_plan_summary, struct_size) == 0);
static_assert(offsetof(sharpi_plan_summary, n_ctx) == 4);
static_assert(offsetof(sharpi_plan_summary, n_layers) == 8);
static_assert(offsetof(sharpi_plan_summary, n_gpu_layers) == 12);
static_assert(offsetof(sharpi_plan_summary, n_gpu_ffn) == 16);
static_assert(offsetof(sharpi_plan_summary, n_expert_slots) == 20);
static_assert(offsetof(sharpi_plan_summary, k_dtype) == 24);
static_assert(offsetof(sharpi_plan_summary, v_dtype) == 28);
static_assert(offsetof(sharpi_plan_summary, tail_k_dtype) == 32);
static_assert(offsetof(sharpi_plan_summary, tail_v_dtype) == 36);
static_assert(offsetof(sharpi_plan_summary, arithmetic) == 40);
static_assert(offsetof(sharpi_plan_summary, deterministic) == 44);
static_assert(offsetof(sharpi_plan_summary, n_chunk) == 48);
static_assert(offsetof(sharpi_plan_summary, max_batch) == 52);
static_assert(offsetof(sharpi_plan_summary, max_logit_rows) == 56);
static_assert(offsetof(sharpi_plan_summary, max_concurrent) == 60);
static_assert(offsetof(sharpi_plan_summary, n_sessions) == 64);
static_assert(offsetof(sharpi_plan_summary, n_rows) == 68);
static_assert(offsetof(sharpi_plan_summary, n_mtp_layers) == 72);
static_assert(offsetof(sharpi_plan_summary, narrowed) == 76);
static_assert(offsetof(sharpi_plan_summary, capture_window) == 80);
static_assert(offsetof(sharpi_plan_summary, n_checkpoints) == 84);
static_assert(offsetof(sharpi_plan_summary, rewind) == 88);
static_assert(offsetof(sharpi_plan_summary, kv_budget) == 92);
static_assert(offsetof(sharpi_plan_summary, device_payload_bytes) == 96);
static_assert(offsetof(sharpi_plan_summary, device_held_bytes) == 104);
static_assert(offsetof(sharpi_plan_summary, host_payload_bytes) == 112);
static_assert(offsetof(sharpi_plan_summary, host_held_bytes) == 120);
static_assert(offsetof(sharpi_plan_summary, mapped_bytes) == 128);
static_assert(offsetof(sharpi_plan_summary, kv_payload_bytes) == 136);
static_assert(offsetof(sharpi_plan_summary, session_held_bytes) == 144);
static_assert(offsetof(sharpi_plan_summary, fingerprint) == 152);
static_assert(offsetof(sharpi_plan_summary, device_peak_bytes) == 160);
static_assert(offsetof(sharpi_plan_summary, host_peak_bytes) == 168);
static_assert(offsetof(sharpi_plan_summary, expert_slot_bytes) == 176);
static_assert(offsetof(sharpi_plan_summary, device_rate) == 184);
static_assert(offsetof(sharpi_plan_summary, pcie_rate) == 192);
static_assert(offsetof(sharpi_plan_summary, host_rate) == 200);
static_assert(offsetof(sharpi_plan_summary, n_gpu_experts) == 208);
static_assert(offsetof(sharpi_plan_summary, n_fallbacks) == 212);
static_assert(offsetof(sharpi_plan_summary, stream_rows) == 216);
static_assert(offsetof(sharpi_plan_summary, load_mode) == 220);
static_assert(offsetof(sharpi_plan_summary, device_token_bytes) == 224);
static_assert(offsetof(sharpi_plan_summary, host_token_bytes) == 232);
static_assert(offsetof(sharpi_plan_summary, device_token_row_bytes) == 240);
static_assert(offsetof(sharpi_plan_summary, host_token_row_bytes) == 248);
static_assert(offsetof(sharpi_plan_summary, token_seconds) == 256);
static_assert(offsetof(sharpi_plan_summary, full_token_seconds) == 264);
static_assert(offsetof(sharpi_plan_summary, capture_bytes) == 272);

static_assert(sizeof(sharpi_memory_row) == 120);
static_assert(offsetof(sharpi_memory_row, tier) == 0);
static_assert(offsetof(sharpi_memory_row, device) == 4);
static_assert(offsetof(sharpi_memory_row, purpose) == 8);
static_assert(offsetof(sharpi_memory_row, kind) == 12);
static_assert(offsetof(sharpi_memory_row, first_layer) == 16);
static_assert(offsetof(sharpi_memory_row, n_layers) == 20);
static_assert(offsetof(sharpi_memory_row, per_session) == 24);
static_assert(offsetof(sharpi_memory_row, transient) == 28);
static_assert(offsetof(sharpi_memory_row, payload_bytes) == 32);
static_assert(offsetof(sharpi_memory_row, held_bytes) == 40);
static_assert(offsetof(sharpi_memory_row, shared_bytes) == 48);
static_assert(offsetof(sharpi_memory_row, label) == 56);

static_assert(sizeof(sharpi_model_summary) == 272);
static_assert(offsetof(sharpi_model_summary, struct_size) == 0);
static_assert(offsetof(sharpi_model_summary, n_layers) == 4);
static_assert(offsetof(sharpi_model_summary, n_embd) == 8);
static_assert(offsetof(sharpi_model_summary, n_vocab) == 12);
static_assert(offsetof(sharpi_model_summary, n_ctx_train) == 16);
static_assert(offsetof(sharpi_model_summary, n_mtp_layers) == 20);
static_assert(offsetof(sharpi_model_summary, chat) == 24);
static_assert(offsetof(sharpi_model_summary, bos) == 28);
static_assert(offsetof(sharpi_model_summary, eos) == 32);
static_assert(offsetof(sharpi_model_summary, is_hybrid) == 36);
static_assert(offsetof(sharpi_model_summary, has_window) == 40);
static_assert(offsetof(sharpi_model_summary, n_experts) == 44);
static_assert(offsetof(sharpi_model_summary, n_parameters) == 48);
static_assert(offsetof(sharpi_model_summary, file_bytes) == 56);
static_assert(offsetof(sharpi_model_summary, content_id) == 64);
static_assert(offsetof(sharpi_model_summary, architecture) == 72);
static_assert(offsetof(sharpi_model_summary, name) == 104);
static_assert(offsetof(sharpi_model_summary, stream_rows) == 232);
static_assert(offsetof(sharpi_model_summary, reserved) == 236);
static_assert(offsetof(sharpi_model_summary, tokenizer) == 240);

static_assert(sizeof(sharpi_segment_info) == 72);
static_assert(offsetof(sharpi_segment_info, tier) == 0);
static_assert(offsetof(sharpi_segment_info, list) == 4);
static_assert(offsetof(sharpi_segment_info, first_layer) == 8);
static_assert(offsetof(sharpi_segment_info, n_layers) == 12);
static_assert(offsetof(sharpi_segment_info, has_embedding) == 16);
static_assert(offsetof(sharpi_segment_info, has_head) == 20);
static_assert(offsetof(sharpi_segment_info, n_mixers) == 24);
static_assert(offsetof(sharpi_segment_info, n_ffn) == 28);
static_assert(offsetof(sharpi_segment_info, n_experts) == 32);
static_assert(offsetof(sharpi_segment_info, n_streamed) == 36);
static_assert(offsetof(sharpi_segment_info, n_calls) == 40);
static_assert(offsetof(sharpi_segment_info, n_rows) == 48);
static_assert(offsetof(sharpi_segment_info, streamed_bytes) == 56);
static_assert(offsetof(sharpi_segment_info, seconds) == 64);

static_assert(sizeof(sharpi_text_stream) == 8);
static_assert(offsetof(sharpi_text_stream, n_held) == 0);
static_assert(offsetof(sharpi_text_stream, held) == 4);

static_assert(sizeof(sharpi_message) == 88);
static_assert(offsetof(sharpi_message, role) == 0);
static_assert(offsetof(sharpi_message, content) == 8);
static_assert(offsetof(sharpi_message, content_len) == 16);
static_assert(offsetof(sharpi_message, reasoning) == 24);
static_assert(offsetof(sharpi_message, reasoning_len) == 32);
static_assert(offsetof(sharpi_message, tool_calls) == 40);
static_assert(offsetof(sharpi_message, tool_calls_len) == 48);
static_assert(offsetof(sharpi_message, tool_call_id) == 56);
static_assert(offsetof(sharpi_message, name) == 64);
static_assert(offsetof(sharpi_message, parts) == 72);
static_assert(offsetof(sharpi_message, parts_len) == 80);

static_assert(sizeof(sharpi_chat_params) == 64);
static_assert(offsetof(sharpi_chat_params, struct_size) == 0);
static_assert(offsetof(sharpi_chat_params, flags) == 4);
static_assert(offsetof(sharpi_chat_params, messages) == 8);
static_assert(offsetof(sharpi_chat_params, n_messages) == 16);
static_assert(offsetof(sharpi_chat_params, message_size) == 20);
static_assert(offsetof(sharpi_chat_params, tools) == 24);
static_assert(offsetof(sharpi_chat_params, tools_len) == 32);
static_assert(offsetof(sharpi_chat_params, variables) == 40);
static_assert(offsetof(sharpi_chat_params, variables_len) == 48);
static_assert(offsetof(sharpi_chat_params, now) == 56);

static_assert(sizeof(sharpi_chat_parts) == 40);
static_assert(offsetof(sharpi_chat_parts, struct_size) == 0);
static_assert(offsetof(sharpi_chat_parts, open) == 4);
static_assert(offsetof(sharpi_chat_parts, n_tool_calls) == 8);
static_assert(offsetof(sharpi_chat_parts, reserved) == 12);
static_assert(offsetof(sharpi_chat_parts, reasoning_len) == 16);
static_assert(offsetof(sharpi_chat_parts, content_len) == 24);
static_assert(offsetof(sharpi_chat_parts, tool_calls_len) == 32);

static_assert(sizeof(sharpi_parse_params) == 40);
static_assert(offsetof(sharpi_parse_params, struct_size) == 0);
static_assert(offsetof(sharpi_parse_params, flags) == 4);
static_assert(offsetof(sharpi_parse_params, prompt) == 8);
static_assert(offsetof(sharpi_parse_params, prompt_len) == 16);
static_assert(offsetof(sharpi_parse_params, tools) == 24);
static_assert(offsetof(sharpi_parse_params, tools_len) == 32);

static_assert(sizeof(sharpi_stop_stream) == 140);
static_assert(offsetof(sharpi_stop_stream, n_held) == 0);
static_assert(offsetof(sharpi_stop_stream, stopped) == 4);
static_assert(offsetof(sharpi_stop_stream, which) == 8);
static_assert(offsetof(sharpi_stop_stream, held) == 12);

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

static_assert(sizeof(sharpi_session_summary) == 376);
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

static_assert(sizeof(sharpi_layer_info) == 48);
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

static_assert(sizeof(sharpi_compact_report) == 72);
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

static_assert(sizeof(sharpi_expert_stats) == 64);
static_assert(offsetof(sharpi_expert_stats, struct_size) == 0);
static_assert(offsetof(sharpi_expert_stats, n_slots) == 4);
static_assert(offsetof(sharpi_expert_stats, n_resident) == 8);
static_assert(offsetof(sharpi_expert_stats, n_pinned) == 12);
static_assert(offsetof(sharpi_expert_stats, slot_bytes) == 16);
static_assert(offsetof(sharpi_expert_stats, n_uses) == 24);
static_assert(offsetof(sharpi_expert_stats, n_hits) == 32);
static_assert(offsetof(sharpi_expert_stats, n_promotions) == 40);
static_assert(offsetof(sharpi_expert_stats, n_evictions) == 48);
static_assert(offsetof(sharpi_expert_stats, promoted_bytes) == 56);
