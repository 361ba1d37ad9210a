"""Models that are slow to make or load, once a session; and no network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from model_conversion import start_conversion
from model_driver import Driver

from radixray.models.loader import load_model


@pytest.fixture(scope="session")
def conversion_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder in which two processes converted the embedded model at the same time."""
    home = tmp_path_factory.mktemp("home")
    processes = [start_conversion(home) for _ in range(2)]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert (process.returncode, output) == (0, "")
    return home


@pytest.fixture(scope="session")
def smollm2(conversion_home: Path) -> Path:
    """The converted embedded model."""
    return conversion_home / "models" / "smollm2-135m"


@pytest.fixture(scope="session")
def hugging_face() -> Callable[[Path], Any]:
    """Loads a folder with transformers in float32: the oracle."""

    def load(folder: Path) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    return load


@pytest.fixture(scope="session")
def smollm2_reference(smollm2: Path, hugging_face: Callable[[Path], Any]) -> Any:
    return hugging_face(smollm2)


@pytest.fixture(scope="session")
def smollm2_float32(smollm2: Path) -> Driver:
    return Driver(load_model(smollm2, torch.float32))


@pytest.fixture(scope="session")
def smollm2_bfloat16(smollm2: Path) -> Driver:
    return Driver(load_model(smollm2, torch.bfloat16))
