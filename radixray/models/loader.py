"""Loading a model folder."""

from __future__ import annotations

from pathlib import Path

import torch

from radixray.errors import ModelNotFoundError
from radixray.kernels.cpu.memory import keep_freed_memory
from radixray.models.config import read_json
from radixray.models.llama import LlamaModel
from radixray.models.registry import find_architecture
from radixray.models.weights import Weights


def load_model(folder: Path, dtype: torch.dtype) -> LlamaModel:
    """Load a model in Hugging Face format, ready to run.

    Also makes this process keep the memory that tensors free (`keep_freed_memory`).

    Args:
        folder: holds config.json and safetensors; see `radixray.models.resolve.resolve_model`.
        dtype: of weights and activations, torch.bfloat16 or torch.float32.

    Raises:
        ModelNotFoundError: the folder has no config.json.
        UnsupportedModelError: the architecture, a setting or a tensor is not supported; named.
    """
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ModelNotFoundError(f"no config.json in {folder}", param="model")
    raw = read_json(config_path)
    architecture = find_architecture(folder, raw)
    config = architecture.parse(folder, raw)
    keep_freed_memory()
    return architecture.build(config, Weights(folder, dtype))
