"""The context managers of `rr.testing`.

Each takes the place of the runtime for programs that name no transport, in the whole process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from radixray.actors.transport import Transport
from radixray.client.runtime import Connect, diverted
from radixray.testing.player import Replay
from radixray.testing.recorder import Recorder
from radixray.testing.script import Answers, Script


@contextmanager
def record(path: str | Path) -> Iterator[Recorder]:
    """Records the calls of programs to the runtime's model in a file.

    It is written at the end, unless the block fails. What programs say stands in it as it is.

    Yields:
        The calls so far, as `calls`.
    """
    recorder = Recorder()

    async def connect(below: Connect) -> Transport:
        return recorder.of(await below())

    with diverted(connect):
        yield recorder
    recorder.write(Path(path))


@contextmanager
def replay(path: str | Path) -> Iterator[Replay]:
    """Answers calls of programs as they were recorded; needs no runtime and no model.

    A call is known by what it asks, whatever the order. If the same is asked again, the recorded
    answers come in their order; the last one again and again where the model would repeat it
    (temperature 0, or a seed). A call that is not recorded raises NotRecordedError.

    Yields:
        The recording; `unused` are the prompts that were not asked for.

    Raises:
        InvalidRequestError: there is no such recording.
    """
    played = Replay(Path(path))
    with _instead(played):
        yield played


def recorded(path: str | Path, *, again: bool = False) -> AbstractContextManager[Recorder | Replay]:
    """`replay`, or `record` where there is no such file yet, or it is to be made `again`."""
    return record(path) if again or not Path(path).exists() else replay(path)


@contextmanager
def scripted(answers: Answers) -> Iterator[Script]:
    """Answers calls of programs from a script, by parts of their prompts; see `Script`.

    Yields:
        The script; `prompts` is all it was asked.
    """
    script = Script(answers)
    with _instead(script):
        yield script


def _instead(transport: Transport) -> AbstractContextManager[None]:
    async def connect(below: Connect) -> Transport:
        return transport

    return diverted(connect)
