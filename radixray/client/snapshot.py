"""The state of a program as data, to go on from in another process."""

from __future__ import annotations

from typing import Any

import msgspec

from radixray.client.chat import SavedTranscript, Transcript
from radixray.client.content import Content
from radixray.client.run_context import RunContext
from radixray.client.saved_values import from_plain, to_plain
from radixray.client.state import State
from radixray.errors import InvalidRequestError, NotReadyError, ProgramError, SnapshotError
from radixray.protocol import Usage

VERSION = 1
"""Of `Snapshot`; raised with every change of its fields or their meaning."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state at rest; from `State.snapshot`, for `Function.resume`.

    Attributes:
        version: VERSION of the code that made it.
        model: name of the model whose tokens these are.
        tokenizer: fingerprint of its tokenizer and chat template.
        transcript: token ids, text, and messages.
        role: the role that is open, or None.
        branch: the path of fork indices from the root, on which seeds depend.
        variables: by name, in plain form (`radixray.client.saved_values`).
        usage: of the state and its branches.
    """

    version: int
    model: str
    tokenizer: str
    transcript: SavedTranscript
    role: str | None
    branch: tuple[int, ...]
    variables: dict[str, Any]
    usage: Usage

    def to_bytes(self) -> bytes:
        """As msgpack.

        Raises:
            InvalidRequestError: a text in it has no UTF-8 form.
        """
        try:
            return msgspec.msgpack.encode(self)
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidRequestError(f"the snapshot cannot be written: {error}") from error

    @classmethod
    def from_bytes(cls, raw: bytes) -> Snapshot:
        """What `to_bytes` was called on.

        Raises:
            SnapshotError: it is of another version, or something else.
        """
        try:
            # Its version first: the rest of another version may have any shape.
            version = msgspec.msgpack.decode(raw, type=_Versioned).version
            _check_version(version)
            return msgspec.msgpack.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise SnapshotError(f"this is no snapshot: {error}", param="snapshot") from error

    def restore(self, run: RunContext) -> State:
        """A state of `run` that is what the snapshot was taken of.

        Raises:
            SnapshotError: of another version or model than the run's.
            InvalidRequestError: a variable is of a class that is not loaded here.
        """
        _check_version(self.version)
        tokenizer, model = run.transport.tokenizer, run.transport.info.name
        if (self.model, self.tokenizer) != (model, tokenizer.fingerprint):
            other = f"model {self.model}" if self.model != model else "another tokenizer"
            raise SnapshotError(
                f"the snapshot is of {other}; this is model {model}", param="snapshot"
            )
        state = State(run, self.branch, self.role)
        content = Content.restored(tokenizer, self.transcript.content)
        state._transcript = Transcript.restored(tokenizer.chat_template, content, self.transcript)
        state._text.start_at_end()
        for name, plain in self.variables.items():
            state.set(name, from_plain(plain))
        state._count(self.usage)
        return state


class _Versioned(msgspec.Struct):
    version: int


def take(state: State) -> Snapshot:
    """As `State.snapshot`."""
    for each in state._family():
        if not all(queue.idle for queue in (each._queue, *each._calls)):
            raise NotReadyError("operations of this state or its branches still run: await them")
        each._queue.raise_undelivered()
    if state.error is not None:
        raise state._queue.deliver(state.error)
    if state._transcript.in_scope(besides=state._said):
        raise InvalidRequestError("a var_scope is open, which nothing could close again")
    transport = state._run.transport
    return Snapshot(
        version=VERSION,
        model=transport.info.name,
        tokenizer=transport.tokenizer.fingerprint,
        transcript=state._transcript.save(),
        role=state._roles.open,
        branch=state._branch,
        variables=_plain_variables(state),
        usage=state.usage,
    )


def _plain_variables(state: State) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, var in state._variables.items():
        try:
            result = var.result
        except ProgramError:  # failed and survived: it has no value to give
            continue
        plain[name] = to_plain(result, f"variable {name!r}")
    return plain


def _check_version(version: int) -> None:
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot is of version {version}; this is version {VERSION}", param="snapshot"
        )
