"""The protocol of a RadixRay server beside OpenAI's: paths, and what a line of an answer is.

A request's body is a `GenerateRequest` or `ScoreRequest` as JSON. The answer is lines of JSON, each
a `Line`; empty ones come while there is nothing to say, so that silence means a lost connection.
"""

from __future__ import annotations

import msgspec

from radixray.protocol import Delta, ErrorInfo, ScoreResult

PREFIX = "/radixray/v1"
MODEL = f"{PREFIX}/model"
GENERATE = f"{PREFIX}/generate"
SCORE = f"{PREFIX}/score"
STATS = f"{PREFIX}/stats"
FLUSH = f"{PREFIX}/flush"
EXPLAIN = f"{PREFIX}/explain"

KEEP_ALIVE_S = 10.0
"""How often a silent answer gets an empty line."""


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One of these: a piece of an output, scores, or what ended the request instead."""

    delta: Delta | None = None
    score: ScoreResult | None = None
    error: ErrorInfo | None = None


class Flushed(msgspec.Struct):
    """How many pages a flush freed."""

    pages: int
