"""Reading a model's tensors, one at a time, from one or many safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from radixray.errors import UnsupportedModelError
from radixray.models.config import read_json

Shapes = Mapping[str, tuple[int, ...]]
"""Names and shapes of the tensors a network needs."""


class Weights:
    """The tensors of a model folder, read when asked for and converted to `dtype`.

    Nothing is kept: a caller that packs a weight and drops it holds one copy in memory.

    Raises:
        UnsupportedModelError: there are no safetensors files, or one is damaged.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder = folder
        self.dtype = dtype
        self._files: dict[str, Any] = {}
        for path in _shards(folder):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                message = f"cannot read {path}: {error}"
                raise UnsupportedModelError(message, param="model") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def check(self, expected: Shapes, ignored: frozenset[str]) -> None:
        """Compare the tensors there are with those a network needs.

        Args:
            expected: what must be there.
            ignored: endings of names of tensors that may be there and are not read.

        Raises:
            UnsupportedModelError: names the tensors that are missing, unexpected, or of another
                shape.
        """
        missing = [name for name in expected if name not in self._files]
        unexpected = [
            name
            for name in self._files
            if name not in expected and not name.endswith(tuple(ignored))
        ]
        reshaped = [
            f"{name} {self._shape(name)}, not {shape}"
            for name, shape in expected.items()
            if name in self._files and self._shape(name) != shape
        ]
        problems = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
        found = [f"{kind}: {_some(names)}" for kind, names in problems.items() if names]
        if found:
            raise UnsupportedModelError(
                f"the tensors in {self.folder} do not fit its config.json; {'; '.join(found)}",
                param="model",
            )

    def get(self, name: str) -> torch.Tensor:
        """One tensor, in `dtype`."""
        # A copy even of the same dtype: what safetensors returns is a view of the mapped file,
        # which would change, or fail to be read, with the file.
        return self._files[name].get_tensor(name).to(self.dtype, copy=True)

    def stack(self, *names: str) -> torch.Tensor:
        """Several matrices one below the other, without a second copy of all of them."""
        shapes = [self._shape(name) for name in names]
        merged = torch.empty(sum(shape[0] for shape in shapes), shapes[0][1], dtype=self.dtype)
        rows = merged.split([shape[0] for shape in shapes])
        for part, name in zip(rows, names, strict=True):
            part.copy_(self._files[name].get_tensor(name))
        return merged

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())


def _shards(folder: Path) -> list[Path]:
    """The files that hold tensors: those the index names, or all there are."""
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    if index:
        paths = [folder / name for name in sorted(set(index.values()))]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise UnsupportedModelError(f"no safetensors files in {folder}", param="model")
    return paths


def _some(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
