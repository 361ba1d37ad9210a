"""The real command with the embedded model, on a free port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

API_KEY = "e2e-secret"
START_WITHIN_S = 240


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int
    log: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def start_server(*options: str) -> Server:
    """The CLI with a model on a free port, once it says that it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "radixray.cli",
            "serve",
            "--port",
            str(port),
            "--dtype",
            "float32",
            "--max-total-tokens",
            "8192",
            "--max-num-seqs",
            "8",
            *options,
        ],
        env=env | {"RADIXRAY_API_KEY": API_KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    deadline, log = time.monotonic() + START_WITHIN_S, []
    os.set_blocking(process.stdout.fileno(), False)
    while time.monotonic() < deadline and process.poll() is None:
        line = process.stdout.readline()
        if not line:
            time.sleep(0.1)
            continue
        log.append(line)
        if line.startswith("ready:"):
            assert f"http://127.0.0.1:{port}/v1" in line
            return Server(process, port, log)
    stop(process)
    raise AssertionError("the server did not start:\n" + "".join(log))


def stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
