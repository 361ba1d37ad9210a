"""SGLang's own frontend against our server: its programs give what ours do, greedily.

Its package is none of our dependencies: it is taken from this environment, or from the Python that
RADIXRAY_SGLANG_PYTHON names; ``make sglang`` makes one. Without it, these tests are skipped, and
`test_client_bodies.py` sends what it sends.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from http_host import Host

import radixray as rr
from radixray.protocol import GenerateRequest, SamplingParams
from radixray.serve.app import build_app

PYTHON = os.environ.get("RADIXRAY_SGLANG_PYTHON") or (
    sys.executable if importlib.util.find_spec("sglang") else None
)
SCRIPT = Path(__file__).with_name("sglang_programs.py")
KEY = "sglang-secret"

pytestmark = pytest.mark.skipif(PYTHON is None, reason="sglang is not installed")


@pytest.fixture(scope="module")
async def runtime() -> AsyncGenerator[rr.Runtime, None]:
    async with rr.init(dtype="float32", max_total_tokens=8192, address="local") as runtime:
        yield runtime


@pytest.fixture(scope="module")
async def theirs(runtime: rr.Runtime, host: Host) -> dict[str, Any]:
    """What SGLang's frontend made of its programs, in a process of its own."""
    app = build_app(runtime.transport, api_key=KEY)
    host.app = app
    process = await asyncio.create_subprocess_exec(
        *(str(PYTHON), str(SCRIPT), host.url, KEY), stdout=-1, stderr=-1
    )
    try:
        async with asyncio.timeout(120):
            out, problem = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()  # after a failure its threads wait for ever
    assert process.returncode == 0, problem.decode()
    return json.loads(out)


SHOTS = "The capital of Japan is Tokyo.\nThe capital of Egypt is Cairo.\n"


@rr.function
async def few_shot(s: rr.State, country: str) -> None:
    s += SHOTS + f"The capital of {country} is"
    await s.gen("city", max_tokens=8, stop=".")


async def test_few_shot(theirs: dict[str, Any]) -> None:
    assert theirs["model"] == "smollm2-135m"
    countries = ["France", "Italy", "Spain", "Norway"]
    ours = [await few_shot.run(country, temperature=0) for country in countries]
    assert theirs["few_shot"] == [result["city"].text for result in ours]
    assert theirs["few_shot"][0] == " Paris"


async def test_streams(theirs: dict[str, Any]) -> None:
    assert theirs["stream_of_city"] == theirs["few_shot"][0]
    assert theirs["stream"] == SHOTS + "The capital of France is" + theirs["few_shot"][0]


@rr.function
async def tips(s: rr.State) -> None:
    s += "Three tips about sleep.\n"
    async with s.fork(3) as branches:
        for number, branch in enumerate(branches, start=1):
            branch += f"Tip {number}:" + rr.gen("tip", max_tokens=12, stop="\n")
    s += "".join(f"-{tip}\n" for tip in s["tip"].value)
    s += "The best is"
    await s.gen("best", max_tokens=12, stop="\n")


async def test_fork_and_join(theirs: dict[str, Any]) -> None:
    ours = await tips.run(temperature=0)
    assert theirs["tips"] == [ours.text(), ours["best"].text]


@rr.function
async def choose(s: rr.State, start: str, options: list[str], method: str) -> Any:
    s += start
    return await s.select("choice", options, method=method)


async def test_select(theirs: dict[str, Any], runtime: rr.Runtime) -> None:
    """The same choices by each method, on the same log-probabilities."""
    selects = [
        ("The capital of France is", [" Paris", " London", " a city"]),
        ("Two plus two is", [" four", " five", " a number that I forgot"]),
        ("The opposite of hot is", [" cold", " warm"]),
    ]
    tokenizer = (await runtime.transport()).tokenizer
    methods = {name.split()[0] for name in theirs["select"]}
    assert len(methods) == 3
    for method in methods:
        for i, (start, options) in enumerate(selects):
            result = await choose.run(start, options, method)
            choice = result.value
            taken, scored = theirs["select"][f"{method} {i}"]
            if method == "unconditional_likelihood_normalized":
                best = await without_the_prompt(runtime, start, options)
            else:
                best = choice.text
            assert taken == best, (method, start)
            for option, ours, entries in zip(options, choice.logprobs, scored, strict=True):
                ids = tokenizer.encode(option)
                # It looks at two tokens of the prompt, too.
                assert [token for _, token, _ in entries[2:]] == ids
                assert [logprob for logprob, _, _ in entries[2:]] == pytest.approx(ours, abs=1e-4)
                assert all(isinstance(logprob, float) for logprob, _, _ in entries)


async def without_the_prompt(runtime: rr.Runtime, start: str, options: list[str]) -> str:
    """SGLang's choice: what the text before adds to each option and to two tokens before it."""
    tokenizer = (await runtime.transport()).tokenizer
    prompt, gains = tokenizer.encode(start), []
    for option in options:
        ids = prompt + tokenizer.encode(option)
        first = len(prompt) - 2
        given = await prompt_logprobs(runtime, ids, first)
        alone = [0.0, *await prompt_logprobs(runtime, ids[first:], 1)]
        gains.append(sum(a - b for a, b in zip(given, alone, strict=True)) / len(given))
    return options[gains.index(max(gains))]


async def prompt_logprobs(runtime: rr.Runtime, ids: list[int], first: int) -> list[float]:
    request = GenerateRequest(
        request_id=f"scores-{len(ids)}-{first}",
        prompt_ids=ids,
        sampling=SamplingParams(max_tokens=0, prompt_logprobs_from=first),
    )
    transport = await runtime.transport()
    deltas = [delta async for delta in transport.generate(request)]
    return [each.logprob for delta in deltas for each in delta.prompt_logprobs or ()]


@rr.function
async def date(s: rr.State) -> None:
    s += "The war ended on"
    await s.gen("date", max_tokens=16, regex=" [0-9]{4}-[0-9]{2}-[0-9]{2}")
    s += " and lasted"
    await s.gen("years", max_tokens=8, regex=" [0-9]{1,2} years")


async def test_regex(theirs: dict[str, Any]) -> None:
    ours = await date.run(temperature=0)
    assert theirs["date"] == [ours["date"].text, ours["years"].text]


@rr.function
async def chat(s: rr.State) -> None:
    s += "SYSTEM:Be short.\nUSER:Hello\nASSISTANT:"
    await s.gen("first", max_tokens=8)
    s += "\nUSER:And now?\nASSISTANT:"
    await s.gen("second", max_tokens=8)
    s += "\n"


async def test_chat(theirs: dict[str, Any]) -> None:
    """By its own template for models that it does not know."""
    ours = await chat.run(temperature=0)
    assert theirs["chat"] == ours.text()


@rr.function
async def line(s: rr.State) -> None:
    s += SHOTS
    await s.gen("line", max_tokens=6, logprobs=2, prompt_logprobs_from=4)


async def test_logprobs(theirs: dict[str, Any]) -> None:
    ours = (await line.run(temperature=0))["line"]
    meta = theirs["scores"]
    assert theirs["line"] == ours.text
    for entries, scores in (
        (meta["output_token_logprobs"], ours.logprobs),
        (meta["input_token_logprobs"], ours.prompt_logprobs),
    ):
        assert [token for _, token, _ in entries] == [each.token_id for each in scores]
        values = [logprob for logprob, _, _ in entries]
        assert values == pytest.approx([each.logprob for each in scores], abs=1e-4)
    assert [len(top) for top in meta["output_top_logprobs"]] == [2] * len(ours.logprobs)
