"""From a Llama GGUF file to a Hugging Face folder.

We convert with the `gguf` package and not with transformers, whose GGUF loader wants a package
(accelerate) that nothing else here needs, and which splits digits as this vocabulary does not.
The GGUF format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
"""The token type of special tokens in ``tokenizer.ggml.token_type``."""


def convert_gguf(source: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors (bfloat16), tokenizer.json,
    tokenizer_config.json and chat_template.jinja.

    Args:
        source: a GGUF file of the llama architecture with the "smollm" tokenizer.
        folder: an existing folder to write to.
    """
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(source)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kind = (meta["general.architecture"], meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"])
    if kind != ("llama", "gpt2", "smollm"):
        raise ValueError(f"{source} is of kind {kind}, which this conversion does not know")
    config = _config(meta)
    tensors = dict(_tensor(tensor, config) for tensor in reader.tensors)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", config)
    _write(
        folder / "generation_config.json",
        {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_tokenizer(meta, folder)


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the same model."""
    heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.embedding_length"] // heads,
        "vocab_size": meta["llama.vocab_size"],
        "max_position_embeddings": meta["llama.context_length"],
        # GGUF keeps float32: print it as the decimal it was, 1e-05 and not 9.99999974e-06.
        "rms_norm_eps": float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def _tensor(tensor: Any, config: dict[str, Any]) -> tuple[str, torch.Tensor]:
    """A tensor's Hugging Face name and its values in bfloat16."""
    from gguf.quants import dequantize

    values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    stem = tensor.name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return f"{_TENSORS[stem]}.weight", values.to(torch.bfloat16)
    _, layer, part = stem.split(".")
    if part in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
        # llama.cpp rotates neighbouring rows (2 i, 2 i + 1) of a head, Hugging Face rows
        # (i, i + head_dim / 2): put them back.
        values = values.view(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
    return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.weight", values.to(torch.bfloat16)


def _write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    """A byte-level BPE tokenizer with every digit a token of its own, as SmolLM was trained."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        name: tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
    }
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": meta["llama.context_length"],
            "add_bos_token": meta["tokenizer.ggml.add_bos_token"],
            "chat_template": meta["tokenizer.chat_template"],
            **named,
        },
    )


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
