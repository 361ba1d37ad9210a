from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixray.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(model_folder)


@pytest.fixture(scope="session")
def oracle(hf_tokenizer: Any) -> Any:
    """What transformers makes of the same files."""
    return hf_tokenizer
