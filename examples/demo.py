"""The example programs, one after the other, with what they cost: `make demo`.

All numbers come from the usage that the engine reports with each result, and from a clock.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import chat
import extraction
import few_shot
import tree_of_thought
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import radixray as rr
from radixray.protocol import Usage

DTYPE = "bfloat16"
QUESTIONS = [question for question, _ in few_shot.QUESTIONS]
CHATS = [
    ("Why do leaves fall in autumn?", "And what happens to them on the ground?"),
    ("What is a good breakfast?", "Can you make it vegetarian?"),
    ("How do birds find their way?", "Do they ever get lost?"),
    ("Why is the sea salty?", "Are lakes salty too?"),
]
REQUESTS_PER_TREE = (
    (1 + tree_of_thought.WIDTH)  # each fork has the text so far computed
    + tree_of_thought.WIDTH  # plans
    + tree_of_thought.WIDTH**2  # tips
    + 2  # the choice, and the reason for it
)

console = Console()


class WrongShapeError(Exception):
    """An answer is not what its program promises."""


@dataclass
class Stage:
    """One row of the table."""

    name: str
    requests: int
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    results: dict[int, rr.ProgramResult] = field(default_factory=dict)


class Demo:
    """Runs stages, and shows how far they are."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        # New in every run, so that nothing is found that another run has left.
        self.salt = uuid.uuid4().hex

    async def run(
        self,
        name: str,
        program: rr.Function,
        rows: list[dict[str, Any]],
        requests_per_row: int = 1,
        **parameters: Any,
    ) -> Stage:
        """All rows at once; the stage's results are by row."""
        stage = Stage(name, len(rows) * requests_per_row)
        task = self.progress.add_task(name, total=len(rows))
        started = time.perf_counter()
        results: AsyncIterator[rr.ProgramResult] = program.map(rows, **parameters)
        async with aclosing(results):
            async for result in results:
                stage.results[result.index] = result
                stage.usage += result.usage
                self.progress.advance(task)
        stage.seconds = time.perf_counter() - started
        return stage

    async def few_shot(self, name: str, *, shared: bool) -> Stage:
        """The few-shot batch; without `shared`, each request has a cache to itself."""
        rows = [
            {
                "question": question,
                "cache_salt": f"{self.salt}-{'all' if shared else f'only-{index}'}",
            }
            for index, question in enumerate(QUESTIONS)
        ]
        stage = await self.run(name, few_shot.answer, rows, temperature=0)
        for result in stage.results.values():
            expect(bool(result.value) and "\n" not in result.value, name, result.value)
        return stage

    async def tree_of_thought(self) -> Stage:
        rows = [{"problem": problem} for problem in tree_of_thought.PROBLEMS]
        stage = await self.run(
            "tree of thought",
            tree_of_thought.tree_of_thought,
            rows,
            REQUESTS_PER_TREE,
            temperature=0.6,
            seed=1,
            cache_salt=self.salt,
        )
        width = tree_of_thought.WIDTH
        for result in stage.results.values():
            expect(len(result["plan"]) == width, stage.name, result["plan"])
            expect(
                [len(tips) for tips in result["tip"]] == [width] * width, stage.name, result["tip"]
            )
            sentences = [*result["plan"], *(tip for tips in result["tip"] for tip in tips)]
            for sentence in map(str, sentences):
                expect(re.fullmatch(tree_of_thought.SENTENCE, sentence), stage.name, sentence)
        return stage

    async def extraction(self) -> Stage:
        rows = [{"text": text} for text in extraction.TEXTS]
        stage = await self.run(
            "extraction", extraction.extract, rows, temperature=0, cache_salt=self.salt
        )
        for result in stage.results.values():
            text = result["record"].text
            expect(re.fullmatch(extraction.PATTERN, text), stage.name, text)
        return stage

    async def chat(self) -> Stage:
        rows = [{"first": first, "second": second} for first, second in CHATS]
        stage = await self.run("chat", chat.chat, rows, 2, temperature=0, cache_salt=self.salt)
        for result in stage.results.values():
            roles = [message["role"] for message in result.messages()]
            expect(roles == ["system", *["user", "assistant"] * 2], stage.name, roles)
            expect(result["first"].text and result["second"].text, stage.name, result.messages())
        return stage


def expect(right: object, stage: str, shown: object) -> None:
    if not right:
        raise WrongShapeError(f"{stage}: an answer has the wrong shape: {shown!r}")


def table(stages: list[Stage], model: str) -> Table:
    shown = Table(
        title=f"{model}, {DTYPE}, one model actor, {os.cpu_count()} CPU cores",
        caption="Cache off: the same requests, each with a cache_salt of its own, so that no\n"
        "two share anything. Both few-shot batches begin with nothing cached. At a\n"
        "fork, computing the text so far counts as a request.",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    shown.add_column("stage", no_wrap=True)
    for column in (
        "requests",
        "prompt\ntokens",
        "cached\ntokens",
        "hit\nrate",
        "generated\ntokens",
        "seconds",
        "generated\ntokens/s",
    ):
        shown.add_column(column, justify="right", no_wrap=True)
    for stage in stages:
        usage = stage.usage
        shown.add_row(
            stage.name,
            str(stage.requests),
            f"{usage.prompt:,}",
            f"{usage.cached:,}",
            f"{usage.cached / usage.prompt:.0%}",
            str(usage.completion),
            f"{stage.seconds:.2f}",
            f"{usage.completion / stage.seconds:.1f}",
        )
    return shown


def report(stages: dict[str, Stage], model: str) -> None:
    cached, uncached = stages["cached"], stages["uncached"]
    console.print(table(list(stages.values()), model))
    same = sum(
        result.value == uncached.results[index].value for index, result in cached.results.items()
    )
    console.print(
        f"\nThe few-shot batch is [bold]{uncached.seconds / cached.seconds:.1f} times as fast[/] "
        f"with the cache; {same} of {len(QUESTIONS)} answers are the same without it."
    )
    chosen = stages["tree"].results[0]
    second = stages["chat"].results[0]["second"]
    samples = {
        "few-shot": f"{QUESTIONS[1]} {cached.results[1].value}",
        "tree of thought": f"{tree_of_thought.PROBLEMS[0]} {chosen.value}",
        "extraction": stages["extraction"].results[0].value,
        "chat": f"{CHATS[0][1]} {second.text.split('. ')[0].strip()}",
    }
    for name, sample in samples.items():
        console.print(f"[bold]{name}:[/]", str(sample), markup=True, highlight=False)


async def main() -> None:
    progress = Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    stages: dict[str, Stage] = {}
    try:
        progress.start()
        starting = progress.add_task("starting", total=1)
        runtime = rr.init(dtype=DTYPE)
        async with runtime:
            await few_shot.answer.run("Is it warm?", cache_salt=uuid.uuid4().hex)
            progress.advance(starting)
            demo = Demo(progress)
            stages["cached"] = await demo.few_shot("few-shot", shared=True)
            stages["uncached"] = await demo.few_shot("few-shot, cache off", shared=False)
            stages["tree"] = await demo.tree_of_thought()
            stages["extraction"] = await demo.extraction()
            stages["chat"] = await demo.chat()
    finally:
        progress.stop()
    report(stages, runtime.config.engine.model)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    # Programs raise ValueError for an answer that they cannot read; forks raise groups.
    except (WrongShapeError, ValueError, ExceptionGroup, rr.RadixRayError) as error:
        console.print(f"[bold red]error:[/] {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(130)
