"""min_tokens, and what ends an output before or after."""

from __future__ import annotations

import pytest
from engine_driver import EngineDriver
from hash_engine import hash_engine
from hash_model import expected_tokens
from test_jump_forward import EOS, TOKENIZER, VOCABULARY

from radixray.errors import InvalidRequestError
from radixray.fsm.compiler import compile_constraint
from radixray.protocol import Completion, Constraint, SamplingParams

PROMPT = [5, 6, 7]
LONG = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def generate(sampling: SamplingParams, constraint: Constraint | None = None) -> Completion:
    engine, _ = hash_engine(TOKENIZER, pool_tokens=2000)
    driver = EngineDriver(engine)
    matchers = None
    if constraint is not None:
        matchers = [compile_constraint(constraint, VOCABULARY).matcher()]
    return driver.generate([PROMPT], [sampling], matchers=matchers)[0]


@pytest.mark.parametrize("min_tokens", [0, 1, 5, 9, 30])
def test_tokens_that_end_the_output_come_later(min_tokens: int) -> None:
    free = expected_tokens(PROMPT, LONG, 40)
    stops = tuple(dict.fromkeys(free[:8]))  # would end it at once
    output = generate(
        SamplingParams(temperature=0, max_tokens=40, min_tokens=min_tokens, stop_token_ids=stops)
    )
    ends = {*stops, EOS, 2}
    assert not ends & set(output.token_ids[:min_tokens])
    assert not ends & set(output.token_ids[:-1])
    assert len(output.token_ids) > min_tokens
    if min_tokens == 0:
        assert output.token_ids == free[:1]


def test_stop_strings_are_looked_for_later() -> None:
    text = generate(LONG).text
    early, late = text[2], text[12:14]
    assert (
        generate(SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, stop=(early,))).text
        == text[: text.index(early)]
    )
    output = generate(
        SamplingParams(
            temperature=0, max_tokens=60, ignore_eos=True, stop=(early, late), min_tokens=40
        )
    )
    assert len(output.token_ids) >= 40 and early in output.text


def test_a_constraint_that_is_complete_ends_before_min_tokens() -> None:
    output = generate(
        SamplingParams(temperature=0, max_tokens=30, min_tokens=20), Constraint(regex="ab?")
    )
    assert output.finish_reason == "stop" and len(output.token_ids) <= 3
    longest = generate(
        SamplingParams(temperature=0, max_tokens=30, min_tokens=20), Constraint(regex="a{1,25}")
    )
    assert len(longest.text) >= 20


def test_limits_are_named() -> None:
    for params, name in (
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {5: 101.0}}, "logit_bias"),
        ({"logit_bias": {-5: 1.0}}, "logit_bias"),
        ({"logit_bias": {100_000: 1.0}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            generate(SamplingParams(**params))  # type: ignore[arg-type]
        assert caught.value.param == name
