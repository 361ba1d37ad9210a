"""Images in programs: what is read, where they stand, and what a model without eyes says."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.server
import io
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import PIL.Image
import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.actors.wire import decode_request, encode_request
from radixray.client.images import ImageExpression, Picture
from radixray.client.state import State
from radixray.images import MAX_IMAGES, Image
from radixray.protocol import GenerateRequest, ScoreRequest

PLACEHOLDER = "<image>"


def encoded(colour: str, kind: str = "PNG", size: tuple[int, int] = (3, 2)) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", size, colour).save(buffer, kind)
    return buffer.getvalue()


def bare_png(width: int, height: int) -> bytes:
    """The head of an image that claims to be of this size."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + body + struct.pack(">I", 0) + b"IDAT"


RED, BLUE = encoded("red"), encoded("blue", "JPEG", (5, 7))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hashes(request: GenerateRequest | ScoreRequest) -> list[str]:
    return [image.sha256 for image in request.images]


@pytest.fixture
def seeing(transport: ScriptedTransport) -> ScriptedTransport:
    """A model that takes images."""
    transport.info = msgspec.structs.replace(transport.info, image_placeholder=PLACEHOLDER)
    return transport


@pytest.fixture
async def sighted(seeing: ScriptedTransport, state: State) -> State:
    return state


def picture_of(expression: ImageExpression) -> Picture:
    assert isinstance(expression.source, Picture)
    return expression.source


@pytest.mark.parametrize("how", ["bytes", "bytearray", "str", "path", "data url", "pillow"])
def test_sources(how: str, tmp_path: Path) -> None:
    path = tmp_path / "an image.png"
    path.write_bytes(RED)
    source: Any = {
        "bytes": RED,
        "bytearray": bytearray(RED),
        "str": str(path),
        "path": path,
        "data url": "data:image/png;base64," + base64.b64encode(RED).decode(),
        "pillow": PIL.Image.open(io.BytesIO(RED)),
    }[how]
    picture = picture_of(rr.image(source))
    assert picture.image == Image(sha(RED), "png", 3, 2)
    assert picture.data == RED


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats(kind: str) -> None:
    data = encoded("red", kind, (4, 9))
    assert picture_of(rr.image(data)).image == Image(sha(data), kind.lower(), 4, 9)  # type: ignore


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "from 1 to 20971520 bytes, not 0"),
        (b"no image", "cannot be read"),
        (encoded("red", "TIFF"), "cannot be read"),
        (RED[:20], "cannot be read"),
        (b"\0" * (20 * 2**20 + 1), "from 1 to 20971520 bytes"),
        (bare_png(60_000, 2), "32768, not 60000"),
        (bare_png(20_000, 20_000), "too many pixels"),
        (bare_png(10_000, 10_000), "67108864 pixels, not 10000 x 10000"),
        ("no/such/file.png", "No such file"),
        ("nul\0byte", "cannot be read"),
        ("data:image/png;base64,@@@", "no base64"),
        ("data:image/png", "comma"),
        (7, "must be a path"),
        (None, "must be a path"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_refused(source: Any, message: str) -> None:
    with pytest.raises(rr.InvalidRequestError, match=message) as caught:
        rr.image(source)
    assert caught.value.param == "image"


def test_expressions_do_not_hide_in_strings() -> None:
    with pytest.raises(rr.InvalidRequestError, match=r"ImageExpression .* join it with \+"):
        _ = f"look: {rr.image(RED)}"
    with pytest.raises(rr.InvalidRequestError, match="GenExpression"):
        _ = f"{rr.gen('x')}"
    assert "GenExpression" in repr(rr.gen("x"))


@pytest.mark.parametrize("where", ["root", "role", "branch", "call"])
async def test_a_model_without_eyes_names_parameter_and_model(
    transport: ScriptedTransport, where: str
) -> None:
    @rr.function
    async def look(s: State) -> str:
        s += "What is on " + rr.image(RED) + "?" + rr.gen("x")
        return str(await s["x"])

    @rr.function
    async def program(s: State) -> None:
        if where == "root":
            await look(s)
        elif where == "role":
            s += rr.user("What is on " + rr.image(RED) + f"? {1}") + rr.assistant(rr.gen("x"))
            await s["x"]
        else:
            await (look(s.copy()) if where == "branch" else s.call(look))

    with pytest.raises(rr.ProgramError) as caught:
        await program.run(transport=transport)
    cause = caught.value.__cause__
    assert type(cause) is rr.UnsupportedInputError
    assert cause.param == "image" and "'scripted'" in cause.message
    assert transport.requests == []


async def test_a_url_is_not_fetched_for_nothing(state: State) -> None:
    state += rr.image("http://127.0.0.1:9/none.png")
    with pytest.raises(rr.ProgramError) as caught:
        await state.sync()
    assert isinstance(caught.value.__cause__, rr.UnsupportedInputError)


async def test_in_order_and_bytes_once(sighted: State, seeing: ScriptedTransport) -> None:
    """Two in a message, one of them again in the next; a generation, a commit and a selection."""
    red, blue = rr.image(RED), rr.image(BLUE)
    sighted += rr.user("Compare " + red + " and " + blue + "!")
    sighted += rr.assistant(rr.gen("x"))
    sighted += rr.user(red)
    await sighted.commit()
    with sighted.assistant():
        sighted += rr.select("y", [" a", " b"])
    await sighted.sync()
    first, commit, score = seeing.requests
    assert hashes(first) == [sha(RED), sha(BLUE)]
    assert hashes(commit) == hashes(score) == [sha(RED), sha(BLUE), sha(RED)]
    for request in seeing.requests:
        assert request.image_data == {sha(RED): RED, sha(BLUE): BLUE}
        assert seeing.prompt(request).count(PLACEHOLDER) == len(request.images)
        assert decode_request(encode_request(request)) == request
    assert f"Compare {PLACEHOLDER} and {PLACEHOLDER}!" in sighted.text()
    assert [m.get("images") for m in sighted.messages()] == [
        [sha(RED), sha(BLUE)],
        None,
        [sha(RED)],
        None,
    ]


async def test_across_forks(sighted: State, seeing: ScriptedTransport) -> None:
    sighted += "See " + rr.image(RED)
    async with sighted.fork(2) as forks:
        forks += [rr.image(BLUE), "only"]
        forks += rr.gen("x")
    assert sorted(map(hashes, seeing.generations), key=len) == [[sha(RED)], [sha(RED), sha(BLUE)]]
    await sighted.gen("y")
    assert hashes(seeing.generations[-1]) == [sha(RED)]
    await sighted.adopt(forks[0])
    await sighted.gen("z")
    assert hashes(seeing.generations[-1]) == [sha(RED), sha(BLUE)]
    with pytest.raises(rr.InvalidRequestError, match="images"):
        branches = sighted.fork(2)
        branches += rr.image(BLUE)
        await branches.join("concat")


async def test_what_a_variable_holds_has_no_image(sighted: State) -> None:
    with sighted.var_scope("all"):
        sighted += "a" + rr.image(RED) + "b"
    await sighted.sync()
    assert sighted["all"] == "ab"
    assert sighted.text() == f"a{PLACEHOLDER}b"


@pytest.fixture
def site() -> Iterator[str]:
    """A web server with one image."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/red.png"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(RED if found else b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_url(sighted: State, seeing: ScriptedTransport, site: str) -> None:
    sighted += "a" + rr.image(f"{site}/red.png") + rr.gen("x")
    await sighted["x"]
    assert seeing.generations[0].image_data == {sha(RED): RED}
    sighted += rr.image(f"{site}/blue.png")
    with pytest.raises(rr.ProgramError, match="404") as caught:
        await sighted.sync()
    assert isinstance(caught.value.__cause__, rr.InvalidRequestError)
    assert caught.value.__cause__.param == "image"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"images": (Image(sha(RED), "png", 3, 2),) * (MAX_IMAGES + 1)}, "images"),
        ({"images": (Image(sha(RED), "tiff", 3, 2),)}, "images"),  # type: ignore[arg-type]
        ({"images": (Image(sha(RED), "png", 0, 2),)}, "images"),
        ({"images": (Image(sha(RED), "png", 2**15, 2**15),)}, "images"),
        ({"images": (Image("abc", "png", 3, 2),)}, "sha256"),
        ({"image_data": {sha(RED): RED}}, "image_data"),
        ({"images": (Image(sha(RED), "png", 3, 2),), "image_data": {sha(RED): b""}}, "image_data"),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("kind", ["generate", "score"])
async def test_limits_of_requests(
    transport: ScriptedTransport, changes: dict[str, Any], param: str, kind: str
) -> None:
    request: Any = (
        GenerateRequest(request_id="r", prompt_ids=[1], **changes)
        if kind == "generate"
        else ScoreRequest(request_id="r", prompt_ids=[1], choices=[[2]], **changes)
    )
    seeing = msgspec.structs.replace(transport.info, image_placeholder=PLACEHOLDER)
    with pytest.raises(rr.InvalidRequestError) as caught:
        request.validate(seeing)
    assert caught.value.param == param
    with pytest.raises(rr.UnsupportedInputError, match="'scripted'"):
        request.validate(transport.info)


async def test_fetching_leaves_the_loop_to_others(
    sighted: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def fetch(url: str) -> bytes:
        assert gate.wait(10)
        return RED

    monkeypatch.setattr("radixray.client.images._fetch", fetch)
    sighted += rr.image("https://example.org/red.png")
    await asyncio.sleep(0)
    gate.set()
    await sighted.sync()
    assert sighted.text() == PLACEHOLDER
