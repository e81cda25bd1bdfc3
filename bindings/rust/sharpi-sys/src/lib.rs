// SPDX-License-Identifier: MIT
//! sharpi.h for Rust, declaration by declaration: every struct, constant, callback and function,
//! and a loader that opens the library at run time. It is the crate sharpi-sys, and may be copied
//! into a program as a module: it needs no other crate. Rust 1.63 and later, editions 2021 and
//! 2024. The header is the manual: what a name means is said there. `layout()` prints what this
//! file assumes of the ABI; libsharpi's tests hold it against the header, so this file does not go
//! stale.
#![allow(non_camel_case_types, dead_code, clippy::too_many_arguments)]
#![warn(unsafe_op_in_unsafe_fn)]

use std::ffi::{c_void, CStr, CString};
use std::mem::{size_of, MaybeUninit};
use std::os::raw::{c_char, c_int};
use std::ptr::addr_of;

/// How a type crosses the C boundary, as text.
trait Kind {
    const KIND: &'static str;
}
macro_rules! kinds {
    ($($type:ty = $kind:literal),*) => {
        $(impl Kind for $type { const KIND: &'static str = $kind; })*
    };
}
kinds! {
    u32 = "u32", i32 = "i32", u64 = "u64", usize = "u64", f32 = "f32", f64 = "f64", () = "void",
    sharpi_progress_fn = "p", sharpi_log_fn = "p", sharpi_alloc_fn = "p", sharpi_free_fn = "p",
    sharpi_meanwhile_fn = "p", sharpi_write_fn = "p", sharpi_read_fn = "p", sharpi_send_fn = "p",
    sharpi_receive_fn = "p", sharpi_abandon_fn = "p"
}
impl<T> Kind for *const T {
    const KIND: &'static str = "p";
}
impl<T> Kind for *mut T {
    const KIND: &'static str = "p";
}
impl<const N: usize> Kind for [c_char; N] {
    const KIND: &'static str = "a";
}
fn field_facts<T: Kind>(_: *const T) -> (usize, &'static str) {
    (size_of::<T>(), T::KIND)
}
fn kind_list(kinds: &[&str]) -> String {
    kinds.join(",")
}

/// Plain structs with C's layout; an all-zero value of any of them is a valid Rust value.
macro_rules! structs {
    ($(struct $name:ident { $($field:ident : $type:ty,)* })*) => {
        $(#[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $type,)* }
        impl $name {
            /// All bytes zero; `struct_size`, where there is one, is for the caller to set.
            pub fn zeroed() -> Self {
                unsafe { MaybeUninit::zeroed().assume_init() }
            }
        })*
        fn print_structs() {
            $({
                println!("struct {} {}", stringify!($name), size_of::<$name>());
                let value = MaybeUninit::<$name>::uninit();
                let base = value.as_ptr();
                $({
                    let field = unsafe { addr_of!((*base).$field) };
                    let (size, kind) = field_facts(field);
                    let offset = field as usize - base as usize;
                    print!("field {}.{}", stringify!($name), stringify!($field));
                    println!(" {} {} {}", offset, size, kind);
                })*
            })*
        }
    };
}
/// Function pointers as parameters and fields: `None` is C's null.
macro_rules! callbacks {
    ($(fn $name:ident($($arg:ident : $type:ty),*) -> $result:ty;)*) => {
        $(pub type $name = Option<unsafe extern "C" fn($($arg: $type),*) -> $result>;)*
        fn print_callbacks() {
            $(println!("callback {} {}({})", stringify!($name), <$result as Kind>::KIND,
                       kind_list(&[$(<$type as Kind>::KIND),*]));)*
        }
    };
}
macro_rules! constants {
    ($($type:ident { $($name:ident = $value:expr;)* })*) => {
        $($(pub const $name: $type = $value;)*)*
        fn print_constants() {
            $($(println!("constant {} {}", stringify!($name), $name);)*)*
        }
    };
}
/// The functions as fields of one struct, filled by dlsym().
macro_rules! functions {
    ($(fn $name:ident($($arg:ident : $type:ty),*) -> $result:ty;)*) => {
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($arg: $type),*) -> $result,)*
        }
        impl Library {
            /// Opens a file such as "libsharpi.so.1" (searched as ld.so does), or a path. It
            /// stays loaded until the process ends: it owns threads.
            pub fn open(file: &str) -> Result<Library, String> {
                let name = CString::new(file).map_err(|e| e.to_string())?;
                let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
                if handle.is_null() {
                    return Err(last_dl_error());
                }
                // A pointer to data becomes one to code; POSIX promises that this works.
                Ok(Library {
                    $($name: unsafe {
                        std::mem::transmute_copy(&symbol(handle, stringify!($name))?)
                    },)*
                })
            }
            /// Opens the file that the environment variable SHARPI_LIBRARY names; without it the
            /// one beside the program; else this crate's own; else the system's. Where the file
            /// is there and cannot be opened, that is the error: no other is tried.
            pub fn find() -> Result<Library, String> {
                Library::open(&path_of_library())
            }
        }
        fn print_functions() {
            $(println!("function {} {}({})", stringify!($name), <$result as Kind>::KIND,
                       kind_list(&[$(<$type as Kind>::KIND),*]));)*
        }
    };
}

// Edition 2024 wants `unsafe extern`, which compilers before 1.82 do not know. `_` is an expression
// in that edition only, so it decides which of the two is compiled.
macro_rules! imports {
    ($edition_2024:expr => $($declarations:tt)*) => { unsafe extern "C" { $($declarations)* } };
    (_ => $($declarations:tt)*) => { extern "C" { $($declarations)* } };
}
imports! { _ =>
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

const FILE: &str = "libsharpi.so.1";

fn path_of_library() -> String {
    if let Ok(named) = std::env::var("SHARPI_LIBRARY") {
        return named;
    }
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join(FILE)));
    let own = option_env!("SHARPI_BUNDLED").map(std::path::PathBuf::from);
    let found = beside.into_iter().chain(own).find(|p| p.is_file());
    found.map_or(FILE.into(), |p| p.to_string_lossy().into_owned())
}

fn last_dl_error() -> String {
    let text = unsafe { dlerror() };
    if text.is_null() { "unknown".into() } else { unsafe { text_of(text) } }
}
fn symbol(handle: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).map_err(|e| e.to_string())?;
    let found = unsafe { dlsym(handle, text.as_ptr()) };
    if found.is_null() { Err(last_dl_error()) } else { Ok(found) }
}
/// A NUL-terminated string of the library, copied.
///
/// # Safety
/// `text` is not null and ends with a NUL.
pub unsafe fn text_of(text: *const c_char) -> String {
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
/// Owns one reference to an object of the library. Objects may be destroyed in any order.
pub struct Handle<T> {
    pub pointer: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}
impl<T> Handle<T> {
    /// Takes over the reference that a call gave, and the function that gives it back.
    ///
    /// # Safety
    /// `pointer` is null or came from the library, `destroy` is of its type, and nobody else
    /// destroys it.
    pub unsafe fn new(pointer: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Handle<T> {
        Handle { pointer, destroy }
    }
}
impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        unsafe { (self.destroy)(self.pointer) }
    }
}
// The library keeps no thread-local state: any thread may use and destroy an object.
unsafe impl<T> Send for Handle<T> {}
// These are for several calls at once; a session is for one.
unsafe impl Sync for Handle<sharpi_plan> {}
unsafe impl Sync for Handle<sharpi_model> {}

/// What this file assumes, in the form of tests/ffi/header_facts.sh.
pub fn layout() {
    print_structs();
    print_callbacks();
    print_constants();
    print_functions();
}

#[repr(C)]
pub struct sharpi_context([u8; 0]);
#[repr(C)]
pub struct sharpi_plan([u8; 0]);
#[repr(C)]
pub struct sharpi_model([u8; 0]);
#[repr(C)]
pub struct sharpi_session([u8; 0]);
#[repr(C)]
pub struct sharpi_embedder([u8; 0]);
#[repr(C)]
pub struct sharpi_adapter([u8; 0]);
#[repr(C)]
pub struct sharpi_group([u8; 0]);
#[repr(C)]
pub struct sharpi_grammar([u8; 0]);
#[repr(C)]
pub struct sharpi_matcher([u8; 0]);

callbacks! {
    fn sharpi_progress_fn(user_data: *mut c_void, phase: u32, done: u64, total: u64) -> i32;
    fn sharpi_log_fn(user_data: *mut c_void, level: u32, text: *const c_char, len: usize) -> ();
    fn sharpi_alloc_fn(user_data: *mut c_void, bytes: u64, alignment: u64) -> *mut c_void;
    fn sharpi_free_fn(user_data: *mut c_void, pointer: *mut c_void, bytes: u64) -> ();
    fn sharpi_meanwhile_fn(user_data: *mut c_void, token: i32) -> ();
    fn sharpi_write_fn(user_data: *mut c_void, data: *const c_void, bytes: u64) -> i32;
    fn sharpi_read_fn(user_data: *mut c_void, offset: u64, out: *mut c_void, bytes: u64) -> i32;
    fn sharpi_send_fn(
        user_data: *mut c_void, to: u32, data: *const c_void, bytes: u64, timeout_ms: u32) -> i32;
    fn sharpi_receive_fn(
        user_data: *mut c_void, from: u32, out: *mut c_void, bytes: u64, timeout_ms: u32) -> i32;
    fn sharpi_abandon_fn(user_data: *mut c_void) -> ();
}

constants! {
    i32 {
        SHARPI_OK = 0; SHARPI_E_INVALID_ARGUMENT = -1; SHARPI_E_OUT_OF_MEMORY = -2;
        SHARPI_E_UNSUPPORTED = -3; SHARPI_E_NOT_FOUND = -4; SHARPI_E_IO = -5; SHARPI_E_FORMAT = -6;
        SHARPI_E_MISMATCH = -7; SHARPI_E_CANCELLED = -8; SHARPI_E_KV_FULL = -9;
        SHARPI_E_DOES_NOT_FIT = -10; SHARPI_E_BUFFER_TOO_SMALL = -11; SHARPI_E_STATE = -12;
        SHARPI_E_BUSY = -13; SHARPI_E_DEVICE = -14; SHARPI_E_DEVICE_LOST = -15;
        SHARPI_E_INTERNAL = -16;
    }
    u32 {
        SHARPI_ERROR_TEXT = 480; SHARPI_UNSET = 0xFFFF_FFFF; SHARPI_KV_AUTO = 0; SHARPI_KV_F32 = 1;
        SHARPI_KV_BF16 = 2; SHARPI_KV_Q8_0 = 3; SHARPI_KV_Q4 = 4;
        SHARPI_TIER_CPU = 1; SHARPI_TIER_CUDA = 2; SHARPI_TIER_VULKAN = 3;
        SHARPI_KV_FULL_CONTEXT = 1; SHARPI_KV_FULL_SLOTS = 2;
        SHARPI_PHASE_LOAD = 1; SHARPI_PHASE_PREFILL = 2; SHARPI_PHASE_COMPACT = 3;
        SHARPI_PHASE_EMBED = 4; SHARPI_POOLING_AUTO = 0; SHARPI_POOLING_NONE = 1;
        SHARPI_POOLING_MEAN = 2; SHARPI_POOLING_CLS = 3; SHARPI_POOLING_LAST = 4;
        SHARPI_POOLING_RANK = 5;
        SHARPI_LOG_ERROR = 1; SHARPI_LOG_WARN = 2; SHARPI_LOG_INFO = 3; SHARPI_LOG_DEBUG = 4;
        SHARPI_CONTEXT_READ_ENV = 1; SHARPI_ISA_AUTO = 0; SHARPI_ISA_SCALAR = 1;
        SHARPI_ISA_AVX2 = 2; SHARPI_ISA_AVX512 = 3; SHARPI_ISA_AMX = 4; SHARPI_ISA_NEON = 5;
        SHARPI_ISA_I8MM = 6; SHARPI_DEVICE_MEASURE = 1;
        SHARPI_POLICY_AUTO = 0; SHARPI_POLICY_GLOBAL = 1; SHARPI_POLICY_SNAPKV = 2;
        SHARPI_POLICY_DEFENSIVE = 3; SHARPI_POLICY_VALUE = 4; SHARPI_POLICY_SPAN = 5;
        SHARPI_POLICY_RETRIEVAL = 6; SHARPI_POLICY_KEEP = 7; SHARPI_POLICY_REPLAY = 8;
        SHARPI_POLICY_MIXED = 9; SHARPI_BUDGET_AUTO = 0xFFFF_FFFE;
        SHARPI_DRAFT_NGRAM = 1; SHARPI_DRAFT_MTP = 2; SHARPI_DRAFT_AUTO = 4;
        SHARPI_DRAFT_MODEL = 8;
        SHARPI_ARITHMETIC_FAST = 0; SHARPI_ARITHMETIC_EXACT = 1;
        SHARPI_LOAD_COPY = 0; SHARPI_LOAD_MAP = 1; SHARPI_SPLIT_FEWEST = 0;
        SHARPI_SPLIT_ALL = 1; SHARPI_SPLIT_TENSOR = 2; SHARPI_ROW_DEVICE = 1;
        SHARPI_ROW_PINNED = 2; SHARPI_ROW_ANONYMOUS = 3; SHARPI_ROW_MAPPED = 4;
        SHARPI_ROW_WEIGHTS = 1; SHARPI_ROW_KV = 2; SHARPI_ROW_RECURRENT = 3;
        SHARPI_ROW_CHECKPOINTS = 4; SHARPI_ROW_CAPTURE = 5; SHARPI_ROW_COMPACTION = 6;
        SHARPI_ROW_ACTIVATIONS = 7; SHARPI_ROW_LOGITS = 8; SHARPI_ROW_STAGING = 9;
        SHARPI_ROW_EXPERTS = 10; SHARPI_ROW_GRAPHS = 11; SHARPI_ROW_TABLES = 12;
        SHARPI_ROW_LIBRARY = 13; SHARPI_ROW_DRIVER = 14; SHARPI_ROW_KV_CHUNK = 15;
        SHARPI_ROW_ADAPTERS = 16;
        SHARPI_MIXER_ATTENTION = 1; SHARPI_MIXER_WINDOW = 2; SHARPI_MIXER_DELTA_NET = 3;
        SHARPI_MIXER_MAMBA2 = 4; SHARPI_MIXER_NONE = 5;
        SHARPI_CHAT_UNKNOWN = 0; SHARPI_CHAT_CHATML = 1; SHARPI_CHAT_GEMMA = 2;
        SHARPI_CHAT_OLMOE = 3; SHARPI_CHAT_TEMPLATE = 4; SHARPI_CHAT_GEMMA3 = 5;
        SHARPI_TOKENIZE_ADD_SPECIAL = 1; SHARPI_TOKENIZE_PARSE_SPECIAL = 2;
        SHARPI_DETOKENIZE_SPECIAL = 1; SHARPI_CHAT_NO_PROMPT = 1; SHARPI_CHAT_THINKING = 2;
        SHARPI_CHAT_NO_THINKING = 4; SHARPI_PART_CONTENT = 0; SHARPI_PART_REASONING = 1;
        SHARPI_PART_TOOL_CALL = 2; SHARPI_PART_HEADER = 3; SHARPI_PARSE_PARTIAL = 1;
        SHARPI_PARSE_REASONING = 2; SHARPI_PARSE_CALLS = 4; SHARPI_PARSE_CONSTRAINED = 8;
        SHARPI_CHAT_DESCRIBE_TOOLS = 8;
        SHARPI_GRAMMAR_ANY = 0; SHARPI_GRAMMAR_JSON_SCHEMA = 1; SHARPI_GRAMMAR_REGEX = 2;
        SHARPI_GRAMMAR_GBNF = 3; SHARPI_GRAMMAR_LENIENT = 1; SHARPI_GRAMMAR_MUST_CALL = 2;
        SHARPI_GRAMMAR_SINGLE_CALL = 4; SHARPI_MATCH_OPEN = 0; SHARPI_MATCH_MAY_END = 1;
        SHARPI_MATCH_COMPLETE = 2;
        SHARPI_PREFILL_CHECKPOINT = 1; SHARPI_PREFILL_MORE = 2; SHARPI_LAYER_BUDGET_EQUAL = 0;
        SHARPI_LAYER_BUDGET_PYRAMID = 1; SHARPI_LAYER_BUDGET_ENTROPY = 2;
        SHARPI_LAYER_BUDGET_SHARED = 3;
        SHARPI_TOKEN_CONTROL = 1; SHARPI_TOKEN_END = 2; SHARPI_TOKEN_BYTE = 4;
        SHARPI_TOKEN_USER_DEFINED = 8; SHARPI_TOKEN_UNKNOWN = 16; SHARPI_TOKEN_NEVER = 32;
        SHARPI_STOP_BYTES = 128;
    }
    u64 {
        SHARPI_ALL_FREE = 0xFFFF_FFFF_FFFF_FFFF; SHARPI_RESERVE_AUTO = 0xFFFF_FFFF_FFFF_FFFF;
        SHARPI_SEED_RANDOM = 0xFFFF_FFFF_FFFF_FFFF;
    }
}

structs! {
    struct sharpi_error {
        struct_size: u32, status: i32, native_code: i32, reserved: u32, text: [c_char; 480],
    }
    struct sharpi_context_params {
        struct_size: u32, flags: u32, n_threads: u32, cpu_isa: u32, log: sharpi_log_fn,
        log_user_data: *mut c_void, log_level: u32, reserved: u32, alloc: sharpi_alloc_fn,
        free: sharpi_free_fn, alloc_user_data: *mut c_void,
    }
    struct sharpi_device {
        struct_size: u32, tier: u32, n_devices: u32, n_cores: u32, total_bytes: u64,
        free_bytes: u64, bandwidth: f64, name: [c_char; 128], isa: [c_char; 32],
        link_bandwidth: f64, held_bytes: u64, other_bytes: u64, id: [c_char; 64],
    }
    struct sharpi_session_params {
        struct_size: u32, n_ctx: u32, k_dtype: u32, v_dtype: u32, tail_k_dtype: u32,
        tail_v_dtype: u32, rewind: u32, n_checkpoints: u32, kv_budget: u32, prompt_budget: u32,
        capture_window: u32, recency: u32, sinks: u32, policy: u32, lookahead: u32,
        per_layer_budgets: u32, n_probe: u32, n_draft: u32, probe: *const i32,
        drafters: u32, n_draft_vocab: u32, replay: u32, replay_every: u32,
        archive_rows: u32, reserved: u32,
    }
    struct sharpi_device_request {
        struct_size: u32, device: u32, n_layers: i32, reserved: u32, budget: u64, reserve: u64,
        rate: f64, link_rate: f64,
    }
    struct sharpi_plan_params {
        struct_size: u32, n_gpu_layers: i32, n_gpu_ffn: i32, n_expert_slots: i32, arithmetic: u32,
        deterministic: u32, n_chunk: u32, max_batch: u32, max_logit_rows: u32,
        max_concurrent: u32, n_sessions: u32, device: u32, device_budget: u64, host_budget: u64,
        device_rate: f64, pcie_rate: f64, host_rate: f64, session: *const sharpi_session_params,
        n_gpu_experts: i32, gpu_ends: i32, stream_rows: u32, load_mode: u32,
        draft_path: *const c_char, devices: *const sharpi_device_request, n_devices: u32,
        split: u32, adapters: *const *const c_char, n_adapters: u32, adapter_rank: u32,
        group: *const sharpi_group, rank_layers: *const u32,
    }
    struct sharpi_plan_summary {
        struct_size: u32, n_ctx: u32, n_layers: u32, n_gpu_layers: u32, n_gpu_ffn: u32,
        n_expert_slots: u32, k_dtype: u32, v_dtype: u32, tail_k_dtype: u32, tail_v_dtype: u32,
        arithmetic: u32, deterministic: u32, n_chunk: u32, max_batch: u32, max_logit_rows: u32,
        max_concurrent: u32, n_sessions: u32, n_rows: u32, n_mtp_layers: u32, narrowed: u32,
        capture_window: u32, n_checkpoints: u32, rewind: u32, kv_budget: u32,
        device_payload_bytes: u64, device_held_bytes: u64, host_payload_bytes: u64,
        host_held_bytes: u64, mapped_bytes: u64, kv_payload_bytes: u64, session_held_bytes: u64,
        fingerprint: u64, device_peak_bytes: u64, host_peak_bytes: u64, expert_slot_bytes: u64,
        device_rate: f64, pcie_rate: f64, host_rate: f64, n_gpu_experts: u32, n_fallbacks: u32,
        stream_rows: u32, load_mode: u32, device_token_bytes: u64, host_token_bytes: u64,
        device_token_row_bytes: u64, host_token_row_bytes: u64, token_seconds: f64,
        full_token_seconds: f64, capture_bytes: u64, n_devices: u32, split: u32,
        adapter_rank: u32, reserved: u32,
    }
    struct sharpi_plan_device {
        device: u32, tier: u32, n_layers: u32, n_ffn: u32, n_experts: u32, n_expert_slots: u32,
        has_embedding: u32, has_head: u32, budget: u64, reserve: u64, payload_bytes: u64,
        held_bytes: u64, peak_bytes: u64, token_bytes: u64, token_row_bytes: u64, rate: f64,
        link_rate: f64, name: [c_char; 128], id: [c_char; 64], refusal: [c_char; 256],
    }
    struct sharpi_memory_row {
        tier: u32, device: u32, purpose: u32, kind: u32, first_layer: u32, n_layers: u32,
        per_session: u32, transient: u32, payload_bytes: u64, held_bytes: u64, shared_bytes: u64,
        label: [c_char; 64],
    }
    struct sharpi_layer_info {
        struct_size: u32, mixer: u32, tier: u32, kv_source: i32, k_dtype: u32, v_dtype: u32,
        n_slots: u32, capacity: u32, n_kv_heads: u32, head_dim: u32, ffn_tier: u32,
        experts_tier: u32, device: u32, ffn_device: u32, experts_device: u32,
    }
    struct sharpi_model_summary {
        struct_size: u32, n_layers: u32, n_embd: u32, n_vocab: u32, n_ctx_train: u32,
        n_mtp_layers: u32, chat: u32, bos: i32, eos: i32, is_hybrid: u32, has_window: u32,
        n_experts: u32, n_parameters: u64, file_bytes: u64, content_id: u64,
        architecture: [c_char; 32], name: [c_char; 128], stream_rows: u32, is_encoder: u32,
        tokenizer: [c_char; 32],
    }
    struct sharpi_segment_info {
        tier: u32, list: u32, first_layer: u32, n_layers: u32, has_embedding: u32, has_head: u32,
        n_mixers: u32, n_ffn: u32, n_experts: u32, n_streamed: u32, n_calls: u64, n_rows: u64,
        streamed_bytes: u64, seconds: f64, device: u32, reserved: u32,
    }
    struct sharpi_batch_read {
        session: *mut sharpi_session, tokens: *const i32, n: u32, n_read: u32,
        params: *const sharpi_sample_params,
    }
    struct sharpi_batch_step {
        session: *mut sharpi_session, params: *const sharpi_sample_params, out_tokens: *mut i32,
        cap: u32, n_tokens: u32,
    }
    struct sharpi_draft_stats {
        struct_size: u32, drafters: u32, n_passes: u64, n_drafted: u64, n_accepted: u64,
        draft_seconds: f64, verify_seconds: f64,
    }
    struct sharpi_expert_stats {
        struct_size: u32, n_slots: u32, n_resident: u32, n_pinned: u32, slot_bytes: u64,
        n_uses: u64, n_hits: u64, n_promotions: u64, n_evictions: u64, promoted_bytes: u64,
    }
    struct sharpi_text_stream {
        n_held: u32, held: [c_char; 4],
    }
    struct sharpi_stop_stream {
        n_held: u32, stopped: u32, which: u32, held: [c_char; 128],
    }
    struct sharpi_message {
        role: *const c_char, content: *const c_char, content_len: usize,
        reasoning: *const c_char, reasoning_len: usize, tool_calls: *const c_char,
        tool_calls_len: usize, tool_call_id: *const c_char, name: *const c_char,
        parts: *const c_char, parts_len: usize,
    }
    struct sharpi_parse_params {
        struct_size: u32, flags: u32, prompt: *const c_char, prompt_len: usize,
        tools: *const c_char, tools_len: usize,
    }
    struct sharpi_chat_parts {
        struct_size: u32, open: u32, n_tool_calls: u32, reserved: u32, reasoning_len: u64,
        content_len: u64, tool_calls_len: u64,
    }
    struct sharpi_chat_params {
        struct_size: u32, flags: u32, messages: *const sharpi_message, n_messages: u32,
        message_size: u32, tools: *const c_char, tools_len: usize, variables: *const c_char,
        variables_len: usize, now: u64,
    }
    struct sharpi_grammar_params {
        struct_size: u32, flags: u32, kind: u32, reserved: u32, text: *const c_char,
        text_len: usize, tools: *const c_char, tools_len: usize, tool: *const c_char,
    }
    struct sharpi_prefill_params {
        struct_size: u32, flags: u32, n_logit_rows: u32, n_chunk: u32,
        progress: sharpi_progress_fn, user_data: *mut c_void,
    }
    struct sharpi_sampler_params {
        struct_size: u32, temperature: f32, top_k: u32, top_p: f32, min_p: f32,
        repeat_penalty: f32, repeat_last_n: u32, n_bias: u32, seed: u64, bias_tokens: *const i32,
        bias_values: *const f32,
    }
    struct sharpi_logprob {
        token: i32, logprob: f32,
    }
    struct sharpi_sample_params {
        struct_size: u32, mask_words: u32, allowed_mask: *const u32, bias_tokens: *const i32,
        bias_values: *const f32, n_bias: u32, n_logprobs: u32, logprobs: *mut sharpi_logprob,
        meanwhile: sharpi_meanwhile_fn, user_data: *mut c_void,
    }
    struct sharpi_session_summary {
        struct_size: u32, n_tokens: u32, n_ctx: u32, capacity: u32, n_slots_min: u32,
        n_slots_max: u32, is_compacted: u32, n_logit_rows: u32, n_checkpoints: u32, k_dtype: u32,
        v_dtype: u32, tail_k_dtype: u32, tail_v_dtype: u32, reserved: u32, kv_payload_bytes: u64,
        kv_held_bytes: u64, kv_shared_bytes: u64, seed: u64, n_prefill_tokens: u64,
        n_decode_tokens: u64, prefill_seconds: f64, decode_seconds: f64, paths: [c_char; 256],
        adapters_id: u64, n_adapters: u32, n_other_tokens: u32,
    }
    struct sharpi_compact_params {
        struct_size: u32, policy: u32, budget: u32, window: u32, recency: u32, sinks: u32,
        headroom: u32, pool_kernel: u32, span: u32, layer_budget: u32, n_probe: u32, n_keep: u32,
        probe: *const i32, keep: *const u32, progress: sharpi_progress_fn, user_data: *mut c_void,
    }
    struct sharpi_compact_report {
        struct_size: u32, policy: u32, rows_before: u32, rows_after: u32, n_layers: u32,
        capacity: u32, payload_before: u64, payload_after: u64, held_before: u64, held_after: u64,
        score_ms: f64, move_ms: f64, kept_sinks: u32, kept_recent: u32, kept_scored: u32,
        kept_unranked: u32, kept_replayed: u32, reserved: u32,
    }
    struct sharpi_recall_params {
        struct_size: u32, budget: u32, window: u32, recency: u32, sinks: u32, n_probe: u32,
        probe: *const i32, progress: sharpi_progress_fn, user_data: *mut c_void,
    }
    struct sharpi_recall_report {
        struct_size: u32, n_layers: u32, rows_in: u32, n_blocks: u32, archived: u32,
        reserved: u32, total_rows: u64, score_ms: f64, move_ms: f64,
    }
    struct sharpi_embedder_params {
        struct_size: u32, n_ctx: u32, n_parallel: u32, reserved: u32,
    }
    struct sharpi_embedder_summary {
        struct_size: u32, n_ctx: u32, n_parallel: u32, n_embd: u32, n_row: u32, pooling: u32,
        is_encoder: u32, can_rank: u32, held_bytes: u64, n_tokens: u64, seconds: f64,
    }
    struct sharpi_group_params {
        struct_size: u32, n_ranks: u32, rank: u32, timeout_ms: u32, load_timeout_ms: u32,
        batch_parts: u32, nccl_comm: *mut c_void, nccl_library: *const c_char, send: sharpi_send_fn,
        receive: sharpi_receive_fn, abandon: sharpi_abandon_fn, user_data: *mut c_void,
    }
    struct sharpi_group_summary {
        struct_size: u32, n_ranks: u32, rank: u32, is_lost: u32, timeout_ms: u32,
        load_timeout_ms: u32, device_bytes: u64, transport: [c_char; 64],
    }
    struct sharpi_adapter_summary {
        struct_size: u32, n_weights: u32, max_rank: u32, alpha: f32, n_parameters: u64,
        held_bytes: u64, content_id: u64, name: [c_char; 128],
    }
    struct sharpi_adapter_use {
        adapter: *const sharpi_adapter, scale: f32, reserved: u32,
    }
    struct sharpi_text_tokens {
        tokens: *const i32, n_tokens: u32, n_first: u32,
    }
    struct sharpi_embed_params {
        struct_size: u32, pooling: u32, n_dims: u32, normalize: u32,
        progress: sharpi_progress_fn, user_data: *mut c_void,
    }
    struct sharpi_rerank_params {
        struct_size: u32, normalize: u32, progress: sharpi_progress_fn, user_data: *mut c_void,
    }
}

functions! {
    fn sharpi_version() -> u32;
    fn sharpi_build_info() -> *const c_char;
    fn sharpi_status_name(status: i32) -> *const c_char;
    fn sharpi_tier_name(tier: u32) -> *const c_char;
    fn sharpi_context_params_init(p: *mut sharpi_context_params, size: usize) -> ();
    fn sharpi_context_create(
        params: *const sharpi_context_params, out: *mut *mut sharpi_context,
        err: *mut sharpi_error) -> i32;
    fn sharpi_context_destroy(context: *mut sharpi_context) -> ();
    fn sharpi_device_info(
        context: *const sharpi_context, index: u32, flags: u32, out: *mut sharpi_device,
        err: *mut sharpi_error) -> i32;
    fn sharpi_device_find(
        context: *const sharpi_context, device: *const c_char, out_index: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_device_request_init(p: *mut sharpi_device_request, size: usize) -> ();
    fn sharpi_session_params_init(p: *mut sharpi_session_params, size: usize) -> ();
    fn sharpi_group_params_init(p: *mut sharpi_group_params, size: usize) -> ();
    fn sharpi_group_create(
        params: *const sharpi_group_params, out: *mut *mut sharpi_group,
        err: *mut sharpi_error) -> i32;
    fn sharpi_group_destroy(group: *mut sharpi_group) -> ();
    fn sharpi_group_info(
        group: *const sharpi_group, out: *mut sharpi_group_summary, err: *mut sharpi_error) -> i32;
    fn sharpi_plan_params_init(p: *mut sharpi_plan_params, size: usize) -> ();
    fn sharpi_plan_create(
        context: *mut sharpi_context, gguf_path: *const c_char,
        params: *const sharpi_plan_params, out: *mut *mut sharpi_plan,
        err: *mut sharpi_error) -> i32;
    fn sharpi_plan_destroy(plan: *mut sharpi_plan) -> ();
    fn sharpi_plan_info(
        plan: *const sharpi_plan, out: *mut sharpi_plan_summary, err: *mut sharpi_error) -> i32;
    fn sharpi_plan_rows(
        plan: *const sharpi_plan, rows: *mut sharpi_memory_row, row_size: u32, cap: u32,
        out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_plan_devices(
        plan: *const sharpi_plan, rows: *mut sharpi_plan_device, row_size: u32, cap: u32,
        out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_plan_layer(
        plan: *const sharpi_plan, layer: u32, out: *mut sharpi_layer_info,
        err: *mut sharpi_error) -> i32;
    fn sharpi_plan_fallback(
        plan: *const sharpi_plan, index: u32, out: *mut c_char, cap: usize,
        out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_plan_meta(
        plan: *const sharpi_plan, key: *const c_char, out: *mut c_char, cap: usize,
        out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_plan_meta_key(
        plan: *const sharpi_plan, index: u32, out: *mut c_char, cap: usize,
        out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_plan_json(
        plan: *const sharpi_plan, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_model_load(
        plan: *const sharpi_plan, progress: sharpi_progress_fn, user_data: *mut c_void,
        out: *mut *mut sharpi_model, err: *mut sharpi_error) -> i32;
    fn sharpi_model_open_text(
        gguf_path: *const c_char, out: *mut *mut sharpi_model, err: *mut sharpi_error) -> i32;
    fn sharpi_model_destroy(model: *mut sharpi_model) -> ();
    fn sharpi_model_info(
        model: *const sharpi_model, out: *mut sharpi_model_summary,
        err: *mut sharpi_error) -> i32;
    fn sharpi_plan_model(
        plan: *const sharpi_plan, out: *mut sharpi_model_summary, err: *mut sharpi_error) -> i32;
    fn sharpi_model_meta(
        model: *const sharpi_model, key: *const c_char, out: *mut c_char, cap: usize,
        out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_model_meta_key(
        model: *const sharpi_model, index: u32, out: *mut c_char, cap: usize,
        out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_model_memory(
        model: *const sharpi_model, rows: *mut sharpi_memory_row, row_size: u32,
        cap: u32, out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_model_segments(
        model: *const sharpi_model, rows: *mut sharpi_segment_info, row_size: u32,
        cap: u32, out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_model_json(
        model: *const sharpi_model, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_model_experts(
        model: *const sharpi_model, out: *mut sharpi_expert_stats, err: *mut sharpi_error) -> i32;
    fn sharpi_model_expert_uses(
        model: *const sharpi_model, layer: u32, out: *mut u64, cap: u32, out_n: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_model_pin_experts(
        model: *const sharpi_model, layers: *const u32, experts: *const u32, n: u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_tokenize(
        model: *const sharpi_model, utf8: *const c_char, len: usize, flags: u32,
        out: *mut i32, cap: u32, out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_detokenize(
        model: *const sharpi_model, tokens: *const i32, n: u32, flags: u32,
        out: *mut c_char, cap: usize, out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_detokenize_stream(
        model: *const sharpi_model, stream: *mut sharpi_text_stream, tokens: *const i32,
        n: u32, flags: u32, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_text_stream_finish(
        stream: *mut sharpi_text_stream, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_token_is_end(model: *const sharpi_model, token: i32) -> i32;
    fn sharpi_token_attributes(model: *const sharpi_model, token: i32) -> u32;
    fn sharpi_token_id(
        model: *const sharpi_model, utf8: *const c_char, len: usize, out_token: *mut i32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_token_bytes(
        model: *const sharpi_model, token: i32, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_stop_stream_push(
        stream: *mut sharpi_stop_stream, stops: *const *const c_char, n_stops: u32,
        text: *const c_char, len: usize, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_stop_stream_finish(
        stream: *mut sharpi_stop_stream, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_chat_params_init(p: *mut sharpi_chat_params, size: usize) -> ();
    fn sharpi_chat_format(
        model: *const sharpi_model, params: *const sharpi_chat_params, out: *mut c_char,
        cap: usize, out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_parse_params_init(p: *mut sharpi_parse_params, size: usize) -> ();
    fn sharpi_chat_parse(
        params: *const sharpi_parse_params, text: *const c_char, len: usize,
        parts: *mut sharpi_chat_parts, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_chat_tokenize(
        model: *const sharpi_model, params: *const sharpi_chat_params, out: *mut i32, cap: u32,
        out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_grammar_params_init(p: *mut sharpi_grammar_params, size: usize) -> ();
    fn sharpi_grammar_compile(
        model: *const sharpi_model, params: *const sharpi_grammar_params,
        out: *mut *mut sharpi_grammar, err: *mut sharpi_error) -> i32;
    fn sharpi_grammar_destroy(grammar: *mut sharpi_grammar) -> ();
    fn sharpi_grammar_note(
        grammar: *const sharpi_grammar, index: u32, out: *mut c_char, cap: usize,
        out_len: *mut usize, err: *mut sharpi_error) -> i32;
    fn sharpi_schema_check(
        schema: *const c_char, schema_len: usize, json: *const c_char, len: usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_matcher_create(
        grammar: *const sharpi_grammar, out: *mut *mut sharpi_matcher,
        err: *mut sharpi_error) -> i32;
    fn sharpi_matcher_clone(
        matcher: *const sharpi_matcher, out: *mut *mut sharpi_matcher,
        err: *mut sharpi_error) -> i32;
    fn sharpi_matcher_destroy(matcher: *mut sharpi_matcher) -> ();
    fn sharpi_matcher_accept(
        matcher: *mut sharpi_matcher, token: i32, err: *mut sharpi_error) -> i32;
    fn sharpi_matcher_accept_text(
        matcher: *mut sharpi_matcher, bytes: *const c_char, len: usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_matcher_mask(
        matcher: *mut sharpi_matcher, out: *mut u32, cap: u32, out_words: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_matcher_progress(matcher: *const sharpi_matcher) -> u32;
    fn sharpi_matcher_forced(
        matcher: *mut sharpi_matcher, out: *mut c_char, cap: usize, out_len: *mut usize,
        err: *mut sharpi_error) -> i32;
    fn sharpi_plan_session(
        model: *const sharpi_model, params: *const sharpi_session_params,
        out: *mut *mut sharpi_plan, err: *mut sharpi_error) -> i32;
    fn sharpi_session_create(
        model: *const sharpi_model, params: *const sharpi_session_params,
        out: *mut *mut sharpi_session, err: *mut sharpi_error) -> i32;
    fn sharpi_session_destroy(session: *mut sharpi_session) -> ();
    fn sharpi_prefill_params_init(p: *mut sharpi_prefill_params, size: usize) -> ();
    fn sharpi_session_prefill(
        session: *mut sharpi_session, tokens: *const i32, n: u32,
        params: *const sharpi_prefill_params, out_committed: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_decode(
        session: *mut sharpi_session, token: i32, err: *mut sharpi_error) -> i32;
    fn sharpi_decode_batch(
        sessions: *const *mut sharpi_session, tokens: *const i32, n: u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_logits(
        session: *const sharpi_session, row: u32, out: *mut f32, cap: u32,
        out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_sampler_params_init(p: *mut sharpi_sampler_params, size: usize) -> ();
    fn sharpi_session_set_sampler(
        session: *mut sharpi_session, params: *const sharpi_sampler_params,
        err: *mut sharpi_error) -> i32;
    fn sharpi_sample_params_init(p: *mut sharpi_sample_params, size: usize) -> ();
    fn sharpi_session_sample(
        session: *mut sharpi_session, params: *const sharpi_sample_params, out_token: *mut i32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_verify(
        session: *mut sharpi_session, tokens: *const i32, n: u32,
        params: *const sharpi_sample_params, out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_verify_batch(
        reads: *mut sharpi_batch_read, read_size: u32, n: u32, err: *mut sharpi_error) -> i32;
    fn sharpi_step_batch(
        steps: *mut sharpi_batch_step, step_size: u32, n: u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_drafts(
        session: *const sharpi_session, out: *mut sharpi_draft_stats,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_draft_places(
        session: *const sharpi_session, drafted: *mut u64, accepted: *mut u64, cap: u32,
        out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_step(
        session: *mut sharpi_session, params: *const sharpi_sample_params, out_tokens: *mut i32,
        cap: u32, out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_reserve(
        session: *mut sharpi_session, n_slots: u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_truncate(
        session: *mut sharpi_session, n_tokens: u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_checkpoint(
        session: *mut sharpi_session, pin: u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_reachable(
        session: *const sharpi_session, out: *mut u32, cap: u32, out_n: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_tokens(
        session: *const sharpi_session, out: *mut i32, cap: u32, out_n: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_fork(
        session: *const sharpi_session, out: *mut *mut sharpi_session,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_save(
        session: *const sharpi_session, out: *mut c_void, cap: u64, out_len: *mut u64,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_save_to(
        session: *const sharpi_session, write: sharpi_write_fn, user_data: *mut c_void,
        out_len: *mut u64, err: *mut sharpi_error) -> i32;
    fn sharpi_session_restore_from(
        session: *mut sharpi_session, read: sharpi_read_fn, user_data: *mut c_void,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_restore(
        session: *mut sharpi_session, blob: *const c_void, len: u64,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_info(
        session: *const sharpi_session, out: *mut sharpi_session_summary,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_layer(
        session: *const sharpi_session, layer: u32, out: *mut sharpi_layer_info,
        err: *mut sharpi_error) -> i32;
    fn sharpi_session_memory(
        session: *const sharpi_session, rows: *mut sharpi_memory_row, row_size: u32,
        cap: u32, out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_cancel(session: *mut sharpi_session) -> ();
    fn sharpi_session_resume(session: *mut sharpi_session) -> ();
    fn sharpi_compact_params_init(p: *mut sharpi_compact_params, size: usize) -> ();
    fn sharpi_session_compact(
        session: *mut sharpi_session, params: *const sharpi_compact_params,
        report: *mut sharpi_compact_report, err: *mut sharpi_error) -> i32;
    fn sharpi_recall_params_init(p: *mut sharpi_recall_params, size: usize) -> ();
    fn sharpi_session_recall(
        session: *mut sharpi_session, params: *const sharpi_recall_params,
        report: *mut sharpi_recall_report, err: *mut sharpi_error) -> i32;
    fn sharpi_session_kept(
        session: *const sharpi_session, layer: u32, kv_head: u32, out: *mut u32,
        cap: u32, out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_adapter_load(
        model: *const sharpi_model, gguf_path: *const c_char, out: *mut *mut sharpi_adapter,
        err: *mut sharpi_error) -> i32;
    fn sharpi_adapter_destroy(adapter: *mut sharpi_adapter) -> ();
    fn sharpi_adapter_info(
        adapter: *const sharpi_adapter, out: *mut sharpi_adapter_summary,
        err: *mut sharpi_error) -> i32;
    fn sharpi_adapter_memory(
        adapter: *const sharpi_adapter, rows: *mut sharpi_memory_row, row_size: u32, cap: u32,
        out_n: *mut u32, err: *mut sharpi_error) -> i32;
    fn sharpi_session_set_adapters(
        session: *mut sharpi_session, uses: *const sharpi_adapter_use, use_size: u32, n: u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_embedder_params_init(p: *mut sharpi_embedder_params, size: usize) -> ();
    fn sharpi_embedder_create(
        model: *const sharpi_model, params: *const sharpi_embedder_params,
        out: *mut *mut sharpi_embedder, err: *mut sharpi_error) -> i32;
    fn sharpi_embedder_destroy(embedder: *mut sharpi_embedder) -> ();
    fn sharpi_embedder_price(
        model: *const sharpi_model, params: *const sharpi_embedder_params,
        rows: *mut sharpi_memory_row, row_size: u32, cap: u32, out_n: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_embedder_info(
        embedder: *const sharpi_embedder, out: *mut sharpi_embedder_summary,
        err: *mut sharpi_error) -> i32;
    fn sharpi_embed_params_init(p: *mut sharpi_embed_params, size: usize) -> ();
    fn sharpi_embed(
        embedder: *mut sharpi_embedder, texts: *const sharpi_text_tokens, text_size: u32,
        n_texts: u32, params: *const sharpi_embed_params, out: *mut f32, cap: u64,
        out_n: *mut u64, err: *mut sharpi_error) -> i32;
    fn sharpi_rerank_params_init(p: *mut sharpi_rerank_params, size: usize) -> ();
    fn sharpi_rerank(
        embedder: *mut sharpi_embedder, texts: *const sharpi_text_tokens, text_size: u32,
        n_texts: u32, params: *const sharpi_rerank_params, out: *mut f32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_rank_tokenize(
        model: *const sharpi_model, query: *const c_char, query_len: usize,
        document: *const c_char, document_len: usize, instruction: *const c_char,
        out: *mut i32, cap: u32, out_n: *mut u32, out_n_first: *mut u32,
        err: *mut sharpi_error) -> i32;
    fn sharpi_embedder_cancel(embedder: *mut sharpi_embedder) -> ();
    fn sharpi_embedder_resume(embedder: *mut sharpi_embedder) -> ();
}
