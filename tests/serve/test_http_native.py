"""SGLang's own protocol, and the routes beside text."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from fake_transport import INFO, FakeTransport, scored

from radixray.errors import OverloadedError
from radixray.protocol import Constraint, Handle, SamplingParams

END = 2


async def post(http: aiohttp.ClientSession, body: dict[str, Any], route: str = "/generate") -> Any:
    async with http.post(route, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def events(http: aiohttp.ClientSession, body: dict[str, Any]) -> list[Any]:
    async with http.post("/generate", json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_text(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    transport.cached = [3]
    answer = await post(http, {"text": "a b c d", "rid": "mine"})
    [request] = transport.requests
    assert request.prompt_ids == transport.tokenizer.encode("a b c d", add_special_tokens=True)
    assert request.sampling.max_tokens == 128
    assert answer["text"] == transport.text
    assert answer["output_ids"] == list(range(len(transport.words)))
    assert answer["meta_info"] == {
        "id": "mine",
        "finish_reason": {"type": "stop"},
        "prompt_tokens": len(request.prompt_ids),
        "completion_tokens": len(transport.words),
        "cached_tokens": 3,
    }


async def test_ids_batches_and_n(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    one, two = transport.tokenizer.encode("one"), transport.tokenizer.encode("two words")
    assert isinstance(await post(http, {"input_ids": one}), dict)
    assert isinstance(await post(http, {"input_ids": [one]}), list)
    assert isinstance(await post(http, {"text": ["one"]}), list)
    answers = await post(http, {"input_ids": [one, two], "sampling_params": {"n": 2}, "rid": "r"})
    assert [request.prompt_ids for request in transport.requests[-4:]] == [one, one, two, two]
    assert [answer["meta_info"]["id"] for answer in answers] == ["r_0", "r_1", "r_2", "r_3"]
    assert len({request.sampling.seed for request in transport.requests}) == 7


async def test_sampling(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    same = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "repetition_penalty": 1.5,
        "ignore_eos": True,
    }
    given = same | {
        "max_new_tokens": 5,
        "min_new_tokens": 2,
        "sampling_seed": 9,
        "stop": ["x"],
        "stop_token_ids": [7],
        "logit_bias": {"5": -1.0},
        "regex": "a+",
        "json_schema": None,
        "stop_regex": ["b+"],
        "spaces_between_special_tokens": True,
    }
    answer = await post(http, {"text": "x", "sampling_params": given})
    [request] = transport.requests
    assert request.constraint == Constraint(regex="a+")
    assert request.sampling == SamplingParams(
        **same,
        max_tokens=5,
        min_tokens=2,
        seed=9,
        stop=("x",),
        stop_regex=("b+",),
        stop_token_ids=(7,),
        logit_bias={5: -1.0},
    )
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}


async def test_stream_is_cumulative(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    whole = await post(http, {"text": "x", "rid": "r", "return_logprob": True})
    chunks = await events(http, {"text": "x", "rid": "r", "return_logprob": True})
    assert [chunk["text"] for chunk in chunks] == [
        "".join(transport.words[: i + 1]) for i in range(len(transport.words))
    ]
    assert chunks[-1] == whole
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])
    chunks = await events(http, {"text": ["x", "y"]})
    assert {chunk["index"] for chunk in chunks} == {0, 1}


async def test_logprobs(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    transport.token_ids = [*transport.tokenizer.encode(" six"), END]
    ids = transport.tokenizer.encode("one two three four")
    body = {"input_ids": ids, "return_logprob": True, "top_logprobs_num": 2}
    for start in (0, 2, len(ids) - 1):
        given = body | {"logprob_start_len": start, "return_text_in_logprobs": True}
        answer = await post(http, given)
        meta = answer["meta_info"]
        spelling = transport.tokenizer.spelling
        assert [entry[1] for entry in meta["input_token_logprobs"]] == ids[start:]
        assert meta["input_token_logprobs"][0][2] == spelling(ids[start]).decode()
        # Nothing comes before the very first, and so it has none.
        assert [entry[0] for entry in meta["input_token_logprobs"]] == [
            None if i == 0 else scored(ids[i], 0).logprob for i in range(start, len(ids))
        ]
        tops = meta["input_top_logprobs"]
        assert [top is None for top in tops] == [i == 0 for i in range(start, len(ids))]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == transport.token_ids
        assert [len(top) for top in meta["output_top_logprobs"]] == [2] * 2
        assert meta["finish_reason"] == {"type": "stop", "matched": END}
        streamed = await events(http, given | {"rid": meta["id"]})
        assert streamed[-1]["meta_info"] == meta
    meta = (await post(http, body))["meta_info"]
    assert meta["input_token_logprobs"] == []
    only_cached = await post(http, body | {"sampling_params": {"max_new_tokens": 0}})
    assert len(only_cached["meta_info"]["input_token_logprobs"]) == len(ids)
    assert only_cached["output_ids"] == []
    await post(http, body)
    assert transport.requests[-1].sampling.prompt_logprobs_from is None
    assert "input_token_logprobs" not in (await post(http, {"text": "x"}))["meta_info"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "text"),
        ({"text": "x", "input_ids": [1]}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids"),
        ({"input_ids": [INFO.vocab_size]}, "input_ids"),
        ({"text": "x", "no_such": 1}, "no_such"),
        ({"text": "x", "image_data": "y"}, "image_data"),
        ({"text": "x", "rid": ["a", "b"]}, "rid"),
        ({"text": "x", "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "x", "return_logprob": True, "top_logprobs_num": 99}, "top_logprobs_num"),
        ({"text": "x", "sampling_params": []}, "sampling_params"),
        ({"text": "x", "sampling_params": {"no_such": 1}}, "sampling_params.no_such"),
        ({"text": "x", "sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"text": "x", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "x", "sampling_params": {"top_p": 0}}, "sampling_params.top_p"),
        (
            {"text": "x", "sampling_params": {"max_new_tokens": -1}},
            "sampling_params.max_new_tokens",
        ),
        (
            {"text": "x", "sampling_params": {"min_new_tokens": 200}},
            "sampling_params.min_new_tokens",
        ),
        ({"text": "x", "sampling_params": {"regex": "(", "ebnf": "a"}}, "sampling_params.regex"),
        ({"text": "x", "sampling_params": {"stop_regex": ""}}, "sampling_params.stop_regex"),
        (
            {"text": "x", "sampling_params": {"skip_special_tokens": False}},
            "sampling_params.skip_special_tokens",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_refused(
    http: aiohttp.ClientSession, transport: FakeTransport, given: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        async with http.post("/generate", json=given | {"stream": stream}) as response:
            error = (await response.json())["error"]
            assert response.status == 400, error
        assert error["param"] == param, error
    assert transport.requests == []


async def test_overload_is_a_status(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    transport.error = OverloadedError("full")
    async with http.post("/generate", json={"text": "x", "stream": True}) as response:
        assert response.status == 429
        assert "Retry-After" in response.headers


async def test_server_routes(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    for route in ("/get_model_info", "/model_info"):
        async with http.get(route) as response:
            info = await response.json()
        assert info["model_path"] == INFO.name
        assert info["is_generation"] is True
    for route in ("/get_server_info", "/server_info"):
        async with http.get(route) as response:
            info = await response.json()
        assert info["max_total_num_tokens"] == INFO.pool_tokens
        assert info["internal_states"][0]["pages_free"] == 30
    async with http.post("/flush_cache") as response:
        assert response.status == 200
    assert transport.flushed == 1
    async with http.get("/ready") as response:
        assert response.status == 200
    async with http.get("/health_generate") as response:
        assert response.status == 200
    assert transport.requests[-1].sampling.max_tokens == 1
    transport.error = OverloadedError("full")
    async with http.get("/health_generate") as response:
        assert response.status == 429
    transport.health = {}
    async with http.get("/ready") as response:
        assert response.status == 503


async def test_tokenize(http: aiohttp.ClientSession, transport: FakeTransport) -> None:
    tokenizer = transport.tokenizer
    answer = await post(
        http, {"model": INFO.name, "prompt": "Grüße 🚀", "return_token_strs": True}, "/tokenize"
    )
    assert answer["tokens"] == tokenizer.encode("Grüße 🚀", add_special_tokens=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == INFO.max_sequence_tokens
    messages = [{"role": "user", "content": "Hi"}]
    chat = await post(http, {"messages": messages}, "/tokenize")
    rendered = tokenizer.chat_template.render(messages, add_generation_prompt=True)
    assert chat["tokens"] == tokenizer.encode(rendered)
    back = await post(http, {"tokens": answer["tokens"]}, "/detokenize")
    assert back == {"prompt": "Grüße 🚀"}
    assert (await post(http, {"tokens": []}, "/detokenize")) == {"prompt": ""}


@pytest.mark.parametrize(
    ("route", "given", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, 400, "tokens[0]"),
        ("/v1/embeddings", {"model": INFO.name, "input": "x"}, 400, "model"),
    ],
)
async def test_token_routes_refuse(
    http: aiohttp.ClientSession, route: str, given: dict[str, Any], status: int, param: str
) -> None:
    async with http.post(route, json=given) as response:
        error = (await response.json())["error"]
        assert response.status == status, error
    assert error["param"] in (param, param.partition("[")[0]), error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [{"rid": "mine"}, {"abort_all": True}])
async def test_abort(
    http: aiohttp.ClientSession, transport: FakeTransport, stream: bool, body: dict[str, Any]
) -> None:
    transport.hang_after = 2
    given = {"text": ["a", "b"], "rid": "mine", "stream": stream}
    async with asyncio.timeout(10):
        answering = asyncio.create_task(_text(http, given))
        while len(transport.live) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        async with http.post("/abort_request", json={"rid": "other"}) as response:
            assert response.status == 200
        assert len(transport.live) == 2
        async with http.post("/abort_request", json=body) as response:
            assert response.status == 200
        text = await answering
    assert not transport.live
    if stream:
        events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
        answers = [next(each for each in reversed(events) if each["index"] == i) for i in (0, 1)]
    else:
        answers = json.loads(text)
    for answer in answers:
        assert answer["text"] == "".join(transport.words[:2])
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("stream", [False, True])
async def test_abort_on_the_way_to_a_model_actor(
    http: aiohttp.ClientSession,
    transport: FakeTransport,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    monkeypatch.setattr("radixray.serve.live_requests.GRACE_S", 0.05)

    async def end(handle: Handle) -> None:
        assert handle == Handle("anonymous", "mine")

    transport.hang_after, transport.end = 0, end
    async with asyncio.timeout(10):
        given = {"text": "a", "rid": "mine", "stream": stream}
        answering = asyncio.create_task(_text(http, given))
        while not transport.live:
            await asyncio.sleep(0.01)
        async with http.post("/abort_request", json={"rid": "mine"}) as response:
            assert response.status == 200
        text = await answering
    assert '"type":"abort"' in text
    assert len(transport.aborted) == 1


async def test_abort_wants_a_rid(http: aiohttp.ClientSession) -> None:
    for body in ({}, {"rid": "x", "abort_all": True}, {"rid": 5}):
        async with http.post("/abort_request", json=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "rid"


async def _text(http: aiohttp.ClientSession, body: dict[str, Any]) -> str:
    async with http.post("/generate", json=body) as response:
        assert response.status == 200
        return await response.text()
