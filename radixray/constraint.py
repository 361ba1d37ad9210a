"""The specification of what an output must match, as programs write it and requests carry it."""

from __future__ import annotations

from importlib import import_module

import msgspec

from radixray.checks import check_sequence, check_text
from radixray.errors import ConstraintError, InvalidRequestError
from radixray.json_schemas import json_schema_of

MAX_REGEX_LENGTH = 16_384
MAX_GRAMMAR_LENGTH = 256 * 1024
MAX_CONSTRAINT_CHOICES = 10_000
MAX_PREDICATE_BYTES = 1024 * 1024
MAX_MARKER_LENGTH = 1024

CONSTRAINT_KINDS = ("regex", "json_schema", "ebnf", "lark", "choices", "predicate")
"""The fields of Constraint that say what the output must match; exactly one is set."""

WHITESPACE = ("spaced", "compact", "flexible")
"""Values of `Constraint.whitespace`, the default first."""

_MAX_SPEC_LENGTH = {
    "regex": MAX_REGEX_LENGTH,
    "json_schema": MAX_GRAMMAR_LENGTH,
    "ebnf": MAX_GRAMMAR_LENGTH,
    "lark": MAX_GRAMMAR_LENGTH,
}


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the output must match; exactly one of CONSTRAINT_KINDS is set.

    Two constraints are equal where their specs are, so compiled ones are cached by it. Errors of
    the constructor and of `validate` are ConstraintErrors.

    Attributes:
        regex: Python `re` syntax, matched as by `re.fullmatch`.
        json_schema: JSON text of a schema. The constructor also takes what `json_schema_of` does:
            a dict, a pydantic model, a TypedDict, a dataclass, a TypeAdapter.
        ebnf: GBNF: ``root ::= ...``, recursive.
        lark: a Lark grammar in llguidance's dialect: ``start: ...``.
        choices: the output is one of these strings.
        predicate: a pickled Python predicate (see `radixray.fsm.predicate`); the constructor also
            takes the predicate itself. Code: only accepted from programs, never over HTTP.
        whitespace: with `json_schema`: ``spaced`` (the default) allows one space after each comma
            and colon; ``compact`` allows none, which leaves most to jump over; ``flexible`` allows
            a space, or a line break and its indentation, wherever JSON does. Never unbounded.
        start_after: the constraint begins only once this text was generated, e.g. ``</think>``;
            until then anything goes but the end of the output.
    """

    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    lark: str | None = None
    choices: tuple[str, ...] | None = None
    predicate: bytes | None = None
    whitespace: str | None = None
    start_after: str | None = None

    def __post_init__(self) -> None:
        """Brings the loose forms the constructor takes into the one that travels."""
        if isinstance(self.choices, list):
            msgspec.structs.force_setattr(self, "choices", tuple(self.choices))
        if self.json_schema is not None and not isinstance(self.json_schema, str):
            text = json_schema_of(self.json_schema)
            msgspec.structs.force_setattr(self, "json_schema", text)
        if self.predicate is not None and not isinstance(self.predicate, bytes):
            msgspec.structs.force_setattr(self, "predicate", _pickled(self.predicate))

    @property
    def kind(self) -> str:
        """Which of CONSTRAINT_KINDS is set.

        Raises:
            ConstraintError: none, or several.
        """
        given = [name for name in CONSTRAINT_KINDS if getattr(self, name) is not None]
        if not given:
            raise ConstraintError(
                f"the constraint is empty: set one of {', '.join(CONSTRAINT_KINDS)}",
                param="constraint",
            )
        if len(given) > 1:
            raise ConstraintError(
                f"{' and '.join(given)} are in conflict: give one constraint", param=given[1]
            )
        return given[0]

    def validate(self) -> None:
        """Raises ConstraintError, naming the field and its limit."""
        kind = self.kind
        try:
            self._validate(kind)
        except ConstraintError:
            raise
        except InvalidRequestError as error:
            raise ConstraintError(error.message, param=error.param) from None

    def _validate(self, kind: str) -> None:
        if kind in _MAX_SPEC_LENGTH:
            check_text(kind, getattr(self, kind), _MAX_SPEC_LENGTH[kind])
        if self.choices is not None:
            check_sequence("choices", self.choices, MAX_CONSTRAINT_CHOICES)
            if not self.choices:
                raise ConstraintError("choices must hold at least one string", param="choices")
            for choice in self.choices:
                check_text("choices", choice, MAX_GRAMMAR_LENGTH)
        if self.predicate is not None and len(self.predicate) > MAX_PREDICATE_BYTES:
            raise ConstraintError(
                f"predicate takes {len(self.predicate)} bytes pickled; at most "
                f"{MAX_PREDICATE_BYTES} are allowed",
                param="predicate",
            )
        if self.whitespace is not None:
            if kind != "json_schema":
                raise ConstraintError(
                    f"whitespace goes with json_schema, not with {kind}", param="whitespace"
                )
            if self.whitespace not in WHITESPACE:
                raise ConstraintError(
                    f"whitespace must be one of {', '.join(WHITESPACE)}, not {self.whitespace!r}",
                    param="whitespace",
                )
        if self.start_after is not None:
            check_text("start_after", self.start_after, MAX_MARKER_LENGTH)
            if not self.start_after:
                raise ConstraintError("start_after must not be empty", param="start_after")


def _pickled(predicate: object) -> bytes:
    # Lambdas and functions of a script have no name another process could import them by. Ray
    # brings the pickler that takes them along; it is loaded only here, where a program hands one
    # over.
    try:
        return import_module("ray.cloudpickle").dumps(predicate)
    except Exception as error:
        raise ConstraintError(
            f"predicate cannot be pickled: {error!r}", param="predicate"
        ) from error


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a constrained output, for people to read.

    Attributes:
        step: its index in the output.
        state: a number for the state in which it was chosen: the automaton's where there is one,
            else a running number.
        token: the id taken.
        text: what it spells, "" for EOS.
        allowed: number of ids that were allowed.
        first_allowed: the lowest ten of them.
        forced: taken because nothing else could come, without asking the model.
        why: one sentence.
    """

    step: int
    state: int
    token: int
    text: str = ""
    allowed: int
    first_allowed: tuple[int, ...] = ()
    forced: bool = False
    why: str = ""


class GrammarReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an output stands to its constraint.

    Attributes:
        complete: it matches. False where it was cut off in the middle.
        error: why the constraint could go no further, "" where it did not fail.
        trace: its tokens, where ``fsm_debug`` asks for them, or it failed.
    """

    complete: bool
    error: str = ""
    trace: list[TraceStep] = []
