"""Programs over HTTP on a RadixRay server: values, errors and ends as beside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import pytest
from http_app import KEY, serving
from starlette.applications import Starlette

import radixray as rr
from radixray.constraint import Constraint
from radixray.errors import WIRE_ERRORS
from radixray.protocol import Delta, GenerateRequest, SamplingParams, ScoreRequest, ScoreResult
from radixray.serve.app import build_app
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import ApiKey, KeyLimits
from radixray.transports import native
from radixray.transports.in_process import InProcessTransport
from radixray.transports.radixray_server import RadixRayServer, ServerTransport

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@rr.function
async def everything(s: rr.State) -> list[Any]:
    s += rr.system("Be brief.") + rr.user("Name a river, a number, and a colour.")
    with s.assistant():
        s += "River:" + rr.gen("river", max_tokens=6, stop="\n", logprobs=2) + "\nNumber:"
        s += rr.gen("number", regex=" [0-9]{1,3}") + "\nJSON: "
        s += rr.gen("json", json_schema=SCHEMA, max_tokens=24) + "\nColour:"
        s += rr.gen("colour", choices=[" red", " green"]) + "\nAnimal:"
        s += rr.gen("animal", ebnf='root ::= " cat" | " dog"')
        s += rr.select("size", [" big", " small", " middle-sized"]) + "."
        s += rr.select("taste", [" sweet", " sour"], method="greedy_token_selection") + "."
        s += rr.select("age", [" old", " very young"], method="unconditional_likelihood_normalized")
    s += rr.user("And now?")
    async with s.fork(3) as forks:
        for index, fork in enumerate(forks):
            fork += rr.assistant(f"{index}:" + rr.gen("more", max_tokens=5))
    s += rr.assistant(rr.gen("drawn", max_tokens=8, n=2, seed=5, temperature=1.0))
    return [s["more"].value]


@pytest.fixture
async def remote(url: str) -> AsyncGenerator[ServerTransport, None]:
    transport = await RadixRayServer(url, KEY).connect()
    yield transport
    await transport.close()


@pytest.fixture
def connected(url: str) -> Iterator[rr.Runtime]:
    runtime = rr.connect(url, api_key=KEY)
    yield runtime
    runtime.shutdown()


def plain(result: rr.ProgramResult) -> Any:
    """All values of a program, without what differs from run to run."""

    def stripped(value: Any) -> Any:
        if isinstance(value, rr.Gen | rr.Choice):
            kept = dict(vars(value))
            del kept["request_id"], kept["usage"]
            return kept
        return [stripped(item) for item in value] if isinstance(value, list) else value

    return {name: stripped(value) for name, value in result.variables.items()}


async def test_all_features_give_what_the_engine_gives(
    direct: InProcessTransport, connected: rr.Runtime
) -> None:
    here = await everything.run(transport=direct, temperature=0)
    there = await everything.run(temperature=0)
    assert plain(there) == plain(here)
    assert there.tokens() == here.tokens()
    assert there.usage.prompt == here.usage.prompt
    assert there.usage.cached > 0


async def test_streams(connected: rr.Runtime) -> None:
    pieces = [event async for event in everything.stream(temperature=0)]
    result = pieces[-1].result
    assert result is not None
    river = [piece.delta for piece in pieces if piece.var == "river"]
    assert "".join(river) == result["river"].text
    assert len(river) > 1


async def test_a_request_keeps_its_id(remote: ServerTransport, direct: InProcessTransport) -> None:
    request = GenerateRequest(
        request_id="mine", prompt_ids=[1, 2], sampling=SamplingParams(max_tokens=400)
    )
    async with asyncio.timeout(30):
        stream = remote.generate(request)
        assert (await anext(stream)).request_id == "mine"
        with pytest.raises(rr.InvalidRequestError, match="'mine' is in use") as raised:
            await anext(remote.generate(request))
        assert raised.value.param == "request_id"
        await stream.aclose()
        await idle(direct)


async def idle(direct: InProcessTransport) -> None:
    for _ in range(300):
        (stats,) = (await direct.stats()).values()
        if stats.running == stats.waiting == stats.pages_leased == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(stats)


async def test_a_cancelled_program_ends_at_the_engine(
    connected: rr.Runtime, direct: InProcessTransport
) -> None:
    @rr.function
    async def endless(s: rr.State) -> None:
        s += "Once"
        async with s.fork(3) as forks:
            forks += rr.gen("story", max_tokens=1000, ignore_eos=True)

    task = asyncio.create_task(endless.run(temperature=0))
    while next(iter((await direct.stats()).values())).running < 3:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(direct)


async def test_closing_fails_what_runs(connected: rr.Runtime, direct: InProcessTransport) -> None:
    @rr.function
    async def endless(s: rr.State) -> None:
        s += "Once" + rr.gen("story", max_tokens=1000, ignore_eos=True)

    task = asyncio.create_task(endless.run(temperature=0))
    while not next(iter((await direct.stats()).values())).running:
        await asyncio.sleep(0.01)
    connected.shutdown()
    with pytest.raises(rr.ProgramError) as raised:
        await asyncio.wait_for(task, 10)
    assert isinstance(raised.value.__cause__, rr.EngineDiedError)
    await idle(direct)


async def test_counters_and_flush(connected: rr.Runtime) -> None:
    @rr.function
    async def ask(s: rr.State) -> None:
        s += "A text to be cached" + rr.gen("x", max_tokens=1)

    await ask.run(temperature=0)
    assert (await connected.stats())["in-process"].pages_tree > 0
    assert await connected.flush() > 0
    assert (await connected.stats())["in-process"].pages_tree == 0
    with pytest.raises(rr.UnsupportedFeatureError) as raised:
        await connected.pin("A text", 5)
    assert raised.value.param == "pin"
    with pytest.raises(rr.UnsupportedFeatureError):
        await connected.cache_tree()
    with pytest.raises(rr.UnsupportedFeatureError, match="no deployment on Ray"):
        ask.remote()


async def test_wrong_servers(url: str) -> None:
    with pytest.raises(rr.InvalidRequestError, match="API key") as raised:
        await RadixRayServer(url, "wrong").connect()
    assert raised.value.param == "api_key"
    with pytest.raises(rr.EngineDiedError, match="cannot be reached"):
        await RadixRayServer("http://127.0.0.1:9").connect()
    with pytest.raises(rr.InvalidRequestError, match="http://"):
        rr.connect("localhost:80")
    async with serving(Starlette()) as other:
        with pytest.raises(rr.DeploymentError, match="no RadixRay server"):
            await RadixRayServer(other).connect()


class Failing:
    """A transport that yields a piece, and then does what it is told."""

    def __init__(self, real: InProcessTransport) -> None:
        self.info, self.tokenizer = real.info, real.tokenizer
        self.error: Exception | None = None
        self.pieces = 1
        self.wait_s = 0.0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for index in range(self.pieces):
            yield Delta(request_id=request.request_id, index=index, token_ids=[7], text="x")
        await asyncio.sleep(self.wait_s)
        if self.error is not None:
            raise self.error
        yield Delta(request_id=request.request_id, index=self.pieces, finish_reason="stop")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        assert self.error is not None
        raise self.error


@pytest.fixture
async def failing(direct: InProcessTransport) -> AsyncGenerator[tuple[Failing, str], None]:
    fake = Failing(direct)

    async def connect() -> Any:
        return fake

    async with serving(build_app(connect, api_key=None)) as url:
        yield fake, url


REQUEST = GenerateRequest(request_id="a", prompt_ids=[1], sampling=SamplingParams(max_tokens=9))


async def test_errors_are_what_they_were(failing: tuple[Failing, str]) -> None:
    fake, url = failing
    transport = await RadixRayServer(url).connect()
    score = ScoreRequest(request_id="b", prompt_ids=[1], choices=[[2]])
    for kind in WIRE_ERRORS.values():
        fake.error = kind("the reason", param="prompt")
        if isinstance(fake.error, rr.OverloadedError):
            fake.error.retry_after_s = 0.25
        for fake.pieces in (0, 1):
            with pytest.raises(rr.RadixRayError) as raised:
                [delta async for delta in transport.generate(REQUEST)]
            assert type(raised.value) is kind
            assert vars(raised.value) == vars(fake.error)
        with pytest.raises(rr.RadixRayError) as raised:
            await transport.score(score)
        assert type(raised.value) is kind
    fake.error = ZeroDivisionError("a secret of ours")
    with pytest.raises(rr.EngineError) as raised:
        [delta async for delta in transport.generate(REQUEST)]
    assert "secret" not in str(raised.value)
    await transport.close()
    with pytest.raises(rr.EngineDiedError):
        [delta async for delta in transport.generate(REQUEST)]


@pytest.mark.parametrize("limits", [{"tokens_per_minute": 6}, {"requests_per_minute": 1}])
async def test_limits_of_keys_hold(direct: InProcessTransport, limits: dict[str, int]) -> None:
    fake = Failing(direct)

    async def connect() -> Any:
        return fake

    config = HttpConfig(keys=(ApiKey.of("few", "k", KeyLimits(**limits)),))
    async with serving(build_app(connect, config=config)) as url:
        transport = await RadixRayServer(url, "k").connect()
        with suppress(rr.RateLimitError):
            [delta async for delta in transport.generate(REQUEST)]  # what there is, is used
        for ask in (
            lambda: transport.score(
                ScoreRequest(request_id="a", prompt_ids=[1], choices=[[2] * 9])
            ),
            lambda: anext(transport.generate(msgspec.structs.replace(REQUEST, prompt_ids=[1] * 9))),
        ):
            with pytest.raises(rr.RateLimitError) as raised:
                await ask()
            assert raised.value.retry_after_s > 1
        await transport.close()


async def test_silence_is_told_from_a_lost_connection(
    failing: tuple[Failing, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, url = failing
    fake.wait_s = 0.8
    monkeypatch.setattr("radixray.transports.radixray_server.READ_TIMEOUT_S", 0.4)
    monkeypatch.setattr(native, "KEEP_ALIVE_S", 0.1)
    transport = await RadixRayServer(url).connect()
    assert [d.text async for d in transport.generate(REQUEST)] == ["x", ""]
    monkeypatch.setattr(native, "KEEP_ALIVE_S", 30)
    with pytest.raises(rr.EngineDiedError):
        [delta async for delta in transport.generate(REQUEST)]
    await transport.close()


async def test_a_connection_that_breaks(direct: InProcessTransport) -> None:
    """A server that promises more and hangs up."""
    served = msgspec.json.encode({"info": direct.info, "tokenizer": direct.tokenizer.files})
    line = msgspec.json.encode(native.Line(delta=Delta(request_id="a", token_ids=[7], text="x")))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = served if head.startswith(b"GET") else line + b"\n"
        if (length := len(body)) and head.startswith(b"POST"):
            await reader.read(10_000)
            length = 10_000
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % length + body
        )
        await writer.drain()
        await asyncio.sleep(0.2)  # what was sent is read before the end is seen
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = await RadixRayServer(f"http://127.0.0.1:{port}").connect()
        stream = transport.generate(REQUEST)
        assert (await anext(stream)).text == "x"
        with pytest.raises(rr.EngineDiedError):
            await anext(stream)
        await transport.close()


async def test_code_and_unknown_fields_are_refused(url: str, remote: ServerTransport) -> None:
    constraint = Constraint(predicate=str.isalpha)  # type: ignore[arg-type]
    request = GenerateRequest(request_id="a", prompt_ids=[1], constraint=constraint)
    with pytest.raises(rr.UnsupportedFeatureError, match="predicate"):
        await anext(remote.generate(request))
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as http:

        async def refusal(body: bytes) -> dict[str, Any]:
            async with http.post(url + native.GENERATE, data=body) as response:
                assert response.status == 400
                return (await response.json(content_type=None))["error"]

        refused = await refusal(msgspec.json.encode(request))
        assert (refused["type"], refused["param"]) == ("ConstraintError", "predicate")
        fields = msgspec.to_builtins(REQUEST)
        for place in ("", "sampling"):
            changed = {**fields, "sampling": dict(fields["sampling"])}
            (changed[place] if place else changed)["novel"] = 1
            refused = await refusal(msgspec.json.encode(changed))
            assert refused["param"] == ".".join(filter(None, (place, "novel")))
        refused = await refusal(b"[")
        assert refused["type"] == "InvalidRequestError"
        fields["prompt_ids"] = [10**9]
        refused = await refusal(msgspec.json.encode(fields))
        assert refused["param"] == "prompt"
