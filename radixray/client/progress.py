"""How far a batch is, for people to watch."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from radixray.client.results import ProgramResult
from radixray.protocol import Usage


class BatchProgress:
    """A bar on standard error: rows done, rows per second, how much of the prompts was cached."""

    def __init__(self, name: str, total: int | None, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console or Console(stderr=True),
        )
        self._task = self._bar.add_task(name, total=total, note="")
        self._usage = Usage()
        self._failed = 0

    def add(self, result: ProgramResult) -> None:
        """One more row is done."""
        self._usage += result.usage
        self._failed += result.error is not None
        self._bar.advance(self._task)
        self._bar.update(self._task, note=self.note())

    def note(self) -> str:
        """The numbers beside the bar."""
        task = self._bar.tasks[0]
        rate = task.completed / task.elapsed if task.elapsed else 0.0
        parts = [f"{rate:.1f} rows/s"]
        if self._usage.prompt:
            parts.append(f"{self._usage.cached / self._usage.prompt:.0%} cached")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)

    def __enter__(self) -> BatchProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
