"""Values of programs as plain data, and back: for files and messages, without pickle.

Plain data is what JSON and msgpack have in common. All else is a dict with one key that begins
with ``$``. Classes are found again by name, among those already loaded; nothing is imported, and
nothing but data classes is made.
"""

from __future__ import annotations

import base64
import builtins
import dataclasses
import datetime
import decimal
import enum
import json
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from radixray import errors
from radixray.client.results import Choice, Gen, ProgramResult
from radixray.client.variables import Var
from radixray.constraint import GrammarReport
from radixray.errors import InvalidRequestError, RadixRayError
from radixray.protocol import TokenLogprob, Usage

_OURS = {
    cls.__name__: cls for cls in (Choice, Gen, GrammarReport, ProgramResult, TokenLogprob, Usage)
}
"""Classes whose names in files do not depend on where they are defined."""

_SCALARS = {
    cls.__name__: cls
    for cls in (
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        decimal.Decimal,
        uuid.UUID,
    )
}
_ERROR_DETAILS = ("param", "op", "branch", "request_id", "text", "retry_after_s")
_LARGEST_INT = 2**63


def to_plain(value: Any, what: str = "the value") -> Any:
    """`value` as plain data: Python's own kinds of values, results, errors, and data classes.

    Args:
        what: it is, for errors.

    Raises:
        InvalidRequestError: it holds something else, or an object of a class that cannot be found
            by its name.
    """
    if value is None or (
        isinstance(value, bool | float | str) and not isinstance(value, enum.Enum)
    ):
        return value
    if type(value) is int:
        return value if -_LARGEST_INT <= value < _LARGEST_INT else {"$int": str(value)}
    if type(value) is list:
        return [to_plain(item, what) for item in value]
    if type(value) is dict:
        return _dict_to_plain(value, what)
    if type(value) is tuple:
        return {"$tuple": [to_plain(item, what) for item in value]}
    if isinstance(value, set | frozenset):
        items = sorted((to_plain(item, what) for item in value), key=json.dumps)
        return {"$set" if isinstance(value, set) else "$frozenset": items}
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Var):
        return to_plain(value.result, what)
    if isinstance(value, Exception):
        return {"$error": _error_to_plain(value, what)}
    if type(value) in _SCALARS.values():
        return {f"${type(value).__name__}": msgspec.to_builtins(value)}
    return {"$object": [_name_of(type(value), what), _object_to_plain(value, what)]}


def from_plain(plain: Any) -> Any:
    """The value that `to_plain` was given.

    An error of a class that is not known comes back as a RuntimeError that names it.

    Raises:
        InvalidRequestError: this is not what `to_plain` gives, or a class is not loaded.
    """
    if isinstance(plain, list):
        return [from_plain(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    tag, inner = next(iter(plain.items()), ("", None))
    if len(plain) != 1 or not tag.startswith("$"):
        return {key: from_plain(item) for key, item in plain.items()}
    try:
        return _tagged(tag[1:], inner)
    except InvalidRequestError:
        raise
    except Exception as error:  # of whatever class is made here
        raise InvalidRequestError(f"a stored value cannot be read: {error!r}") from error


def _tagged(tag: str, inner: Any) -> Any:
    match tag:
        case "int":
            return int(inner)
        case "tuple" | "set" | "frozenset":
            return getattr(builtins, tag)(map(from_plain, inner))
        case "dict":
            return {from_plain(key): from_plain(item) for key, item in inner}
        case "bytes":
            return base64.b64decode(inner)
        case "error":
            return _error_from_plain(inner)
        case "object":
            name, fields = inner
            return _object_from_plain(_class_named(name), fields)
        case _ if tag in _SCALARS:
            return msgspec.convert(inner, _SCALARS[tag])
    raise InvalidRequestError(f"a stored value of unknown kind {tag!r:.80}")


def _dict_to_plain(value: Mapping[Any, Any], what: str) -> dict[str, Any]:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: to_plain(item, what) for key, item in value.items()}
    return {"$dict": [[to_plain(k, what), to_plain(item, what)] for k, item in value.items()]}


# Objects


def _object_to_plain(value: Any, what: str) -> Any:
    if isinstance(value, enum.Enum):
        return to_plain(value.value, what)
    if hasattr(value, "model_dump_json"):  # pydantic's
        return value.model_dump_json()
    return {name: to_plain(getattr(value, name), what) for name in _fields(type(value))}


def _object_from_plain(cls: type, fields: Any) -> Any:
    if issubclass(cls, enum.Enum):
        return cls(from_plain(fields))
    if hasattr(cls, "model_validate_json"):
        return cls.model_validate_json(fields)  # type: ignore[attr-defined]
    known = _fields(cls)
    return cls(**{name: from_plain(item) for name, item in fields.items() if name in known})


def _fields(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    return list(cls.__struct_fields__)  # type: ignore[attr-defined]


def _is_data(cls: Any) -> bool:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct | enum.Enum)
        or hasattr(cls, "model_validate_json")
    )


def _name_of(cls: type, what: str) -> str:
    if _OURS.get(cls.__name__) is cls:
        return cls.__name__
    name = f"{cls.__module__}:{cls.__qualname__}"
    if not _is_data(cls):
        raise InvalidRequestError(
            f"{what} holds a {name}, which cannot be stored: only plain values, results, errors "
            f"and data classes can"
        )
    if _find(name) is not cls:
        raise InvalidRequestError(
            f"{what} holds a {name}, which cannot be stored: the class must be defined at the "
            f"top of a module, to be found again"
        )
    return name


def _class_named(name: str) -> type:
    found = _OURS.get(name) or _find(name)
    if not _is_data(found):
        raise InvalidRequestError(f"a stored value is of class {name}, which is not loaded here")
    return found


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


# Errors


def _error_to_plain(error: BaseException, what: str) -> dict[str, Any]:
    message = error.message if isinstance(error, RadixRayError) else _message_of(error)
    plain: dict[str, Any] = {"type": type(error).__name__, "message": message}
    if isinstance(error, RadixRayError):
        details = {name: getattr(error, name, None) for name in _ERROR_DETAILS}
        plain |= {name: to_plain(item, what) for name, item in details.items() if item is not None}
    if isinstance(error, BaseExceptionGroup):
        plain["errors"] = [_error_to_plain(inner, what) for inner in error.exceptions]
    if error.__cause__ is not None:
        plain["cause"] = _error_to_plain(error.__cause__, what)
    return plain


def _message_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return error.message
    only = error.args[0] if len(error.args) == 1 else None
    return only if isinstance(only, str) else str(error)


def _error_from_plain(plain: dict[str, Any]) -> Exception:
    name, message = plain["type"], plain["message"]
    cls = getattr(errors, name, None) or getattr(builtins, name, None)
    error: Exception
    if "errors" in plain:
        error = ExceptionGroup(message, [_error_from_plain(inner) for inner in plain["errors"]])
    elif isinstance(cls, type) and issubclass(cls, RadixRayError):
        error = cls(message)
        for detail in _ERROR_DETAILS:
            if detail in plain:
                setattr(error, detail, from_plain(plain[detail]))
    else:
        error = _foreign_error(cls, name, message)
    if "cause" in plain:
        error.__cause__ = _error_from_plain(plain["cause"])
    return error


def _foreign_error(cls: Any, name: str, message: str) -> Exception:
    if isinstance(cls, type) and issubclass(cls, Exception):
        try:
            return cls(message)
        except TypeError:  # it wants other arguments
            pass
    return RuntimeError(f"{name}: {message}")
