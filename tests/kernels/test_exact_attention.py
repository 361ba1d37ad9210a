"""The native attention, on every instruction set, and numba's: the same bits however it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from attention_cases import make_case, naive_attention

from radixray.kernels.attention import AttentionBackend
from radixray.kernels.cpu import native
from radixray.kernels.cpu.native_attention import NativeAttention
from radixray.kernels.cpu.numba_attention import NumbaAttention
from radixray.kernels.kv_pool import KVPool

INSTRUCTIONS = ["avx512_bf16", "avx512", "avx2", "plain"]
RUNNABLE = INSTRUCTIONS[INSTRUCTIONS.index(native.instructions()) :]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["numba", *RUNNABLE], scope="module")
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    if request.param == "numba":
        return NumbaAttention()
    return NativeAttention(native.load(request.param))


def test_large_scores(backend: AttentionBackend) -> None:
    """Scores far apart: the weight of most keys is zero, and nothing overflows."""
    case = make_case([(1, 300), (80, 400)], dim=64)
    case.q *= 300
    assert (case.run(backend).double() - case.expected()).abs().max() < 1e-3


@dataclass
class Stream:
    """A sequence whose queries, keys and values are known, and how far it is computed."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    slots: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))

    @classmethod
    def random(cls, length: int, dtype: torch.dtype, seed: int) -> Stream:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (
            torch.randn(length, heads, 64, generator=generator).to(dtype) for heads in (6, 2, 2)
        )
        return cls(q, k, v)


class Pool:
    """A pool that gives out slots in random order."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.kv = KVPool(1, 2, 64, 16_000, dtype)
        self.kv.k.fill_(torch.nan)
        self.kv.v.fill_(torch.nan)
        self._free = iter(np.random.default_rng(seed).permutation(16_000).astype(np.int32))

    def step(
        self, backend: AttentionBackend, work: Sequence[tuple[Stream, int]]
    ) -> list[torch.Tensor]:
        """Attend for the next n tokens of each sequence."""
        parts: list[list[torch.Tensor]] = [[], [], []]
        out_slots = []
        for sequence, n in work:
            done = len(sequence.slots)
            new = np.array([next(self._free) for _ in range(n)], np.int32)
            sequence.slots = np.concatenate([sequence.slots, new])
            out_slots.append(new)
            for found, tensor in zip(parts, (sequence.q, sequence.k, sequence.v), strict=True):
                found.append(tensor[done : done + n])
        lens = np.array([n for _, n in work], np.int32)
        metadata = backend.prepare(
            lens, int(np.cumprod(lens == 1).sum()), [sequence.slots for sequence, _ in work]
        )
        q, k, v = (torch.cat(found) for found in parts)
        slots = torch.from_numpy(np.concatenate(out_slots)).long()
        out = backend.forward(0, q, k, v, slots, self.kv, metadata)
        return list(out.split(lens.tolist()))


def whole(backend: AttentionBackend, sequence: Stream) -> torch.Tensor:
    """All of a sequence at once, alone."""
    fresh = Stream(sequence.q, sequence.k, sequence.v)
    return Pool(sequence.q.dtype, 0).step(backend, [(fresh, len(sequence.q))])[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 64, 500])
def test_chunks_change_no_bit(backend: AttentionBackend, chunk: int, dtype: torch.dtype) -> None:
    sequence = Stream.random(600, dtype, seed=1)
    expected, pool = whole(backend, sequence), Pool(dtype, seed=2)
    context = naive_attention(sequence.q[-3:], sequence.k, sequence.v)
    assert (expected[-3:].double() - context).abs().max() < 0.02
    while len(sequence.slots) < 600:
        done = len(sequence.slots)
        n = min(chunk, 600 - done)
        (got,) = pool.step(backend, [(sequence, n)])
        assert torch.equal(got, expected[done : done + n])


def lengths_of_a_mixed_batch() -> Iterator[tuple[int, int]]:
    """(computed before, new now) of 32 sequences."""
    yield from ((37 * i, 1) for i in range(1, 17))
    yield from ((50 * i, 1 + 5 * i) for i in range(1, 17))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mixed_batch_changes_no_bit(backend: AttentionBackend, dtype: torch.dtype) -> None:
    pool, work = Pool(dtype, seed=3), []
    for seed, (before, new) in enumerate(lengths_of_a_mixed_batch()):
        sequence = Stream.random(before + new, dtype, seed)
        pool.step(backend, [(sequence, before)])
        work.append((sequence, new))
    outs = pool.step(backend, work)
    for out, (sequence, new) in list(zip(outs, work, strict=True))[::3]:
        assert torch.equal(out, whole(backend, sequence)[-new:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shared", [100, 600])
def test_a_shared_prefix_changes_no_bit(
    backend: AttentionBackend, shared: int, dtype: torch.dtype
) -> None:
    """Forty sequences read the same slots; each equals the sequence that has its own."""
    pool, work = Pool(dtype, seed=4), []
    prefix = Stream.random(shared, dtype, seed=5)
    pool.step(backend, [(prefix, shared)])
    for seed in range(40):
        own = Stream.random(1 + seed % 3, dtype, seed)
        parts = ((prefix.q, own.q), (prefix.k, own.k), (prefix.v, own.v))
        sequence = Stream(*(torch.cat(part) for part in parts))
        sequence.slots = prefix.slots
        work.append((sequence, len(own.q)))
    work.sort(key=lambda item: item[1])
    outs = pool.step(backend, work)
    for out, (sequence, new) in list(zip(outs, work, strict=True))[::13]:
        assert torch.equal(out, whole(backend, sequence)[-new:])


def test_a_shared_prefix_is_read_once() -> None:
    backend = NativeAttention(native.load())
    shared = np.arange(850, dtype=np.int32)
    contexts = [np.append(shared, np.int32(900 + i)) for i in range(20)]
    work = backend.prepare(np.ones(20, np.int32), 20, contexts)
    assert work.num_keys == 3 * 256 + 20 * (850 - 3 * 256 + 1)


def test_threads_change_no_bit(backend: AttentionBackend) -> None:
    case = make_case([(1, 900), (1, 700), (9, 800), (130, 900)], dim=64)
    threads = torch.get_num_threads()
    try:
        outs = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            outs.append(case.run(backend))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(out, outs[0]) for out in outs)
