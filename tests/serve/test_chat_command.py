"""The terminal chat, against our own application and against servers that misbehave."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Generator, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fake_transport import FakeTransport
from http_host import Serve
from rich.console import Console

from radixray.errors import DeploymentError, EngineError, InvalidRequestError, RadixRayError
from radixray.serve.app import build_app
from radixray.terminal.chat import Chat
from radixray.terminal.endpoint import Endpoint, TokenCounts


class Lines:
    """What is typed; then the input ends."""

    def __init__(self, *lines: str | BaseException) -> None:
        self._lines = iter(lines)

    def __call__(self) -> str:
        line = next(self._lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line


async def talk(url: str, *lines: str | BaseException, **options: Any) -> tuple[str, Chat]:
    """What is shown, and the conversation at the end."""
    shown = io.StringIO()

    def run() -> Chat:
        console = Console(file=shown, width=200)
        chat = Chat(Endpoint(url, options.pop("api_key", None)), console, **options)
        chat.run(Lines(*lines))
        return chat

    chat = await asyncio.to_thread(run)
    return shown.getvalue(), chat


async def test_turns(url: str, transport: FakeTransport) -> None:
    transport.cached = [0, 11]
    shown, chat = await talk(
        url,
        "Hello",
        "",
        "And?",
        "/help",
        "/exit",
        "never sent",
        system="Be brief.",
        parameters={"temperature": 0.0, "max_completion_tokens": 30},
    )
    assert shown.count(transport.text + "\n") == 2
    assert "0 cached; 7 tokens" in shown
    assert "11 cached; 7 tokens" in shown
    assert "/s; the first after" in shown
    roles = [message["role"] for message in chat.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert chat.messages[2]["content"] == transport.text
    first, second = transport.requests
    assert (first.sampling.max_tokens, first.sampling.temperature) == (30, 0)
    # The model gets the whole conversation.
    prompt = transport.tokenizer.decode(second.prompt_ids)
    for text in ("Be brief.", "Hello", transport.text, "And?"):
        assert text in prompt


async def test_reset_keeps_the_system_prompt(url: str, transport: FakeTransport) -> None:
    shown, chat = await talk(url, "Hello", "/reset", "Again", system="Be brief.")
    assert "forgotten" in shown
    assert [m["content"] for m in chat.messages] == ["Be brief.", "Again", transport.text]


async def test_what_is_stopped_is_kept_as_far_as_it_was_seen(
    url: str, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.hang_after = 2
    chat_of = Endpoint.chat

    def interrupted(*args: Any) -> Iterable[str | TokenCounts]:
        """Ctrl-C comes after two pieces."""
        pieces = chat_of(*args)
        yield next(pieces)
        yield next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(Endpoint, "chat", interrupted)
    shown, chat = await talk(url, "Hello", KeyboardInterrupt(), "/exit")
    assert "stopped" in shown
    assert chat.messages[1]["content"] == "".join(transport.words[:2])
    async with asyncio.timeout(5):
        while not transport.aborted:  # the server was told
            await asyncio.sleep(0.01)


async def test_an_answer_that_fails_leaves_the_conversation(
    url: str, transport: FakeTransport
) -> None:
    transport.error, transport.fail_after = EngineError("it [broke]"), 2
    shown, chat = await talk(url, "Hello", "/exit")
    assert "error: it [broke]" in shown
    assert chat.messages == []


async def test_control_characters_do_not_reach_the_terminal(
    url: str, transport: FakeTransport
) -> None:
    transport.words = ["a\x1b[2J", "\x07b", "\n\tc"]
    shown, _ = await talk(url, "Hello")
    assert "a[2Jb\n" in shown
    assert "\x1b" not in shown


async def test_keys(serve: Serve, transport: FakeTransport) -> None:
    async def connect() -> FakeTransport:
        return transport

    url = await serve(build_app(connect, api_key="secret"))
    shown, _ = await talk(f"{url}/v1/", "Hello", api_key="secret")
    assert transport.text in shown
    for wrong in (None, "other"):
        with pytest.raises(InvalidRequestError) as caught:
            await talk(url, api_key=wrong)
        assert caught.value.param == "api_key"


async def test_models(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="serves smollm2-135m, not 'gpt'") as caught:
        await talk(url, model="gpt")
    assert caught.value.param == "model"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_no_server(url: str) -> None:
    with pytest.raises(DeploymentError, match="radixray serve") as caught:
        Endpoint(url, None).models()
    assert caught.value.param == "url"


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://[", "http://host:port", ""]
)
def test_no_url(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="http://host:port"):
        Endpoint(url, None)


@pytest.fixture
def answering() -> Generator[Callable[[int, bytes], str], None, None]:
    """A server that answers every request with one status and body."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": [{}]}', b'{"data": 7}', b"\xff"])
def test_other_servers(answering: Callable[[int, bytes], str], body: bytes) -> None:
    with pytest.raises(DeploymentError, match="no OpenAI-compatible server"):
        Endpoint(answering(200, body), None).models()


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (429, b'{"error": {"message": "slow down"}}', InvalidRequestError, "slow down"),
        (503, b'{"error": "loading"}', EngineError, "loading"),
        (502, b"<html>bad gateway", EngineError, "HTTP 502"),
        (200, b"", EngineError, "broke off"),
        (200, b"data: {\n\n", EngineError, "broke off"),
        (200, b"data: 7\n\n", EngineError, "broke off"),
        (200, b'data: {"error": {"message": "died"}}\n\n', EngineError, "died"),
    ],
)
def test_answers_that_are_none(
    answering: Callable[[int, bytes], str],
    status: int,
    body: bytes,
    error: type[RadixRayError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        list(Endpoint(answering(status, body), None).chat("m", [], {}))


def test_other_dialects(answering: Callable[[int, bytes], str]) -> None:
    """Comments, roles without text, usage without details, and no usage at all."""
    chunks: list[dict[str, Any]] = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": "é"}}], "usage": None},
        {"choices": [{"delta": None, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    ]
    body = b": hello\n\n" + b"".join(f"data: {json.dumps(c)}\n\n".encode() for c in chunks)
    url = answering(200, body + b"data: [DONE]\n\n")
    assert list(Endpoint(url, None).chat("m", [], {})) == ["é", TokenCounts(3, 0, 1)]
