"""Who gets which Delta: streams step by step, whole outputs at once."""

from __future__ import annotations

from radixray.actors.consumers import Consumers
from radixray.protocol import Delta, ErrorInfo, Handle, TokenLogprob, Usage, join_deltas


def deltas_of(request_id: str) -> list[Delta]:
    return [
        Delta(request_id=request_id, index=0, token_ids=[5], text="a", usage=Usage(prompt=3)),
        Delta(request_id=request_id, index=1, token_ids=[6], text="b"),
        Delta(
            request_id=request_id,
            index=2,
            token_ids=[7],
            text="c",
            finish_reason="stop",
            stop_reason=7,
            usage=Usage(prompt=3, completion=3),
        ),
    ]


async def test_a_whole_output_is_one_delta_and_a_streamed_one_is_not() -> None:
    consumers = Consumers()
    assert consumers.own("c", "whole", whole=True)
    assert consumers.own("c", "streamed")
    consumer = consumers.get("c")
    for whole, streamed in zip(deltas_of("whole")[:2], deltas_of("streamed"), strict=False):
        consumers.deliver([whole, streamed])
    batch = await consumer.next_batch()
    assert batch is not None
    assert [delta.request_id for delta in batch] == ["streamed", "streamed"]

    consumers.deliver([deltas_of("whole")[2], deltas_of("streamed")[2]])
    batch = await consumer.next_batch()
    assert batch is not None
    assert batch == [
        Delta(
            request_id="whole",
            token_ids=[5, 6, 7],
            text="abc",
            finish_reason="stop",
            stop_reason=7,
            usage=Usage(prompt=3, completion=3),
        ),
        deltas_of("streamed")[2],
    ]
    assert not consumers.is_owned("whole")


async def test_what_was_held_for_an_aborted_request_does_not_reach_one_of_the_same_id() -> None:
    consumers = Consumers()
    consumers.own("c", "r", whole=True)
    consumers.deliver(deltas_of("r")[:2])
    assert consumers.disown("r")
    consumers.own("c", "r", whole=True)
    consumers.deliver([Delta(request_id="r", token_ids=[9], text="z", finish_reason="length")])
    batch = await consumers.get("c").next_batch()
    assert batch is not None
    assert [(delta.text, delta.token_ids) for delta in batch] == [("z", [9])]


async def test_what_was_held_goes_with_its_consumer() -> None:
    consumers = Consumers()
    consumers.own("c", "r", whole=True)
    consumers.deliver(deltas_of("r")[:2])
    assert consumers.remove("c") == ["r"]
    consumers.own("d", "r")
    consumers.deliver(deltas_of("r")[:1])
    batch = await consumers.get("d").next_batch()
    assert batch == deltas_of("r")[:1]


def test_joined_deltas_keep_logprobs_and_the_error() -> None:
    logprobs = [TokenLogprob(token_id=t, logprob=-float(t)) for t in (1, 2, 3)]
    first = Delta(
        request_id="r", token_ids=[1], text="x", logprobs=logprobs[:1], prompt_logprobs=logprobs
    )
    last = Delta(
        request_id="r",
        index=1,
        token_ids=[2],
        logprobs=logprobs[1:2],
        finish_reason="error",
        error=ErrorInfo(type="EngineError", message="gone"),
    )
    joined = join_deltas([first, last])
    assert joined.logprobs == logprobs[:2]
    assert joined.prompt_logprobs == logprobs
    assert joined.error == last.error
    assert joined.finish_reason == "error"


def test_handles_find_their_owners_requests_while_they_run() -> None:
    consumers = Consumers()
    names = {"a": ("me", "r"), "b": ("me", "r_1"), "c": ("me", "rest"), "d": ("you", "r")}
    for request_id, (owner, rid) in names.items():
        assert consumers.own(
            "x" if request_id < "c" else "y", request_id, handle=Handle(owner, rid)
        )
    assert consumers.own("x", "nameless")
    assert consumers.found_by(Handle("me", "r")) == ["a", "b"]
    assert consumers.found_by(Handle("me", "r_1")) == ["b"]
    assert consumers.found_by(Handle("me", "")) == ["a", "b", "c"]
    assert consumers.found_by(Handle("you", "")) == ["d"]
    consumers.deliver([Delta(request_id="a", finish_reason="stop")])
    assert consumers.disown("b")
    assert consumers.found_by(Handle("me", "")) == ["c"]
    consumers.remove("y")
    assert consumers.found_by(Handle("me", "")) == consumers.found_by(Handle("you", "")) == []
