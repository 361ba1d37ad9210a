"""The CPU attention backends against attention in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import SEQUENCES, TOLERANCE, Case, make_case

from radixray.kernels.attention import AttentionBackend
from radixray.kernels.cpu.select import native_kernels, numba_kernels, torch_kernels


@pytest.fixture(params=[torch_kernels, numba_kernels, native_kernels], scope="module")
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    return request.param().attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
def test_equals_naive_attention(
    backend: AttentionBackend, sequences: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    case = make_case(sequences, dtype=dtype)
    error = (case.run(backend).double() - case.expected()).abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (7, 1), (9, 3)], ids=str)
@pytest.mark.parametrize("dim", [8, 64, 128])
def test_head_shapes(backend: AttentionBackend, heads: tuple[int, int], dim: int) -> None:
    case = make_case([(1, 20), (6, 21)], heads=heads, dim=dim)
    assert (case.run(backend).double() - case.expected()).abs().max() < TOLERANCE[torch.float32]


def test_writes_keys_and_values_of_its_layer_only(backend: AttentionBackend) -> None:
    case = make_case([(1, 4), (3, 9)])
    before = case.pool.k[0].clone()
    case.run(backend)
    assert torch.equal(case.pool.k[1][:, case.out_slots], case.k.transpose(0, 1))
    assert torch.equal(case.pool.v[1][:, case.out_slots], case.v.transpose(0, 1))
    assert torch.equal(case.pool.k[0], before)


def test_a_step_that_only_extends_by_one_needs_no_decode_block(backend: AttentionBackend) -> None:
    case = make_case([(1, 20), (1, 30)])
    expected = case.run(backend)
    case.num_decode = 0
    assert torch.allclose(case.run(backend), expected, atol=1e-6)


def test_a_sequence_does_not_see_the_others_broken_values(backend: AttentionBackend) -> None:
    case = make_case([(1, 10), (1, 40), (4, 20), (9, 9)])
    expected = case.run(backend)
    broken = torch.from_numpy(case.context_slots[1].astype(np.int64))
    case.pool.k[1][:, broken] = torch.nan
    case.pool.v[1][:, broken] = torch.inf
    out = case.run(backend)
    others = [0, *range(2, len(out))]
    assert torch.equal(out[others], expected[others])
    assert out[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_result_hardly_depends_on_the_batch(
    backend: AttentionBackend, dtype: torch.dtype
) -> None:
    case = make_case([(1, 31 + 60 * i) for i in range(16)], heads=(9, 3), dim=64, dtype=dtype)
    together = case.run(backend)
    for i, slots in enumerate(case.context_slots):
        alone = Case(
            np.ones(1, np.int32),
            1,
            [slots],
            case.q[i : i + 1],
            case.k[i : i + 1],
            case.v[i : i + 1],
            case.out_slots[i : i + 1],
            case.pool,
            [case.contexts[i]],
        )
        tolerance = 1e-6 if dtype == torch.float32 else 1e-2
        assert (alone.run(backend)[0] - together[i]).abs().max() <= tolerance


def test_context_longer_than_the_first_mask(backend: AttentionBackend) -> None:
    for context in (30, 1025, 2500, 40):
        case = make_case([(3, context)], heads=(2, 1))
        error = (case.run(backend).double() - case.expected()).abs().max()
        assert error < TOLERANCE[torch.float32]


def test_strided_keys_and_values(backend: AttentionBackend) -> None:
    case = make_case([(5, 12)])
    expected = case.run(backend)
    case.k = torch.cat([case.k, case.k], dim=1)[:, : case.k.shape[1]]
    case.v = torch.cat([case.v, case.v], dim=1)[:, : case.v.shape[1]]
    assert torch.equal(case.run(backend), expected)
