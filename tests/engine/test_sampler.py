"""Sampling against naive numpy: the filtered distribution, and that draws follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from radixray.engine.sampler import SamplingRow, _likeliest, _mask, sample, uniform
from radixray.protocol import SamplingParams

VOCAB = 40
LOGITS = np.random.default_rng(0).normal(0, 2, VOCAB).astype(np.float32)


def naive(params: SamplingParams, logits: np.ndarray = LOGITS) -> np.ndarray:
    """The distribution a token is to be drawn from, the slow and plain way."""
    scaled = logits.astype(np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    if params.top_k > 0:
        probs[order[params.top_k :]] = 0
        probs /= probs.sum()
    if params.top_p < 1:
        total, keep = 0.0, []
        for token in order:
            if total < params.top_p:
                keep.append(token)
            total += probs[token]
        probs[[t for t in range(VOCAB) if t not in keep]] = 0
    probs[probs < params.min_p * probs.max()] = 0
    return probs / probs.sum()


def draw(params: SamplingParams, count: int, **fields: Any) -> list[int]:
    row = {"allowed": None, "ids": np.empty(0, np.int32), "prompt_tokens": 0} | fields
    rows = [SamplingRow(params, 5, position, **row) for position in range(count)]
    return sample(torch.from_numpy(np.tile(LOGITS, (count, 1))), rows)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=1.5, top_k=5),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.3, min_p=0.1),
        SamplingParams(temperature=2.0, top_k=12, top_p=0.8, min_p=0.05),
        SamplingParams(temperature=1.0, top_k=1000),
        SamplingParams(temperature=1.0, top_p=1e-9),
    ],
    ids=str,
)
def test_draws_follow_the_filtered_distribution(params: SamplingParams) -> None:
    count = 8000
    want = naive(params)
    seen = np.bincount(draw(params, count), minlength=VOCAB)
    assert seen[want == 0].sum() == 0
    expected = want[want > 0] * count
    chi2 = float(((seen[want > 0] - expected) ** 2 / expected).sum())
    # Mean k, standard deviation sqrt(2 k) for k degrees of freedom; the seed is fixed.
    freedom = max(1, (want > 0).sum() - 1)
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


def test_greedy_takes_the_maximum_even_at_tiny_temperatures() -> None:
    best = int(LOGITS.argmax())
    assert draw(SamplingParams(temperature=0), 3) == [best] * 3
    for temperature in (1e-10, 1e-45, 1e-300, 5e-324):
        assert draw(SamplingParams(temperature=temperature), 50) == [best] * 50


def test_only_allowed_tokens_are_drawn() -> None:
    allowed = np.zeros(VOCAB, bool)
    allowed[[3, 17]] = True
    for temperature in (0.0, 1.0, 50.0):
        tokens = draw(SamplingParams(temperature=temperature), 200, allowed=allowed)
        assert set(tokens) <= {3, 17}
    assert draw(SamplingParams(temperature=0), 1, allowed=allowed) == [
        3 if LOGITS[3] > LOGITS[17] else 17
    ]


@pytest.mark.parametrize(("frequency", "presence"), [(0.2, 0), (1.5, 0), (0, 1.9), (-2, 0.3)])
def test_penalties_count_occurrences_and_presence(frequency: float, presence: float) -> None:
    history = np.argsort(-LOGITS)[[0, 0, 1, 2, 2, 2]].astype(np.int32)
    want = LOGITS.astype(np.float64)
    for token in range(VOCAB):
        count = int((history == token).sum())
        want[token] -= frequency * count + presence * (count > 0)
    params = SamplingParams(temperature=0, frequency_penalty=frequency, presence_penalty=presence)
    assert draw(params, 1, ids=history) == [int(want.argmax())]
    assert draw(params, 1) == [int(LOGITS.argmax())]  # nothing generated yet
    # What the prompt holds does not count.
    assert draw(params, 1, ids=history, prompt_tokens=6) == [int(LOGITS.argmax())]


@pytest.mark.parametrize("penalty", [0.5, 1.2, 3.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    history = np.argsort(-LOGITS)[[0, 0, 1, 2, -1, -2]].astype(np.int32)
    reference = RepetitionPenaltyLogitsProcessor(penalty)
    ids = torch.from_numpy(history.astype(np.int64))[None]
    want = reference(ids, torch.from_numpy(LOGITS[None].copy()))[0].numpy()
    params = SamplingParams(temperature=0, repetition_penalty=penalty)
    logits = torch.from_numpy(LOGITS[None].copy())
    for prompt_tokens in (0, 3, 6):  # prompt and output count alike
        row = SamplingRow(params, 5, 0, None, history, prompt_tokens)
        logits = torch.from_numpy(LOGITS[None].copy())
        assert sample(logits, [row]) == [int(want.argmax())]
        assert np.allclose(logits[0].numpy(), want, rtol=1e-6)


def test_logit_bias_is_added() -> None:
    best, last = int(LOGITS.argmax()), int(LOGITS.argmin())
    assert draw(SamplingParams(temperature=0, logit_bias={last: 100.0}), 1) == [last]
    without = draw(SamplingParams(temperature=1, logit_bias={best: -100.0}), 300)
    assert best not in without
    alike = SamplingParams(temperature=1.0, logit_bias={best: -1.5, last: 4})
    want = LOGITS.copy()
    want[[best, last]] += [-1.5, 4]
    expected = naive(SamplingParams(temperature=1.0), want)
    seen = np.bincount(draw(alike, 8000), minlength=VOCAB) / 8000
    assert np.abs(seen - expected).max() < 0.02


def test_a_row_does_not_depend_on_its_batch() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9)
    together = draw(params, 64)
    rows = [SamplingRow(params, 5, p, None, np.empty(0, np.int32), 0) for p in range(64)]
    alone = [sample(torch.from_numpy(LOGITS[None].copy()), [row])[0] for row in rows]
    assert together == alone


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.95, 0.999])
def test_a_large_vocabulary_is_sorted_only_as_far_as_needed(spread: float, top_p: float) -> None:
    """The nucleus is that of a full sort, whatever the shape of the distribution, ties included."""
    logits = np.random.default_rng(1).normal(0, 1, 5000).round(2) * spread
    probs = torch.softmax(torch.from_numpy(logits), -1).numpy()
    want = np.argsort(-probs, kind="stable")
    kept = int((np.cumsum(probs[want]) - probs[want] < top_p).sum())
    found, ids = _likeliest(probs, top_p)
    assert len(ids) >= kept
    assert np.array_equal(ids, want[: len(ids)])
    assert np.array_equal(found, probs[ids])


def test_a_mask_holds_for_every_logit_there_is() -> None:
    """Not-a-number, infinities and zeros of both signs: kept where allowed, hidden elsewhere."""
    values = np.array([1.5, -0.0, 0.0, np.nan, np.inf, -np.inf, 1e-40], np.float32)
    for allowed in (np.arange(7) % 2 == 0, np.arange(7) % 2 == 1):
        logits = values.copy()
        _mask(logits, allowed)
        assert np.array_equal(logits[allowed].view(np.int32), values[allowed].view(np.int32))
        assert np.isneginf(logits[~allowed]).all()


def test_uniform_numbers_are_uniform_and_keyed() -> None:
    numbers = np.array([uniform(seed, position) for seed in range(50) for position in range(200)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert len(np.unique(numbers)) == len(numbers)
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 500) ** 2 / 500).sum() < 19 + 5 * np.sqrt(38)
    # Neighbouring positions and seeds are unrelated.
    grid = numbers.reshape(50, 200)
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.04
