// SPDX-License-Identifier: MIT
//! libsharpi for Rust: GGUF language models on a GPU and a CPU together, with the KV cache as
//! storage that is priced before it is taken.
//!
//! ```no_run
//! # fn main() -> Result<(), sharpi::Error> {
//! let model = sharpi::Model::load("model.gguf", &sharpi::Options::default())?;
//! let mut session = model.session()?;
//! let prompt = model.chat_tokens(&[("user", "What is a KV cache?")])?;
//! session.prefill(&prompt)?;
//! for piece in session.generate(256) {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Model`] is shared by threads and by its sessions, which keep it alive. A [`Session`] takes
//! one call at a time, which `&mut self` says; a [`Canceller`] ends a call from another thread.
//! An [`Embedder`] gives vectors of texts, and scores of documents for a query.
//! Every call that can fail gives an [`Error`] with the library's sentence, and has then changed
//! nothing, or what it says.
//!
//! This layer covers what most programs need. Everything else of `sharpi.h` is in [`sys`], and
//! [`Model::as_ptr`] and [`Session::as_ptr`] lead there.
#![warn(missing_docs, unsafe_op_in_unsafe_fn)]

mod call;
mod embedder;
mod model;
mod session;

pub use call::{build_info, library, Error};
pub use embedder::{Embedder, Pooling};
pub use model::{Kv, Model, Options};
pub use session::{Canceller, Generate, Sampler, Session};
/// Every declaration of `sharpi.h`.
pub use sharpi_sys as sys;
