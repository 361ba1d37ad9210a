"""What a batch has finished, in a file, so that the next run need not do it again.

One line of JSON a finished row. A line is written in one piece before its result is given out, so
a killed process loses nothing that it had finished; a last line that was torn is taken away when
the file is opened again. Lines reach the disk at the end, and at most SYNC_S seconds after they
were written while rows finish: what a machine that fails may lose.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from radixray.client.results import ProgramResult
from radixray.client.saved_values import from_plain, to_plain
from radixray.errors import InvalidRequestError
from radixray.protocol import Usage

VERSION = 1
"""Of the lines; each carries it."""

SYNC_S = 1.0

LOCK_WAIT_S = 1.0

_WHEN = {"deadline", "priority", "timeout_s"}
"""Parameters that change no result."""

_BEGINNING = b'{"version": '
_FIELDS = {
    "version",
    "index",
    "row",
    "error",
    "value",
    "variables",
    "usage",
    "text",
    "messages",
    "tokens",
}


class Journal:
    """The results of one batch, by row.

    A row is known again by its place and its content: the arguments of its program, the
    parameters of the run, the program's name and the model's. The code of the program is no part
    of that. Of several lines of one row the last counts.
    """

    def __init__(self, path: str | Path, identity: tuple[str, ...], file: int) -> None:
        self._path = path
        self._identity = list(identity)
        self._file = file
        self._at: dict[tuple[int, str], tuple[int, int]] = {}  # where a row's line is, its length
        self._failed: set[tuple[int, str]] = set()
        self._synced = time.monotonic()
        self._written = False
        self._end = 0

    @classmethod
    async def open(cls, path: str | Path, identity: tuple[str, ...]) -> Journal:
        """Reads the file, or makes it if there is none.

        Args:
            identity: what else must be equal for a result to be the row's: program, model.

        Raises:
            InvalidRequestError: the file is not a journal, or another batch writes to it; param
                ``resume``.
            OSError: it cannot be opened.
        """
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            journal = cls(path, identity, file)
            await journal._lock()
            journal._read()
        except BaseException:
            os.close(file)
            raise
        return journal

    def key(
        self,
        index: int,
        args: tuple[Any, ...],
        arguments: dict[str, Any],
        parameters: dict[str, Any],
    ) -> tuple[int, str]:
        """By which a row is known: its place, the program's arguments, those of generations.

        Raises:
            InvalidRequestError: the arguments hold what has no plain form.
        """
        parameters = {n: value for n, value in parameters.items() if n not in _WHEN}
        content = to_plain([self._identity, list(args), arguments, parameters], f"row {index}")
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return index, digest

    def find(self, key: tuple[int, str], *, failed: bool) -> ProgramResult | None:
        """The row's stored result; that of a failed one only where `failed`."""
        if key not in self._at or (key in self._failed and not failed):
            return None
        start, length = self._at[key]
        line = json.loads(os.pread(self._file, length, start))
        return ProgramResult(
            value=from_plain(line["value"]),
            variables={name: from_plain(value) for name, value in line["variables"].items()},
            usage=Usage(**line["usage"]),
            index=key[0],
            error=from_plain(line["error"]),
            _text=line["text"],
            _messages=from_plain(line["messages"]),
            _tokens=line["tokens"],
        )

    async def keep(
        self,
        key: tuple[int, str],
        run: Callable[[], Awaitable[ProgramResult]],
        *,
        retry_failed: bool,
    ) -> ProgramResult:
        """The stored result, or what `run` gives, which is stored.

        Raises:
            Exception: what `run` raised, then or, without `retry_failed`, in an earlier run.
        """
        result = self.find(key, failed=not retry_failed)
        if result is None:
            try:
                result = await run()
            except Exception as error:
                await self.add(key, ProgramResult(error=error))
                raise
            await self.add(key, result)
        if result.error is not None:
            raise result.error
        return result

    async def add(self, key: tuple[int, str], result: ProgramResult) -> None:
        """Stores a row's result.

        Raises:
            InvalidRequestError: it holds what has no plain form.
            OSError: it cannot be written; the file is as it was.
        """
        usage = result.usage
        line = {
            "version": VERSION,
            "index": key[0],
            "row": key[1],
            "error": to_plain(result.error, f"the error of row {key[0]}"),
            "value": to_plain(result.value, f"the value of row {key[0]}"),
            "variables": {
                name: to_plain(value, f"variable {name!r} of row {key[0]}")
                for name, value in result.variables.items()
            },
            "usage": {name: getattr(usage, name) for name in usage.__struct_fields__},
            "text": result.text(),
            "messages": to_plain(result.messages(), f"the messages of row {key[0]}"),
            "tokens": result.tokens(),
        }
        raw = json.dumps(line).encode() + b"\n"
        self._append(raw)
        self._note(line, self._end, len(raw))
        self._end += len(raw)
        if time.monotonic() - self._synced >= SYNC_S:
            self._synced = time.monotonic()
            await asyncio.to_thread(os.fsync, self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Brings what was written to the disk, and lets others use the file."""
        try:
            if self._written:
                os.fsync(self._file)
        finally:
            os.close(self._file)

    async def _lock(self) -> None:
        # A batch that was left early ends in the background.
        end = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise InvalidRequestError(
                        f"another batch writes to {self._path}", param="resume"
                    ) from None
            await asyncio.sleep(LOCK_WAIT_S / 50)

    def _read(self) -> None:
        """Learns which rows there are, and takes a torn last line away."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n") and _is_torn(raw):
                    os.ftruncate(self._file, self._end)
                    break
                line = self._parsed(raw, number)
                if not raw.endswith(b"\n"):
                    os.write(self._file, b"\n")
                    raw += b"\n"
                self._note(line, self._end, len(raw))
                self._end += len(raw)

    def _parsed(self, raw: bytes, number: int) -> dict[str, Any]:
        try:
            line = json.loads(raw)
            version = line["version"]
            if version == VERSION and line.keys() >= _FIELDS:
                return line
        except (ValueError, TypeError, KeyError):
            version = None
        what = f"is of version {version!r}, not {VERSION}" if version else "is no result of a batch"
        raise InvalidRequestError(f"line {number} of {self._path} {what}", param="resume")

    def _note(self, line: dict[str, Any], start: int, length: int) -> None:
        key = line["index"], line["row"]
        self._at[key] = start, length
        (self._failed.discard if line["error"] is None else self._failed.add)(key)

    def _append(self, raw: bytes) -> None:
        self._written = True
        rest = raw
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except BaseException:
            os.ftruncate(self._file, self._end)
            raise


def _is_torn(tail: bytes) -> bool:
    """Whether it is a part of a line of ours, or what a file system leaves of one."""
    written = tail.rstrip(b"\0")
    try:
        json.loads(tail)
    except ValueError:
        return written.startswith(_BEGINNING) or _BEGINNING.startswith(written)
    return False
