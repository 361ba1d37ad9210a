"""What all tests share: no network, and the embedded model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from radixray.kernels.cpu.threads import set_waiting

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
set_waiting()  # as the model actor does


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """SmolLM2-135M-Instruct in Hugging Face format."""
    from radixray.models.resolve import resolve_model

    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def native_kernels() -> None:
    """For tests of what only the native CPU kernels promise.

    They are skipped where nothing can compile the kernels. Where a compiler is there, kernels that
    do not work are a failure, not a reason to skip.
    """
    from radixray.kernels.cpu.select import cpu_kernels

    if shutil.which("cc") is None and shutil.which("gcc") is None and shutil.which("clang") is None:
        pytest.skip("no C compiler")
    assert cpu_kernels().name == "native"


@pytest.fixture(scope="session")
def hf_model(model_folder: Path) -> Any:
    """The independent source of truth: transformers' own float32 model."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def hf_tokenizer(model_folder: Path) -> Any:
    """transformers' own tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)
