"""How small a Transformers configuration is made: sizes by field name, and the families that need more than that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WINDOW: Final = 4
"""Tokens that a sliding or chunked attention layer sees; shorter than the audit's longest documents."""

VOCABULARY: Final = 320
"""256 bytes, and room for special tokens."""

IMAGE_TOKEN: Final = 300
"""The token at whose places a model puts its images: none of the bytes."""

IMAGE_PLACES: Final = 4
"""Places that one image takes in every tiny model."""

IMAGE_SIZE: Final = 8
PATCH_SIZE: Final = 4
"""Height and width of an image, and of a patch of it."""

LAYER_COUNTS: Final = (
    "num_hidden_layers",
    "depth",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_blocks",
    "decoder_layers",
    "num_decoder_layers",
)
"""The fields that hold the number of layers."""

LAYER_KINDS: Final = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")
"""The fields that name the kind of each layer. One layer of each kind is kept."""

KEY_VALUE_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_query_groups")
"""The fields that hold the number of key and value heads, kept smaller than the heads where they were smaller."""

ALWAYS_SET: Final = frozenset({"head_dim"})
"""Fields that are set although the configuration leaves them empty: some families cannot work them out."""

_FIELDS_OF_SIZE: Final[tuple[tuple[int, tuple[str, ...]], ...]] = (
    (0, ("num_kv_shared_layers", "num_nextn_predict_layers", "pad_token_id")),
    (
        1,
        (
            "bos_token_id",
            "eos_token_id",
            "expert_layer_offset",
            "first_k_dense_replace",
            "moe_layer_start_index",
            "moe_num_shared_experts",
            "n_group",
            "n_shared_experts",
            "num_dense_layers",
            "num_expert_group",
            "num_shared_experts",
            "topk_group",
        ),
    ),
    (
        2,
        (
            "expert_layer_period",
            "index_topk_blocks",
            "linear_num_key_heads",
            "moe_k",
            "moe_topk",
            "num_experts_per_tok",
            "num_experts_per_token",
            "o_groups",
        ),
    ),
    (
        4,
        (
            "attention_heads",
            "decoder_attention_heads",
            "encoder_attention_heads",
            "index_topk",
            "linear_num_heads",
            "linear_num_value_heads",
            "moe_num_experts",
            "n_head",
            "n_heads",
            "n_routed_experts",
            "num_attention_heads",
            "num_decoder_attention_heads",
            "num_experts",
            "num_heads",
            "num_local_experts",
            "swa_num_attention_heads",
            "zero_expert_num",
        ),
    ),
    (
        WINDOW,
        (
            "attention_chunk_size",
            "attention_window_size",
            "floor_scale",
            "index_block_size",
            "local_attention",
            "local_attention_window_len",
            "log_scaling_n_floor",
            "sliding_window",
            "sliding_window_size",
            "window_size",
        ),
    ),
    (
        8,
        (
            "adapter_rank",
            "attention_head_dim",
            "attention_head_size",
            "block_size",
            "chunk_size",
            "d_head",
            "dim_head",
            "gated_norm_rank",
            "head_dim",
            "index_n_heads",
            "hidden_size_per_layer_input",
            "kv_channels",
            "laurel_rank",
            "linear_head_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "mamba_chunk_size",
            "mamba_d_head",
            "mamba_d_state",
            "mamba_dt_rank",
            "mamba_head_dim",
            "mamba_headdim",
            "mamba_n_heads",
            "mamba_num_heads",
            "n_mamba_heads",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "rotary_dim",
            "router_hidden_size",
            "ssm_state_size",
            "state_size",
            "swa_head_dim",
            "time_step_rank",
            "v_head_dim",
        ),
    ),
    (
        16,
        (
            "expert_ffn_hidden_size",
            "index_head_dim",
            "kv_lora_rank",
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "o_lora_rank",
            "q_lora_rank",
            "shared_expert_intermediate_size",
            "shared_experts_intermediate_size",
        ),
    ),
    (
        32,
        (
            "attention_hidden_size",
            "d_model",
            "dim_model_base",
            "embedding_dim",
            "emb_dim",
            "embed_dim",
            "out_hidden_size",
            "projection_dim",
            "embedding_size",
            "hidden_size",
            "hidden_size_global",
            "input_embedding_size",
            "lru_width",
            "n_embd",
            "output_embedding_size",
            "word_embed_proj_dim",
        ),
    ),
    (
        64,
        (
            "d_inner",
            "decoder_ffn_dim",
            "dense_intermediate_size",
            "dff",
            "dim_ff",
            "encoder_ffn_dim",
            "feed_forward_size",
            "ffn_dim",
            "ffn_hidden_size",
            "intermediate_size",
            "intermediate_size_mlp",
            "n_inner",
        ),
    ),
    (
        128,
        (
            "context_length",
            "max_position_embeddings",
            "max_seq_len",
            "max_target_positions",
            "model_max_length",
            "n_ctx",
            "n_positions",
        ),
    ),
    (PATCH_SIZE, ("patch_size",)),
    (IMAGE_SIZE, ("image_size",)),
    (IMAGE_TOKEN, ("image_token_id", "image_token_index")),
    (IMAGE_TOKEN + 1, ("video_token_id", "video_token_index")),
    (IMAGE_TOKEN + 2, ("vision_start_token_id", "boi_token_index")),
    (IMAGE_TOKEN + 3, ("vision_end_token_id", "eoi_token_index")),
    (VOCABULARY, ("unpadded_vocab_size", "vocab_size", "vocab_size_per_layer_input")),
)

SIZES: Final[Mapping[str, int]] = {field: size for size, fields in _FIELDS_OF_SIZE for field in fields}
"""The tiny value of each field, by its name."""

_AXES: Final = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 1.0,
    }
}
"""Positions on three axes that share the frequencies of a head."""

_PAIRS: Final = {"image_size": [IMAGE_SIZE, IMAGE_SIZE], "patch_size": [PATCH_SIZE, PATCH_SIZE]}
"""Height and width, where a configuration holds both."""

EXCEPTIONS: Final[Mapping[str, Mapping[str, object]]] = {
    "aria": {"projector_patch_to_query_dict": {IMAGE_PLACES: IMAGE_PLACES}},
    "aya_vision": {"downsample_factor": 1},
    "cohere2_vision": {"downsample_factor": 1, "alignment_intermediate_size": 64},
    "exaone4_5_vision": {"window_size": 8, "fullatt_block_indexes": [1]},
    "gemma3": {"mm_tokens_per_image": IMAGE_PLACES},
    "idefics2_perceiver": {
        "resampler_n_latents": IMAGE_PLACES,
        "resampler_depth": 1,
        "resampler_n_heads": 4,
        "resampler_head_dim": 8,
    },
    "internvl": {"downsample_ratio": 1.0},
    "internvl_vision": _PAIRS,
    "lighton_ocr": {"spatial_merge_size": 1},
    "llama4_vision_model": {
        "pixel_shuffle_ratio": 1.0,
        "vision_output_dim": 32,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
        "intermediate_size": 32,
    },
    "minimax_m3_vl": {"projector_hidden_size": 32, "merged_hidden_size": 32},
    "mistral3": {"spatial_merge_size": 1},
    "mistral_large4": {"spatial_merge_size": 1},
    "qwen2_5_omni_text": _AXES,
    "qianfan_ocr": {"downsample_ratio": 1.0},
    "qianfan_ocr_vision": _PAIRS,
    "qwen2_5_omni_vision_encoder": {"window_size": 8, "fullatt_block_indexes": [1]},
    "glm4v_moe_text": _AXES,
    "glm_ocr_text": _AXES,
    "idefics3": {"scale_factor": 1},
    "glm4v_text": _AXES,
    "glm4v_vision": {"hidden_size": 32},
    "qwen2_vl_text": _AXES,
    "qwen2_5_vl_text": _AXES,
    "qwen2_5_vl_vision": {"window_size": 8, "fullatt_block_indexes": [1]},
    "qwen2_vl_vision": {"hidden_size": 32},
    "qwen3_vl_text": _AXES,
    "qwen3_vl_moe_text": _AXES,
    "qwen3_vl_moe_vision": {"deepstack_visual_indexes": [0]},
    "qwen3_vl_vision": {"deepstack_visual_indexes": [0]},
    "smolvlm": {"scale_factor": 1},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "blt": {"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_size": [3]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "phi4_multimodal_audio": {"nemo_conv_channels": 16, "ext_pw_out_channel": 32},
    "vipllava": {"vision_feature_layers": [-2, -1]},
    "xmod": {"default_language": "en_XX"},
    "bamba": {"attn_layer_indices": [1], "mamba_n_groups": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "distilbert": {"dim": 32, "hidden_dim": 64},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {
        "per_layer_config": {
            1: {
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "q_lora_rank": 16,
                "kv_lora_rank": 16,
                "head_dim": 16,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 8,
                "v_head_dim": 8,
            }
        }
    },
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_groups": 1},
    "flint": {"mlp_only_layers": [0]},
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "intermediate_size": 64,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_hidden_layers": 1, "H_cycles": 1, "L_cycles": 2},
    "inkling2_text": {
        "num_hidden_layers": 3,
        "layer_types": ["hybrid_sliding", "hybrid_sliding", "hybrid"],
        "n_layers_per_attn_res_block": 3,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "longformer": {"attention_window": WINDOW},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 32},
    "mixtral": {"sliding_window": WINDOW},
    "neomme": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "roc_bert": {"shape_vocab_size": 320, "shape_embed_dim": 32, "pronunciation_embed_dim": 32},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "n_mamba_heads": 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""Fields of one family, by model type, where the sizes above contradict each other or miss a kind of layer."""

NOT_ALONE: Final[Mapping[str, str]] = {
    "funnel": "pools pairs of tokens, and fails on a document of one",
    "gemma4_assistant": "drafts from the states of another model",
    "musicgen": "predicts several codebooks of audio for each place",
    "musicgen_melody": "predicts several codebooks of audio for each place",
    "perceiver": "answers at every place that it has, whatever the length of the row",
    "reformer": "gives gradients only in training mode, in which it takes only rows of whole chunks",
}
"""Model types whose model does not answer to tokens alone, and why."""

IMAGE_FAMILIES: Final = frozenset(
    {
        "aria",
        "aya_vision",
        "cohere2_vision",
        "cohere_compass",
        "cosmos3_omni",
        "deepseek_vl",
        "exaone4_5",
        "gemma3",
        "glm46v",
        "glm4v",
        "glm4v_moe",
        "glm_ocr",
        "glmga",
        "hyperclovax_vision_v2",
        "idefics2",
        "idefics3",
        "internvl",
        "lfm3_vl",
        "lighton_ocr",
        "llama4",
        "llava",
        "minimax_m3_vl",
        "mistral3",
        "mistral_large4",
        "ovis2",
        "paligemma",
        "qianfan_ocr",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen4_exp",
        "smolvlm",
        "video_llava",
        "vipllava",
    }
)
"""Model types that read images in a form that is known here."""

_NOT_AMONG_TOKENS: Final = "gives its images to every token of a row, and not to places among them"
_OTHER_PACKAGE: Final = "takes its vision tower from another package"

OTHER_IMAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "blip",
            "evolla",
            "florence2",
            "git",
            "idefics",
            "mllama",
            "pix2struct",
            "pp_formulanet",
            "t5gemma2",
            "udop",
            "vision-encoder-decoder",
        ),
        _NOT_AMONG_TOKENS,
    ),
    **dict.fromkeys(("fast_vlm", "gemma3n", "perception_lm"), _OTHER_PACKAGE),
}
"""Model types that read images in another way, and how."""
