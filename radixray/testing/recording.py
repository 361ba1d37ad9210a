"""What is recorded of a call to a model, and the file it stands in.

The file is JSON Lines: a head that says which model it was, then a line for each call in the order
in which they began. Calls are known by what was asked, as text: the prompt, and every parameter
that the output depends on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from radixray.errors import InvalidRequestError
from radixray.protocol import (
    ErrorInfo,
    GenerateRequest,
    ModelInfo,
    Request,
    ScoreRequest,
    TokenLogprob,
    Usage,
)
from radixray.tokenizer.tokenizer import Tokenizer

VERSION = 1

_NO_CONTENT = frozenset(
    {
        "type",
        "request_id",
        "image_data",
        "prompt_ids",
        "choices",
        "cache_salt",
        "priority",
        "timeout_s",
        "jump_forward",
        "whole",
    }
)
"""Fields of a request that say nothing of what its output is, or are told as text."""

SpelledToken = list[Any]
"""An id, and its text, or its bytes where they are no text; of a special token, then ``true``."""


class Head(msgspec.Struct, kw_only=True):
    """The first line.

    Attributes:
        radixray_recording: version of the format.
        model: of the recording.
        chat_template: its Jinja source.
        variables: of the template.
        beginning: tokens that begin a text.
    """

    radixray_recording: int
    model: ModelInfo
    chat_template: str | None
    variables: dict[str, str]
    beginning: list[SpelledToken]


class Outcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What came of a call.

    Attributes:
        text: the output.
        tokens: of the output.
        pieces: characters and tokens of each piece in which it came.
        cancelled: the program ended the call, when this much had come.
        error: what ended it.
    """

    text: str = ""
    tokens: list[SpelledToken] = []
    pieces: list[tuple[int, int]] = []
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    grammar: dict[str, Any] | None = None
    choices: list[list[SpelledToken]] | None = None
    choice_logprobs: list[list[float]] | None = None
    cancelled: bool = False
    error: ErrorInfo | None = None


class Call(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line: what was asked, and what came of it.

    Attributes:
        call: ``generate``, ``score``, or ``commit``: a prompt computed ahead.
        prompt: as text.
        choices: of ``score``.
        params: what the output depends on, beside; defaults are left out.
    """

    call: str
    prompt: str
    choices: list[str] = []
    params: dict[str, Any] = {}
    outcome: Outcome = msgspec.field(default_factory=Outcome)

    @property
    def key(self) -> bytes:
        """Equal for calls of the same content."""
        content = (self.call, self.prompt, self.choices, _plain(self.params))
        return msgspec.json.encode(content, order="sorted")

    @property
    def repeatable(self) -> bool:
        """Whether a model says the same each time."""
        return self.params.get("temperature") == 0 or "seed" in self.params or self.call == "score"


def call_of(request: Request, tokenizer: Tokenizer) -> Call:
    """What is asked, without an outcome."""
    prompt = spelled_text(request.prompt_ids, tokenizer)
    if isinstance(request, ScoreRequest):
        choices = [spelled_text(choice, tokenizer) for choice in request.choices]
        return Call(call="score", prompt=prompt, choices=choices)
    if request.sampling.max_tokens == 0 and request.sampling.prompt_logprobs_from is None:
        return Call(call="commit", prompt=prompt)
    return Call(call="generate", prompt=prompt, params=_params(request))


def spelled_text(token_ids: list[int], tokenizer: Tokenizer) -> str:
    """The text of tokens, special ones by their names."""
    return b"".join(map(tokenizer.spelling, token_ids)).decode(errors="backslashreplace")


def spelled_tokens(token_ids: list[int], tokenizer: Tokenizer) -> list[SpelledToken]:
    """Tokens for people, from which `unspelled` makes bytes again."""
    spelled: list[SpelledToken] = []
    for token_id in token_ids:
        raw = tokenizer.spelling(token_id)
        try:
            token: SpelledToken = [token_id, raw.decode()]
        except UnicodeDecodeError:
            token = [token_id, list(raw)]
        spelled.append([*token, True] if token_id in tokenizer.special_ids else token)
    return spelled


def unspelled(token: SpelledToken) -> tuple[int, bytes, bool]:
    """Its id, its bytes, and whether it is special."""
    token_id, spelling, *special = token
    raw = spelling.encode() if isinstance(spelling, str) else bytes(spelling)
    return token_id, raw, bool(special)


def write(path: Path, head: Head, calls: list[Call]) -> None:
    """Writes a recording, and its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = map(msgspec.json.encode, [head, *calls])
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def read(path: Path) -> tuple[Head, list[Call]]:
    """A recording.

    Raises:
        InvalidRequestError: there is none, or it cannot be read.
    """
    try:
        first, *lines = path.read_bytes().splitlines()
        head = msgspec.json.decode(first, type=Head)
        calls = [msgspec.json.decode(line, type=Call) for line in lines if line.strip()]
    except FileNotFoundError:
        raise InvalidRequestError(f"there is no recording {path}", param="path") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidRequestError(f"{path} is no recording: {error}", param="path") from error
    if head.radixray_recording != VERSION:
        raise InvalidRequestError(
            f"{path} has version {head.radixray_recording}; this reads {VERSION}", param="path"
        )
    return head, calls


def _params(request: GenerateRequest) -> dict[str, Any]:
    params = {**_given(request.sampling), **_given(request)}
    del params["sampling"]
    if request.constraint is not None and request.constraint.predicate is not None:
        # Pickled code differs from run to run.
        params["constraint"]["predicate"] = "code"
    return msgspec.to_builtins(params, str_keys=True)


def _given(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields of a struct that are content and no defaults."""
    given = {}
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.name == "sampling" or (
            field.name not in _NO_CONTENT and field.default != value and value not in ({}, (), [])
        ):
            given[field.name] = msgspec.to_builtins(value, str_keys=True)
    return given


def _plain(value: Any) -> Any:
    """Numbers that are equal look the same."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
