"""How log-probabilities become a choice: SGLang's three methods, over exactly the choices' tokens.

`logprobs[i]` are the natural-log probabilities of choice i's tokens after the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from radixray.errors import InvalidRequestError

METHODS = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)
"""Values of `method` of `select`, the default first."""

Logprobs = Sequence[Sequence[float]]

Method = str | Callable[..., Sequence[float]]
"""One of METHODS, or a function from the log-probabilities to a score for each choice. One with the
attribute ``unconditional = True`` gets those without the prompt, too, as a second argument."""


def check_method(method: object) -> None:
    """Raises InvalidRequestError: neither one of METHODS nor a function."""
    if not callable(method) and method not in METHODS:
        raise InvalidRequestError(
            f"method must be one of {', '.join(METHODS)}, or a function, not {method!r:.80}",
            param="method",
        )


def needs_unconditional(method: Method) -> bool:
    """Whether a method looks at the log-probabilities without the prompt."""
    if isinstance(method, str):
        return method == "unconditional_likelihood_normalized"
    return bool(getattr(method, "unconditional", False))


def scores_of(method: Method, logprobs: Logprobs, unconditional: Logprobs | None) -> list[float]:
    """The score of each choice.

    Raises:
        InvalidRequestError: a function of the caller's gave something else.
    """
    if isinstance(method, str):
        if unconditional is not None:
            return unconditional_scores(logprobs, unconditional)
        return mean_scores(logprobs)
    scores: Any = method(logprobs) if unconditional is None else method(logprobs, unconditional)
    try:
        scores = [float(score) for score in scores]
    except (TypeError, ValueError):
        scores = []
    if len(scores) != len(logprobs) or any(map(math.isnan, scores)):
        raise InvalidRequestError(
            f"method must give {len(logprobs)} numbers, one for each choice", param="method"
        )
    return scores


def mean_scores(logprobs: Logprobs) -> list[float]:
    """Of ``token_length_normalized``: the mean of each choice's log-probabilities."""
    return [_mean(row) for row in logprobs]


def unconditional_scores(logprobs: Logprobs, unconditional: Logprobs) -> list[float]:
    """Of ``unconditional_likelihood_normalized``: the mean of what the prompt adds to each token.

    `unconditional[i]` are choice i's log-probabilities with nothing before them, 0 for the first.
    """
    return [
        _mean([given - alone for given, alone in zip(row, alones, strict=True)])
        for row, alones in zip(logprobs, unconditional, strict=True)
    ]


def greedy_choice(logprobs: Logprobs) -> int:
    """Of ``greedy_token_selection``: the choice that greedy decoding would spell.

    Token by token, those of the highest log-probability stay. A choice that has ended stands there
    with its mean. Of what is left, the first.
    """
    width = max(map(len, logprobs))
    rows = [[*row, *[_mean(row)] * (width - len(row))] for row in logprobs]
    left = list(range(len(rows)))
    for column in range(width):
        best = max(rows[index][column] for index in left)
        left = [index for index in left if rows[index][column] == best]
    return left[0]


def probabilities(scores: Sequence[float], temperature: float) -> list[float]:
    """The softmax of scores at a temperature above 0."""
    best = max(scores)
    if best == -math.inf:
        return [1 / len(scores)] * len(scores)
    weights = [math.exp((score - best) / temperature) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def _mean(row: Sequence[float]) -> float:
    return sum(row) / len(row)
