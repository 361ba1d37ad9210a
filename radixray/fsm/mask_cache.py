"""The masks of the states last asked for, shared by the requests of one constraint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

import numpy as np
from numpy.typing import NDArray


class MaskCache:
    """A mapping from states to masks that forgets what was not used for longest; thread-safe."""

    def __init__(self, max_bytes: int, vocab_size: int) -> None:
        """Args: `max_bytes` bounds the masks kept; the last one is always kept."""
        self._most = max(1, max_bytes // max(1, vocab_size))
        self._masks: OrderedDict[Hashable, NDArray[np.bool_]] = OrderedDict()
        self._lock = Lock()

    def get(self, state: Hashable) -> NDArray[np.bool_] | None:
        """The mask of `state`, if it is kept."""
        with self._lock:
            mask = self._masks.get(state)
            if mask is not None:
                self._masks.move_to_end(state)
            return mask

    def put(self, state: Hashable, mask: NDArray[np.bool_]) -> None:
        """Keeps `mask`, which becomes read-only."""
        mask.flags.writeable = False
        with self._lock:
            self._masks[state] = mask
            self._masks.move_to_end(state)
            while len(self._masks) > self._most:
                self._masks.popitem(last=False)
