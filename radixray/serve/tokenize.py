"""Tokenise at the edge without holding up the requests beside."""

from __future__ import annotations

import asyncio

from radixray.tokenizer.tokenizer import Tokenizer

# About ten milliseconds of tokenising; below it a thread costs more than it spares.
_LONG_TEXT = 20_000


async def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """The token ids of `text`; a long one is tokenised in a thread."""
    if len(text) < _LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)
