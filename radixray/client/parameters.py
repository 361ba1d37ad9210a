"""The parameters of a generation: which there are, their defaults, and which win."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from radixray.checks import check_int, check_number
from radixray.client.reasoning import Delimiters, delimiters_of
from radixray.client.typed import Reading, reading_of
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
OUTPUT = frozenset({"deadline", "no_stop_trim", "separate_reasoning"})
"""What the language does with a request and its output."""

LANGUAGE = OUTPUT | {"dtype", "list_append", "n", "type"}
"""What is no field of a request."""

RUN_DEFAULTS = SAMPLING | REQUEST | OUTPUT
"""What may be set for a whole run; a generation's own parameters win."""

MAX_SAMPLES = 128
MAX_DEADLINE = 1e11
"""Seconds since 1970: far off, but too small for milliseconds since then."""

_REFUSED = {
    "structural_tag": "the constraints are " + ", ".join(sorted(CONSTRAINTS)),
    "choices_method": "use select(name, choices, method=...)",
    "max_new_tokens": "it is called max_tokens",
    "return_logprob": "use logprobs=0",
    "top_logprobs_num": "use logprobs=N",
    "logprob_start_len": "use prompt_logprobs_from=N",
    "return_text_in_logprobs": "log-probabilities carry token ids",
    "sampling_seed": "it is called seed",
    "min_new_tokens": "it is called min_tokens",
    "timeout": "use timeout_s=, or deadline= for a point in time",
}
"""Parameters known elsewhere, and what there is instead."""

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
    "no_stop_trim": bool,
}
_KINDS_OF_VALUE = {str: "a string", (list, tuple): "a list of strings", bool: "true or false"}
_LANGUAGE_DEFAULTS = {"max_tokens": 128}


class ResolvedParameters(msgspec.Struct, frozen=True):
    """What one request is sent with."""

    sampling: SamplingParams
    constraint: Constraint | None
    reading: Reading | None
    n: int
    request: dict[str, Any]
    """Those of REQUEST that were given."""
    reasoning: Delimiters | None = None
    no_stop_trim: bool = False
    deadline: float | None = None


def check_parameters(params: Mapping[str, Any], *, constraints: bool = True) -> None:
    """Checks loose parameters of a generation, or without `constraints` those of a run.

    Raises:
        InvalidRequestError: unknown, of the wrong type, outside its limit, or in conflict.
    """
    known = RUN_DEFAULTS | CONSTRAINTS | LANGUAGE if constraints else RUN_DEFAULTS
    for name in params:
        if name in _REFUSED and name not in known:
            raise InvalidRequestError(f"{name} is not supported: {_REFUSED[name]}", param=name)
        if name not in known:
            raise InvalidRequestError(
                f"unknown parameter {name!r}{hint_for(name, known)}; known are "
                f"{', '.join(sorted(known))}",
                param=name,
            )
    for name, kind in _TYPES.items():
        value = params.get(name)
        if value is not None and not isinstance(value, kind):
            raise InvalidRequestError(
                f"{name} must be {_KINDS_OF_VALUE[kind]}, not {value!r:.80}", param=name
            )
    _constraint(params, reading_of(params))
    if params.get("n") is not None:
        check_int("n", params["n"], 1, MAX_SAMPLES)
        if params["n"] > 1 and params.get("list_append"):
            raise InvalidRequestError("n and list_append are in conflict", param="n")
    if params.get("priority") is not None:
        check_int("priority", params["priority"], -MAX_PRIORITY, MAX_PRIORITY)
    if params.get("timeout_s") is not None:
        check_number("timeout_s", params["timeout_s"], 0.0, MAX_TIMEOUT_S)
    if params.get("deadline") is not None:
        check_number("deadline", params["deadline"], 0.0, MAX_DEADLINE)
    delimiters_of(params.get("separate_reasoning"))
    sampling_from({name: value for name, value in params.items() if name in SAMPLING})


def hint_for(name: str, known: Iterable[str]) -> str:
    """What an unknown parameter of a run may have been meant to be, to stand behind its name."""
    if name in _REFUSED:
        return f": {_REFUSED[name]}"
    if name in CONSTRAINTS | LANGUAGE:
        return ": it is one of a single gen"
    close = difflib.get_close_matches(name, {*known, *RUN_DEFAULTS}, n=1, cutoff=0.75)
    return f": did you mean {close[0]!r}?" if close else ""


def resolve(
    params: Mapping[str, Any], defaults: Mapping[str, Any], branch: tuple[int, ...]
) -> ResolvedParameters:
    """Checked parameters over the run's defaults over the language's.

    A seed of the run differs in each branch: else the branches of a fork, which share a prompt,
    would all draw the same tokens. A generation's own seed is taken as it is.
    """
    run = {name: value for name, value in defaults.items() if value is not None}
    if "seed" in run:
        run["seed"] = run_seed(run, branch)
    own = {name: value for name, value in params.items() if value is not None}
    merged: dict[str, Any] = _LANGUAGE_DEFAULTS | run | own
    reading = reading_of(merged)
    return ResolvedParameters(
        sampling=sampling_from({name: merged[name] for name in SAMPLING if name in merged}),
        constraint=_constraint(merged, reading),
        reading=reading,
        n=merged.get("n", 1),
        request={name: merged[name] for name in REQUEST if name in merged},
        reasoning=delimiters_of(merged.get("separate_reasoning")),
        no_stop_trim=merged.get("no_stop_trim", False),
        deadline=merged.get("deadline"),
    )


def run_seed(defaults: Mapping[str, Any], branch: tuple[int, ...]) -> int | None:
    """The run's seed, if it has one, as it is in a branch."""
    seed = defaults.get("seed")
    return derived_seed(seed, branch) if seed is not None and branch else seed


def sample_parameters(params: ResolvedParameters) -> list[ResolvedParameters]:
    """Those of each of the `n` samples: the same but for the seed, which only the first keeps."""
    seed = params.sampling.seed
    each = [params]
    for index in range(1, params.n):
        other = None if seed is None else derived_seed(seed, ("sample", index))
        sampling = msgspec.structs.replace(params.sampling, seed=other)
        each.append(msgspec.structs.replace(params, sampling=sampling))
    return each


def derived_seed(seed: int, path: tuple[int | str, ...]) -> int:
    """A seed for one of several that share `seed`."""
    digest = hashlib.blake2b(repr((seed, path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


def _constraint(params: Mapping[str, Any], reading: Reading | None) -> Constraint | None:
    """Raises ConstraintError where the parameters make no valid one."""
    given = {name: params[name] for name in CONSTRAINTS if params.get(name) is not None}
    if reading is not None:
        given |= reading.constraint
    if not given:
        return None
    if "json_schema" in given:
        # Without whitespace most of the text is forced, and need not be generated.
        given.setdefault("whitespace", "compact")
    constraint = Constraint(**given)
    constraint.validate()
    return constraint
