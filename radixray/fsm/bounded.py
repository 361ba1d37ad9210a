"""Compiling specifications that strangers wrote: elsewhere first, within limits.

A child process compiles first, under limits of memory, CPU and wall time. An automaton it sends
back; a grammar it has then proved to be cheap, and it is compiled again here, as llguidance's
matchers cannot be sent. The child is kept warm, so this costs a few milliseconds; it is replaced
when a limit ended it, when a caller gave up, and after RECYCLE_AFTER constraints.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from radixray.constraint import Constraint
from radixray.errors import AbortedError, GrammarTooComplexError, RadixRayError
from radixray.fsm.byte_automaton import ByteAutomaton
from radixray.fsm.compile_worker import Prepared, Setup, read_frame, write_frame
from radixray.fsm.compiler import (
    MAX_CONSTRAINTS,
    ConstraintCompiler,
    compile_constraint,
    finish,
    prepare,
)
from radixray.fsm.matcher import CompiledConstraint
from radixray.fsm.vocabulary import TokenVocabulary

RECYCLE_AFTER = 500
"""Constraints one child prepares: what a library may leak stays bounded."""

START_S = 60.0
"""Longest a child may take to start, which is not the constraint's fault."""

_TRIFLE = Constraint(json_schema='{"type":"null"}')
_POLL_S = 0.05
_CHEAP_CHOICES = 64 * 1024
_CHEAP_REGEX = 100
_CHEAP_SCHEMA = 4 * 1024
_COSTLY_KEYWORDS = re.compile(r'"(?:pattern|patternProperties|allOf|anyOf|oneOf|\$ref)"|\d{4}')


@dataclass(frozen=True)
class CompileLimits:
    """What one constraint may take to compile.

    Attributes:
        wall_s: time, from when a child is free for it.
        cpu_s: of one core.
        memory_bytes: beyond what compiling needs anyway.
    """

    wall_s: float = 20.0
    cpu_s: float = 10.0
    memory_bytes: int = 2 * 2**30


def is_cheap(constraint: Constraint) -> bool:
    """Whether a constraint may be compiled here at once.

    Short choices, and short schemas without patterns, alternatives, references and big numbers,
    take time in proportion to their length; so does a regex without repeats and alternatives. A
    predicate is a program of ours, not a specification.
    """
    if constraint.choices is not None:
        return sum(map(len, constraint.choices)) <= _CHEAP_CHOICES
    if constraint.regex is not None:
        return len(constraint.regex) <= _CHEAP_REGEX and not set(constraint.regex) & set("*+{?|")
    if constraint.json_schema is not None:
        text = constraint.json_schema
        return len(text) <= _CHEAP_SCHEMA and not _COSTLY_KEYWORDS.search(text)
    return constraint.predicate is not None


class BoundedCompiler:
    """A ConstraintCompiler that strangers may use; thread-safe.

    Constraints that need the child wait for one another; those that are cheap or known do not.
    """

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        limits: CompileLimits | None = None,
        max_constraints: int = MAX_CONSTRAINTS,
    ) -> None:
        self._vocabulary = vocabulary
        self._limits = limits or CompileLimits()
        self._kept = ConstraintCompiler(vocabulary, max_constraints)
        self._child: _Child | None = None
        self._turn = threading.Lock()
        self._waiting = ThreadPoolExecutor(1, "radixray-compile")

    def warm_up(self) -> None:
        """Does what the first constraint would wait for: the child, and llguidance's own trie."""
        with self._turn:
            self._ready_child()
        compile_constraint(_TRIFLE, self._vocabulary)

    def close(self) -> None:
        """Ends the child; a later constraint starts another."""
        with self._turn:
            self._drop_child()

    def compile(
        self, constraint: Constraint, cancelled: threading.Event | None = None
    ) -> CompiledConstraint:
        """The compiled constraint, from the cache if it is there; blocks.

        Args:
            cancelled: once set, the child is killed and the call ends.

        Raises:
            ConstraintError: as compile_constraint.
            GrammarTooComplexError: a limit was reached. It is not remembered.
            AbortedError: `cancelled` was set.
        """
        known = self._kept.get(constraint)
        if known is not None:
            return known
        constraint.validate()
        if is_cheap(constraint):
            return self._keep(constraint, prepare(constraint))
        cancelled = cancelled or threading.Event()
        while not self._turn.acquire(timeout=_POLL_S):
            _check(cancelled)
        try:
            # Of a burst with one new constraint, the first compiles it for all.
            known = self._kept.get(constraint)
            return known or self._keep(constraint, self._prepare_in_child(constraint, cancelled))
        finally:
            self._turn.release()

    def _keep(
        self, constraint: Constraint, prepared: ByteAutomaton | str | None
    ) -> CompiledConstraint:
        return self._kept.put(constraint, finish(constraint, prepared, self._vocabulary))

    async def compile_async(self, constraint: Constraint) -> CompiledConstraint:
        """As `compile`, beside the event loop; cancelling the task kills the child."""
        known = self._kept.get(constraint)
        if known is not None:
            return known
        constraint.validate()
        cancelled = threading.Event()
        # The event loop's own threads are few: those waiting for the child must not hold them.
        threads = None if is_cheap(constraint) else self._waiting
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(threads, self.compile, constraint, cancelled)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def _prepare_in_child(
        self, constraint: Constraint, cancelled: threading.Event
    ) -> ByteAutomaton | str | None:
        try:
            child = self._ready_child()
            child.wait_until_ready(cancelled)
            answer = child.ask(constraint, self._limits.wall_s, cancelled)
            if child.served >= RECYCLE_AFTER:
                self._drop_child()
            return answer.result()
        except RadixRayError:
            if self._child is not None and not self._child.is_idle:
                self._drop_child()
                self._ready_child()  # warm again for the next one
            raise

    def _ready_child(self) -> _Child:
        if self._child is None or not self._child.is_alive:
            self._child = _Child(self._vocabulary, self._limits)
        return self._child

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


class _Child:
    """One worker process.

    Attributes:
        served: constraints it has answered.
        is_idle: it is not in the middle of one.
    """

    def __init__(self, vocabulary: TokenVocabulary, limits: CompileLimits) -> None:
        self.served = 0
        self.is_idle = True
        self._ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "radixray.fsm.compile_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        setup = Setup(
            token_bytes=[vocabulary.bytes_of(i) for i in range(vocabulary.vocab_size)],
            eos_token_ids=list(vocabulary.eos_token_ids),
            vocab_size=vocabulary.vocab_size,
            memory_bytes=limits.memory_bytes,
            cpu_s=limits.cpu_s,
        )
        # In a thread of its own: a pipe takes only so much until the child, still starting, reads.
        data = msgspec.msgpack.encode(setup)
        threading.Thread(target=self._send, args=(data,), daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait_until_ready(self, cancelled: threading.Event) -> None:
        """Waits until it has started; raises AbortedError, or RuntimeError where it does not."""
        if not self._ready:
            if self._receive(time.monotonic() + START_S, cancelled) is None:
                raise RuntimeError("the process that compiles constraints did not start")
            self._ready = True

    def ask(self, constraint: Constraint, wall_s: float, cancelled: threading.Event) -> Prepared:
        """What becomes of a constraint.

        Raises:
            GrammarTooComplexError: a limit was reached.
            AbortedError: `cancelled` was set.
        """
        self.is_idle = False
        kind = constraint.kind
        self._send(msgspec.msgpack.encode(constraint))
        frame = self._receive(time.monotonic() + wall_s, cancelled)
        if frame is None:
            what = f"over {wall_s:g} s" if self.is_alive else "more time or memory than is allowed"
            raise GrammarTooComplexError(f"{kind} takes {what} to compile", param=kind)
        self.served += 1
        self.is_idle = True
        return msgspec.msgpack.decode(frame, type=Prepared)

    def kill(self) -> None:
        """Ends the process, and waits until it is gone."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has died: the answer will be missing
            write_frame(self._process.stdin, data)

    def _receive(self, deadline: float, cancelled: threading.Event) -> bytes | None:
        """The next message; None at the deadline, or where the process has ended."""
        stream = self._process.stdout
        assert stream is not None
        while time.monotonic() < deadline:
            _check(cancelled)
            if select.select([stream], [], [], _POLL_S)[0]:
                return read_frame(stream)
        return None


def _check(cancelled: threading.Event) -> None:
    if cancelled.is_set():
        raise AbortedError("compiling the constraint was cancelled")
