"""Telling a model's reasoning from its answer, in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from radixray.checks import check_text
from radixray.errors import InvalidRequestError

MAX_DELIMITER_LENGTH = 256


class Delimiters(NamedTuple):
    """What begins and ends the reasoning."""

    begin: str = "<think>"
    end: str = "</think>"


class Split(NamedTuple):
    """Text, told apart."""

    reasoning: str
    answer: str


class ReasoningSplitter:
    """Reads an output piece by piece.

    Reasoning is what stands between the delimiters where the output begins with the first one, or
    where the prompt ended with it. White space around the delimiters is part of neither. Whatever
    may yet become a delimiter, or white space before one, is held back.

    Attributes:
        found: whether there is reasoning, an empty one too.
    """

    def __init__(self, delimiters: Delimiters, prompt: str) -> None:
        self._delimiters = delimiters
        self.found = prompt.rstrip().endswith(delimiters.begin)
        self._read: Callable[[], Split] = (
            self._skip_to_reasoning if self.found else self._look_for_begin
        )
        self._held = ""

    def push(self, text: str) -> Split:
        """What is now certain."""
        self._held += text
        return self._read()

    def finish(self) -> Split:
        """What was held back, when the output has ended."""
        held, self._held = self._held, ""
        if self._read == self._look_for_begin:
            return Split("", held)
        return Split(held.rstrip(), "")

    def _look_for_begin(self) -> Split:
        begin = self._delimiters.begin
        start = self._held.lstrip()
        if start.startswith(begin):
            self.found = True
            self._held = start[len(begin) :]
            return self._then(self._skip_to_reasoning)
        if begin.startswith(start):
            return Split("", "")
        return self._then(self._answer)

    def _skip_to_reasoning(self) -> Split:
        self._held = self._held.lstrip()
        return self._then(self._reasoning) if self._held else Split("", "")

    def _reasoning(self) -> Split:
        end = self._delimiters.end
        reasoning, found, rest = self._held.partition(end)
        if found:
            self._held = rest
            return Split(reasoning.rstrip(), self._then(self._skip_to_answer).answer)
        held = next(n for n in range(len(end) - 1, -1, -1) if self._held.endswith(end[:n]))
        reasoning = self._held[: len(self._held) - held].rstrip()
        self._held = self._held[len(reasoning) :]
        return Split(reasoning, "")

    def _skip_to_answer(self) -> Split:
        self._held = self._held.lstrip()
        return self._then(self._answer) if self._held else Split("", "")

    def _answer(self) -> Split:
        answer, self._held = self._held, ""
        return Split("", answer)

    def _then(self, read: Callable[[], Split]) -> Split:
        self._read = read
        return read()


def split(text: str, delimiters: Delimiters, prompt: str) -> tuple[str | None, str]:
    """The reasoning, None where there is none, and the answer, which ends `text`."""
    splitter = ReasoningSplitter(delimiters, prompt)
    first, last = splitter.push(text), splitter.finish()
    reasoning = first.reasoning + last.reasoning
    return (reasoning if splitter.found else None), first.answer + last.answer


def delimiters_of(value: Any) -> Delimiters | None:
    """What ``separate_reasoning=value`` asks for.

    Raises:
        InvalidRequestError: neither true nor false nor two texts.
    """
    if value is None or value is False:
        return None
    if value is True:
        return Delimiters()
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidRequestError(
            "separate_reasoning must be true, or the two texts that begin and end the reasoning, "
            f"not {value!r:.80}",
            param="separate_reasoning",
        )
    for text in value:
        check_text("separate_reasoning", text, MAX_DELIMITER_LENGTH)
        if not text or text != text.strip():
            raise InvalidRequestError(
                "separate_reasoning: a delimiter is neither empty nor has white space around it, "
                f"unlike {text!r:.80}",
                param="separate_reasoning",
            )
    return Delimiters(*value)
