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


@dataclass(slots=True)
class SamplingRow:
    """How to choose the token of one row of logits.

    Attributes:
        params: the request's parameters.
        seed: never None here.
        position: index of the token in its sequence.
        allowed: bool [vocab], tokens a constraint allows, or None.
        output_ids: int32 tokens generated so far, for penalties.
    """

    params: SamplingParams
    seed: int
    position: int
    allowed: NDArray[np.bool_] | None
    output_ids: NDArray[np.int32]


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    """One token id a row.

    Args:
        logits: float32 [rows, vocab]; changed in place where masks or penalties apply.
    """
    for index, row in enumerate(rows):
        _penalise(logits[index], row)
        if row.allowed is not None:
            logits[index].masked_fill_(torch.from_numpy(~row.allowed), -torch.inf)
    tokens = torch.argmax(logits, dim=-1).tolist()
    for index, row in enumerate(rows):
        if row.params.temperature > 0:
            tokens[index] = _sample_row(logits[index], row)
    return tokens


def _penalise(logits: torch.Tensor, row: SamplingRow) -> None:
    frequency, presence = row.params.frequency_penalty, row.params.presence_penalty
    if (frequency == 0 and presence == 0) or len(row.output_ids) == 0:
        return
    ids, counts = np.unique(row.output_ids, return_counts=True)
    penalty = torch.from_numpy((frequency * counts + presence).astype(np.float32))
    logits.index_add_(0, torch.from_numpy(ids.astype(np.int64)), -penalty)


def _sample_row(logits: torch.Tensor, row: SamplingRow) -> int:
    params = row.params
    # The maximum first, in float64: tiny temperatures must give neither inf - inf nor 0 / 0.
    scaled = (logits.double() - logits.max()) / params.temperature
    ids: torch.Tensor | None = None
    if 0 < params.top_k < scaled.numel():
        scaled, ids = torch.topk(scaled, params.top_k)
    probs = torch.softmax(scaled, dim=-1)
    if params.top_p < 1:
        if ids is None:
            probs, ids = torch.sort(probs, descending=True, stable=True)
        # Keep the likeliest tokens until they reach top_p, the one that crosses it included.
        before = torch.cumsum(probs, dim=0) - probs
        probs = torch.where(before < params.top_p, probs, 0.0)
    if params.min_p > 0:
        probs = torch.where(probs >= params.min_p * probs.max(), probs, 0.0)
    cumulative = torch.cumsum(probs, dim=0)
    threshold = uniform(row.seed, row.position) * float(cumulative[-1])
    choice = int(torch.searchsorted(cumulative, threshold, right=True))
    choice = min(choice, int(torch.nonzero(probs)[-1]))
    return choice if ids is None else int(ids[choice])


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
