"""JSON in two ways: held to a pydantic model, and field by field in branches.

Held to a model, all that the schema leaves no choice about is not asked of the model. Branches fill
the fields of an object at the same time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

import radixray as rr

Short = Annotated[str, Field(pattern="^[A-Za-z ]{3,24}$")]


class City(BaseModel):
    name: Short
    country: Short
    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]
    is_capital: bool
    languages: Annotated[list[Short], Field(min_length=1, max_length=2)]


SHOTS = """\
Cities as JSON.
{"name":"Cairo","country":"Egypt","continent":"Africa","is_capital":true,\
"languages":["Arabic","English"]}
{"name":"Sydney","country":"Australia","continent":"Oceania","is_capital":false,\
"languages":["English"]}
"""


@rr.function
async def describe(s: rr.State, city: str) -> City:
    s += f"{SHOTS}The next city is {city}.\n"
    return (await s.gen("city", type=City, max_tokens=100)).value


@rr.function
async def describe_in_branches(s: rr.State, city: str) -> City:
    """No field waits for another, and none sees another."""
    s += f'{SHOTS}The next city is {city}.\n{{"name":"{city}",'
    _, *fields = City.model_fields.items()
    async with s.fork(len(fields)) as branches:
        for branch, (name, field) in zip(branches, fields, strict=True):
            branch += f'"{name}":'
            branch += rr.gen("value", type=field.rebuild_annotation(), max_tokens=40)
    names = [name for name, _ in fields]
    return City(name=city, **dict(zip(names, s["value"].value, strict=True)))


CITIES = ["Paris", "Tokyo", "New York"]


async def main() -> list[rr.ProgramResult]:
    everything: list[rr.ProgramResult] = []
    async with rr.init():
        for program in (describe, describe_in_branches):
            started = time.perf_counter()
            results = await program.run_batch(CITIES, temperature=0, on_error="raise")
            seconds = time.perf_counter() - started
            usage = sum((result.usage for result in results), rr.Usage())
            print(f"{program.__name__}: {seconds:.1f} s")
            for result in results:
                print(f"   {result.value!r}")
            print(
                f"   {usage.cached} of {usage.prompt} prompt tokens came from the cache; ", end=""
            )
            print(f"{usage.jumped} of {usage.completion} tokens were not asked of the model")
            everything += results
    return everything


if __name__ == "__main__":
    asyncio.run(main())
