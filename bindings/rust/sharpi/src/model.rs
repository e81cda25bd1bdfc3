// SPDX-License-Identifier: MIT
//! Models: planned and loaded, and what their vocabulary says.
use crate::call::{create, filled, invalid, library, on_progress, params, Error, Progress};
use crate::embedder::Embedder;
use crate::session::Session;
use crate::sys;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

/// How KV rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {
    /// The architecture's default, narrowed only if needed.
    Auto,
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element.
    Bf16,
    /// 34 bytes for 32 elements.
    Q8,
    /// 18 bytes for 32 elements.
    Q4,
}

impl Kv {
    fn code(self) -> u32 {
        match self {
            Kv::Auto => sys::SHARPI_KV_AUTO,
            Kv::F32 => sys::SHARPI_KV_F32,
            Kv::Bf16 => sys::SHARPI_KV_BF16,
            Kv::Q8 => sys::SHARPI_KV_Q8_0,
            Kv::Q4 => sys::SHARPI_KV_Q4,
        }
    }
}

/// How a model is placed, and what its sessions may hold. `None` leaves a field to the library.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens that a session holds at most.
    pub n_ctx: Option<u32>,
    /// How sessions store keys and values.
    pub kv: Kv,
    /// Layers on the GPU; `None`: as many as fit.
    pub n_gpu_layers: Option<u32>,
    /// Threads of the CPU tier.
    pub n_threads: Option<u32>,
    /// Sessions whose memory is planned.
    pub n_sessions: u32,
    /// Activations stay in f32: slower, and the same on every processor but for rounding.
    pub exact: bool,
    /// The same bits for any chunking and number of threads.
    pub deterministic: bool,
    /// Weights of the CPU stay in the mapped file and are not copied.
    pub map: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            n_ctx: None,
            kv: Kv::Auto,
            n_gpu_layers: None,
            n_threads: None,
            n_sessions: 1,
            exact: false,
            deterministic: false,
            map: false,
        }
    }
}

pub(crate) struct Loaded {
    pub(crate) lib: &'static sys::Library,
    pub(crate) handle: sys::Handle<sys::sharpi_model>,
}

/// A loaded model. Clones are the same model; its memory goes with the last of them and of its
/// sessions.
#[derive(Clone)]
pub struct Model {
    pub(crate) loaded: Arc<Loaded>,
}

impl Model {
    /// Plans a file and loads its weights. Fails with `SHARPI_E_DOES_NOT_FIT`, before anything is
    /// read, where memory is short, and says by how much.
    pub fn load(path: impl AsRef<Path>, options: &Options) -> Result<Model, Error> {
        Model::load_with(path, options, |_, _| true)
    }

    /// Like [`Model::load`], and tells the closure how many bytes of how many are loaded; `false`
    /// cancels.
    pub fn load_with(
        path: impl AsRef<Path>,
        options: &Options,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Model, Error> {
        let lib = library()?;
        let plan = plan(lib, path.as_ref(), options)?;
        let mut told = Progress::new(&mut progress);
        let made = create(lib, lib.sharpi_model_destroy, |out, error| unsafe {
            (lib.sharpi_model_load)(plan.pointer, Some(on_progress), told.user_data(), out, error)
        });
        told.go_on();
        Ok(Model { loaded: Arc::new(Loaded { lib, handle: made? }) })
    }

    /// A session with what was planned for each.
    pub fn session(&self) -> Result<Session, Error> {
        Session::create(self)
    }

    /// What reads texts for their vectors. `n_ctx`: tokens of the longest text; `None`: as planned.
    pub fn embedder(&self, n_ctx: Option<u32>) -> Result<Embedder, Error> {
        Embedder::create(self, n_ctx)
    }

    /// The text as token ids, with what the vocabulary puts around a text. What looks like a
    /// control token is text.
    pub fn tokenize(&self, text: &str) -> Result<Vec<i32>, Error> {
        let (lib, model) = (self.loaded.lib, self.as_ptr());
        filled(lib, text.len() + 8, |out, cap, n, error| unsafe {
            let (utf8, flags) = (text.as_ptr().cast(), sys::SHARPI_TOKENIZE_ADD_SPECIAL);
            let mut count = 0;
            let cap = cap as u32;
            let status =
                (lib.sharpi_tokenize)(model, utf8, text.len(), flags, out, cap, &mut count, error);
            *n = count as usize;
            status
        })
    }

    /// A conversation of (role, text) in the model's chat format, ready for its answer. No text
    /// can make a control token.
    pub fn chat_tokens(&self, messages: &[(&str, &str)]) -> Result<Vec<i32>, Error> {
        let (lib, model) = (self.loaded.lib, self.as_ptr());
        let roles: Result<Vec<CString>, _> = messages.iter().map(|m| CString::new(m.0)).collect();
        let roles = roles.map_err(|_| invalid("a role contains a NUL"))?;
        let mut rows = Vec::new();
        for (role, (_, text)) in roles.iter().zip(messages) {
            let mut row = sys::sharpi_message::zeroed();
            row.role = role.as_ptr();
            row.content = text.as_ptr().cast();
            row.content_len = text.len();
            rows.push(row);
        }
        let mut chat: sys::sharpi_chat_params = params(lib.sharpi_chat_params_init);
        chat.messages = rows.as_ptr();
        chat.n_messages = rows.len() as u32;
        filled(lib, 256, |out, cap, n, error| unsafe {
            let mut count = 0;
            let status =
                (lib.sharpi_chat_tokenize)(model, &chat, out, cap as u32, &mut count, error);
            *n = count as usize;
            status
        })
    }

    /// The text of tokens, control tokens left out; bytes that are no character come out as U+FFFD.
    pub fn detokenize(&self, tokens: &[i32]) -> Result<String, Error> {
        let (lib, model, n) = (self.loaded.lib, self.as_ptr(), tokens.len() as u32);
        let bytes = filled(lib, tokens.len() * 8, |out: *mut u8, cap, len, error| unsafe {
            (lib.sharpi_detokenize)(model, tokens.as_ptr(), n, 0, out.cast(), cap, len, error)
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether this token ends a generation.
    pub fn is_end(&self, token: i32) -> bool {
        unsafe { (self.loaded.lib.sharpi_token_is_end)(self.as_ptr(), token) != 0 }
    }

    /// For calls of [`sys`]; it is valid as long as this model lives.
    pub fn as_ptr(&self) -> *mut sys::sharpi_model {
        self.loaded.handle.pointer
    }
}

fn plan(
    lib: &'static sys::Library,
    path: &Path,
    options: &Options,
) -> Result<sys::Handle<sys::sharpi_plan>, Error> {
    let mut wanted: sys::sharpi_context_params = params(lib.sharpi_context_params_init);
    wanted.n_threads = options.n_threads.unwrap_or(wanted.n_threads);
    let context = create(lib, lib.sharpi_context_destroy, |out, error| unsafe {
        (lib.sharpi_context_create)(&wanted, out, error)
    })?;
    let mut session: sys::sharpi_session_params = params(lib.sharpi_session_params_init);
    session.n_ctx = options.n_ctx.unwrap_or(session.n_ctx);
    session.k_dtype = options.kv.code();
    session.v_dtype = options.kv.code();
    let mut request: sys::sharpi_plan_params = params(lib.sharpi_plan_params_init);
    if let Some(n) = options.n_gpu_layers {
        request.n_gpu_layers = n.min(i32::MAX as u32) as i32;
    }
    request.n_sessions = options.n_sessions;
    request.deterministic = options.deterministic.into();
    if options.exact {
        request.arithmetic = sys::SHARPI_ARITHMETIC_EXACT;
    }
    if options.map {
        request.load_mode = sys::SHARPI_LOAD_MAP;
    }
    request.session = &session;
    let file = CString::new(path_bytes(path)).map_err(|_| invalid("a path contains a NUL"))?;
    create(lib, lib.sharpi_plan_destroy, |out, error| unsafe {
        (lib.sharpi_plan_create)(context.pointer, file.as_ptr(), &request, out, error)
    })
}

#[cfg(unix)]
fn path_bytes(path: &Path) -> Vec<u8> {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec()
}
#[cfg(not(unix))]
fn path_bytes(path: &Path) -> Vec<u8> {
    path.to_string_lossy().as_bytes().to_vec() // UTF-8, as the library wants it
}
