"""RadixRay: an asyncio actor runtime on Ray that runs LLM programs fast.

    import radixray as rr

    @rr.function
    async def answer(s, question):
        s += rr.user(question)
        with s.assistant():
            await s.gen("answer", max_tokens=64)

    async with rr.init():
        result = await answer.run("What is a radix tree?")
        print(result["answer"])

Importing this package loads neither torch nor ray: names are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixray import testing
    from radixray.answers import Usage
    from radixray.client.connect import connect, connect_openai
    from radixray.client.expressions import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_int,
        gen_string,
        select,
        separate_reasoning,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from radixray.client.forks import Forks
    from radixray.client.function import Function, function
    from radixray.client.images import image
    from radixray.client.results import Choice, Gen, ProgramResult
    from radixray.client.retry import Retry
    from radixray.client.runtime import Runtime, attach, init, shutdown
    from radixray.client.snapshot import Snapshot
    from radixray.client.state import State
    from radixray.errors import (
        AbortedError,
        ConstraintError,
        ContextLengthError,
        DeadlineExceededError,
        DeploymentError,
        EngineDiedError,
        EngineError,
        GrammarError,
        GrammarTooComplexError,
        InvalidRequestError,
        ModelNotFoundError,
        NotInitializedError,
        NotReadyError,
        NotRecordedError,
        OutputError,
        OverloadedError,
        ProgramError,
        RadixRayError,
        RateLimitError,
        SnapshotError,
        TemplateError,
        UnsupportedFeatureError,
        UnsupportedInputError,
        UnsupportedModelError,
    )

__version__ = "0.1.0"

_HOME = {
    "radixray.answers": ("Usage",),
    "radixray.client.connect": ("connect", "connect_openai"),
    "radixray.client.expressions": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "gen",
        "gen_int",
        "gen_string",
        "select",
        "separate_reasoning",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
    ),
    "radixray.client.forks": ("Forks",),
    "radixray.client.function": ("Function", "function"),
    "radixray.client.images": ("image",),
    "radixray.client.results": ("Choice", "Gen", "ProgramResult"),
    "radixray.client.retry": ("Retry",),
    "radixray.client.runtime": ("Runtime", "attach", "init", "shutdown"),
    "radixray.client.snapshot": ("Snapshot",),
    "radixray.client.state": ("State",),
    "radixray.errors": (
        "AbortedError",
        "ConstraintError",
        "ContextLengthError",
        "DeadlineExceededError",
        "DeploymentError",
        "EngineDiedError",
        "EngineError",
        "GrammarError",
        "GrammarTooComplexError",
        "InvalidRequestError",
        "ModelNotFoundError",
        "NotInitializedError",
        "NotReadyError",
        "NotRecordedError",
        "OutputError",
        "OverloadedError",
        "ProgramError",
        "RadixRayError",
        "RateLimitError",
        "SnapshotError",
        "TemplateError",
        "UnsupportedInputError",
        "UnsupportedFeatureError",
        "UnsupportedModelError",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AbortedError",
    "Choice",
    "ConstraintError",
    "ContextLengthError",
    "DeadlineExceededError",
    "DeploymentError",
    "EngineDiedError",
    "EngineError",
    "Forks",
    "Function",
    "Gen",
    "GrammarError",
    "GrammarTooComplexError",
    "InvalidRequestError",
    "ModelNotFoundError",
    "NotInitializedError",
    "NotReadyError",
    "NotRecordedError",
    "OutputError",
    "OverloadedError",
    "ProgramError",
    "ProgramResult",
    "RadixRayError",
    "RateLimitError",
    "Retry",
    "Runtime",
    "Snapshot",
    "SnapshotError",
    "State",
    "TemplateError",
    "UnsupportedFeatureError",
    "UnsupportedInputError",
    "UnsupportedModelError",
    "Usage",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "attach",
    "connect",
    "connect_openai",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "image",
    "init",
    "select",
    "separate_reasoning",
    "shutdown",
    "system",
    "system_begin",
    "system_end",
    "testing",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> Any:
    if name == "testing":  # a package of its own
        return importlib.import_module("radixray.testing")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
