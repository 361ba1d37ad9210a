"""Every snippet of docs/transports.md runs, on a real server and model."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import radixray as rr
from radixray.client import runtime as runtime_module

DOCUMENT = Path(__file__).parents[2] / "docs" / "transports.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


async def test_snippets(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime_module, "_current", None)
    names: dict[str, Any] = {}
    for block in BLOCKS:
        source = block.replace("http://127.0.0.1:8000", url)
        code = compile(source, str(DOCUMENT), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, names)
        if inspect.iscoroutine(running):
            await running
    printed = capsys.readouterr().out
    assert "completion=0" in printed.splitlines()[-1]
    assert printed.startswith("The capital of France is Paris")
    # The message it shows is the one there is.
    with rr.testing.replay("calls.jsonl"), pytest.raises(rr.ProgramError) as raised:
        await names["capital"].run("Francia", temperature=0)
    shown = re.search(r"^```\n(calls.jsonl.*?)```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert str(raised.value.__cause__) == shown[1].strip()
