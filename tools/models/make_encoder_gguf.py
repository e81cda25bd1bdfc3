#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A GGUF file of a model folder as sentence-transformers publishes them: safetensors, config.json,
tokenizer.json, and beside them what says the pooling.

    make_encoder_gguf.py FOLDER OUT.gguf [--type f32|f16|bf16|q8_0]     (needs: gguf, safetensors, torch)

Architectures: BertModel (and XLMRobertaModel, RobertaModel-like files with a Unigram tokenizer),
NomicBertModel, Gemma3TextModel (EmbeddingGemma, with its Dense modules), Qwen3ForCausalLM and
Qwen3Model. A classifier of one label becomes a score head. What the folder has and the file would
have no place for ends the program by name.
"""
import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import quantize
from safetensors.torch import load_file

TYPES = {"f32": Type.F32, "f16": Type.F16, "bf16": Type.BF16, "q8_0": Type.Q8_0}
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARK = "\u2581"


def read_json(path, default=None):
    return json.loads(path.read_text()) if path.exists() else default


class Folder:
    def __init__(self, path):
        self.path = Path(path)
        self.config = read_json(self.path / "config.json")
        self.tokenizer = read_json(self.path / "tokenizer.json")
        self.tokenizer_config = read_json(self.path / "tokenizer_config.json", {})
        self.weights = {}
        for part in sorted(self.path.glob("*.safetensors")):
            self.weights.update(load_file(part))

    def modules(self, kind):
        return [self.path / m["path"] for m in read_json(self.path / "modules.json", [])
                if m["type"].rsplit(".", 1)[-1] == kind]

    def pooling(self):
        """The key's value, or None where the folder says nothing."""
        for module in self.modules("Pooling"):
            said = read_json(module / "config.json")
            modes = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2,
                     "pooling_mode_lasttoken": 3}
            on = [k for k, v in said.items() if k.startswith("pooling_mode_") and v is True]
            if len(on) != 1 or on[0] not in modes:
                raise SystemExit(f"pooling {on} has no place in the file")
            return modes[on[0]]
        return None

    def n_rows(self, name):
        return next(w.shape[0] for key, w in self.weights.items() if key.endswith(name))

    def take(self, name):
        return self.weights.pop(name).float()


class Out:
    def __init__(self, path, arch, kind):
        self.w, self.arch, self.kind = GGUFWriter(path, arch), arch, kind

    def tensor(self, name, value, plain=False):
        value = value.numpy().astype(np.float32)
        matrix = value.ndim == 2 and not plain
        kind = self.kind if matrix and value.shape[-1] % 32 == 0 else Type.F32
        self.w.add_tensor(name, quantize(value, kind), raw_dtype=kind)

    def finish(self):
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def special_ids(folder):
    return {t["content"]: t["id"] for t in folder.tokenizer["added_tokens"]}


def add_wordpiece(folder, out):
    model = folder.tokenizer["model"]
    normalizer = folder.tokenizer["normalizer"] or {}
    special = special_ids(folder)
    tokens = [""] * (max(model["vocab"].values()) + 1)
    for text, i in model["vocab"].items():
        bare = text.startswith("[") and text.endswith("]")
        tokens[i] = text[2:] if text.startswith("##") else text if bare else MARK + text
    for text, i in special.items():
        tokens[i] = text
    kinds = [CONTROL if t in special else NORMAL for t in tokens]
    w = out.w
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_type_count(folder.config.get("type_vocab_size", 2))
    w.add_uint32("tokenizer.ggml.cls_token_id", special["[CLS]"])
    w.add_bos_token_id(special["[CLS]"])
    w.add_sep_token_id(special["[SEP]"])
    w.add_eos_token_id(special["[SEP]"])
    w.add_unk_token_id(special["[UNK]"])
    w.add_pad_token_id(special["[PAD]"])
    lower = normalizer.get("lowercase", True)
    strip = normalizer.get("strip_accents")
    w.add_bool("tokenizer.ggml.normalizer.lowercase", lower)
    w.add_bool("tokenizer.ggml.normalizer.strip_accents", lower if strip is None else strip)


def charsmap(normalizer):
    import base64
    parts = normalizer.get("normalizers", [normalizer]) if normalizer else []
    for part in parts:
        if part["type"] == "Precompiled":
            return base64.b64decode(part["precompiled_charsmap"])
    return b""


def add_unigram(folder, out):
    model = folder.tokenizer["model"]
    special = special_ids(folder)
    tokens = [t for t, _ in model["vocab"]]
    scores = [float(s) for _, s in model["vocab"]]
    for text, i in sorted(special.items(), key=lambda x: x[1]):
        while len(tokens) <= i:
            tokens.append(f"<unused{len(tokens)}>")
            scores.append(0.0)
        tokens[i] = text
    kinds = [CONTROL if t in special else NORMAL for t in tokens]
    kinds[model["unk_id"]] = UNKNOWN
    w = out.w
    w.add_tokenizer_model("t5")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(kinds)
    w.add_token_type_count(folder.config.get("type_vocab_size", 1))
    w.add_add_space_prefix(True)
    w.add_remove_extra_whitespaces(True)
    data = charsmap(folder.tokenizer["normalizer"])
    if data:
        w.add_precompiled_charsmap(data)
    w.add_bos_token_id(special["<s>"])
    w.add_eos_token_id(special["</s>"])
    w.add_sep_token_id(special["</s>"])
    w.add_unk_token_id(model["unk_id"])
    w.add_pad_token_id(special["<pad>"])


def add_byte_fallback_bpe(folder, out):
    """Gemma's: merges in the order of scores, which SentencePiece's own file has and this one not: a
    token's score is its id's, as in that file."""
    model = folder.tokenizer["model"]
    special = {t["content"]: t for t in folder.tokenizer["added_tokens"]}
    tokens = [""] * (max(max(model["vocab"].values()), max(t["id"] for t in special.values())) + 1)
    for text, i in model["vocab"].items():
        tokens[i] = text
    for text, t in special.items():
        tokens[t["id"]] = text
    ranks = {}
    for rank, pair in enumerate(model["merges"]):
        left, right = pair if isinstance(pair, list) else pair.split(" ", 1)
        ranks.setdefault(left + right, rank)
    # Tokens that were added for images have no row of the table.
    del tokens[folder.n_rows("embed_tokens.weight"):]
    scores = [-float(ranks.get(t, len(ranks))) for t in tokens]
    kinds = []
    for i, t in enumerate(tokens):
        control = t in special and special[t]["special"]
        byte = len(t) == 6 and t.startswith("<0x") and t.endswith(">")
        kinds.append(BYTE if byte else CONTROL if control else USER if t in special else NORMAL)
    w = out.w
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(kinds)
    w.add_add_space_prefix(False)
    w.add_bos_token_id(special["<bos>"]["id"])
    w.add_eos_token_id(special["<eos>"]["id"])
    w.add_unk_token_id(special["<unk>"]["id"])
    w.add_pad_token_id(special["<pad>"]["id"])
    w.add_add_bos_token(True)
    w.add_add_eos_token(True)


def add_common_keys(out, c, pooling):
    w = out.w
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    if pooling is not None:
        w.add_uint32(f"{out.arch}.pooling_type", pooling)


def pair(f, out, source, name):
    out.tensor(f"{name}.weight", f.take(f"{source}.weight"))
    if f"{source}.bias" in f.weights:
        out.tensor(f"{name}.bias", f.take(f"{source}.bias"))


def write_bert(f, path, kind):
    c = f.config
    out = Out(path, "bert", kind)
    roberta = c["model_type"] in ("roberta", "xlm-roberta")
    offset = c["pad_token_id"] + 1 if roberta else 0  # of positions
    c = dict(c, max_position_embeddings=c["max_position_embeddings"] - offset)
    ranks = "classifier.weight" in f.weights or "classifier.out_proj.weight" in f.weights
    add_common_keys(out, c, 4 if ranks else f.pooling())
    out.w.add_layer_norm_eps(c["layer_norm_eps"])
    out.w.add_bool("bert.attention.causal", False)
    (add_unigram if f.tokenizer["model"]["type"] == "Unigram" else add_wordpiece)(f, out)
    prefix = next((p for p in ("", "bert.", "roberta.") if f"{p}embeddings.word_embeddings.weight" in f.weights))
    e = f"{prefix}embeddings."
    out.tensor("token_embd.weight", f.take(e + "word_embeddings.weight"))
    out.tensor("position_embd.weight", f.take(e + "position_embeddings.weight")[offset:], plain=True)
    out.tensor("token_types.weight", f.take(e + "token_type_embeddings.weight"), plain=True)
    pair(f, out, e + "LayerNorm", "token_embd_norm")
    for i in range(c["num_hidden_layers"]):
        s, t = f"{prefix}encoder.layer.{i}.", f"blk.{i}."
        for source, name in (("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
                             ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
                             ("attention.output.LayerNorm", "attn_output_norm"),
                             ("intermediate.dense", "ffn_up"), ("output.dense", "ffn_down"),
                             ("output.LayerNorm", "layer_output_norm")):
            pair(f, out, s + source, t + name)
    if "classifier.weight" in f.weights:
        pair(f, out, prefix + "pooler.dense", "cls")
        pair(f, out, "classifier", "cls.output")
    elif ranks:
        pair(f, out, "classifier.dense", "cls")
        pair(f, out, "classifier.out_proj", "cls.output")
    for unused in ("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"):
        f.weights.pop(prefix + unused, None)  # sentence-transformers reads the rows themselves
    return out


def as_published_nomic(f):
    """Names and keys of transformers' own class, as the published files have them."""
    c, w = f.config, f.weights
    if "n_embd" in c:
        return c
    for i in range(c["num_hidden_layers"]):
        s, t = f"layers.{i}.", f"encoder.layers.{i}."
        w[t + "attn.Wqkv.weight"] = torch.cat([w.pop(f"{s}self_attn.{n}_proj.weight") for n in "qkv"])
        for source, name in (("self_attn.o_proj", "attn.out_proj"), ("mlp.gate_proj", "mlp.fc12"),
                             ("mlp.up_proj", "mlp.fc11"), ("mlp.down_proj", "mlp.fc2"),
                             ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2")):
            for part in ("weight", "bias"):
                if f"{s}{source}.{part}" in w:
                    w[f"{t}{name}.{part}"] = w.pop(f"{s}{source}.{part}")
    for part in ("weight", "bias"):
        w[f"emb_ln.{part}"] = w.pop(f"embeddings.LayerNorm.{part}")
    return dict(n_embd=c["hidden_size"], n_layer=c["num_hidden_layers"], n_inner=c["intermediate_size"],
                n_head=c["num_attention_heads"], n_positions=c["max_position_embeddings"],
                layer_norm_epsilon=c["layer_norm_eps"],
                rotary_emb_base=c["rope_parameters"]["rope_theta"])


def write_nomic(f, path, kind):
    c = as_published_nomic(f)
    out = Out(path, "nomic-bert", kind)
    add_common_keys(out, dict(
        hidden_size=c["n_embd"], num_hidden_layers=c["n_layer"], intermediate_size=c["n_inner"],
        num_attention_heads=c["n_head"], max_position_embeddings=c["n_positions"]), f.pooling())
    out.w.add_layer_norm_eps(c["layer_norm_epsilon"])
    out.w.add_bool("nomic-bert.attention.causal", False)
    out.w.add_rope_freq_base(c["rotary_emb_base"])
    add_wordpiece(f, out)
    out.tensor("token_embd.weight", f.take("embeddings.word_embeddings.weight"))
    out.tensor("token_types.weight", f.take("embeddings.token_type_embeddings.weight"), plain=True)
    pair(f, out, "emb_ln", "token_embd_norm")
    for i in range(c["n_layer"]):
        s, t = f"encoder.layers.{i}.", f"blk.{i}."
        for source, name in (("attn.Wqkv", "attn_qkv"), ("attn.out_proj", "attn_output"),
                             ("norm1", "attn_output_norm"), ("mlp.fc11", "ffn_up"),
                             ("mlp.fc12", "ffn_gate"), ("mlp.fc2", "ffn_down"),
                             ("norm2", "layer_output_norm")):
            pair(f, out, s + source, t + name)
    return out


def write_gemma(f, path, kind):
    c = f.config
    out = Out(path, "gemma-embedding", kind)
    add_common_keys(out, c, f.pooling())
    w = out.w
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_float32("gemma-embedding.rope.freq_base_swa", c["rope_local_base_freq"])
    w.add_sliding_window(c["sliding_window"])
    w.add_uint32("gemma-embedding.attention.sliding_window_pattern",
                 c.get("sliding_window_pattern", c.get("_sliding_window_pattern", 6)))
    w.add_float32("gemma-embedding.attention.scale", c["query_pre_attn_scalar"] ** -0.5)
    w.add_bool("gemma-embedding.attention.causal", False)
    add_byte_fallback_bpe(f, out)
    prefix = "model." if "model.embed_tokens.weight" in f.weights else ""
    out.tensor("token_embd.weight", f.take(prefix + "embed_tokens.weight"))
    out.tensor("output_norm.weight", f.take(prefix + "norm.weight") + 1)
    for i in range(c["num_hidden_layers"]):
        s, t = f"{prefix}layers.{i}.", f"blk.{i}."
        for source, name in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"),
                             ("pre_feedforward_layernorm", "ffn_norm"),
                             ("post_feedforward_layernorm", "post_ffw_norm"),
                             ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")):
            out.tensor(t + name + ".weight", f.take(s + source + ".weight") + 1)
        for source, name in (("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
                             ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
                             ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
                             ("mlp.down_proj", "ffn_down")):
            out.tensor(t + name + ".weight", f.take(s + source + ".weight"))
    for n, module in enumerate(f.modules("Dense")):
        said = read_json(module / "config.json")
        if said["bias"] or not said["activation_function"].endswith("Identity"):
            raise SystemExit(f"{module}: a bias or an activation has no place in the file")
        (dense,) = module.glob("*.safetensors")
        out.tensor(f"dense_{n + 2}.weight", load_file(dense)["linear.weight"].float())
    return out


WRITERS = {"BertModel": write_bert, "BertForSequenceClassification": write_bert,
           "XLMRobertaModel": write_bert, "XLMRobertaForSequenceClassification": write_bert,
           "NomicBertModel": write_nomic, "Gemma3TextModel": write_gemma}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--type", choices=TYPES, default="f16")
    args = parser.parse_args()
    folder = Folder(args.folder)
    (arch,) = folder.config["architectures"]
    if arch not in WRITERS:
        raise SystemExit(f"{arch} is not one of {', '.join(WRITERS)}")
    with torch.no_grad():
        out = WRITERS[arch](folder, args.out, TYPES[args.type])
    if folder.weights:
        raise SystemExit(f"tensors without a place in the file: {sorted(folder.weights)[:8]}")
    out.w.add_name(folder.path.resolve().name)
    out.finish()


if __name__ == "__main__":
    main()
