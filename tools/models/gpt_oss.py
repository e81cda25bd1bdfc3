# SPDX-License-Identifier: MIT
"""gpt-oss for the tools of this folder: small files with random weights, and the model of HF transformers
that such a file is. Needs torch, transformers, gguf."""
import torch
from gguf import GGMLQuantizationType as Type
from transformers import GptOssConfig, GptOssForCausalLM

ARCH = "gpt-oss"


def add_keys(w, m, embd):
    w.add_context_length(32768)
    w.add_embedding_length(embd)
    w.add_block_count(m["layers"])
    w.add_feed_forward_length(m["ff"])
    w.add_expert_feed_forward_length(m["ff"])
    w.add_expert_count(m["experts"])
    w.add_expert_used_count(m["used"])
    w.add_head_count(m["heads"])
    w.add_head_count_kv(m["kv"])
    w.add_key_length(64)
    w.add_value_length(64)
    w.add_rope_dimension_count(64)
    w.add_rope_freq_base(m["base"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_sliding_window(m["window"])
    w.add_string(f"{ARCH}.rope.scaling.type", "yarn")
    w.add_float32(f"{ARCH}.rope.scaling.factor", m["scaling"][1])
    w.add_uint32(f"{ARCH}.rope.scaling.original_context_length", m["scaling"][2])


def add_tensors(t, m, embd, vocab):
    t.matrix("token_embd.weight", vocab, embd, 3.0, Type.Q8_0)
    t.vector("output_norm.weight", embd, 1.0)
    t.matrix("output.weight", vocab, embd, 3.0, Type.Q8_0)
    q, kv, ff, n = 64 * m["heads"], 64 * m["kv"], m["ff"], m["experts"]
    for i in range(m["layers"]):
        p = f"blk.{i}."
        t.vector(p + "attn_norm.weight", embd, 1.0)
        t.vector(p + "post_attention_norm.weight", embd, 1.0)
        t.matrix(p + "attn_q.weight", q, embd, 1.5)
        t.matrix(p + "attn_k.weight", kv, embd, 1.5)
        t.matrix(p + "attn_v.weight", kv, embd)
        t.matrix(p + "attn_output.weight", embd, q, 3.0)
        for part, width in (("q", q), ("k", kv), ("v", kv), ("output", embd)):
            t.vector(f"{p}attn_{part}.bias", width, 0.0, 0.5)
        # Some far above what keys score, some below all of it.
        t.vector(p + "attn_sinks.weight", m["heads"], 1.0, 3.0)
        t.matrix(p + "ffn_gate_inp.weight", n, embd, 2.0, Type.F32)
        t.vector(p + "ffn_gate_inp.bias", n, 0.0, 0.5)
        # Wide enough that both limits of the activation are met.
        for part, rows, columns, gain in (("gate", ff, embd, 2.5), ("up", ff, embd, 2.5), ("down", embd, ff, 0.4)):
            t.slabs(f"{p}ffn_{part}_exps.weight", n, rows, columns, gain)
            t.rows(f"{p}ffn_{part}_exps.bias", n, rows, 0.5)


def make_model(file, config):
    """The empty model. `config`: what reference.common_config() found."""
    config.update(
        num_local_experts=file.own("expert_count"), num_experts_per_tok=file.own("expert_used_count"),
        sliding_window=file.own("attention.sliding_window"), attention_bias=True,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": file.own("rope.freq_base"), "truncate": False,
            "factor": file.own("rope.scaling.factor"), "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": file.own("rope.scaling.original_context_length")})
    return GptOssForCausalLM(GptOssConfig(**config))


#: What a layer has beside the names that plain decoders share.
LAYER = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_output.bias": "self_attn.o_proj.bias", "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp.weight": "mlp.router.weight", "ffn_gate_inp.bias": "mlp.router.bias",
    "ffn_down_exps.weight": "mlp.experts.down_proj", "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}


def experts(file, block):
    """The names and values of what a layer's file has in another layout than the model: gate and up side by
    side, element by element, and all matrices the other way round."""
    p, to = f"blk.{block}.ffn_", f"model.layers.{block}.mlp.experts."
    both = lambda kind: torch.stack([file.weight(f"{p}gate_exps.{kind}"), file.weight(f"{p}up_exps.{kind}")], 2)
    return {f"{to}gate_up_proj": both("weight").flatten(1, 2).swapaxes(1, 2).contiguous(),
            f"{to}gate_up_proj_bias": both("bias").flatten(1),
            f"{to}down_proj": file.weight(f"{p}down_exps.weight").swapaxes(1, 2).contiguous()}
