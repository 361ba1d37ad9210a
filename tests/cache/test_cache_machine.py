"""Runs the state machine: 10,000 steps, or for as long as `RADIXRAY_SOAK_STEPS` asks."""

from __future__ import annotations

import os

import pytest
from cache_machine import CacheMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

STEPS = int(os.environ.get("RADIXRAY_SOAK_STEPS", "10000"))
MOST_STEPS = 50
MEAN_STEPS = 35
"""Of one example; hypothesis ends some early."""

PAGE_SIZES = (1, 2, 16)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_operation_keeps_every_promise(page_size: int) -> None:
    class Machine(CacheMachine):
        size = page_size

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=STEPS // MEAN_STEPS // len(PAGE_SIZES) + 1,
            stateful_step_count=MOST_STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
