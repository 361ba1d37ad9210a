"""What programs and their operations give back: plain data that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from radixray.constraint import GrammarReport
from radixray.protocol import TokenLogprob, Usage


class HasText:
    """What has a `text`, and is no string: who takes it for one is told."""

    if not TYPE_CHECKING:  # to a type checker, what is missing is missing

        def __getattr__(self, name: str) -> Any:
            hint = f"; its text has: `.text.{name}`" if hasattr(str, name) else ""
            message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=self)


class _Text(HasText):
    """A result that reads, and compares with strings, as its text."""

    text: str

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.text == other
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True, eq=False)
class Gen(_Text):
    """The result of a generation; as a string, its text.

    Attributes:
        text: the output, without stop string and stop token unless ``no_stop_trim`` keeps them, and
            without the reasoning where ``separate_reasoning`` tells it apart.
        reasoning: that reasoning; None where there is none, or nobody asked.
        value: what it reads as, where ``dtype`` or ``type`` asked for one; else the text.
        token_ids: all output tokens, stop token and stop string included.
        finish_reason: ``stop`` or ``length``.
        stop_reason: the stop string, the text that ``stop_regex`` matched, or the token id that
            ended it, or None.
        usage: tokens of this request.
        request_id: the engine's request.
        logprobs: of each output token, where ``logprobs`` asked for them.
        prompt_logprobs: of the prompt's tokens, where ``prompt_logprobs_from`` asked for them.
        grammar: of a constrained output: whether it is complete, and with ``fsm_debug`` how each
            token came to be.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None
    usage: Usage
    request_id: str
    reasoning: str | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    grammar: GrammarReport | None = None
    value: Any = ...

    def __post_init__(self) -> None:
        if self.value is ...:
            object.__setattr__(self, "value", self.text)


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice(_Text):
    """The result of a selection; as a string, the text chosen.

    Attributes:
        text: the choice taken.
        index: its place in the list of choices; the first of several with the same score.
        scores: for each choice, the mean of its tokens' log-probabilities; with
            ``unconditional_likelihood_normalized``, less those it has without the prompt. Empty
            in mode ``mask``, as the next two.
        probabilities: the softmax of `scores` at the temperature asked for, at 1 for 0.
        logprobs: for each choice, the natural-log probability of each token.
        unconditional_logprobs: those without the prompt, 0 for the first token, where the method
            asks for them.
        usage: tokens of its requests.
        request_id: the engine's request.
    """

    text: str
    index: int
    scores: list[float] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    unconditional_logprobs: list[list[float]] | None = None
    usage: Usage
    request_id: str

    @property
    def value(self) -> str:
        """The text."""
        return self.text


def plain_value(result: Any) -> Any:
    """The value of a result, or those of a list of them; anything else is its own value."""
    if isinstance(result, Gen | Choice):
        return result.value
    if isinstance(result, ProgramResult):
        return result.value
    if type(result) is list and result and all(isinstance(item, Gen | Choice) for item in result):
        return [item.value for item in result]
    return result


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """What a finished program leaves.

    ``result["x"]`` is the `Gen`, `Choice` or set value of variable `x`.

    Attributes:
        value: what the program returned.
        variables: by name; those of the root state.
        usage: the sum over all requests, those of branches included.
        index: the row's place in `Function.map`, else 0.
        error: what ended the program, for `Function.map` with ``on_error="return"``.
    """

    value: Any = None
    variables: dict[str, Any] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    index: int = 0
    error: Exception | None = None
    _text: str = field(default="", repr=False)
    _messages: list[dict[str, Any]] = field(default_factory=list, repr=False)
    _tokens: list[int] = field(default_factory=list, repr=False)

    def __getitem__(self, name: str) -> Any:
        """The variable; raises KeyError where there is none, as in a program that failed."""
        if name not in self.variables:
            known = ", ".join(self.variables) or "none"
            failed = "" if self.error is None else f"; the program failed: {self.error}"
            raise KeyError(f"no variable {name!r}; there are: {known}{failed}") from self.error
        return self.variables[name]

    def __contains__(self, name: object) -> bool:
        return name in self.variables

    def text(self) -> str:
        """The whole text of the root state, template markup included."""
        return self._text

    def messages(self) -> list[dict[str, Any]]:
        """The messages of the root state."""
        return self._messages

    def tokens(self) -> list[int]:
        """The token ids of the root state."""
        return self._tokens


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """A piece of a running program's output.

    Attributes:
        kind: ``text`` that was generated or chosen; ``reasoning`` that ``separate_reasoning`` told
            apart; ``prompt``, which the program appended, with the template's markup; or the
            ``result``, which comes last. A state's texts and prompts, in their order, are its text.
        var: the variable of a text or a reasoning.
        branch: the path of fork indices from the root; empty at the root.
        delta: text that came.
        result: the program's result, in the last event.
    """

    kind: Literal["text", "reasoning", "prompt", "result"] = "text"
    var: str | None = None
    branch: tuple[int, ...] = ()
    delta: str = ""
    result: ProgramResult | None = None
