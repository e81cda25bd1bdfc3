# SPDX-License-Identifier: MIT
# Written by tools/make_python_abi.py from include/sharpi.h; a test compares the two. Do not edit.
"""sharpi.h for ctypes. The header is the manual."""

from ctypes import (CFUNCTYPE, Structure, c_char, c_char_p, c_double, c_float, c_int32,
                    c_size_t, c_uint32, c_uint64, c_void_p)

SHARPI_VERSION_MAJOR = 1
SHARPI_VERSION_MINOR = 0
SHARPI_VERSION_PATCH = 0
SHARPI_OK = 0
SHARPI_E_INVALID_ARGUMENT = -1
SHARPI_E_OUT_OF_MEMORY = -2
SHARPI_E_UNSUPPORTED = -3
SHARPI_E_NOT_FOUND = -4
SHARPI_E_IO = -5
SHARPI_E_FORMAT = -6
SHARPI_E_MISMATCH = -7
SHARPI_E_CANCELLED = -8
SHARPI_E_KV_FULL = -9
SHARPI_E_DOES_NOT_FIT = -10
SHARPI_E_BUFFER_TOO_SMALL = -11
SHARPI_E_STATE = -12
SHARPI_E_BUSY = -13
SHARPI_E_DEVICE = -14
SHARPI_E_DEVICE_LOST = -15
SHARPI_E_INTERNAL = -16
SHARPI_KV_FULL_CONTEXT = 1
SHARPI_KV_FULL_SLOTS = 2
SHARPI_ERROR_TEXT = 480
SHARPI_UNSET = 0xFFFFFFFF
SHARPI_ALL_FREE = 0xFFFFFFFFFFFFFFFF
SHARPI_RESERVE_AUTO = 0xFFFFFFFFFFFFFFFF
SHARPI_KV_AUTO = 0
SHARPI_KV_F32 = 1
SHARPI_KV_BF16 = 2
SHARPI_KV_Q8_0 = 3
SHARPI_KV_Q4 = 4
SHARPI_TIER_CPU = 1
SHARPI_TIER_CUDA = 2
SHARPI_TIER_VULKAN = 3
SHARPI_PHASE_LOAD = 1
SHARPI_PHASE_PREFILL = 2
SHARPI_PHASE_COMPACT = 3
SHARPI_PHASE_EMBED = 4
SHARPI_LOG_ERROR = 1
SHARPI_LOG_WARN = 2
SHARPI_LOG_INFO = 3
SHARPI_LOG_DEBUG = 4
SHARPI_CONTEXT_READ_ENV = 1
SHARPI_ISA_AUTO = 0
SHARPI_ISA_SCALAR = 1
SHARPI_ISA_AVX2 = 2
SHARPI_ISA_AVX512 = 3
SHARPI_ISA_AMX = 4
SHARPI_ISA_NEON = 5
SHARPI_ISA_I8MM = 6
SHARPI_DEVICE_MEASURE = 1
SHARPI_POLICY_AUTO = 0
SHARPI_POLICY_GLOBAL = 1
SHARPI_POLICY_SNAPKV = 2
SHARPI_POLICY_DEFENSIVE = 3
SHARPI_POLICY_VALUE = 4
SHARPI_POLICY_SPAN = 5
SHARPI_POLICY_RETRIEVAL = 6
SHARPI_POLICY_KEEP = 7
SHARPI_POLICY_REPLAY = 8
SHARPI_POLICY_MIXED = 9
SHARPI_DRAFT_NGRAM = 1
SHARPI_DRAFT_MTP = 2
SHARPI_DRAFT_AUTO = 4
SHARPI_DRAFT_MODEL = 8
SHARPI_BUDGET_AUTO = 0xFFFFFFFE
SHARPI_ARITHMETIC_FAST = 0
SHARPI_ARITHMETIC_EXACT = 1
SHARPI_LOAD_COPY = 0
SHARPI_LOAD_MAP = 1
SHARPI_SPLIT_FEWEST = 0
SHARPI_SPLIT_ALL = 1
SHARPI_SPLIT_TENSOR = 2
SHARPI_ROW_DEVICE = 1
SHARPI_ROW_PINNED = 2
SHARPI_ROW_ANONYMOUS = 3
SHARPI_ROW_MAPPED = 4
SHARPI_ROW_WEIGHTS = 1
SHARPI_ROW_KV = 2
SHARPI_ROW_RECURRENT = 3
SHARPI_ROW_CHECKPOINTS = 4
SHARPI_ROW_CAPTURE = 5
SHARPI_ROW_COMPACTION = 6
SHARPI_ROW_ACTIVATIONS = 7
SHARPI_ROW_LOGITS = 8
SHARPI_ROW_STAGING = 9
SHARPI_ROW_EXPERTS = 10
SHARPI_ROW_GRAPHS = 11
SHARPI_ROW_TABLES = 12
SHARPI_ROW_LIBRARY = 13
SHARPI_ROW_DRIVER = 14
SHARPI_ROW_KV_CHUNK = 15
SHARPI_ROW_ADAPTERS = 16
SHARPI_MIXER_ATTENTION = 1
SHARPI_MIXER_WINDOW = 2
SHARPI_MIXER_DELTA_NET = 3
SHARPI_MIXER_MAMBA2 = 4
SHARPI_MIXER_NONE = 5
SHARPI_CHAT_UNKNOWN = 0
SHARPI_CHAT_CHATML = 1
SHARPI_CHAT_GEMMA = 2
SHARPI_CHAT_OLMOE = 3
SHARPI_CHAT_TEMPLATE = 4
SHARPI_CHAT_GEMMA3 = 5
SHARPI_TOKENIZE_ADD_SPECIAL = 1
SHARPI_TOKENIZE_PARSE_SPECIAL = 2
SHARPI_DETOKENIZE_SPECIAL = 1
SHARPI_CHAT_NO_PROMPT = 1
SHARPI_CHAT_THINKING = 2
SHARPI_CHAT_NO_THINKING = 4
SHARPI_CHAT_DESCRIBE_TOOLS = 8
SHARPI_TOKEN_CONTROL = 1
SHARPI_TOKEN_END = 2
SHARPI_TOKEN_BYTE = 4
SHARPI_TOKEN_USER_DEFINED = 8
SHARPI_TOKEN_UNKNOWN = 16
SHARPI_TOKEN_NEVER = 32
SHARPI_STOP_BYTES = 128
SHARPI_PART_CONTENT = 0
SHARPI_PART_REASONING = 1
SHARPI_PART_TOOL_CALL = 2
SHARPI_PART_HEADER = 3
SHARPI_PARSE_PARTIAL = 1
SHARPI_PARSE_REASONING = 2
SHARPI_PARSE_CALLS = 4
SHARPI_PARSE_CONSTRAINED = 8
SHARPI_GRAMMAR_ANY = 0
SHARPI_GRAMMAR_JSON_SCHEMA = 1
SHARPI_GRAMMAR_REGEX = 2
SHARPI_GRAMMAR_GBNF = 3
SHARPI_GRAMMAR_LENIENT = 1
SHARPI_GRAMMAR_MUST_CALL = 2
SHARPI_GRAMMAR_SINGLE_CALL = 4
SHARPI_MATCH_OPEN = 0
SHARPI_MATCH_MAY_END = 1
SHARPI_MATCH_COMPLETE = 2
SHARPI_PREFILL_CHECKPOINT = 1
SHARPI_PREFILL_MORE = 2
SHARPI_SEED_RANDOM = 0xFFFFFFFFFFFFFFFF
SHARPI_LAYER_BUDGET_EQUAL = 0
SHARPI_LAYER_BUDGET_PYRAMID = 1
SHARPI_LAYER_BUDGET_ENTROPY = 2
SHARPI_LAYER_BUDGET_SHARED = 3
SHARPI_POOLING_AUTO = 0
SHARPI_POOLING_NONE = 1
SHARPI_POOLING_MEAN = 2
SHARPI_POOLING_CLS = 3
SHARPI_POOLING_LAST = 4
SHARPI_POOLING_RANK = 5

sharpi_progress_fn = CFUNCTYPE(c_int32, c_void_p, c_uint32, c_uint64, c_uint64)

sharpi_log_fn = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_size_t)

sharpi_alloc_fn = CFUNCTYPE(c_void_p, c_void_p, c_uint64, c_uint64)

sharpi_free_fn = CFUNCTYPE(None, c_void_p, c_void_p, c_uint64)

sharpi_send_fn = CFUNCTYPE(c_int32, c_void_p, c_uint32, c_void_p, c_uint64, c_uint32)

sharpi_receive_fn = CFUNCTYPE(c_int32, c_void_p, c_uint32, c_void_p, c_uint64, c_uint32)

sharpi_abandon_fn = CFUNCTYPE(None, c_void_p)

sharpi_meanwhile_fn = CFUNCTYPE(None, c_void_p, c_int32)

sharpi_write_fn = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64)

sharpi_read_fn = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p, c_uint64)


class sharpi_error(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", c_int32),
        ("native_code", c_int32),
        ("reserved", c_uint32),
        ("text", c_char * SHARPI_ERROR_TEXT),
    ]


class sharpi_context_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("n_threads", c_uint32),
        ("cpu_isa", c_uint32),
        ("log", sharpi_log_fn),
        ("log_user_data", c_void_p),
        ("log_level", c_uint32),
        ("reserved", c_uint32),
        ("alloc", sharpi_alloc_fn),
        ("free", sharpi_free_fn),
        ("alloc_user_data", c_void_p),
    ]


class sharpi_device(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("tier", c_uint32),
        ("n_devices", c_uint32),
        ("n_cores", c_uint32),
        ("total_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("bandwidth", c_double),
        ("name", c_char * 128),
        ("isa", c_char * 32),
        ("link_bandwidth", c_double),
        ("held_bytes", c_uint64),
        ("other_bytes", c_uint64),
        ("id", c_char * 64),
    ]


class sharpi_session_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_ctx", c_uint32),
        ("k_dtype", c_uint32),
        ("v_dtype", c_uint32),
        ("tail_k_dtype", c_uint32),
        ("tail_v_dtype", c_uint32),
        ("rewind", c_uint32),
        ("n_checkpoints", c_uint32),
        ("kv_budget", c_uint32),
        ("prompt_budget", c_uint32),
        ("capture_window", c_uint32),
        ("recency", c_uint32),
        ("sinks", c_uint32),
        ("policy", c_uint32),
        ("lookahead", c_uint32),
        ("per_layer_budgets", c_uint32),
        ("n_probe", c_uint32),
        ("n_draft", c_uint32),
        ("probe", c_void_p),
        ("drafters", c_uint32),
        ("n_draft_vocab", c_uint32),
        ("replay", c_uint32),
        ("replay_every", c_uint32),
        ("archive_rows", c_uint32),
        ("reserved", c_uint32),
    ]


class sharpi_group_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_ranks", c_uint32),
        ("rank", c_uint32),
        ("timeout_ms", c_uint32),
        ("load_timeout_ms", c_uint32),
        ("batch_parts", c_uint32),
        ("nccl_comm", c_void_p),
        ("nccl_library", c_char_p),
        ("send", sharpi_send_fn),
        ("receive", sharpi_receive_fn),
        ("abandon", sharpi_abandon_fn),
        ("user_data", c_void_p),
    ]


class sharpi_group_summary(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_ranks", c_uint32),
        ("rank", c_uint32),
        ("is_lost", c_uint32),
        ("timeout_ms", c_uint32),
        ("load_timeout_ms", c_uint32),
        ("device_bytes", c_uint64),
        ("transport", c_char * 64),
    ]


class sharpi_device_request(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_uint32),
        ("n_layers", c_int32),
        ("reserved", c_uint32),
        ("budget", c_uint64),
        ("reserve", c_uint64),
        ("rate", c_double),
        ("link_rate", c_double),
    ]


class sharpi_plan_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_gpu_layers", c_int32),
        ("n_gpu_ffn", c_int32),
        ("n_expert_slots", c_int32),
        ("arithmetic", c_uint32),
        ("deterministic", c_uint32),
        ("n_chunk", c_uint32),
        ("max_batch", c_uint32),
        ("max_logit_rows", c_uint32),
        ("max_concurrent", c_uint32),
        ("n_sessions", c_uint32),
        ("device", c_uint32),
        ("device_budget", c_uint64),
        ("host_budget", c_uint64),
        ("device_rate", c_double),
        ("pcie_rate", c_double),
        ("host_rate", c_double),
        ("session", c_void_p),
        ("n_gpu_experts", c_int32),
        ("gpu_ends", c_int32),
        ("stream_rows", c_uint32),
        ("load_mode", c_uint32),
        ("draft_path", c_char_p),
        ("devices", c_void_p),
        ("n_devices", c_uint32),
        ("split", c_uint32),
        ("adapters", c_void_p),
        ("n_adapters", c_uint32),
        ("adapter_rank", c_uint32),
        ("group", c_void_p),
        ("rank_layers", c_void_p),
    ]


class sharpi_plan_summary(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_ctx", c_uint32),
        ("n_layers", c_uint32),
        ("n_gpu_layers", c_uint32),
        ("n_gpu_ffn", c_uint32),
        ("n_expert_slots", c_uint32),
        ("k_dtype", c_uint32),
        ("v_dtype", c_uint32),
        ("tail_k_dtype", c_uint32),
        ("tail_v_dtype", c_uint32),
        ("arithmetic", c_uint32),
        ("deterministic", c_uint32),
        ("n_chunk", c_uint32),
        ("max_batch", c_uint32),
        ("max_logit_rows", c_uint32),
        ("max_concurrent", c_uint32),
        ("n_sessions", c_uint32),
        ("n_rows", c_uint32),
        ("n_mtp_layers", c_uint32),
        ("narrowed", c_uint32),
        ("capture_window", c_uint32),
        ("n_checkpoints", c_uint32),
        ("rewind", c_uint32),
        ("kv_budget", c_uint32),
        ("device_payload_bytes", c_uint64),
        ("device_held_bytes", c_uint64),
        ("host_payload_bytes", c_uint64),
        ("host_held_bytes", c_uint64),
        ("mapped_bytes", c_uint64),
        ("kv_payload_bytes", c_uint64),
        ("session_held_bytes", c_uint64),
        ("fingerprint", c_uint64),
        ("device_peak_bytes", c_uint64),
        ("host_peak_bytes", c_uint64),
        ("expert_slot_bytes", c_uint64),
        ("device_rate", c_double),
        ("pcie_rate", c_double),
        ("host_rate", c_double),
        ("n_gpu_experts", c_uint32),
        ("n_fallbacks", c_uint32),
        ("stream_rows", c_uint32),
        ("load_mode", c_uint32),
        ("device_token_bytes", c_uint64),
        ("host_token_bytes", c_uint64),
        ("device_token_row_bytes", c_uint64),
        ("host_token_row_bytes", c_uint64),
        ("token_seconds", c_double),
        ("full_token_seconds", c_double),
        ("capture_bytes", c_uint64),
        ("n_devices", c_uint32),
        ("split", c_uint32),
        ("adapter_rank", c_uint32),
        ("reserved", c_uint32),
    ]


class sharpi_memory_row(Structure):
    _fields_ = [
        ("tier", c_uint32),
        ("device", c_uint32),
        ("purpose", c_uint32),
        ("kind", c_uint32),
        ("first_layer", c_uint32),
        ("n_layers", c_uint32),
        ("per_session", c_uint32),
        ("transient", c_uint32),
        ("payload_bytes", c_uint64),
        ("held_bytes", c_uint64),
        ("shared_bytes", c_uint64),
        ("label", c_char * 64),
    ]


class sharpi_plan_device(Structure):
    _fields_ = [
        ("device", c_uint32),
        ("tier", c_uint32),
        ("n_layers", c_uint32),
        ("n_ffn", c_uint32),
        ("n_experts", c_uint32),
        ("n_expert_slots", c_uint32),
        ("has_embedding", c_uint32),
        ("has_head", c_uint32),
        ("budget", c_uint64),
        ("reserve", c_uint64),
        ("payload_bytes", c_uint64),
        ("held_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("token_bytes", c_uint64),
        ("token_row_bytes", c_uint64),
        ("rate", c_double),
        ("link_rate", c_double),
        ("name", c_char * 128),
        ("id", c_char * 64),
        ("refusal", c_char * 256),
    ]


class sharpi_layer_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("mixer", c_uint32),
        ("tier", c_uint32),
        ("kv_source", c_int32),
        ("k_dtype", c_uint32),
        ("v_dtype", c_uint32),
        ("n_slots", c_uint32),
        ("capacity", c_uint32),
        ("n_kv_heads", c_uint32),
        ("head_dim", c_uint32),
        ("ffn_tier", c_uint32),
        ("experts_tier", c_uint32),
        ("device", c_uint32),
        ("ffn_device", c_uint32),
        ("experts_device", c_uint32),
    ]


class sharpi_model_summary(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_uint32),
        ("n_embd", c_uint32),
        ("n_vocab", c_uint32),
        ("n_ctx_train", c_uint32),
        ("n_mtp_layers", c_uint32),
        ("chat", c_uint32),
        ("bos", c_int32),
        ("eos", c_int32),
        ("is_hybrid", c_uint32),
        ("has_window", c_uint32),
        ("n_experts", c_uint32),
        ("n_parameters", c_uint64),
        ("file_bytes", c_uint64),
        ("content_id", c_uint64),
        ("architecture", c_char * 32),
        ("name", c_char * 128),
        ("stream_rows", c_uint32),
        ("is_encoder", c_uint32),
        ("tokenizer", c_char * 32),
    ]


class sharpi_segment_info(Structure):
    _fields_ = [
        ("tier", c_uint32),
        ("list", c_uint32),
        ("first_layer", c_uint32),
        ("n_layers", c_uint32),
        ("has_embedding", c_uint32),
        ("has_head", c_uint32),
        ("n_mixers", c_uint32),
        ("n_ffn", c_uint32),
        ("n_experts", c_uint32),
        ("n_streamed", c_uint32),
        ("n_calls", c_uint64),
        ("n_rows", c_uint64),
        ("streamed_bytes", c_uint64),
        ("seconds", c_double),
        ("device", c_uint32),
        ("reserved", c_uint32),
    ]


class sharpi_expert_stats(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_slots", c_uint32),
        ("n_resident", c_uint32),
        ("n_pinned", c_uint32),
        ("slot_bytes", c_uint64),
        ("n_uses", c_uint64),
        ("n_hits", c_uint64),
        ("n_promotions", c_uint64),
        ("n_evictions", c_uint64),
        ("promoted_bytes", c_uint64),
    ]


class sharpi_text_stream(Structure):
    _fields_ = [
        ("n_held", c_uint32),
        ("held", c_char * 4),
    ]


class sharpi_stop_stream(Structure):
    _fields_ = [
        ("n_held", c_uint32),
        ("stopped", c_uint32),
        ("which", c_uint32),
        ("held", c_char * SHARPI_STOP_BYTES),
    ]


class sharpi_message(Structure):
    _fields_ = [
        ("role", c_char_p),
        ("content", c_char_p),
        ("content_len", c_size_t),
        ("reasoning", c_char_p),
        ("reasoning_len", c_size_t),
        ("tool_calls", c_char_p),
        ("tool_calls_len", c_size_t),
        ("tool_call_id", c_char_p),
        ("name", c_char_p),
        ("parts", c_char_p),
        ("parts_len", c_size_t),
    ]


class sharpi_chat_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("messages", c_void_p),
        ("n_messages", c_uint32),
        ("message_size", c_uint32),
        ("tools", c_char_p),
        ("tools_len", c_size_t),
        ("variables", c_char_p),
        ("variables_len", c_size_t),
        ("now", c_uint64),
    ]


class sharpi_parse_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("prompt", c_char_p),
        ("prompt_len", c_size_t),
        ("tools", c_char_p),
        ("tools_len", c_size_t),
    ]


class sharpi_chat_parts(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("open", c_uint32),
        ("n_tool_calls", c_uint32),
        ("reserved", c_uint32),
        ("reasoning_len", c_uint64),
        ("content_len", c_uint64),
        ("tool_calls_len", c_uint64),
    ]


class sharpi_grammar_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("kind", c_uint32),
        ("reserved", c_uint32),
        ("text", c_char_p),
        ("text_len", c_size_t),
        ("tools", c_char_p),
        ("tools_len", c_size_t),
        ("tool", c_char_p),
    ]


class sharpi_prefill_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("n_logit_rows", c_uint32),
        ("n_chunk", c_uint32),
        ("progress", sharpi_progress_fn),
        ("user_data", c_void_p),
    ]


class sharpi_sampler_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("temperature", c_float),
        ("top_k", c_uint32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repeat_penalty", c_float),
        ("repeat_last_n", c_uint32),
        ("n_bias", c_uint32),
        ("seed", c_uint64),
        ("bias_tokens", c_void_p),
        ("bias_values", c_void_p),
    ]


class sharpi_logprob(Structure):
    _fields_ = [
        ("token", c_int32),
        ("logprob", c_float),
    ]


class sharpi_sample_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("mask_words", c_uint32),
        ("allowed_mask", c_void_p),
        ("bias_tokens", c_void_p),
        ("bias_values", c_void_p),
        ("n_bias", c_uint32),
        ("n_logprobs", c_uint32),
        ("logprobs", c_void_p),
        ("meanwhile", sharpi_meanwhile_fn),
        ("user_data", c_void_p),
    ]


class sharpi_batch_read(Structure):
    _fields_ = [
        ("session", c_void_p),
        ("tokens", c_void_p),
        ("n", c_uint32),
        ("n_read", c_uint32),
        ("params", c_void_p),
    ]


class sharpi_batch_step(Structure):
    _fields_ = [
        ("session", c_void_p),
        ("params", c_void_p),
        ("out_tokens", c_void_p),
        ("cap", c_uint32),
        ("n_tokens", c_uint32),
    ]


class sharpi_draft_stats(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("drafters", c_uint32),
        ("n_passes", c_uint64),
        ("n_drafted", c_uint64),
        ("n_accepted", c_uint64),
        ("draft_seconds", c_double),
        ("verify_seconds", c_double),
    ]


class sharpi_session_summary(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_tokens", c_uint32),
        ("n_ctx", c_uint32),
        ("capacity", c_uint32),
        ("n_slots_min", c_uint32),
        ("n_slots_max", c_uint32),
        ("is_compacted", c_uint32),
        ("n_logit_rows", c_uint32),
        ("n_checkpoints", c_uint32),
        ("k_dtype", c_uint32),
        ("v_dtype", c_uint32),
        ("tail_k_dtype", c_uint32),
        ("tail_v_dtype", c_uint32),
        ("reserved", c_uint32),
        ("kv_payload_bytes", c_uint64),
        ("kv_held_bytes", c_uint64),
        ("kv_shared_bytes", c_uint64),
        ("seed", c_uint64),
        ("n_prefill_tokens", c_uint64),
        ("n_decode_tokens", c_uint64),
        ("prefill_seconds", c_double),
        ("decode_seconds", c_double),
        ("paths", c_char * 256),
        ("adapters_id", c_uint64),
        ("n_adapters", c_uint32),
        ("n_other_tokens", c_uint32),
    ]


class sharpi_compact_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("policy", c_uint32),
        ("budget", c_uint32),
        ("window", c_uint32),
        ("recency", c_uint32),
        ("sinks", c_uint32),
        ("headroom", c_uint32),
        ("pool_kernel", c_uint32),
        ("span", c_uint32),
        ("layer_budget", c_uint32),
        ("n_probe", c_uint32),
        ("n_keep", c_uint32),
        ("probe", c_void_p),
        ("keep", c_void_p),
        ("progress", sharpi_progress_fn),
        ("user_data", c_void_p),
    ]


class sharpi_compact_report(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("policy", c_uint32),
        ("rows_before", c_uint32),
        ("rows_after", c_uint32),
        ("n_layers", c_uint32),
        ("capacity", c_uint32),
        ("payload_before", c_uint64),
        ("payload_after", c_uint64),
        ("held_before", c_uint64),
        ("held_after", c_uint64),
        ("score_ms", c_double),
        ("move_ms", c_double),
        ("kept_sinks", c_uint32),
        ("kept_recent", c_uint32),
        ("kept_scored", c_uint32),
        ("kept_unranked", c_uint32),
        ("kept_replayed", c_uint32),
        ("reserved", c_uint32),
    ]


class sharpi_recall_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("budget", c_uint32),
        ("window", c_uint32),
        ("recency", c_uint32),
        ("sinks", c_uint32),
        ("n_probe", c_uint32),
        ("probe", c_void_p),
        ("progress", sharpi_progress_fn),
        ("user_data", c_void_p),
    ]


class sharpi_recall_report(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_uint32),
        ("rows_in", c_uint32),
        ("n_blocks", c_uint32),
        ("archived", c_uint32),
        ("reserved", c_uint32),
        ("total_rows", c_uint64),
        ("score_ms", c_double),
        ("move_ms", c_double),
    ]


class sharpi_adapter_summary(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_weights", c_uint32),
        ("max_rank", c_uint32),
        ("alpha", c_float),
        ("n_parameters", c_uint64),
        ("held_bytes", c_uint64),
        ("content_id", c_uint64),
        ("name", c_char * 128),
    ]


class sharpi_adapter_use(Structure):
    _fields_ = [
        ("adapter", c_void_p),
        ("scale", c_float),
        ("reserved", c_uint32),
    ]


class sharpi_embedder_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_ctx", c_uint32),
        ("n_parallel", c_uint32),
        ("reserved", c_uint32),
    ]


class sharpi_embedder_summary(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_ctx", c_uint32),
        ("n_parallel", c_uint32),
        ("n_embd", c_uint32),
        ("n_row", c_uint32),
        ("pooling", c_uint32),
        ("is_encoder", c_uint32),
        ("can_rank", c_uint32),
        ("held_bytes", c_uint64),
        ("n_tokens", c_uint64),
        ("seconds", c_double),
    ]


class sharpi_text_tokens(Structure):
    _fields_ = [
        ("tokens", c_void_p),
        ("n_tokens", c_uint32),
        ("n_first", c_uint32),
    ]


class sharpi_embed_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("pooling", c_uint32),
        ("n_dims", c_uint32),
        ("normalize", c_uint32),
        ("progress", sharpi_progress_fn),
        ("user_data", c_void_p),
    ]


class sharpi_rerank_params(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("normalize", c_uint32),
        ("progress", sharpi_progress_fn),
        ("user_data", c_void_p),
    ]


FUNCTIONS = {
    "sharpi_version": (c_uint32, ()),
    "sharpi_build_info": (c_char_p, ()),
    "sharpi_status_name": (c_char_p, (c_int32,)),
    "sharpi_tier_name": (c_char_p, (c_uint32,)),
    "sharpi_context_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_context_create": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_context_destroy": (None, (c_void_p,)),
    "sharpi_device_info": (c_int32, (c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_device_find": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_session_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_group_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_group_create": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_group_destroy": (None, (c_void_p,)),
    "sharpi_group_info": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_device_request_init": (None, (c_void_p, c_size_t)),
    "sharpi_plan_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_plan_create": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_plan_destroy": (None, (c_void_p,)),
    "sharpi_plan_info": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_plan_rows": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_plan_devices": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_plan_layer": (c_int32, (c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_plan_fallback": (c_int32, (c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_plan_meta": (c_int32, (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_plan_meta_key": (c_int32, (c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_plan_json": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_model_load": (c_int32, (c_void_p, sharpi_progress_fn, c_void_p, c_void_p, c_void_p)),
    "sharpi_model_open_text": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_model_destroy": (None, (c_void_p,)),
    "sharpi_model_info": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_plan_model": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_model_meta": (c_int32, (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_model_meta_key": (c_int32, (c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_model_memory": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_model_segments": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_model_json": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_model_experts": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_model_expert_uses": (c_int32, (c_void_p, c_uint32, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_model_pin_experts": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint32, c_void_p)),
    "sharpi_tokenize": (c_int32, (c_void_p, c_void_p, c_size_t, c_uint32, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_detokenize": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_detokenize_stream": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_text_stream_finish": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_token_is_end": (c_int32, (c_void_p, c_int32)),
    "sharpi_token_attributes": (c_uint32, (c_void_p, c_int32)),
    "sharpi_token_id": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_token_bytes": (c_int32, (c_void_p, c_int32, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_stop_stream_push": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_stop_stream_finish": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_chat_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_chat_format": (c_int32, (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_chat_tokenize": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_parse_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_chat_parse": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_grammar_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_grammar_compile": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_grammar_destroy": (None, (c_void_p,)),
    "sharpi_grammar_note": (c_int32, (c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_schema_check": (c_int32, (c_void_p, c_size_t, c_void_p, c_size_t, c_void_p)),
    "sharpi_matcher_create": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_matcher_clone": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_matcher_destroy": (None, (c_void_p,)),
    "sharpi_matcher_accept": (c_int32, (c_void_p, c_int32, c_void_p)),
    "sharpi_matcher_accept_text": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "sharpi_matcher_mask": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_matcher_progress": (c_uint32, (c_void_p,)),
    "sharpi_matcher_forced": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "sharpi_plan_session": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_session_create": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_session_destroy": (None, (c_void_p,)),
    "sharpi_prefill_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_session_prefill": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p)),
    "sharpi_session_decode": (c_int32, (c_void_p, c_int32, c_void_p)),
    "sharpi_decode_batch": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p)),
    "sharpi_session_logits": (c_int32, (c_void_p, c_uint32, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_sampler_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_session_set_sampler": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_sample_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_session_sample": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_session_step": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_session_verify": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p)),
    "sharpi_verify_batch": (c_int32, (c_void_p, c_uint32, c_uint32, c_void_p)),
    "sharpi_step_batch": (c_int32, (c_void_p, c_uint32, c_uint32, c_void_p)),
    "sharpi_session_drafts": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_session_draft_places": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_session_reserve": (c_int32, (c_void_p, c_uint32, c_void_p)),
    "sharpi_session_truncate": (c_int32, (c_void_p, c_uint32, c_void_p)),
    "sharpi_session_checkpoint": (c_int32, (c_void_p, c_uint32, c_void_p)),
    "sharpi_session_reachable": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_session_tokens": (c_int32, (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_session_fork": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_session_save": (c_int32, (c_void_p, c_void_p, c_uint64, c_void_p, c_void_p)),
    "sharpi_session_save_to": (c_int32, (c_void_p, sharpi_write_fn, c_void_p, c_void_p, c_void_p)),
    "sharpi_session_restore": (c_int32, (c_void_p, c_void_p, c_uint64, c_void_p)),
    "sharpi_session_restore_from": (c_int32, (c_void_p, sharpi_read_fn, c_void_p, c_void_p)),
    "sharpi_session_info": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_session_layer": (c_int32, (c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_session_memory": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_session_cancel": (None, (c_void_p,)),
    "sharpi_session_resume": (None, (c_void_p,)),
    "sharpi_compact_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_session_compact": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_recall_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_session_recall": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_session_kept": (c_int32, (c_void_p, c_uint32, c_uint32, c_void_p, c_uint32, c_void_p, c_void_p)),
    "sharpi_adapter_load": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_adapter_destroy": (None, (c_void_p,)),
    "sharpi_adapter_info": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_adapter_memory": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_session_set_adapters": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p)),
    "sharpi_embedder_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_embedder_create": (c_int32, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "sharpi_embedder_destroy": (None, (c_void_p,)),
    "sharpi_embedder_price": (c_int32, (c_void_p, c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)),
    "sharpi_embedder_info": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "sharpi_embed_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_embed": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p, c_uint64, c_void_p, c_void_p)),
    "sharpi_rerank_params_init": (None, (c_void_p, c_size_t)),
    "sharpi_rerank": (c_int32, (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p, c_void_p)),
    "sharpi_rank_tokenize": (c_int32, (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p)),
    "sharpi_embedder_cancel": (None, (c_void_p,)),
    "sharpi_embedder_resume": (None, (c_void_p,)),
}
