"""Batches that go on where an earlier run, or a killed one, ended."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.saved_values import from_plain, to_plain
from radixray.protocol import GenerateRequest


class Colour(enum.Enum):
    RED = "r"


class Person(pydantic.BaseModel):
    name: str
    born: datetime.date


@dataclasses.dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


@rr.function
async def ask(s: rr.State, question: str, tail: str = "") -> str:
    s += question + tail
    async with s.fork(2) as forks:
        forks += rr.gen("part")
    s.set("pair", Pair(len(question), Colour.RED))
    s += rr.gen("x", logprobs=1)
    await s.select("choice", [" a", " b"])
    return s["x"].text


def prompts(transport: ScriptedTransport) -> list[str]:
    return [transport.prompt(request) for request in transport.generations]


def same(a: rr.ProgramResult, b: rr.ProgramResult) -> bool:
    return vars(a) == vars(b)


async def test_finished_rows_are_not_run_again(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    transport.reply = lambda r: "" if r.sampling.max_tokens == 0 else f" <{transport.prompt(r)}>"
    file = tmp_path / "out.jsonl"
    options: dict[str, Any] = {"resume": file, "transport": transport, "temperature": 0}
    rows = ["one", "two", "three", "four"]
    first = await ask.run_batch(rows[:2], **options)
    before = len(transport.requests)
    assert before > 0
    again = await ask.run_batch(rows[:2], **options)
    assert len(transport.requests) == before
    assert all(map(same, first, again))
    assert again[0]["pair"] == Pair(3, Colour.RED)
    assert again[0].text() == first[0].text() and again[0].tokens() == first[0].tokens()

    transport.requests.clear()
    third = await ask.run_batch(rows, progress_bar=True, timeout_s=60, priority=1, **options)
    assert all("three" in prompt or "four" in prompt for prompt in prompts(transport))
    assert [r.index for r in third] == [0, 1, 2, 3]
    assert all(map(same, first, third))
    assert len(file.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (["two", "one"], {}),  # another place
        (["one!", "two!"], {}),  # another row
        (["one", "two"], {"temperature": 0.5}),
        (["one", "two"], {"tail": "?"}),
        ([{"question": "one"}, {"question": "two"}], {}),
    ],
)
async def test_what_changed_is_run_again(
    transport: ScriptedTransport, tmp_path: Path, rows: list[Any], options: dict[str, Any]
) -> None:
    file = tmp_path / "out.jsonl"
    await ask.run_batch(["one", "two"], resume=file, transport=transport)
    before = len(transport.requests)
    await ask.run_batch(rows, resume=file, transport=transport, **options)
    assert len(transport.requests) == 2 * before
    await ask.run_batch(rows, resume=file, transport=transport, **options)
    assert len(transport.requests) == 2 * before


async def test_failed_rows_are_run_again_or_not(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    broken = True
    full = rr.OverloadedError("full")
    full.retry_after_s = 0.001

    def reply(request: GenerateRequest) -> Any:
        bad = "bad" in transport.prompt(request) and request.sampling.max_tokens != 0
        return full if broken and bad else " fine"

    transport.reply = reply
    file = tmp_path / "out.jsonl"
    options: dict[str, Any] = {"resume": file, "transport": transport}
    retry = rr.Retry(2, delay_s=0)
    rows: list[Any] = ["good", "bad", ("too", "many", "arguments")]
    first = await ask.run_batch(rows, retry=retry, **options)
    assert [r.error is None for r in first] == [True, False, False]
    assert len(file.read_text().splitlines()) == 3

    before = len(transport.requests)
    stored = await ask.run_batch(rows, retry_failed=False, **options)
    assert len(transport.requests) == before
    failed = stored[1].error
    assert isinstance(failed, ExceptionGroup) and str(failed) == str(first[1].error)
    inner, want = failed.exceptions[0], first[1].error.exceptions[0]
    assert isinstance(inner, rr.ProgramError) and isinstance(inner.__cause__, rr.OverloadedError)
    assert inner.__cause__.retry_after_s == 0.001
    assert (inner.op, inner.branch, inner.request_id) == (want.op, want.branch, want.request_id)
    assert isinstance(stored[2].error, TypeError)
    with pytest.raises((ExceptionGroup, TypeError)):  # whichever comes first
        await ask.run_batch(rows, retry_failed=False, on_error="raise", **options)

    broken = False
    third = await ask.run_batch(rows, **options)
    assert [r.error is None for r in third] == [True, True, False]
    fourth = await ask.run_batch(rows, retry_failed=False, **options)
    assert fourth[1].error is None and same(fourth[1], third[1])


async def test_results_in_the_order_of_the_rows(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    file = tmp_path / "out.jsonl"
    rows = [f"row {i}" for i in range(20)]
    async for result in ask.map(rows, concurrency=3, resume=file, transport=transport):
        if result.index >= 5:
            break
    done = len(file.read_text().splitlines())
    found = [r.index async for r in ask.map(rows, resume=file, ordered=True, transport=transport)]
    assert found == list(range(20))
    assert done < len(file.read_text().splitlines()) == 20


KILLED = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from scripted_transport import ScriptedTransport
from test_resume import slow_ask, the_tokenizer
async def main():
    transport = ScriptedTransport(the_tokenizer(), lambda r: asyncio.sleep(0.02, " ok"))
    rows, options = range(200), dict(resume={file!r}, concurrency=2, transport=transport)
    async for result in slow_ask.map(rows, **options):
        print(result.index, flush=True)
asyncio.run(main())
"""


@rr.function
async def slow_ask(s: rr.State, number: int) -> str:
    s += f"Number {number}:"
    return (await s.gen("x")).text


def the_tokenizer() -> Any:
    from radixray.models.resolve import resolve_model
    from radixray.tokenizer.tokenizer import Tokenizer

    return Tokenizer.from_folder(resolve_model("smollm2-135m"))


@pytest.mark.parametrize("torn", [False, True])
async def test_a_killed_batch_goes_on(
    transport: ScriptedTransport, tmp_path: Path, torn: bool
) -> None:
    file = tmp_path / "out.jsonl"
    code = KILLED.format(tests=str(Path(__file__).parent), file=str(file))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        seen = [int(process.stdout.readline()) for _ in range(10)]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        seen += [int(line) for line in process.stdout.read().split()]
        process.wait()
    lines = file.read_bytes().splitlines(keepends=True)
    stored = {json.loads(line)["index"] for line in lines}
    assert set(seen) <= stored  # what was given out was stored before
    assert len(stored) < 200
    if torn:
        lost = json.loads(lines[-1])["index"]
        stored.remove(lost)
        file.write_bytes(b"".join(lines)[:-9])
    results = await slow_ask.run_batch(range(200), resume=file, transport=transport)
    assert [r.index for r in results] == list(range(200))
    assert all(r.value == " ok" for r in results)
    run = {int(transport.prompt(r).split()[1][:-1]) for r in transport.generations}
    assert run == set(range(200)) - stored
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 200


async def test_files_that_are_no_journal_are_left_alone(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    for text in ("my notes", "a\nb", '{"index": 1}\n', '{"version": 99, "index": 1}\n'):
        file.write_text(text)
        with pytest.raises(rr.InvalidRequestError) as caught:
            await ask.run_batch(["x"], resume=file, transport=transport)
        assert caught.value.param == "resume" and "line 1" in str(caught.value)
        assert file.read_text() == text
    with pytest.raises(OSError):
        await ask.run_batch(["x"], resume=tmp_path / "no" / "folder", transport=transport)


async def test_a_last_line_without_its_end_counts_if_it_is_whole(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    @rr.function
    async def named(s: rr.State, number: int) -> None:
        s["$tuple"] = number

    file = tmp_path / "out.jsonl"
    first = await named.run_batch([1, 2], resume=file, transport=transport)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert all(map(same, await named.run_batch([1, 2], resume=file, transport=transport), first))
    assert file.read_bytes() == whole
    file.write_bytes(whole + b"\0\0\0")  # as some file systems leave it after a power cut
    assert all(map(same, await named.run_batch([1, 2], resume=file, transport=transport), first))
    assert file.read_bytes() == whole


async def test_two_batches_do_not_share_a_file(
    transport: ScriptedTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixray.client.journal.LOCK_WAIT_S", 0.02)
    file = tmp_path / "out.jsonl"
    batch = ask.map(["a", "b"], resume=file, transport=transport)
    await anext(batch)
    with pytest.raises(rr.InvalidRequestError, match="another batch"):
        await ask.run_batch(["a"], resume=file, transport=transport)
    await batch.aclose()
    assert (await ask.run_batch(["a"], resume=file, transport=transport))[0].error is None


async def test_a_full_disk_leaves_whole_lines(
    transport: ScriptedTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.jsonl"
    await slow_ask.run_batch([1], resume=file, transport=transport)
    real, calls = os.write, []

    def write(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) // 2])

    monkeypatch.setattr("radixray.client.journal.os.write", write)
    with pytest.raises(OSError):
        await slow_ask.run_batch([1, 2], resume=file, on_error="raise", transport=transport)
    monkeypatch.undo()
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 1
    results = await slow_ask.run_batch([1, 2], resume=file, transport=transport)
    assert [r.error for r in results] == [None, None]


async def test_what_no_file_can_hold_is_named(transport: ScriptedTransport, tmp_path: Path) -> None:
    @rr.function
    async def odd(s: rr.State, value: Any) -> None:
        s.set("odd", value)

    file = tmp_path / "out.jsonl"
    (result,) = await odd.run_batch([lambda: 1], resume=file, transport=transport)
    assert isinstance(result.error, rr.InvalidRequestError) and "row 0" in str(result.error)

    @rr.function
    async def odder(s: rr.State, value: int) -> None:
        s.set("odd", object())

    (result,) = await odder.run_batch([1], resume=file, transport=transport)
    assert isinstance(result.error, rr.InvalidRequestError)
    assert "variable 'odd' of row 0" in str(result.error)
    assert file.read_text() == ""


VALUES = [
    None,
    True,
    -1,
    2**70,
    1.5,
    "é\u2028\n\ud800",
    b"\x00\xff",
    [1, [2]],
    (1, (2,)),
    {"a": {"b": 1}},
    {1: "x", "$y": 2},
    {"$tuple": [1]},
    {3, 1},
    frozenset({"x"}),
    datetime.datetime(2024, 5, 1, 12, 30),
    datetime.date(2024, 5, 1),
    datetime.timedelta(seconds=3.5),
    Person(name="Ada", born=datetime.date(1815, 12, 10)),
    Pair((1,), {"x": Colour.RED}),
    Colour.RED,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_as_they_were(value: Any) -> None:
    back = from_plain(json.loads(json.dumps(to_plain(value))))
    assert back == value and type(back) is type(value)


def test_numbers_that_json_lacks() -> None:
    back = from_plain(json.loads(json.dumps(to_plain([math.inf, -math.inf, math.nan]))))
    assert back[:2] == [math.inf, -math.inf] and math.isnan(back[2])


def test_only_data_classes_that_are_loaded_are_made() -> None:
    for name in ("subprocess:Popen", "no.such.module:Thing", "os:system", "builtins:eval"):
        with pytest.raises(rr.InvalidRequestError, match="not loaded"):
            from_plain({"$object": [name, {}]})
    with pytest.raises(rr.InvalidRequestError, match="cannot be read"):
        from_plain({"$object": [f"{__name__}:Pair", {"left": 1}]})


def test_errors_come_back_as_they_were() -> None:
    error = rr.OutputError("cut off", param="x", text="abc")
    back = from_plain(json.loads(json.dumps(to_plain(error))))
    assert type(back) is rr.OutputError
    assert (back.message, back.param, back.text) == ("cut off", "x", "abc")

    class Own(Exception):
        pass

    back = from_plain(to_plain(Own("mine")))
    assert type(back) is RuntimeError and str(back) == "Own: mine"
    assert str(from_plain(to_plain(KeyError("k")))) == "'k'"
    assert type(from_plain(to_plain(TimeoutError()))) is TimeoutError
