#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small models with random weights for what the real files do not cover (kinds of rope scaling,
biases, windows), and their goldens by HF transformers.

    make_tiny.py OUT_FOLDER [NAME...]      (needs: torch, transformers, gguf)

Writes NAME-q8_0.gguf and NAME.golden.json, the names of tests/fixtures. Models of MADE are written by the
tests' own program (the target write_made_model; SHARPI_WRITER names it), of which only the goldens are kept;
the seed goes into tests/support/made_models.cc.
"""
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import quantize

import gemma4
import gpt_oss
import reference

VOCAB = 288
MODELS = {
    # Llama 3: divisors of the angles, a head of its own.
    "rand-llama3": dict(arch="llama", heads=4, kv=2, base=500000.0, freqs=True, tied=False),
    "rand-llama-linear": dict(arch="llama", heads=2, kv=1, bias=True, scaling=("linear", 4.0)),
    "rand-llama-yarn": dict(arch="llama", heads=2, kv=2, scaling=("yarn", 4.0, 64), kind=Type.Q4_1,
                            tied=False),
    "rand-mistral": dict(arch="llama", heads=3, kv=1, window=24, tied=False),
    # Ministral 3: queries that grow with their position.
    "rand-mistral3": dict(arch="mistral3", heads=3, kv=1, scaling=("yarn", 4.0, 64), temperature=0.1, tied=False),
    "rand-qwen2": dict(arch="qwen2", heads=4, kv=1, bias=True, base=1000000.0, kind=Type.Q5_0),
    "rand-gemma3": dict(arch="gemma3", heads=2, kv=1, window=16, layers=6, ff=64, base=1000000.0, tied=False,
                        scaling=("linear", 8.0), eps=1e-6),
    # The last of four layers turns nothing by its position.
    "rand-smollm3": dict(arch="smollm3", heads=4, kv=1, layers=5, base=2000000.0),
    # As 26B-A4B: a mixture beside every dense FFN, K = V and fewer KV heads on global layers.
    "rand-gemma4-moe": dict(arch="gemma4", heads=4, kv=2, head=64, global_kv=1, global_head=128, k_is_v=True,
                            kinds=[gemma4.WINDOWED, gemma4.WINDOWED, gemma4.GLOBAL], window=24, shared=0,
                            ff=96, double=False, ple=0, experts=8, used=2, expert_ff=32),
    # As E2B: one KV head, per-layer embeddings, FFNs of twice the width where KV is shared.
    "rand-gemma4-e2b": dict(arch="gemma4", heads=2, kv=1, head=64, global_kv=1, global_head=128, k_is_v=False,
                            kinds=[gemma4.WINDOWED, gemma4.GLOBAL] * 2, window=24, shared=2, ff=64,
                            double=True, ple=32, experts=0),
    # Sinks, windows on every other layer, YaRN, biases everywhere, experts in MXFP4.
    "rand-gpt-oss": dict(arch="gpt-oss", heads=4, kv=2, layers=3, window=24, base=150000.0, scaling=("yarn", 4.0, 64),
                         ff=64, experts=8, used=3, experts_kind=Type.MXFP4),
}


#: Written by the tests' program: lengths of the golden's cases, and of a short one in a file of its own.
MADE = {"rand-phi3": dict(lengths=(40, 100), short=20), "rand-qwen3next": dict(lengths=(40, 100)),
        "rand-granite-moe": dict(lengths=(40, 100)), "rand-granite": dict(lengths=(24, 60)),
        "rand-nemotron-moe": dict(lengths=(70, 40)), "rand-nemotron": dict(lengths=(24, 60)),
        "rand-deepseek2": dict(lengths=(40, 90)), "rand-glm-flash": dict(lengths=(24, 60))}


def byte_tokens(spelled):
    if not spelled:
        return [f"<0x{b:02X}>" for b in range(256)]
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(0x100 + rest.index(b)) for b in range(256)]


def add_tokenizer(w, arch):
    scored = arch.startswith("gemma")
    tokens = byte_tokens(not scored) + [f"<{i}>" for i in range(256, VOCAB)]
    kinds = [6 if scored else 1] * 256 + [3] * (VOCAB - 256)
    w.add_tokenizer_model("llama" if scored else "gpt2")
    w.add_tokenizer_pre({"llama": "llama-bpe", "smollm3": "llama-bpe", "qwen2": "qwen2", "gpt-oss": "gpt-4o",
                             "mistral3": "tekken"}.get(arch, "default"))
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    if scored:
        w.add_token_scores([-1000.0] * VOCAB)
        w.add_add_space_prefix(False)
    else:
        w.add_token_merges(["a b"])
    w.add_bos_token_id(VOCAB - 2)
    w.add_eos_token_id(VOCAB - 1)
    w.add_add_bos_token(arch != "qwen2")


class Weights:
    def __init__(self, writer, kind, seed, slab_kind=None):
        self.writer, self.kind, self.slab_kind = writer, kind, slab_kind
        self.random = np.random.default_rng(seed)

    def matrix(self, name, rows, columns, gain=1.0, kind=None):
        w = self.random.normal(0, gain / np.sqrt(columns), (rows, columns)).astype(np.float32)
        kind = self.kind if kind is None else kind
        self.writer.add_tensor(name, quantize(w, kind), raw_dtype=kind)

    def slabs(self, name, n, rows, columns, gain=1.0):
        w = self.random.normal(0, gain / np.sqrt(columns), (n, rows, columns)).astype(np.float32)
        kind = self.slab_kind or self.kind
        self.writer.add_tensor(name, quantize(w, kind), raw_dtype=kind)

    def rows(self, name, n, width, spread):
        self.writer.add_tensor(name, self.random.normal(0, spread, (n, width)).astype(np.float32))

    def vector(self, name, n, centre=0.0, spread=0.1):
        self.writer.add_tensor(name, (centre + spread * self.random.normal(size=n)).astype(
            np.float32))


def add_keys(w, m, embd, ff, layers):
    arch = m["arch"]
    w.add_context_length(32768)
    w.add_embedding_length(embd)
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(m["heads"])
    w.add_head_count_kv(m["kv"])
    w.add_key_length(64)
    w.add_value_length(64)
    w.add_rope_dimension_count(64)
    w.add_rope_freq_base(m.get("base", 10000.0))
    w.add_layer_norm_rms_eps(m.get("eps", 1e-5))
    if m.get("window"):
        w.add_sliding_window(m["window"])
    scaling = m.get("scaling")
    if scaling:
        w.add_string(f"{arch}.rope.scaling.type", scaling[0])
        w.add_float32(f"{arch}.rope.scaling.factor", scaling[1])
        if scaling[0] == "yarn":
            w.add_uint32(f"{arch}.rope.scaling.original_context_length", scaling[2])
    if m.get("temperature"):
        w.add_float32(f"{arch}.attention.temperature_scale", m["temperature"])
        w.add_float32(f"{arch}.rope.scaling.yarn_log_multiplier", 1.0)


def llama3_divisors(base, factor=8.0, low=1.0, high=4.0, original=256):
    """Divisors of the angles as Llama 3.1 has them (meta-llama's `apply_scaling`), for a model
    whose original context is short enough for a test to see the difference."""
    inv = base ** (-np.arange(0, 64, 2) / 64)
    waves = 2 * np.pi / inv
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return (inv / ((1 - smooth) * inv / factor + smooth * inv)).astype(np.float32)


def write_model(path, name, m, seed):
    w = GGUFWriter(path, m["arch"])
    w.add_name(name)
    add_tokenizer(w, m["arch"])
    t = Weights(w, m.get("kind", Type.Q8_0), seed, m.get("experts_kind"))
    if m["arch"] == "gemma4":
        gemma4.add_keys(w, m, 64)
        gemma4.add_tensors(w, t, m, 64, VOCAB)
    elif m["arch"] == gpt_oss.ARCH:
        gpt_oss.add_keys(w, m, 64)
        gpt_oss.add_tensors(t, m, 64, VOCAB)
    else:
        add_plain(w, t, m)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def add_plain(w, t, m):
    """Keys and tensors of a decoder without parts of its own kind."""
    arch, embd, ff, layers = m["arch"], 64, m.get("ff", 96), m.get("layers", 2)
    add_keys(w, m, embd, ff, layers)
    gemma = arch == "gemma3"
    tied = m.get("tied", True)
    t.matrix("token_embd.weight", VOCAB, embd, 3.0, Type.Q8_0)
    t.vector("output_norm.weight", embd, 1.0)
    if not tied:
        t.matrix("output.weight", VOCAB, embd, 3.0, Type.Q8_0)
    if m.get("freqs"):
        w.add_tensor("rope_freqs.weight", llama3_divisors(m["base"]))
    q, kv = 64 * m["heads"], 64 * m["kv"]
    for i in range(layers):
        p = f"blk.{i}."
        t.vector(p + "attn_norm.weight", embd, 1.0)
        t.vector(p + "ffn_norm.weight", embd, 1.0)
        if gemma:
            t.vector(p + "post_attention_norm.weight", embd, 3.0)
            t.vector(p + "post_ffw_norm.weight", embd, 3.0)
            t.vector(p + "attn_q_norm.weight", 64, 1.5)
            t.vector(p + "attn_k_norm.weight", 64, 1.5)
        t.matrix(p + "attn_q.weight", q, embd, 1.5)
        t.matrix(p + "attn_k.weight", kv, embd, 1.5)
        t.matrix(p + "attn_v.weight", kv, embd)
        t.matrix(p + "attn_output.weight", embd, q, 3.0)
        if m.get("bias"):
            for part, n in (("q", q), ("k", kv), ("v", kv)):
                t.vector(f"{p}attn_{part}.bias", n, 0.0, 0.5)
        t.matrix(p + "ffn_gate.weight", ff, embd)
        t.matrix(p + "ffn_up.weight", ff, embd)
        t.matrix(p + "ffn_down.weight", embd, ff, 3.0)


def make(folder, name, m):
    path = folder / f"{name}-q8_0.gguf"
    for seed in range(1, 50):
        if name in MADE:
            subprocess.run([os.environ["SHARPI_WRITER"], name, str(seed), path], check=True)
        else:
            write_model(path, name, m, seed)
        model = reference.load(path)
        random = np.random.default_rng(1000 + seed)
        lengths = m.get("lengths", (40, 100, 200))
        cases = [reference.case(model, random.integers(0, VOCAB - 2, n).tolist(), 24)
                 for n in lengths]
        # No near tie on the way, and something to say.
        if all(len(c["greedy"]) == 24 and len(set(c["greedy"])) >= 8 for c in cases):
            break
    else:
        raise SystemExit(f"{name}: every seed has a near tie or repeats itself")
    arch = reference.File(path).arch
    reference.write(folder / f"{name}.golden.json", {"arch": arch, "model": path.name, "cases": cases})
    if m.get("short"):
        case = reference.case(model, random.integers(0, VOCAB - 2, m["short"]).tolist(), 12)
        reference.write(folder / f"{name}-short.golden.json", {"arch": arch, "model": path.name, "cases": [case]})
    top = np.array(cases[-1]["top5_logits"])
    print(name, path.stat().st_size, "seed", seed, "logits", top[:3, :2].round(2).tolist(),
          "clear", float((top[:, 0] - top[:, 1] > 0.25).mean()),
          "kinds of greedy tokens", [len(set(c["greedy"])) for c in cases])


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    models = MODELS | MADE
    for name in sys.argv[2:] or models:
        make(folder, name, models[name])


if __name__ == "__main__":
    main()
