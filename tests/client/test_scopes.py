"""Roles that begin and end by expressions, and scopes that name what is said in them."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State


async def test_begin_and_end(state: State, oracle: Any) -> None:
    state += rr.system_begin() + "S" + rr.system_end()
    state += rr.user_begin()
    state += "q"
    state += rr.user_end()
    state += rr.assistant_begin() + "So: " + rr.gen("x") + rr.assistant_end()
    await state.sync()
    chat = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "So:  ok"},
    ]
    assert state.messages() == chat
    assert state.text() == oracle.apply_chat_template(chat, tokenize=False)


async def test_ends_and_beginnings_must_fit(state: State) -> None:
    with pytest.raises(rr.InvalidRequestError, match="role 'user' ends, but none is open"):
        state += rr.user_end()
    state += rr.user_begin()
    with pytest.raises(rr.InvalidRequestError, match="but role 'user' is open"):
        state += rr.system_end()
    with pytest.raises(rr.InvalidRequestError, match="begins inside"):
        state += rr.assistant_begin()
    with pytest.raises(rr.InvalidRequestError, match="begins inside"):
        rr.system("a" + rr.user_begin())
    state += rr.user_end()


async def test_empty_messages(state: State, oracle: Any) -> None:
    state += rr.user() + rr.assistant()
    assert state.messages() == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
    ]


async def test_a_branch_ends_a_role_it_was_forked_in(state: State) -> None:
    state += rr.user_begin() + "q"
    branch = state.fork(1)[0]
    branch += " more" + rr.user_end() + rr.assistant("a")
    state += rr.user_end()
    await branch.sync()
    assert branch.messages() == [
        {"role": "user", "content": "q more"},
        {"role": "assistant", "content": "a"},
    ]
    assert state.messages() == [{"role": "user", "content": "q"}]


async def test_var_scope(state: State, transport: ScriptedTransport) -> None:
    state += "a "
    with state.var_scope("outer"):
        state += "b"
        with state.var_scope("inner"):
            state += " c" + rr.gen("x")
        state += rr.select("y", [" d"])
    state += " e"
    assert not state["outer"].ready
    assert await state["outer"] == "b c ok d"
    assert state["inner"] == " c ok"
    await state.sync()
    assert state.text() == "a b c ok d e"


async def test_var_scope_over_messages(state: State) -> None:
    with state.var_scope("all"):
        state += rr.user("q. ") + rr.assistant("Well," + rr.gen("x"))
    state += "later"
    assert await state["all"] == "q. Well, ok"


async def test_var_scope_ends_after_an_exception(state: State) -> None:
    with pytest.raises(ZeroDivisionError), state.var_scope("x"):
        state += "a"
        raise ZeroDivisionError
    state += "b"
    assert state["x"] == "a"
    for name in (None, "", 3):
        with pytest.raises(rr.InvalidRequestError), state.var_scope(name):  # type: ignore[arg-type]
            pass


async def test_var_scope_in_a_branch(state: State) -> None:
    with state.var_scope("outer"):
        state += "a"
        async with state.fork(2) as forks:
            for i, branch in enumerate(forks):
                with branch.var_scope("x"):
                    branch += f" {i}" + rr.gen()
    assert state["x"] == [" 0 ok", " 1 ok"]
    # What a branch says is its own.
    assert state["outer"] == "a"
