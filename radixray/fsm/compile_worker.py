"""The child process of `bounded`: prepares constraints under its own limits, one at a time.

Frames are a length of four bytes, then msgpack. The first is a `Setup`, answered by ``ready``; then
`Constraint`s come in and `Prepared`s go out, until standard input ends.
"""

from __future__ import annotations

import math
import resource
import struct
import sys
import time
from typing import IO

import msgspec
import numpy as np

from radixray.constraint import Constraint
from radixray.errors import GrammarTooComplexError, RadixRayError
from radixray.fsm.byte_automaton import ByteAutomaton
from radixray.fsm.compiler import finish, prepare
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import ErrorInfo


class Setup(msgspec.Struct):
    """The vocabulary to compile for, and the limits.

    Attributes:
        token_bytes, eos_token_ids, vocab_size: see TokenVocabulary.
        memory_bytes: of address space, beyond what the process needs by itself.
        cpu_s: for each constraint.
    """

    token_bytes: list[bytes]
    eos_token_ids: list[int]
    vocab_size: int
    memory_bytes: int
    cpu_s: float


class Prepared(msgspec.Struct, omit_defaults=True):
    """What became of a constraint: an automaton, a grammar that compiled, or an error.

    Attributes:
        transitions, byte_class, accepting: the arrays of a ByteAutomaton, as bytes.
        grammar: for llguidance.
        error: why there is neither.
    """

    transitions: bytes = b""
    byte_class: bytes = b""
    accepting: bytes = b""
    grammar: str | None = None
    error: ErrorInfo | None = None

    @classmethod
    def of(cls, prepared: ByteAutomaton | str | None) -> Prepared:
        """The wire form of what `prepare` returns."""
        if not isinstance(prepared, ByteAutomaton):
            return cls(grammar=prepared)
        return cls(
            transitions=prepared.transitions.tobytes(),
            byte_class=prepared.byte_class.tobytes(),
            accepting=prepared.accepting.tobytes(),
        )

    def result(self) -> ByteAutomaton | str | None:
        """What `prepare` returned there; raises what it raised."""
        if self.error is not None:
            raise self.error.to_error()
        if not self.accepting:
            return self.grammar
        accepting = np.frombuffer(self.accepting, dtype=np.bool_)
        transitions = np.frombuffer(self.transitions, dtype=np.int32)
        return ByteAutomaton(
            transitions.reshape(len(accepting), -1),
            np.frombuffer(self.byte_class, dtype=np.uint8),
            accepting,
        )


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Sends one message."""
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Receives one message; None where the stream ends."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (size,) = struct.unpack("<I", head)
    data = stream.read(size)
    return data if len(data) == size else None


def main() -> None:
    """Serves until standard input ends or a limit ends the process."""
    setup_frame = read_frame(sys.stdin.buffer)
    if setup_frame is None:
        return
    setup = msgspec.msgpack.decode(setup_frame, type=Setup)
    vocabulary = TokenVocabulary(setup.token_bytes, setup.eos_token_ids, setup.vocab_size)
    # What comes later for the first grammar must not count against it.
    finish(Constraint(lark='start: "a"'), 'start: "a"', vocabulary)
    prepare(Constraint(regex=r"(?i)\w\d\s"))  # the big classes are made once
    limit = _address_space() + setup.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    write_frame(sys.stdout.buffer, b"ready")
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        # The limit is on the process's whole life, in whole seconds.
        soft = math.ceil(time.process_time() + setup.cpu_s)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        prepared = _prepared(msgspec.msgpack.decode(frame, type=Constraint), vocabulary)
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(prepared))


def _prepared(constraint: Constraint, vocabulary: TokenVocabulary) -> Prepared:
    try:
        result = prepare(constraint)
        # The parent does this again; here it is found out whether it can.
        finish(constraint, result, vocabulary)
        return Prepared.of(result)
    except RadixRayError as error:
        return Prepared(error=ErrorInfo.of(error))
    except MemoryError:
        error = GrammarTooComplexError(
            f"{constraint.kind} takes too much memory to compile", param=constraint.kind
        )
        return Prepared(error=ErrorInfo.of(error))
    except Exception as error:
        return Prepared(error=ErrorInfo(type="RadixRayError", message=repr(error)))


def _address_space() -> int:
    """Bytes this process has mapped."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
