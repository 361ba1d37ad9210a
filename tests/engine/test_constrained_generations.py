"""Two hundred constrained generations of the real model, mixed with free ones.

What ended of itself is checked by `re`, `jsonschema` or a recogniser of its own; what was cut off
is the beginning of a member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from engine_driver import EngineDriver, join
from generation_specs import SPECS, Spec

from radixray.fsm import accepts, prefix_ok
from radixray.fsm.compiler import compile_constraint
from radixray.fsm.jump import LOOK_BACK
from radixray.fsm.matcher import CompiledConstraint
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import Completion, Delta, GenerateRequest, SamplingParams
from radixray.tokenizer.tokenizer import Tokenizer

MAX_TOKENS = 28
PROMPTS = ["Answer: ", "The data as text:\n", "Once upon a time", "{", "1"]
FREE = 8


class Run(NamedTuple):
    constrained: list[list[Completion]]  # of each spec
    traces: list[list[Delta]]
    free: list[list[int]]


@pytest.fixture(scope="module")
def compiled(tokenizer: Tokenizer) -> list[CompiledConstraint]:
    vocabulary = TokenVocabulary(tokenizer.token_bytes, {0, 2})
    return [compile_constraint(spec.constraint, vocabulary) for spec in SPECS]


def free_requests(tokenizer: Tokenizer) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            request_id=f"free{number}",
            prompt_ids=tokenizer.encode(f"Chapter {number}. The"),
            sampling=SamplingParams(max_tokens=MAX_TOKENS, temperature=1, seed=number),
        )
        for number in range(FREE)
    ]


def run(
    driver: EngineDriver, compiled: list[CompiledConstraint], per_spec: int, *, jump: bool
) -> Run:
    """`per_spec` generations of each constraint in one batch after the other, free ones between."""
    tokenizer = driver.engine.tokenizer
    free = free_requests(tokenizer)
    for number, constraint in enumerate(compiled):
        for index in range(per_spec):
            request = GenerateRequest(
                request_id=f"{number}/{index}",
                prompt_ids=tokenizer.encode(PROMPTS[index % len(PROMPTS)]),
                sampling=SamplingParams(
                    max_tokens=MAX_TOKENS, temperature=1, seed=1000 * number + index
                ),
                jump_forward=jump,
                fsm_debug=True,
            )
            driver.engine.add(request, constraint.matcher())
        if number % 5 == 0:
            driver.engine.add(free[number // 5])
    deltas = driver.drain()
    groups = [
        [deltas[f"{number}/{index}"] for index in range(per_spec)]
        for number in range(len(compiled))
    ]
    return Run(
        [list(map(join, group)) for group in groups],
        [[found[-1] for found in group] for group in groups],
        [join(deltas[request.request_id]).token_ids for request in free],
    )


def run_free_alone(driver: EngineDriver) -> list[list[int]]:
    requests = free_requests(driver.engine.tokenizer)
    for request in requests:
        driver.engine.add(request)
    deltas = driver.drain()
    return [join(deltas[request.request_id]).token_ids for request in requests]


def check_member(spec: Spec, done: Completion, last: Delta) -> None:
    what = (spec.constraint, done)
    assert last.grammar is not None and not last.grammar.error, what
    if done.finish_reason == "stop":
        assert spec.is_member(done.text) and accepts(spec.constraint, done.text), what
        assert last.grammar.complete, what
    else:
        assert done.finish_reason == "length" and len(done.token_ids) == MAX_TOKENS, what
        # The last character may be unfinished, which text shows as a replacement.
        assert prefix_ok(spec.constraint, done.text.rstrip("\N{REPLACEMENT CHARACTER}")), what


def check_forced(tokenizer: Tokenizer, done: Completion, last: Delta) -> None:
    """Forced tokens, perhaps with a few before them, are what the tokenizer makes of their text."""
    assert last.grammar is not None
    ids = [step.token for step in last.grammar.trace]
    forced = [step.forced for step in last.grammar.trace]
    assert sum(forced) == done.usage.jumped
    assert ids == done.token_ids[: len(ids)]
    start = 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and forced[end] == forced[start]:
            continue
        whole = end < len(ids) or done.finish_reason != "length"
        if forced[start] and whole:
            spans = [ids[max(0, start - back) : end] for back in range(LOOK_BACK + 1)]
            assert any(tokenizer.encode(tokenizer.decode(span)) == span for span in spans), done
        start = end


@pytest.mark.parametrize("jump", [True, False], ids=["jump", "no jump"])
def test_all_are_members(
    jump: bool,
    make_engine: Callable[..., EngineDriver],
    tokenizer: Tokenizer,
    compiled: list[CompiledConstraint],
) -> None:
    per_spec = 4 if jump else 1
    found = run(make_engine(max_num_seqs=24), compiled, per_spec, jump=jump)
    stopped = 0
    for spec, group, lasts in zip(SPECS, found.constrained, found.traces, strict=True):
        for done, last in zip(group, lasts, strict=True):
            check_member(spec, done, last)
            check_forced(tokenizer, done, last)
            stopped += done.finish_reason == "stop"
            assert jump or done.usage.jumped == 0
    assert stopped > 0.6 * per_spec * len(SPECS)
    jumped = sum(done.usage.jumped for group in found.constrained for done in group)
    assert jumped > 300 if jump else jumped == 0
    assert found.free == run_free_alone(make_engine())  # whoever else was in the batch


def test_there_are_two_hundred_of_all_kinds() -> None:
    assert len(SPECS) == 40
    kinds = {spec.constraint.kind for spec in SPECS}
    assert kinds == {"regex", "json_schema", "ebnf", "lark", "choices", "predicate"}
    assert any(spec.constraint.start_after for spec in SPECS)
