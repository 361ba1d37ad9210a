from __future__ import annotations

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State


async def test_reading_before_it_is_ready(state: State) -> None:
    state += "a" + rr.gen("x")
    x = state["x"]
    assert not x.ready
    for read in (
        lambda: str(x),
        lambda: f"{x}",
        lambda: x == " ok",
        lambda: x.value,
        lambda: x.text,
        lambda: bool(x),
    ):
        with pytest.raises(rr.NotReadyError, match="'x'"):
            read()
    result = await x
    assert isinstance(result, rr.Gen)
    assert x.ready
    assert x == " ok"
    assert f"<{x:>4}>" == "<  ok>"
    assert (x.value, x.text, str(x), bool(x)) == (" ok", " ok", " ok", True)


async def test_as_a_dependency_across_states(state: State, transport: ScriptedTransport) -> None:
    transport.reply = lambda request: f" {len(transport.requests)}"
    state += "a" + rr.gen("x")
    a, b = state.fork(2)
    a += rr.gen("y")
    b += " then" + a["y"] + state["x"] + rr.gen("z")
    await b["z"]
    assert b.text().startswith(f"a{state['x']} then{a['y']}{state['x']}")


async def test_set_get_in(state: State) -> None:
    state.set("n", 3)
    state["m"] = [1]
    assert state["n"] == 3
    assert state["n"].ready
    assert await state["m"] == [1]
    assert "n" in state
    assert "q" not in state
    assert state.get("q") is None
    assert state.get("q", 1) == 1
    state += "n is " + state["n"]
    await state.sync()
    assert state.text() == "n is 3"
    with pytest.raises(KeyError, match="no variable 'q'; there are: n, m"):
        state["q"]


async def test_branches_do_not_share_set_values(state: State) -> None:
    state.set("list", [])
    a, b = state.fork(2)
    a["list"].value.append(1)
    assert b["list"] == []
    assert state["list"] == []
