"""Every RadixRay snippet of docs/porting.md runs."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.protocol import GenerateRequest

DOCUMENT = Path(__file__).parents[2] / "docs" / "porting.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
OURS = [block for block in BLOCKS if not block.startswith("# SGLang")]


def answer(request: GenerateRequest) -> str:
    constraint = request.constraint
    if constraint is None:
        return " ok"
    if constraint.json_schema is not None:
        return '{"item":"tea","count":2}'
    return constraint.choices[0] if constraint.choices else " 42."


def test_each_of_sglangs_has_ours() -> None:
    assert len(OURS) == len(BLOCKS) / 2 == 6
    for block in BLOCKS:
        ast.parse(block)


@pytest.mark.parametrize("index", range(len(OURS)))
async def test_snippet(
    transport: ScriptedTransport, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    async def current() -> ScriptedTransport:
        return transport

    monkeypatch.setattr("radixray.client.runtime.current_transport", current)
    transport.reply = answer
    code = compile(OURS[index], str(DOCUMENT), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"rr": rr, "pydantic": pydantic}
    running = eval(code, names)
    assert inspect.iscoroutine(running)
    await running
    assert transport.requests
    result = names.get("result")
    if result is not None:
        assert result.error is None
    if "typed" in names:
        assert result.value == (44, 3)
    if "both" in names:
        assert result.text() == "Tips:  ok ok"
