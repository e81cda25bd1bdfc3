// SPDX-License-Identifier: MIT
// sharpi.h for C#, declaration by declaration: every struct, constant, callback and function, for
// .NET and for Mono (C# 7.0 and later, compiled with -unsafe). The header is the manual: what a
// name means is said there. libsharpi's tests hold this file against the header, so it does not go
// stale.
#pragma warning disable 1591 // what the names mean is said in the header
using System;
using System.Runtime.InteropServices;

namespace LibSharpi
{
    // Delegates that the library calls. They run on the thread that called the library (logging:
    // maybe on another one), must not throw, and must be kept alive by the caller until they are no
    // longer needed. Fields and arguments take Marshal.GetFunctionPointerForDelegate(delegate);
    // IntPtr.Zero is C's null.
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate int sharpi_progress_fn(
        void* user_data, uint phase, ulong done, ulong total);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate void sharpi_log_fn(void* user_data, uint level, byte* text, UIntPtr len);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate void* sharpi_alloc_fn(void* user_data, ulong bytes, ulong alignment);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate void sharpi_free_fn(void* user_data, void* pointer, ulong bytes);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate void sharpi_meanwhile_fn(void* user_data, int token);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate int sharpi_write_fn(void* user_data, void* data, ulong bytes);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate int sharpi_read_fn(
        void* user_data, ulong offset, void* result, ulong bytes);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate int sharpi_send_fn(
        void* user_data, uint to, void* data, ulong bytes, uint timeout_ms);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate int sharpi_receive_fn(
        void* user_data, uint sender, void* result, ulong bytes, uint timeout_ms);
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public unsafe delegate void sharpi_abandon_fn(void* user_data);

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_error
    {
        public uint struct_size;
        public int status, native_code;
        public uint reserved;
        public fixed byte text[480];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_context_params
    {
        public uint struct_size, flags, n_threads, cpu_isa;
        public IntPtr log;
        public void* log_user_data;
        public uint log_level, reserved;
        public IntPtr alloc, free;
        public void* alloc_user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_device
    {
        public uint struct_size, tier, n_devices, n_cores;
        public ulong total_bytes, free_bytes;
        public double bandwidth;
        public fixed byte name[128];
        public fixed byte isa[32];
        public double link_bandwidth;
        public ulong held_bytes, other_bytes;
        public fixed byte id[64];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_session_params
    {
        public uint struct_size, n_ctx, k_dtype, v_dtype, tail_k_dtype, tail_v_dtype,
            rewind, n_checkpoints, kv_budget, prompt_budget, capture_window, recency, sinks,
            policy, lookahead, per_layer_budgets, n_probe, n_draft;
        public int* probe;
        public uint drafters, n_draft_vocab, replay, replay_every, archive_rows, reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_device_request
    {
        public uint struct_size, device;
        public int n_layers;
        public uint reserved;
        public ulong budget, reserve;
        public double rate, link_rate;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_plan_params
    {
        public uint struct_size;
        public int n_gpu_layers, n_gpu_ffn, n_expert_slots;
        public uint arithmetic, deterministic, n_chunk, max_batch, max_logit_rows,
            max_concurrent, n_sessions, device;
        public ulong device_budget, host_budget;
        public double device_rate, pcie_rate, host_rate;
        public sharpi_session_params* session;
        public int n_gpu_experts, gpu_ends;
        public uint stream_rows, load_mode;
        public byte* draft_path;
        public sharpi_device_request* devices;
        public uint n_devices, split;
        public byte** adapters;
        public uint n_adapters, adapter_rank;
        public IntPtr group;
        public uint* rank_layers;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_plan_summary
    {
        public uint struct_size, n_ctx, n_layers, n_gpu_layers, n_gpu_ffn, n_expert_slots,
            k_dtype, v_dtype, tail_k_dtype, tail_v_dtype, arithmetic, deterministic, n_chunk,
            max_batch, max_logit_rows, max_concurrent, n_sessions, n_rows, n_mtp_layers, narrowed,
            capture_window, n_checkpoints, rewind, kv_budget;
        public ulong device_payload_bytes, device_held_bytes, host_payload_bytes,
            host_held_bytes, mapped_bytes, kv_payload_bytes, session_held_bytes, fingerprint,
            device_peak_bytes, host_peak_bytes, expert_slot_bytes;
        public double device_rate, pcie_rate, host_rate;
        public uint n_gpu_experts, n_fallbacks, stream_rows, load_mode;
        public ulong device_token_bytes, host_token_bytes, device_token_row_bytes,
            host_token_row_bytes;
        public double token_seconds, full_token_seconds;
        public ulong capture_bytes;
        public uint n_devices, split, adapter_rank, reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_plan_device
    {
        public uint device, tier, n_layers, n_ffn, n_experts, n_expert_slots, has_embedding,
            has_head;
        public ulong budget, reserve, payload_bytes, held_bytes, peak_bytes, token_bytes,
            token_row_bytes;
        public double rate, link_rate;
        public fixed byte name[128];
        public fixed byte id[64];
        public fixed byte refusal[256];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_memory_row
    {
        public uint tier, device, purpose, kind, first_layer, n_layers, per_session,
            transient;
        public ulong payload_bytes, held_bytes, shared_bytes;
        public fixed byte label[64];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_layer_info
    {
        public uint struct_size, mixer, tier;
        public int kv_source;
        public uint k_dtype, v_dtype, n_slots, capacity, n_kv_heads, head_dim, ffn_tier,
            experts_tier, device, ffn_device, experts_device;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_model_summary
    {
        public uint struct_size, n_layers, n_embd, n_vocab, n_ctx_train, n_mtp_layers,
            chat;
        public int bos, eos;
        public uint is_hybrid, has_window, n_experts;
        public ulong n_parameters, file_bytes, content_id;
        public fixed byte architecture[32];
        public fixed byte name[128];
        public uint stream_rows, is_encoder;
        public fixed byte tokenizer[32];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_segment_info
    {
        public uint tier, list, first_layer, n_layers, has_embedding, has_head, n_mixers,
            n_ffn, n_experts, n_streamed;
        public ulong n_calls, n_rows, streamed_bytes;
        public double seconds;
        public uint device, reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_batch_read
    {
        public IntPtr session;
        public int* tokens;
        public uint n, n_read;
        public sharpi_sample_params* @params;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_batch_step
    {
        public IntPtr session;
        public sharpi_sample_params* @params;
        public int* out_tokens;
        public uint cap, n_tokens;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_draft_stats
    {
        public uint struct_size, drafters;
        public ulong n_passes, n_drafted, n_accepted;
        public double draft_seconds, verify_seconds;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_expert_stats
    {
        public uint struct_size, n_slots, n_resident, n_pinned;
        public ulong slot_bytes, n_uses, n_hits, n_promotions, n_evictions,
            promoted_bytes;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_text_stream
    {
        public uint n_held;
        public fixed byte held[4];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_stop_stream
    {
        public uint n_held, stopped, which;
        public fixed byte held[128];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_message
    {
        public byte* role, content;
        public UIntPtr content_len;
        public byte* reasoning;
        public UIntPtr reasoning_len;
        public byte* tool_calls;
        public UIntPtr tool_calls_len;
        public byte* tool_call_id, name, parts;
        public UIntPtr parts_len;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_parse_params
    {
        public uint struct_size, flags;
        public byte* prompt;
        public UIntPtr prompt_len;
        public byte* tools;
        public UIntPtr tools_len;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_chat_parts
    {
        public uint struct_size, open, n_tool_calls, reserved;
        public ulong reasoning_len, content_len, tool_calls_len;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_chat_params
    {
        public uint struct_size, flags;
        public sharpi_message* messages;
        public uint n_messages, message_size;
        public byte* tools;
        public UIntPtr tools_len;
        public byte* variables;
        public UIntPtr variables_len;
        public ulong now;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_grammar_params
    {
        public uint struct_size, flags, kind, reserved;
        public byte* text;
        public UIntPtr text_len;
        public byte* tools;
        public UIntPtr tools_len;
        public byte* tool;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_prefill_params
    {
        public uint struct_size, flags, n_logit_rows, n_chunk;
        public IntPtr progress;
        public void* user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_sampler_params
    {
        public uint struct_size;
        public float temperature;
        public uint top_k;
        public float top_p, min_p, repeat_penalty;
        public uint repeat_last_n, n_bias;
        public ulong seed;
        public int* bias_tokens;
        public float* bias_values;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_logprob
    {
        public int token;
        public float logprob;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_sample_params
    {
        public uint struct_size, mask_words;
        public uint* allowed_mask;
        public int* bias_tokens;
        public float* bias_values;
        public uint n_bias, n_logprobs;
        public sharpi_logprob* logprobs;
        public IntPtr meanwhile;
        public void* user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_session_summary
    {
        public uint struct_size, n_tokens, n_ctx, capacity, n_slots_min, n_slots_max,
            is_compacted, n_logit_rows, n_checkpoints, k_dtype, v_dtype, tail_k_dtype,
            tail_v_dtype, reserved;
        public ulong kv_payload_bytes, kv_held_bytes, kv_shared_bytes, seed, n_prefill_tokens,
            n_decode_tokens;
        public double prefill_seconds, decode_seconds;
        public fixed byte paths[256];
        public ulong adapters_id;
        public uint n_adapters, n_other_tokens;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_compact_params
    {
        public uint struct_size, policy, budget, window, recency, sinks, headroom,
            pool_kernel, span, layer_budget, n_probe, n_keep;
        public int* probe;
        public uint* keep;
        public IntPtr progress;
        public void* user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_group_params
    {
        public uint struct_size, n_ranks, rank, timeout_ms, load_timeout_ms, batch_parts;
        public void* nccl_comm;
        public byte* nccl_library;
        public IntPtr send, receive, abandon;
        public void* user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_group_summary
    {
        public uint struct_size, n_ranks, rank, is_lost, timeout_ms, load_timeout_ms;
        public ulong device_bytes;
        public fixed byte transport[64];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_adapter_summary
    {
        public uint struct_size, n_weights, max_rank;
        public float alpha;
        public ulong n_parameters, held_bytes, content_id;
        public fixed byte name[128];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_adapter_use
    {
        public IntPtr adapter;
        public float scale;
        public uint reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_embedder_params
    {
        public uint struct_size, n_ctx, n_parallel, reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_embedder_summary
    {
        public uint struct_size, n_ctx, n_parallel, n_embd, n_row, pooling, is_encoder,
            can_rank;
        public ulong held_bytes, n_tokens;
        public double seconds;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_text_tokens
    {
        public int* tokens;
        public uint n_tokens, n_first;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_embed_params
    {
        public uint struct_size, pooling, n_dims, normalize;
        public IntPtr progress;
        public void* user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_rerank_params
    {
        public uint struct_size, normalize;
        public IntPtr progress;
        public void* user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_compact_report
    {
        public uint struct_size, policy, rows_before, rows_after, n_layers, capacity;
        public ulong payload_before, payload_after, held_before, held_after;
        public double score_ms, move_ms;
        public uint kept_sinks, kept_recent, kept_scored, kept_unranked,
            kept_replayed, reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_recall_params
    {
        public uint struct_size, budget, window, recency, sinks, n_probe;
        public int* probe;
        public IntPtr progress;
        public void* user_data;
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct sharpi_recall_report
    {
        public uint struct_size, n_layers, rows_in, n_blocks, archived, reserved;
        public ulong total_rows;
        public double score_ms, move_ms;
    }

    public static unsafe class Sharpi
    {
#if SHARPI_PACKAGE
        // The package brings libsharpi.so or sharpi.dll; .NET and Mono complete the name.
        public const string Library = "sharpi";
#else
        // Searched as ld.so does; NativeLibrary.SetDllImportResolver (.NET) or <dllmap> (Mono)
        // choose another file.
        public const string Library = "libsharpi.so.1";
#endif

        public const int
            SHARPI_OK = 0, SHARPI_E_INVALID_ARGUMENT = -1, SHARPI_E_OUT_OF_MEMORY = -2,
            SHARPI_E_UNSUPPORTED = -3, SHARPI_E_NOT_FOUND = -4, SHARPI_E_IO = -5,
            SHARPI_E_FORMAT = -6, SHARPI_E_MISMATCH = -7, SHARPI_E_CANCELLED = -8,
            SHARPI_E_KV_FULL = -9, SHARPI_E_DOES_NOT_FIT = -10, SHARPI_E_BUFFER_TOO_SMALL = -11,
            SHARPI_E_STATE = -12, SHARPI_E_BUSY = -13, SHARPI_E_DEVICE = -14,
            SHARPI_E_DEVICE_LOST = -15, SHARPI_E_INTERNAL = -16;
        public const uint
            SHARPI_ERROR_TEXT = 480, SHARPI_UNSET = 0xFFFFFFFF;
        public const ulong
            SHARPI_ALL_FREE = 0xFFFFFFFFFFFFFFFF, SHARPI_RESERVE_AUTO = 0xFFFFFFFFFFFFFFFF,
            SHARPI_SEED_RANDOM = 0xFFFFFFFFFFFFFFFF;
        public const uint
            SHARPI_KV_AUTO = 0, SHARPI_KV_F32 = 1, SHARPI_KV_BF16 = 2, SHARPI_KV_Q8_0 = 3,
            SHARPI_KV_Q4 = 4, SHARPI_TIER_CPU = 1, SHARPI_TIER_CUDA = 2, SHARPI_TIER_VULKAN = 3,
            SHARPI_PHASE_LOAD = 1, SHARPI_PHASE_PREFILL = 2, SHARPI_PHASE_COMPACT = 3,
            SHARPI_PHASE_EMBED = 4,
            SHARPI_POOLING_AUTO = 0, SHARPI_POOLING_NONE = 1, SHARPI_POOLING_MEAN = 2,
            SHARPI_POOLING_CLS = 3, SHARPI_POOLING_LAST = 4, SHARPI_POOLING_RANK = 5,
            SHARPI_LOG_ERROR = 1,
            SHARPI_LOG_WARN = 2, SHARPI_LOG_INFO = 3, SHARPI_LOG_DEBUG = 4,
            SHARPI_CONTEXT_READ_ENV = 1, SHARPI_ISA_AUTO = 0, SHARPI_ISA_SCALAR = 1,
            SHARPI_ISA_AVX2 = 2, SHARPI_ISA_AVX512 = 3, SHARPI_ISA_AMX = 4,
            SHARPI_ISA_NEON = 5, SHARPI_ISA_I8MM = 6,
            SHARPI_DEVICE_MEASURE = 1, SHARPI_POLICY_AUTO = 0, SHARPI_POLICY_GLOBAL = 1,
            SHARPI_POLICY_SNAPKV = 2, SHARPI_POLICY_DEFENSIVE = 3, SHARPI_POLICY_VALUE = 4,
            SHARPI_POLICY_SPAN = 5, SHARPI_POLICY_RETRIEVAL = 6, SHARPI_POLICY_KEEP = 7,
            SHARPI_POLICY_REPLAY = 8, SHARPI_POLICY_MIXED = 9,
            SHARPI_DRAFT_NGRAM = 1, SHARPI_DRAFT_MTP = 2, SHARPI_DRAFT_AUTO = 4,
            SHARPI_DRAFT_MODEL = 8,
            SHARPI_BUDGET_AUTO = 0xFFFFFFFE, SHARPI_ARITHMETIC_FAST = 0,
            SHARPI_ARITHMETIC_EXACT = 1, SHARPI_LOAD_COPY = 0, SHARPI_LOAD_MAP = 1,
            SHARPI_SPLIT_FEWEST = 0, SHARPI_SPLIT_ALL = 1, SHARPI_SPLIT_TENSOR = 2,
            SHARPI_ROW_DEVICE = 1, SHARPI_ROW_PINNED = 2,
            SHARPI_ROW_ANONYMOUS = 3, SHARPI_ROW_MAPPED = 4, SHARPI_ROW_WEIGHTS = 1,
            SHARPI_ROW_KV = 2, SHARPI_ROW_RECURRENT = 3, SHARPI_ROW_CHECKPOINTS = 4,
            SHARPI_ROW_CAPTURE = 5, SHARPI_ROW_COMPACTION = 6, SHARPI_ROW_ACTIVATIONS = 7,
            SHARPI_ROW_LOGITS = 8, SHARPI_ROW_STAGING = 9, SHARPI_ROW_EXPERTS = 10,
            SHARPI_ROW_GRAPHS = 11, SHARPI_ROW_TABLES = 12, SHARPI_ROW_LIBRARY = 13,
            SHARPI_ROW_DRIVER = 14, SHARPI_ROW_KV_CHUNK = 15, SHARPI_ROW_ADAPTERS = 16,
            SHARPI_MIXER_ATTENTION = 1,
            SHARPI_MIXER_WINDOW = 2, SHARPI_MIXER_DELTA_NET = 3, SHARPI_MIXER_MAMBA2 = 4,
            SHARPI_MIXER_NONE = 5, SHARPI_CHAT_UNKNOWN = 0,
            SHARPI_CHAT_CHATML = 1, SHARPI_CHAT_GEMMA = 2, SHARPI_CHAT_OLMOE = 3,
            SHARPI_CHAT_TEMPLATE = 4, SHARPI_CHAT_GEMMA3 = 5, SHARPI_CHAT_NO_THINKING = 4,
            SHARPI_PART_CONTENT = 0, SHARPI_PART_REASONING = 1, SHARPI_PART_TOOL_CALL = 2,
            SHARPI_PART_HEADER = 3,
            SHARPI_PARSE_PARTIAL = 1, SHARPI_PARSE_REASONING = 2, SHARPI_PARSE_CALLS = 4,
            SHARPI_PARSE_CONSTRAINED = 8, SHARPI_CHAT_DESCRIBE_TOOLS = 8,
            SHARPI_GRAMMAR_ANY = 0, SHARPI_GRAMMAR_JSON_SCHEMA = 1, SHARPI_GRAMMAR_REGEX = 2,
            SHARPI_GRAMMAR_GBNF = 3, SHARPI_GRAMMAR_LENIENT = 1, SHARPI_GRAMMAR_MUST_CALL = 2,
            SHARPI_GRAMMAR_SINGLE_CALL = 4,
            SHARPI_MATCH_OPEN = 0, SHARPI_MATCH_MAY_END = 1, SHARPI_MATCH_COMPLETE = 2,
            SHARPI_TOKENIZE_ADD_SPECIAL = 1, SHARPI_TOKENIZE_PARSE_SPECIAL = 2,
            SHARPI_TOKEN_CONTROL = 1, SHARPI_TOKEN_END = 2, SHARPI_TOKEN_BYTE = 4,
            SHARPI_TOKEN_USER_DEFINED = 8, SHARPI_TOKEN_UNKNOWN = 16, SHARPI_TOKEN_NEVER = 32,
            SHARPI_STOP_BYTES = 128,
            SHARPI_DETOKENIZE_SPECIAL = 1, SHARPI_CHAT_NO_PROMPT = 1, SHARPI_CHAT_THINKING = 2,
            SHARPI_KV_FULL_CONTEXT = 1, SHARPI_KV_FULL_SLOTS = 2,
            SHARPI_PREFILL_CHECKPOINT = 1, SHARPI_PREFILL_MORE = 2, SHARPI_LAYER_BUDGET_EQUAL = 0,
            SHARPI_LAYER_BUDGET_PYRAMID = 1, SHARPI_LAYER_BUDGET_ENTROPY = 2,
            SHARPI_LAYER_BUDGET_SHARED = 3;

        [DllImport(Library)] public static extern uint sharpi_version();
        [DllImport(Library)] public static extern byte* sharpi_build_info();
        [DllImport(Library)] public static extern byte* sharpi_status_name(int status);
        [DllImport(Library)] public static extern byte* sharpi_tier_name(uint tier);
        [DllImport(Library)] public static extern void sharpi_context_params_init(
            sharpi_context_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_context_create(
            sharpi_context_params* options, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_context_destroy(IntPtr context);
        [DllImport(Library)] public static extern int sharpi_device_info(
            IntPtr context, uint index, uint flags, sharpi_device* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_device_find(
            IntPtr context, byte* device, uint* out_index, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_device_request_init(
            sharpi_device_request* p, UIntPtr size);
        [DllImport(Library)] public static extern void sharpi_session_params_init(
            sharpi_session_params* p, UIntPtr size);
        [DllImport(Library)] public static extern void sharpi_group_params_init(
            sharpi_group_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_group_create(
            sharpi_group_params* options, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_group_destroy(IntPtr group);
        [DllImport(Library)] public static extern int sharpi_group_info(
            IntPtr group, sharpi_group_summary* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_plan_params_init(
            sharpi_plan_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_plan_create(
            IntPtr context, byte* gguf_path, sharpi_plan_params* options, IntPtr* result,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_plan_destroy(IntPtr plan);
        [DllImport(Library)] public static extern int sharpi_plan_info(
            IntPtr plan, sharpi_plan_summary* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_rows(
            IntPtr plan, sharpi_memory_row* rows, uint row_size, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_devices(
            IntPtr plan, sharpi_plan_device* rows, uint row_size, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_layer(
            IntPtr plan, uint layer, sharpi_layer_info* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_fallback(
            IntPtr plan, uint index, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_meta(
            IntPtr plan, byte* key, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_meta_key(
            IntPtr plan, uint index, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_json(
            IntPtr plan, byte* result, UIntPtr cap, UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_load(
            IntPtr plan, IntPtr progress, void* user_data, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_open_text(
            byte* gguf_path, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_model_destroy(IntPtr model);
        [DllImport(Library)] public static extern int sharpi_model_info(
            IntPtr model, sharpi_model_summary* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_model(
            IntPtr plan, sharpi_model_summary* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_meta(
            IntPtr model, byte* key, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_meta_key(
            IntPtr model, uint index, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_memory(
            IntPtr model, sharpi_memory_row* rows, uint row_size, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_segments(
            IntPtr model, sharpi_segment_info* rows, uint row_size, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_json(
            IntPtr model, byte* result, UIntPtr cap, UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_experts(
            IntPtr model, sharpi_expert_stats* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_expert_uses(
            IntPtr model, uint layer, ulong* result, uint cap, uint* out_n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_model_pin_experts(
            IntPtr model, uint* layers, uint* experts, uint n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_tokenize(
            IntPtr model, byte* utf8, UIntPtr len, uint flags, int* result, uint cap,
            uint* out_n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_detokenize(
            IntPtr model, int* tokens, uint n, uint flags, byte* result, UIntPtr cap,
            UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_detokenize_stream(
            IntPtr model, sharpi_text_stream* stream, int* tokens, uint n, uint flags,
            byte* result, UIntPtr cap, UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_text_stream_finish(
            sharpi_text_stream* stream, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_token_is_end(
            IntPtr model, int token);
        [DllImport(Library)] public static extern uint sharpi_token_attributes(
            IntPtr model, int token);
        [DllImport(Library)] public static extern int sharpi_token_id(
            IntPtr model, byte* utf8, UIntPtr len, int* out_token, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_token_bytes(
            IntPtr model, int token, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_stop_stream_push(
            sharpi_stop_stream* stream, byte** stops, uint n_stops, byte* text, UIntPtr len,
            byte* result, UIntPtr cap, UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_stop_stream_finish(
            sharpi_stop_stream* stream, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_chat_params_init(
            sharpi_chat_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_chat_format(
            IntPtr model, sharpi_chat_params* options, byte* result, UIntPtr cap,
            UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_parse_params_init(
            sharpi_parse_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_chat_parse(
            sharpi_parse_params* parameters, byte* text, UIntPtr len, sharpi_chat_parts* parts,
            byte* result, UIntPtr cap, UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_chat_tokenize(
            IntPtr model, sharpi_chat_params* options, int* result, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_grammar_params_init(
            sharpi_grammar_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_grammar_compile(
            IntPtr model, sharpi_grammar_params* options, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_grammar_destroy(IntPtr grammar);
        [DllImport(Library)] public static extern int sharpi_grammar_note(
            IntPtr grammar, uint index, byte* result, UIntPtr cap, UIntPtr* out_len,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_schema_check(
            byte* schema, UIntPtr schema_len, byte* json, UIntPtr len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_matcher_create(
            IntPtr grammar, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_matcher_clone(
            IntPtr matcher, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_matcher_destroy(IntPtr matcher);
        [DllImport(Library)] public static extern int sharpi_matcher_accept(
            IntPtr matcher, int token, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_matcher_accept_text(
            IntPtr matcher, byte* bytes, UIntPtr len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_matcher_mask(
            IntPtr matcher, uint* result, uint cap, uint* out_words, sharpi_error* err);
        [DllImport(Library)] public static extern uint sharpi_matcher_progress(IntPtr matcher);
        [DllImport(Library)] public static extern int sharpi_matcher_forced(
            IntPtr matcher, byte* result, UIntPtr cap, UIntPtr* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_plan_session(
            IntPtr model, sharpi_session_params* options, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_create(
            IntPtr model, sharpi_session_params* options, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_session_destroy(IntPtr session);
        [DllImport(Library)] public static extern void sharpi_prefill_params_init(
            sharpi_prefill_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_session_prefill(
            IntPtr session, int* tokens, uint n, sharpi_prefill_params* options,
            uint* out_committed, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_decode(
            IntPtr session, int token, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_decode_batch(
            IntPtr* sessions, int* tokens, uint n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_logits(
            IntPtr session, uint row, float* result, uint cap, uint* out_n, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_sampler_params_init(
            sharpi_sampler_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_session_set_sampler(
            IntPtr session, sharpi_sampler_params* options, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_sample_params_init(
            sharpi_sample_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_session_sample(
            IntPtr session, sharpi_sample_params* options, int* out_token, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_verify(
            IntPtr session, int* tokens, uint n, sharpi_sample_params* parameters, uint* n_read,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_verify_batch(
            sharpi_batch_read* reads, uint read_size, uint n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_step_batch(
            sharpi_batch_step* steps, uint step_size, uint n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_drafts(
            IntPtr session, sharpi_draft_stats* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_draft_places(
            IntPtr session, ulong* drafted, ulong* accepted, uint cap, uint* n_places,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_step(
            IntPtr session, sharpi_sample_params* options, int* out_tokens, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_reserve(
            IntPtr session, uint n_slots, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_truncate(
            IntPtr session, uint n_tokens, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_checkpoint(
            IntPtr session, uint pin, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_reachable(
            IntPtr session, uint* result, uint cap, uint* out_n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_tokens(
            IntPtr session, int* result, uint cap, uint* out_n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_fork(
            IntPtr session, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_save(
            IntPtr session, void* result, ulong cap, ulong* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_save_to(
            IntPtr session, IntPtr write, void* user_data, ulong* out_len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_restore_from(
            IntPtr session, IntPtr read, void* user_data, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_restore(
            IntPtr session, void* blob, ulong len, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_info(
            IntPtr session, sharpi_session_summary* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_layer(
            IntPtr session, uint layer, sharpi_layer_info* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_memory(
            IntPtr session, sharpi_memory_row* rows, uint row_size, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_session_cancel(IntPtr session);
        [DllImport(Library)] public static extern void sharpi_session_resume(IntPtr session);
        [DllImport(Library)] public static extern void sharpi_compact_params_init(
            sharpi_compact_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_session_compact(
            IntPtr session, sharpi_compact_params* options, sharpi_compact_report* report,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_recall_params_init(
            sharpi_recall_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_session_recall(
            IntPtr session, sharpi_recall_params* options, sharpi_recall_report* report,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_kept(
            IntPtr session, uint layer, uint kv_head, uint* result, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_adapter_load(
            IntPtr model, byte* gguf_path, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_adapter_destroy(IntPtr adapter);
        [DllImport(Library)] public static extern int sharpi_adapter_info(
            IntPtr adapter, sharpi_adapter_summary* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_adapter_memory(
            IntPtr adapter, sharpi_memory_row* rows, uint row_size, uint cap, uint* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_session_set_adapters(
            IntPtr session, sharpi_adapter_use* uses, uint use_size, uint n,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_embedder_params_init(
            sharpi_embedder_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_embedder_create(
            IntPtr model, sharpi_embedder_params* options, IntPtr* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_embedder_destroy(IntPtr embedder);
        [DllImport(Library)] public static extern int sharpi_embedder_price(
            IntPtr model, sharpi_embedder_params* options, sharpi_memory_row* rows,
            uint row_size, uint cap, uint* out_n, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_embedder_info(
            IntPtr embedder, sharpi_embedder_summary* result, sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_embed_params_init(
            sharpi_embed_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_embed(
            IntPtr embedder, sharpi_text_tokens* texts, uint text_size, uint n_texts,
            sharpi_embed_params* options, float* result, ulong cap, ulong* out_n,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_rerank_params_init(
            sharpi_rerank_params* p, UIntPtr size);
        [DllImport(Library)] public static extern int sharpi_rerank(
            IntPtr embedder, sharpi_text_tokens* texts, uint text_size, uint n_texts,
            sharpi_rerank_params* options, float* result, sharpi_error* err);
        [DllImport(Library)] public static extern int sharpi_rank_tokenize(
            IntPtr model, byte* query, UIntPtr query_len, byte* document, UIntPtr document_len,
            byte* instruction, int* result, uint cap, uint* out_n, uint* out_n_first,
            sharpi_error* err);
        [DllImport(Library)] public static extern void sharpi_embedder_cancel(IntPtr embedder);
        [DllImport(Library)] public static extern void sharpi_embedder_resume(IntPtr embedder);
    }
}
