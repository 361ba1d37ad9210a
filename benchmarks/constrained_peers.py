"""Compile and mask times of one library, in an interpreter of its own.

    PYTHON constrained_peers.py llguidance|xgrammar < task.json > times.json

Needs nothing but the standard library, numpy and the library (xgrammar also torch). The task holds
the vocabulary, and for each constraint its form and members as token ids.
"""

from __future__ import annotations

import base64
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

AGAIN = 5
"""How often each member is followed once more."""

Numbers = dict[str, Any]


class Following(Protocol):
    """A library's matcher at some place of an output."""

    def mask(self) -> None:
        """Computes the mask into memory that is there already."""
        ...

    def take(self, token_id: int) -> bool:
        """Moves on; False where the token is not allowed."""
        ...


Compile = Callable[[dict[str, str]], Callable[[], Following]]
"""From a constraint's form to what begins to follow an output."""


def time_masks(begin: Callable[[], Following], members: list[list[int]]) -> Numbers:
    """Microseconds of each mask along `members`, the first time and again.

    Raises:
        ValueError: a member is refused.
    """
    times: dict[str, list[float]] = {"first": [], "again": []}
    for number in range(1 + AGAIN):
        kept = times["again" if number else "first"]
        for member in members:
            following = begin()
            for token_id in member:
                started = time.perf_counter()
                following.mask()
                kept.append((time.perf_counter() - started) * 1e6)
                if not following.take(token_id):
                    raise ValueError(f"token {token_id} of a member is refused")
    return {name: spread(found) for name, found in times.items()}


def spread(times: list[float]) -> Numbers:
    """Mean and 99th percentile."""
    ordered = sorted(times)
    return {"mean": sum(times) / len(times), "p99": ordered[int(len(ordered) * 0.99)]}


def measure(compile_form: Compile, task: Numbers) -> dict[str, Numbers]:
    """For each constraint its times, or why there are none."""
    found: dict[str, Numbers] = {}
    for spec in task["specs"]:
        try:
            started = time.perf_counter()
            begin = compile_form(spec["form"])
            begin()
            compiled = (time.perf_counter() - started) * 1e3
            found[spec["name"]] = {"compile_ms": compiled} | time_masks(begin, spec["members"])
        except (ValueError, RuntimeError) as error:
            found[spec["name"]] = {"error": str(error)[:300]}
    return found


def llguidance_compiler(task: Numbers) -> Compile:
    """llguidance, as it comes."""
    import numpy as np

    llguidance = importlib.import_module("llguidance")
    size = task["vocab_size"]
    matcher_class = llguidance.LLMatcher

    tokenizer = llguidance.LLTokenizer(task["tokenizer"], n_vocab=size, eos_token=task["eos"][0])
    bits = np.zeros((size + 31) // 32, dtype=np.int32)

    class Matcher:
        def __init__(self, matcher: Any) -> None:
            self._matcher = matcher

        def mask(self) -> None:
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)

        def take(self, token_id: int) -> bool:
            return self._matcher.consume_token(token_id)

    def compile_form(form: dict[str, str]) -> Callable[[], Following]:
        kind, text = form["kind"], form["text"]
        if kind == "json_schema":
            compact = {
                "whitespace_flexible": False,
                "item_separator": ",",
                "key_separator": ":",
            }
            grammar = matcher_class.grammar_from_json_schema(text, compact)
        elif kind == "regex":
            grammar = matcher_class.grammar_from_regex(text)
        else:
            grammar = matcher_class.grammar_from_lark(text)
        first = matcher_class(tokenizer, grammar, log_level=0)
        if first.is_error():
            raise ValueError(first.get_error())
        return lambda: Matcher(first.deep_copy())

    return compile_form


def xgrammar_compiler(task: Numbers) -> Compile:
    """xgrammar, as it comes; each constraint is compiled anew."""
    xgrammar = importlib.import_module("xgrammar")
    tokens = [base64.b64decode(token) for token in task["tokens"]]
    size = task["vocab_size"]
    info = xgrammar.TokenizerInfo(tokens, vocab_size=size, stop_token_ids=task["eos"])
    compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
    bits = xgrammar.allocate_token_bitmask(1, size)

    class Matcher:
        def __init__(self, compiled: Any) -> None:
            self._matcher = xgrammar.GrammarMatcher(compiled)

        def mask(self) -> None:
            self._matcher.fill_next_token_bitmask(bits)

        def take(self, token_id: int) -> bool:
            return self._matcher.accept_token(token_id)

    def compile_form(form: dict[str, str]) -> Callable[[], Following]:
        kind, text = form["kind"], form["text"]
        if kind == "json_schema":
            compiled = compiler.compile_json_schema(
                text, any_whitespace=False, separators=(",", ":")
            )
        elif kind == "regex":
            compiled = compiler.compile_regex(text)
        else:
            compiled = compiler.compile_grammar(text)
        return lambda: Matcher(compiled)

    return compile_form


COMPILERS = {"llguidance": llguidance_compiler, "xgrammar": xgrammar_compiler}


def main() -> None:
    peer = sys.argv[1]
    try:
        importlib.import_module(peer)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    task = json.load(sys.stdin)
    compile_form = COMPILERS[peer](task)
    compile_form(task["warm_up"])()  # what a library does only once is no compile time
    found = {"version": importlib.metadata.version(peer), "specs": measure(compile_form, task)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
