"""The Llama network (Touvron et al., 2023): pre-norm, rotary, grouped-query, SwiGLU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from radixray.kernels.cpu.linear import run_in_turn
from radixray.kernels.cpu.native_layers import LayerWeights
from radixray.kernels.cpu.select import CpuKernels, cpu_kernels
from radixray.kernels.kv_pool import KVPool
from radixray.models.batch import ForwardBatch
from radixray.models.config import ModelConfig
from radixray.models.rope import RotaryEmbedding
from radixray.models.weights import Shapes, Weights

_IGNORED = frozenset({"rotary_emb.inv_freq"})
"""Old exports carry this derived table; we compute it."""


class LlamaModel:
    """A Llama with its weights, run one `ForwardBatch` at a time.

    Attributes:
        config: its numbers.
        dtype: of weights, activations and the KV pool it is used with.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """Load the weights.

        Raises:
            UnsupportedModelError: the folder's tensors are not those of a Llama of this config.
        """
        ignored = _IGNORED | {"lm_head.weight"} if config.tie_word_embeddings else _IGNORED
        weights.check(expected_tensors(config), ignored)
        self.config = config
        self.dtype = weights.dtype
        kernels = cpu_kernels()
        self._embedding = weights.get("model.embed_tokens.weight")
        self._rope = RotaryEmbedding(config, weights.dtype)
        self._layers = [
            _Layer(config, index, weights, kernels) for index in range(config.num_layers)
        ]
        self._norm = weights.get("model.norm.weight")
        # Tied or not, the head is packed: lookup needs rows, the product another layout.
        self._head = kernels.linear(
            self._embedding if config.tie_word_embeddings else weights.get("lm_head.weight")
        )
        layers = [layer.weights for layer in self._layers]
        run_in_turn([*(linear for layer in layers for linear in layer.linears), self._head])
        self.kernels = kernels

    @property
    def kernels(self) -> CpuKernels:
        """What it computes with. Others can take their place; linear layers stay as they are."""
        return self._kernels

    @kernels.setter
    def kernels(self, kernels: CpuKernels) -> None:
        self._kernels = kernels
        layers = [layer.weights for layer in self._layers]
        self._all_layers = kernels.layers(layers, self._head, self.config.rms_norm_eps)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv_pool: KVPool) -> torch.Tensor:
        """Compute one step; writes the new tokens' keys and values to the pool.

        Args:
            batch: the step; positions must be below `config.max_position_embeddings`.
            kv_pool: of this model's shape and dtype.

        Returns:
            Logits, float32 ``[R, vocab_size]``, one row for each of `batch.logit_rows`.
        """
        metadata = self.kernels.attention.prepare(
            batch.query_lens, batch.num_decode, batch.context_slots
        )
        rope = self._rope.tables(batch.positions)
        x = F.embedding(batch.token_ids, self._embedding)
        if self._all_layers is not None:
            x, delta = self._all_layers.forward(
                x, rope, batch.out_slots, kv_pool, metadata, batch.logit_rows
            )
            return self._logits(x, delta)
        delta: torch.Tensor | None = None
        for layer in self._layers:
            # Of the last layer's output only the rows whose logits are wanted are needed.
            rows = batch.logit_rows if layer is self._layers[-1] else None
            x, delta = layer.forward(
                x, delta, rope, batch.out_slots, self.kernels, kv_pool, metadata, rows
            )
        return self._logits(x, delta)

    def _logits(self, x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        if delta is None or not len(x):
            return torch.empty(0, self.config.vocab_size, dtype=torch.float32)
        x = self.kernels.ops.add_rms_norm(x, delta, self._norm, self.config.rms_norm_eps)
        return self._head(x).float()


class _Layer:
    """One transformer layer; q, k and v are one product, and so are gate and up."""

    def __init__(
        self, config: ModelConfig, index: int, weights: Weights, kernels: CpuKernels
    ) -> None:
        self._index = index
        self._eps = config.rms_norm_eps
        self._head_dim = config.head_dim
        self._heads = (config.num_heads, config.num_kv_heads)
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        self.weights = LayerWeights(
            input_norm=weights.get(prefix + "input_layernorm.weight"),
            qkv=kernels.linear(
                weights.stack(*(f"{attention}{name}_proj.weight" for name in "qkv"))
            ),
            out=kernels.linear(weights.get(attention + "o_proj.weight")),
            mlp_norm=weights.get(prefix + "post_attention_layernorm.weight"),
            gate_up=kernels.linear(weights.stack(mlp + "gate_proj.weight", mlp + "up_proj.weight")),
            down=kernels.linear(weights.get(mlp + "down_proj.weight")),
        )

    def forward(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        rope: tuple[torch.Tensor, torch.Tensor],
        out_slots: torch.Tensor,
        kernels: CpuKernels,
        kv_pool: KVPool,
        metadata: Any,
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Take ``x + delta``, both ``[T, hidden_size]``, through the layer.

        `x` is overwritten.

        Args:
            rows: int64, those to go on with once all keys and values are written; None for all.

        Returns:
            Two parts of ``[rows, hidden_size]`` whose sum is the output, so that the next layer
            can add them together with its norm. The second is None where there are no rows.
        """
        ops, weights = kernels.ops, self.weights
        num_heads, num_kv_heads = self._heads
        if delta is None:
            x_norm = ops.rms_norm(x, weights.input_norm, self._eps)
        else:
            x_norm = ops.add_rms_norm(x, delta, weights.input_norm, self._eps)
        qkv = weights.qkv(x_norm).view(len(x), num_heads + 2 * num_kv_heads, self._head_dim)
        q, k = ops.rotate(qkv, num_heads + num_kv_heads, *rope).split(self._heads, dim=1)
        v = qkv[:, -num_kv_heads:]
        attended = kernels.attention.forward(self._index, q, k, v, out_slots, kv_pool, metadata)
        if rows is not None:
            x, attended = x[rows], attended[rows]
            if not len(rows):
                return x, None
        delta = weights.out(attended.flatten(1))
        x_norm = ops.add_rms_norm(x, delta, weights.mlp_norm, self._eps)
        return x, weights.down(ops.silu_multiply(weights.gate_up(x_norm)))


def expected_tensors(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor a Llama of this config has."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for index in range(config.num_layers):
        for name, shape in layer.items():
            shapes[f"model.layers.{index}.{name}.weight"] = shape
    return shapes
