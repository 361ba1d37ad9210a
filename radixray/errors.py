"""The error tree: every failure a user can meet derives from `RadixRayError`.

Errors cross process borders as `ErrorInfo` (see `radixray.protocol`) and are rebuilt as the same
class on the other side, so `except rr.ContextLengthError` works whether the engine runs in this
process, in an actor, or behind HTTP.
"""

from __future__ import annotations


class RadixRayError(Exception):
    """Base of all RadixRay errors.

    Attributes:
        message: what went wrong, with the limit that was crossed where there is one.
        param: the name of the offending parameter, or None.
        retryable: True when the same request may succeed if sent again unchanged.
    """

    retryable: bool = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only state does not survive the default exception pickling, and Ray pickles.
        return (_rebuild, (type(self), self.message, self.param))


def _rebuild(cls: type[RadixRayError], message: str, param: str | None) -> RadixRayError:
    return cls(message, param=param)


class InvalidRequestError(RadixRayError):
    """A parameter is unknown, of the wrong type, or outside its limits."""


class UnsupportedInputError(InvalidRequestError):
    """The model, or this installation, takes no input of this kind."""


class UnsupportedFeatureError(InvalidRequestError):
    """The place where the program runs cannot do this; `param` names it. Nothing was sent."""


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt plus `max_tokens`, does not fit the context or the KV pool."""


class ConstraintError(InvalidRequestError):
    """A constraint (regex, schema, grammar) cannot be compiled or cannot be met."""


class GrammarTooComplexError(ConstraintError):
    """A constraint is too big, or took too long or too much memory to compile.

    Where a time limit was the reason the same request may succeed on a less busy machine.
    """


class GrammarError(RadixRayError):
    """A constraint could go no further in the middle of an output: a predicate failed or took too
    long, or nothing was allowed any more.

    Attributes:
        text: the output so far.
    """

    def __init__(self, message: str, *, param: str | None = None, text: str = "") -> None:
        super().__init__(message, param=param)
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_grammar_error, (self.message, self.param, self.text))


def _rebuild_grammar_error(message: str, param: str | None, text: str) -> GrammarError:
    return GrammarError(message, param=param, text=text)


class OutputError(RadixRayError):
    """An output cannot be read as the type that was asked for, or it is cut off.

    Attributes:
        text: the output.
    """

    retryable = True

    def __init__(self, message: str, *, param: str | None = None, text: str = "") -> None:
        super().__init__(message, param=param)
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_output_error, (self.message, self.param, self.text))


def _rebuild_output_error(message: str, param: str | None, text: str) -> OutputError:
    return OutputError(message, param=param, text=text)


class TemplateError(InvalidRequestError):
    """The model's chat template is missing, fails, or rewrites earlier messages."""


class SnapshotError(InvalidRequestError):
    """A snapshot is of another version or another model, or it is none."""


class ModelNotFoundError(RadixRayError):
    """No model of that name: not embedded, not a local folder, not on the Hub or offline."""


class UnsupportedModelError(RadixRayError):
    """The model's architecture or tokenizer is not supported."""


class NotReadyError(RadixRayError):
    """A variable was read before the operation that fills it was awaited."""


class NotInitializedError(RadixRayError):
    """No runtime: call `rr.init()` first."""


class NotRecordedError(RadixRayError):
    """A call was replayed that no recording holds; the message shows the nearest one."""


class DeploymentError(RadixRayError):
    """Actors could not be started, or those running do not fit what was asked for."""


class EngineError(RadixRayError):
    """The engine failed while it ran this request; the actor lives on."""

    retryable = True


class EngineDiedError(RadixRayError):
    """The model actor died or became unreachable while it ran this request, and it could not go on
    elsewhere."""

    retryable = True


class HandedOverError(EngineDiedError):
    """The model actor stops, and has ended this request so that it goes on on another one."""


class PoisonedRequestError(RadixRayError):
    """Model actors died with nothing but this request in their batch, one after another.

    It is not tried again.
    """


class OverloadedError(RadixRayError):
    """The waiting queue is full.

    Attributes:
        retry_after_s: when room is to be expected, from the rate at which requests finish.
    """

    retryable = True
    retry_after_s: float = 1.0


class RateLimitError(OverloadedError):
    """An API key asks for more than it may; `retry_after_s` says when it may again."""


class DeadlineExceededError(RadixRayError):
    """The request did not finish within its `timeout_s`."""


class AbortedError(RadixRayError):
    """The request was aborted, by its caller or by a flush."""


class ProgramError(RadixRayError):
    """An operation of a program failed; `__cause__` is the reason.

    Attributes:
        op: the operation, e.g. ``gen('answer')``.
        branch: the path of fork indices from the root, e.g. ``(2, 0)``; empty at the root.
        request_id: the engine's request, or None when none was sent.
        line: file and line of the program that appended the operation, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        op: str = "",
        branch: tuple[int, ...] = (),
        request_id: str | None = None,
        line: tuple[str, int] | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.line = line
        self.op = op
        self.branch = branch
        self.request_id = request_id

    def __reduce__(self) -> tuple[object, ...]:
        state = (self.op, self.branch, self.request_id, self.line, self.__cause__)
        return (_rebuild_program_error, (self.message, self.param, *state))


def _rebuild_program_error(
    message: str,
    param: str | None,
    op: str,
    branch: tuple[int, ...],
    request_id: str | None,
    line: tuple[str, int] | None,
    cause: BaseException | None,
) -> ProgramError:
    error = ProgramError(
        message, param=param, op=op, branch=branch, request_id=request_id, line=line
    )
    error.__cause__ = cause
    return error


WIRE_ERRORS: dict[str, type[RadixRayError]] = {
    cls.__name__: cls
    for cls in (
        RadixRayError,
        InvalidRequestError,
        UnsupportedInputError,
        UnsupportedFeatureError,
        ContextLengthError,
        ConstraintError,
        GrammarTooComplexError,
        TemplateError,
        ModelNotFoundError,
        UnsupportedModelError,
        NotInitializedError,
        DeploymentError,
        EngineError,
        EngineDiedError,
        HandedOverError,
        PoisonedRequestError,
        OverloadedError,
        RateLimitError,
        DeadlineExceededError,
        AbortedError,
    )
}
"""Errors that may travel in a Delta, by class name."""
