"""What answers look like, whole and streamed, through the real openai client."""

from __future__ import annotations

import json

import aiohttp
import openai
from fake_transport import FakeTransport
from openai.types.chat import ChatCompletionMessageParam

MODEL = "smollm2-135m"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello!"}]


async def test_models(client: openai.AsyncOpenAI) -> None:
    listed = await client.models.list()
    assert [model.id for model in listed.data] == [MODEL]
    one = await client.models.retrieve(MODEL)
    assert one == listed.data[0]
    assert one.object == "model"
    assert one.owned_by == "radixray"
    assert one.created > 1_700_000_000


async def test_completion(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.cached = [2]
    prompt = "The capital of France is"
    answer = await client.completions.create(model=MODEL, prompt=prompt)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.model == MODEL
    [choice] = answer.choices
    assert (choice.index, choice.text) == (0, transport.text)
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    [request] = transport.requests
    assert request.prompt_ids == transport.tokenizer.encode(prompt, add_special_tokens=True)
    assert request.request_id.startswith(answer.id)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(request.prompt_ids)
    assert answer.usage.completion_tokens == len(transport.words)
    assert answer.usage.total_tokens == len(request.prompt_ids) + len(transport.words)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


async def test_max_tokens_defaults(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    transport.words = ["x"] * 40
    answer = await client.completions.create(model=MODEL, prompt="x")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    chat = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 40
    assert transport.requests[1].sampling.max_tokens is None


async def test_max_tokens_zero_only_caches(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    answer = await client.completions.create(model=MODEL, prompt="x", max_tokens=0)
    assert answer.choices[0].text == ""
    assert answer.choices[0].finish_reason == "length"


async def test_prompt_kinds(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    one, two = transport.tokenizer.encode("one"), transport.tokenizer.encode("two words")
    for prompt, expected in (
        ("one", [one]),
        (["one", "two words"], [one, two]),
        (one, [one]),
        ([one, two], [one, two]),
    ):
        transport.requests.clear()
        answer = await client.completions.create(model=MODEL, prompt=prompt)
        assert [request.prompt_ids for request in transport.requests] == expected
        assert [choice.index for choice in answer.choices] == list(range(len(expected)))
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(map(len, expected))
        assert answer.usage.completion_tokens == len(transport.words) * len(expected)


async def test_n_counts_the_prompt_once_and_shifts_the_seed(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    transport.say_seed = True
    transport.cached = [0, 3, 3]
    answer = await client.completions.create(model=MODEL, prompt=["a b c d", "e"], n=3, seed=7)
    assert [choice.text for choice in answer.choices] == ["seed 7", "seed 8", "seed 9"] * 2
    assert [choice.index for choice in answer.choices] == list(range(6))
    prompts = [request.prompt_ids for request in transport.requests]
    assert prompts[0] == prompts[1] == prompts[2] != prompts[3]
    assert len({request.request_id for request in transport.requests}) == 6
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompts[0]) + len(prompts[3])
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details is not None
    # Siblings find what the first computed; that does not make the prompt cached.
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_without_seed_every_choice_draws_its_own(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    for _ in range(2):
        await client.completions.create(model=MODEL, prompt=["a", "a"], n=2)
    seeds = [request.sampling.seed for request in transport.requests]
    assert len(set(seeds)) == 8
    assert None not in seeds


async def test_chat(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, n=2)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        assert choice.message.content == transport.text
        assert choice.message.refusal is None
        assert choice.finish_reason == "stop"
    rendered = transport.tokenizer.chat_template.render(
        [{"role": "user", "content": "Hello!"}], add_generation_prompt=True
    )
    expected = transport.tokenizer.encode(rendered, add_special_tokens=False)
    assert transport.requests[0].prompt_ids == expected


async def test_chat_messages_reach_the_template(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=[
            {
                "role": "developer",
                "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
            },
            {"role": "user", "content": "Hi", "name": "Ada"},
            {"role": "assistant", "content": None, "refusal": None},
            {"role": "tool", "content": "42", "tool_call_id": "call_1"},
            {"role": "user", "content": "Grüße 🚀"},
        ],
    )
    prompt = transport.tokenizer.chat_template.render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": ""},
            {"role": "tool", "content": "42"},
            {"role": "user", "content": "Grüße 🚀"},
        ],
        add_generation_prompt=True,
    )
    assert transport.requests[0].prompt_ids == transport.tokenizer.encode(prompt)


async def test_parts_equal_the_joined_string(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    parts: list[ChatCompletionMessageParam] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo!"}],
        }
    ]
    for messages in (HELLO, parts):
        await client.chat.completions.create(model=MODEL, messages=messages)
    assert transport.requests[0].prompt_ids == transport.requests[1].prompt_ids


async def test_completion_stream(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    whole = await client.completions.create(model=MODEL, prompt="x", n=2)
    texts = {0: "", 1: ""}
    reasons = {}
    async for chunk in await client.completions.create(model=MODEL, prompt="x", n=2, stream=True):
        assert chunk.object == "text_completion"
        assert chunk.usage is None
        for choice in chunk.choices:
            assert choice.index not in reasons, "nothing follows the finish reason"
            texts[choice.index] += choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert reasons == {0: "stop", 1: "stop"}


async def test_chat_stream(client: openai.AsyncOpenAI, transport: FakeTransport) -> None:
    text = ""
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, max_completion_tokens=3
        )
    ]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "".join(transport.words[:3])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_stream_as_sent(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    """Byte level: usage absent unless asked for, then null on all chunks but the last."""
    for route, prompt in (
        ("completions", {"prompt": "x"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        for include in (False, True):
            options = {"stream_options": {"include_usage": True}} if include else {}
            body = {"model": MODEL, "stream": True, "n": 2, **prompt, **options}
            async with http.post(f"/v1/{route}", json=body) as response:
                assert response.status == 200
                assert response.content_type == "text/event-stream"
                lines = (await response.text()).split("\n\n")
            assert lines[-1] == ""
            assert lines[-2] == "data: [DONE]"
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
            if not include:
                assert all("usage" not in chunk for chunk in chunks)
                assert all(chunk["choices"] for chunk in chunks)
                continue
            *pieces, last = chunks
            assert all(chunk["usage"] is None and chunk["choices"] for chunk in pieces)
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 2 * len(transport.words)
            prompt_tokens = len(transport.requests[-1].prompt_ids)
            assert last["usage"]["prompt_tokens"] == prompt_tokens
            assert last["usage"]["total_tokens"] == prompt_tokens + 2 * len(transport.words)
            assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            assert {chunk["id"] for chunk in chunks} == {last["id"]}


async def test_large_prompt_is_tokenised_in_a_thread_alike(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    long = "nearly " * 4000
    expected = transport.tokenizer.encode(long, add_special_tokens=True)
    transport.info = type(transport.info)(
        **{f: getattr(transport.info, f) for f in transport.info.__struct_fields__}
        | {"context_length": 10_000, "pool_tokens": 10_000}
    )
    await client.completions.create(model=MODEL, prompt=long)
    assert transport.requests[0].prompt_ids == expected


async def test_token_ids(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    messages = [{"role": "user", "content": "x"}]
    for route, prompt in (
        ("completions", {"prompt": "x"}),
        ("chat/completions", {"messages": messages}),
    ):
        body = {"model": MODEL, "return_token_ids": True, **prompt}
        async with http.post(f"/v1/{route}", json=body) as response:
            whole = await response.json()
        [choice] = whole["choices"]
        assert choice["token_ids"] == list(range(len(transport.words)))
        prompt_ids = transport.requests[-1].prompt_ids
        assert (choice if route == "completions" else whole)["prompt_token_ids"] == prompt_ids
        async with http.post(f"/v1/{route}", json=body | {"stream": True}) as response:
            lines = (await response.text()).split("\n\n")[:-2]
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
        assert ids == choice["token_ids"]
        first = chunks[0]["choices"][0] if route == "completions" else chunks[0]
        assert first["prompt_token_ids"] == prompt_ids
        assert sum("prompt_token_ids" in str(chunk) for chunk in chunks) == 1
