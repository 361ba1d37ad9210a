"""Calls recorded with the real model, and played back without any."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_openai import fake_openai

import radixray as rr
from radixray.client import runtime as runtime_module
from radixray.transports.in_process import InProcessEngine

PROGRAM = """
import radixray as rr


@rr.function
async def everything(s):
    s += rr.system("Be brief.") + rr.user("Name a river, an age, and a colour. 🚀")
    with s.assistant():
        s += "River:" + rr.gen("river", max_tokens=6, stop="\\n", logprobs=1) + "\\nAge:"
        s += rr.gen("age", dtype=int) + "\\nColour:"
        s += rr.gen("colour", choices=[" red", " green"]) + "\\nSize:"
        for number, method in enumerate(
            (
                "token_length_normalized",
                "greedy_token_selection",
                "unconditional_likelihood_normalized",
            )
        ):
            s += rr.select(f"size_{number}", [" very big", " small"], method=method)
    s += rr.user("Go on.")
    async with s.fork(3) as forks:
        for index, fork in enumerate(forks):
            fork += rr.assistant(f"{index}:" + rr.gen("more", max_tokens=4, temperature=1.0))
    s += rr.assistant(rr.gen("drawn", max_tokens=5, n=3, temperature=1.5))
    s += rr.user("Bytes?")
    s += rr.assistant(rr.gen("bytes", ignore_eos=True, max_tokens=8, temperature=2.0))
    s += "\\nEnd:" + rr.gen("end", max_tokens=2)
    await s.sync()
    return s["drawn"].value
"""
names: dict[str, Any] = {}
exec(PROGRAM, names)
everything: rr.Function = names["everything"]

WITHOUT_A_MODEL = (
    """
import asyncio, json, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "torch", "transformers", "aiohttp"):
            raise ImportError(name)


sys.meta_path.insert(0, Blocked())
"""
    + PROGRAM
    + """
with rr.testing.replay(sys.argv[1]):
    result = asyncio.run(everything.run(temperature=0))
print(json.dumps([result.text(), result.value, str(result.usage)]))
"""
)


@pytest.fixture
def local(engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[rr.Runtime]:
    runtime = rr.Runtime(engine)
    monkeypatch.setattr(runtime_module, "_current", runtime)
    yield runtime
    runtime.abandon()


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "_current", None)


def plain(value: Any) -> Any:
    if isinstance(value, rr.Gen | rr.Choice):
        return {name: each for name, each in vars(value).items() if name != "request_id"}
    return [plain(item) for item in value] if isinstance(value, list) else value


async def test_a_replay_is_the_same(local: rr.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "new" / "calls.jsonl"
    await local.flush()
    with rr.testing.record(path) as recorder:
        before = [event async for event in everything.stream(temperature=0)]
    assert len(recorder.calls) > 12
    local.abandon()
    with rr.testing.replay(path) as replay:
        after = [event async for event in everything.stream(temperature=0)]
        assert replay.unused == []
    first, second = before[-1].result, after[-1].result
    assert first is not None and second is not None
    assert plain(list(second.variables.values())) == plain(list(first.variables.values()))
    assert second.text() == first.text() and second.messages() == first.messages()
    assert second.usage == first.usage and first.usage.cached > 0
    assert len({str(text) for text in first["drawn"]}) > 1
    for branch in ((), (0,), (1,), (2,)):
        assert [e for e in after[:-1] if e.branch == branch] == [
            e for e in before[:-1] if e.branch == branch
        ]
    command = [sys.executable, "-c", WITHOUT_A_MODEL, str(path)]
    run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert json.loads(run.stdout) == [first.text(), first.value, str(first.usage)], run.stderr


async def test_the_file_is_for_people(local: rr.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"

    @rr.function
    async def ask(s: rr.State) -> None:
        s += rr.user("Grüße?") + rr.assistant(rr.gen("x", max_tokens=3, regex="[a-z ]+"))

    with rr.testing.record(path):
        await ask.run(temperature=0)
    head, call = map(json.loads, path.read_text().splitlines())
    assert head["radixray_recording"] == 1 and head["model"]["name"] == "smollm2-135m"
    assert call["prompt"].endswith("<|im_start|>user\nGrüße?<|im_end|>\n<|im_start|>assistant\n")
    assert call["params"] == {
        "max_tokens": 3,
        "temperature": 0,
        "constraint": {"regex": "[a-z ]+"},
    }
    outcome = call["outcome"]
    assert outcome["text"] == "".join(token[1] for token in outcome["tokens"])


@rr.function
async def capital(s: rr.State, country: str, **_: Any) -> None:
    s += f"The capital of {country} is" + rr.gen("city", max_tokens=3)


@pytest.fixture
async def capitals(local: rr.Runtime, tmp_path: Path) -> Path:
    path = tmp_path / "capitals.jsonl"
    with rr.testing.record(path):
        await capital.run_batch(["France", "Italy", "Egypt"], temperature=0)
    return path


async def test_the_order_does_not_matter(capitals: Path, nothing: None) -> None:
    with rr.testing.replay(capitals) as replay:
        rows = await capital.run_batch(["Egypt", "Italy", "Italy"], temperature=0, concurrency=1)
        assert all(row.error is None for row in rows)
        assert "Paris" not in rows[0].text() and str(rows[1]["city"]) == str(rows[2]["city"])
        assert replay.unused == ["The capital of France is"]
    with pytest.raises(rr.NotInitializedError):
        await capital.run("Egypt")


async def test_a_missing_call_shows_the_nearest(capitals: Path, nothing: None) -> None:
    with rr.testing.replay(capitals):
        with pytest.raises(rr.ProgramError) as raised:
            await capital.run("Francia", temperature=0)
        cause = raised.value.__cause__
        assert isinstance(cause, rr.NotRecordedError)
        assert "capitals.jsonl" in cause.message and "(line 2)" in cause.message
        assert "differs from character 20 on" in cause.message
        assert "recorded: 'The capital of France is'" in cause.message
        assert "asked:    'The capital of Francia is'" in cause.message
        with pytest.raises(rr.ProgramError) as raised:
            await capital.run("France", temperature=0.5)
        assert "temperature was 0, is 0.5" in str(raised.value)

        @rr.function
        async def pick(s: rr.State) -> None:
            s += "The capital of France is" + rr.select("city", [" a", " b"])

        with pytest.raises(rr.ProgramError, match="no score call was recorded"):
            await pick.run()


async def test_what_is_drawn_is_played_as_often_as_it_was(
    local: rr.Runtime, tmp_path: Path
) -> None:
    path = tmp_path / "drawn.jsonl"
    with rr.testing.record(path):
        drawn = [str((await capital.run("Mars", temperature=2.0))["city"]) for _ in range(3)]
        seeded = [str((await capital.run("Mars", temperature=2.0, seed=1))["city"])]
    with rr.testing.replay(path):
        assert [str((await capital.run("Mars", temperature=2.0))["city"]) for _ in range(3)] == (
            drawn
        )
        with pytest.raises(rr.ProgramError, match="recorded 3 times"):
            await capital.run("Mars", temperature=2.0)
        for _ in range(2):
            result = await capital.run("Mars", temperature=2.0, seed=1)
            assert [str(result["city"])] == seeded


async def test_errors_are_played_back(local: rr.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "errors.jsonl"
    with rr.testing.record(path):
        with pytest.raises(rr.ProgramError):
            await capital.run("Mars", timeout_s=0.0, temperature=0)
        fine = await capital.run("Mars", temperature=0)
    with rr.testing.replay(path):
        with pytest.raises(rr.ProgramError) as raised:
            await capital.run("Mars", temperature=0)
        assert isinstance(raised.value.__cause__, rr.DeadlineExceededError)
        assert (await capital.run("Mars", temperature=0)).text() == fine.text()


async def test_cancelled_calls_are_cancelled_again(
    local: rr.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "race.jsonl"

    @rr.function
    async def race(s: rr.State) -> None:
        s += "Once upon a time"
        forks = s.fork(3)
        for index, fork in enumerate(forks):
            tokens = 2 if index == 1 else 900
            fork += f" {index}" + rr.gen("story", max_tokens=tokens, ignore_eos=True)
        await forks.join("first")

    with rr.testing.record(path):
        first = await race.run(temperature=0)
    lines = path.read_text().splitlines()[1:]
    assert sum(json.loads(line)["outcome"].get("cancelled", False) for line in lines) == 2
    with rr.testing.replay(path):
        assert (await race.run(temperature=0)).text() == first.text()
    monkeypatch.setattr("radixray.testing.player.PATIENCE_S", 0.05)

    @rr.function
    async def wait(s: rr.State) -> None:
        s += "Once upon a time 0" + rr.gen("story", max_tokens=900, ignore_eos=True)

    with rr.testing.replay(path), pytest.raises(rr.ProgramError, match="cancelled this call"):
        await asyncio.wait_for(wait.run(temperature=0), 10)


async def test_a_failed_block_writes_nothing(local: rr.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    with pytest.raises(ZeroDivisionError), rr.testing.record(path):
        await capital.run("Peru", temperature=0)
        raise ZeroDivisionError
    assert not path.exists()
    with pytest.raises(rr.InvalidRequestError, match="no recording"), rr.testing.replay(path):
        pass
    path.write_text("{}\n")
    with pytest.raises(rr.InvalidRequestError, match="is no recording"), rr.testing.replay(path):
        pass


async def test_recorded_records_once(local: rr.Runtime, tmp_path: Path) -> None:
    path = tmp_path / "once.jsonl"
    for again, kind in ((False, "Recorder"), (False, "Replay"), (True, "Recorder")):
        with rr.testing.recorded(path, again=again) as calls:
            assert type(calls).__name__ == kind
            await capital.run("Peru", temperature=0)


async def test_endpoints_are_recorded_too(tmp_path: Path, nothing: None) -> None:
    path = tmp_path / "endpoint.jsonl"

    @rr.function
    async def chat(s: rr.State) -> None:
        s += rr.user("Who?") + rr.assistant(rr.gen("who")) + rr.user("Why?")
        s += rr.assistant(rr.gen("why"))

    async with fake_openai() as (server, url):
        server.write = lambda text: " Grüße 🚀"
        async with rr.connect_openai(url, model="m"):
            with rr.testing.record(path):
                first = await chat.run()
    with rr.testing.replay(path):
        second = await chat.run()
    assert plain(list(second.variables.values())) == plain(list(first.variables.values()))
    assert second.messages() == first.messages()


async def test_scripts(nothing: None) -> None:
    @rr.function
    async def program(s: rr.State, question: str) -> None:
        s += rr.system("Be brief.") + rr.user(question)
        s += rr.assistant(rr.gen("answer", max_tokens=1, stop="!"))
        s += rr.user("Sure?") + rr.assistant(rr.select("sure", ["yes", "no"]))
        s += rr.user("Why?")
        await s.sync()
        async with s.fork(2) as forks:
            forks += rr.assistant(rr.gen("why", dtype=int))

    answers = {
        "Sure?": "no",
        "capital of France": "Paris, of course! Or",
        "Why?": ["1", "22"],
        "Mars": rr.OverloadedError("full"),
        "Venus": lambda prompt: prompt.upper(),
    }
    with rr.testing.scripted(answers) as script:
        result = await program.run("The capital of France?")
        assert str(result["answer"]) == "Paris, of course"
        assert str(result["sure"]) == "no" and result["why"][1] == 22
        assert script.prompts[0] == (
            "system:\nBe brief.\nuser:\nThe capital of France?\nassistant:\n"
        )
        with pytest.raises(ExceptionGroup):
            await program.run("The capital of France?")
        with pytest.raises(rr.ProgramError) as raised:
            await program.run("Mars?")
        assert isinstance(raised.value.__cause__, rr.OverloadedError)
        with pytest.raises(rr.ProgramError, match="no key of the script"):
            await program.run("Jupiter?")


PLUGIN_TEST = """
import os

import pytest
import radixray as rr


@pytest.fixture
def model():
    with rr.testing.scripted({"France": os.environ["ANSWER"]}):
        yield


@pytest.mark.parametrize("n", [1])
async def test_it(model, recorded_calls, n):
    @rr.function
    async def capital(s):
        s += "The capital of France is" + rr.gen("city")

    assert (await capital.run(temperature=0))["city"] == " Paris"
"""


async def test_the_pytest_fixture(tmp_path: Path) -> None:
    plugin = 'pytest_plugins = ["radixray.testing.pytest_plugin"]\n'
    (tmp_path / "conftest.py").write_text(plugin)
    (tmp_path / "test_capital.py").write_text(PLUGIN_TEST)

    async def run(answer: str, *options: str) -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", *options]
        environment = {**os.environ, "ANSWER": answer}
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, env=environment, capture_output=True
        )
        return done.returncode

    assert await run(" Paris") == 1  # nothing recorded yet
    assert await run(" Paris", "--record-calls") == 0
    assert (tmp_path / "recordings" / "test_capital-test_it_1_.jsonl").exists()
    assert await run(" Rome") == 0  # the model is not asked
