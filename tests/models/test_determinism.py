"""The logits of a token are the same bits however the engine gets to it, on the real model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_driver import Driver, Tokens

from radixray.kernels.cpu import select

LENGTH = 400
BATCH = 32


@pytest.fixture(scope="module", params=["native-float32", "native-bfloat16", "numba-bfloat16"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A model on kernels that promise this."""
    kind, dtype = request.param.split("-")
    driver: Driver = request.getfixturevalue(f"smollm2_{dtype}")
    before = driver.model.kernels
    if kind == "native":
        request.getfixturevalue("native_kernels")
        assert before.name == "native"
    else:
        driver.model.kernels = select.numba_kernels()
    yield driver
    driver.model.kernels = before


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return np.random.default_rng(0).integers(3, 49_000, LENGTH).tolist()


@pytest.fixture(scope="module")
def expected(driver: Driver, tokens: list[int]) -> torch.Tensor:
    """All at once, alone."""
    return driver.logits(tokens, chunk=LENGTH)


@pytest.mark.parametrize(("chunk", "length"), [(1, 25), (2, 25), (7, 150), (64, 400), (300, 400)])
def test_chunks(
    driver: Driver, tokens: list[int], expected: torch.Tensor, chunk: int, length: int
) -> None:
    assert torch.equal(driver.logits(tokens[:length], chunk), expected[:length])


def test_decode_after_a_long_context(
    driver: Driver, tokens: list[int], expected: torch.Tensor
) -> None:
    driver.reset(5)
    sequence = Tokens(tokens)
    driver.step([(sequence, LENGTH - 12)], rows="none")
    for position in range(LENGTH - 12, LENGTH):
        assert torch.equal(driver.step([(sequence, 1)])[0], expected[position])


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_where_pages_lie(
    driver: Driver, tokens: list[int], expected: torch.Tensor, page_size: int
) -> None:
    pages = np.random.default_rng(page_size).permutation(driver.pool.num_slots // page_size)
    slots = pages[:, None] * page_size + np.arange(page_size)
    driver.free = slots.ravel().astype(np.int32)
    sequence = Tokens(tokens)
    first = driver.step([(sequence, 200)], rows="all")
    assert torch.equal(torch.cat([first, driver.step([(sequence, 200)], rows="all")]), expected)


def test_in_a_mixed_batch(driver: Driver, tokens: list[int], expected: torch.Tensor) -> None:
    """Prefixes of one text of 32 lengths, half of them decoding, in one step."""
    driver.reset(6)
    lengths = [30 + 5 * i for i in range(BATCH)]
    news = [1 if i < BATCH // 2 else 2 + i for i in range(BATCH)]
    sequences = [Tokens(tokens[:length]) for length in lengths]
    before = [length - new for length, new in zip(lengths, news, strict=True)]
    driver.step(list(zip(sequences, before, strict=True)), rows="none")
    got = driver.step(list(zip(sequences, news, strict=True)))
    assert torch.equal(got, expected[[length - 1 for length in lengths]])


def test_cached(driver: Driver, tokens: list[int], expected: torch.Tensor) -> None:
    """Ten sequences over one prefix that another computed, in one step."""
    driver.reset(7)
    owner = Tokens(tokens)
    driver.step([(owner, 300)], rows="none")
    lengths = [1, 1, 1, 1, 3, 9, 17, 40, 64, 100]
    work = [(Tokens(tokens, computed=300, slots=owner.slots), n) for n in lengths]
    assert torch.equal(driver.step(work), expected[[299 + n for n in lengths]])


def test_all_layers_in_one_call(smollm2_bfloat16: Driver, tokens: list[int]) -> None:
    """Their bits, and those of keys and values, are those of norms, products and the rest alone."""
    driver, one_call = smollm2_bfloat16, select.native_kernels()
    if one_call.native_linear is None:
        pytest.skip("no such call on this processor")
    found, before = [], driver.model.kernels
    for kernels in (one_call, replace(one_call, library=None)):
        driver.model.kernels = kernels
        assert (driver.model._all_layers is None) == (kernels.library is None)
        driver.reset(8)
        driver.pool.k.zero_()
        sequences = [Tokens(tokens[i : i + 300]) for i in range(12)]
        short, long = sequences[:8], sequences[8:]
        steps = [
            driver.step([(s, 3 + i) for i, s in enumerate(short)], rows="none"),
            driver.step([*((s, 1) for s in short), (long[0], 290)]),
            driver.step([*((s, 1) for s in short), *((s, 17) for s in long[1:])], rows="all"),
            driver.step([(short[0], 1)]),
        ]
        found.append((steps, driver.pool.k.clone(), driver.pool.v.clone()))
    driver.model.kernels = before
    (steps, *pools), (wanted_steps, *wanted_pools) = found
    for got, wanted in zip([*steps, *pools], [*wanted_steps, *wanted_pools], strict=True):
        assert torch.equal(got, wanted)
    assert [len(step) for step in steps] == [0, 9, 59, 1]


def test_float32_is_close_to_the_torch_kernels(smollm2_float32: Driver, tokens: list[int]) -> None:
    model = smollm2_float32.model
    want, kernels = smollm2_float32.logits(tokens), model.kernels
    model.kernels = select.torch_kernels()
    try:
        got = smollm2_float32.logits(tokens)
    finally:
        model.kernels = kernels
    assert (got - want).abs().max() < 1e-3
