# SPDX-License-Identifier: MIT
"""What the tools of this folder share: a GGUF file as a model of HF transformers in f32, with the
file's own weights dequantised, and goldens computed with it. Needs torch, transformers, gguf."""
import json

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM,
                          Ministral3Config, Ministral3ForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          SmolLM3Config, SmolLM3ForCausalLM)

import gemma4
import gpt_oss
import latent
import mamba2
import phi3
import qwen3next


class File:
    """Keys and dequantised tensors of a GGUF file."""

    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.arch = self.key("general.architecture")

    def key(self, name, default=None):
        field = self.reader.fields.get(name)
        return default if field is None else field.contents()

    def own(self, name, default=None):
        return self.key(f"{self.arch}.{name}", default)

    def weight(self, name):
        t = self.tensors[name]
        shape = tuple(int(n) for n in reversed(t.shape))
        data = dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        return torch.from_numpy(np.ascontiguousarray(data))


def halves(weight, n_heads):
    """Rows of Q and K from neighbouring pairs, as `llama` files have them, to halves, as HF has."""
    rows = weight.shape[0]
    rest = weight.shape[1:]
    return (weight.reshape(n_heads, rows // n_heads // 2, 2, *rest).swapaxes(1, 2)
            .reshape(rows, *rest).contiguous())


def neighbours(weight, n_heads):
    """The other way."""
    rows = weight.shape[0]
    rest = weight.shape[1:]
    return (weight.reshape(n_heads, 2, rows // n_heads // 2, *rest).swapaxes(1, 2)
            .reshape(rows, *rest).contiguous())


def rope_of(file):
    rope = {"rope_type": "default", "rope_theta": file.own("rope.freq_base", 10000.0)}
    kind = file.own("rope.scaling.type", "linear")
    factor = file.own("rope.scaling.factor", 0.0) or 1.0
    if kind == "yarn":
        rope.update(rope_type="yarn", factor=factor, original_max_position_embeddings=file.own(
            "rope.scaling.original_context_length"))
    elif kind == "linear" and factor != 1.0:
        rope.update(rope_type="linear", factor=factor)
    return rope


def common_config(file):
    heads = file.own("attention.head_count")
    return dict(
        hidden_size=file.own("embedding_length"), num_hidden_layers=file.own("block_count"),
        intermediate_size=file.own("feed_forward_length"), num_attention_heads=heads,
        num_key_value_heads=file.own("attention.head_count_kv", heads),
        head_dim=file.own("attention.key_length", file.own("embedding_length") // heads),
        vocab_size=int(file.tensors["token_embd.weight"].shape[1]),
        max_position_embeddings=file.own("context_length"),
        rms_norm_eps=file.own("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in file.tensors, attn_implementation="eager")


def make_model(file):
    """The empty model, its family's name for a layer's norms, and whether norms are stored + 1."""
    config = common_config(file)
    if file.arch == "llama":
        bias = "blk.0.attn_q.bias" in file.tensors
        window = file.own("attention.sliding_window", 0)
        if window:
            return MistralForCausalLM(MistralConfig(
                **config, rope_parameters=rope_of(file), sliding_window=window))
        return LlamaForCausalLM(LlamaConfig(
            **config, rope_parameters=rope_of(file), attention_bias=bias))
    if file.arch == "mistral3":
        return Ministral3ForCausalLM(Ministral3Config(
            **config, rope_parameters=rope_of(file) | {
                "mscale": 1.0, "mscale_all_dim": file.own("rope.scaling.yarn_log_multiplier"),
                "beta_fast": 32.0, "beta_slow": 1.0,
                "llama_4_scaling_beta": file.own("attention.temperature_scale")}))
    if file.arch == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(
            **config, rope_parameters=rope_of(file), use_sliding_window=False))
    if file.arch == "smollm3":
        n_layers = config["num_hidden_layers"]
        return SmolLM3ForCausalLM(SmolLM3Config(
            **config, rope_parameters=rope_of(file), pad_token_id=0,
            no_rope_layers=[int((i + 1) % 4 != 0) for i in range(n_layers)]))
    if file.arch == "gemma4":
        return gemma4.make_model(file, config)
    if file.arch == gpt_oss.ARCH:
        return gpt_oss.make_model(file, config)
    if file.arch == qwen3next.ARCH:
        return qwen3next.make_model(file, config)
    if file.arch == phi3.ARCH:
        return phi3.make_model(file, config)
    if file.arch in mamba2.ARCHS:
        return mamba2.make_model(file, config)
    if file.arch == latent.ARCH:
        return latent.make_model(file, config)
    assert file.arch == "gemma3", file.arch
    layers = config["num_hidden_layers"]
    period = file.own("attention.sliding_window_pattern", 6)
    kinds = ["full_attention" if (i + 1) % period == 0 else "sliding_attention"
             for i in range(layers)]
    scalar = (config["hidden_size"] / config["num_attention_heads"] if layers == 62
              else config["head_dim"])
    local = {"rope_type": "default", "rope_theta": file.own("rope.freq_base_swa", 10000.0)}
    return Gemma3ForCausalLM(Gemma3TextConfig(
        **config, layer_types=kinds, sliding_window=file.own("attention.sliding_window"),
        query_pre_attn_scalar=scalar, hidden_activation="gelu_pytorch_tanh",
        rope_parameters={"full_attention": rope_of(file), "sliding_attention": local}))


LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight", "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
GEMMA_LAYER = dict(LAYER, **{
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight"})


def load(path):
    """The model, with every tensor of the file in it and every parameter of it from the file."""
    file = File(path)
    model = make_model(file).float().eval()
    gemma = file.arch == "gemma3"
    names = GEMMA_LAYER | gemma4.LAYER if file.arch.startswith("gemma") else LAYER
    if file.arch == gpt_oss.ARCH:
        names = LAYER | gpt_oss.LAYER
    if file.arch == phi3.ARCH:
        names = LAYER | phi3.LAYER
    heads = {"attn_q": file.own("attention.head_count"),
             "attn_k": file.own("attention.head_count_kv", file.own("attention.head_count"))}
    state = {}
    if file.arch in mamba2.ARCHS:
        model.load_state_dict(mamba2.state(file, halves), strict=True)
        return model
    if file.arch == latent.ARCH:
        model.load_state_dict(latent.state(file), strict=True)
        return model
    if file.arch == qwen3next.ARCH:
        model.load_state_dict(qwen3next.state(file, names), strict=True)
        return model
    for name in file.tensors:
        w = file.weight(name)
        if gemma and name.endswith("norm.weight"):
            w = w - 1.0
        if name == "rope_freqs.weight" and file.arch == "gemma4":
            continue  # the same as the configuration's share of pairs that are turned
        if name == "rope_freqs.weight":
            set_freq_factors(model, w)
            continue
        if name.startswith("rope_factors_"):
            continue  # in the configuration
        if name.startswith("blk."):
            _, block, rest = name.split(".", 2)
            kind = rest.split(".")[0]
            if file.arch == gpt_oss.ARCH and kind in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps") \
                    and rest != "ffn_down_exps.bias":
                continue  # below, both halves of a layer at once
            if file.arch in ("llama", "mistral3", "smollm3") and kind in heads:
                w = halves(w, heads[kind])
            state[f"model.layers.{block}.{names[rest]}"] = w
        else:
            state[{"token_embd.weight": "model.embed_tokens.weight",
                   "output_norm.weight": "model.norm.weight",
                   "output.weight": "lm_head.weight", **gemma4.MODEL}[name]] = w
    if file.arch == gpt_oss.ARCH:
        for i in range(model.config.num_hidden_layers):
            state |= gpt_oss.experts(file, i)
    if getattr(model.config, "attention_bias", False) and file.arch == "llama":
        # The configuration gives the output projection a bias too; files have none.
        for i in range(model.config.num_hidden_layers):
            state[f"model.layers.{i}.self_attn.o_proj.bias"] = torch.zeros(
                model.config.hidden_size)
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def set_freq_factors(model, factors):
    rope = model.model.rotary_emb
    rope.inv_freq = rope.inv_freq / factors
    rope.original_inv_freq = rope.inv_freq


@torch.no_grad()
def logits_of(model, tokens):
    return model(torch.tensor([tokens])).logits[0].float()


@torch.no_grad()
def greedy(model, tokens, n):
    out = model(torch.tensor([tokens]), use_cache=True)
    ids = []
    for _ in range(n):
        top = out.logits[0, -1].float().topk(2)
        # A tie at f32's resolution would make the continuation a matter of luck.
        if float(top.values[0] - top.values[1]) < 5e-3:
            break
        ids.append(int(top.indices[0]))
        out = model(torch.tensor([[ids[-1]]]), past_key_values=out.past_key_values,
                    use_cache=True)
    return ids


def case(model, tokens, n_greedy):
    logits = logits_of(model, tokens)
    top = logits.topk(5)
    nll = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    return {
        "tokens": tokens, "top5": top.indices.tolist(),
        "top5_logits": [[round(v, 4) for v in row] for row in top.values.tolist()],
        "nll": float(nll), "greedy": greedy(model, tokens, n_greedy),
    }


def write(path, golden):
    with open(path, "w") as f:
        json.dump(golden, f, separators=(",", ":"))
        f.write("\n")
