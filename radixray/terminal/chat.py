"""``radixray chat``: turns, streamed into a terminal."""

from __future__ import annotations

import contextlib
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

from rich.console import Console
from rich.markup import escape

from radixray.errors import InvalidRequestError, RadixRayError
from radixray.terminal.endpoint import Endpoint, Message, TokenCounts

HELP = "/reset forgets the conversation, /exit (or Ctrl-D) ends; Ctrl-C stops an answer"


def _read() -> str:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  it gives `input` its editing

    return input("> ")


class Chat:
    """A conversation.

    Args:
        model: None takes the first that the endpoint serves.
        system: what the model is told first.
        parameters: of each request, as OpenAI names them.

    Raises:
        RadixRayError: as `Endpoint.models`.
        InvalidRequestError: the endpoint does not serve `model`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        console: Console,
        *,
        model: str | None = None,
        system: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        served = endpoint.models()
        if not served or (model is not None and model not in served):
            raise InvalidRequestError(
                f"{endpoint.url} serves {', '.join(served) or 'no model'}, not {model!r}",
                param="model",
            )
        self.model = model or served[0]
        self._endpoint = endpoint
        self._console = console
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._parameters = parameters or {}
        self.messages = list(self._system)

    def run(self, read: Callable[[], str] = _read) -> None:
        """Takes turns until the input ends, or is ``/exit``.

        Args:
            read: the next line; raises EOFError at the end.
        """
        self._say(f"[bold]{escape(self.model)}[/] at {escape(self._endpoint.url)}")
        self._say(f"[dim]{HELP}[/]")
        while True:
            try:
                line = read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:  # at the prompt there is nothing to stop
                self._say("[dim]/exit or Ctrl-D ends[/]")
                continue
            if line == "/exit":
                return
            if line == "/reset":
                self.messages = list(self._system)
                self._say("[dim]forgotten[/]")
            elif line.startswith("/"):
                self._say(f"[dim]{HELP}[/]")
            elif line:
                self.turn(line)

    def turn(self, text: str) -> None:
        """One question and its answer; one that fails leaves the conversation as it was."""
        before = len(self.messages)
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        began = time.monotonic()
        first, counts, stopped = began, None, False
        try:
            chat = self._endpoint.chat(self.model, self.messages, self._parameters)
            with closing(cast(Any, chat)):
                for piece in cast(Iterator[str | TokenCounts], chat):
                    if isinstance(piece, TokenCounts):
                        counts = piece
                        continue
                    if not pieces:
                        first = time.monotonic()
                    pieces.append(piece)
                    self._console.out(_printable(piece), end="", highlight=False)
        except KeyboardInterrupt:
            stopped = True
            if not pieces:
                del self.messages[before:]
        except RadixRayError as error:
            del self.messages[before:]
            self._console.out("")
            self._say(f"[bold red]error:[/] {escape(error.message)}")
            return
        ended = time.monotonic()
        self._console.out("")
        if len(self.messages) > before:  # of a stopped answer, what was seen
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
        if stopped:
            self._say("[dim]stopped[/]")
        elif counts is not None:
            self._say(f"[dim]{_summary(counts, first - began, ended - first)}[/]")

    def _say(self, markup: str) -> None:
        self._console.print(markup, soft_wrap=True, highlight=False)


def _printable(text: str) -> str:
    """`text` without what would command the terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def _summary(counts: TokenCounts, waited_s: float, spoke_s: float) -> str:
    line = f"{counts.prompt} prompt tokens, {counts.cached} cached; {counts.completion} tokens"
    if counts.completion > 1 and spoke_s > 0:
        line += f", {(counts.completion - 1) / spoke_s:.0f}/s"
    return f"{line}; the first after {waited_s:.2f} s"
