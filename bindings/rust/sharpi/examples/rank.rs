// SPDX-License-Identifier: MIT
//! How near documents are to a query, a line each: the score of a reranker, else the cosine of two
//! vectors.
//!     cargo run --release --example rank MODEL.gguf QUERY DOCUMENT...
use sharpi::{Error, Model, Options, Pooling};

fn run(path: &str, query: &str, documents: &[&str]) -> Result<(), Error> {
    let model = Model::load(path, &Options::default())?;
    let mut embedder = model.embedder(None)?;
    let scores = if embedder.can_rank()? {
        embedder.rerank(query, documents, None)?
    } else {
        let texts: Vec<&str> = std::iter::once(query).chain(documents.iter().copied()).collect();
        let vectors = embedder.embed(&texts, Pooling::Auto, None)?;
        let near = |v: &Vec<f32>| v.iter().zip(&vectors[0]).map(|(a, b)| a * b).sum();
        vectors[1..].iter().map(near).collect()
    };
    for (score, document) in scores.iter().zip(documents) {
        println!("{:.5} {}", score, document);
    }
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.len() < 4 {
        eprintln!("usage: rank MODEL.gguf QUERY DOCUMENT...");
        std::process::exit(2);
    }
    let documents: Vec<&str> = args[3..].iter().map(|d| d.as_str()).collect();
    if let Err(error) = run(&args[1], &args[2], &documents) {
        eprintln!("rank: {}", error);
        std::process::exit(1);
    }
}
