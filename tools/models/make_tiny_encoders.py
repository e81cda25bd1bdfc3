#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small encoders with random weights and their goldens by HF transformers: token ids, pooled vectors,
rows and scores, all in f32 on the CPU.

    make_tiny_encoders.py OUT_FOLDER [NAME...]      (needs: torch, transformers, tokenizers, gguf)

A model is made as a folder of safetensors first, so that the file comes from make_encoder_gguf.py.
Writes NAME.gguf and NAME.golden.json, the names of tests/fixtures.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (BertConfig, BertForSequenceClassification, BertModel, Gemma3TextConfig,
                          Gemma3TextModel, NomicBertConfig, NomicBertModel)

HERE = Path(__file__).resolve().parent
ALICE = HERE.parents[1] / "tests" / "models" / "alice.txt"
TEXTS = [
    "Alice was beginning to get very tired of sitting by her sister on the bank.",
    "the Cheshire Cat",
    "Curiouser and curiouser! -- cried Alice (she was so much surprised, that for the moment she quite "
    "forgot how to speak good English); now I'm opening out like the largest telescope that ever was!",
    "\u00c9t\u00e9, na\u00efve caf\u00e9\u3002\u4f60\u597d \u4e16\u754c \u2014 \u201cquoted\u201d\u2026 \U0001f600 x\u00a0y\u3000z\u200b.",
]
QUERY = "Who sat on the bank?"


def wordpiece():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True,
                                              strip_accents=None, lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train([str(ALICE)], trainers.WordPieceTrainer(vocab_size=320, special_tokens=special,
                                                   limit_alphabet=60, show_progress=False))
    ids = {s: t.token_to_id(s) for s in special}
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])])
    return t


def gemma_tokenizer():
    """Bytes alone, with Gemma's special tokens: its vocabulary is no part of what is tested."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "\u2581"] + [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [], byte_fallback=True, fuse_unk=True,
                             unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>"])
    t.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)])
    return t


def bert_config(n_vocab, **more):
    return BertConfig(vocab_size=n_vocab, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=64, max_position_embeddings=128, initializer_range=0.2, **more)


def make_bert(tokenizer):
    return BertModel(bert_config(tokenizer.get_vocab_size())), 1


def make_rank(tokenizer):
    return BertForSequenceClassification(bert_config(tokenizer.get_vocab_size(), num_labels=1)), None


def make_nomic(tokenizer):
    return NomicBertModel(NomicBertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128, initializer_range=0.2)), 2


def make_gemma(tokenizer):
    return Gemma3TextModel(Gemma3TextConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, intermediate_size=64, max_position_embeddings=256,
        sliding_window=32, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=32, use_bidirectional_attention=True, initializer_range=0.2,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})), 1


MODELS = {"rand-bert": (wordpiece, make_bert), "rand-bert-rank": (wordpiece, make_rank),
          "rand-nomic-bert": (wordpiece, make_nomic), "rand-gemma-embedding": (gemma_tokenizer, make_gemma)}
POOLING = {1: "pooling_mode_mean_tokens", 2: "pooling_mode_cls_token"}


def spread(model):
    """Norms and biases that are not 1 and 0, and matrices as the file has them."""
    for p in model.parameters():
        if p.ndim == 1:
            p.add_(torch.randn_like(p) * 0.2)
        else:
            p.copy_(p.half().float())


def write_folder(folder, tokenizer, model, pooling, dense):
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    if config["model_type"] == "gemma3_text":  # as the published file has it
        config["sliding_window"] = 32
        rope = config["rope_parameters"]
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    modules = []
    if pooling is not None:
        modules.append({"type": "sentence_transformers.models.Pooling", "path": "pooling"})
        (folder / "pooling").mkdir()
        (folder / "pooling" / "config.json").write_text(json.dumps({POOLING[pooling]: True}))
    for n, w in enumerate(dense):
        modules.append({"type": "sentence_transformers.models.Dense", "path": f"dense{n}"})
        (folder / f"dense{n}").mkdir()
        save_file({"linear.weight": w}, folder / f"dense{n}" / "model.safetensors")
        (folder / f"dense{n}" / "config.json").write_text(json.dumps(
            {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}))
    (folder / "modules.json").write_text(json.dumps(modules))
    weights = {k: v.contiguous() for k, v in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def cases_of(tokenizer, model, pooling, dense):
    cases = []
    for text in TEXTS:
        tokens = tokenizer.encode(text).ids
        rows = model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        vector = rows[0] if pooling == 2 else rows.mean(0)
        for w in dense:
            vector = w @ vector
        cases.append({"text": text, "tokens": tokens, "vector": round_all(vector),
                      "last_row": round_all(rows[-1])})
    return cases


def pairs_of(tokenizer, model):
    pairs = []
    for text in TEXTS:
        e = tokenizer.encode(QUERY, text)
        logit = model(input_ids=torch.tensor([e.ids]), token_type_ids=torch.tensor([e.type_ids])).logits
        pairs.append({"query": QUERY, "text": text, "tokens": e.ids, "n_first": e.type_ids.count(0),
                      "score": float(logit[0, 0])})
    return pairs


def round_all(v):
    return [round(float(x), 6) for x in v]


def make(out, name):
    make_tokenizer, make_model = MODELS[name]
    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    model, pooling = make_model(tokenizer)
    model.eval()
    spread(model)
    dense = [(torch.randn(64, 32) / 6).half().float(), (torch.randn(24, 64) / 8).half().float()] if name == "rand-gemma-embedding" else []
    golden = {"model": f"{name}.gguf"}
    if pooling is None:
        golden["pairs"] = pairs_of(tokenizer, model)
    else:
        golden["cases"] = cases_of(tokenizer, model, pooling, dense)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), tokenizer, model, pooling, dense)
        subprocess.run([sys.executable, HERE / "make_encoder_gguf.py", folder, out / f"{name}.gguf",
                        "--type", "f16"], check=True)
    (out / f"{name}.golden.json").write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False) + "\n")
    print(name, (out / f"{name}.gguf").stat().st_size, (out / f"{name}.golden.json").stat().st_size)


def main():
    torch.set_num_threads(1)
    with torch.no_grad():
        for name in sys.argv[2:] or MODELS:
            make(Path(sys.argv[1]), name)


if __name__ == "__main__":
    main()
