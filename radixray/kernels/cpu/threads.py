"""How many threads kernels should use, so that all who compute on a machine fit on its cores."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""In a container: microseconds of CPU time a period, or "max", and the period."""

_MANY = 8
"""Cores of which one is left to event loops and HTTP. Decoding hardly misses it: there, memory is
the limit; where cores are few, every one is needed."""


SPIN_COUNT = 2000
"""How often an OpenMP thread looks for work before it sleeps: some 20 microseconds. A decode step
has about 240 parallel regions, and waking a thread for each costs a fifth of it at batch 32, a
third at batch 1 (measured on two cores). Looking longer gains nothing, and stalls all who share the
cores."""


def set_waiting() -> None:
    """Has OpenMP threads wait as they should, unless the environment says how.

    Must come before torch is imported. It holds only as long as one thread of the process computes
    in parallel: of more threads than cores, libgomp has all sleep at once.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def default_threads(sharers: int = 1) -> int:
    """Threads for each of `sharers` processes that compute on this machine at the same time.

    More threads than cores are worse than fewer: at the end of every operation, all threads wait
    for one that has no core.
    """
    return share_of(usable_cores(), sharers)


def share_of(cores: int, sharers: int) -> int:
    """Threads for each of `sharers` processes on so many cores."""
    return max(1, (cores - (cores >= _MANY)) // sharers)


def usable_cores() -> int:
    """Cores this process may run on at once: its affinity, and its container's quota."""
    # Not everywhere; Python 3.13 has os.process_cpu_count for it.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such file, or no limit
        return cores
