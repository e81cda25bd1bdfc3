# SPDX-License-Identifier: MIT
"""DeepSeek-V2 and GLM-4.7-Flash for the tools of this folder: the models of HF transformers that files of `deepseek2`
are. Needs torch, transformers, gguf."""
import torch
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, Glm4MoeLiteConfig,
                          Glm4MoeLiteForCausalLM)

ARCH = "deepseek2"
SIGMOIDS = 2


def sizes(file):
    rot = file.own("rope.dimension_count")
    key, value = (file.own(f"attention.{n}_length_mla", file.own(f"attention.{n}_length")) for n in ("key", "value"))
    return dict(qk_rope_head_dim=rot, qk_nope_head_dim=key - rot, v_head_dim=value, kv_lora_rank=file.own("attention.kv_lora_rank"),
                q_lora_rank=file.own("attention.q_lora_rank"))


def rope(file):
    out = {"rope_type": "default", "rope_theta": file.own("rope.freq_base")}
    if file.own("rope.scaling.type") == "yarn":
        # Files hold a tenth of it.
        scale = file.own("rope.scaling.yarn_log_multiplier", 0.0) * 10
        out.update(rope_type="yarn", factor=file.own("rope.scaling.factor"), mscale=scale, mscale_all_dim=scale,
                   original_max_position_embeddings=file.own("rope.scaling.original_context_length"),
                   beta_fast=32.0, beta_slow=1.0)
    return out


def make_model(file, config):
    """The empty model. `config`: what reference.common_config() found."""
    for name in ("head_dim", "num_key_value_heads"):
        config.pop(name)
    config.update(
        **sizes(file), rope_parameters=rope(file), num_key_value_heads=config["num_attention_heads"],
        n_routed_experts=file.own("expert_count"), num_experts_per_tok=file.own("expert_used_count"),
        n_shared_experts=file.own("expert_shared_count"),
        moe_intermediate_size=file.own("expert_feed_forward_length"),
        routed_scaling_factor=file.own("expert_weights_scale"), n_group=1, topk_group=1,
        norm_topk_prob=bool(file.own("expert_weights_norm", False)))
    dense, layers = file.own("leading_dense_block_count"), config["num_hidden_layers"]
    if file.own("expert_gating_func") != SIGMOIDS:
        return DeepseekV2ForCausalLM(DeepseekV2Config(**config, first_k_dense_replace=dense))
    kinds = ["dense"] * dense + ["sparse"] * (layers - dense)
    return Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**config, mlp_layer_types=kinds))


MODEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}
LAYER = {
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_q_a.weight": "self_attn.q_a_proj.weight",
    "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight", "attn_q_b.weight": "self_attn.q_b_proj.weight",
    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight", "attn_kv_b.weight": "self_attn.kv_b_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight", "ffn_gate_inp.weight": "mlp.gate.weight",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias", "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_shexp.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_experts.down_proj.weight",
}


def state(file):
    """All parameters by their names in the model."""
    out = {}
    for name in file.tensors:
        w = file.weight(name)
        if not name.startswith("blk."):
            out[MODEL[name]] = w
            continue
        _, block, rest = name.split(".", 2)
        p = f"model.layers.{block}."
        if rest == "ffn_gate_exps.weight":
            up = file.weight(f"blk.{block}.ffn_up_exps.weight")
            out[p + "mlp.experts.gate_up_proj"] = torch.cat([w, up], 1)
        elif rest == "attn_k_b.weight":  # [heads, rank, key] and [heads, value, rank]
            both = torch.cat([w.transpose(1, 2), file.weight(f"blk.{block}.attn_v_b.weight")], 1)
            out[p + "self_attn.kv_b_proj.weight"] = both.flatten(0, 1).contiguous()
        elif rest not in ("ffn_up_exps.weight", "attn_v_b.weight"):
            out[p + LAYER[rest]] = w
    return out
