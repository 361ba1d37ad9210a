"""docs/tutorial.md, read from top to bottom on the real model: each snippet runs, and prints what
the page shows under it."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import radixray as rr

DOCUMENT = Path(__file__).parents[2] / "docs" / "tutorial.md"
TEXT = DOCUMENT.read_text()
SNIPPET = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
CHECKER = doctest.OutputChecker()


def snippets() -> list[tuple[str, str]]:
    """Each with what it is to print, at its own line of the page, so that errors name that."""
    found = []
    for match in SNIPPET.finditer(TEXT):
        above = TEXT.count("\n", 0, match.start(1))
        found.append(("\n" * above + match[1], match[2] or ""))
    return found


def test_every_output_belongs_to_a_snippet() -> None:
    shown = [expected for _, expected in snippets() if expected]
    assert len(shown) == TEXT.count("\n```text\n") > 12


def test_snippets_can_be_pasted_at_a_prompt() -> None:
    """There a blank line ends a block, and nothing else does."""
    for code, _ in snippets():
        assert not re.search(r"\n\n+[ \t]", code.strip()), code
        assert not re.search(r"\n[ \t]+[^\n]*\n(?!except|elif|else)[^\s)\]}]", code.strip()), code


async def test_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    wrong: list[str] = []
    try:
        for code, expected in snippets():
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            compiled = compile(code, str(DOCUMENT), "exec", flags, dont_inherit=True)
            capsys.readouterr()
            running = eval(compiled, names)
            if inspect.iscoroutine(running):
                await running
            said = capsys.readouterr().out
            if not CHECKER.check_output(expected, said, doctest.ELLIPSIS):
                wrong.append(f"{code.strip()}\n\nshows:\n{expected}\nsays:\n{said}")
    finally:
        rr.shutdown()
    assert not wrong, "\n\n".join(wrong)
