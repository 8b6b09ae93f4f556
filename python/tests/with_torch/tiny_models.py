"""transformers' decoder classes as tiny random models: their configurations' sizes are made small by name."""

import re

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SIZES = {
    r"(vocab_size|n_words)(_per_layer_input)?": 97,
    r"(hidden_size|d_model|n_embd|embed_dim|model_dim|dim|word_embed_proj_dim|embedding_size|emb_dim)": 64,
    r"(\w+_)?(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|mlp_hidden_size|dff)": 96,
    r"(num_hidden_layers|n_layers?|num_layers|(encoder|decoder)_layers|num_(encoder|decoder)_layers)": 4,
    r"((num|n)_(attention_)?heads|n_head|(\w+_)?attention_heads|num_(encoder|decoder)_attention_heads)": 4,
    r"((\w+_)?num_key_value_heads|num_kv_heads|n_kv_heads|num_kv_groups|multi_query_group_num)": 2,
    r"(head_dim|attention_head_dim|kv_channels|d_kv|global_head_dim|swa_head_dim|v_head_dim|rotary_dim)": 16,
    r"(qk_rope_head_dim|qk_nope_head_dim)": 16,
    r"(kv_lora_rank|q_lora_rank|o_lora_rank)": 32,
    r"(max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length|seq_length)": 128,
    r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts)": 4,
    r"(num_experts_per_tok|moe_topk|top_k_experts|moe_k)": 2,
    r"(sliding_window(_size)?|attention_chunk_size|local_attention_window|attention_window_size|window_size)": 8,
    r"(n_group|topk_group|num_expert_group)": 1,
    r"(mamba_)?chunk_size": 8,
    r"mamba_n_heads": 8,
    r"mamba_expand": 2,
    r"mamba_(d_head|d_state)": 16,
    r"index(er)?_topk(_blocks)?": 6,
    r"index(er)?_block_size": 2,
    r"pad_token_id": 0,
    r"bos_token_id": 1,
    r"eos_token_id": 2,
}
LAYERS = 4
ROPE = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention", "hybrid")}
KINDS = ["linear_attention", "full_attention"]
# Options of single classes.
OTHERS = {
    "BambaForCausalLM": {"attn_layer_indices": [1, 3], "layer_types": None, "mamba_d_head": 16},
    "CohereCompassForCausalLM": {"rope_parameters": ROPE},
    "Dots1ForCausalLM": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 2]]},
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 16},
    "Gemma4AssistantForCausalLM": {"text_config": {"hidden_size_per_layer_input": 0}},
    "Dots3NoteForCausalLM": {"swa_head_dim": 32, "swa_v_head_dim": 16},
    "FalconH1ForCausalLM": {"mamba_d_ssm": 128},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["mamba", "attention"] * 2, "mamba_d_head": 16},
    "JambaForCausalLM": {"attn_layer_period": 2, "attn_layer_offset": 1, "layer_types": None},
    "KimiLinearForCausalLM": {"layer_types": KINDS * 2, "num_experts": 4, "num_experts_per_token": 2},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 2},
    "Mamba2ForCausalLM": {"num_heads": 8},
    "MusicgenForCausalLM": {"num_codebooks": 1},
    "MusicgenMelodyForCausalLM": {"num_codebooks": 1},
    "ReformerModelWithLMHead": {"is_decoder": True, "axial_pos_embds_dim": [16, 48]},
    "XmodForCausalLM": {"default_language": "en_XX"},
    "Zamba2ForCausalLM": {"layers_block_type": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3], "layer_types": None},
    "ZayaForCausalLM": {"num_experts_per_tok": 1, "rope_parameters": ROPE},
}


def class_names():
    given = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return sorted({name for names in given for name in (names if isinstance(names, (list, tuple)) else [names])})


def cycled(kinds):
    """A layer of each kind, if there are not too many."""
    kinds = list(dict.fromkeys(kinds))
    if all("linear" in kind or not re.search("attention|hybrid", kind) for kind in kinds):
        kinds.append("full_attention")
    return (kinds * LAYERS)[:LAYERS]


def small(values):
    """The entries of a configuration that have a small size, by their names."""
    found = {}
    for name, value in values.items():
        if isinstance(value, dict) and name.endswith("_config"):
            found[name] = {**value, **small(value)}
        for pattern, size in SIZES.items():
            if re.fullmatch(pattern, name) and (type(value) is int or value is None and size < 3):
                found[name] = size
    if "kv_lora_rank" in values:  # heads share a latent, and are as many for keys
        found["num_key_value_heads"] = found.get("num_attention_heads", 4)
    if "head_dim" in values:
        found["head_dim"] = 16
    if isinstance(values.get("layer_types"), list) and values["layer_types"]:
        found["layer_types"] = cycled(values["layer_types"])
    for per_layer in ("mlp_layer_types", "intermediate_size"):
        given = values.get(per_layer)
        if isinstance(given, list) and given:
            found[per_layer] = (list(dict.fromkeys(given)) * LAYERS)[:LAYERS]
    if values.get("per_layer_config"):
        found["per_layer_config"] = {}
    return found


def configuration(name):
    kind = getattr(transformers, name).config_class
    values = kind().to_dict()
    own = small(values)
    own.update(OTHERS.get(name, {}))
    return kind(**{option: value for option, value in own.items() if value is not None})


def build(name, implementation):
    """The model with random weights, the same ones for each implementation."""
    config = configuration(name)
    torch.manual_seed(0)
    return getattr(transformers, name)._from_config(config, attn_implementation=implementation).eval()
