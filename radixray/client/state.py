"""The state of a program: what it has said and generated so far."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from radixray.client import expressions
from radixray.client.appending import append, choose, commit, fill, generate
from radixray.client.chat import Transcript
from radixray.client.choice_methods import METHODS, Method
from radixray.client.content import Content
from radixray.client.expressions import Expression, as_expression
from radixray.client.forks import SCOPE_MODES, Forks
from radixray.client.op_queue import OpQueue, Pending
from radixray.client.results import Choice, Gen
from radixray.client.roles import Roles
from radixray.client.run_context import RunContext
from radixray.client.state_text import StateText
from radixray.client.variable_table import Variables
from radixray.client.variables import Var
from radixray.errors import InvalidRequestError, NotReadyError, ProgramError
from radixray.protocol import Usage

if TYPE_CHECKING:
    from radixray.client.function import Function
    from radixray.client.snapshot import Snapshot


class State:
    """A token sequence that grows by text and generations, and the variables they fill.

    Operations run in the order they are appended, in the background. Appending never waits.
    After one failed, those behind it fail at once with the same cause. A failure is raised where
    the program waits: by awaiting a result, `sync`, a fork's join, or at the program's end.
    """

    def __init__(
        self, run: RunContext, branch: tuple[int, ...] = (), role: str | None = None
    ) -> None:
        self._run = run
        self._branch = branch
        self._queue: OpQueue = run.new_queue(branch)
        tokenizer = run.transport.tokenizer
        self._transcript = Transcript(tokenizer.chat_template, Content(tokenizer))
        self._variables = Variables()
        self._children: list[State] = []
        self._calls: list[OpQueue] = []
        self._origin: int | None = None  # of a branch: messages that had ended at its fork
        self._said: list[str] = []  # since then
        self._origin_images = 0
        self._origin_length = 0  # of a branch: of the text it was forked with
        self._text = StateText(
            lambda: self._transcript.content, self._queue, run.prompt_listener_of(branch)
        )
        self._usage = Usage()
        self._roles = Roles(self._queue, lambda: self._transcript, role)

    def __iadd__(self, value: Expression | str) -> State:
        """Appends text, an expression, or their concatenation; never waits.

        Raises:
            InvalidRequestError: something else, or a role inside a role.
        """
        append(self, as_expression(value))
        return self

    def __add__(self, value: object) -> NoReturn:
        """Raises InvalidRequestError: a state grows in place; `fork` and `copy` make others."""
        raise InvalidRequestError("a state grows in place: `s += ...`, not `s + ...`")

    @overload
    def gen(self, name: str | None = None, *, n: Literal[1] = 1, **params: Any) -> Pending[Gen]: ...

    @overload
    def gen(self, name: str | None = None, *, n: int, **params: Any) -> Pending[list[Gen]]: ...

    def gen(self, name: str | None = None, **params: Any) -> Pending[Any]:
        """Generates; await it for the result. Parameters and errors as `radixray.gen`.

        Raises:
            ProgramError: when awaited: the generation failed.
        """
        return generate(self, expressions.gen(name, **params))

    def select(
        self,
        name: str | None,
        choices: Sequence[str],
        *,
        method: Method = METHODS[0],
        temperature: float = 0.0,
        mode: str = "score",
        seed: int | None = None,
        cache_salt: str | None = None,
        list_append: bool = False,
    ) -> Pending[Choice]:
        """Appends one of the choices; await it for the result. As `radixray.select`.

        Raises:
            ProgramError: when awaited: the selection failed.
        """
        return choose(
            self,
            expressions.select(
                name,
                choices,
                method=method,
                temperature=temperature,
                mode=mode,
                seed=seed,
                cache_salt=cache_salt,
                list_append=list_append,
            ),
        )

    def score(
        self,
        choices: Sequence[str],
        *,
        method: Method = METHODS[0],
        temperature: float = 0.0,
        cache_salt: str | None = None,
    ) -> Pending[Choice]:
        """As `select`, but appends nothing, and fills no variable: how likely each choice is.

        Raises:
            InvalidRequestError: as `radixray.select`.
            ProgramError: when awaited: the scoring failed.
        """
        asked = expressions.select(
            None, choices, method=method, temperature=temperature, cache_salt=cache_salt
        )
        return choose(self, replace(asked, appends=False))

    def system(self) -> AbstractContextManager[None]:
        """What is appended inside is one system message."""
        return self._roles.within("system")

    def user(self) -> AbstractContextManager[None]:
        """What is appended inside is one user message."""
        return self._roles.within("user")

    def assistant(self) -> AbstractContextManager[None]:
        """What is appended inside is one assistant message."""
        return self._roles.within("assistant")

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """What is appended and generated inside becomes variable `name`, as one text.

        The chat template's markup is no part of it. An exception ends it, too.

        Raises:
            InvalidRequestError: `name` is no string, or empty.
        """
        expressions.check_name(name or "")
        scope: list[str] = []
        self._queue.do("var_scope", lambda: self._transcript.open_scope(scope))
        try:
            yield
        finally:
            close = self._queue.do(
                f"var_scope({name!r})", lambda: self._transcript.close_scope(scope)
            )
            fill(self, name, close)

    def __getitem__(self, name: str) -> Var:
        """The variable; raises KeyError where nothing appended so far fills it."""
        return self._variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def set(self, name: str, value: Any) -> None:
        """Sets a variable; of another variable, it takes the result, as soon as it is there."""
        self._variables[name] = (
            value.alias(name) if isinstance(value, Var) else Var(name, self._queue, constant=value)
        )

    def get(self, name: str, default: Any = None) -> Any:
        """The variable, or `default` where there is none."""
        return self._variables.get(name, default)

    def text_iter(self, name: str | None = None) -> AsyncGenerator[str, None]:
        """A variable's text as it comes, as `Var.text_iter`, or without a name the whole text.

        The whole text is that of `text`, from its beginning: what was appended, and generated
        pieces as they come, until this state has nothing left to do. What is appended meanwhile
        comes, too. Branches have texts of their own: of a joined fork comes what the join
        appends, or what `adopt` takes over.

        Raises:
            KeyError: as ``s[name]``.
            ProgramError: an operation failed; after what had come.
        """
        return self._text.read() if name is None else self[name].text_iter()

    def fork(self, n: int = 1, *, join: str = "gather", return_exceptions: bool = False) -> Forks:
        """Branches that go on from here, each on its own.

        The text so far is computed once, before any branch runs. Use it plainly, or as
        ``async with s.fork(n) as forks``, which joins at the end; `Forks` says what happens where
        one fails.

        Args:
            n: how many.
            join: how leaving the scope joins: ``gather``, ``concat`` or ``first`` of `Forks.join`.
            return_exceptions: of that join.

        Raises:
            InvalidRequestError: `n` is not a number from 1, or `join` none of these.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidRequestError(f"n must be an integer from 1, not {n!r}", param="n")
        if join not in SCOPE_MODES:
            raise InvalidRequestError(
                f"join must be one of {', '.join(SCOPE_MODES)}, not {join!r:.80}", param="join"
            )
        label = f"fork({n})"
        # One branch shares its prefix with nobody who might come first.
        point = (
            self._queue.do(label, self._snapshot)
            if n == 1
            else self._queue.submit(label, partial(self._commit_and_snapshot, n))
        )
        branches = [self._new_branch(index, point) for index in range(n)]
        self._children += branches
        return Forks(self, branches, join, return_exceptions)

    def copy(self) -> State:
        """A branch that goes on from here: ``fork(1)[0]``; raises as `fork`."""
        return self.fork(1)[0]

    def adopt(self, branch: State) -> Pending[None]:
        """Goes on from where `branch` is: with its text, in place of this state's, and variables.

        The branch is one that this state forked. What this state appended since is dropped.

        Raises:
            InvalidRequestError: it is not, or another role is open in it.
            ProgramError: when awaited: an operation of either failed.
        """
        from radixray.client.adoption import adopt

        return adopt(self, branch)

    def call(self, program: Function, *args: Any, **kwargs: Any) -> Var:
        """Starts another program on a state of its own; await the result for its `ProgramResult`.

        Its `value` is what the program returns. Keywords that are no parameters of it are defaults
        for its generations, before those of this run. Append the result, or set a variable to it:
        ``s["x"] = s.call(tip, topic)``. If it fails and nobody sees that, this program fails.

        Raises:
            InvalidRequestError: a keyword that is neither.
        """
        from radixray.client.calls import start_call

        return start_call(self, program, args, kwargs)

    def commit(self) -> Pending[None]:
        """Has the engine compute and cache the text so far; await it to know that it has.

        Raises:
            ProgramError: when awaited: an operation failed.
        """
        return self._queue.submit("commit", partial(commit, self))

    async def sync(self) -> None:
        """Waits for all operations appended so far. Cancelling the wait leaves them running.

        Raises:
            ProgramError: one of them failed.
        """
        await self._queue.result(self._queue.do("sync", lambda: None).future)

    @property
    def usage(self) -> Usage:
        """The sum over the finished requests of this state and its branches."""
        return sum((state._usage for state in self._family()), Usage())

    @property
    def error(self) -> ProgramError | None:
        """What the first failed operation raised, or None."""
        return self._queue.error

    def text(self) -> str:
        """The whole text, template markup included; an open role's text as far as it was sent.

        Raises:
            NotReadyError: operations still run: `await s.sync()` first.
        """
        return self._settled().content.text

    def messages(self) -> list[dict[str, Any]]:
        """The chat's messages, an open one last; raises as `text`."""
        return self._settled().messages()

    def tokens(self) -> list[int]:
        """The token ids; raises as `text`."""
        return self._settled().content.prompt_ids()

    def snapshot(self) -> Snapshot:
        """What the state is, as data, for `Function.resume` in any process.

        Variables of operations that failed are left out. What the branches said is no part of it,
        what they cost is.

        Raises:
            NotReadyError: operations, branches or called programs still run: await them first.
            ProgramError: an operation of this state failed, or one of a branch, unseen.
            InvalidRequestError: a `var_scope` is open, or a variable holds what has no plain form
                (`radixray.client.saved_values`).
        """
        from radixray.client.snapshot import take

        return take(self)

    # Branches

    def _new_branch(self, index: int, point: Pending[Transcript]) -> State:
        branch = State(self._run, (*self._branch, index), self._roles.open)
        branch._origin = 0
        branch._variables = self._variables.of_branch()
        branch._queue.submit("fork", partial(branch._adopt, self._queue, point))
        return branch

    async def _adopt(self, parent: OpQueue, point: Pending[Transcript]) -> None:
        self._transcript = (await parent.outcome(point.future)).copy()
        self._origin = self._transcript.complete_messages
        self._origin_images = self._transcript.num_images
        self._origin_length = len(self._transcript.content.settled)
        self._text.start_at_end()
        self._transcript.open_scope(self._said)

    def _snapshot(self) -> Transcript:
        return self._transcript.copy()

    async def _commit_and_snapshot(self, branches: int) -> Transcript:
        await commit(self, branches)
        return self._snapshot()

    def _cancel(self) -> None:
        for state in self._family():
            for queue in (state._queue, *state._calls):
                queue.cancel()

    def _family(self) -> list[State]:
        """This state and all branches below it. A loop: forks may nest deeper than Python."""
        family: list[State] = [self]
        for state in family:
            family += state._children
        return family

    def _settled(self) -> Transcript:
        if not self._queue.idle:
            raise NotReadyError("operations of this state still run; `await s.sync()` first")
        return self._transcript

    def _count(self, usage: Usage) -> None:
        self._usage += usage
        self._run.count(usage)
