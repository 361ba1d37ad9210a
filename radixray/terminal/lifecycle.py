"""`radixray scale` and `radixray reload`: a deployment is changed while it serves."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from radixray.actors.deployment import Deployment

Name = Annotated[str, typer.Option(help="Of the deployment.")]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster it runs on; by default the one of this machine.")
]
Grace = Annotated[
    float, typer.Option(help="Seconds that requests have to finish before they go on elsewhere.")
]

out = Console(soft_wrap=True, highlight=False)


def scale(
    model_actors: Annotated[int, typer.Argument(help="Replicas of the model there should be.")],
    grace: Grace = 30.0,
    name: Name = "default",
    address: Address = None,
) -> None:
    """Start or end model actors of a running deployment; no request is lost."""
    with _attached(name, address) as deployment:
        before = deployment.config.model_actors
        deployment.scale(model_actors, grace_s=grace)
        out.print(f"{escape(name)}: {before} -> {deployment.config.model_actors} model actors")


def reload(
    model: Annotated[
        str | None,
        typer.Option(help="Another one with the same tokenizer; by default the same, read again."),
    ] = None,
    grace: Grace = 30.0,
    name: Name = "default",
    address: Address = None,
) -> None:
    """Start all model actors anew, one after another; no request is lost."""
    with _attached(name, address) as deployment:
        engine = deployment.config.engine
        if model is not None:
            engine = msgspec.structs.replace(engine, model=model)
        deployment.reload(engine, grace_s=grace)
        count = deployment.config.model_actors
        out.print(f"{escape(name)}: {count} model actors run {escape(engine.model)}")


@contextmanager
def _attached(name: str, address: str | None) -> Generator[Deployment, None, None]:
    from radixray.actors.deployment import attach

    deployment = attach(name, address=address)
    try:
        yield deployment
    finally:
        deployment.shutdown()
