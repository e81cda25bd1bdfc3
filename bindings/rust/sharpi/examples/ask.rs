// SPDX-License-Identifier: MIT
//! Asks a model what a file says, greedily:
//!     cargo run --release --example ask MODEL.gguf FILE [TOKENS]
use sharpi::{Model, Options, Sampler};
use std::io::Write;

fn run(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let question = std::fs::read_to_string(&args[2])?;
    let n_tokens = args.get(3).map_or(Ok(32), |n| n.parse())?;
    let model = Model::load(&args[1], &Options { n_ctx: Some(4096), ..Options::default() })?;
    let mut session = model.session()?;
    session.set_sampler(&Sampler::greedy())?;
    session.prefill(&model.chat_tokens(&[("user", question.trim_end_matches('\n'))])?)?;
    for piece in session.generate(n_tokens) {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.len() < 3 {
        eprintln!("usage: ask MODEL.gguf FILE [TOKENS]");
        std::process::exit(2);
    }
    if let Err(error) = run(&args) {
        eprintln!("ask: {}", error);
        std::process::exit(1);
    }
}
