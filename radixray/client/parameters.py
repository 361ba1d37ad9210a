"""The parameters of a generation: which there are, their defaults, and which win."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from radixray.checks import check_int, check_number
from radixray.errors import InvalidRequestError
from radixray.protocol import (
    MAX_PRIORITY,
    MAX_SEED,
    MAX_TIMEOUT_S,
    Constraint,
    SamplingParams,
    sampling_from,
)

SAMPLING = frozenset(field.name for field in msgspec.structs.fields(SamplingParams))
CONSTRAINTS = frozenset(field.name for field in msgspec.structs.fields(Constraint))
REQUEST = frozenset({"cache_salt", "fsm_debug", "jump_forward", "priority", "timeout_s"})
RUN_DEFAULTS = SAMPLING | REQUEST
"""What may be set for a whole run; a generation's own parameters win."""

_TYPES = {
    "cache_salt": str,
    "regex": str,
    "ebnf": str,
    "lark": str,
    "choices": (list, tuple),
    "whitespace": str,
    "start_after": str,
    "fsm_debug": bool,
    "jump_forward": bool,
}
_KINDS_OF_VALUE = {str: "a string", (list, tuple): "a list of strings", bool: "true or false"}
_LANGUAGE_DEFAULTS = {"max_tokens": 128}


class ResolvedParameters(msgspec.Struct, frozen=True):
    """What one request is sent with."""

    sampling: SamplingParams
    constraint: Constraint | None
    request: dict[str, Any]
    """Those of REQUEST that were given."""


def check_parameters(params: Mapping[str, Any], *, constraints: bool = True) -> None:
    """Checks loose parameters of a generation, or without `constraints` those of a run.

    Raises:
        InvalidRequestError: unknown, of the wrong type, outside its limit, or in conflict.
    """
    known = RUN_DEFAULTS | CONSTRAINTS if constraints else RUN_DEFAULTS
    for name in params:
        if name not in known:
            raise InvalidRequestError(
                f"unknown parameter {name!r}; known are {', '.join(sorted(known))}", param=name
            )
    for name, kind in _TYPES.items():
        value = params.get(name)
        if value is not None and not isinstance(value, kind):
            raise InvalidRequestError(
                f"{name} must be {_KINDS_OF_VALUE[kind]}, not {value!r:.80}", param=name
            )
    _constraint(params)
    if params.get("priority") is not None:
        check_int("priority", params["priority"], -MAX_PRIORITY, MAX_PRIORITY)
    if params.get("timeout_s") is not None:
        check_number("timeout_s", params["timeout_s"], 0.0, MAX_TIMEOUT_S)
    sampling_from({name: value for name, value in params.items() if name in SAMPLING})


def resolve(
    params: Mapping[str, Any], defaults: Mapping[str, Any], branch: tuple[int, ...]
) -> ResolvedParameters:
    """Checked parameters over the run's defaults over the language's.

    A seed of the run differs in each branch: else the branches of a fork, which share a prompt,
    would all draw the same tokens. A generation's own seed is taken as it is.
    """
    run = {name: value for name, value in defaults.items() if value is not None}
    if branch and "seed" in run:
        run["seed"] = _branch_seed(run["seed"], branch)
    own = {name: value for name, value in params.items() if value is not None}
    merged: dict[str, Any] = _LANGUAGE_DEFAULTS | run | own
    return ResolvedParameters(
        sampling=sampling_from({name: merged[name] for name in SAMPLING if name in merged}),
        constraint=_constraint(merged),
        request={name: merged[name] for name in REQUEST if name in merged},
    )


def _constraint(params: Mapping[str, Any]) -> Constraint | None:
    """Raises ConstraintError where the parameters make no valid one."""
    given = {name: params[name] for name in CONSTRAINTS if params.get(name) is not None}
    if not given:
        return None
    if "json_schema" in given:
        # Without whitespace most of the text is forced, and need not be generated.
        given.setdefault("whitespace", "compact")
    constraint = Constraint(**given)
    constraint.validate()
    return constraint


def _branch_seed(seed: int, branch: tuple[int, ...]) -> int:
    digest = hashlib.blake2b(repr((seed, branch)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED
