"""Constrained output: what compiling and masks cost, and what jumping over forced text gains.

    python benchmarks/constrained.py [--quick] [--peer-python PYTHON] [--save PATH]

Ten constraints (see ``constrained_specs.py``), each compiled, followed along members of its
language, and generated from by the engine, in batches, with jump-forward, without, and with no
constraint at all. Beside it llguidance's and xgrammar's own times on the same members, in processes
of their own; xgrammar where the interpreter ``--peer-python`` has it.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from constrained_peers import time_masks
from constrained_specs import SPECS, Spec
from rich.console import Console
from rich.table import Table

from radixray.config import EngineConfig
from radixray.constraint import Constraint
from radixray.engine.build import build_engine
from radixray.engine.engine import Engine
from radixray.errors import ConstraintError
from radixray.fsm.compiler import compile_constraint
from radixray.fsm.matcher import CompiledConstraint, Matcher
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.models.resolve import resolve_model
from radixray.protocol import GenerateRequest, SamplingParams

RESULTS = Path(__file__).parent / "results" / "constrained.json"
PEERS = Path(__file__).parent / "constrained_peers.py"
WAYS = ("jump", "no jump", "free")
REQUIRED = 2.0
"""How many times as fast JSON with long fixed keys must decode with jump-forward as without."""

Numbers = dict[str, Any]


class Ours:
    """A matcher of ours, as those of peers are followed."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def mask(self) -> None:
        """The mask."""
        self._matcher.mask()

    def take(self, token_id: int) -> bool:
        """Moves on by a token; whether it may."""
        try:
            self._matcher.advance(token_id)
        except ConstraintError:
            return False
        return True


def our_masks(spec: Spec, members: list[list[int]], vocabulary: TokenVocabulary) -> Numbers:
    """Our compile and mask times."""
    started = time.perf_counter()
    compiled = compile_constraint(spec.constraint, vocabulary)
    compiled.matcher()
    compile_ms = (time.perf_counter() - started) * 1e3
    return {"compile_ms": compile_ms} | time_masks(lambda: Ours(compiled.matcher()), members)


def peer_masks(peer: str, python: str, engine: Engine, members: dict[str, list[list[int]]]) -> Any:
    """The same of a peer, by an interpreter; without ``specs`` where it has none."""
    info = engine.info
    task = {
        "tokenizer": (resolve_model(info.name) / "tokenizer.json").read_text("utf-8"),
        "tokens": [base64.b64encode(token).decode() for token in engine.tokenizer.token_bytes],
        "eos": info.eos_token_ids,
        "vocab_size": info.vocab_size,
        "warm_up": {"kind": "regex", "text": "[a-z]+"},
        "specs": [
            {"name": spec.name, "form": spec.form(peer), "members": members[spec.name]}
            for spec in SPECS
        ],
    }
    done = subprocess.run(
        [python, "-P", str(PEERS), peer], input=json.dumps(task), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{peer} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def generate(
    engine: Engine,
    prompts: list[list[int]],
    salt: str,
    sampling: Callable[[int], SamplingParams],
    compiled: CompiledConstraint | None,
    jump: bool,
) -> Numbers:
    """All prompts at once, to their ends."""
    requests = [
        GenerateRequest(
            request_id=f"{salt}-{number}",
            prompt_ids=prompt,
            sampling=sampling(number),
            jump_forward=jump,
            # Nothing is shared between the ways: all compute their prompts.
            cache_salt=salt,
        )
        for number, prompt in enumerate(prompts)
    ]
    steps = engine.stats.steps
    tokens = jumped = finished = characters = 0
    started = time.perf_counter()
    for request in requests:
        engine.add(request, compiled.matcher() if compiled else None)
    while engine.has_work:
        for delta in engine.step().deltas:
            if delta.error is not None:
                raise RuntimeError(delta.error.message)
            characters += len(delta.text)
            if delta.finish_reason is not None and delta.usage is not None:
                tokens += delta.usage.completion
                jumped += delta.usage.jumped
                finished += delta.finish_reason == "stop"
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "characters_per_s": characters / seconds,
        "tokens": tokens,
        "forced": jumped / tokens,
        "steps": engine.stats.steps - steps,
        "complete": finished / len(prompts),
    }


def rates(
    engine: Engine, spec: Spec, vocabulary: TokenVocabulary, batch: int, rounds: int
) -> list[dict[str, Numbers]]:
    """What each way did in each round."""
    compiled = compile_constraint(spec.constraint, vocabulary)
    encode = engine.tokenizer.encode
    done: list[dict[str, Numbers]] = []
    for number in range(rounds):
        prompts = [encode(f"Case {number * batch + i}. {spec.asked} ") for i in range(batch)]
        ways: dict[str, Numbers] = {}

        def bound(request: int) -> SamplingParams:
            return SamplingParams(max_tokens=spec.max_tokens, seed=request)

        for way in WAYS[number % 2 : 2] + WAYS[: number % 2]:
            salt = f"{spec.name} {number} {way}"
            ways[way] = generate(engine, prompts, salt, bound, compiled, way == "jump")
        # As long as constrained outputs are, whatever the model would have said.
        free = SamplingParams(
            max_tokens=max(1, round(ways["no jump"]["tokens"] / batch)), seed=1, ignore_eos=True
        )
        salt = f"{spec.name} {number} free"
        ways["free"] = generate(engine, prompts, salt, lambda _, free=free: free, None, False)
        done.append(ways)
    return done


def summary(rounds: list[dict[str, Numbers]]) -> Numbers:
    """Medians over the rounds; the gain is a median of what is compared within one.

    It compares characters: asked for each token, a model often spells the same text with more.
    """
    found: Numbers = {
        way: {
            name: statistics.median(done[way][name] for done in rounds)
            for name in (
                "tokens_per_s",
                "characters_per_s",
                "tokens",
                "forced",
                "steps",
                "complete",
            )
        }
        for way in WAYS
    }
    found["gain"] = statistics.median(
        done["jump"]["characters_per_s"] / max(1e-9, done["no jump"]["characters_per_s"])
        for done in rounds
    )
    return found


def table_of(rows: list[Numbers], title: str) -> Table:
    """One row a constraint; times are mean / p99 in microseconds, first and again."""
    table = Table(title=title, padding=(0, 1))
    table.add_column("constraint", no_wrap=True)
    for peer in ("RadixRay", "llguidance", "xgrammar"):
        table.add_column(f"{peer}\ncompile ms", justify="right", min_width=10)
        table.add_column("mask µs\nfirst", justify="right", no_wrap=True)
        table.add_column("mask µs\nagain", justify="right", no_wrap=True)
    table.add_column("forced", justify="right")
    for name in ("tokens/s\njump", "no\njump", "no con-\nstraint", "text/s,\njump"):
        table.add_column(name, justify="right")
    for row in rows:
        cells: list[str] = []
        for peer in ("radixray", "llguidance", "xgrammar"):
            times = row[peer]
            if "error" in times:
                cells += [times["error"][:14], "", ""]
                continue
            cells.append(f"{times['compile_ms']:.1f}")
            for when in ("first", "again"):
                cells.append(f"{times[when]['mean']:.0f} / {times[when]['p99']:.0f}")
        engine = row["engine"]
        cells.append(f"{engine['jump']['forced']:.0%}")
        cells += [f"{engine[way]['tokens_per_s']:.0f}" for way in WAYS]
        table.add_row(row["name"], *cells, f"{engine['gain']:.2f}x")
    return table


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, batches of 4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="requests at once")
    parser.add_argument("--members", type=int, default=20, help="outputs whose masks are timed")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--peer-python", default=sys.executable, help="that has xgrammar")
    parser.add_argument("--save", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.batch = 1, 4
    return options


def main() -> None:
    options = options_of()
    console = Console(width=190, highlight=False)
    engine = build_engine(EngineConfig(dtype=options.dtype, max_total_tokens=40_000))
    info = engine.info
    vocabulary = TokenVocabulary(
        engine.tokenizer.token_bytes, info.eos_token_ids, vocab_size=info.vocab_size
    )
    compile_constraint(Constraint(lark='start: "a" start | "b"'), vocabulary)  # loads the library
    members = {
        spec.name: [
            engine.tokenizer.encode(spec.member(random.Random(number)))
            for number in range(options.members)
        ]
        for spec in SPECS
    }
    pythons = {"llguidance": sys.executable, "xgrammar": options.peer_python}
    peers = {peer: peer_masks(peer, python, engine, members) for peer, python in pythons.items()}
    rates(engine, SPECS[0], vocabulary, options.batch, 1)  # what an engine does only once
    rows: list[Numbers] = []
    for spec in SPECS:
        console.print(f"[dim]{spec.name}[/dim]")
        row: Numbers = {
            "name": spec.name,
            "radixray": our_masks(spec, members[spec.name], vocabulary),
        }
        for peer, found in peers.items():
            missing = {"error": "not installed"}
            row[peer] = found["specs"][spec.name] if "specs" in found else missing
        rounds = rates(engine, spec, vocabulary, options.batch, options.rounds)
        row |= {"engine": summary(rounds), "rounds": rounds}
        rows.append(row)
    console.print(table_of(rows, f"Constrained output: batches of {options.batch}, {info.dtype}"))
    verdicts = show_verdicts(rows, console)
    versions = {peer: found.get("version", "not installed") for peer, found in peers.items()}
    settings = {name: getattr(options, name) for name in ("rounds", "batch", "members", "dtype")}
    results = {
        "settings": settings,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "versions": versions | {"radixray": version("radixray")},
        "verdicts": verdicts,
        "constraints": rows,
    }
    options.save.parent.mkdir(exist_ok=True)
    options.save.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def show_verdicts(rows: list[Numbers], console: Console) -> dict[str, str]:
    """Whether jumping gains what it must."""
    verdicts: dict[str, str] = {}
    for spec, row in zip(SPECS, rows, strict=True):
        if spec.must_double:
            gain = row["engine"]["gain"]
            verdicts[spec.name] = "met" if gain >= REQUIRED else "not met"
            console.print(
                f"{spec.name}: {gain:.2f} times as fast with jump-forward; {REQUIRED:g} wanted: "
                f"{verdicts[spec.name]}"
            )
    return verdicts


if __name__ == "__main__":
    main()
