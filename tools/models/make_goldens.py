#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Goldens of a real model file: logits at every position of some texts, a greedy continuation of
each, and the perplexity of tests/models/alice.txt, by HF transformers in f32 on the CPU.

    make_goldens.py MODEL.gguf OUT.golden.json    (needs: torch, transformers, tokenizers, gguf)

Perplexity: the first 20 000 tokens in windows of 1024 (a file that begins texts with BOS begins
each window with it), natural logarithm, mean over the predicted tokens of the text, and the sums of
the windows. "hash" is FNV-1a of those tokens as 32-bit numbers, so that another tokenizer can be
seen to have made the same. The text is the beginning of Lewis Carroll's "Alice's Adventures in
Wonderland" (1865, public domain), as in the Canterbury corpus.
"""
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

import reference

TEXT = Path(__file__).resolve().parents[2] / "tests" / "models" / "alice.txt"
N_TOKENS, WINDOW = 20000, 1024
CODE = """def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a

print([fibonacci(i) for i in range(10)])
"""
LETTER = """Le café est fermé. Die Größe beträgt 1234,5 m². Привет, мир! \u4f60\u597d\uff0c\u4e16\u754c\u3002 😀 naïve — “quoted”."""


def byte_level(file):
    """`smollm`: digits alone, then GPT-2's pattern, merges by rank."""
    tokens = file.key("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in file.key("tokenizer.ggml.merges")]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    assert file.key("tokenizer.ggml.pre") == "smollm"
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return t


def sentence_piece(file):
    """Scores as ranks of merges: every way to make a token of two others, best token first."""
    tokens = file.key("tokenizer.ggml.tokens")
    scores = file.key("tokenizer.ggml.scores")
    kinds = file.key("tokenizer.ggml.token_type")
    vocab = {s: i for i, s in enumerate(tokens)}
    merges = []
    for s, i in vocab.items():
        if kinds[i] != 1:
            continue
        for cut in range(1, len(s)):
            left, right = s[:cut], s[cut:]
            if kinds[vocab.get(left, 0)] == 1 and kinds[vocab.get(right, 0)] == 1:
                merges.append((-scores[i], vocab[left], vocab[right], left, right))
    merges = [(m[3], m[4]) for m in sorted(merges)]
    t = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.add_tokens([AddedToken(s, normalized=False, special=False)
                  for i, s in enumerate(tokens) if kinds[i] == 4])
    return t


def tokenizer_of(file):
    return byte_level(file) if file.key("tokenizer.ggml.model") == "gpt2" else sentence_piece(file)


def fnv(tokens):
    h = 0xCBF29CE484222325
    for t in tokens:
        for b in t.to_bytes(4, "little"):
            h = (h ^ b) * 0x100000001B3 % 2**64
    return h


@torch.no_grad()
def perplexity(model, tokens, bos):
    sums = []
    for at in range(0, len(tokens), WINDOW):
        window = bos + tokens[at:at + WINDOW]
        logits = reference.logits_of(model, window)
        first = max(len(bos), 1)
        sums.append(float(torch.nn.functional.cross_entropy(
            logits[first - 1:-1], torch.tensor(window[first:]), reduction="sum")))
    n = sum(1 for i in range(len(tokens)) if bos or i % WINDOW != 0)
    return {"nll": sum(sums) / n, "window_sums": [round(s, 4) for s in sums]}


def main():
    path, out = sys.argv[1:3]
    torch.set_num_threads(2)
    file = reference.File(path)
    model = reference.load(path)
    tokenizer = tokenizer_of(file)
    bos = ([file.key("tokenizer.ggml.bos_token_id")] if file.key("tokenizer.ggml.add_bos_token")
           else [])
    encode = lambda s: tokenizer.encode(s, add_special_tokens=False).ids
    text = encode(TEXT.read_text())
    assert len(text) >= N_TOKENS, len(text)
    chat = encode("The following is a conversation.\n\nAnna: What is your name?\nBen: My name is Ben"
                  ". I live in Rome.\nAnna: Where do you live?\nBen:")
    cases = [bos + c for c in (text[:200 - len(bos)], encode(CODE), encode(LETTER), chat)]
    golden = {
        "arch": file.arch, "model": Path(path).name,
        "perplexity": {"tokens": N_TOKENS, "window": WINDOW, "hash": fnv(text[:N_TOKENS]),
                       **perplexity(model, text[:N_TOKENS], bos)},
        "cases": [reference.case(model, c, 48) for c in cases],
    }
    reference.write(out, golden)
    print(out, golden["perplexity"], [len(c["greedy"]) for c in golden["cases"]])


if __name__ == "__main__":
    main()
