"""Bugs that users of other frontends reported, and wishes: each row has a test.

Public reports, each by its project and number, and where it is tested:

    sglang 29, 15448: no native async
        client/test_ordering.py::test_500_programs_need_no_threads
    sglang 523, 835: long options win
        client/test_select.py::test_each_method_has_its_winner
    sglang 1257: last prompt token scored
        client/test_known_reports.py::test_the_span_scored_is_the_choice
    sglang 2873: scores of other tokens
        client/test_select.py::test_many_at_once_are_scored_on_their_own_text
    sglang 388: near-equal scores
        client/test_known_reports.py::test_a_space_before_the_choices_warns
    sglang 388: scores follow the input
        actors/test_ray_language.py::test_scores_follow_the_prompt
    sglang 857: select without streaming
        client/test_known_reports.py::test_every_operation_everywhere
    sglang 5526, 470: the cause is hidden
        client/test_known_reports.py::test_a_failure_tells_text_operation_and_line
    sglang 435: a batch stuck at 98 %
        client/test_known_reports.py::test_an_engine_that_dies_on_one_row
    sglang 303, 2513: results as they come
        client/test_function.py::test_map_order
    sglang 239, 285: another chat template
        client/test_chat.py::test_equal_to_transformers
    guidance 1234, 900: a template guessed
        client/test_chat.py::test_no_template
    guidance 900: markers in variables
        client/test_known_reports.py::test_no_special_token_is_text
    sglang 1708, 246: only one image
        client/test_images.py::test_in_order_and_bytes_once
    sglang 1708: images across forks
        client/test_images.py::test_across_forks
    sglang 3520, 37833: cancelling
        actors/test_ray_programs.py::test_leaving_early_frees_everything
    sglang 6723: inside an async Ray actor
        actors/test_ray_language.py::test_inside_of_an_async_actor
    verl 2785: one or two requests run
        actors/test_ray_language.py::test_the_running_batch_reaches_its_cap
    sglang 902, 81: log-probabilities cost
        actors/test_ray_language.py::test_log_probabilities_keep_the_cache
    sglang 1335, 20041: a seed
        engine/test_engine.py::test_seeded_sampling_depends_on_seed_and_position_only
    sglang 1335: seeds of branches
        client/test_parameters.py::test_a_run_seed_differs_in_each_branch
    sglang 39, 53: typed results
        client/test_typed.py::test_pydantic
    sglang 157: tools beside generations
        client/test_known_reports.py::test_a_tool_runs_while_siblings_decode
    sglang 21, 2376: grammars
        client/test_known_reports.py::test_a_grammar_and_nothing_beside_it
    sglang 1248, 18941: a resident prefix
        actors/test_ray_programs.py::test_a_pinned_prefix_outlives_a_flood_until_its_time
    sglang 30755: cache hits unseen
        actors/test_ray_language.py::test_usage_is_what_the_engine_counted
    guidance 121, 374: async, but serial
        client/test_known_reports.py::test_programs_wait_together
    guidance 876: select is not gen
        client/test_select.py::test_mask
    lmql 233, 213: no batching, no healing
        client/test_known_reports.py::test_programs_wait_together
    sglang 25421: forks beside plain calls
        client/test_forks.py::test_commit_is_sent_before_any_branch
    sglang 6031: reasoning while streaming
        client/test_reasoning.py::test_streamed
    ray 51313, 62796: prefixes and replicas
        actors/test_ray_programs.py::test_branches_go_where_their_prefix_is

What running SGLang's frontend showed, beside these:

    later operations hang after a failure
        client/test_failures.py::test_nothing_hangs
    a failed branch vanishes
        client/test_forks.py::test_join_raises_each_failure_with_its_path
    its index is lost
        client/test_forks.py::test_join_returns_a_failure_at_its_index
    the commit is skipped by a race
        client/test_forks.py::test_commit_is_sent_before_any_branch
    a second join is stale
        client/test_forks.py::test_join_gathers_aligned_and_overwrites
    an iterator blocks the loop
        client/test_text_iter.py::test_waiting_leaves_the_loop_to_others
    a stream that fails just ends
        client/test_function.py::test_stream_errors_and_closing
    a failing body's error is lost
        client/test_failures.py::test_an_error_of_the_body_ends_what_runs
    a role stays open
        client/test_chat.py::test_a_role_is_closed_after_an_exception
    tracing has effects
        client/test_known_reports.py::test_a_body_runs_once_a_row
    variables are shared by branches
        client/test_variables.py::test_branches_do_not_share_set_values
    dtype=int with a stop string
        client/test_typed.py::test_a_stop_goes_with_dtype
    unnamed generations are lost
        client/test_ordering.py::test_names_defaults_and_usage
    the caller's dicts change
        client/test_known_reports.py::test_the_callers_rows_stay_as_they_are
    bind loses settings
        client/test_known_reports.py::test_the_callers_rows_stay_as_they_are
    select after one token
        client/test_select.py::test_after_a_prompt_of_one_token
    choices drop the other parameters
        client/test_known_reports.py::test_choices_keep_the_other_parameters
    one bad row ends a batch
        client/test_function.py::test_map_errors
    forks have no length
        client/test_forks.py::test_sequence
    async def gives nothing
        client/test_function.py::test_what_is_no_program
    an async body blocks its loop
        client/test_ordering.py::test_append_never_blocks
"""

from __future__ import annotations

import ast
import asyncio
import linecache
import pickle
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.state import State
from radixray.protocol import GenerateRequest

TESTS = Path(__file__).parents[1]


def test_every_row_has_its_test() -> None:
    rows = [line.split()[-1] for line in (__doc__ or "").splitlines() if "::" in line]
    assert len(rows) == 53
    for row in rows:
        file, _, name = row.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {getattr(node, "name", None) for node in tree.body}, row


@pytest.mark.parametrize("prompt", ["Answer:", "Answer: ", "(", "yes or no? ye", "é", "1"])
async def test_the_span_scored_is_the_choice(
    state: State, transport: ScriptedTransport, prompt: str
) -> None:
    """Wherever the tokenizer would merge the prompt's end with a choice, or with only one."""
    choices = ["Yes", " Yes", "s", "é", ":", "0"]
    state += prompt
    with warnings.catch_warnings(record=True):
        await state.select("x", choices)
    (request,) = transport.requests
    assert request.prompt_ids == transport.tokenizer.encode(prompt)
    assert [transport.tokenizer.decode(ids) for ids in request.choices] == choices


async def test_a_space_before_the_choices_warns(state: State, transport: ScriptedTransport) -> None:
    state += "It is "
    with pytest.warns(UserWarning, match="ends with a space"):
        await state.select("x", ["red", "blue"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await state.select("y", [" red", " blue"])
        state += " "
        await state.select("z", [" red", " blue"])


OPERATIONS = {
    "text": lambda s: None,
    "gen": lambda s: rr.gen("x"),
    "typed": lambda s: rr.gen("x", dtype=int),
    "samples": lambda s: rr.gen("x", n=2),
    "reasoning": lambda s: rr.gen("x", separate_reasoning=True),
    "list": lambda s: rr.gen("x", list_append=True),
    "select": lambda s: rr.select("x", ["4", "5"]),
    "mask": lambda s: rr.select("x", ["4", "5"], mode="mask"),
    "role": lambda s: rr.user("a") + rr.assistant(rr.gen("x")),
    "variable": lambda s: s.set("x", "4") or s["x"],
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("where", ["root", "branch", "scope", "call"])
async def test_every_operation_everywhere(
    transport: ScriptedTransport, operation: str, streamed: bool, where: str
) -> None:
    async def work(s: State) -> Any:
        s += "a b c"
        if (what := OPERATIONS[operation](s)) is not None:
            s += what
        await s.sync()
        return s["x"].value if "x" in s else None

    @rr.function
    async def program(s: State) -> Any:
        match where:
            case "branch":
                return await work(s.fork(2)[1])
            case "scope":
                async with s.fork(2) as forks:
                    return await work(forks[0])
            case "call":
                return (await s.call(rr.function(work))).value
        return await work(s)

    transport.reply = "4"
    if streamed:
        last = [event async for event in program.stream(transport=transport)][-1]
        result = last.result
        assert result is not None
    else:
        result = await program.run(transport=transport)
    wanted = {"text": None, "typed": 4, "samples": ["4", "4"], "list": ["4"]}
    assert result.value == wanted.get(operation, "4")


async def test_a_failure_tells_text_operation_and_line(
    state: State, transport: ScriptedTransport
) -> None:
    transport.reply = rr.EngineError("out of luck")
    state += "a" + rr.gen("answer")  # the line to be told
    with pytest.raises(rr.ProgramError) as caught:
        await state["answer"]
    error = pickle.loads(pickle.dumps(caught.value))
    assert "gen('answer')" in error.message and "out of luck" in error.message
    file, number = error.line
    assert Path(file) == Path(__file__)
    assert "# the line to be told" in linecache.getline(file, number)
    assert f"(test_known_reports.py:{number})" in error.message
    # Those behind it tell their own line.
    with pytest.raises(rr.ProgramError) as caught:
        with state.user():
            state += "b"
        await state.gen("later")
    assert caught.value.line is not None and caught.value.line[1] > number
    assert str(error.__cause__) == "out of luck"


async def test_a_line_in_a_branch_and_in_a_role(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: State) -> None:
        async with s.fork(2) as forks:
            forks += lambda i: "a b c" + rr.gen("x")
            with forks[1].assistant():
                forks[1] += rr.gen("y", dtype=int)  # fails

    transport.reply = " ok"
    with pytest.raises(ExceptionGroup) as caught:
        await program.run(transport=transport)
    error = caught.value.exceptions[0]
    assert isinstance(error, rr.ProgramError) and error.line is not None
    assert Path(error.line[0]) == Path(__file__)
    assert "# fails" in linecache.getline(*error.line)


@rr.function
async def ask(s: State, question: str) -> str:
    s += question + rr.gen("x")
    return str(await s["x"])


async def test_an_engine_that_dies_on_one_row(transport: ScriptedTransport) -> None:
    def reply(request: GenerateRequest) -> str | Exception:
        dies = transport.prompt(request).endswith("number 7")
        return rr.EngineDiedError("gone") if dies else " ok"

    transport.reply = reply
    async with asyncio.timeout(20):
        results = await ask.run_batch([f"number {n}" for n in range(40)], transport=transport)
    failed = [result.index for result in results if result.error is not None]
    assert failed == [7]
    error = results[7].error
    assert isinstance(error, rr.ProgramError) and isinstance(error.__cause__, rr.EngineDiedError)
    assert [r.value for r in results if r.index != 7] == [" ok"] * 39


async def test_no_special_token_is_text(
    state: State, transport: ScriptedTransport, oracle: Any
) -> None:
    special = oracle.convert_tokens_to_ids(["<|im_start|>", "<|endoftext|>"])
    encode = transport.tokenizer.encode
    transport.reply = [*encode("a"), *special, *encode("b")]
    state += rr.user("q") + rr.assistant(rr.gen("x", ignore_eos=True))
    assert (await state["x"]).text == "ab"
    await state.sync()
    assert state.messages()[-1]["content"] == "ab"


async def test_a_tool_runs_while_siblings_decode(transport: ScriptedTransport) -> None:
    """Neither can end without the other: the tool waits for the answer, which waits for it."""
    tool_runs, answered = asyncio.Event(), asyncio.Event()

    async def reply(request: GenerateRequest) -> str:
        if request.sampling.max_tokens:
            await tool_runs.wait()
        return " ok"

    async def tool() -> str:
        tool_runs.set()
        await answered.wait()
        return " from the tool"

    @rr.function
    async def program(s: State) -> None:
        s += "a b c"
        async with s.fork(2) as forks:
            forks[0] += rr.gen("x")
            found = asyncio.create_task(tool())
            await forks[0]["x"]
            answered.set()
            forks[1] += await found + rr.gen("x")

    transport.reply = reply
    async with asyncio.timeout(20):
        result = await program.run(transport=transport)
    assert result["x"] == [" ok", " ok"]


async def test_a_grammar_and_nothing_beside_it(state: State, transport: ScriptedTransport) -> None:
    ebnf = 'root ::= "a" root | "b"'
    state += "a"
    await state.gen("x", ebnf=ebnf)
    constraint = transport.generations[0].constraint
    assert constraint is not None and constraint.ebnf == ebnf
    for other in ({"regex": "a"}, {"choices": ["a"]}, {"json_schema": "{}"}, {"dtype": int}):
        with pytest.raises(rr.InvalidRequestError):
            rr.gen("x", ebnf=ebnf, **other)


async def test_programs_wait_together(transport: ScriptedTransport) -> None:
    """Ten programs, and ten operations of one, are all under way before any is answered."""
    gate = asyncio.Barrier(10)

    async def reply(request: GenerateRequest) -> str:
        if request.sampling.max_tokens:
            await gate.wait()
        return " ok"

    @rr.function
    async def forked(s: State) -> None:
        s += "a b c"
        async with s.fork(10) as forks:
            forks += rr.gen("x")

    transport.reply = reply
    async with asyncio.timeout(20):
        await asyncio.gather(*(ask.run(str(n), transport=transport) for n in range(10)))
        await forked.run(transport=transport)
        await ask.run_batch([str(n) for n in range(10)], transport=transport)


async def test_a_body_runs_once_a_row(transport: ScriptedTransport) -> None:
    calls: list[str] = []
    table = {"a": "first", "b": "second"}  # another key, a made-up one, is a KeyError

    @rr.function
    async def program(s: State, key: str) -> None:
        calls.append(key)
        s += f"A long beginning, the same for all, with {table[key]} in it" + rr.gen("x")

    await program.run_batch(["a", "b", "a"], transport=transport)
    assert sorted(calls) == ["a", "a", "b"]


async def test_the_callers_rows_stay_as_they_are(transport: ScriptedTransport) -> None:
    @rr.function
    async def program(s: State, question: str, style: str = "plain") -> str:
        s += question + style + rr.gen("x")
        return style

    bound = program.options(num_cpus=0.5).bind(style="brief", temperature=0.0)
    rows = [{"question": "a"}, {"question": "b", "style": "long"}]
    results = await bound.run_batch(rows, transport=transport, max_tokens=3)
    assert [result.value for result in results] == ["brief", "long"]
    assert rows == [{"question": "a"}, {"question": "b", "style": "long"}]
    sent = {(r.sampling.temperature, r.sampling.max_tokens) for r in transport.generations}
    assert sent == {(0.0, 3)}
    assert bound._remote_options["num_cpus"] == 0.5


async def test_choices_keep_the_other_parameters(
    state: State, transport: ScriptedTransport
) -> None:
    state += "a"
    await state.gen("x", choices=[" ok", " no"], top_p=0.5, seed=3, stop="!")
    sampling = transport.generations[0].sampling
    assert (sampling.top_p, sampling.seed, sampling.stop) == (0.5, 3, ("!",))
    with pytest.raises(rr.InvalidRequestError):
        rr.gen("x", choices=["a"], regex="a")


@pytest.fixture(autouse=True)
async def nothing_is_left(transport: ScriptedTransport) -> AsyncIterator[None]:
    yield
    assert transport.live == 0
