"""The KV pool."""

from __future__ import annotations

import pytest
import torch

from radixray.kernels.kv_pool import KVPool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shape_and_size(dtype: torch.dtype) -> None:
    pool = KVPool(4, 3, 16, 50, dtype)
    assert pool.k.shape == pool.v.shape == (4, 3, 50, 16)
    assert pool.k.dtype == pool.v.dtype == dtype
    assert pool.num_slots == 50
    assert KVPool.bytes_per_slot(4, 3, 16, dtype) * 50 == pool.k.nbytes + pool.v.nbytes
