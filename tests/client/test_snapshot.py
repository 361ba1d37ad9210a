"""States taken down as data, and gone on from."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.run_context import RunContext
from radixray.client.state import State
from radixray.protocol import GenerateRequest
from radixray.tokenizer.tokenizer import Tokenizer, read_tokenizer_files


def restored(state: State, raw: bytes | None = None) -> State:
    snapshot = rr.Snapshot.from_bytes(raw or state.snapshot().to_bytes())
    return snapshot.restore(RunContext(state._run.transport, state._run.defaults))


def same(a: State, b: State, *, read: str = "result") -> None:
    assert b.text() == a.text()
    assert b.tokens() == a.tokens()
    assert b.messages() == a.messages()
    assert b.usage == a.usage and b._run.usage == a.usage
    assert list(b._variables) == list(a._variables)
    assert all(getattr(b[name], read) == getattr(a[name], read) for name in a._variables)


def random_step(state: State, rng: random.Random, number: int) -> None:
    match rng.randrange(9):
        case 0 | 1:
            state += rng.choice(["Some words", " and more", "\n", " 日本", "<|im_start|>", ""])
        case 2 | 3:
            state += rr.gen(f"g{number}", max_tokens=rng.randint(1, 4))
        case 4:
            state += rr.select(f"c{number}", [" yes", " no"])
        case 5 if state._roles.open is None:
            state += rr.user(f"Question {number}") + rr.assistant(rr.gen(max_tokens=2))
        case 6:
            state.set(f"v{number}", [1, (2, "x"), {"a": None}])
        case 7 if state._roles.open is None:
            state += rr.user_begin() + f"Hm {number}"
        case _ if state._roles.open is not None:
            state += rr.user_end()
        case _:
            state += "."


@pytest.mark.parametrize("seed", range(20))
async def test_a_restored_state_goes_on_as_the_first(
    transport: ScriptedTransport, state: State, seed: int
) -> None:
    within = transport.tokenizer.encode("鱗")[:1]  # ends within a character
    assert transport.tokenizer.decode(within) == "\N{REPLACEMENT CHARACTER}"

    def reply(request: GenerateRequest) -> Any:
        choices = [" ok", "日本", within, within, " a b c"]
        return random.Random(str(request.prompt_ids)).choice(choices)

    transport.reply = reply
    rng = random.Random(seed)
    state += "Begin"
    for number in range(rng.randint(0, 8)):
        random_step(state, rng, number)
        if number == 5 and state._roles.open is None:
            async with state.fork(2) as forks:
                forks += rr.gen("branch", max_tokens=2)
    await state.sync()
    other = restored(state)
    same(state, other)
    prompts: list[Any] = []
    for each in (state, other):
        transport.requests.clear()
        for number in range(10, 16):
            random_step(each, random.Random(number + seed), number)
        await each.sync()
        prompts.append([(r.prompt_ids, getattr(r, "sampling", None)) for r in transport.requests])
    assert prompts[0] == prompts[1]
    same(state, other, read="value")


async def test_a_program_goes_on_in_the_middle_of_an_answer(transport: ScriptedTransport) -> None:
    kept: list[bytes] = []

    @rr.function
    async def first(s: rr.State) -> None:
        s += rr.system("Be brief.") + rr.user("Tell me.")
        with s.assistant():
            await s.gen("a", max_tokens=2)
            kept.append(s.snapshot().to_bytes())
            s += " And so on:"
            await s.gen("b")

    @rr.function
    async def rest(s: rr.State, word: str) -> str:
        assert s["a"] == " ok"
        s += word
        await s.gen("b")
        s += rr.assistant_end()
        return s["b"].text

    whole = await first.run(transport=transport, seed=3)
    then = transport.generations[-1]
    result = await rest.resume(
        rr.Snapshot.from_bytes(kept[0]), " And so on:", transport=transport, seed=3
    )
    now = transport.generations[-1]
    assert (now.prompt_ids, now.sampling) == (then.prompt_ids, then.sampling)
    assert (result.text(), result.tokens()) == (whole.text(), whole.tokens())
    assert result.messages() == whole.messages()
    assert result.usage == whole.usage
    assert result["a"] == whole["a"] and result["a"].token_ids == whole["a"].token_ids
    assert len(kept[0]) < 2000


async def test_a_branch_keeps_its_seed(transport: ScriptedTransport) -> None:
    kept: list[rr.Snapshot] = []

    @rr.function
    async def forking(s: rr.State) -> None:
        s += "Both of"
        branch = s.fork(2)[1]
        branch += " us"
        await branch.sync()
        kept.append(branch.snapshot())
        await branch.gen("x")

    @rr.function
    async def rest(s: rr.State) -> None:
        await s.gen("x")

    await forking.run(transport=transport, seed=5)
    then = transport.generations[-1]
    await rest.resume(kept[0], transport=transport, seed=5)
    now = transport.generations[-1]
    assert (now.prompt_ids, now.sampling) == (then.prompt_ids, then.sampling)


async def test_what_runs_is_awaited_first(transport: ScriptedTransport, state: State) -> None:
    state += "x" + rr.gen("a")
    with pytest.raises(rr.NotReadyError):
        state.snapshot()
    await state.sync()
    forks = state.fork(2)
    await state.sync()
    forks += rr.gen("b")
    with pytest.raises(rr.NotReadyError, match="branches"):
        state.snapshot()
    await forks.join()
    assert restored(state)["b"].value == [" ok", " ok"]
    with pytest.raises(rr.InvalidRequestError, match="var_scope"), state.var_scope("v"):
        state.snapshot()
    state.set("odd", object())
    with pytest.raises(rr.InvalidRequestError, match="odd"):
        state.snapshot()


async def test_failures_are_not_lost_in_it(transport: ScriptedTransport, state: State) -> None:
    def reply(request: GenerateRequest) -> Any:
        bad = "bad" in transport.prompt(request) and request.sampling.max_tokens != 0
        return rr.EngineError("broken") if bad else " ok"

    transport.reply = reply
    state += "x"
    branch = state.copy()
    branch += "bad" + rr.gen("a")
    while not branch._queue.idle:
        await branch._queue.drained()
    with pytest.raises(rr.ProgramError, match="broken"):  # nobody has seen it
        state.snapshot()
    same(state, restored(state))  # now somebody has
    state += "bad" + rr.gen("b")
    with pytest.raises(rr.ProgramError, match="broken"):
        await state.sync()
    with pytest.raises(rr.ProgramError, match="broken"):
        state.snapshot()


async def test_what_does_not_fit_is_refused(
    transport: ScriptedTransport, state: State, model_folder: Any
) -> None:
    state += "x" + rr.gen("a")
    await state.sync()
    raw = state.snapshot().to_bytes()
    newer = msgspec.msgpack.encode(msgspec.msgpack.decode(raw) | {"version": 2, "more": 1})
    for wrong, why in ((newer, "version 2"), (b"x", "no snapshot"), (raw[:-1], "no snapshot")):
        with pytest.raises(rr.SnapshotError, match=why) as caught:
            rr.Snapshot.from_bytes(wrong)
        assert caught.value.param == "snapshot"
    transport.info = msgspec.structs.replace(transport.info, name="other")
    with pytest.raises(rr.SnapshotError, match="of model scripted; this is model other"):
        restored(state, raw)
    files = msgspec.structs.replace(read_tokenizer_files(model_folder), chat_template="{{ 1 }}")
    other = ScriptedTransport(Tokenizer(files))

    @rr.function
    async def rest(s: rr.State) -> None:
        pass

    with pytest.raises(rr.SnapshotError, match="another tokenizer"):
        await rest.resume(rr.Snapshot.from_bytes(raw), transport=other)
    assert issubclass(rr.SnapshotError, rr.InvalidRequestError)
