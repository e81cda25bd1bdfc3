// SPDX-License-Identifier: MIT
//! Sessions: what was read, and what follows.
use crate::call::{call, create, filled, on_progress, params, Error, Progress};
use crate::model::Model;
use crate::sys;
use std::mem::size_of;
use std::ptr::null;
use std::sync::Arc;

/// How the next token is drawn. The fields' meaning and order are those of `sharpi_sampler_params`.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// 1 = off.
    pub repeat_penalty: f32,
    /// `None`: another one for every session.
    pub seed: Option<u64>,
}

impl Sampler {
    /// The most likely token, always.
    pub fn greedy() -> Sampler {
        Sampler { temperature: 0.0, ..Sampler::default() }
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            seed: None,
        }
    }
}

struct Shared {
    handle: sys::Handle<sys::sharpi_session>,
    model: Model, // what it is a session of lives as long
}
// What several threads reach is a Canceller, whose calls are for any thread at any time; all other
// calls that change the session take it by &mut.
unsafe impl Sync for Shared {}

/// The tokens that were read, their KV rows, and what draws the next one.
pub struct Session {
    shared: Arc<Shared>,
}

/// Ends the call that a session is in, or the next one, from any thread.
#[derive(Clone)]
pub struct Canceller {
    shared: Arc<Shared>,
}

impl Canceller {
    /// The call fails with `SHARPI_E_CANCELLED`; this holds until one has.
    pub fn cancel(&self) {
        let lib = self.shared.model.loaded.lib;
        unsafe { (lib.sharpi_session_cancel)(self.shared.handle.pointer) }
    }
    /// Takes a cancel back that no call has met.
    pub fn resume(&self) {
        let lib = self.shared.model.loaded.lib;
        unsafe { (lib.sharpi_session_resume)(self.shared.handle.pointer) }
    }
}

impl Session {
    pub(crate) fn create(model: &Model) -> Result<Session, Error> {
        let lib = model.loaded.lib;
        let handle = create(lib, lib.sharpi_session_destroy, |out, error| unsafe {
            (lib.sharpi_session_create)(model.as_ptr(), null(), out, error)
        })?;
        Ok(Session { shared: Arc::new(Shared { handle, model: model.clone() }) })
    }

    fn lib(&self) -> &'static sys::Library {
        self.shared.model.loaded.lib
    }

    /// The model that this is a session of.
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    /// For calls of [`sys`]; it is valid as long as this session lives.
    pub fn as_ptr(&self) -> *mut sys::sharpi_session {
        self.shared.handle.pointer
    }

    /// What ends a call of this session from another thread. While one lives, so does the
    /// session's memory.
    pub fn canceller(&self) -> Canceller {
        Canceller { shared: self.shared.clone() }
    }

    /// Reads tokens behind those that are there already.
    pub fn prefill(&mut self, tokens: &[i32]) -> Result<(), Error> {
        self.prefill_with(tokens, |_, _| true)
    }

    /// Like [`Session::prefill`], and tells the closure how many tokens of how many are read;
    /// `false` cancels, and whole chunks stay read.
    pub fn prefill_with(
        &mut self,
        tokens: &[i32],
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<(), Error> {
        let (lib, session, n) = (self.lib(), self.as_ptr(), tokens.len() as u32);
        let mut told = Progress::new(&mut progress);
        let mut options: sys::sharpi_prefill_params = params(lib.sharpi_prefill_params_init);
        options.progress = Some(on_progress);
        options.user_data = told.user_data();
        let read = call(lib, |error| unsafe {
            let committed = std::ptr::null_mut();
            (lib.sharpi_session_prefill)(session, tokens.as_ptr(), n, &options, committed, error)
        });
        told.go_on();
        read
    }

    /// How tokens are drawn from now on.
    pub fn set_sampler(&mut self, sampler: &Sampler) -> Result<(), Error> {
        let lib = self.lib();
        let mut wanted: sys::sharpi_sampler_params = params(lib.sharpi_sampler_params_init);
        wanted.temperature = sampler.temperature;
        wanted.top_k = sampler.top_k;
        wanted.top_p = sampler.top_p;
        wanted.min_p = sampler.min_p;
        wanted.repeat_penalty = sampler.repeat_penalty;
        wanted.seed = sampler.seed.unwrap_or(wanted.seed);
        let session = self.as_ptr();
        call(lib, |error| unsafe { (lib.sharpi_session_set_sampler)(session, &wanted, error) })
    }

    /// Draws a token, and reads it unless it ends the generation.
    pub fn step(&mut self) -> Result<i32, Error> {
        let (lib, session) = (self.lib(), self.as_ptr());
        let (mut token, mut n) = (0, 0);
        call(lib, |error| unsafe {
            (lib.sharpi_session_step)(session, null(), &mut token, 1, &mut n, error)
        })?;
        Ok(token)
    }

    /// What follows, as text in whole characters, of at most so many tokens. Ends where the model
    /// does.
    pub fn generate(&mut self, n_tokens: u32) -> Generate<'_> {
        let stream = sys::sharpi_text_stream::zeroed();
        Generate { session: self, left: n_tokens, stream, ended: false }
    }

    /// Goes back to the first n tokens. What is reachable depends on the model and its plan.
    pub fn truncate(&mut self, n_tokens: u32) -> Result<(), Error> {
        let (lib, session) = (self.lib(), self.as_ptr());
        call(lib, |error| unsafe { (lib.sharpi_session_truncate)(session, n_tokens, error) })
    }

    /// A second session with the same tokens, which shares the rows that both have.
    pub fn fork(&self) -> Result<Session, Error> {
        let lib = self.lib();
        let handle = create(lib, lib.sharpi_session_destroy, |out, error| unsafe {
            (lib.sharpi_session_fork)(self.as_ptr(), out, error)
        })?;
        Ok(Session { shared: Arc::new(Shared { handle, model: self.shared.model.clone() }) })
    }

    /// Tokens that were read.
    pub fn n_tokens(&self) -> Result<u32, Error> {
        let mut info = sys::sharpi_session_summary::zeroed();
        info.struct_size = size_of::<sys::sharpi_session_summary>() as u32;
        let lib = self.lib();
        call(lib, |error| unsafe { (lib.sharpi_session_info)(self.as_ptr(), &mut info, error) })?;
        Ok(info.n_tokens)
    }
}

/// The pieces of a generation; see [`Session::generate`]. After an error there are no more.
pub struct Generate<'a> {
    session: &'a mut Session,
    left: u32,
    stream: sys::sharpi_text_stream,
    ended: bool,
}

impl Generate<'_> {
    fn text_of(&mut self, token: i32) -> Result<Vec<u8>, Error> {
        let (lib, model) = (self.session.lib(), self.session.model().as_ptr());
        let stream = &mut self.stream;
        filled(lib, 64, |out: *mut u8, cap, len, error| unsafe {
            let (out, n) = (out.cast(), 1);
            (lib.sharpi_detokenize_stream)(model, stream, &token, n, 0, out, cap, len, error)
        })
    }
    fn rest(&mut self) -> Result<Vec<u8>, Error> {
        let (lib, stream) = (self.session.lib(), &mut self.stream);
        filled(lib, 16, |out: *mut u8, cap, len, error| unsafe {
            (lib.sharpi_text_stream_finish)(stream, out.cast(), cap, len, error)
        })
    }
    fn piece(&mut self) -> Result<Vec<u8>, Error> {
        if self.left > 0 {
            let token = self.session.step()?;
            if !self.session.model().is_end(token) {
                self.left -= 1;
                return self.text_of(token);
            }
        }
        self.ended = true;
        self.rest()
    }
}

impl Iterator for Generate<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.piece() {
                Ok(bytes) if bytes.is_empty() => continue,
                // The stream gives whole characters of UTF-8 only.
                Ok(bytes) => return Some(Ok(String::from_utf8_lossy(&bytes).into_owned())),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
