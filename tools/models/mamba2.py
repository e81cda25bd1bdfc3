# SPDX-License-Identifier: MIT
"""Granite 4 and Nemotron-H for the tools of this folder: the models of HF transformers that such files are. Needs
torch, transformers, gguf."""
import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM, NemotronHConfig, NemotronHForCausalLM

ARCHS = ("granitehybrid", "nemotron_h", "nemotron_h_moe")


def per_block(file, name):
    value = file.own(name)
    return value if isinstance(value, list) else [value] * file.own("block_count")


def make_granite(file, config):
    experts = file.own("expert_count", 0)
    kinds = ["full_attention" if kv else "linear_attention" for kv in per_block(file, "attention.head_count_kv")]
    width = file.own("expert_shared_feed_forward_length", 0) if experts else file.own("feed_forward_length")
    rotated = file.own("rope.scaling.finetuned", True)
    head_dim, inner = config.pop("head_dim"), file.own("ssm.inner_size")
    made = GraniteMoeHybridConfig(
        **config, pad_token_id=0, layer_types=kinds, num_local_experts=experts, shared_intermediate_size=width,
        num_experts_per_tok=file.own("expert_used_count", 0), position_embedding_type="rope" if rotated else None,
        rope_parameters={"rope_type": "default", "rope_theta": file.own("rope.freq_base", 10000.0)},
        attention_multiplier=file.own("attention.scale", file.own("attention.key_length") ** -0.5),
        embedding_multiplier=file.own("embedding_scale", 1.0), residual_multiplier=file.own("residual_scale", 1.0),
        logits_scaling=file.own("logit_scale", 1.0), mamba_n_heads=file.own("ssm.time_step_rank"),
        mamba_n_groups=file.own("ssm.group_count"), mamba_d_state=file.own("ssm.state_size"),
        mamba_d_conv=file.own("ssm.conv_kernel"), mamba_expand=inner // config["hidden_size"],
        mamba_d_head=inner // file.own("ssm.time_step_rank"))
    made.head_dim = head_dim
    return GraniteMoeHybridForCausalLM(made)


def make_nemotron(file, config):
    width = max(per_block(file, "feed_forward_length"))
    moe = file.arch == "nemotron_h_moe"
    kinds = ["full_attention" if kv else ("moe" if moe else "mlp") if ff else "linear_attention" for kv, ff in
             zip(per_block(file, "attention.head_count_kv"), per_block(file, "feed_forward_length"))]
    heads, inner = file.own("ssm.time_step_rank"), file.own("ssm.inner_size")
    for name in ("num_hidden_layers", "intermediate_size", "rms_norm_eps"):
        config.pop(name)
    extra = dict(n_routed_experts=file.own("expert_count"), num_experts_per_tok=file.own("expert_used_count"),
                 moe_intermediate_size=file.own("expert_feed_forward_length"),
                 moe_shared_expert_intermediate_size=file.own("expert_shared_feed_forward_length"),
                 routed_scaling_factor=file.own("expert_weights_scale"),
                 norm_topk_prob=file.own("expert_weights_norm")) if moe else {}
    model = NemotronHForCausalLM(NemotronHConfig(
        **config, **extra, layers_block_type=kinds, intermediate_size=width, mlp_bias=not moe,
        layer_norm_epsilon=file.own("attention.layer_norm_rms_epsilon"), ssm_state_size=file.own("ssm.state_size"),
        mamba_num_heads=heads, mamba_head_dim=inner // heads, n_groups=file.own("ssm.group_count"),
        conv_kernel=file.own("ssm.conv_kernel")))
    # Files say no least step. Here it is one of prompts alone: a step of decoding has none.
    for part in model.modules():
        if hasattr(part, "time_step_limit"):
            part.time_step_limit = (0.0, float("inf"))
    return model


def make_model(file, config):
    """The empty model. `config`: what reference.common_config() found."""
    config["num_key_value_heads"] = max(per_block(file, "attention.head_count_kv"))
    return make_granite(file, config) if file.arch == "granitehybrid" else make_nemotron(file, config)


def mixer(w, rest):
    """A tensor of Mamba-2 by its name in the module, or None."""
    if rest == "ssm_a":
        return "A_log", (-w).log().flatten()
    if rest == "ssm_conv1d.weight":
        return "conv1d.weight", w.unsqueeze(1)
    name = {"ssm_in.weight": "in_proj.weight", "ssm_conv1d.bias": "conv1d.bias", "ssm_dt.bias": "dt_bias", "ssm_d": "D",
            "ssm_norm.weight": "norm.weight", "ssm_out.weight": "out_proj.weight"}.get(rest)
    return name and (name, w.flatten() if rest in ("ssm_d", "ssm_norm.weight") else w)


ATTENTION = {"attn_q.weight": "q_proj.weight", "attn_k.weight": "k_proj.weight", "attn_v.weight": "v_proj.weight",
             "attn_output.weight": "o_proj.weight"}
GRANITE = {"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
           "ffn_gate_inp.weight": "block_sparse_moe.router.weight",
           "ffn_down_exps.weight": "block_sparse_moe.experts.down_proj",
           "ffn_down_shexp.weight": "shared_mlp.output_linear.weight", "ffn_down.weight": "shared_mlp.output_linear.weight"}
NEMOTRON = {"attn_norm.weight": "norm.weight", "ffn_up.weight": "mixer.up_proj.weight",
            "ffn_down.weight": "mixer.down_proj.weight", "ffn_up.bias": "mixer.up_proj.bias",
            "ffn_down.bias": "mixer.down_proj.bias", "ffn_gate_inp.weight": "mixer.gate.weight",
            "exp_probs_b.bias": "mixer.gate.e_score_correction_bias", "ffn_up_exps.weight": "mixer.experts.up_proj",
            "ffn_down_exps.weight": "mixer.experts.down_proj",
            "ffn_up_shexp.weight": "mixer.shared_experts.up_proj.weight",
            "ffn_down_shexp.weight": "mixer.shared_experts.down_proj.weight"}
#: Gate and up of Granite's FFNs are one parameter.
BOTH = {"ffn_gate.weight": ("ffn_up.weight", "shared_mlp.input_linear.weight", 0),
        "ffn_gate_shexp.weight": ("ffn_up_shexp.weight", "shared_mlp.input_linear.weight", 0),
        "ffn_gate_exps.weight": ("ffn_up_exps.weight", "block_sparse_moe.experts.gate_up_proj", 1)}


def state(file, halves):
    """All parameters by their names in the model."""
    granite = file.arch == "granitehybrid"
    out, heads = {}, {"attn_q.weight": file.own("attention.head_count"),
                      "attn_k.weight": max(per_block(file, "attention.head_count_kv"))}
    for name in file.tensors:
        w = file.weight(name)
        if not name.startswith("blk."):
            ends = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
                    "output_norm.weight": "model.norm.weight"}
            out[ends[name] if granite else ends[name].replace("model.embed_tokens", "model.embeddings").replace(
                "model.norm.", "model.norm_f.")] = w
            continue
        _, block, rest = name.split(".", 2)
        p = f"model.layers.{block}."
        if mixer(w, rest):
            part, w = mixer(w, rest)
            out[p + ("mamba." if granite else "mixer.") + part] = w
        elif rest in ATTENTION:
            if granite and rest in heads:
                w = halves(w, heads[rest])
            out[p + ("self_attn." if granite else "mixer.") + ATTENTION[rest]] = w
        elif granite and rest in BOTH:
            up, whole, dim = BOTH[rest]
            out[p + whole] = torch.cat([w, file.weight(f"blk.{block}.{up}")], dim)
        elif not (granite and rest in [up for up, _, _ in BOTH.values()]):
            out[p + (GRANITE if granite else NEMOTRON)[rest]] = w
    return out
