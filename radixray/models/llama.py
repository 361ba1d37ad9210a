"""The Llama network (Touvron et al., 2023): pre-norm, rotary, grouped-query, SwiGLU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from radixray.kernels.attention import AttentionBackend
from radixray.kernels.cpu.attention import CpuAttention
from radixray.kernels.cpu.linear import PackedLinear
from radixray.kernels.kv_pool import KVPool
from radixray.models.batch import ForwardBatch
from radixray.models.config import ModelConfig
from radixray.models.rope import RotaryEmbedding, rotate
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
        self.attention: AttentionBackend[Any] = CpuAttention()
        self._embedding = weights.get("model.embed_tokens.weight")
        self._rope = RotaryEmbedding(config, weights.dtype)
        self._layers = [_Layer(config, index, weights) for index in range(config.num_layers)]
        self._norm = weights.get("model.norm.weight")
        # Tied or not, the head is packed: lookup needs rows, the product needs oneDNN's layout.
        self._head = PackedLinear(
            self._embedding if config.tie_word_embeddings else weights.get("lm_head.weight")
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv_pool: KVPool) -> torch.Tensor:
        """Compute one step; writes the new tokens' keys and values to the pool.

        Args:
            batch: the step; positions must be below `config.max_position_embeddings`.
            kv_pool: of this model's shape and dtype.

        Returns:
            Logits, float32 ``[R, vocab_size]``, one row for each of `batch.logit_rows`.
        """
        metadata = self.attention.prepare(batch.query_lens, batch.num_decode, batch.context_slots)
        rope = self._rope.tables(batch.positions)
        x = F.embedding(batch.token_ids, self._embedding)
        for layer in self._layers:
            x = layer.forward(x, rope, batch.out_slots, self.attention, kv_pool, metadata)
        # The norm works row by row, so only rows whose logits are wanted go through it.
        x = _rms_norm(x[batch.logit_rows], self._norm, self.config.rms_norm_eps)
        if not len(x):
            return torch.empty(0, self.config.vocab_size, dtype=torch.float32)
        return self._head(x).float()


class _Layer:
    """One transformer layer; q, k and v are one product, and so are gate and up."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights) -> None:
        self._index = index
        self._eps = config.rms_norm_eps
        self._head_dim = config.head_dim
        self._heads = (config.num_heads, config.num_kv_heads)
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        self._input_norm = weights.get(prefix + "input_layernorm.weight")
        self._qkv = PackedLinear(
            weights.stack(*(f"{attention}{name}_proj.weight" for name in "qkv"))
        )
        self._out = PackedLinear(weights.get(attention + "o_proj.weight"))
        self._mlp_norm = weights.get(prefix + "post_attention_layernorm.weight")
        self._gate_up = PackedLinear(
            weights.stack(mlp + "gate_proj.weight", mlp + "up_proj.weight")
        )
        self._down = PackedLinear(weights.get(mlp + "down_proj.weight"))

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        out_slots: torch.Tensor,
        attention: AttentionBackend[Any],
        kv_pool: KVPool,
        metadata: Any,
    ) -> torch.Tensor:
        """``[T, hidden_size]`` to the same; `x` is overwritten."""
        num_heads, num_kv_heads = self._heads
        qkv = self._qkv(_rms_norm(x, self._input_norm, self._eps))
        qkv = qkv.view(len(x), num_heads + 2 * num_kv_heads, self._head_dim)
        qk, v = qkv[:, :-num_kv_heads], qkv[:, -num_kv_heads:]
        q, k = rotate(qk, *rope).split(self._heads, dim=1)
        attended = attention.forward(self._index, q, k, v, out_slots, kv_pool, metadata)
        x += self._out(attended.flatten(1))
        gate, up = self._gate_up(_rms_norm(x, self._mlp_norm, self._eps)).chunk(2, dim=1)
        x += self._down(F.silu(gate).mul_(up))
        return x


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


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
