"""Programs: async functions over a state."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sized
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from radixray.actors.transport import Transport
from radixray.checks import check_int
from radixray.client.journal import Journal
from radixray.client.limit import LimitedTransport
from radixray.client.lookahead import BatchLookahead
from radixray.client.mapping import map_rows
from radixray.client.parameters import RUN_DEFAULTS, check_parameters, hint_for
from radixray.client.progress import BatchProgress
from radixray.client.results import ProgramResult, StreamEvent
from radixray.client.retry import Retry
from radixray.client.run_context import RunContext
from radixray.client.snapshot import Snapshot
from radixray.client.state import State
from radixray.client.turns import take_turn
from radixray.client.variables import settled
from radixray.errors import InvalidRequestError

if TYPE_CHECKING:
    from ray import ObjectRef


class Function:
    """A program; made by `function`.

    Keyword arguments that are no parameters of the program, such as ``temperature=0``, are
    defaults for all its generations.
    """

    def __init__(
        self,
        body: Callable[..., Awaitable[Any]],
        bound: Mapping[str, Any] | None = None,
        remote_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.__name__ = getattr(body, "__name__", "program")
        self.__doc__ = body.__doc__
        self._body = body
        self._bound = dict(bound or {})
        self._remote_options = dict(remote_options or {})
        parameters = list(inspect.signature(body).parameters.values())[1:]
        self._parameters = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        self._open = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def __call__(self, state: State, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """The program as part of another, on that one's state.

        Raises:
            TypeError: `state` is none.
        """
        if not isinstance(state, State):
            raise TypeError(
                f"{self.__name__} is a program: `await {self.__name__}.run(...)` runs it; called, "
                f"it takes the state of another program first, not {state!r:.80}"
            )
        return self._body(state, *args, **kwargs)

    def bind(self, **kwargs: Any) -> Function:
        """The program with arguments and defaults filled in; those of a run win.

        Raises:
            InvalidRequestError: neither a parameter of the program nor of generations.
        """
        self.split(kwargs)
        return Function(self._body, self._bound | kwargs, self._remote_options)

    def options(self, *, num_cpus: float = 0.1, deployment: str | None = None) -> Function:
        """The program with settings for `remote`.

        Args:
            num_cpus: what its Ray task reserves, also while it waits. A program that awaits
                other programs' `remote` needs 0 here, or it may hold what they wait for.
            deployment: the name of the RadixRay deployment it attaches to; by default that of
                this process's runtime.
        """
        options = {"num_cpus": num_cpus, "deployment": deployment}
        return Function(self._body, self._bound, options)

    async def run(
        self, *args: Any, transport: Transport | None = None, **kwargs: Any
    ) -> ProgramResult:
        """Runs the program to its end.

        Args:
            args: the program's arguments, after the state.
            transport: the way to the engine; by default that of the current runtime.
            kwargs: further arguments, and defaults for generations.

        Raises:
            InvalidRequestError: a keyword that is neither.
            NotInitializedError: no transport, and no runtime.
            ProgramError: an operation failed and the program did not handle it.
            Exception: whatever the program raises.
        """
        return await self._run(args, kwargs, transport, None)

    async def resume(
        self, snapshot: Snapshot, *args: Any, transport: Transport | None = None, **kwargs: Any
    ) -> ProgramResult:
        """Runs the program on a state that goes on from a snapshot; its usage is counted, too.

        Whatever process and program the snapshot is from. The program finds its text and its
        variables, and what role was open. Arguments and errors as `run`.

        Raises:
            SnapshotError: it is of another model.
        """
        return await self._run(args, kwargs, transport, None, snapshot)

    async def stream(
        self, *args: Any, transport: Transport | None = None, **kwargs: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """Runs the program, and yields all text as it comes; the last event has the result.

        Closing the stream cancels the program. Arguments and errors as `run`.
        """
        events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        task = asyncio.create_task(self._run(args, kwargs, transport, events.put_nowait))
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield StreamEvent(kind="result", result=task.result())
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # raised above, unless the reader left before the end

    async def map(
        self,
        rows: Iterable[Any],
        *,
        concurrency: int = 64,
        ordered: bool = False,
        on_error: Literal["raise", "return"] = "raise",
        max_requests: int | None = None,
        retry: Retry | None = None,
        progress: bool = False,
        resume: str | Path | None = None,
        retry_failed: bool = True,
        transport: Transport | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[ProgramResult, None]:
        """Runs the program once a row, many at a time.

        Args:
            rows: each a dict of keyword arguments, a tuple of arguments, or one argument; taken
                as programs finish, so it may be endless.
            concurrency: most programs that run at once.
            ordered: yield in the order of the rows; else as they finish.
            on_error: ``return`` yields a failed program as a result with `error` set; ``raise``
                raises its error and cancels the others.
            max_requests: most requests under way, of all programs and their branches together;
                by default as many as the programs make.
            retry: when to run a failed program again; by default never.
            progress: show a bar on standard error.
            resume: a file that gets each row's result as it finishes (`radixray.client.journal`).
                Rows whose results are in it, from an earlier run with the same arguments, are not
                run again: their stored results are yielded.
            retry_failed: run rows again that failed in an earlier run; else yield their errors,
                or raise them.
            transport: as in `run`.
            kwargs: arguments for every row, which a row's own win over, and defaults for
                generations.

        Yields:
            Results with `index`, the row's place.

        Raises:
            InvalidRequestError: a wrong argument; with `resume`, a row or result that no file can
                hold (`radixray.client.saved_values`), or a file that is not a batch's.
            OSError: `resume` cannot be read or written.
        """
        if isinstance(rows, str | bytes | Mapping):
            raise InvalidRequestError(
                f"rows must be many, such as a list, not one: {rows!r:.80}", param="rows"
            )
        check_int("concurrency", concurrency, 1)
        if on_error not in ("raise", "return"):
            raise InvalidRequestError(
                f"on_error must be 'raise' or 'return', not {on_error!r}", param="on_error"
            )
        self.split(kwargs)
        if max_requests is not None:
            check_int("max_requests", max_requests, 1)
            transport = LimitedTransport(await _transport(transport), max_requests)
        total = len(rows) if isinstance(rows, Sized) else None
        at_once = min(concurrency, max_requests or concurrency)
        transport = lookahead = BatchLookahead(await _transport(transport), total, at_once)

        async def run(index: int, row: Any) -> ProgramResult:
            args, keywords = _arguments(row, kwargs)

            async def once() -> ProgramResult:
                return await self._run(args, keywords, transport, None)

            async def result() -> ProgramResult:
                return await (once() if retry is None else retry.run(once))

            if journal is None:
                return await result()
            key = journal.key(index, args, *self.split(keywords))
            return await journal.keep(key, result, retry_failed=retry_failed)

        journal = None
        if resume is not None:
            journal = await Journal.open(resume, (self.__name__, transport.info.name))
        bar = BatchProgress(self.__name__, total) if progress else None
        results = map_rows(run, rows, concurrency, ordered, on_error == "return")
        with journal or nullcontext(), bar or nullcontext(), lookahead:
            try:
                async for result in results:
                    if bar is not None:
                        bar.add(result)
                    yield result
            finally:
                await results.aclose()

    async def run_batch(
        self, rows: Iterable[Any], *, progress_bar: bool = False, **options: Any
    ) -> list[ProgramResult]:
        """Runs the program once a row; the results in the order of the rows.

        A failed program's result has `error` set, unless ``on_error="raise"``.

        Args:
            rows: as of `map`.
            progress_bar: show one on standard error.
            options: further arguments of `map`, and of the program.

        Raises:
            InvalidRequestError: a wrong argument.
        """
        how = {"on_error": "return", **options, "ordered": True, "progress": progress_bar}
        return [result async for result in self.map(rows, **how)]

    def remote(self, *args: Any, **kwargs: Any) -> ObjectRef[ProgramResult]:
        """Runs the program as a Ray task; `options` sets its CPUs and deployment.

        The task attaches to the deployment by name. Arguments as `run`, without `transport`.

        Raises:
            InvalidRequestError: a keyword that is no parameter.
            NotInitializedError: no deployment was named, and there is no runtime.
        """
        from radixray.client.remote import submit

        self.split(kwargs)
        return submit(self, args, kwargs, **self._remote_options)

    async def _run(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        transport: Transport | None,
        listener: Callable[[StreamEvent], None] | None,
        snapshot: Snapshot | None = None,
    ) -> ProgramResult:
        arguments, defaults = self.split(kwargs)
        await take_turn()
        run = RunContext(await _transport(transport), defaults, listener)
        state = State(run) if snapshot is None else snapshot.restore(run)
        return await self.complete(state, args, arguments)

    async def complete(
        self, state: State, args: tuple[Any, ...], arguments: Mapping[str, Any]
    ) -> ProgramResult:
        """Runs the program on a state whose run is its own, to the end; raises as `run`."""
        run = state._run
        try:
            value = await self._body(state, *args, **arguments)
            await run.drain()
        except BaseException:
            await run.close()
            raise
        finally:
            run.announcements.end()
        # What failed and was survived has no value to give.
        ready = {name: var for name, var in state._variables.items() if var.ready}
        return ProgramResult(
            value=settled(value),
            variables={name: settled(var.result) for name, var in ready.items()},
            usage=run.usage,
            _text=state.text(),
            _messages=state.messages(),
            _tokens=state.tokens(),
        )

    def split(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The program's own arguments, bound ones included, and its generations' defaults.

        Raises:
            InvalidRequestError: a keyword that is neither.
        """
        kwargs = self._bound | dict(kwargs)
        own = {
            name: value
            for name, value in kwargs.items()
            if name in self._parameters or (self._open and name not in RUN_DEFAULTS)
        }
        defaults = {name: value for name, value in kwargs.items() if name not in own}
        for name in defaults:
            if name not in RUN_DEFAULTS:
                known = ", ".join(sorted(self._parameters)) or "none"
                raise InvalidRequestError(
                    f"{self.__name__} has no parameter {name!r}{hint_for(name, self._parameters)} "
                    f"(its own: {known}; for all generations: {', '.join(sorted(RUN_DEFAULTS))})",
                    param=name,
                )
        check_parameters(defaults, constraints=False)
        return own, defaults


def _arguments(row: Any, common: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a row of a batch gives its program."""
    if isinstance(row, dict):
        return (), common | row
    return (row if isinstance(row, tuple) else (row,)), common


async def _transport(given: Transport | None) -> Transport:
    if given is not None:
        return given
    from radixray.client.runtime import current_transport

    return await current_transport()


def function(body: Callable[..., Awaitable[Any]]) -> Function:
    """Makes a program of an ``async def`` whose first parameter is the `State`.

    Raises:
        TypeError: not an ``async def``, or without a parameter for the state.
    """
    name = getattr(body, "__name__", repr(body))
    if not inspect.iscoroutinefunction(body):
        raise TypeError(f"{name} must be an `async def` to be a program")
    parameters = list(inspect.signature(body).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(f"{name} must take the state as its first parameter: async def {name}(s)")
    return Function(body)
