# SPDX-License-Identifier: MIT
"""Phi-3 and its successors for the tools of this folder: the model of HF transformers that such a file is.
Needs torch, transformers, gguf."""
from transformers import Phi3Config, Phi3ForCausalLM

ARCH = "phi3"

#: What a layer has beside the names that plain decoders share.
LAYER = {"attn_qkv.weight": "self_attn.qkv_proj.weight", "ffn_up.weight": "mlp.gate_up_proj.weight"}


def make_model(file, config):
    """The empty model. `config`: what reference.common_config() found."""
    heads = config["head_dim"]
    rope = {"rope_type": "default", "rope_theta": file.own("rope.freq_base"),
            "partial_rotary_factor": file.own("rope.dimension_count") / heads}
    original = file.own("rope.scaling.original_context_length")
    if "rope_factors_long.weight" in file.tensors:
        rope.update(rope_type="longrope", attention_factor=file.own("rope.scaling.attn_factor"),
                    original_max_position_embeddings=original,
                    long_factor=file.weight("rope_factors_long.weight").tolist(),
                    short_factor=file.weight("rope_factors_short.weight").tolist())
    window = file.own("attention.sliding_window") or None
    made = Phi3Config(**config, sliding_window=window, pad_token_id=0, original_max_position_embeddings=original)
    # Not among its own words, but read; what it checks the number of divisors by does not know it.
    made.head_dim, made.rope_parameters = heads, rope
    return Phi3ForCausalLM(made)
