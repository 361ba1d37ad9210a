"""Programs called by programs, as futures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixray.client.results import ProgramResult
from radixray.client.state import State
from radixray.client.variables import Var

if TYPE_CHECKING:
    from radixray.client.function import Function


def start_call(
    caller: State, program: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Var:
    """Starts `program` on a state of its own; its `ProgramResult` to come.

    Raises:
        InvalidRequestError: a keyword that is neither the program's nor a generation's.
    """
    arguments, defaults = program.split(kwargs)
    run = caller._run.nested(defaults)
    state = State(run, caller._branch)
    queue = caller._run.new_queue(caller._branch)
    caller._children.append(state)
    caller._calls.append(queue)

    async def complete() -> ProgramResult:
        return await program.complete(state, args, arguments)

    pending = queue.submit(f"call({program.__name__})", complete)
    return Var(program.__name__, queue, pending.future)
