"""Which network implements which architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixray.errors import UnsupportedModelError
from radixray.models.config import ModelConfig, parse_llama
from radixray.models.llama import LlamaModel
from radixray.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read an architecture's config.json and build its network.

    Attributes:
        parse: (folder, config.json) to the model's numbers; raises `UnsupportedModelError`.
        build: (numbers, weights) to the loaded network.
    """

    parse: Callable[[Path, dict[str, Any]], ModelConfig]
    build: Callable[[ModelConfig, Weights], LlamaModel]


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(parse_llama, LlamaModel),
}
"""By the class name that config.json gives under ``architectures``."""


def find_architecture(folder: Path, raw: dict[str, Any]) -> Architecture:
    """The implementation of the architecture that a config.json names.

    Raises:
        UnsupportedModelError: it names none, or none we implement; lists those we do.
    """
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    asked = ", ".join(map(repr, names)) if names else "none"
    raise UnsupportedModelError(
        f"{folder / 'config.json'} names the architecture {asked}; "
        f"supported: {', '.join(sorted(ARCHITECTURES))}",
        param="model",
    )
