"""Each program of examples/ and of the README runs on the real model, and what it gives has the
right shape."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import radixray as rr

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"


@pytest.fixture(scope="module")
async def runtime() -> AsyncGenerator[rr.Runtime, None]:
    async with rr.init(address="local") as runtime:
        yield runtime


def few_shot(module: Any, results: Any) -> None:
    right = [module.QUESTIONS[result.index][1] == result.value for result in results]
    assert len(right) == 32 and sum(right) > 16


def multiple_choice(module: Any, results: Any) -> None:
    right = [r.value == q[2] for r, q in zip(results, module.QUESTIONS, strict=True)]
    assert sum(right) > 4


def endings(module: Any, by_method: Any) -> None:
    assert list(by_method) == list(module.METHODS)
    # The first is the sensible one, but for the second story.
    for method in (module.METHODS[0], module.METHODS[2]):
        assert [result.value.index for result in by_method[method]] == [0, 1, 0]


def choose(module: Any, results: Any) -> None:
    assert [r.value for r in results] == [" good", " bad", " good", " bad"]


def chat(module: Any, result: Any) -> None:
    assert [m["role"] for m in result.messages()] == ["system", *["user", "assistant"] * 2]
    assert result["second"].usage.cached > result["first"].usage.prompt


def react(module: Any, results: Any) -> None:
    for result in results:
        found = re.findall(r"Observation: (\w+) has", result.text().rpartition("Question:")[2])
        assert 2 <= len(set(found)) == len(found)
        assert result.value in found
        assert len(result["thoughts"]) == len(found) + 1
        assert f"Action: Finish[{result.value}]" in result.text()


def generative_agents(module: Any, given: Any) -> None:
    memories, result = given
    assert [memory.text for memory in memories] == module.OBSERVATIONS
    assert all(1 < memory.importance < 9 for memory in memories)
    assert len({memory.importance for memory in memories}) > 1
    # Two remembered things speak of the party.
    assert result.text().split("remembers:")[1].count("birthday party") == 3
    assert result.value


def tree_of_thought(module: Any, result: Any) -> None:
    assert [len(tips) for tips in result["tip"]] == [module.WIDTH] * module.WIDTH
    assert re.match(r"plan [123], because it helps people to", result.value)


def skeleton_of_thought(module: Any, result: Any) -> None:
    assert len(result["points"]) == len(result["detail"]) == 3
    lines = result.value.splitlines()
    for line, point in zip(lines, result["points"], strict=True):
        assert point.text.strip() and line.startswith(f"-{point}")


def llm_judge(module: Any, result: Any) -> None:
    assert list(result.value) == list(module.DIMENSIONS)
    assert set(result.value.values()) <= {1, 2, 3, 4, 5}
    report = result.messages()[-2]["content"]
    assert all(f"- {dimension}:" in report for dimension in module.DIMENSIONS)
    assert result.messages()[-1]["content"] == result["summary"].text


def multi_document_qa(module: Any, result: Any) -> None:
    places = [result.text().index(document) for document in module.DOCUMENTS]
    assert places == sorted(places)
    assert "Swallow" in result.value[0] and len(result.value) == 2


def tip_suggestion(module: Any, result: Any) -> None:
    tips = re.findall(r"Tip \d: .+", result.text())
    assert len(tips) == 2
    assert result.text().endswith(result.value)


def rag_pipeline(module: Any, results: Any) -> None:
    for result, word in zip(results, ("Nile", "Baikal", "Etna"), strict=True):
        assert word in result.value.passage
        assert result.value.text
    assert "Mediterranean" in results[0].value.text


def json_decoding(module: Any, results: Any) -> None:
    assert len(results) == 2 * len(module.CITIES)
    assert all(isinstance(result.value, module.City) for result in results)
    assert [result.value.name for result in results[3:]] == module.CITIES
    assert all(result.usage.jumped for result in results)


def extraction(module: Any, results: Any) -> None:
    for text, result in zip(module.TEXTS, results, strict=True):
        assert result.value["name"] in text and result.value["amount"] in text


CHECKS: dict[str, Callable[[Any, Any], None]] = {
    check.__name__: check
    for check in (
        few_shot,
        multiple_choice,
        endings,
        choose,
        chat,
        react,
        generative_agents,
        tree_of_thought,
        skeleton_of_thought,
        llm_judge,
        multi_document_qa,
        tip_suggestion,
        rag_pipeline,
        json_decoding,
        extraction,
    )
}
ELSEWHERE = {"demo", "openai_client"}  # `make demo`, and the tests of the server
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def test_every_example_is_checked_and_listed() -> None:
    assert set(NAMES) == set(CHECKS) | ELSEWHERE
    table = (FOLDER / "README.md").read_text()
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \| \w.* \|$", table, re.M)
    assert sorted(listed) == NAMES


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shared(runtime: rr.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that start a runtime get the one that is there."""

    @asynccontextmanager
    async def use() -> AsyncIterator[rr.Runtime]:
        try:
            yield runtime
        finally:
            await runtime.aclose()  # of this loop alone

    monkeypatch.setattr(rr, "init", use)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(CHECKS))
async def test_example(
    name: str, shared: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load(name, monkeypatch)
    result = await module.main()
    said = capsys.readouterr().out
    CHECKS[name](module, result)
    assert re.search(r"from the cache", said) and re.search(r"\d\.\d s$", said, re.M)


async def test_the_readme(
    shared: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    first, *others = blocks[:5]
    names: dict[str, Any] = {"rr": rr, "countries": ["Italy", "Spain"]}
    await asyncio.to_thread(exec, compile(first, "README.md", "exec", dont_inherit=True), names)
    said = capsys.readouterr().out
    assert "Paris Usage(" in said and "0  Rome 19 tokens cached" in said
    for block in others:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        running = eval(compile(block, "README.md", "exec", flags, dont_inherit=True), names)
        if running is not None:
            await running
    assert [r["city"].text for r in names["results"]] == [" Rome", " Madrid"]
    assert (await names["chat"].run("Why?"))["answer"].text
    review = await names["review"].run("Great music and a lovely garden.")
    assert review["verdict"] == " good" and int(review["stars"].text) in range(1, 6)
    assert len((await names["advice"].run("sleep", temperature=0))["tip"]) == 3
