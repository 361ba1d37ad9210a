"""Few-shot questions behind one shared prompt: RadixRay beside its peers, in one run.

All systems answer the same prompts, greedily and with the same number of tokens, in rounds that
alternate between them. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

import radixray as rr
from radixray.config import DEFAULT_MODEL
from radixray.models.resolve import resolve_model

SHOTS = 20
RESULTS = Path(__file__).parent / "results" / "few_shot.json"

console = Console()


# The load


def make_prompts(seed: int, count: int) -> list[str]:
    """`count` prompts that share their first 900 tokens or so, and with other seeds nothing."""
    rng = random.Random(seed)
    shots = "\n\n".join(" ".join(word_problem(rng)) for _ in range(SHOTS))
    return [f"Set {seed}.\n\n{shots}\n\n{word_problem(rng)[0]}" for _ in range(count)]


def word_problem(rng: random.Random) -> tuple[str, str]:
    """A question, and its answer."""
    name = rng.choice(["Tom", "Anna", "Maria", "Paul", "Emma", "David", "Laura", "Peter"])
    things = rng.choice(["apples", "books", "coins", "pencils", "cards", "shells", "stamps"])
    a, b = rng.randint(10, 60), rng.randint(2, 9)
    verb, sign, total = rng.choice([("buys", "+", a + b), ("gives away", "-", a - b)])
    more = f"{b} more" if sign == "+" else f"{b} of them"
    return (
        f"Question: {name} has {a} {things} and {verb} {more}. How many {things} does {name} "
        f"have now?\nAnswer:",
        f"{a} {sign} {b} = {total}, so {name} has {total} {things} now.",
    )


# The systems


@dataclass
class Answer:
    """What a system made of one prompt; `cached` prompt tokens were not computed."""

    text: str
    prompt: int
    cached: int
    generated: int
    latency: float


class System(Protocol):
    """One row of the table."""

    name: str

    async def answer(self, prompts: list[str], label: str) -> list[Answer]:
        """Answers all prompts, in their order; `label` differs each time."""
        ...


@rr.function
async def continue_text(s: rr.State, prompt: str) -> None:
    s += prompt
    await s.gen("answer")


@dataclass
class RadixRay:
    """Programs on one model actor; without `cache`, each prompt has a cache to itself."""

    name: str
    cache: bool
    concurrency: int
    max_tokens: int

    async def answer(self, prompts: list[str], label: str) -> list[Answer]:
        async def one(index: int) -> Answer:
            started = time.perf_counter()
            result = await continue_text.run(
                prompts[index],
                max_tokens=self.max_tokens,
                temperature=0,
                ignore_eos=True,
                cache_salt=label if self.cache else f"{label}/{index}",
            )
            usage = result.usage
            return Answer(
                result["answer"].text,
                usage.prompt,
                usage.cached,
                usage.completion,
                time.perf_counter() - started,
            )

        return await bounded(one, len(prompts), self.concurrency)


@dataclass
class Transformers:
    """`generate` of Hugging Face transformers, `batch` prompts at a time."""

    name: str
    model: Any
    tokenizer: Any
    batch: int
    max_tokens: int

    async def answer(self, prompts: list[str], label: str) -> list[Answer]:
        answers: list[Answer] = []
        for start in range(0, len(prompts), self.batch):
            # In a thread: RadixRay's client must be able to show life meanwhile.
            answers += await asyncio.to_thread(self._generate, prompts[start : start + self.batch])
        return answers

    def _generate(self, prompts: list[str]) -> list[Answer]:
        started = time.perf_counter()
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        outputs = self.model.generate(**inputs, do_sample=False, max_new_tokens=self.max_tokens)[
            :, inputs["input_ids"].shape[1] :
        ]
        texts = self.tokenizer.batch_decode(outputs, skip_special_tokens=True)
        latency = time.perf_counter() - started
        prompt_tokens = inputs["attention_mask"].sum(dim=1).tolist()
        return [
            Answer(text, tokens, 0, len(output), latency)
            for text, tokens, output in zip(texts, prompt_tokens, outputs, strict=True)
        ]


@dataclass
class HttpPeer:
    """Any server with OpenAI's completions API that knows `ignore_eos`, such as vLLM."""

    name: str
    client: Any
    model: str
    concurrency: int
    max_tokens: int

    async def answer(self, prompts: list[str], label: str) -> list[Answer]:
        async def one(index: int) -> Answer:
            started = time.perf_counter()
            done = await self.client.completions.create(
                model=self.model,
                prompt=prompts[index],
                max_tokens=self.max_tokens,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            latency = time.perf_counter() - started
            details = done.usage.prompt_tokens_details
            return Answer(
                done.choices[0].text,
                done.usage.prompt_tokens,
                (details.cached_tokens or 0) if details else 0,
                done.usage.completion_tokens,
                latency,
            )

        return await bounded(one, len(prompts), self.concurrency)


async def bounded(
    one: Callable[[int], Awaitable[Answer]], count: int, concurrency: int
) -> list[Answer]:
    """``one(index)`` for all indices, at most `concurrency` at once."""
    slots = asyncio.Semaphore(concurrency)

    async def run(index: int) -> Answer:
        async with slots:
            return await one(index)

    return await asyncio.gather(*map(run, range(count)))


def make_systems(options: argparse.Namespace) -> list[System]:
    size, tokens = options.concurrency, options.max_tokens
    systems: list[System] = [
        RadixRay("RadixRay", True, size, tokens),
        RadixRay("RadixRay, cache off", False, size, tokens),
    ]
    if options.transformers:
        model, tokenizer = load_transformers(options.model, options.dtype)
        systems += [
            Transformers(f"transformers, batches of {size}", model, tokenizer, size, tokens),
            Transformers("transformers, one by one", model, tokenizer, 1, tokens),
        ]
    if options.peer_url:
        from openai import AsyncOpenAI

        key = os.environ.get("OPENAI_API_KEY", "none")
        client = AsyncOpenAI(base_url=options.peer_url, api_key=key, timeout=1800, max_retries=0)
        systems.append(HttpPeer(options.peer_name, client, options.peer_model, size, tokens))
    return systems


def load_transformers(name: str, dtype: str) -> tuple[Any, Any]:
    """The same weights in the same dtype, and the tokenizer, as transformers loads them."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = resolve_model(name)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype)
    )
    # All systems generate as many tokens as they may: the end-of-text token ends nothing.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), tokenizer


# The measurement


@dataclass
class Round:
    """One system's answers to one round's prompts, as numbers."""

    system: str
    number: int
    seconds: float
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    p50: float
    p99: float
    texts: list[str] = field(repr=False)

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.seconds


async def measure(system: System, number: int, prompts: list[str]) -> Round:
    started = time.perf_counter()
    answers = await system.answer(prompts, f"round {number}")
    seconds = time.perf_counter() - started
    latencies = sorted(answer.latency for answer in answers)
    return Round(
        system=system.name,
        number=number,
        seconds=seconds,
        requests=len(answers),
        prompt_tokens=sum(answer.prompt for answer in answers),
        cached_tokens=sum(answer.cached for answer in answers),
        generated_tokens=sum(answer.generated for answer in answers),
        p50=statistics.median(latencies),
        p99=latencies[math.ceil(0.99 * len(latencies)) - 1],
        texts=[answer.text for answer in answers],
    )


async def run(options: argparse.Namespace) -> list[Round]:
    rounds: list[Round] = []
    async with rr.init(options.model, dtype=options.dtype):
        systems = make_systems(options)
        for system in systems:
            await system.answer(make_prompts(0, 2), "warm-up")
        for number in range(1, options.rounds + 1):
            prompts = make_prompts(number, options.questions)
            # Each round begins with another system, so that none is always first.
            first = (number - 1) % len(systems)
            for system in systems[first:] + systems[:first]:
                with console.status(f"round {number} of {options.rounds}: {system.name}"):
                    done = await measure(system, number, prompts)
                rounds.append(done)
                console.print(f"round {number}: {system.name}: {done.seconds:.2f} s")
    order = [system.name for system in systems]
    return sorted(rounds, key=lambda done: (order.index(done.system), done.number))


# The report


def medians(rounds: list[Round]) -> list[dict[str, Any]]:
    """For each system, medians over its rounds; ratios are to the first."""
    by_system: dict[str, list[Round]] = {}
    for done in rounds:
        by_system.setdefault(done.system, []).append(done)
    reference = next(iter(by_system.values()))
    rows: list[dict[str, Any]] = []
    for name, own in by_system.items():
        same = [
            text == expected
            for mine, first in zip(own, reference, strict=True)
            for text, expected in zip(mine.texts, first.texts, strict=True)
        ]
        ratios = [
            mine.requests_per_s / first.requests_per_s
            for mine, first in zip(own, reference, strict=True)
        ]
        rows.append(
            {
                "system": name,
                "requests_per_s": statistics.median(done.requests_per_s for done in own),
                "generated_tokens_per_s": statistics.median(done.tokens_per_s for done in own),
                "p50_s": statistics.median(done.p50 for done in own),
                "p99_s": statistics.median(done.p99 for done in own),
                "ratio": statistics.median(ratios),
                "hit_rate": sum(done.cached_tokens for done in own)
                / sum(done.prompt_tokens for done in own),
                "same_output": sum(same) / len(same),
            }
        )
    return rows


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    shown = Table(
        title=f"{options.questions} questions, {options.concurrency} at once, "
        f"{options.max_tokens} tokens each, {options.dtype}; medians of {options.rounds} rounds",
        caption="ratio: requests/s, compared with the first row of the same round\n"
        "same output: answers that are, to the letter, those of the first row",
        padding=0,
    )
    shown.add_column("system")
    for column in (
        "requests\n/s",
        "tokens\n/s",
        "p50\ns",
        "p99\ns",
        "ratio",
        "hit\nrate",
        "same\noutput",
    ):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["system"],
            f"{row['requests_per_s']:.2f}",
            f"{row['generated_tokens_per_s']:.1f}",
            f"{row['p50_s']:.2f}",
            f"{row['p99_s']:.2f}",
            f"{row['ratio']:.3f}",
            f"{row['hit_rate']:.0%}",
            f"{row['same_output']:.0%}",
        )
    return shown


def save(path: Path, rounds: list[Round], options: argparse.Namespace) -> None:
    packages = ("radixray", "ray", "torch", "transformers")
    settings = {name: value for name, value in vars(options).items() if name != "save"}
    content = {
        "settings": settings,
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_average": os.getloadavg(),
            **{name: version(name) for name in packages},
        },
        "medians": medians(rounds),
        "rounds": [
            {name: value for name, value in asdict(done).items() if name != "texts"}
            for done in rounds
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    console.print(f"saved to {path}")


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--questions", type=int, default=12, help="requests a round")
    add("--concurrency", type=int, default=12, help="requests at once; transformers' batch size")
    add("--max-tokens", type=int, default=16, help="tokens that each request generates")
    add("--model", default=DEFAULT_MODEL)
    add("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    add(
        "--no-transformers",
        dest="transformers",
        action="store_false",
        help="leave transformers out",
    )
    add("--peer-url", help="an OpenAI-compatible server, e.g. http://127.0.0.1:8101/v1")
    add("--peer-model", help="the model's name there")
    add("--peer-name", default="peer", help="the server's name in the table")
    add("--save", type=Path, nargs="?", const=RESULTS, help=f"write JSON, by default {RESULTS}")
    options = parser.parse_args()
    for name in ("rounds", "questions", "concurrency", "max_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.peer_url and not options.peer_model:
        parser.error("--peer-url needs --peer-model")
    return options


def main() -> None:
    options = parse_options()
    # Said openly, Ray has no need to warn that it chose this mode by itself.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    rounds = asyncio.run(run(options))
    console.print(table(medians(rounds), options))
    if options.save:
        save(options.save, rounds, options)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
