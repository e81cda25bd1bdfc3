// SPDX-License-Identifier: MIT
//! What the safe layer adds to the calls. SHARPI_TEST_MODEL names a model; without it these say so.
use sharpi::{sys, Model, Options, Sampler};
use std::panic::{catch_unwind, AssertUnwindSafe};

fn model() -> Option<Model> {
    let path = match std::env::var("SHARPI_TEST_MODEL") {
        Ok(path) => path,
        Err(_) => {
            println!("skipped: SHARPI_TEST_MODEL names no model");
            return None;
        }
    };
    let (n_ctx, n_threads) = (Some(512), Some(2));
    let options = Options { n_ctx, n_threads, n_sessions: 2, ..Options::default() };
    Some(Model::load(path, &options).expect("the model loads"))
}

#[test]
fn failures_have_status_and_sentence() {
    let error = Model::load("no-such-file.gguf", &Options::default()).err().expect("no file");
    assert_eq!(error.status(), sys::SHARPI_E_NOT_FOUND);
    assert!(error.to_string().starts_with("SHARPI_E_NOT_FOUND: "), "{}", error);
    assert!(error.to_string().contains("no-such-file.gguf"), "{}", error);
    let error = Model::load("a\0b", &Options::default()).err().expect("no path");
    assert_eq!(error.status(), sys::SHARPI_E_INVALID_ARGUMENT);
}

#[test]
fn text_goes_to_tokens_and_back() {
    let model = match model() {
        Some(model) => model,
        None => return,
    };
    let text = "The code of Jürgen is 1984 \u{1f600}";
    let tokens = model.tokenize(text).unwrap();
    assert!(model.detokenize(&tokens).unwrap().ends_with(text));
}

#[test]
fn forks_go_on_alike() {
    let model = match model() {
        Some(model) => model,
        None => return,
    };
    let mut session = model.session().unwrap();
    session.set_sampler(&Sampler::greedy()).unwrap();
    session.prefill(&model.tokenize("def f(x):").unwrap()).unwrap();
    let mut fork = session.fork().unwrap();
    let n = session.n_tokens().unwrap();
    drop(model); // sessions keep it
    let text = |s: &mut sharpi::Session| s.generate(12).map(|p| p.unwrap()).collect::<String>();
    let first = text(&mut session);
    assert!(!first.is_empty());
    assert_eq!(first, text(&mut fork));
    assert!(session.n_tokens().unwrap() > n);
}

#[test]
fn a_canceller_ends_a_call_of_another_thread() {
    let model = match model() {
        Some(model) => model,
        None => return,
    };
    let mut session = model.session().unwrap();
    let tokens = model.tokenize("def f(x):").unwrap();
    let canceller = session.canceller();
    std::thread::spawn(move || canceller.cancel()).join().unwrap();
    let error = session.prefill(&tokens).unwrap_err();
    assert_eq!(error.status(), sys::SHARPI_E_CANCELLED);
    session.prefill(&tokens).unwrap();
}

#[test]
fn a_progress_closure_cancels_and_its_panic_goes_on() {
    let model = match model() {
        Some(model) => model,
        None => return,
    };
    let mut session = model.session().unwrap();
    let tokens = model.tokenize("def f(x):").unwrap();
    let error = session.prefill_with(&tokens, |_, _| false).unwrap_err();
    assert_eq!(error.status(), sys::SHARPI_E_CANCELLED);
    let panicking = || session.prefill_with(&tokens, |_, _| panic!("ours"));
    assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
    let (mut last, mut whole) = (0, 0);
    session
        .prefill_with(&tokens, |done, total| {
            last = done;
            whole = total;
            true
        })
        .unwrap();
    assert!(whole > 0 && last == whole);
}
