# SPDX-License-Identifier: MIT
"""Qwen3-Next for the tools of this folder: the model of HF transformers that such a file is. Needs torch,
transformers, gguf."""
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

ARCH = "qwen3next"
KINDS = ("linear_attention", "full_attention")


def make_model(file, config):
    """The empty model. `config`: what reference.common_config() found."""
    every, heads = file.own("full_attention_interval", 4), config.pop("head_dim")
    keys, values, width = (file.own(f"ssm.{k}") for k in ("group_count", "time_step_rank", "state_size"))
    config.pop("intermediate_size")
    return Qwen3NextForCausalLM(Qwen3NextConfig(
        **config, head_dim=heads, pad_token_id=0, intermediate_size=1, decoder_sparse_step=1, mlp_only_layers=[],
        rope_parameters={"rope_type": "default", "rope_theta": file.own("rope.freq_base"),
                         "partial_rotary_factor": file.own("rope.dimension_count") / heads},
        layer_types=[KINDS[(i + 1) % every == 0] for i in range(config["num_hidden_layers"])],
        linear_num_key_heads=keys, linear_num_value_heads=values, linear_key_head_dim=width,
        linear_value_head_dim=width, linear_conv_kernel_dim=file.own("ssm.conv_kernel"),
        num_experts=file.own("expert_count"), num_experts_per_tok=file.own("expert_used_count"), norm_topk_prob=True,
        moe_intermediate_size=file.own("expert_feed_forward_length"),
        shared_expert_intermediate_size=file.own("expert_shared_feed_forward_length")))


#: What a layer has beside the names that plain decoders share. Its norms are stored + 1, but for one.
LAYER = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ssm_dt.bias": "linear_attn.dt_bias", "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight", "ssm_ba.weight": "linear_attn.in_proj_ba.weight",
    "ssm_in.weight": "linear_attn.in_proj_qkvz.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight", "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
}


def by_key_head(file, block):
    """One matrix, key head by key head, of those that present files have."""
    keys, values, width = (file.own(f"ssm.{k}") for k in ("group_count", "time_step_rank", "state_size"))
    qkv, z = file.weight(f"blk.{block}.attn_qkv.weight"), file.weight(f"blk.{block}.attn_gate.weight")
    q, k, v = qkv.split([keys * width, keys * width, values * width])
    return torch.cat([w.reshape(keys, -1, qkv.shape[1]) for w in (q, k, v, z)], 1).flatten(0, 1).contiguous()


def state(file, names):
    """All parameters by their names in the model. `names`: those that plain decoders share."""
    names = names | LAYER
    out = {}
    for name in file.tensors:
        w = file.weight(name)
        if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            w = w - 1.0
        if not name.startswith("blk."):
            out[{"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
                 "output.weight": "lm_head.weight"}[name]] = w
            continue
        _, block, rest = name.split(".", 2)
        p = f"model.layers.{block}."
        if rest == "attn_qkv.weight":
            out[p + "linear_attn.in_proj_qkvz.weight"] = by_key_head(file, block)
        elif rest == "ssm_a":
            out[p + "linear_attn.A_log"] = (-w).log()
        elif rest == "ssm_conv1d.weight":
            out[p + "linear_attn.conv1d.weight"] = w.unsqueeze(1)
        elif rest == "ffn_gate_exps.weight":
            out[p + "mlp.experts.gate_up_proj"] = torch.cat([w, file.weight(f"blk.{block}.ffn_up_exps.weight")], 1)
        elif rest == "ffn_gate_inp_shexp.weight":
            out[p + LAYER[rest]] = w.reshape(1, -1)
        elif rest not in ("attn_gate.weight", "ffn_up_exps.weight"):
            out[p + names[rest]] = w
    return out
