#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An adapter (LoRA) of random halves for a fixture of tests/fixtures, and its golden: logits of HF
transformers in f32, whose linear layers compute W x + scale alpha / rank B (A x).

    make_adapter.py FOLDER rand-llama3    (needs: torch, transformers, gguf)

Writes FOLDER/NAME-lora.gguf as llama.cpp's convert_lora_to_gguf.py would (f16; of `llama` files the
rows of B of Q and K are permuted as those of the weights are) and FOLDER/NAME-lora.golden.json."""
import sys
from pathlib import Path

import gguf
import numpy as np
import torch

import reference

RANK, ALPHA, SCALE, SEED = 3, 6.0, 0.5, 7
N_TOKENS, N_GREEDY = 24, 8


def half(random, rows, columns, deviation):
    """Rounded to f16, as the file has it."""
    return random.normal(0.0, deviation, (rows, columns)).astype(np.float16)


def add(layer, a, b):
    """From now on `layer` also computes what the adapter adds."""
    a, b = (torch.from_numpy(m.astype(np.float32)) for m in (a, b))

    def adapted(_, inputs, output):
        return output + SCALE * ALPHA / RANK * (inputs[0] @ a.T @ b.T)
    layer.register_forward_hook(adapted)


def main():
    torch.set_num_threads(1)
    folder, name = Path(sys.argv[1]), sys.argv[2]
    file = reference.File(folder / f"{name}-q8_0.gguf")
    assert file.arch == "llama"
    model = reference.load(folder / f"{name}-q8_0.gguf")
    heads = {"attn_q": file.own("attention.head_count"), "attn_k": file.own("attention.head_count_kv")}
    random = np.random.default_rng(SEED)
    out = folder / f"{name}-lora.gguf"
    writer = gguf.GGUFWriter(out, file.arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for block in range(model.config.num_hidden_layers):
        for rest, place in reference.LAYER.items():
            kind = rest.split(".")[0]
            if not rest.endswith(".weight") or kind.endswith("norm"):
                continue
            layer = model.get_submodule(f"model.layers.{block}.{place.removesuffix('.weight')}")
            n_out, n_in = layer.weight.shape
            a, b = half(random, RANK, n_in, n_in**-0.5), half(random, n_out, RANK, 0.25)
            add(layer, a, b)
            if kind in heads:
                b = reference.neighbours(torch.from_numpy(b), heads[kind]).numpy()
            writer.add_tensor(f"blk.{block}.{rest}.lora_a", a)
            writer.add_tensor(f"blk.{block}.{rest}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokens = random.integers(0, model.config.vocab_size - 2, N_TOKENS).tolist()
    case = reference.case(model, tokens, N_GREEDY)
    reference.write(folder / f"{name}-lora.golden.json",
                    {"arch": file.arch, "model": f"{name}-q8_0.gguf", "cases": [case]})
    plain = reference.case(reference.load(folder / f"{name}-q8_0.gguf"), tokens, N_GREEDY)
    print(out.name, out.stat().st_size, "greedy", case["greedy"], "without", plain["greedy"])


if __name__ == "__main__":
    main()
