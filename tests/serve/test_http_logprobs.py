"""Log-probabilities, whole and streamed, in OpenAI's two shapes."""

from __future__ import annotations

from typing import Any

import aiohttp
import openai
import pytest
from fake_transport import FakeTransport, scored

from radixray.protocol import TokenLogprob

MODEL = "smollm2-135m"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
END = 2


@pytest.fixture
def rocket(transport: FakeTransport) -> list[int]:
    """An answer with a character of three tokens, and a stop token at its end."""
    transport.token_ids = [*transport.tokenizer.encode("Go 🚀 on"), END]
    assert len(transport.tokenizer.encode("🚀")) == 3
    return transport.token_ids


async def test_chat(
    client: openai.AsyncOpenAI, transport: FakeTransport, rocket: list[int]
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2
    )
    assert transport.requests[0].sampling.logprobs == 2
    [choice] = answer.choices
    assert choice.message.content == "Go 🚀 on"
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert len(content) == len(rocket)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(rocket)
    # The bytes of all tokens but the stop token are the text's.
    assert b"".join(bytes(each.bytes or []) for each in content[:-1]).decode() == "Go 🚀 on"
    assert content[0].token == "Go"
    parts = [each for each in content if each.token.startswith("\\x")]
    assert [each.token for each in parts][-1] == "\\x80"
    assert content[-1].token == transport.tokenizer.spelling(END).decode()
    for token_id, each in zip(rocket, content, strict=True):
        expected = scored(token_id, 2)
        assert each.logprob == expected.logprob
        assert [top.logprob for top in each.top_logprobs] == [pair[1] for pair in expected.top]
        assert bytes(each.bytes or []) == transport.tokenizer.spelling(token_id)
        assert bytes(each.top_logprobs[1].bytes or []) == transport.tokenizer.spelling(token_id + 1)


async def test_chat_without_top(
    client: openai.AsyncOpenAI, transport: FakeTransport, rocket: list[int]
) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True)
    assert transport.requests[0].sampling.logprobs == 0
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [each.top_logprobs for each in logprobs.content] == [[]] * len(rocket)


async def test_chat_stream_equals_the_whole(client: openai.AsyncOpenAI, rocket: list[int]) -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": HELLO, "logprobs": True, "n": 2}
    for top in (0, 3):
        whole = await client.chat.completions.create(**given, top_logprobs=top)
        entries: dict[int, list[Any]] = {0: [], 1: []}
        texts = {0: "", 1: ""}
        async for chunk in await client.chat.completions.create(
            **given, top_logprobs=top, stream=True
        ):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.logprobs is not None:
                    entries[choice.index] += choice.logprobs.content or []
        for choice in whole.choices:
            assert choice.logprobs is not None
            assert entries[choice.index] == choice.logprobs.content
            assert texts[choice.index] == choice.message.content


async def test_completion(
    client: openai.AsyncOpenAI, transport: FakeTransport, rocket: list[int]
) -> None:
    answer = await client.completions.create(model=MODEL, prompt="x", logprobs=1)
    assert transport.requests[0].sampling.logprobs == 1
    assert transport.requests[0].sampling.prompt_logprobs_from is None
    [choice] = answer.choices
    assert choice.text == "Go 🚀 on"
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs == [scored(token, 0).logprob for token in rocket]
    pieces = [transport.tokenizer.spelling(token) for token in rocket]
    for token, piece in zip(logprobs.tokens, pieces, strict=True):
        try:
            assert token == piece.decode()
        except UnicodeDecodeError:
            assert token == "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
    assert sum(token.startswith("bytes:") for token in logprobs.tokens) == 3
    # Every token of a character begins where the character does.
    assert logprobs.text_offset is not None
    rocket_at = "Go 🚀 on".index("🚀")
    assert logprobs.text_offset.count(rocket_at) >= 2
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset[-1] == len("Go 🚀 on")
    assert logprobs.top_logprobs is not None
    for own, token, top in zip(logprobs.tokens, rocket, logprobs.top_logprobs, strict=True):
        assert top[own] == scored(token, 0).logprob


@pytest.mark.parametrize("max_tokens", [0, 5])
async def test_echo(
    client: openai.AsyncOpenAI, transport: FakeTransport, rocket: list[int], max_tokens: int
) -> None:
    prompt = "Grüße 🚀<|im_end|> there"
    ids = transport.tokenizer.encode(prompt, add_special_tokens=True)
    answer = await client.completions.create(
        model=MODEL, prompt=prompt, echo=True, logprobs=0, max_tokens=max_tokens
    )
    assert transport.requests[0].sampling.prompt_logprobs_from == 1
    [choice] = answer.choices
    output = transport.tokenizer.decode(rocket[:max_tokens])
    assert choice.text == prompt + output
    logprobs = choice.logprobs
    assert logprobs is not None
    everything = [*ids, *rocket[:max_tokens]]
    expected: list[float | None] = [scored(token, 0).logprob for token in everything]
    assert logprobs.token_logprobs == [None, *expected[1:]]
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(everything)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text.startswith(token, offset)


async def test_echo_without_logprobs_and_of_ids(
    client: openai.AsyncOpenAI, transport: FakeTransport
) -> None:
    one, two = transport.tokenizer.encode("one"), transport.tokenizer.encode("two words")
    answer = await client.completions.create(model=MODEL, prompt=[one, two], echo=True, n=2)
    assert [choice.text.removesuffix(transport.text) for choice in answer.choices] == [
        "one",
        "one",
        "two words",
        "two words",
    ]
    assert answer.choices[0].logprobs is None
    assert transport.requests[0].sampling.prompt_logprobs_from is None
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], echo=True)
    assert [choice.text for choice in answer.choices] == [
        "a" + transport.text,
        "b" + transport.text,
    ]


async def test_completion_stream_equals_the_whole(
    client: openai.AsyncOpenAI, rocket: list[int]
) -> None:
    for prompt in ("Hi 🚀 there", "x"):
        given: dict[str, Any] = {"model": MODEL, "prompt": prompt, "logprobs": 2, "n": 2}
        for echo in (False, True):
            whole = await client.completions.create(**given, echo=echo)
            texts = {0: "", 1: ""}
            parts: dict[int, dict[str, list[Any]]] = {0: {}, 1: {}}
            async for chunk in await client.completions.create(**given, echo=echo, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
                    if choice.logprobs is not None:
                        for name, values in choice.logprobs.model_dump().items():
                            parts[choice.index].setdefault(name, []).extend(values)
            for choice in whole.choices:
                assert choice.logprobs is not None
                assert texts[choice.index] == choice.text
                assert parts[choice.index] == choice.logprobs.model_dump()


@pytest.mark.parametrize(
    ("route", "given", "param"),
    [
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"top_logprobs": 1}, "top_logprobs"),
        ("completions", {"echo": "yes"}, "echo"),
        ("chat/completions", {"logprobs": 1}, "logprobs"),
        ("chat/completions", {"top_logprobs": 1}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("chat/completions", {"echo": True}, "echo"),
    ],
    ids=str,
)
async def test_refused(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    route: str,
    given: dict[str, Any],
    param: str,
) -> None:
    prompt = {"messages": HELLO} if "chat" in route else {"prompt": "x"}
    async with http.post(f"/v1/{route}", json={"model": MODEL, **prompt, **given}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param
    assert transport.requests == []


async def test_minus_infinity_is_a_number(
    http: aiohttp.ClientSession, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible = TokenLogprob(5, float("-inf"), [(6, 0.0), (7, float("-inf"))])
    monkeypatch.setattr("fake_transport.scored", lambda token, top: impossible)
    async with http.post(
        "/v1/completions", json={"model": MODEL, "prompt": "x", "logprobs": 2}
    ) as response:
        body = await response.json()
    assert body["choices"][0]["logprobs"]["token_logprobs"][0] == -9999.0
