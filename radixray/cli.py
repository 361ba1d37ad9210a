"""The command line: ``radixray serve``, ``scale``, ``reload``, ``chat``, and what is smaller.

Ray, torch and the rest are imported by the commands that need them, so that ``--help`` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape

from radixray.config import (
    DEFAULT_MODEL,
    DeploymentConfig,
    Dtype,
    EngineConfig,
    EvictionPolicy,
    LoadBalancingPolicy,
    SchedulePolicy,
)
from radixray.errors import RadixRayError
from radixray.serve.address import (
    check_exposure,
    check_port,
    check_ray,
    url_of,
    wait_until_ready,
)
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import KeyLimits, read_keys
from radixray.terminal import fsm, lifecycle

_KEY_VARIABLE = "RADIXRAY_API_KEY"

_DEFAULTS = EngineConfig()
_DEPLOYMENT = DeploymentConfig()
_HTTP_DEFAULTS = HttpConfig()

app = typer.Typer(
    help="RadixRay: run LLM programs on Ray.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(fsm.app, name="fsm")
app.command()(lifecycle.scale)
app.command()(lifecycle.reload)
# soft_wrap: one line stays one line in logs and pipes.
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def main() -> None:
    """The entry point of the ``radixray`` command; failures we know end it with one line."""
    try:
        app()
    except RadixRayError as error:
        param = f" [dim]({escape(error.param)})[/]" if error.param else ""
        err.print(f"[bold red]error:[/] {escape(error.message)}{param}")
        sys.exit(1)


@app.callback()
def _root() -> None:
    # Keeps typer from making a lone command the whole program.
    pass


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    print(installed("radixray"))


@app.command()
def explain(
    request_id: Annotated[str, typer.Argument(help="Of a request, or of an answer.")],
    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(envvar=_KEY_VARIABLE, show_envvar=True, help="If the server wants one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Tell why a request went where it went, and why it did or did not hit the cache."""
    from radixray.terminal.endpoint import Endpoint
    from radixray.terminal.explanation import print_explanation

    print_explanation(Endpoint(url, api_key).explain(request_id), out, as_json=as_json)


@app.command()
def serve(
    model: Annotated[
        str, typer.Option(help="Embedded name, local folder, or Hugging Face Hub id.")
    ] = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    model_actors: Annotated[int, typer.Option(help="Replicas of the model.")] = 1,
    dtype: Annotated[
        str, typer.Option(help="bfloat16 or float32: weights, activations, KV cache.")
    ] = _DEFAULTS.dtype,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=_KEY_VARIABLE,
            show_envvar=True,
            help="What clients must send as bearer token; repeat it for several. Here, the list of "
            "processes and Ray's dashboard show it: safer in the environment, or in a file.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="RADIXRAY_API_KEY_FILE",
            show_envvar=True,
            help="TOML with keys by name, and their limits (docs/serving.md).",
        ),
    ] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(help="Requests that an API key may have under way at once.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Requests that an API key may begin in a minute.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Tokens that an API key may use in a minute.")
    ] = None,
    allow_unauthenticated: Annotated[
        bool, typer.Option(help="Let other machines in without an API key.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose web pages may send requests; '*' is all; repeat it."),
    ] = None,
    access_log: Annotated[
        str | None,
        typer.Option(help="File for a line of JSON a request, without its text; '-' is stderr."),
    ] = None,
    body_timeout: Annotated[
        float, typer.Option(help="Seconds within which a request's body must have come.")
    ] = _HTTP_DEFAULTS.body_timeout_s,
    ingress_replicas: Annotated[int, typer.Option(min=1, help="Processes that answer HTTP.")] = 1,
    page_size: Annotated[int, typer.Option(help="Tokens a KV page holds.")] = _DEFAULTS.page_size,
    max_total_tokens: Annotated[
        int | None, typer.Option(help="Tokens the KV pool holds; by default fitted to memory.")
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Most tokens of one sequence; by default the model's.")
    ] = None,
    chunked_prefill_size: Annotated[
        int, typer.Option(help="Most tokens one step computes.")
    ] = _DEFAULTS.chunked_prefill_size,
    max_num_seqs: Annotated[
        int,
        typer.Option(
            "--max-num-seqs", "--max-running-requests", help="Most requests that run at once."
        ),
    ] = _DEFAULTS.max_num_seqs,
    max_queued_requests: Annotated[
        int, typer.Option(help="Most requests that wait; more are refused.")
    ] = _DEFAULTS.max_queued_requests,
    schedule_policy: Annotated[
        str, typer.Option(help="lpm, fcfs, dfs-weight, lof, random or priority.")
    ] = _DEFAULTS.schedule_policy,
    eviction_policy: Annotated[
        str, typer.Option(help="lru, lfu, fifo, mru, slru or priority.")
    ] = _DEFAULTS.eviction_policy,
    mem_fraction_static: Annotated[
        float | None, typer.Option(help="Part of the free memory for weights and KV pool.")
    ] = None,
    load_balancing_policy: Annotated[
        str,
        typer.Option(
            help="prefix, round_robin, least_loaded, power_of_two, consistent_hash or random."
        ),
    ] = _DEPLOYMENT.load_balancing_policy,
    tree_cache_threshold: Annotated[
        float, typer.Option(help="Part of a prompt below which a cached prefix does not count.")
    ] = _DEPLOYMENT.tree_cache_threshold,
    sticky_sessions: Annotated[
        bool, typer.Option(help="Requests of one x-session-id stay on one model actor.")
    ] = _DEPLOYMENT.sticky_sessions,
    prefix_cache: Annotated[
        bool, typer.Option(help="Whether requests share cached prefixes.")
    ] = _DEFAULTS.prefix_cache,
    overlap: Annotated[
        bool, typer.Option(help="Make text and masks while the model computes, not after it.")
    ] = _DEFAULTS.overlap,
    enable_fsm_debug: Annotated[
        bool, typer.Option("--enable-fsm-debug", help="Log how each constrained token came to be.")
    ] = _DEFAULTS.fsm_debug,
    cpu_threads: Annotated[
        int | None, typer.Option(help="Threads of the CPU kernels, for each model actor.")
    ] = None,
    num_gpus: Annotated[
        float, typer.Option(help="GPUs that Ray is to give each model actor.")
    ] = _DEFAULTS.num_gpus,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; by default a new one here.")
    ] = None,
    dashboard: Annotated[
        bool, typer.Option(help="Start Ray's dashboard with a new cluster (slower, bigger).")
    ] = False,
    name: Annotated[
        str, typer.Option(help="Of the deployment; several can share a Ray cluster.")
    ] = "default",
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API until interrupted."""
    config = DeploymentConfig(
        engine=EngineConfig(
            model=model,
            dtype=cast(Dtype, dtype),  # EngineConfig checks it
            page_size=page_size,
            max_total_tokens=max_total_tokens,
            context_length=context_length,
            chunked_prefill_size=chunked_prefill_size,
            max_num_seqs=max_num_seqs,
            max_queued_requests=max_queued_requests,
            schedule_policy=cast(SchedulePolicy, schedule_policy),
            eviction_policy=cast(EvictionPolicy, eviction_policy),
            mem_fraction_static=mem_fraction_static,
            prefix_cache=prefix_cache,
            cpu_threads=cpu_threads,
            num_gpus=num_gpus,
            overlap=overlap,
            fsm_debug=enable_fsm_debug,
        ),
        model_actors=model_actors,
        name=name,
        load_balancing_policy=cast(LoadBalancingPolicy, load_balancing_policy),
        tree_cache_threshold=tree_cache_threshold,
        sticky_sessions=sticky_sessions,
    )
    os.environ.pop(_KEY_VARIABLE, None)  # Ray's processes would inherit it
    limits = KeyLimits(
        max_concurrent=max_concurrent,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    http = HttpConfig(
        keys=read_keys(api_key or [], api_key_file, limits),
        anonymous=limits,
        # So many run, and the engines choose the next from as many that wait.
        fair_slots=max(1, 2 * max_num_seqs * model_actors // ingress_replicas),
        cors_origins=tuple(cors_origin or ()),
        access_log=_absolute(access_log),
        body_timeout_s=body_timeout,
        replicas=ingress_replicas,
    )
    check_exposure(host, authenticated=bool(http.keys) or allow_unauthenticated)
    if address is None:  # in a cluster that runs elsewhere, or already, the port is Serve's affair
        check_port(host, port)
    with _interruptible():
        _serve(config, host, port, http, address, dashboard, allow_unauthenticated)


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Which model; by default the server's first.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=_KEY_VARIABLE, show_envvar=True, help="If the server wants one."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
) -> None:
    """Chat in the terminal with a model that is served over an OpenAI-compatible API."""
    from radixray.terminal.chat import Chat
    from radixray.terminal.endpoint import Endpoint

    given = {"temperature": temperature, "max_completion_tokens": max_tokens}
    Chat(
        Endpoint(url, api_key),
        out,
        model=model,
        system=system,
        parameters={name: value for name, value in given.items() if value is not None},
    ).run()


def _serve(
    config: DeploymentConfig,
    host: str,
    port: int,
    http: HttpConfig,
    address: str | None,
    dashboard: bool,
    allow_unauthenticated: bool,
) -> None:
    """Start all, say so, wait to be interrupted; stop what was started, last first."""
    from radixray.actors.deployment import deploy
    from radixray.serve.access_log import AccessLog
    from radixray.serve.deploy import prepare_http, serve_http, stop_http

    if http.access_log is not None:
        AccessLog(http.access_log)  # fails sooner than the processes that write it
    prepare_http()
    with ExitStack() as started:
        started.callback(_leave_ray)
        out.print(f"loading {escape(config.engine.model)} ...")
        deployment = deploy(config, address=address, dashboard=dashboard, wait=False)
        _on_terminate()  # Ray has put its own in place
        started.callback(stop_http, config.name)
        # Stopped before HTTP is: that ends open streams with an error event, not in mid-air.
        started.callback(deployment.stop_actors)
        if not allow_unauthenticated:
            check_ray(host)
        # The model loads while this starts the processes of HTTP, which mostly wait.
        serve_http(config.name, host, port, http)
        deployment.wait_until_ready()
        url = url_of(host, port)
        wait_until_ready(url)
        out.print(
            f"[bold green]ready:[/] {escape(config.engine.model)} at [bold]{url}/v1[/] "
            f"({'API key required' if http.keys else 'no API key'}; Ctrl-C stops it)"
        )
        try:
            while True:
                signal.pause()
        except KeyboardInterrupt:
            out.print("stopping ...")


def _absolute(log: str | None) -> str | None:
    # The processes that write it have another working directory.
    return log if log in (None, "-") else str(Path(log).absolute())


def _leave_ray() -> None:
    import ray

    ray.shutdown()


@contextmanager
def _interruptible() -> Generator[None, None, None]:
    """SIGTERM is Ctrl-C; one that comes before all is up also ends in an orderly way."""
    _on_terminate()
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _on_terminate() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)


if __name__ == "__main__":
    main()
