// SPDX-License-Identifier: MIT
//! Embedders: vectors of texts, and scores of documents for a query.
use crate::call::{call, create, filled, invalid, params, Error};
use crate::model::Model;
use crate::sys;
use std::ffi::CString;
use std::mem::size_of;
use std::ptr::null;

/// What one vector is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// What the file says; fails with `SHARPI_E_UNSUPPORTED` where it says nothing.
    Auto,
    /// The mean of all rows.
    Mean,
    /// The first row.
    Cls,
    /// The last row.
    Last,
}

impl Pooling {
    fn code(self) -> u32 {
        match self {
            Pooling::Auto => sys::SHARPI_POOLING_AUTO,
            Pooling::Mean => sys::SHARPI_POOLING_MEAN,
            Pooling::Cls => sys::SHARPI_POOLING_CLS,
            Pooling::Last => sys::SHARPI_POOLING_LAST,
        }
    }
}

/// Reads texts without keeping them: [`Model::embedder`] makes one.
pub struct Embedder {
    handle: sys::Handle<sys::sharpi_embedder>,
    model: Model, // what it is an embedder of lives as long
}

impl Embedder {
    pub(crate) fn create(model: &Model, n_ctx: Option<u32>) -> Result<Embedder, Error> {
        let lib = model.loaded.lib;
        let mut wanted: sys::sharpi_embedder_params = params(lib.sharpi_embedder_params_init);
        wanted.n_ctx = n_ctx.unwrap_or(wanted.n_ctx);
        let handle = create(lib, lib.sharpi_embedder_destroy, |out, error| unsafe {
            (lib.sharpi_embedder_create)(model.as_ptr(), &wanted, out, error)
        })?;
        Ok(Embedder { handle, model: model.clone() })
    }

    fn info(&self) -> Result<sys::sharpi_embedder_summary, Error> {
        let lib = self.model.loaded.lib;
        let mut out = sys::sharpi_embedder_summary::zeroed();
        out.struct_size = size_of::<sys::sharpi_embedder_summary>() as u32;
        let embedder = self.handle.pointer;
        call(lib, |error| unsafe { (lib.sharpi_embedder_info)(embedder, &mut out, error) })?;
        Ok(out)
    }

    /// Elements of a vector.
    pub fn n_embd(&self) -> Result<usize, Error> {
        Ok(self.info()?.n_embd as usize)
    }

    /// Whether [`Embedder::rerank`] has a score for texts.
    pub fn can_rank(&self) -> Result<bool, Error> {
        Ok(self.info()?.can_rank != 0)
    }

    /// A vector of each text, of length 1. `n_dims`: its first so many elements; `None`: all.
    pub fn embed(
        &mut self,
        texts: &[&str],
        pooling: Pooling,
        n_dims: Option<u32>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let tokens: Result<Vec<_>, Error> = texts.iter().map(|t| self.model.tokenize(t)).collect();
        let tokens = tokens?;
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let (rows, width) = (texts_of(tokens.iter().map(|t| (&t[..], 0))), self.n_embd()?);
        let lib = self.model.loaded.lib;
        let mut wanted: sys::sharpi_embed_params = params(lib.sharpi_embed_params_init);
        wanted.pooling = pooling.code();
        wanted.n_dims = n_dims.unwrap_or(0);
        let (embedder, n) = (self.handle.pointer, rows.len() as u32);
        let floats = filled(lib, rows.len() * width, |out, cap, len, error| unsafe {
            let (first, size) = (rows.as_ptr(), size_of::<sys::sharpi_text_tokens>() as u32);
            let mut count = 0;
            let status = (lib.sharpi_embed)(
                embedder, first, size, n, &wanted, out, cap as u64, &mut count, error,
            );
            *len = count as usize;
            status
        })?;
        Ok(floats.chunks(floats.len() / rows.len()).map(|v| v.to_vec()).collect())
    }

    /// How well each document answers the query, 0 to 1. `instruction`: the task, for models that
    /// have a place for it.
    pub fn rerank(
        &mut self,
        query: &str,
        documents: &[&str],
        instruction: Option<&str>,
    ) -> Result<Vec<f32>, Error> {
        let task = instruction.map(CString::new).transpose();
        let task = task.map_err(|_| invalid("an instruction contains a NUL"))?;
        let pairs: Result<Vec<_>, Error> =
            documents.iter().map(|d| self.pair(query, d, task.as_ref())).collect();
        let pairs = pairs?;
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let rows = texts_of(pairs.iter().map(|(tokens, first)| (&tokens[..], *first)));
        let lib = self.model.loaded.lib;
        let mut scores = vec![0.0; rows.len()];
        let (embedder, n) = (self.handle.pointer, rows.len() as u32);
        call(lib, |error| unsafe {
            let (first, size) = (rows.as_ptr(), size_of::<sys::sharpi_text_tokens>() as u32);
            (lib.sharpi_rerank)(embedder, first, size, n, null(), scores.as_mut_ptr(), error)
        })?;
        Ok(scores)
    }

    /// A query and a document as one text, and how many of its tokens are the query's.
    fn pair(
        &self,
        query: &str,
        document: &str,
        instruction: Option<&CString>,
    ) -> Result<(Vec<i32>, u32), Error> {
        let (lib, model) = (self.model.loaded.lib, self.model.as_ptr());
        let task = instruction.map_or(null(), |text| text.as_ptr());
        let mut n_first = 0;
        let tokens = filled(lib, query.len() + document.len() + 64, |out, cap, n, error| unsafe {
            let mut count = 0;
            let status = (lib.sharpi_rank_tokenize)(
                model,
                query.as_ptr().cast(),
                query.len(),
                document.as_ptr().cast(),
                document.len(),
                task,
                out,
                cap as u32,
                &mut count,
                &mut n_first,
                error,
            );
            *n = count as usize;
            status
        })?;
        Ok((tokens, n_first))
    }

    /// For calls of [`sys`]; it is valid as long as this embedder lives.
    pub fn as_ptr(&self) -> *mut sys::sharpi_embedder {
        self.handle.pointer
    }
}

/// What the library reads of texts; they have to live as long.
fn texts_of<'a>(texts: impl Iterator<Item = (&'a [i32], u32)>) -> Vec<sys::sharpi_text_tokens> {
    texts
        .map(|(tokens, n_first)| {
            let mut row = sys::sharpi_text_tokens::zeroed();
            row.tokens = tokens.as_ptr();
            row.n_tokens = tokens.len() as u32;
            row.n_first = n_first;
            row
        })
        .collect()
}
