# SPDX-License-Identifier: MIT
"""Gemma 4 for the tools of this folder: small files with random weights, and the model of HF transformers
that such a file is. Needs torch, transformers, gguf."""
import numpy as np
from gguf import GGMLQuantizationType as Type
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

GLOBAL, WINDOWED = "full_attention", "sliding_attention"
TURNED = 0.25  # of a global head's pairs


def widths(m):
    """Of each block: head, KV heads, FFN."""
    owners = len(m["kinds"]) - m["shared"]
    return [((m["head"], m["kv"]) if kind == WINDOWED else (m["global_head"], m["global_kv"]))
            + (m["ff"] * (2 if m["double"] and i >= owners else 1),)
            for i, kind in enumerate(m["kinds"])]


def add_keys(w, m, embd):
    arch, kinds, per_block = "gemma4", m["kinds"], widths(m)
    w.add_context_length(32768)
    w.add_embedding_length(embd)
    w.add_block_count(len(kinds))
    w.add_head_count(m["heads"])
    w.add_head_count_kv([kv for _, kv, _ in per_block])
    w.add_feed_forward_length([ff for _, _, ff in per_block])
    for suffix, head, base in (("", m["global_head"], 1e6), ("_swa", m["head"], 1e4)):
        w.add_uint32(f"{arch}.attention.key_length{suffix}", head)
        w.add_uint32(f"{arch}.attention.value_length{suffix}", head)
        w.add_uint32(f"{arch}.rope.dimension_count{suffix}", head)
        w.add_float32(f"{arch}.rope.freq_base{suffix}", base)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_sliding_window(m["window"])
    w.add_array(f"{arch}.attention.sliding_window_pattern", [kind == WINDOWED for kind in kinds])
    w.add_uint32(f"{arch}.attention.shared_kv_layers", m["shared"])
    w.add_uint32(f"{arch}.embedding_length_per_layer_input", m["ple"])
    w.add_float32(f"{arch}.final_logit_softcapping", 30.0)
    if m["experts"]:
        w.add_expert_count(m["experts"])
        w.add_expert_used_count(m["used"])
        w.add_expert_feed_forward_length(m["expert_ff"])


def add_attention(t, m, i, embd):
    p, kind = f"blk.{i}.", m["kinds"][i]
    head, kv, _ = widths(m)[i]
    t.vector(p + "attn_norm.weight", embd, 1.0)
    t.vector(p + "post_attention_norm.weight", embd, 3.0)
    t.matrix(p + "attn_q.weight", head * m["heads"], embd)
    # The attention's scale is 1: the norm holds it.
    t.vector(p + "attn_q_norm.weight", head, 2.0 / np.sqrt(head), 0.02)
    t.matrix(p + "attn_output.weight", embd, head * m["heads"], 3.0)
    if i >= len(m["kinds"]) - m["shared"]:
        return
    t.matrix(p + "attn_k.weight", head * kv, embd)
    t.vector(p + "attn_k_norm.weight", head, 1.0)
    if kind == WINDOWED or not m["k_is_v"]:
        t.matrix(p + "attn_v.weight", head * kv, embd)


def add_ffn(t, m, i, embd):
    p, ff = f"blk.{i}.", widths(m)[i][2]
    t.vector(p + "ffn_norm.weight", embd, 1.0)
    t.vector(p + "post_ffw_norm.weight", embd, 2.0)
    t.matrix(p + "ffn_gate.weight", ff, embd)
    t.matrix(p + "ffn_up.weight", ff, embd)
    t.matrix(p + "ffn_down.weight", embd, ff, 3.0)
    if m["experts"]:
        n, width = m["experts"], m["expert_ff"]
        for name, centre in (("pre_ffw_norm_2", 1.0), ("post_ffw_norm_1", 1.0), ("post_ffw_norm_2", 0.6)):
            t.vector(f"{p}{name}.weight", embd, centre, 0.3)
        t.vector(p + "ffn_gate_inp.scale", embd, 8.0, 2.0)
        t.matrix(p + "ffn_gate_inp.weight", n, embd, 3.0, Type.F32)
        t.slabs(p + "ffn_gate_up_exps.weight", n, 2 * width, embd)
        t.slabs(p + "ffn_down_exps.weight", n, embd, width, 3.0)
        t.vector(p + "ffn_down_exps.scale", n, 1.0, 0.4)
    t.vector(p + "layer_output_scale.weight", 1, 0.9, 0.05)
    if m["ple"]:
        t.matrix(p + "inp_gate.weight", m["ple"], embd)
        t.matrix(p + "proj.weight", embd, m["ple"], 2.0)
        t.vector(p + "post_norm.weight", embd, 1.0)


def add_tensors(writer, t, m, embd, vocab):
    t.matrix("token_embd.weight", vocab, embd, 3.0, Type.Q8_0)
    t.vector("output_norm.weight", embd, 1.0)
    t.matrix("output.weight", vocab, embd, 3.0, Type.Q8_0)
    pairs = m["global_head"] // 2
    factors = np.full(pairs, 1e30, np.float32)
    factors[: int(TURNED * pairs)] = 1.0
    writer.add_tensor("rope_freqs.weight", factors)
    rows = m["ple"] * len(m["kinds"])
    if rows:
        t.matrix("per_layer_token_embd.weight", vocab, rows, 3.0)
        t.matrix("per_layer_model_proj.weight", rows, embd)
        t.vector("per_layer_proj_norm.weight", m["ple"], 1.0)
    for i in range(len(m["kinds"])):
        add_attention(t, m, i, embd)
        add_ffn(t, m, i, embd)


def make_model(file, config):
    """The empty model. `config`: what reference.common_config() found."""
    kinds = [WINDOWED if windowed else GLOBAL
             for windowed in file.own("attention.sliding_window_pattern")]
    heads_kv = file.own("attention.head_count_kv")
    ff = file.own("feed_forward_length")
    ple, experts = file.own("embedding_length_per_layer_input"), file.own("expert_count", 0)
    first_global, first_windowed = kinds.index(GLOBAL), kinds.index(WINDOWED)
    config.update(
        intermediate_size=ff[0], head_dim=file.own("attention.key_length_swa"),
        num_key_value_heads=heads_kv[first_windowed], layer_types=kinds,
        global_head_dim=file.own("attention.key_length"),
        num_global_key_value_heads=heads_kv[first_global],
        attention_k_eq_v=f"blk.{first_global}.attn_v.weight" not in file.tensors,
        sliding_window=file.own("attention.sliding_window"),
        num_kv_shared_layers=file.own("attention.shared_kv_layers"),
        use_double_wide_mlp=ff[-1] != ff[0], hidden_size_per_layer_input=ple,
        vocab_size_per_layer_input=config["vocab_size"], enable_moe_block=experts != 0,
        final_logit_softcapping=file.own("final_logit_softcapping"), pad_token_id=None,
        rope_parameters={
            GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": TURNED,
                     "rope_theta": file.own("rope.freq_base")},
            WINDOWED: {"rope_type": "default", "rope_theta": file.own("rope.freq_base_swa")}})
    if experts:
        config.update(num_experts=experts, top_k_experts=file.own("expert_used_count"),
                      moe_intermediate_size=file.own("expert_feed_forward_length"))
    return Gemma4ForCausalLM(Gemma4TextConfig(**config))


#: What a layer has beside the names that all Gemmas share.
LAYER = {
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate.weight": "per_layer_input_gate.weight", "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
    "ffn_gate_inp.weight": "router.proj.weight", "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_down_exps.weight": "experts.down_proj",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
}
MODEL = {
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
