"""Going on from where a branch is."""

from __future__ import annotations

from radixray.client.op_queue import Pending
from radixray.client.state import State
from radixray.errors import InvalidRequestError


def adopt(state: State, branch: State) -> Pending[None]:
    """As `State.adopt`.

    Raises:
        InvalidRequestError: no branch of `state`, or a message was begun or ended in one of them.
    """
    if not any(branch is child for child in state._children) or branch._origin is None:
        raise InvalidRequestError("a state adopts only branches that it forked", param="branch")
    if branch._roles.open != state._roles.open:
        raise InvalidRequestError(
            f"the branch is in role {branch._roles.open!r}, this state in {state._roles.open!r}",
            param="branch",
        )
    settled = branch._queue.do("adopt", branch._snapshot)

    async def take_over() -> None:
        transcript = await branch._queue.outcome(settled.future)
        state._transcript.become(transcript, "".join(branch._said))
        state._text.cut(branch._origin_length)

    pending = state._queue.submit("adopt", take_over)
    state._variables |= branch._variables.own()
    return pending
