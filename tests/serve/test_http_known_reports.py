"""Bugs that users of other HTTP servers reported, by project and number: each row has a test.

Streaming text:

    vllm 3574, sglang 11446: parts of a stop string are streamed
        tokenizer/test_stop.py::test_any_cut_gives_the_definition
    vllm 3574: the stream is not the answer
        serve/test_http_e2e.py::test_a_stream_over_forced_text_is_the_answer
    vmlx-swift 109: text after the stop string at the end
        engine/test_engine.py::test_stop_string_is_cut_and_named
    sglang 31598, dynamo 12630: characters of several tokens doubled or dropped
        tokenizer/test_detokenizer.py::test_cut_at_every_index
    smg 2203: the end passes the tools' parser by
        serve/test_http_tools.py::test_cut_within_a_block

OpenAI's shape:

    sglang 954, litellm 28735: the chunk of usage
        serve/test_http_shapes.py::test_chat_stream
    sglang 954: no usage unless asked for
        serve/test_http_shapes.py::test_completion_stream
    sglang 18335: the first delta's role is null
        serve/test_http_shapes.py::test_chat_stream
    sglang 30188, 39260, 5761: streamed top_logprobs are the first token's
        serve/test_http_logprobs.py::test_chat_stream_equals_the_whole
    sglang 5661, 7048, 6310, 4700: index and id of streamed calls
        serve/test_http_tools.py::test_streamed_calls
    vllm 10852: n choices are all the same
        serve/test_http_e2e.py::test_seeded_choices
    vllm 11953: a seed where none was given
        serve/test_http_shapes.py::test_without_seed_every_choice_draws_its_own
    tt-metal 53802: a seed gives the same in a batch, cold and warm
        engine/test_engine.py::test_seeded_sampling_depends_on_seed_and_position_only
    tt-metal 53802: and on another worker
        engine/test_go_on.py::test_real_model
    sglang 37845: parts of a system or assistant message
        serve/test_http_shapes.py::test_parts_equal_the_joined_string
    sglang 3579: messages of the assistant alone
        serve/test_http_known_reports.py::test_any_order_of_roles
    vllm 18783, 42619: a grammar that cannot go on
        engine/test_grammar_report.py::test_a_dead_end_says_so
    vllm 18780: a schema's output is cut off
        serve/test_http_e2e.py::test_how_a_constrained_answer_came_to_be
    a full queue is an error in a stream with status 200
        serve/test_http_errors.py::test_before_the_first_delta_is_a_status

Aborts:

    sglang 36475, 36552: the turn after a cut stream
        serve/test_http_e2e.py::test_the_turn_after_a_cut_stream_is_what_its_client_sends
    atom 1562: an answer that nobody waits for goes on
        serve/test_http_e2e.py::test_hanging_up_stops_the_generation
    ray 52533: one in a hundred cancelled calls runs on
        serve/test_conformance_e2e.py::test_random_disconnects
    sglang 18701: aborted after a retraction
        engine/test_pressure.py::test_retracting_and_aborting_for_long_keeps_nothing

Health:

    sglang 6624: well while the scheduler is dead
        serve/test_http_health.py::test_who_is_well
    sglang 22511: ill while busy
        serve/test_http_health.py::test_who_is_well
    vllm 39863, 36451: a process that is stopped
        serve/test_http_health.py::test_silence_is_death_after_a_while
    ray 61758: an engine that dies in mid-stream
        serve/test_replay_e2e.py::test_answers_outlive_model_actors
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import aiohttp

TESTS = Path(__file__).parents[1]


def test_every_row_has_its_test() -> None:
    rows = [line.split()[-1] for line in (__doc__ or "").splitlines() if "::" in line]
    assert len(rows) == 27
    for row in rows:
        file, _, name = row.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        functions = ast.AsyncFunctionDef | ast.FunctionDef
        assert name in {node.name for node in tree.body if isinstance(node, functions)}, row


async def test_any_order_of_roles(http: aiohttp.ClientSession) -> None:
    """Whatever the template makes of them, it is no fault of the server's."""
    for roles in itertools.product(("system", "user", "assistant", "tool"), repeat=3):
        for content in ("x", [{"type": "text", "text": "x"}], "", [], None):
            messages = [{"role": role, "content": content} for role in roles]
            body = {"model": "smollm2-135m", "messages": messages, "max_tokens": 1}
            async with http.post("/v1/chat/completions", json=body) as response:
                assert response.status == 200, (messages, await response.text())
