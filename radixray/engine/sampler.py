"""Choosing tokens from logits.

Sampling is keyed on (seed, position): the random number of a token does not depend on the batch,
on time, or on what was sampled before, so a request gives the same output alone, in a batch,
after retraction, and on another actor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from radixray.protocol import SamplingParams

_MASK64 = (1 << 64) - 1
_MINUS_INFINITY = np.float32(-np.inf).view(np.int32)
_ROUNDING = 1e-9
"""More than the rounding of a sum of probabilities, in any order."""


@dataclass(slots=True)
class SamplingRow:
    """How to choose the token of one row of logits.

    Attributes:
        params: the request's parameters.
        seed: never None here.
        position: index of the token in its sequence.
        allowed: bool [vocab], tokens a constraint allows, or None.
        ids: int32 tokens of prompt and output so far.
        prompt_tokens: how many of them are the prompt's.
        banned: ids that may not come yet.
    """

    params: SamplingParams
    seed: int
    position: int
    allowed: NDArray[np.bool_] | None
    ids: NDArray[np.int32]
    prompt_tokens: int
    banned: tuple[int, ...] = ()


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    """One token id a row.

    Args:
        logits: float32 [rows, vocab]; changed in place where masks or penalties apply.
    """
    numbers = logits.numpy()
    for index, row in enumerate(rows):
        params = row.params
        if params.logit_bias:
            numbers[index, list(params.logit_bias)] += list(params.logit_bias.values())
        if params.repetition_penalty != 1:
            _discourage(numbers[index], row)
        if params.frequency_penalty or params.presence_penalty:
            _penalise(numbers[index], row)
        if row.banned:
            numbers[index, list(row.banned)] = -np.inf
        if row.allowed is not None:
            _mask(numbers[index], row.allowed)
    # numpy's is ten times as fast as torch's; both take the first of equals.
    tokens: list[int] = numbers.argmax(-1).tolist()
    for index, row in enumerate(rows):
        if row.params.temperature > 0:
            tokens[index] = _sample_row(numbers[index], numbers[index, tokens[index]], row)
    return tokens


def _mask(logits: NDArray[np.float32], allowed: NDArray[np.bool_]) -> None:
    """Give what is not allowed a logit of minus infinity; on bits, as those need no branches."""
    keep = -allowed.astype(np.int32)
    bits = logits.view(np.int32)
    bits &= keep
    np.invert(keep, out=keep)
    keep &= _MINUS_INFINITY
    bits |= keep


def _discourage(logits: NDArray[np.float32], row: SamplingRow) -> None:
    ids = np.unique(row.ids)
    found, penalty = logits[ids], np.float32(row.params.repetition_penalty)
    logits[ids] = np.where(found < 0, found * penalty, found / penalty)


def _penalise(logits: NDArray[np.float32], row: SamplingRow) -> None:
    ids, counts = np.unique(row.ids[row.prompt_tokens :], return_counts=True)
    penalty = row.params.frequency_penalty * counts + row.params.presence_penalty
    logits[ids] -= penalty.astype(np.float32)


def _sample_row(logits: NDArray[np.float32], largest: np.float32, row: SamplingRow) -> int:
    params = row.params
    # The maximum first, in float64: tiny temperatures must give neither inf - inf nor 0 / 0.
    # numpy, where it is as fast: torch would wake all threads for each of these small arrays.
    scaled = logits.astype(np.float64)
    scaled -= np.float64(largest)
    with np.errstate(over="ignore"):  # to minus infinity, which weighs nothing
        scaled /= params.temperature
    ids: NDArray[np.int64] | None = None
    if 0 < params.top_k < len(scaled):
        values, found = torch.topk(torch.from_numpy(scaled), params.top_k)
        scaled, ids = values.numpy(), found.numpy()
    probs: NDArray[np.float64] = torch.softmax(torch.from_numpy(scaled), dim=-1).numpy()
    if params.top_p < 1:
        if ids is None:
            probs, ids = _likeliest(probs, params.top_p)
        # Keep the likeliest tokens until they reach top_p, the one that crosses it included.
        probs[_cumulative(probs) - probs >= params.top_p] = 0
    if params.min_p > 0:
        probs[probs < params.min_p * probs.max()] = 0
    cumulative = _cumulative(probs)
    threshold = uniform(row.seed, row.position) * cumulative[-1]
    choice = int(np.searchsorted(cumulative, threshold, side="right"))
    if choice == len(probs):  # rounding: nothing exceeds the threshold
        choice = int(np.flatnonzero(probs)[-1])
    return choice if ids is None else int(ids[choice])


def _cumulative(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    # numpy's own sum is several times slower; both add one after another.
    return torch.cumsum(torch.from_numpy(probs), dim=0).numpy()


def _likeliest(
    probs: NDArray[np.float64], top_p: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Tokens by falling probability, the first of equals first: as many as reach `top_p` surely.

    Only those above a bound are sorted. What lies below ``(1 - top_p) / vocab`` never matters, as
    all of it weighs less than ``1 - top_p``; mostly, a multiple of that will do.

    Args:
        probs: [vocab], which add up to 1.
    """
    for times in (512, 64, 8, 1, 0):
        bound = times * (1 - top_p) / len(probs)
        ids = np.flatnonzero(probs >= bound)
        found = probs[ids]
        if found.sum() > top_p + _ROUNDING:
            break
    order = np.argsort(-found, kind="stable")
    return found[order], ids[order]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) only.

    SplitMix64's finaliser (Steele, Lea, Flood, 2014) over both, twice, as in a counter-based
    generator.
    """
    return (_mix(_mix(seed) + (position + 1) * 0x9E3779B97F4A7C15) >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
