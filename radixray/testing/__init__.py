"""Tests of programs without a model: recorded calls played back, or answers from a script.

    with rr.testing.record("calls.jsonl"):      # once, with a model
        await program.run("a question")

    with rr.testing.replay("calls.jsonl"):      # from then on, without one
        await program.run("a question")

Loads neither torch nor ray.
"""

from radixray.testing.contexts import record, recorded, replay, scripted
from radixray.testing.player import Replay
from radixray.testing.recorder import Recorder
from radixray.testing.script import Script

__all__ = ["Recorder", "Replay", "Script", "record", "recorded", "replay", "scripted"]
