"""What a model actor does before it loads its model, and for whom it lives."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from radixray.actors.handles import actor_handle
from radixray.errors import DeploymentError
from radixray.protocol import TokenizerFiles

ANSWER_S = 10.0
LOOK_EVERY_S = 5.0

log = logging.getLogger("radixray")


def wait_for_turn(name: str, scheduler: Any) -> bool:
    """Waits as long as the scheduler actor says; whether this actor ran before, and died.

    An actor that dies of its start, again and again, would otherwise keep its machine busy with
    starting it.
    """
    again = bool(ray.get_runtime_context().was_current_actor_reconstructed)

    def ask() -> float:
        try:
            return ray.get(scheduler.starting.remote(name, again), timeout=ANSWER_S)
        except (RayError, GetTimeoutError) as error:
            log.warning("the scheduler actor cannot be asked when to start: %s", error)
            return 0.0

    # In a thread without an event loop: Ray warns of calls that hold one up, which this may.
    with ThreadPoolExecutor(1) as thread:
        pause_s = thread.submit(ask).result()
    if pause_s:
        log.warning("model actor %s died soon after its start; it waits %g s", name, pause_s)
        time.sleep(pause_s)
    return again


def check_tokenizer(model: str, before: str, files: TokenizerFiles) -> None:
    """Whether `model`, on this machine, has the tokenizer of the model `before` it.

    Raises:
        ModelNotFoundError: there is no such model here.
        DeploymentError: it has not.
    """
    from radixray.models.resolve import resolve_model
    from radixray.tokenizer.tokenizer import read_tokenizer_files

    if read_tokenizer_files(resolve_model(model)) != files:
        raise DeploymentError(
            f"{model!r} has another tokenizer or chat template than {before!r}, which programs "
            "and requests under way use",
            param="model",
        )


def end_with(scheduler: str, handle: Any, name: str) -> None:
    """Ends model actor `name`, this process, soon after its scheduler actor ends for good.

    For an actor that is not the child of the process that owns the deployment.

    Args:
        scheduler: name of the scheduler actor.
        handle: its handle; a later one of that name is another one.
    """

    def watch() -> None:
        while ray.is_initialized():
            time.sleep(LOOK_EVERY_S)
            try:
                living = actor_handle(scheduler)._actor_id == handle._actor_id
            except ValueError:
                living = False
            except Exception:  # Ray itself does not answer: that says nothing of the actor
                continue
            if not living:
                ray.kill(actor_handle(name))
                return

    threading.Thread(target=watch, name="radixray-lifeline", daemon=True).start()
