"""From a Job to its HTTP answer, whole or streamed, in the shape of its route."""

from __future__ import annotations

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.actors.transport import Generates
from radixray.protocol import Delta, GenerateRequest, Usage
from radixray.serve.disconnect import while_connected
from radixray.serve.generation import complete, follow, named_as_in, run_all
from radixray.serve.job import Job
from radixray.serve.openai_protocol import UsageBody
from radixray.serve.sse import Emit, EventStream, Framing


class Shape(Protocol):
    """How a route writes its answers."""

    def whole(self, outputs: list[Delta], usage: UsageBody) -> object:
        """The answer to a request that is not streamed, whose choices are `outputs`."""
        ...

    def pieces(self, index: int, delta: Delta, *, first: bool) -> list[msgspec.Struct]:
        """The chunks for `delta` of choice `index`; `first` of that choice or not."""
        ...

    def usage(self, usage: UsageBody) -> msgspec.Struct:
        """The chunk of usage at the end of a stream."""
        ...


async def answer(
    request: Request,
    transport: Generates,
    job: Job,
    shape: Shape,
    framing: Framing | None = None,
) -> Response:
    """Run `job` and answer in `shape`; it is aborted if the client goes away.

    Args:
        transport: as far as the sender may use it (`admit`).
        framing: of a stream, where it is not OpenAI's older one.

    Raises:
        ClientGoneError: it did.
        RadixRayError: the typed cause; for a stream it is raised where the response is sent.
    """
    if job.stream:
        return _stream(request, transport, job, shape, framing)
    works = run_all(complete(transport, sequence) for sequence in job.requests)
    with named_as_in(job.names):
        outputs = await while_connected(request.receive, works)
    usage = job.usage([output.usage or Usage() for output in outputs])
    request.state.usage = usage
    return json_response(shape.whole(outputs, usage))


def json_response(body: object, status: int = 200) -> Response:
    """`body` as a JSON response."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _stream(
    request: Request, transport: Generates, job: Job, shape: Shape, framing: Framing | None
) -> EventStream:
    async def work(emit: Emit) -> None:
        async def one(index: int, sequence: GenerateRequest) -> Usage:
            first = True

            async def on_delta(delta: Delta) -> None:
                nonlocal first
                was_first, first = first, False
                await emit(shape.pieces(index, delta, first=was_first))

            return await follow(transport, sequence, on_delta)

        with named_as_in(job.names):
            usages = await run_all(one(i, sequence) for i, sequence in enumerate(job.requests))
        request.state.usage = usage = job.usage(usages)
        if job.include_usage:
            await emit([shape.usage(usage)])

    return EventStream(work, framing)
