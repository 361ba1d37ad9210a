"""Programs on real Ray, with two model actors and the real model."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pydantic
import pytest
import ray

import radixray as rr
from radixray.reports import EngineStats

NOTES = (
    "Notes of the harbour council. The mole will be repaired before the autumn storms. The fish "
    "market moves to the old rope works. Pilots ask for a second lamp at the northern entrance. "
) * 4


@rr.function
async def answer(s: rr.State, question: str) -> str:
    s += rr.user(question)
    with s.assistant():
        await s.gen("answer")
    return str(s["answer"])


@rr.function
async def review(s: rr.State, n: int, salt: str) -> list[str]:
    s += rr.system(f"You review notes. Case {salt}.")
    s += rr.user(NOTES)
    async with s.fork(n) as forks:
        for index, fork in enumerate(forks):
            fork += rr.user(f"Point {index + 1}, in one line:")
            fork += rr.assistant(rr.gen("line", max_tokens=12))
    lines = list(s["line"].value)
    s += rr.user("The points:\n" + "\n".join(lines))
    s += rr.assistant(rr.gen("summary", max_tokens=12))
    return lines


def change(
    before: dict[str, EngineStats], after: dict[str, EngineStats], field: str
) -> dict[str, int]:
    return {name: getattr(after[name], field) - getattr(before[name], field) for name in after}


async def test_a_chat_equals_transformers(
    runtime: Any, settled: Any, hf_model: Any, hf_tokenizer: Any
) -> None:
    import torch

    question = "What do bees make?"
    result = await answer.run(question, temperature=0, max_tokens=20)
    prompt = hf_tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    ids = hf_tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.inference_mode():
        out = hf_model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False
        )
    want = hf_tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert result.value == want
    assert result.messages() == [
        {"role": "user", "content": question},
        {"role": "assistant", "content": want},
    ]
    assert result.text() == hf_tokenizer.apply_chat_template(result.messages(), tokenize=False)


async def test_branches_go_where_their_prefix_is(runtime: Any, settled: Any) -> None:
    homes = set()
    for case in range(4):
        before = await settled()
        result = await review.run(3, f"{case}", temperature=0)
        after = await settled()
        prefix = len((await runtime.transport()).tokenizer.encode(NOTES))
        generated = change(before, after, "generated_tokens")
        (home,) = (name for name, count in generated.items() if count)
        homes.add(home)
        # Three branches and the summary each found the notes; they were computed once.
        assert change(before, after, "cached_tokens")[home] >= 4 * prefix
        assert change(before, after, "prefill_tokens")[home] < 2 * prefix
        assert len(result.value) == 3
        assert result.usage.cached >= 4 * prefix
    assert homes <= set(after)


async def test_different_programs_use_both_actors(runtime: Any, settled: Any) -> None:
    before = await settled()
    await asyncio.gather(*(review.run(2, f"both {i}", temperature=0) for i in range(4)))
    generated = change(before, await settled(), "generated_tokens")
    assert all(generated.values())


async def test_a_program_as_a_ray_task(runtime: Any, settled: Any) -> None:
    here = await review.run(2, "remote", temperature=0)
    there = await asyncio.gather(*(review.remote(2, "remote", temperature=0) for _ in range(3)))
    for result in there:
        assert result.value == here.value
        assert result.text() == here.text()
        assert str(result["summary"]) == str(here["summary"])
    await settled()


async def test_a_failing_program_as_a_ray_task(runtime: Any, settled: Any) -> None:
    with pytest.raises(rr.ProgramError) as caught:
        await answer.remote("word " * 9000)
    assert "8192" in str(caught.value)
    await settled()


async def test_map_gives_every_row(runtime: Any, settled: Any) -> None:
    rows = [f"Name the number {i} in French." for i in range(12)]
    found = {}
    async for result in answer.map(rows, temperature=0, max_tokens=8):
        found[result.index] = result.value
    assert sorted(found) == list(range(12))
    again = [r.value async for r in answer.map(rows, temperature=0, max_tokens=8, ordered=True)]
    assert again == [found[i] for i in range(12)]
    await settled()


async def test_select_takes_the_likeliest(
    runtime: Any, settled: Any, hf_model: Any, hf_tokenizer: Any
) -> None:
    import torch

    choices = [" Paris", " Berlin", " the moon"]

    @rr.function
    async def capital(s: rr.State) -> rr.Choice:
        s += "The capital of France is"
        return await s.select("city", choices)

    choice = (await capital.run()).value
    prompt = hf_tokenizer("The capital of France is").input_ids
    means = []
    for text in choices:
        ids = hf_tokenizer(text).input_ids
        with torch.inference_mode():
            logprobs = torch.log_softmax(hf_model(torch.tensor([prompt + ids])).logits[0], -1)
        rows = [float(logprobs[len(prompt) - 1 + i, t]) for i, t in enumerate(ids)]
        means.append(sum(rows) / len(rows))
    assert choice.scores == pytest.approx(means, abs=1e-3)
    assert choice.text == choices[means.index(max(means))]
    await settled()


@rr.function
async def constrained(s: rr.State, **constraint: Any) -> rr.Gen:
    s += rr.user("Give me an example.")
    with s.assistant():
        return await s.gen("example", max_tokens=60, temperature=1, seed=7, **constraint)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(pattern="^[A-Z][a-z]{1,8}$")
    age: int = pydantic.Field(ge=0, le=120)


async def test_every_kind_of_constraint_holds(runtime: Any, settled: Any) -> None:
    person = await constrained.run(json_schema=Person)
    Person.model_validate_json(str(person.value))
    assert person.usage.jumped >= 5
    choice = await constrained.run(choices=["yes", "yes, but", "no"])
    assert str(choice.value) in {"yes", "yes, but", "no"}
    nested = await constrained.run(ebnf='root ::= "(" root ")" | "x"')
    assert re.fullmatch(r"\(*x?\)*", str(nested.value))
    vowels = await constrained.run(predicate=lambda text: set(text) <= set("aeiou"))
    assert set(str(vowels.value)) <= set("aeiou")


async def test_a_constraint_that_fails_raises_its_cause(runtime: Any, settled: Any) -> None:
    def fails(text: str) -> bool:
        if len(text) > 3:
            raise RuntimeError("out of ideas")
        return text.isalpha() or not text

    with pytest.raises(rr.ProgramError) as caught:
        await constrained.run(predicate=fails)
    cause = caught.value.__cause__
    assert isinstance(cause, rr.GrammarError) and "out of ideas" in str(cause)


async def test_regex_holds(runtime: Any, settled: Any) -> None:
    pattern = r"\d{4}-\d{2}-\d{2}, (rain|snow|sun)"

    @rr.function
    async def weather(s: rr.State, day: int) -> str:
        s += rr.user(f"The weather of day {day}?")
        with s.assistant():
            await s.gen("w", regex=pattern, max_tokens=40)
        return s["w"].text

    results = [r async for r in weather.map(range(8), temperature=1.0)]
    assert len(results) == 8
    assert all(re.fullmatch(pattern, r.value) for r in results)
    await settled()


@pytest.mark.parametrize("how", ["cancel", "timeout", "close"])
async def test_leaving_early_frees_everything(runtime: Any, settled: Any, how: str) -> None:
    @rr.function
    async def endless(s: rr.State) -> None:
        s += "Once upon a time"
        async with s.fork(3) as forks:
            for index, fork in enumerate(forks):
                fork += f" number {index}"
                fork += rr.gen("tale", max_tokens=3000, ignore_eos=True)

    before = await settled()
    if how == "close":
        stream = endless.stream()
        await anext(stream)
        await stream.aclose()
    elif how == "timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await endless.run()
    else:
        task = asyncio.create_task(endless.run())
        while sum(s.running for s in (await runtime.stats()).values()) < 3:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    after = await settled()
    assert sum(change(before, after, "generated_tokens").values()) < 3000
    assert (await answer.run("Hello", max_tokens=3)).usage.completion == 3


async def test_closing_a_transport_stream_frees_its_pages(runtime: Any, settled: Any) -> None:
    from radixray.protocol import GenerateRequest, SamplingParams

    transport = await runtime.transport()
    stream = transport.generate(
        GenerateRequest(
            request_id="closed",
            prompt_ids=[1, 2, 3, 4],
            sampling=SamplingParams(max_tokens=4000, ignore_eos=True),
        )
    )
    await anext(stream)
    await stream.aclose()
    await settled()


@pytest.mark.parametrize(
    ("params", "error", "param"),
    [
        ({"temperature": float("nan")}, rr.InvalidRequestError, "temperature"),
        ({"temperature": -1.0}, rr.InvalidRequestError, "temperature"),
        ({"top_p": 2.0}, rr.InvalidRequestError, "top_p"),
        ({"max_tokens": -3}, rr.InvalidRequestError, "max_tokens"),
        ({"max_tokens": 9000}, rr.ContextLengthError, "max_tokens"),
        ({"regex": "(?=x)y"}, rr.ConstraintError, "regex"),
        ({"regex": "(unclosed"}, rr.ConstraintError, "regex"),
        ({"no_such_thing": 1}, rr.InvalidRequestError, "no_such_thing"),
        # These have no form on the wire; unnoticed, they would take their neighbours with them.
        ({"top_k": 10**30}, rr.InvalidRequestError, "top_k"),
        ({"stop_token_ids": [2**70]}, rr.InvalidRequestError, "stop_token_ids"),
        ({"stop": ["\ud800"]}, rr.InvalidRequestError, "stop"),
        ({"regex": "a|\ud800"}, rr.ConstraintError, "regex"),
        ({"cache_salt": "\ud800"}, rr.InvalidRequestError, "cache_salt"),
    ],
)
async def test_bad_parameters_are_named(
    runtime: Any, settled: Any, params: dict[str, Any], error: type, param: str
) -> None:
    @rr.function
    async def bad(s: rr.State) -> None:
        s += "Hello"
        await s.gen("x", **params)

    with pytest.raises(rr.RadixRayError) as caught:
        await bad.run()
    cause = caught.value if isinstance(caught.value, error) else caught.value.__cause__
    assert isinstance(cause, error) and cause.param == param
    await settled()
    assert (await answer.run("Still there?", max_tokens=2)).usage.completion == 2


async def test_prompts_that_never_fit_are_refused(runtime: Any, settled: Any) -> None:
    with pytest.raises(rr.ProgramError) as caught:
        await answer.run("word " * 9000)
    assert isinstance(caught.value.__cause__, rr.ContextLengthError)
    assert "8192" in str(caught.value.__cause__)

    @rr.function
    async def nothing(s: rr.State) -> None:
        await s.gen("x")

    with pytest.raises(rr.ProgramError) as caught:
        await nothing.run()
    assert isinstance(caught.value.__cause__, rr.InvalidRequestError)
    assert caught.value.__cause__.param == "prompt"
    await settled()


async def test_256_requests_at_once(runtime: Any, settled: Any) -> None:
    results = [
        r
        async for r in answer.map(
            [f"Say {i}." for i in range(256)], concurrency=256, temperature=0, max_tokens=2
        )
    ]
    assert len(results) == 256
    await settled()


async def test_init_again_gives_the_same_runtime(runtime: Any) -> None:
    again = rr.init(model_actors=2, dtype="float32", max_total_tokens=8192)
    assert again is runtime
    with pytest.raises(rr.InvalidRequestError):
        rr.init(model_actors=1)
    assert ray.is_initialized()


async def test_a_request_that_cannot_be_sent_harms_no_other(runtime: Any, settled: Any) -> None:
    import msgspec

    from radixray.protocol import GenerateRequest, SamplingParams

    transport = await runtime.transport()
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    good = [
        GenerateRequest(request_id=f"good-{i}", prompt_ids=[1, 2, i], sampling=sampling)
        for i in range(3)
    ]
    bad = msgspec.structs.replace(good[0], request_id="\ud800")
    # Past validation, too: whatever it misses must not take the neighbours along.
    worse = msgspec.structs.replace(
        good[0], request_id="w", sampling=msgspec.structs.replace(sampling, seed=2**70)
    )

    async def run(request: GenerateRequest) -> int:
        run = transport._run if request is worse else transport.generate
        return len([delta async for delta in run(request)])

    counts = await asyncio.wait_for(
        asyncio.gather(*map(run, [*good, bad, worse]), return_exceptions=True), 60
    )
    assert counts[:3] == [3, 3, 3]
    assert isinstance(counts[3], rr.InvalidRequestError)
    assert isinstance(counts[4], rr.InvalidRequestError)
    await settled()


def test_loops_come_and_go(runtime: Any) -> None:
    for _ in range(3):
        result = asyncio.run(answer.run("Hello", max_tokens=2))
        assert result.usage.completion == 2
    assert sum(loop.is_closed() for loop in runtime._clients) <= 1


async def test_a_pinned_prefix_outlives_a_flood_until_its_time(runtime: Any, settled: Any) -> None:
    text = "The rules of the house, which every guest must know by heart. " * 10

    @rr.function
    async def ask(s: rr.State, text: str, max_tokens: int = 1) -> int:
        s += text
        return (await s.gen("x", max_tokens=max_tokens)).usage.cached

    await ask.run(text)
    reports = await runtime.pin(text, ttl_s=900)
    assert max(report.tokens for report in reports.values()) > 100
    for number in range(4):  # more than both pools hold
        await asyncio.gather(*(ask.run(f"{number} {i} " + "flood " * 3000) for i in range(2)))
    assert (await ask.run(text)).value > 100
    assert sum(tree.pages_pinned for tree in (await runtime.cache_tree()).values()) > 0
    with pytest.raises(rr.InvalidRequestError) as caught:
        await runtime.pin(text, ttl_s=-1)
    assert caught.value.param == "ttl_s"
    await settled()
    assert await runtime.flush() > 0


async def test_log_probabilities_reach_the_program(runtime: Any, settled: Any) -> None:
    @rr.function
    async def program(s: rr.State) -> rr.Gen:
        s += "The capital of France is"
        return await s.gen("x", max_tokens=3, temperature=0, logprobs=2, prompt_logprobs_from=1)

    gen = (await program.run()).value
    assert [t.token_id for t in gen.logprobs] == gen.token_ids
    assert all(t.logprob == t.top[0][1] and len(t.top) == 2 for t in gen.logprobs)
    assert len(gen.prompt_logprobs) == gen.usage.prompt - 1
    await settled()


async def test_a_deadline_reaches_the_engine(runtime: Any, settled: Any) -> None:
    with pytest.raises(rr.ProgramError) as caught:
        await answer.run("Count", max_tokens=4000, ignore_eos=True, timeout_s=0.4)
    assert isinstance(caught.value.__cause__, rr.DeadlineExceededError)
    await settled()
