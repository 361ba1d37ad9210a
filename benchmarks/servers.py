"""Servers as child processes: started, watched, and stopped with all their descendants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import aiohttp

START_TIMEOUT_S = 600.0
"""A peer may compile before it answers."""

STOP_TIMEOUT_S = 20.0
MIN_REST_S = 5.0
"""A shorter time says nothing about what a server takes when idle."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ServerError(Exception):
    """A server that does not start, or dies."""


@dataclass
class Server:
    """A server that is started when first needed; or, with `url`, one that runs already.

    Attributes:
        command: may hold ``{port}``, which becomes a free one.
        url: where it answers, while it runs.
        model: the first model that it lists.
        start_s: how long it took until it was healthy.
        idle_cores: cores it took while others were measured, in each such time.
    """

    name: str
    command: str = ""
    url: str = ""
    model: str = ""
    start_s: float = 0.0
    idle_cores: list[float] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None
    _log: IO[bytes] | None = None
    _resting: tuple[float, float] | None = None

    @property
    def runs(self) -> bool:
        """Whether it has been started, or never had to be."""
        return bool(self.model)

    @property
    def pid(self) -> int:
        """Of the process that was started; leads the session of all its descendants.

        Raises:
            ServerError: none runs.
        """
        if self._process is None:
            raise ServerError(f"{self.name} does not run")
        return self._process.pid

    async def start(self) -> None:
        """Returns when it is healthy; at once if it is already.

        Raises:
            ServerError: it ended, or is not healthy within START_TIMEOUT_S.
        """
        if self.runs:
            return
        started = time.perf_counter()
        if self.command:
            port = _free_port()
            self.url = f"http://127.0.0.1:{port}"
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
            # A session of its own: Ctrl-C is ours alone, and its descendants can be found by it.
            self._process = await asyncio.create_subprocess_exec(
                *shlex.split(self.command.replace("{port}", str(port))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        async with aiohttp.ClientSession() as session:
            while not await _healthy(session, self.url):
                if self._process is not None and self._process.returncode is not None:
                    raise ServerError(f"{self.name} ended:\n{self._last_words()}")
                if time.perf_counter() - started > START_TIMEOUT_S:
                    raise ServerError(f"{self.name} does not answer:\n{self._last_words()}")
                await asyncio.sleep(0.1)
            self.start_s = time.perf_counter() - started
            async with session.get(f"{self.url}/v1/models") as response:
                self.model = (await response.json())["data"][0]["id"]

    async def stop(self) -> None:
        """Asks it to end, waits a while, then kills what is left of its session."""
        process, self._process = self._process, None
        if process is None:
            return
        self.model, self._resting = "", None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        for pid in pids_of_session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()
        if self._log is not None:
            self._log.close()

    def cpu_seconds(self) -> float:
        """CPU time of its processes so far; 0 for one we have not started."""
        if self._process is None:
            return 0.0
        return sum(map(_cpu_seconds, pids_of_session(self._process.pid)))

    def rest(self) -> None:
        """What it uses from now on, it uses idly."""
        if self._process is not None:
            self._resting = time.perf_counter(), self.cpu_seconds()

    def wake(self) -> None:
        """The idle time, if it had any, is over."""
        if self._resting is not None:
            since, used = self._resting
            self._resting = None
            seconds = time.perf_counter() - since
            if seconds > MIN_REST_S:
                self.idle_cores.append((self.cpu_seconds() - used) / seconds)

    def _last_words(self) -> str:
        if self._log is None:
            return f"nothing at {self.url}"
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - 2000))
        return self._log.read().decode(errors="replace")


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=10)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stat_of(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the third, the state, on; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def pids_of_session(leader: int) -> list[int]:
    """The processes whose session `leader` leads, or led."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    stats = {pid: stat_of(pid) for pid in pids}
    return [pid for pid, stat in stats.items() if stat and int(stat[3]) == leader]


def _cpu_seconds(pid: int) -> float:
    stat = stat_of(pid)
    return (int(stat[11]) + int(stat[12])) / TICKS_PER_S if stat else 0.0
