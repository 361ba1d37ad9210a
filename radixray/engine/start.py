"""An engine in its thread, and the compiler of its constraints: what one model replica needs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from radixray.config import EngineConfig
from radixray.engine.build import build_engine
from radixray.engine.engine import Engine, StepOutput
from radixray.engine.thread import EngineThread
from radixray.fsm.bounded import BoundedCompiler
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.kernels.cpu.threads import default_threads


def start_engine(
    config: EngineConfig, neighbours: int, sink: Callable[[StepOutput], None]
) -> EngineThread:
    """Loads the model and starts the engine; raises as `build_engine`.

    `radixray.kernels.cpu.threads.set_waiting` must be called before this module is imported.

    Args:
        neighbours: engines on this machine, itself included, which share its cores.
        sink: as of `EngineThread`.
    """

    def build() -> Engine:
        torch.set_num_threads(config.cpu_threads or default_threads(neighbours))
        return build_engine(config)

    return EngineThread(build, sink)


def start_compiler(engine: EngineThread) -> BoundedCompiler:
    """The compiler for the engine's vocabulary; it warms up by itself."""
    compiler = BoundedCompiler(
        TokenVocabulary(
            engine.tokenizer.token_bytes,
            engine.info.eos_token_ids,
            vocab_size=engine.info.vocab_size,
        )
    )
    threading.Thread(target=compiler.warm_up, daemon=True).start()
    return compiler
