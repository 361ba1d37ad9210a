from __future__ import annotations

from pathlib import Path

import pytest

from radixray.fsm.vocabulary import TokenVocabulary
from radixray.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    """SmolLM2's own."""
    return Tokenizer.from_folder(model_folder)


@pytest.fixture(scope="session")
def real_vocabulary(tokenizer: Tokenizer) -> TokenVocabulary:
    """SmolLM2's 49,152 tokens."""
    return TokenVocabulary(tokenizer.token_bytes, {0, 2})
