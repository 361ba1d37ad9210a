"""What a program appends to its state: immutable descriptions, run when they are appended."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from radixray.client.choice_methods import METHODS, Method, check_method
from radixray.client.parameters import check_parameters
from radixray.client.results import Choice, Gen
from radixray.errors import InvalidRequestError


class Expression:
    """Something a state can append; joins with `+` to strings and other expressions."""

    def __add__(self, other: Expression | str) -> Expression:
        return Concat((self, as_expression(other)))

    def __radd__(self, other: str) -> Expression:
        return Concat((as_expression(other), self))

    def __format__(self, spec: str) -> str:
        raise InvalidRequestError(
            f"{type(self).__name__} stands in an f-string, which holds only text; join it with +"
        )

    def parts(self) -> Iterator[Expression]:
        """The expressions it is a concatenation of, in order."""
        yield self


@dataclass(frozen=True)
class Text(Expression):
    """Fixed text."""

    text: str


@dataclass(frozen=True)
class Concat(Expression):
    """One expression after the other."""

    items: tuple[Expression, ...]

    def parts(self) -> Iterator[Expression]:
        for item in self.items:
            yield from item.parts()


@dataclass(frozen=True)
class GenExpression(Expression):
    """A generation whose result becomes variable `name`."""

    name: str | None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SelectExpression(Expression):
    """A choice among fixed texts whose result becomes variable `name`."""

    name: str | None
    choices: tuple[str, ...]
    method: Method = METHODS[0]
    temperature: float = 0.0
    mode: str = "score"
    seed: int | None = None
    cache_salt: str | None = None
    list_append: bool = False
    appends: bool = True


@dataclass(frozen=True)
class RoleExpression(Expression):
    """One message of a chat."""

    role: str
    content: Expression


@dataclass(frozen=True)
class RoleBoundary(Expression):
    """Where one message of a chat begins, or ends."""

    role: str
    begins: bool


def gen(name: str | None = None, **params: Any) -> GenExpression:
    """A generation.

    Args:
        name: the variable that gets the result; by default ``gen_0``, ``gen_1`` and so on.
        params: fields of `SamplingParams` and of `Constraint` (e.g. `regex`), and `cache_salt`,
            `priority` and `timeout_s` of `GenerateRequest`.
            `max_tokens` is 128 unless given.
            ``dtype=`` int, float, bool or str (in quotes) holds the output to that, and
            ``type=`` to the JSON of a pydantic model or of any type that pydantic knows;
            the result's `value` is then of that type, or the generation fails with OutputError.
            ``n=`` makes so many samples of one prompt: the result is their list, and the text
            goes on with the first.
            ``separate_reasoning=`` true, or the two texts that begin and end a model's reasoning:
            the text is then the answer alone, and the result's `reasoning` the rest.
            ``no_stop_trim=`` true keeps the stop string, or the text of the stop token.
            ``list_append=`` true adds the result to the list that is variable `name`.
            ``deadline=`` is the point in time, in seconds as `time.time`, at which it fails with
            DeadlineExceededError.

    Raises:
        InvalidRequestError: an unknown or wrong parameter, or two constraints.
    """
    check_name(name)
    check_parameters(params)
    check_list_append(name, params.get("list_append"))
    return GenExpression(name, MappingProxyType(dict(params)))


def gen_int(name: str | None = None, **params: Any) -> GenExpression:
    """``gen(name, dtype=int)``; raises as `gen`."""
    return gen(name, dtype=int, **params)


def gen_string(name: str | None = None, **params: Any) -> GenExpression:
    """``gen(name, dtype=str)``: a string in double quotes; raises as `gen`."""
    return gen(name, dtype=str, **params)


def select(
    name: str | None,
    choices: Sequence[str],
    *,
    method: Method = METHODS[0],
    temperature: float = 0.0,
    mode: str = "score",
    seed: int | None = None,
    cache_salt: str | None = None,
    list_append: bool = False,
) -> SelectExpression:
    """One of `choices`, by their likelihood after the text so far.

    Args:
        name: the variable that gets the result; None names it as an unnamed `gen`.
        choices: at least one text, none of them empty.
        method: ``token_length_normalized`` takes the highest mean log-probability of a token;
            ``greedy_token_selection`` what greedy decoding would spell;
            ``unconditional_likelihood_normalized`` the highest mean, less what each token's
            log-probability is without the text so far. Or a function of your own, `Method`.
        temperature: 0 takes the best; else one is drawn by the scores' softmax at it.
        mode: ``score`` reads all choices; ``mask`` generates, held to the choices, which reads
            none and gives no scores.
        seed: of what is drawn; by default the run's, if it has one.
        cache_salt, list_append: as for `gen`.

    Raises:
        InvalidRequestError: `choices` is not a sequence of such texts, another argument is not
            one of these, or they do not go together.
    """
    check_name(name)
    check_list_append(name, list_append)
    check_parameters({"cache_salt": cache_salt, "temperature": temperature, "seed": seed})
    if isinstance(choices, str) or not all(isinstance(c, str) and c for c in choices):
        raise InvalidRequestError(
            f"choices must be a list of texts that are not empty, not {choices!r:.80}",
            param="choices",
        )
    if not choices:
        raise InvalidRequestError("choices must hold at least one text", param="choices")
    check_method(method)
    if mode not in ("score", "mask"):
        raise InvalidRequestError(f"mode must be 'score' or 'mask', not {mode!r:.80}", param="mode")
    if mode == "mask" and method != METHODS[0]:
        raise InvalidRequestError("mode 'mask' scores nothing by a method", param="method")
    if method == "greedy_token_selection" and temperature > 0:
        raise InvalidRequestError(
            "greedy_token_selection has no scores to draw by; leave temperature at 0",
            param="temperature",
        )
    return SelectExpression(
        name, tuple(choices), method, temperature, mode, seed, cache_salt, list_append
    )


def separate_reasoning(
    expression: Expression | str, begin: str = "<think>", end: str = "</think>"
) -> Expression:
    """`expression` with the reasoning told apart in all its generations, as `gen` does.

    Raises:
        InvalidRequestError: it generates nothing, or a delimiter is none.
    """
    items = tuple(as_expression(expression).parts())
    changed = tuple(_with_reasoning(item, (begin, end)) for item in items)
    if not _changes(items, changed):
        raise InvalidRequestError(
            "separate_reasoning holds no gen that reasoning could come from", param="expression"
        )
    return Concat(changed)


def system(content: Expression | str = "") -> RoleExpression:
    """A system message; raises InvalidRequestError as `as_expression`, or for a role inside."""
    return _role("system", content)


def user(content: Expression | str = "") -> RoleExpression:
    """A user message; raises as `system`."""
    return _role("user", content)


def assistant(content: Expression | str = "") -> RoleExpression:
    """An assistant message; raises as `system`."""
    return _role("assistant", content)


def system_begin() -> RoleBoundary:
    """Begins a system message, which `system_end` ends.

    Where an exception may come in between, use ``with s.system():``, which ends it then, too.
    """
    return RoleBoundary("system", True)


def system_end() -> RoleBoundary:
    """Ends a system message; appending it raises InvalidRequestError where none is open."""
    return RoleBoundary("system", False)


def user_begin() -> RoleBoundary:
    """Begins a user message, as `system_begin`."""
    return RoleBoundary("user", True)


def user_end() -> RoleBoundary:
    """Ends a user message, as `system_end`."""
    return RoleBoundary("user", False)


def assistant_begin() -> RoleBoundary:
    """Begins an assistant message, as `system_begin`."""
    return RoleBoundary("assistant", True)


def assistant_end() -> RoleBoundary:
    """Ends an assistant message, as `system_end`."""
    return RoleBoundary("assistant", False)


def as_expression(value: object) -> Expression:
    """`value` as an expression.

    Raises:
        InvalidRequestError: neither a string nor an expression.
    """
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, Expression):
        return value
    hint = ""
    if inspect.isawaitable(value):
        hint = ": await it first; what gen and select make is appended already"
    elif isinstance(value, Gen | Choice):
        hint = "; append its `.text`"
    raise InvalidRequestError(
        f"a state appends strings and expressions, not {type(value).__name__}{hint}"
    )


def nested_role_error(inner: str, outer: str) -> InvalidRequestError:
    """The error for a role that begins inside another."""
    return InvalidRequestError(
        f"role {inner!r} begins inside role {outer!r}; close that one first", param="role"
    )


def _role(role: str, content: Expression | str) -> RoleExpression:
    inner = as_expression(content)
    for part in inner.parts():
        if isinstance(part, RoleExpression | RoleBoundary):
            raise nested_role_error(part.role, role)
    return RoleExpression(role, inner)


def _with_reasoning(part: Expression, delimiters: tuple[str, str]) -> Expression:
    """`part`, or where it generates, another one."""
    if isinstance(part, GenExpression):
        return gen(part.name, **{**part.params, "separate_reasoning": delimiters})
    if isinstance(part, RoleExpression):
        items = tuple(part.content.parts())
        changed = tuple(_with_reasoning(item, delimiters) for item in items)
        if _changes(items, changed):
            return RoleExpression(part.role, Concat(changed))
    return part


def _changes(old: Sequence[Expression], new: Sequence[Expression]) -> bool:
    return any(after is not before for before, after in zip(old, new, strict=True))


def check_list_append(name: str | None, value: object) -> None:
    """Raises InvalidRequestError: not true or false, or true without a name."""
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(
            f"list_append must be true or false, not {value!r:.80}", param="list_append"
        )
    if value and name is None:
        raise InvalidRequestError("list_append needs the name of the list", param="list_append")


def check_name(name: object) -> None:
    """Raises InvalidRequestError: neither None nor a name of a variable."""
    if name is not None and not (isinstance(name, str) and name):
        raise InvalidRequestError(f"name must be a string, not {name!r}", param="name")
