"""The engine's promises: stops, limits, aborts, faults, fair sharing; the ledger always holds."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from engine_driver import GREEDY, EngineDriver, join

from radixray.errors import (
    ConstraintError,
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
)
from radixray.fsm.compiler import ConstraintCompiler
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import Constraint, GenerateRequest, SamplingParams, ScoreRequest

COUNT = "Count: one, two, three, four, five, six,"


@pytest.fixture
def driver(make_engine: Any) -> EngineDriver:
    return make_engine()


@pytest.fixture
def count(driver: EngineDriver) -> list[int]:
    return driver.engine.tokenizer.encode(COUNT)


def free_pages(driver: EngineDriver) -> int:
    cache = driver.engine.cache
    assert cache.check() == []
    return cache.available_pages


def test_max_tokens_and_usage(driver: EngineDriver, count: list[int]) -> None:
    out = driver.one(count, SamplingParams(temperature=0, max_tokens=3))
    assert out.finish_reason == "length"
    assert (out.usage.prompt, out.usage.completion) == (len(count), 3)
    assert out.text == driver.engine.tokenizer.decode(out.token_ids)


def test_max_tokens_zero_only_caches(driver: EngineDriver, count: list[int]) -> None:
    for cached in (0, len(count)):
        out = driver.one(count, SamplingParams(max_tokens=0))
        assert (out.text, out.token_ids, out.finish_reason) == ("", [], "length")
        assert out.usage.cached == cached


def test_stop_string_is_cut_and_named(driver: EngineDriver, count: list[int]) -> None:
    full = driver.one(count).text
    word = full.split(",")[1]
    out = driver.one(count, SamplingParams(temperature=0, max_tokens=24, stop=(word, "zzz")))
    assert out.finish_reason == "stop" and out.stop_reason == word
    assert out.text == full[: full.index(word)]


@pytest.mark.parametrize("pattern", [r"[a-z]e, [a-z]", r",( [a-z]+,)+ t", r" n\w+|zz"])
def test_a_pattern_that_stops_is_cut_and_named(
    driver: EngineDriver, count: list[int], pattern: str
) -> None:
    full = driver.one(count).text
    ends = (end for end in range(len(full) + 1) if re.search(f"(?:{pattern})$", full[:end]))
    end = next(ends)
    stop = next(full[begin:end] for begin in range(end) if re.fullmatch(pattern, full[begin:end]))
    out = driver.one(
        count, SamplingParams(temperature=0, max_tokens=24, stop_regex=(pattern, "zz+"))
    )
    assert (out.finish_reason, out.stop_reason) == ("stop", stop)
    assert out.text == full[: end - len(stop)]


def test_stop_token_id(driver: EngineDriver, count: list[int]) -> None:
    free = driver.one(count)
    stop = free.token_ids[4]
    out = driver.one(count, SamplingParams(temperature=0, max_tokens=24, stop_token_ids=(stop,)))
    at = free.token_ids.index(stop)
    assert out.token_ids == free.token_ids[: at + 1]
    assert out.stop_reason == stop
    assert out.text == driver.engine.tokenizer.decode(free.token_ids[:at])


def test_eos_and_ignore_eos(driver: EngineDriver) -> None:
    tokenizer = driver.engine.tokenizer
    prompt = tokenizer.encode(
        tokenizer.chat_template.render(
            [{"role": "user", "content": "Say hi."}], add_generation_prompt=True
        )
    )
    out = driver.one(prompt, SamplingParams(temperature=0, max_tokens=200))
    eos = driver.engine.info.eos_token_ids
    assert out.finish_reason == "stop" and out.stop_reason in eos
    assert out.token_ids[-1] in eos and "<|im_end|>" not in out.text
    on = driver.one(prompt, SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    assert on.finish_reason == "length" and on.usage.completion == 200
    assert on.token_ids[: len(out.token_ids)] == out.token_ids


def test_seeded_sampling_depends_on_seed_and_position_only(make_engine: Any) -> None:
    driver: EngineDriver = make_engine()
    encode = driver.engine.tokenizer.encode
    prompts = [encode(COUNT), encode("My favourite animal is"), encode("It rains, so")]
    params = [
        SamplingParams(temperature=1.0, seed=7, max_tokens=24),
        SamplingParams(temperature=0.8, seed=8, top_p=0.9, max_tokens=24),
        SamplingParams(temperature=1.2, seed=9, top_k=20, min_p=0.02, max_tokens=24),
    ]
    alone = [
        driver.one(p, s, cache_salt="a").token_ids for p, s in zip(prompts, params, strict=True)
    ]
    for salt in ("b", "b"):  # in a batch, cold and warm
        batch = driver.generate(prompts, params, cache_salt=salt)
        assert [c.token_ids for c in batch] == alone
    tight: EngineDriver = make_engine(pool_tokens=70)
    assert [c.token_ids for c in tight.generate(prompts, params)] == alone
    assert tight.engine.stats.retractions > 0
    other = driver.one(prompts[0], SamplingParams(temperature=1.0, seed=70, max_tokens=24))
    assert other.token_ids != alone[0]


def test_unseeded_samples_differ(driver: EngineDriver, count: list[int]) -> None:
    outs = driver.generate([count] * 4, SamplingParams(temperature=1.5, max_tokens=16))
    assert len({tuple(out.token_ids) for out in outs}) >= 2


def test_a_constraint_is_met_at_any_temperature(driver: EngineDriver, count: list[int]) -> None:
    engine = driver.engine
    compiler = ConstraintCompiler(
        TokenVocabulary(
            engine.tokenizer.token_bytes,
            engine.info.eos_token_ids,
            vocab_size=engine.info.vocab_size,
        )
    )
    pattern = r"(yes|no|maybe), [0-9]{1,3} (cats|dögs)"
    compiled = compiler.compile(Constraint(regex=pattern))
    params = [
        SamplingParams(temperature=t, seed=i, max_tokens=60)
        for i, t in enumerate((0.0, 0.7, 1.0, 2.0, 5.0))
    ]
    outs = driver.generate([count] * 5, params, matchers=[compiled.matcher() for _ in params])
    for out in outs:
        assert out.finish_reason == "stop"
        assert re.fullmatch(pattern, out.text), out.text


def test_abort_frees_pages_at_once(driver: EngineDriver, count: list[int]) -> None:
    driver.one(count)
    before = free_pages(driver)
    running = driver.request(count + count, SamplingParams(max_tokens=500, ignore_eos=True))
    waiting = ScoreRequest(request_id="score", prompt_ids=count, choices=[[5, 6], [7, 8]])
    driver.engine.add(running)
    for _ in range(5):
        driver.engine.step()
    driver.engine.add(waiting)
    driver.engine.abort(running.request_id)
    driver.engine.abort("score")
    driver.engine.abort("never heard of")
    assert free_pages(driver) == before
    deltas = driver.drain()
    assert deltas[running.request_id][-1].finish_reason == "abort"
    assert deltas["score"][-1].finish_reason == "abort"
    assert driver.one(count).finish_reason == "length"


def test_a_burst_with_one_prefix_computes_it_once(driver: EngineDriver) -> None:
    encode = driver.engine.tokenizer.encode
    prefix = encode(COUNT * 60)
    prompts = [prefix + encode(f" Question {i}:") for i in range(32)]
    outs = driver.generate(prompts, SamplingParams(temperature=0, max_tokens=2))
    suffixes = sum(len(p) - len(prefix) for p in prompts)
    computed = driver.engine.stats.prefill_tokens
    assert computed <= len(prefix) + suffixes + 32
    assert sum(o.usage.cached > 0 for o in outs) == 31


def test_the_cache_can_be_switched_off(make_engine: Any) -> None:
    driver: EngineDriver = make_engine(prefix_cache=False)
    prompt = driver.engine.tokenizer.encode(COUNT)
    first, second = driver.one(prompt), driver.one(prompt)
    assert first.token_ids == second.token_ids
    assert second.usage.cached == 0
    assert driver.engine.cache.pool.num_free == driver.engine.cache.pool.num_pages


def test_salts_do_not_share(driver: EngineDriver, count: list[int]) -> None:
    driver.one(count, cache_salt="mine")
    assert driver.one(count, cache_salt="yours").usage.cached == 0
    assert driver.one(count, cache_salt="mine").usage.cached == len(count) - 1


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "param"),
    [
        ([], GREEDY, InvalidRequestError, "prompt"),
        ([1, 99_999_999], GREEDY, InvalidRequestError, "prompt"),
        ([-1], GREEDY, InvalidRequestError, "prompt"),
        ([1] * 300, GREEDY, ContextLengthError, "prompt"),
        ([1] * 10_000, GREEDY, ContextLengthError, "prompt"),
        ([1] * 10, SamplingParams(max_tokens=300), ContextLengthError, "max_tokens"),
        ([1], SamplingParams(temperature=float("nan")), InvalidRequestError, "temperature"),
        ([1], SamplingParams(temperature=-1), InvalidRequestError, "temperature"),
        ([1], SamplingParams(top_p=0), InvalidRequestError, "top_p"),
        ([1], SamplingParams(top_k=0), InvalidRequestError, "top_k"),
        ([1], SamplingParams(max_tokens=-1), InvalidRequestError, "max_tokens"),
        ([1], SamplingParams(stop=("",)), InvalidRequestError, "stop"),
        ([1], SamplingParams(stop_regex=("",)), InvalidRequestError, "stop_regex"),
        ([1], SamplingParams(stop_regex=("a" * 300,)), InvalidRequestError, "stop_regex"),
        ([1], SamplingParams(stop_regex=("a*",)), ConstraintError, "stop_regex"),
        ([1], SamplingParams(seed=-5), InvalidRequestError, "seed"),
    ],
)
def test_bad_requests_are_refused_by_name(
    make_engine: Any, prompt: list[int], sampling: SamplingParams, error: type, param: str
) -> None:
    driver: EngineDriver = make_engine(pool_tokens=256)
    with pytest.raises(error) as caught:
        driver.engine.add(driver.request(prompt, sampling))
    assert caught.value.param == param and param in str(caught.value)
    assert not driver.engine.has_work
    assert driver.one([1, 2, 3]).finish_reason


def test_a_request_that_fills_the_pool_exactly_runs(make_engine: Any) -> None:
    driver: EngineDriver = make_engine(pool_tokens=64)
    driver.one([5] * 30)  # something to evict
    out = driver.one([7] * 40, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    assert out.usage.completion == 24


def test_many_times_the_pool_runs_through(make_engine: Any) -> None:
    driver: EngineDriver = make_engine(pool_tokens=300)
    prompts = [[100 + i] * (40 + i) for i in range(60)]
    outs = driver.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert all(out.usage.completion == 4 for out in outs)
    assert free_pages(driver) == 300


def test_a_full_queue_refuses(make_engine: Any) -> None:
    driver: EngineDriver = make_engine(max_queued_requests=2)
    for _ in range(2):
        driver.engine.add(driver.request([1, 2]))
    with pytest.raises(OverloadedError) as caught:
        driver.engine.add(driver.request([1, 2]))
    assert 1 <= caught.value.retry_after_s <= 60
    assert len(driver.drain()) == 2


def test_a_request_ends_at_its_deadline(driver: EngineDriver, count: list[int]) -> None:
    slow = GenerateRequest(
        request_id="slow",
        prompt_ids=count,
        sampling=SamplingParams(max_tokens=8000, ignore_eos=True),
        timeout_s=0.3,
    )
    done = GenerateRequest(request_id="done", prompt_ids=count, sampling=GREEDY, timeout_s=600)
    driver.engine.add(slow)
    driver.engine.add(done)
    deltas = driver.drain()
    last = deltas["slow"][-1]
    assert last.error is not None and last.error.type == "DeadlineExceededError"
    assert last.error.param == "timeout_s" and last.usage is not None
    assert 0 < last.usage.completion < 8000
    assert join(deltas["done"]).finish_reason == "length"
    assert free_pages(driver) == driver.engine.cache.pool.num_pages


def test_scoring_ends_at_its_deadline(driver: EngineDriver, count: list[int]) -> None:
    late = ScoreRequest(request_id="late", prompt_ids=count, choices=[[5, 6], [7, 8]], timeout_s=0)
    fine = ScoreRequest(request_id="fine", prompt_ids=count, choices=[[5, 6]], timeout_s=600)
    driver.engine.add(late)
    driver.engine.add(fine)
    deltas = driver.drain()
    last = deltas["late"][-1]
    assert last.error is not None and last.error.type == "DeadlineExceededError"
    assert deltas["fine"][-1].choice_logprobs is not None
    assert free_pages(driver) == driver.engine.cache.pool.num_pages
    with pytest.raises(InvalidRequestError) as caught:
        driver.engine.add(msgspec.structs.replace(late, timeout_s=-1))
    assert caught.value.param == "timeout_s"


@pytest.mark.parametrize("overlap", [True, False])
def test_a_model_fault_ends_its_batch_only(
    make_engine: Any, monkeypatch: Any, overlap: bool
) -> None:
    driver: EngineDriver = make_engine(overlap=overlap)
    running = driver.request([1, 2, 3])
    driver.engine.add(running)
    driver.engine.step()
    before = driver.engine._model.forward

    def broken(*_: Any) -> None:
        raise RuntimeError("bit rot")

    monkeypatch.setattr(driver.engine._model, "forward", broken)
    deltas = driver.engine.step().deltas
    monkeypatch.setattr(driver.engine._model, "forward", before)
    delta = [*deltas, *driver.drain().get(running.request_id, [])][-1]
    assert delta.finish_reason == "error" and delta.error is not None
    assert delta.error.type == "EngineError" and "bit rot" in delta.error.message
    assert free_pages(driver) == driver.engine.cache.pool.num_pages
    assert driver.one([1, 2, 3]).finish_reason == "length"


def test_a_request_id_in_use_is_refused(driver: EngineDriver) -> None:
    request = GenerateRequest(request_id="same", prompt_ids=[1, 2], sampling=GREEDY)
    driver.engine.add(request)
    with pytest.raises(InvalidRequestError) as caught:
        driver.engine.add(request)
    assert caught.value.param == "request_id"
    assert join(driver.drain()["same"]).finish_reason


def test_emoji_are_never_split(driver: EngineDriver) -> None:
    # Force a text of multi-byte characters through the engine by a constraint.
    engine = driver.engine
    compiler = ConstraintCompiler(
        TokenVocabulary(
            engine.tokenizer.token_bytes,
            engine.info.eos_token_ids,
            vocab_size=engine.info.vocab_size,
        )
    )
    text = "é漢字🚀👩‍👩‍👧ß"
    matcher = compiler.compile(Constraint(regex=re.escape(text))).matcher()
    request = driver.request([1, 2], SamplingParams(temperature=0, max_tokens=60))
    engine.add(request, matcher)
    deltas = driver.drain()[request.request_id]
    assert "".join(d.text for d in deltas) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in d.text for d in deltas)
