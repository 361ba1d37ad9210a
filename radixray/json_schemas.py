"""From the Python types that describe JSON to the JSON Schema they mean."""

from __future__ import annotations

import dataclasses
import json
from types import UnionType
from typing import (
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from radixray.errors import ConstraintError

_CONTAINERS: frozenset[Any] = frozenset({list, dict, tuple, set})


def json_schema_of(source: Any) -> str:
    """The JSON text of a schema.

    Args:
        source: JSON text, a schema as dict or bool, or, with pydantic installed, a pydantic
            model, a TypedDict, a dataclass, a TypeAdapter, or any type that TypeAdapter takes.

    Raises:
        ConstraintError: not JSON, not a schema's type, or a type pydantic has no schema for.
    """
    if isinstance(source, str):
        try:
            return _text(json.loads(source))
        except (ValueError, RecursionError) as error:
            raise _refusal(f"json_schema is not JSON: {error}") from error
    if isinstance(source, bool | dict):
        try:
            return _text(source)
        except (TypeError, ValueError, RecursionError) as error:
            raise _refusal(f"json_schema is not JSON: {error}") from error
    return _text(_schema_of_type(source))


def type_adapter(source: Any) -> Any:
    """pydantic's TypeAdapter of a Python type, which knows its schema and validates.

    Raises:
        ConstraintError: no type, one that pydantic has no schema for, or pydantic is missing.
    """
    if not _may_be_type(source):
        raise _refusal(
            "json_schema must be JSON text, a dict, or a type that pydantic knows, not "
            f"{source!r:.80}"
        )
    try:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError
    except ImportError as error:
        raise _refusal("json_schema of a Python type needs pydantic installed") from error
    try:
        return source if isinstance(source, TypeAdapter) else TypeAdapter(_modern(source))
    except (PydanticUserError, TypeError, NameError) as error:
        raise _refusal(
            f"json_schema: pydantic has no schema for {source!r:.80}: {error}"
        ) from error


def _schema_of_type(source: Any) -> Any:
    adapter = type_adapter(source)
    try:
        return adapter.json_schema()
    except (_pydantic_error(), TypeError, NameError) as error:
        raise _refusal(
            f"json_schema: pydantic has no schema for {source!r:.80}: {error}"
        ) from error


def _pydantic_error() -> type[Exception]:
    from pydantic.errors import PydanticUserError

    return PydanticUserError


def _modern(source: Any) -> Any:
    """`source` with its TypedDicts as those of typing_extensions.

    Before Python 3.12 pydantic refuses those of `typing`: they have forgotten which of their keys
    an inherited TypedDict required.
    """
    if is_typeddict(source):
        import typing_extensions

        keys: dict[str, Any] = {}
        for name, hint in get_type_hints(source, include_extras=True).items():
            if get_origin(hint) in (Required, NotRequired):
                (hint,) = get_args(hint)
            wrapper = Required if name in source.__required_keys__ else NotRequired
            keys[name] = wrapper[_modern(hint)]
        make: Any = typing_extensions.TypedDict  # checkers allow only literal definitions
        modern = make(source.__name__, keys)
        modern.__module__, modern.__doc__ = source.__module__, source.__doc__
        return modern
    origin: Any = get_origin(source)
    args = get_args(source)
    if origin in (Union, UnionType):
        return Union[tuple(map(_modern, args))]  # noqa: UP007 - made from a tuple
    if origin in _CONTAINERS:
        return origin[tuple(map(_modern, args))]
    return source


def _may_be_type(source: Any) -> bool:
    """Plain values are refused here: pydantic would take 3 for a type, and say odd things."""
    if isinstance(source, type) or is_typeddict(source) or dataclasses.is_dataclass(source):
        return not dataclasses.is_dataclass(source) or isinstance(source, type)
    return (
        hasattr(source, "json_schema")
        or hasattr(source, "__origin__")
        or hasattr(source, "__args__")
    )


def _text(schema: Any) -> str:
    # The order of properties is the order in which they are generated, so it is kept.
    return json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _refusal(message: str) -> ConstraintError:
    return ConstraintError(message, param="json_schema")
