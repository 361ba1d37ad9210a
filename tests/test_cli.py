"""What the command line checks before it starts anything, and how it reports failures."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from radixray import cli
from radixray.config import DeploymentConfig, EngineConfig
from radixray.errors import DeploymentError, EngineDiedError, InvalidRequestError
from radixray.serve.address import check_ray
from radixray.serve.keys import KeyLimits, find_key


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What `serve` would start; nothing is."""
    calls: list[tuple] = []
    monkeypatch.setattr(cli, "_serve", lambda *args: calls.append(args))
    monkeypatch.delenv("RADIXRAY_API_KEY", raising=False)
    monkeypatch.delenv("RAY_SERVE_ENABLE_HA_PROXY", raising=False)
    return calls


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["radixray", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return code


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "version") == 0
    assert capsys.readouterr().out.strip() == version("radixray")


def test_import_is_light() -> None:
    code = (
        "import sys, radixray.cli; "
        "print([m for m in ('ray', 'torch', 'starlette', 'tokenizers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_options_become_the_configuration(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple]
) -> None:
    port = free_port()
    code = run(
        monkeypatch,
        "serve",
        "--port",
        port,
        "--model",
        "mine",
        "--model-actors",
        "2",
        "--dtype",
        "float32",
        "--api-key",
        "K",
        "--page-size",
        "16",
        "--max-total-tokens",
        "4096",
        "--context-length",
        "1024",
        "--chunked-prefill-size",
        "128",
        "--max-num-seqs",
        "4",
        "--cpu-threads",
        "1",
        "--address",
        "auto",
        "--name",
        "other",
    )
    assert code == 0
    engine = EngineConfig(
        model="mine",
        dtype="float32",
        page_size=16,
        max_total_tokens=4096,
        context_length=1024,
        chunked_prefill_size=128,
        max_num_seqs=4,
        cpu_threads=1,
    )
    config = DeploymentConfig(engine=engine, model_actors=2, name="other")
    [(found, host, at, http, *rest)] = started
    assert (found, host, at, rest) == (config, "127.0.0.1", int(port), ["auto", False, False])
    assert find_key(http.keys, b"K") is not None
    assert http.fair_slots == 16, "two for each sequence that runs"


def test_defaults_are_the_configuration_s(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple]
) -> None:
    assert run(monkeypatch, "serve", "--port", free_port()) == 0
    assert started[0][0] == DeploymentConfig()
    assert started[0][3].keys == ()
    assert started[0][4:] == (None, False, False)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--dtype", "float8"), ("--page-size", "0"), ("--model-actors", "-1"), ("--model", "")],
)
def test_bad_values_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[tuple],
    option: str,
    value: str,
) -> None:
    assert run(monkeypatch, "serve", option, value) == 1
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert option.removeprefix("--").replace("-", "_") in text
    assert started == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_open_host_needs_a_key(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[tuple],
    host: str,
) -> None:
    assert run(monkeypatch, "serve", "--host", host) == 1
    text = capsys.readouterr().err
    assert "--allow-unauthenticated" in text
    assert "RADIXRAY_API_KEY" in text
    assert started == []


def test_haproxy_mode_counts_as_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[tuple]
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    assert run(monkeypatch, "serve", "--port", free_port()) == 1
    assert "all interfaces" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["option", "environment", "unauthenticated"])
def test_open_host_with_consent(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple], how: str
) -> None:
    extra = {"option": ["--api-key", "K"], "unauthenticated": ["--allow-unauthenticated"]}
    if how == "environment":
        monkeypatch.setenv("RADIXRAY_API_KEY", "K")
    port = free_port()
    assert run(monkeypatch, "serve", "--host", "0.0.0.0", "--port", port, *extra.get(how, [])) == 0
    assert bool(started[0][3].keys) == (how != "unauthenticated")
    assert "RADIXRAY_API_KEY" not in os.environ, "Ray's processes must not inherit it"


def test_keys_and_limits(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple], tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys.alice]\nkey = "A"\nmax_concurrent = 2\n')
    monkeypatch.setenv("RADIXRAY_API_KEY", "K L")
    monkeypatch.chdir(tmp_path)
    options = [
        "--access-log",
        "log",
        "--api-key-file",
        str(file),
        "--requests-per-minute",
        "9",
        "--cors-origin",
        "http://a",
    ]
    assert run(monkeypatch, "serve", "--port", free_port(), *options) == 0
    http = started[0][3]
    assert [key.name for key in http.keys] == ["key-1", "key-2", "alice"]
    assert [find_key(http.keys, key).name for key in (b"K", b"L", b"A")] == [
        key.name for key in http.keys
    ]
    assert http.keys[0].limits == KeyLimits(requests_per_minute=9)
    assert http.keys[2].limits == KeyLimits(max_concurrent=2, requests_per_minute=9)
    assert http.cors_origins == ("http://a",)
    assert http.access_log == str(tmp_path / "log")


@pytest.mark.parametrize("mode", ["disabled", "", "token"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "example.org"])
def test_an_open_host_needs_rays_token(
    monkeypatch: pytest.MonkeyPatch, host: str, mode: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if mode == "token" or host in ("127.0.0.1", "localhost"):
        check_ray(host)
    else:
        with pytest.raises(InvalidRequestError, match="token") as caught:
            check_ray(host)
        assert caught.value.param == "host"


def test_port_in_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[tuple]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(monkeypatch, "serve", "--port", port) == 1
    text = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in text
    assert started == []


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (DeploymentError("no CPUs [2 of 0]"), 1),
        (EngineDiedError("died"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_while_starting(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    code: int,
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "_serve", fail)
    assert run(monkeypatch, "serve", "--port", free_port()) == code
    text = capsys.readouterr().err
    assert "Traceback" not in text
    if code == 1:
        assert text == f"error: {raised}\n"


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What the commands that change a deployment do to it; there is none."""
    calls: list[tuple] = []

    class Fake:
        config = DeploymentConfig(model_actors=2, engine=EngineConfig(page_size=8))

        def scale(self, count: int, *, grace_s: float) -> None:
            calls.append(("scale", count, grace_s))
            self.config = DeploymentConfig(model_actors=count)

        def reload(self, engine: EngineConfig, *, grace_s: float) -> None:
            if engine.model == "other":
                raise DeploymentError("another tokenizer", param="model")
            calls.append(("reload", engine, grace_s))

        def shutdown(self) -> None:
            calls.append(("left",))

    def attach(name: str, *, address: str | None) -> Fake:
        calls.append(("attach", name, address))
        return Fake()

    monkeypatch.setattr("radixray.actors.deployment.attach", attach)
    return calls


def test_scale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], attached: list[tuple]
) -> None:
    assert run(monkeypatch, "scale", "5", "--grace", "7", "--name", "mine") == 0
    assert attached == [("attach", "mine", None), ("scale", 5, 7.0), ("left",)]
    assert capsys.readouterr().out.strip() == "mine: 2 -> 5 model actors"


def test_reload(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], attached: list[tuple]
) -> None:
    assert run(monkeypatch, "reload") == 0
    assert run(monkeypatch, "reload", "--model", "/mine", "--address", "1.2.3.4:6379") == 0
    same, new = EngineConfig(page_size=8), EngineConfig(page_size=8, model="/mine")
    assert attached == [
        ("attach", "default", None),
        ("reload", same, 30.0),
        ("left",),
        ("attach", "default", "1.2.3.4:6379"),
        ("reload", new, 30.0),
        ("left",),
    ]
    assert run(monkeypatch, "reload", "--model", "other") == 1
    assert attached[-1] == ("left",)
    assert "another tokenizer (model)" in capsys.readouterr().err
