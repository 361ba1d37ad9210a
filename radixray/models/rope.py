"""Rotary position embedding (Su et al., 2021, "RoFormer"): the angles; see `Ops.rotate`."""

from __future__ import annotations

import math

import torch

from radixray.models.config import Llama3RopeScaling, ModelConfig


class RotaryEmbedding:
    """Pairs (i, i + head_dim / 2) of queries and keys are rotated by position times frequency i.

    The tables cover `max_position_embeddings`; they are computed in float32 and kept in `dtype`,
    so that rotating needs no conversion.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        angles = torch.outer(
            torch.arange(config.max_position_embeddings, dtype=torch.float32),
            inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling),
        )
        self._cos = angles.cos().to(dtype)
        self._sin = angles.sin().to(dtype)

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines ``[T, 1, head_dim / 2]`` for int64 positions ``[T]``; once a step."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def inverse_frequencies(
    head_dim: int, theta: float, scaling: Llama3RopeScaling | None
) -> torch.Tensor:
    """Radians per position, float32 ``[head_dim / 2]``: ``theta ** (-2 i / head_dim)``.

    Llama 3 scaling (Llama 3.1 model card) leaves wavelengths that fit the original context
    several times, divides the frequency of those that do not fit it by `factor`, and blends
    linearly between.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / scaling.factor
