"""Tokenise at the edge without holding up the requests beside."""

from __future__ import annotations

import asyncio

from radixray.actors.transport import Transport
from radixray.errors import ContextLengthError

# About ten milliseconds of tokenising; below it a thread costs more than it spares.
_LONG_TEXT = 20_000

_SLACK = 4
"""Special tokens, and text that a normaliser shortens, may spend more bytes on a token than the
longest ordinary one has."""


async def encode(transport: Transport, text: str, *, add_special_tokens: bool) -> list[int]:
    """The token ids of `text`; a long one is tokenised in a thread.

    Raises:
        ContextLengthError: it is too long to fit, however it is tokenised.
    """
    limit = transport.info.context_length
    if len(text) > limit * transport.tokenizer.longest_token * _SLACK:
        raise ContextLengthError(
            f"the prompt has {len(text)} characters, more than the {limit} tokens that the "
            f"model's context holds can spell",
            param="prompt",
        )
    tokenise = transport.tokenizer.encode
    if len(text) < _LONG_TEXT:
        return tokenise(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenise, text, add_special_tokens=add_special_tokens)
