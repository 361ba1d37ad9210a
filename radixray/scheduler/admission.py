"""How much of what requests may still generate is kept free for them when others are admitted.

Reserving all of `max_tokens` would leave the pool half empty, since most requests stop sooner;
reserving nothing would admit requests only to retract them. So the reserved part adapts: each
step without a retraction lowers it a little, each retraction raises it.
"""

from __future__ import annotations

START, LEAST, MOST = 0.5, 0.05, 1.0
RAISE = 0.2
DECAY_STEPS = 400
"""Steps without a retraction from MOST down to LEAST."""


class GrowthEstimate:
    """The expected part of their remaining tokens that running requests will generate.

    Attributes:
        value: from LEAST to MOST.
    """

    def __init__(self) -> None:
        self.value = START

    def after_step(self, retracted: int) -> None:
        """A step ended in which so many requests were retracted."""
        if retracted:
            self.value = min(MOST, self.value + RAISE)
        else:
            self.value = max(LEAST, self.value - (MOST - LEAST) / DECAY_STEPS)

    def reset(self) -> None:
        """The engine is idle: what was learnt from these requests says little of the next."""
        self.value = START
