"""The real command, Ray Serve and model, over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import openai
import pytest
import tokenizers
from openai.types.chat import ChatCompletionMessageParam
from real_server import API_KEY, START_WITHIN_S, Server, start_server, stop

import radixray as rr

MODEL = "smollm2-135m"
ORDER = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
        "status": {"enum": ["pending", "shipped"]},
        "items": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["customer", "status", "items"],
    "additionalProperties": False,
}
HELLO: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "What is the capital of France?"},
]
LONG = {"max_tokens": 1500, "ignore_eos": True}

pytestmark = pytest.mark.timeout(START_WITHIN_S + 120)


@pytest.fixture(scope="module")
def server() -> Generator[Server, None, None]:
    server = start_server()
    yield server
    stop(server.process)


@pytest.fixture
async def real(server: Server) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=API_KEY, max_retries=0, timeout=100
    ) as client:
        yield client


async def actors(server: Server) -> dict[str, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health") as response:
        assert response.status == 200, await response.text()
        return (await response.json())["actors"]


async def until(condition: Callable[[], Awaitable[bool]], within: float = 20) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.05)


async def test_models_and_key(server: Server, real: openai.AsyncOpenAI) -> None:
    assert [model.id for model in (await real.models.list()).data] == [MODEL]
    with pytest.raises(openai.AuthenticationError):
        await real.with_options(api_key="wrong").models.list()
    assert not any(API_KEY in line for line in server.log)


async def test_completion_is_repeatable_and_cached(real: openai.AsyncOpenAI) -> None:
    prompt = "The capital of France is Paris. The capital of Germany is Berlin. The capital of"
    first, second = [
        await real.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0)
        for _ in range(2)
    ]
    assert first.choices[0].text
    assert second.choices[0].text == first.choices[0].text
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert 0 < cached < second.usage.prompt_tokens


async def test_chat_and_its_stream_agree(real: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
    whole = await real.chat.completions.create(model=MODEL, messages=HELLO, **asked)
    assert "Paris" in (whole.choices[0].message.content or "")
    stream = await real.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}, **asked
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_seeded_choices(real: openai.AsyncOpenAI) -> None:
    first, second = [
        await real.completions.create(
            model=MODEL, prompt="Once upon a time", n=4, seed=11, max_tokens=8, temperature=1
        )
        for _ in range(2)
    ]
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) > 1
    assert texts == [choice.text for choice in second.choices]


async def test_bad_requests(real: openai.AsyncOpenAI) -> None:
    for given in ({"temperature": -1}, {"no_such": 1}, {"max_tokens": 10**6}, {"stop": ""}):
        with pytest.raises(openai.BadRequestError) as caught:
            await real.completions.create(model=MODEL, prompt="x", extra_body=given)
        assert caught.value.param == next(iter(given))
    with pytest.raises(openai.NotFoundError):
        await real.completions.create(model="gpt-4", prompt="x")


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_stops_the_generation(
    server: Server, real: openai.AsyncOpenAI, stream: bool
) -> None:
    async def busy() -> bool:
        return any(actor["running"] for actor in (await actors(server)).values())

    async def idle() -> bool:
        return not any(
            actor["running"] or actor["waiting"] for actor in (await actors(server)).values()
        )

    await until(idle)
    call = asyncio.create_task(read_all(real, stream))
    await until(busy)
    call.cancel()
    await until(idle, within=5)


async def read_all(real: openai.AsyncOpenAI, stream: bool) -> None:
    if not stream:
        await real.completions.create(model=MODEL, prompt="Count:", n=2, extra_body=LONG)
        raise AssertionError("it should have been cut off")
    opened = await real.completions.create(
        model=MODEL, prompt="Count:", n=2, stream=True, extra_body=LONG
    )
    async with opened:
        async for _ in opened:
            pass


@pytest.mark.parametrize("stream", [False, True])
async def test_json_schema(real: openai.AsyncOpenAI, stream: bool) -> None:
    order: Any = {"type": "json_schema", "json_schema": {"name": "order", "schema": ORDER}}
    answer: Any = await real.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=80,
        response_format=order,
        stream=stream,
    )
    if stream:
        text = "".join(
            [chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices]
        )
    else:
        assert answer.choices[0].finish_reason == "stop"
        text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), ORDER)


async def test_how_a_constrained_answer_came_to_be(real: openai.AsyncOpenAI) -> None:
    answer = await real.completions.create(
        model=MODEL,
        prompt="Hi",
        extra_body={"guided_choice": ["of course", "of course not"], "fsm_debug": True},
    )
    trace: Any = answer.choices[0].model_extra["grammar"]["trace"]  # type: ignore[index]
    assert "".join(step["text"] for step in trace) == answer.choices[0].text
    assert trace[0]["forced"] and "of course" in trace[0]["why"]
    cut = await real.completions.create(
        model=MODEL, prompt="Hi", max_tokens=2, extra_body={"regex": "[0-9]{30}"}
    )
    assert cut.choices[0].finish_reason == "length"
    assert cut.choices[0].model_extra == {"grammar": {"complete": False}}


async def test_a_schema_that_cannot_be_enforced_is_refused(real: openai.AsyncOpenAI) -> None:
    schema = {"type": "array", "uniqueItems": True}
    order: Any = {"type": "json_schema", "json_schema": {"name": "order", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        await real.chat.completions.create(model=MODEL, messages=HELLO, response_format=order)
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_constraint_is_refused_before_any_chunk(
    real: openai.AsyncOpenAI, stream: bool
) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"guided_regex": "a(?=b)"}, "guided_regex"),
        ({"guided_grammar": "root ::= missing"}, "guided_grammar"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json"),
        # Code is never taken from a stranger.
        ({"predicate": "gASV"}, "predicate"),
        ({"structured_outputs": {"predicate": "gASV"}}, "structured_outputs.predicate"),
        ({"constraint": {"predicate": "gASV"}}, "constraint"),
    ]
    for given, param in wrong:
        with pytest.raises(openai.BadRequestError) as caught:
            await real.completions.create(model=MODEL, prompt="x", stream=stream, extra_body=given)
        assert caught.value.param == param


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"stop": "mat, a"},
        {"stop": ["the mat", "t sat"]},
        {"max_tokens": 5},
        {"n": 3},
        {"prompt": [5]},
        {"extra_body": {"guided_choice": ["Above", "Above Average", "Above Average, by far"]}},
        {"extra_body": {"guided_regex": ""}},
        {"extra_body": {"guided_regex": "(?:x|y)😀{4}[ab]"}, "max_tokens": 12},
    ],
    ids=str,
)
async def test_a_stream_over_forced_text_is_the_answer(
    real: openai.AsyncOpenAI, given: dict[str, Any]
) -> None:
    regex = r"The (?:cat|dog) sat on the mat, and it looked at the [a-z]{3,6} for long\."
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": "Once",
        "max_tokens": 40,
        "seed": 7,
        "extra_body": {"guided_regex": regex},
    } | given
    whole = await real.completions.create(**asked)
    found = [["", ""] for _ in whole.choices]
    async for chunk in await real.completions.create(stream=True, **asked):
        for choice in chunk.choices:
            found[choice.index][0] += choice.text
            found[choice.index][1] += choice.finish_reason or ""
    assert found == [[choice.text, choice.finish_reason] for choice in whole.choices]


async def test_the_turn_after_a_cut_stream_is_what_its_client_sends(
    server: Server, real: openai.AsyncOpenAI, model_folder: Path
) -> None:
    """Cut after its first words: what was computed but never sent is no part of the next turn."""
    stream = await real.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, temperature=0, extra_body=LONG
    )
    seen = ""
    async for chunk in stream:
        seen += chunk.choices[0].delta.content or ""
        if seen:
            break
    await stream.close()
    turn: list[ChatCompletionMessageParam] = [
        *HELLO,
        {"role": "assistant", "content": seen},
        {"role": "user", "content": "And of Italy?"},
    ]
    rendered = "".join(f"<|im_start|>{m['role']}\n{m.get('content')}<|im_end|>\n" for m in turn)
    reference = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    expected = len(reference.encode(rendered + "<|im_start|>assistant\n").ids)
    asked: dict[str, Any] = {"model": MODEL, "messages": turn, "temperature": 0, "max_tokens": 12}
    answers = [
        await real.chat.completions.create(**asked, extra_body={"cache_salt": salt})
        for salt in ("", "nothing cached")
    ]
    usages = [answer.usage for answer in answers]
    assert [usage.prompt_tokens for usage in usages if usage] == [expected] * 2
    details = [usage.prompt_tokens_details for usage in usages if usage]
    warm, cold = [detail.cached_tokens for detail in details if detail]
    assert warm and cold == 0
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content

    async def idle() -> bool:
        return not any(a["running"] or a["waiting"] for a in (await actors(server)).values())

    await until(idle, within=5)


async def test_a_prompt_larger_than_the_pool_is_refused_while_others_run(
    real: openai.AsyncOpenAI,
) -> None:
    """400 at once, though the engine is busy; a short request sent after it ends."""
    busy = await real.completions.create(
        model=MODEL, prompt="Once", stream=True, extra_body={"max_tokens": 100, "ignore_eos": True}
    )
    chunks = aiter(busy)
    await anext(chunks)
    async with asyncio.timeout(10):  # far more than it takes, as cores may be shared
        with pytest.raises(openai.BadRequestError) as caught:
            await real.completions.create(model=MODEL, prompt=[5] * 8200, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    short = await real.completions.create(model=MODEL, prompt=[5, 6, 7, 8, 9], max_tokens=2)
    assert short.usage is not None and short.usage.prompt_tokens == 5
    assert [chunk async for chunk in chunks][-1].choices[0].finish_reason == "length"


async def test_forced_call_and_scores(real: openai.AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "save_order", "parameters": ORDER}}
    answer = await real.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Save an order of two books by Maria."}],
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
    )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), ORDER)
    # The same text has the same log-probabilities as output and as prompt.
    prompt = "The capital of France is"
    made = await real.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=4,
        temperature=0,
        logprobs=0,
        extra_body={"return_token_ids": True},
    )
    extra: dict[str, Any] = made.choices[0].model_extra or {}
    ids = extra["prompt_token_ids"] + extra["token_ids"]
    echoed = await real.completions.create(
        model=MODEL, prompt=ids, max_tokens=0, echo=True, logprobs=0
    )
    as_output, as_prompt = made.choices[0].logprobs, echoed.choices[0].logprobs
    assert as_output is not None
    assert as_output.token_logprobs is not None
    assert as_prompt is not None
    assert as_prompt.token_logprobs is not None
    assert as_prompt.tokens is not None
    assert as_prompt.tokens[-4:] == as_output.tokens
    assert as_prompt.token_logprobs[-4:] == pytest.approx(as_output.token_logprobs, abs=1e-4)


async def test_a_program_over_http(server: Server) -> None:
    """By the routes of our own, through Ray Serve, to actors."""

    @rr.function
    async def program(s: rr.State) -> None:
        s += rr.user("What is the capital of France?")
        s += rr.assistant(rr.gen("city", max_tokens=6, regex="[A-Z][a-z]+") + "! It is")
        s += rr.select("size", [" big.", " small."])

    @rr.function
    async def endless(s: rr.State) -> None:
        s += "Once upon a time" + rr.gen("story", **LONG)

    async with rr.connect(server.url, api_key=API_KEY) as runtime:
        result = await program.run(temperature=0)
        assert str(result["city"]).isalpha() and len(result["size"].scores) == 2
        task = asyncio.create_task(endless.run())
        while not any(each.running for each in (await runtime.stats()).values()):
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(10):
            while any(each.running for each in (await runtime.stats()).values()):
                await asyncio.sleep(0.02)
        assert await runtime.flush() > 0


def test_terminate_ends_cleanly(server: Server) -> None:
    """Must be the module's last test: it stops the server."""
    stop(server.process)
    assert server.process.returncode == 0
    with socket.create_server(("127.0.0.1", server.port)):
        pass  # the port is free again


async def test_one_client_leaving_does_not_harm_another(client: openai.AsyncOpenAI) -> None:
    # On a fresh replica the first request opens the line to the model actor for all.
    fresh = start_server()
    try:
        base = f"{fresh.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key=API_KEY, max_retries=0) as mine:
            first = await mine.completions.create(
                model=MODEL, prompt="One", stream=True, extra_body=LONG
            )
            await anext(aiter(first))
            second = await mine.completions.create(
                model=MODEL,
                prompt="Two",
                stream=True,
                extra_body={"max_tokens": 60, "ignore_eos": True},
            )
            chunks = aiter(second)
            await anext(chunks)
            await first.close()
            rest = [chunk async for chunk in chunks]
            assert rest[-1].choices[0].finish_reason == "length"
    finally:
        stop(fresh.process)


async def test_a_huge_prompt_is_refused_quickly(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await asyncio.wait_for(
            client.completions.create(model=MODEL, prompt=" hello" * 4_000_000), 30
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
