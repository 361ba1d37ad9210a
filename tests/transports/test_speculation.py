"""API speculation: fewer calls, the same values."""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from fake_openai import FakeOpenAI, fake_openai

import radixray as rr

Fake = tuple[FakeOpenAI, str]
SCRIPT = "Name: Ann Lee\nAge: 30\nCity: Rome by the sea"


def follow(script: str, before: str) -> str:
    """A model that goes on with the script, or says that it is lost."""
    return script[len(before) :] if script.startswith(before) else f" lost {len(before)} times\n!"


@pytest.fixture
async def fake() -> AsyncGenerator[Fake, None]:
    async with fake_openai() as both:
        both[0].write = lambda text: follow(SCRIPT, text)
        yield both


def form(age: str) -> rr.Function:
    @rr.function
    async def body(s: rr.State) -> None:
        s += rr.user("Who?")
        with s.assistant():
            s += "Name:" + rr.gen("name", stop="\n")
            s += age + rr.gen("age", stop="\n")
            s += "\nCity:" + rr.gen("city", max_tokens=2)

    return body


async def outcome(
    fake: Fake, program: rr.Function, *, temperature: float = 0, **options: Any
) -> tuple[dict[str, Any], int, rr.ProgramResult]:
    """Values, calls, and the result of a program."""
    server, url = fake
    server.bodies.clear()
    async with rr.connect_openai(url, model="m", **options):
        result = await program.run(temperature=temperature)
    values = {name: (value.text, value.finish_reason) for name, value in result.variables.items()}
    return values, len(server.bodies), result


async def test_one_call_serves_three(fake: Fake) -> None:
    plain, calls, _ = await outcome(fake, form("\nAge:"), prefill="last_message")
    assert calls == 3
    assert plain == {
        "name": (" Ann Lee", "stop"),
        "age": (" 30", "stop"),
        "city": (" Rome by", "length"),
    }
    for prefill in ("last_message", None):
        values, calls, result = await outcome(
            fake, form("\nAge:"), prefill=prefill, num_api_spec_tokens=64
        )
        assert (values, calls) == (plain, 1)
        server = fake[0]
        assert server.bodies[0]["max_tokens"] == 128 and "stop" not in server.bodies[0]
        # What no call was made for has cost nothing.
        assert result.usage.completion == result["name"].usage.completion > 5
        assert result["age"].usage.completion == 0


async def test_where_the_text_differs_a_call_is_made(fake: Fake) -> None:
    plain, calls, _ = await outcome(fake, form("\nYears:"), prefill="last_message")
    assert calls == 3 and plain["age"][0].startswith(" lost")
    values, calls, _ = await outcome(
        fake, form("\nYears:"), prefill="last_message", num_api_spec_tokens=64
    )
    assert values == plain
    assert 2 <= calls <= 3


async def test_without_a_way_to_go_on_a_difference_is_an_error(fake: Fake) -> None:
    server, _ = fake
    with pytest.raises(rr.ProgramError, match="Years") as raised:
        await outcome(fake, form("\nYears:"), num_api_spec_tokens=64)
    cause = raised.value.__cause__
    assert isinstance(cause, rr.OutputError) and cause.retryable
    assert SCRIPT.startswith(cause.text[:20])
    # Run again, the model is asked again.
    scripts = iter([SCRIPT, SCRIPT.replace("Age", "Years")])
    server.write = lambda text: next(scripts)
    server.bodies.clear()
    async with rr.connect_openai(fake[1], model="m", num_api_spec_tokens=64):
        rows = await form("\nYears:").run_batch([()], retry=rr.Retry(2, delay_s=0))
    assert rows[0].error is None and len(server.bodies) == 2


async def test_off_by_default(fake: Fake) -> None:
    with pytest.raises(rr.ProgramError, match="num_api_spec_tokens"):
        await outcome(fake, form("\nAge:"))
    assert not fake[0].bodies


@pytest.mark.parametrize(("temperature", "calls"), [(0, 1), (1, 2)])
async def test_what_was_drawn_serves_one_branch(fake: Fake, temperature: float, calls: int) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "Name:" + rr.gen("name", stop="\n") + "\nAge:"
        async with s.fork(2) as forks:
            forks += rr.gen("age", stop="\n")

    server, url = fake
    async with rr.connect_openai(url, model="m", api="completions", num_api_spec_tokens=64):
        result = await program.run(temperature=temperature)
    assert [str(age) for age in result["age"]] == [" 30", " 30"]
    assert len(server.bodies) == calls


async def test_constraints_and_other_parameters_are_not_mixed(fake: Fake) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "Name:" + rr.gen("name", stop="\n") + "\nAge:"
        s += rr.gen("age", stop="\n", top_p=0.5) + "\nCity:"
        s += rr.gen("city", json_schema={}, max_tokens=3)

    _, calls, _ = await outcome(
        fake,
        program,
        api="completions",
        extensions=["response_format"],
        num_api_spec_tokens=64,
    )
    assert calls == 3
    assert fake[0].bodies[2]["max_tokens"] == 3


def write(script: str, before: str) -> str:
    """A model that goes on with the script, or babbles, as the text alone decides."""
    text = before
    while len(text) < 400:
        if script.startswith(text):
            if text == script:
                break
            text += script[len(text)]
            continue
        number = zlib.crc32(text[-5:].encode())
        if number % 40 == 0:
            break
        text += "ab é.\n-日"[number % 8]
    return text[len(before) :]


@dataclass
class Case:
    """A program and a model, both drawn by chance."""

    api: str
    script: str
    params: list[dict[str, Any]]
    fills: list[tuple[int, str]]
    """How much of what the model would say itself is appended; or a text."""

    @classmethod
    def draw(cls, api: str, rng: random.Random) -> Case:
        words = ["a", "b", "é", "yes", "no", ".", "\n", "\n\n", "long-word", "日本"]
        stops = [[], ["."], ["\n"], ["b", "no"], ["\n\n", "\n"]]
        return cls(
            api,
            "".join(rng.choice((" ", "")) + rng.choice(words) for _ in range(30)),
            [{"max_tokens": rng.choice((1, 3, 8, 200)), "stop": rng.choice(stops)} for _ in "1234"],
            [(rng.choice((0, 1, 2, 6)), rng.choice(words)) for _ in "1234"],
        )

    def program(self) -> rr.Function:
        @rr.function
        async def run(s: rr.State) -> None:
            chat = self.api == "chat"
            s += rr.user("?") if chat else self.script[:2]
            with s.assistant() if chat else nullcontext():
                for params, (own, fill) in zip(self.params, self.fills, strict=True):
                    await s.gen(**params)
                    said = s.text().rpartition("\ufdd1")[2]
                    s += write(self.script, said)[:own] or fill

        return run


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_values_are_the_same_whatever_the_program(
    fake: Fake, api: str, logprobs: bool
) -> None:
    server, _ = fake
    server.with_logprobs = logprobs
    saved = 0
    options = {"api": api, "prefill": "last_message" if api == "chat" else None}
    for seed in range(40):
        rng = random.Random(seed)
        case = Case.draw(api, rng)
        server.write = partial(write, case.script)
        plain, calls, _ = await outcome(fake, case.program(), **options)
        values, fewer, _ = await outcome(
            fake, case.program(), num_api_spec_tokens=rng.choice((1, 6, 64)), **options
        )
        assert values == plain, seed
        # Without log-probabilities, one call shows that there are none.
        assert fewer <= calls + (not logprobs)
        saved += calls - fewer
    assert saved > 40 or not logprobs
