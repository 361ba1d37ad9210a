"""`ModelConfig`: the numbers of a model, read from its Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixray.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Stretched rotary frequencies of Llama 3.1 and later (see `radixray.models.rope`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the network and the engine need to know about a model.

    Attributes:
        architecture: the class name in config.json, e.g. ``LlamaForCausalLM``.
        num_kv_heads: heads of keys and values; divides `num_heads` (grouped-query attention).
        max_position_embeddings: longest sequence the model was made for, tokens.
        rope_theta: base of the rotary frequencies.
        rope_scaling: how they are stretched, or None.
        eos_token_ids: ids that end a generation, from generation_config.json and config.json.
    """

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} if there is no such file.

    Raises:
        UnsupportedModelError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModelError(f"{path} is not valid JSON: {error}", param="model") from error
    if not isinstance(data, dict):
        raise UnsupportedModelError(f"{path} must hold a JSON object", param="model")
    return data


def eos_token_ids(*configs: dict[str, Any]) -> tuple[int, ...]:
    """The union of ``eos_token_id`` (an id, a list of ids, or absent), in the order given."""
    ids: dict[int, None] = {}
    for config in configs:
        value = config.get("eos_token_id")
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                ids[int(item)] = None
    return tuple(ids)


def parse_llama(folder: Path, raw: dict[str, Any]) -> ModelConfig:
    """The configuration of a Llama-shaped model.

    Args:
        folder: the model's folder, for generation_config.json and error messages.
        raw: its config.json.

    Raises:
        UnsupportedModelError: config.json asks for something the network does not implement, or
            lacks a number it needs.
    """
    raw = {name: value for name, value in raw.items() if value is not None}
    _refuse(folder, raw)
    try:
        num_heads = int(raw["num_attention_heads"])
        hidden_size = int(raw["hidden_size"])
        config = ModelConfig(
            architecture=raw["architectures"][0],
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads", num_heads)),
            head_dim=int(raw.get("head_dim", hidden_size // num_heads)),
            hidden_size=hidden_size,
            intermediate_size=int(raw["intermediate_size"]),
            vocab_size=int(raw["vocab_size"]),
            max_position_embeddings=int(raw["max_position_embeddings"]),
            rms_norm_eps=float(raw["rms_norm_eps"]),
            rope_theta=float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope_scaling=_rope_scaling(folder, _rope(raw)),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=eos_token_ids(read_json(folder / "generation_config.json"), raw),
        )
    except KeyError as error:
        raise UnsupportedModelError(
            f"{folder / 'config.json'} lacks {error.args[0]!r}", param="model"
        ) from error
    except (TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{folder / 'config.json'} has a setting of the wrong type: {error}", param="model"
        ) from error
    if config.num_heads % config.num_kv_heads:
        raise UnsupportedModelError(
            f"num_attention_heads ({config.num_heads}) must be a multiple of num_key_value_heads "
            f"({config.num_kv_heads}) in {folder / 'config.json'}",
            param="model",
        )
    if config.head_dim % 2:
        raise UnsupportedModelError(
            f"head_dim must be even for rotary embedding, not {config.head_dim}", param="model"
        )
    return config


def _refuse(folder: Path, raw: dict[str, Any]) -> None:
    """Refuse by name what would otherwise silently give wrong numbers."""
    expected = {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "quantization_config": None,
    }
    for name, want in expected.items():
        got = raw.get(name, want)
        if (got or None) != (want or None):
            supported = "it absent" if not want else f"{want!r}"
            raise UnsupportedModelError(
                f"{folder / 'config.json'} has {name}={got!r}; only {supported} is supported",
                param="model",
            )


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings: ``rope_parameters`` since transformers 5, ``rope_scaling`` before."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_scaling(folder: Path, rope: dict[str, Any]) -> Llama3RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "llama3":
        return Llama3RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
        )
    raise UnsupportedModelError(
        f"{folder / 'config.json'} has rope type {kind!r}; supported are 'default' and 'llama3'",
        param="model",
    )
