"""Sharing cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixray.kernels.cpu import threads
from radixray.kernels.cpu.threads import default_threads, share_of, usable_cores

SHARES = {1: [1], 2: [2, 1, 1], 4: [4, 2, 1, 1], 8: [7, 3, 2], 16: [15, 7, 5, 3]}
"""Threads for each of 1, 2, ... processes on so many cores."""


@pytest.mark.parametrize(("cores", "shares"), SHARES.items())
def test_shares_fit_on_the_cores(cores: int, shares: list[int]) -> None:
    assert [share_of(cores, sharers + 1) for sharers in range(len(shares))] == shares
    assert share_of(cores, 100) == 1


@pytest.mark.parametrize(
    ("content", "want"),
    [("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1), ("max 100000", 6), ("", 6)],
)
def test_a_containers_quota_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, want: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    assert usable_cores() == default_threads() == 6
    (tmp_path / "cpu.max").write_text(content)
    assert usable_cores() == want
