"""Reasoning told apart from the answer: in results, in states, and while it streams."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.reasoning import Delimiters, ReasoningSplitter, split
from radixray.client.results import StreamEvent
from radixray.client.state import State

THOUGHT = "<think>\nTwo and two.\n</think>\n\nFour."


def by_regex(text: str, opened: bool) -> tuple[str | None, str]:
    """The same rules, on the whole text at once."""
    if not opened:
        begun = re.match(r"\s*<think>", text)
        if begun is None:
            return None, text
        text = text[begun.end() :]
    reasoning, _, answer = text.partition("</think>")
    return reasoning.strip(), answer.lstrip()


texts = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<th", "ink>", "</", "think>", "<", ">", " ", "\n", "a", "b c", "é"]
    ),
    max_size=10,
).map("".join)


@given(texts, st.lists(st.integers(1, 5), max_size=30), st.booleans())
def test_pieces_tell_what_the_whole_tells(text: str, cuts: list[int], opened: bool) -> None:
    prompt = "Think: <think>\n" if opened else "Think:"
    splitter = ReasoningSplitter(Delimiters(), prompt)
    reasoning = answer = ""
    start = 0
    for cut in [*cuts, len(text)]:
        piece = splitter.push(text[start : start + cut])
        start += cut
        reasoning, answer = reasoning + piece.reasoning, answer + piece.answer
        # What was told stays true: no delimiter, nor a beginning of one, is taken back later.
        want = by_regex(text, opened)
        assert (want[0] or "").startswith(reasoning) and want[1].startswith(answer)
    piece = splitter.finish()
    reasoning, answer = reasoning + piece.reasoning, answer + piece.answer
    assert (reasoning if splitter.found else None, answer) == by_regex(text, opened)
    assert split(text, Delimiters(), prompt) == by_regex(text, opened)


async def test_result_and_state(state: State, transport: ScriptedTransport) -> None:
    transport.reply = THOUGHT
    state += rr.user("2 + 2?")
    state += rr.assistant(rr.gen("x", separate_reasoning=True))
    state += rr.user("Sure?")
    x = await state["x"]
    assert (x.text, x.value, x.reasoning) == ("Four.", "Four.", "Two and two.")
    assert state["x"].reasoning == "Two and two."
    assert transport.tokenizer.decode(x.token_ids[:-1]) == THOUGHT  # the result has all tokens
    await state.sync()
    assert state.messages()[1]["content"] == "Four."
    assert "think" not in state.text()
    assert state.tokens() == transport.tokenizer.encode(state.text())
    assert state["x"].value == "Four."


async def test_generated_ids_of_the_answer_stay(state: State, transport: ScriptedTransport) -> None:
    # A spelling that the tokenizer would not choose: re-tokenising would show.
    encode = transport.tokenizer.encode
    answer = [encode(c)[0] for c in "Four"]
    transport.reply = [*encode("<think>a</think>"), *answer]
    state += "2 + 2 ="
    assert (await state.gen("x", separate_reasoning=True)).text == "Four"
    assert state.tokens() == [*encode("2 + 2 ="), *answer]
    assert answer != encode("Four")


async def test_without_reasoning(state: State, transport: ScriptedTransport) -> None:
    transport.reply = " an answer with <think>none</think>"
    state += "a"
    x = await state.gen("x", separate_reasoning=True)
    assert (x.text, x.reasoning) == (transport.reply, None)
    assert (await state.gen("y")).reasoning is None
    state["z"] = 1
    assert state["z"].reasoning is None


async def test_cut_off_within_reasoning(state: State, transport: ScriptedTransport) -> None:
    transport.reply = THOUGHT
    state += "a"
    x = await state.gen("x", separate_reasoning=True, max_tokens=6)
    assert x.text == "" and x.finish_reason == "length"
    assert x.reasoning and "Two and two.".startswith(x.reasoning)
    assert state.text() == "a"


async def test_a_prompt_may_open_it_and_delimiters_may_be_others(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = "hm [/R] yes"
    state += "Go. [R] "
    x = await state.gen("x", separate_reasoning=("[R]", "[/R]"))
    assert (x.text, x.reasoning) == ("yes", "hm")


async def test_a_stop_string_cuts_the_answer(state: State, transport: ScriptedTransport) -> None:
    transport.reply = THOUGHT
    state += "a "
    x = await state.gen("x", separate_reasoning=True, stop="ur")
    assert (x.text, x.reasoning) == ("Fo", "Two and two.")
    assert state.text() == "a Fo"


async def test_wrapper_and_run_default(transport: ScriptedTransport) -> None:
    transport.reply = THOUGHT

    @rr.function
    async def program(s: State) -> Any:
        with s.var_scope("all"):
            s += rr.separate_reasoning("Q: " + rr.gen("x", temperature=0) + " ")
        s += rr.separate_reasoning(rr.user("q") + rr.assistant(rr.gen("y")), "<think>", "</think>")
        return [(await s[name]).reasoning for name in "xy"]

    result = await program.run(transport=transport)
    assert result.value == ["Two and two."] * 2
    assert result["all"] == "Q: Four. "
    assert result["x"].reasoning == "Two and two."
    assert [r.sampling.temperature for r in transport.generations] == [0, 1]

    @rr.function
    async def plain(s: State) -> Any:
        s += "a" + rr.gen("x") + rr.gen("y", separate_reasoning=False)
        return [(await s[name]).reasoning for name in "xy"]

    result = await plain.run(transport=transport, separate_reasoning=True)
    assert result.value == ["Two and two.", None]


async def test_samples(state: State, transport: ScriptedTransport) -> None:
    transport.reply = THOUGHT
    state += "a"
    results = await state.gen("x", n=2, separate_reasoning=True)
    assert [(r.text, r.reasoning) for r in results] == [("Four.", "Two and two.")] * 2
    assert state["x"].reasoning == "Two and two."


async def test_a_typed_answer_after_reasoning(state: State, transport: ScriptedTransport) -> None:
    transport.reply = "<think>two</think> 4."
    state += "a"
    x = await state.gen("x", dtype=int, start_after="</think>", separate_reasoning=True)
    assert (x.value, x.reasoning) == (4, "two")


@pytest.mark.parametrize("typed", [{}, {"dtype": int, "start_after": "</think>"}])
async def test_streamed(transport: ScriptedTransport, typed: dict[str, Any]) -> None:
    transport.reply = "<think> one two </think> 34"

    @rr.function
    async def program(s: State) -> list[str]:
        s += "a"
        (fork,) = s.fork(1)
        fork += rr.gen("x", separate_reasoning=True, **typed)
        return [piece async for piece in fork.text_iter("x")]

    stream = program.stream(transport=transport)
    *events, last = [event async for event in stream if event.kind != "prompt"]
    kinds = [event.kind for event in events]
    assert kinds == sorted(kinds)  # reasoning, then text
    told = {k: "".join(e.delta for e in events if e.kind == k) for k in ("reasoning", "text")}
    assert told == {"reasoning": "one two", "text": "34"}
    if not typed:
        assert kinds.count("reasoning") > 1
    assert all((e.var, e.branch) == ("x", (0,)) for e in events)
    assert last.kind == "result" and last.result is not None
    assert "".join(last.result.value) == "34"
    assert events[0] == StreamEvent(kind="reasoning", var="x", branch=(0,), delta=events[0].delta)


@pytest.mark.parametrize(
    "value", [1, "think", ("a",), ("", "b"), ("a", 3), (" a", "b"), ("a", "b" * 300)]
)
def test_wrong_delimiters(value: Any) -> None:
    with pytest.raises(rr.InvalidRequestError) as caught:
        rr.gen("x", separate_reasoning=value)
    assert caught.value.param == "separate_reasoning"


def test_a_wrapper_needs_a_generation() -> None:
    for nothing in ("text", rr.user("text"), "a" + rr.select("x", ["b"])):
        with pytest.raises(rr.InvalidRequestError, match="no gen"):
            rr.separate_reasoning(nothing)
