// SPDX-License-Identifier: MIT
//! Plans and loads a GGUF model, reads a prompt and prints what follows, greedily:
//!     cargo run --release -p sharpi-sys --example generate MODEL.gguf PROMPT [TOKENS]
//! The library is opened at run time: Library::find() says where it is looked for.
use sharpi_sys::*;
use std::ffi::{c_void, CString};
use std::io::Write;
use std::mem::{size_of, MaybeUninit};
use std::ptr::{null, null_mut};

/// A parameter struct with the library's defaults in it.
fn params<T>(init: unsafe extern "C" fn(*mut T, usize)) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    unsafe {
        init(value.as_mut_ptr(), size_of::<T>());
        value.assume_init()
    }
}

/// Calls the library with a fresh error struct; what it says becomes the Rust error.
fn call(lib: &Library, f: impl FnOnce(*mut sharpi_error) -> i32) -> Result<(), String> {
    let mut error = sharpi_error::zeroed();
    error.struct_size = size_of::<sharpi_error>() as u32;
    if f(&mut error) == SHARPI_OK {
        return Ok(());
    }
    let name = unsafe { text_of((lib.sharpi_status_name)(error.status)) };
    Err(format!("{}: {}", name, unsafe { text_of(error.text.as_ptr()) }))
}

fn create<T>(
    lib: &Library,
    destroy: unsafe extern "C" fn(*mut T),
    f: impl FnOnce(*mut *mut T, *mut sharpi_error) -> i32,
) -> Result<Handle<T>, String> {
    let mut pointer = null_mut();
    call(lib, |error| f(&mut pointer, error))?;
    Ok(unsafe { Handle::new(pointer, destroy) })
}

fn kv_name(dtype: u32) -> &'static str {
    match dtype {
        SHARPI_KV_F32 => "f32",
        SHARPI_KV_BF16 => "bf16",
        SHARPI_KV_Q8_0 => "q8_0",
        SHARPI_KV_Q4 => "q4",
        _ => "none",
    }
}

/// Counts its calls. It runs on the thread that called the library, and must not panic.
unsafe extern "C" fn on_progress(user_data: *mut c_void, _phase: u32, _: u64, _: u64) -> i32 {
    unsafe { *(user_data as *mut u64) += 1 };
    0
}

fn open_model(lib: &Library, path: &str) -> Result<Handle<sharpi_model>, String> {
    let mut options: sharpi_context_params = params(lib.sharpi_context_params_init);
    options.n_threads = 2;
    let context = create(lib, lib.sharpi_context_destroy, |out, error| unsafe {
        (lib.sharpi_context_create)(&options, out, error)
    })?;

    let mut session: sharpi_session_params = params(lib.sharpi_session_params_init);
    session.n_ctx = 256;
    session.k_dtype = SHARPI_KV_BF16;
    session.v_dtype = SHARPI_KV_BF16;
    let mut request: sharpi_plan_params = params(lib.sharpi_plan_params_init);
    request.n_gpu_layers = 0;
    request.session = &session;
    let path = CString::new(path).map_err(|e| e.to_string())?;
    let plan = create(lib, lib.sharpi_plan_destroy, |out, error| unsafe {
        (lib.sharpi_plan_create)(context.pointer, path.as_ptr(), &request, out, error)
    })?;

    let mut summary = sharpi_plan_summary::zeroed();
    summary.struct_size = size_of::<sharpi_plan_summary>() as u32;
    call(lib, |error| unsafe { (lib.sharpi_plan_info)(plan.pointer, &mut summary, error) })?;
    let mut rows = vec![sharpi_memory_row::zeroed(); summary.n_rows as usize];
    let (row_size, mut n_rows) = (size_of::<sharpi_memory_row>() as u32, 0);
    call(lib, |error| unsafe {
        let (plan, rows) = (plan.pointer, rows.as_mut_ptr());
        (lib.sharpi_plan_rows)(plan, rows, row_size, summary.n_rows, &mut n_rows, error)
    })?;
    let kv: u64 = rows.iter().filter(|r| r.purpose == SHARPI_ROW_KV).map(|r| r.payload_bytes).sum();
    let (k, v) = (kv_name(summary.k_dtype), kv_name(summary.v_dtype));
    println!("plan: context {}, KV {}/{} of {} bytes, {} rows", summary.n_ctx, k, v, kv, n_rows);

    // The model keeps the plan and the context alive; our references go at the end of this scope.
    create(lib, lib.sharpi_model_destroy, |out, error| unsafe {
        (lib.sharpi_model_load)(plan.pointer, None, null_mut(), out, error)
    })
}

fn tokenize(lib: &Library, model: *const sharpi_model, text: &str) -> Result<Vec<i32>, String> {
    let mut tokens = vec![0; text.len() + 8]; // a token has a byte at least, besides BOS and EOS
    let (cap, mut n) = (tokens.len() as u32, 0);
    call(lib, |error| unsafe {
        let (utf8, out) = (text.as_ptr().cast(), tokens.as_mut_ptr());
        let flags = SHARPI_TOKENIZE_ADD_SPECIAL;
        (lib.sharpi_tokenize)(model, utf8, text.len(), flags, out, cap, &mut n, error)
    })?;
    tokens.truncate(n as usize);
    Ok(tokens)
}

fn read_prompt(
    lib: &Library,
    session: *mut sharpi_session,
    tokens: &[i32],
) -> Result<(), String> {
    let mut calls = 0u64;
    let mut options: sharpi_prefill_params = params(lib.sharpi_prefill_params_init);
    options.progress = Some(on_progress);
    options.user_data = (&mut calls as *mut u64).cast();
    let (n, mut committed) = (tokens.len() as u32, 0);
    call(lib, |error| unsafe {
        let out = &mut committed;
        (lib.sharpi_session_prefill)(session, tokens.as_ptr(), n, &options, out, error)
    })?;
    println!("prompt: {} tokens, progress told {} times", committed, calls);
    Ok(())
}

/// Samples with temperature 0 and prints whole characters as they come.
fn generate(
    lib: &Library,
    model: *const sharpi_model,
    session: *mut sharpi_session,
    n_tokens: u32,
) -> Result<(), String> {
    let mut greedy: sharpi_sampler_params = params(lib.sharpi_sampler_params_init);
    greedy.temperature = 0.0;
    call(lib, |error| unsafe { (lib.sharpi_session_set_sampler)(session, &greedy, error) })?;
    let mut stream = sharpi_text_stream::zeroed();
    let mut piece = [0u8; 1024];
    print!("text:");
    for _ in 0..n_tokens {
        let (mut token, mut n, mut len) = (0i32, 0u32, 0usize);
        call(lib, |error| unsafe {
            (lib.sharpi_session_step)(session, std::ptr::null(), &mut token, 1, &mut n, error)
        })?;
        if unsafe { (lib.sharpi_token_is_end)(model, token) } != 0 {
            break;
        }
        call(lib, |error| unsafe {
            let (out, cap) = (piece.as_mut_ptr().cast(), piece.len());
            let (stream, len) = (&mut stream, &mut len);
            (lib.sharpi_detokenize_stream)(model, stream, &token, 1, 0, out, cap, len, error)
        })?;
        std::io::stdout().write_all(&piece[..len]).map_err(|e| e.to_string())?;
    }
    println!();
    Ok(())
}

fn run(args: &[String]) -> Result<(), String> {
    let lib = Library::find()?;
    let version = unsafe { (lib.sharpi_version)() };
    println!("library: {}.{}", version / 10000, version / 100 % 100);
    let model = open_model(&lib, &args[1])?;
    let session = create(&lib, lib.sharpi_session_destroy, |out, error| unsafe {
        (lib.sharpi_session_create)(model.pointer, null(), out, error)
    })?;
    read_prompt(&lib, session.pointer, &tokenize(&lib, model.pointer, &args[2])?)?;
    let n_tokens = args.get(3).map_or(Ok(32), |n| n.parse()).map_err(|_| "TOKENS: a number")?;
    generate(&lib, model.pointer, session.pointer, n_tokens)?;

    let mut info = sharpi_session_summary::zeroed();
    info.struct_size = size_of::<sharpi_session_summary>() as u32;
    call(&lib, |error| unsafe { (lib.sharpi_session_info)(session.pointer, &mut info, error) })?;
    let (k, v) = (kv_name(info.k_dtype), kv_name(info.v_dtype));
    println!("session: {} tokens, KV {}/{}", info.n_tokens, k, v);
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.len() < 3 {
        eprintln!("usage: generate MODEL.gguf PROMPT [TOKENS]");
        std::process::exit(2);
    }
    if let Err(sentence) = run(&args) {
        eprintln!("generate: {}", sentence);
        std::process::exit(1);
    }
}
