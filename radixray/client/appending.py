"""Appending to a state: what each expression does there, as operations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from radixray.client import ops, selecting
from radixray.client.deadline import before
from radixray.client.expressions import (
    Expression,
    GenExpression,
    RoleBoundary,
    RoleExpression,
    SelectExpression,
    Text,
)
from radixray.client.images import ImageExpression
from radixray.client.op_queue import Pending
from radixray.client.parameters import resolve, run_seed
from radixray.client.results import Choice, Gen
from radixray.client.text_feed import TextFeed
from radixray.client.variables import Var
from radixray.errors import InvalidRequestError
from radixray.images import no_images_error

if TYPE_CHECKING:
    from radixray.client.state import State

V = TypeVar("V")


def append(state: State, expression: Expression) -> None:
    """Queues what `expression` means.

    Raises:
        InvalidRequestError: a role inside a role.
    """
    for part in expression.parts():
        match part:
            case Text():
                state._queue.do("text", lambda text=part.text: state._transcript.add_text(text))
            case Var():
                state._queue.submit(f"the value of {part.name!r}", partial(_add_var, state, part))
            case ImageExpression():
                state._queue.submit("image", partial(_add_image, state, part))
            case GenExpression():
                generate(state, part)
            case SelectExpression():
                choose(state, part)
            case RoleExpression():
                with state._roles.within(part.role):
                    append(state, part.content)
            case RoleBoundary(role, begins):
                (state._roles.begin if begins else state._roles.end)(role)
            case _:
                raise InvalidRequestError(f"a state cannot append {part!r}")


def generate(state: State, part: GenExpression) -> Pending[Any]:
    """Queues a generation."""
    name = part.name or state._variables.free_name()
    params = resolve(part.params, state._run.defaults, state._branch)
    tell = state._run.listener_of(name, state._branch)

    def push(piece: str) -> None:
        state._text.push(piece)
        if tell is not None:
            tell(piece)

    feed = TextFeed(push, state._run.listener_of(name, state._branch, "reasoning"))

    async def run() -> Gen | list[Gen]:
        ask = (state._run.transport, state._transcript, state._queue, params, feed)
        async with before(params.deadline):
            if params.n == 1:
                results = [await ops.generate(*ask)]
            else:
                await commit(state, params.n)  # the samples share it
                results = await ops.samples(*ask)
        state._text.wrote(results[0].text)
        for result in results:
            state._count(result.usage)
        return results[0] if params.n == 1 else results

    pending = state._queue.submit(f"gen({name!r})", run)
    if part.params.get("list_append"):
        return _add_to_list(state, name, pending)
    return fill(state, name, pending, feed)


def choose(state: State, part: SelectExpression) -> Pending[Choice]:
    """Queues a selection."""
    name = part.name or state._variables.free_name()
    label = f"select({name!r})" if part.appends else "score"
    salt = state._run.cache_salt if part.cache_salt is None else part.cache_salt
    seed = run_seed(state._run.defaults, state._branch) if part.seed is None else part.seed

    async def run() -> Choice:
        async with before(state._run.defaults.get("deadline")):
            choice = await selecting.select(
                state._run.transport,
                state._transcript,
                state._queue,
                part,
                salt,
                state._run.timeout_s,
                seed,
            )
        state._count(choice.usage)
        if not part.appends:
            return choice
        state._text.wrote(choice.text)
        if (listener := state._run.listener_of(name, state._branch)) is not None:
            listener(choice.text)
        return choice

    pending = state._queue.submit(label, run)
    if not part.appends:
        return pending
    return (_add_to_list if part.list_append else fill)(state, name, pending)


def fill(state: State, name: str, pending: Pending[V], feed: TextFeed | None = None) -> Pending[V]:
    """`name` is the variable that gets the operation's result."""
    state._variables[name] = Var(name, state._queue, pending.future, feed=feed)
    return pending


def _add_to_list(state: State, name: str, pending: Pending[V]) -> Pending[V]:
    """Variable `name` is the list it was, and the operation's result."""
    earlier = state._variables.get(name)

    def longer() -> list[Any]:
        items = [] if earlier is None else earlier.result
        if not isinstance(items, list):
            raise InvalidRequestError(
                f"list_append: variable {name!r} is {items!r:.80}, no list", param="list_append"
            )
        return [*items, pending.future.result()]

    fill(state, name, state._queue.do(f"list_append to {name!r}", longer))
    return pending


async def commit(state: State, followers: int = 0) -> None:
    """Has the engine compute and keep what the state holds, for so many requests to come."""
    run = state._run
    # The commit is a request, too.
    announce = partial(run.announcements.requests, requests=1 + followers)
    async with before(run.defaults.get("deadline")):
        usage = await ops.commit(
            run.transport, state._transcript, state._queue, run.cache_salt, run.timeout_s, announce
        )
    state._count(usage)


async def _add_image(state: State, part: ImageExpression) -> None:
    info = state._run.transport.info
    if info.image_placeholder is None:
        raise no_images_error(info.name, "image")
    state._transcript.add_image(await part.load(), info.image_placeholder)


async def _add_var(state: State, var: Var) -> None:
    await var.outcome()
    state._transcript.add_text(var.text)
