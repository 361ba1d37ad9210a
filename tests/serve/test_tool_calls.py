"""Calls found in text, however it is cut."""

from __future__ import annotations

import json

import pytest

from radixray.serve.tool_calls import CallPiece, ToolCallParser

F = '{"name": "f", "arguments": {"a": "}</tool_call>\\"{"}}'
G = '{"name":"g","arguments":{"b":[1,{"c":2}]}}'
F_ARGUMENTS = '{"a": "}</tool_call>\\"{"}'
G_ARGUMENTS = '{"b":[1,{"c":2}]}'


def read(
    text: str, size: int, *, inside: bool = False, max_calls: int = 16
) -> tuple[str, list[tuple[str, str]]]:
    """Content, and (name, arguments) of each call, of `text` in pieces of `size` characters."""
    parser = ToolCallParser(inside=inside, max_calls=max_calls)
    pieces: list[str | CallPiece] = []
    for i in range(0, len(text), size):
        pieces += parser.push(text[i : i + size])
    pieces += parser.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    calls: list[tuple[str, str]] = []
    ids = set()
    for piece in pieces:
        if isinstance(piece, str):
            continue
        if piece.id is not None:
            assert piece.index == len(calls)
            ids.add(piece.id)
            calls.append((piece.name or "", ""))
        else:
            assert piece.name is None
        name, arguments = calls[piece.index]
        calls[piece.index] = name, arguments + piece.arguments
    assert len(ids) == len(calls) == parser.calls
    return content, calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain", "plain", []),
        ("a < b <tool b", "a < b <tool b", []),
        ("trailing \n", "trailing \n", []),
        (f"<tool_call>\n{F}\n</tool_call>", "", [("f", F_ARGUMENTS)]),
        (
            f"Let me see.\n<tool_call>\n{F}\n</tool_call>\n<tool_call>{G}</tool_call>\n",
            "Let me see.",
            [("f", F_ARGUMENTS), ("g", G_ARGUMENTS)],
        ),
        (f"<tool_call>[{F}, {G}]</tool_call>", "", [("f", F_ARGUMENTS), ("g", G_ARGUMENTS)]),
        (f"<tool_call>{G}</tool_call> done", " done", [("g", G_ARGUMENTS)]),
        # Keys in another order; arguments as a string, under another name, or missing.
        ('<tool_call>{"arguments": {"x": 1}, "name": "h"}</tool_call>', "", [("h", '{"x": 1}')]),
        (
            '<tool_call>{"name": "h", "arguments": "{\\"x\\": 1}"}</tool_call>',
            "",
            [("h", '{"x": 1}')],
        ),
        ('<tool_call>{"name": "h", "parameters": {}}</tool_call>', "", [("h", "{}")]),
        ('<tool_call>{"name": "h"}</tool_call>', "", [("h", "{}")]),
        # A brace is missing at the end.
        ('<tool_call>{"name": "h", "arguments": {"x": 1}</tool_call>', "", [("h", '{"x": 1}')]),
        # No calls: text, but never a tag.
        ("<tool_call>what?</tool_call>!", "what?!", []),
        ('<tool_call>{"nome": "h"}</tool_call>!', '{"nome": "h"}!', []),
        ("<tool_call></tool_call>", "", []),
        # Cut off.
        ("so <tool_ca", "so", []),
        ("so <", "so <", []),
        ("so <tool_call>", "so", []),
        ('so <tool_call>\n{"name": "f', "so", []),
        ('<tool_call>{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b')]),
        (f"<tool_call>{G}</tool", "", [("g", G_ARGUMENTS)]),
        ("<tool_call>what?</tool_", "what?", []),
    ],
)
def test_reads_calls_however_cut(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for size in (1, 2, 3, 5, 7, len(text)):
        assert read(text, size) == (content, calls), size


def test_inside_of_a_block() -> None:
    for size in (1, 4, 1000):
        assert read(f"[{G},{F}]", size, inside=True) == (
            "",
            [("g", G_ARGUMENTS), ("f", F_ARGUMENTS)],
        )


def test_further_calls_are_dropped() -> None:
    text = f"<tool_call>{G}</tool_call><tool_call>{F}</tool_call> end"
    for size in (1, 6, 1000):
        assert read(text, size, max_calls=1) == (" end", [("g", G_ARGUMENTS)])


def test_a_prefix_never_shows_a_tag() -> None:
    text = f"Hm.\n<tool_call>\n{F}\n</tool_call>\n<tool_call>nothing</tool_call>"
    for end in range(len(text)):
        content, calls = read(text[:end], 3)
        assert "<tool" not in content.replace("<tool"[: len(content)], "") or end == 0
        assert "tool_call" not in content
        for _, arguments in calls:
            assert F_ARGUMENTS.startswith(arguments)


def test_arguments_arrive_as_they_are_written() -> None:
    parser = ToolCallParser(inside=False, max_calls=16)
    assert parser.push('<tool_call>{"name": "f", "arguments": ') == []
    start, piece = parser.push('{"city": "Par')
    assert isinstance(start, CallPiece)
    assert (start.name, start.arguments) == ("f", "")
    assert isinstance(piece, CallPiece)
    assert piece.arguments == '{"city": "Par'
    [piece] = parser.push('is"}}\n')
    assert isinstance(piece, CallPiece)
    assert json.loads('{"city": "Par' + piece.arguments) == {"city": "Paris"}
