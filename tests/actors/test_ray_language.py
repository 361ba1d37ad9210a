"""The language's own offers over real Ray: images refused, reasoning, races, deadlines."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import time
from collections import defaultdict
from typing import Any

import msgspec
import PIL.Image
import pytest
import ray

import radixray as rr
from radixray.actors.channel import Channel
from radixray.images import Image
from radixray.protocol import GenerateRequest, ScoreRequest


def png() -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (2, 2), "red").save(buffer, "PNG")
    return buffer.getvalue()


async def test_a_model_without_eyes_says_so(runtime: Any, settled: Any) -> None:
    @rr.function
    async def look(s: rr.State, data: bytes) -> None:
        s += rr.user("What is this? " + rr.image(data)) + rr.assistant(rr.gen("x"))

    model = (await runtime.transport()).info.name
    for run in (look.run(png()), look.remote(png())):
        with pytest.raises(rr.ProgramError) as caught:
            await run
        # A task's error is Ray's own and the program's at once; the latter is its `cause`.
        cause = getattr(caught.value, "cause", caught.value).__cause__
        assert type(cause) is rr.UnsupportedInputError
        assert cause.param == "image" and repr(model) in cause.message
    await settled()


@pytest.mark.parametrize("kind", ["generate", "score"])
async def test_an_engine_without_eyes_says_so_itself(runtime: Any, settled: Any, kind: str) -> None:
    """Past the caller's own checks, on the wire: the bytes travel, and the error comes back."""
    transport = await runtime.transport()
    data = png()
    image = Image(hashlib.sha256(data).hexdigest(), "png", 2, 2)
    request: Any = (
        GenerateRequest(request_id="see", prompt_ids=[1, 2])
        if kind == "generate"
        else ScoreRequest(request_id="see", prompt_ids=[1, 2], choices=[[3]])
    )
    request = msgspec.structs.replace(
        request, images=(image, image), image_data={image.sha256: data}
    )
    with pytest.raises(rr.UnsupportedInputError) as direct:
        _ = [delta async for delta in transport.generate(request)]
    with pytest.raises(rr.UnsupportedInputError) as caught:
        _ = [delta async for delta in transport._run(request)]
    for error in (direct.value, caught.value):
        assert error.param == "images" and repr(transport.info.name) in error.message
    assert all(isinstance(channel, Channel) for channel in transport._channels.values())
    await settled()


@rr.function
async def think(s: rr.State) -> rr.Gen:
    s += rr.user("Is water wet?")
    with s.assistant():
        return await s.gen(
            "x",
            regex=r"<think>\n[a-z ]{5,30}\n</think>\n\n(Yes|No), [a-z]{3,8}\.",
            separate_reasoning=True,
            max_tokens=60,
            seed=5,
        )


async def test_reasoning_is_told_apart_while_it_streams(
    runtime: Any, settled: Any, hf_tokenizer: Any
) -> None:
    told: dict[str, str] = defaultdict(str)
    pieces: dict[str, int] = defaultdict(int)
    result = None
    async for event in think.stream():
        told[event.kind] += event.delta
        pieces[event.kind] += 1
        result = event.result
    assert result is not None
    gen = result["x"]
    assert gen.grammar is not None and gen.grammar.complete
    assert told["reasoning"] == gen.reasoning != ""
    assert told["text"] == gen.text and gen.text.startswith(("Yes, ", "No, "))
    assert pieces["reasoning"] > 1
    assert result.messages()[-1] == {"role": "assistant", "content": gen.text}
    assert "think" not in result.text()
    assert hf_tokenizer.decode(result.tokens()) == result.text()
    await settled()


async def test_the_whole_text_as_it_comes(runtime: Any, settled: Any) -> None:
    @rr.function
    async def program(s: rr.State) -> list[str]:
        s += rr.system("Be brief.") + rr.user("Name a colour.")
        s += rr.assistant("It is" + rr.gen("x", max_tokens=8, temperature=0)) + rr.user("Why?")
        return [piece async for piece in s.text_iter()]

    result = await program.run()
    assert "".join(result.value) == result.text()
    assert len(result.value) > 3
    told = [event async for event in program.stream()]
    assert "".join(event.delta for event in told) == result.text()
    await settled()


async def test_a_race_ends_what_lost(runtime: Any, settled: Any) -> None:
    @rr.function
    async def program(s: rr.State) -> str:
        s += "Once upon a time there was a king who"
        async with s.fork(3, join="first") as forks:
            forks[0] += rr.gen("x", max_tokens=10**6)  # more than the context holds
            forks[1] += rr.gen("x", max_tokens=3000, ignore_eos=True)
            forks[2] += rr.gen("x", max_tokens=3)
        assert isinstance(forks[0].error.__cause__, rr.ContextLengthError)
        assert isinstance(forks[1].error.__cause__, rr.AbortedError)
        return forks[2].text()

    before = await settled()
    result = await program.run()
    assert result.value.endswith(str(result["x"]))
    after = await settled()
    made = sum(after[name].generated_tokens - before[name].generated_tokens for name in after)
    assert made < 2000


async def test_a_deadline_of_the_run_reaches_the_engine(runtime: Any, settled: Any) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "Count: one, two"
        await s.gen("x", max_tokens=3000, ignore_eos=True)

    with pytest.raises(rr.ProgramError) as caught:
        await program.run(deadline=time.time() + 0.5)
    assert isinstance(caught.value.__cause__, rr.DeadlineExceededError)
    await settled()


async def test_a_pattern_stops_and_may_stay(runtime: Any, settled: Any) -> None:
    @rr.function
    async def program(s: rr.State, keep: bool) -> rr.Gen:
        s += "One, two, three,"
        return await s.gen(
            "x", temperature=0, max_tokens=30, stop_regex=r"[a-z]+, [a-z]", no_stop_trim=keep
        )

    cut, kept = [(await program.run(keep)) for keep in (False, True)]
    stop = cut.value.stop_reason
    assert re.fullmatch(r"[a-z]+, [a-z]", stop)
    assert (kept.value.text, kept.value.stop_reason) == (cut.value.text + stop, stop)
    assert kept.text() == cut.text() + stop
    with pytest.raises(rr.ProgramError) as caught:
        await answer_until.run("a*")
    cause = caught.value.__cause__
    assert type(cause) is rr.ConstraintError and cause.param == "stop_regex"
    await settled()


@rr.function
async def answer_until(s: rr.State, pattern: str) -> None:
    s += "One, two," + rr.gen("x", stop_regex=[pattern])


async def test_scores_follow_the_prompt(runtime: Any, settled: Any) -> None:
    @rr.function
    async def mood(s: rr.State, text: str) -> list[float]:
        s += text
        return (await s.score([" wonderful", " terrible"])).scores

    good = (await mood.run("The food was fresh and everybody smiled. The evening was")).value
    bad = (await mood.run("The food was rotten and everybody was ill. The evening was")).value
    assert good[0] - good[1] > bad[0] - bad[1] + 0.5
    await settled()


async def test_log_probabilities_keep_the_cache(runtime: Any, settled: Any) -> None:
    @rr.function
    async def program(s: rr.State) -> Any:
        s += (
            "The harbour council met again on the first Monday of the month, as it always did. " * 4
        )
        await s.gen("x", max_tokens=1)
        with_logprobs = await s.gen("y", max_tokens=2, logprobs=1, ignore_eos=True)
        return with_logprobs, await s.score([f" number {n}" for n in range(100)])

    gen, scored = (await program.run()).value
    assert gen.usage.cached > 0.9 * gen.usage.prompt
    assert [token.token_id for token in gen.logprobs] == gen.token_ids
    assert all(token.logprob <= 0 for token in gen.logprobs)
    assert len(scored.scores) == 100
    assert scored.usage.cached > 0.9 * scored.usage.prompt
    await settled()


async def test_usage_is_what_the_engine_counted(runtime: Any, settled: Any) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += "Seven ships came in on the tide, and all of them were empty but for one. " * 3
        async with s.fork(3) as forks:
            forks += lambda i: f"Ship {i}:" + rr.gen("x", max_tokens=4)
        s += rr.gen("y", max_tokens=4)

    before = await settled()
    usage = (await program.run()).usage
    after = await settled()

    def counted(field: str) -> int:
        return sum(getattr(after[name], field) - getattr(before[name], field) for name in after)

    assert usage.completion == counted("generated_tokens") > 0
    assert usage.cached == counted("cached_tokens") > 0


async def test_the_running_batch_reaches_its_cap(runtime: Any, settled: Any) -> None:
    @rr.function
    async def count(s: rr.State, n: int) -> None:
        s += f"Count on from {n}:" + rr.gen("x", max_tokens=60, ignore_eos=True)

    rows = asyncio.create_task(count.run_batch(range(256), concurrency=256))
    cap = runtime.config.engine.max_num_seqs
    async with asyncio.timeout(60):
        while max(s.running for s in (await runtime.stats()).values()) < cap:
            await asyncio.sleep(0.01)
    rows.cancel()
    await asyncio.wait([rows])
    await settled()


async def test_inside_of_an_async_actor(runtime: Any, settled: Any) -> None:
    """Programs in the loop of an actor, beside its other calls, against actors' engines."""

    @ray.remote
    class Worker:
        async def start(self, name: str) -> None:
            self.runtime = await asyncio.to_thread(rr.attach, name)

        async def work(self, program: Any, n: int) -> str:
            return (await program.run(n, max_tokens=4, temperature=0)).value

        async def stop(self) -> None:
            await self.runtime.aclose()

    @rr.function
    async def program(s: rr.State, n: int) -> str:
        s += f"The number after {n} is"
        async with s.fork(2) as forks:
            forks += rr.gen("x")
        return str(s["x"].value[0])

    worker = Worker.options(num_cpus=0).remote()
    await worker.start.remote(runtime.config.name)
    here = [(await program.run(n, max_tokens=4, temperature=0)).value for n in range(4)]
    assert await asyncio.gather(*(worker.work.remote(program, n) for n in range(4))) == here
    await worker.stop.remote()
    ray.kill(worker)
    await settled()
