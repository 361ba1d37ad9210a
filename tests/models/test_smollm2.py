"""The embedded model, computed by us and by transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_driver import Driver

TEXT = """Paris is the capital of France. The Eiffel Tower was built from 1887 to 1889.
Once upon a time, there was a girl called Mia who could talk to birds. One morning she asked
def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
Dear Sir or Madam, I am writing to you because
The three laws of thermodynamics are as follows. First,""".splitlines()


@pytest.fixture(scope="module")
def prompts(smollm2: Any) -> list[list[int]]:
    """Six prompts of text, of 20 to 120 tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    texts = [" ".join([line] * (1 + 2 * (i % 3))) for i, line in enumerate(TEXT)]
    return [tokenizer.encode(text).ids for text in texts]


@pytest.fixture(scope="module")
def long_prompt(prompts: list[list[int]]) -> list[int]:
    tokens = [token for prompt in prompts for token in prompt]
    return (tokens * 10)[:1500]


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("length", [1, 2, 17, 64, 65, 300, 1500])
def test_last_logits(
    smollm2_float32: Driver, smollm2_reference: Any, long_prompt: list[int], length: int
) -> None:
    tokens = long_prompt[:length]
    got = smollm2_float32.logits(tokens, chunk=2048, rows="last")
    with torch.inference_mode():
        want = smollm2_reference(torch.tensor([tokens]), logits_to_keep=1).logits[0]
    assert (got - want).abs().max() < 1e-3


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_logits_do_not_depend_on_chunks(
    smollm2_float32: Driver, smollm2_reference: Any, long_prompt: list[int], chunk: int
) -> None:
    tokens = long_prompt[: 20 * chunk + 5 if chunk < 64 else 150]
    got = smollm2_float32.logits(tokens, chunk=chunk)
    assert (got - reference_logits(smollm2_reference, tokens)).abs().max() < 1e-3


@pytest.fixture(scope="module")
def reference_greedy(smollm2_reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates, 16 tokens each; the end of text does not stop it."""
    outputs = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        output = smollm2_reference.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            min_new_tokens=16,
            max_new_tokens=16,
            suppress_tokens=[2],
        )
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


def test_greedy_alone(
    smollm2_float32: Driver, prompts: list[list[int]], reference_greedy: list[list[int]]
) -> None:
    for prompt, want in list(zip(prompts, reference_greedy, strict=True))[:3]:
        assert smollm2_float32.greedy([prompt], 16) == [want]


def test_greedy_in_a_batch_of_sixteen(
    smollm2_float32: Driver, prompts: list[list[int]], reference_greedy: list[list[int]]
) -> None:
    others = [prompt[: 3 + 5 * i] for i, prompt in enumerate(prompts * 2)][:10]
    got = smollm2_float32.greedy(prompts + others, 16, chunks=(512, 1, 9, 64, 20), seed=3)
    assert got[: len(prompts)] == reference_greedy


def test_no_logits_wanted(smollm2_float32: Driver, prompts: list[list[int]]) -> None:
    logits = smollm2_float32.logits(prompts[0], rows="none")
    assert logits.shape == (0, 49152)
    assert logits.dtype == torch.float32


def test_bfloat16_is_close(
    smollm2_float32: Driver, smollm2_bfloat16: Driver, long_prompt: list[int]
) -> None:
    tokens = long_prompt[:200]
    want, got = smollm2_float32.logits(tokens), smollm2_bfloat16.logits(tokens)
    error = (got - want).norm(dim=-1) / want.norm(dim=-1)
    same = (got.argmax(-1) == want.argmax(-1)).float().mean()
    assert error.mean() < 0.04
    assert same > 0.9


def test_bfloat16_decode_is_as_close_as_prefill(
    smollm2_bfloat16: Driver, smollm2_float32: Driver, long_prompt: list[int]
) -> None:
    tokens = long_prompt[:60]
    want = smollm2_float32.logits(tokens)
    got = smollm2_bfloat16.logits(tokens, chunk=1)
    assert ((got - want).norm(dim=-1) / want.norm(dim=-1)).mean() < 0.04


def test_bfloat16_disagrees_no_more_than_transformers(
    smollm2: Any, smollm2_bfloat16: Driver, smollm2_reference: Any, long_prompt: list[int]
) -> None:
    """On the same text, against float32: where another token comes first, and how far off."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16).eval()
    other_first = [0, 0]
    errors = [0.0, 0.0]
    for start in (0, 400, 800):
        tokens = long_prompt[start : start + 300]
        want = reference_logits(smollm2_reference, tokens)
        for index, got in enumerate(
            (smollm2_bfloat16.logits(tokens), reference_logits(theirs, tokens).float())
        ):
            other_first[index] += int((got.argmax(-1) != want.argmax(-1)).sum())
            errors[index] += float(((got - want).norm(dim=-1) / want.norm(dim=-1)).mean())
    ours, transformers = other_first
    assert errors[0] <= errors[1]
    # Of 900 tokens a few are near ties, which any rounding decides: so many are chance.
    assert ours <= transformers + 5


def test_config(smollm2_float32: Driver) -> None:
    config = smollm2_float32.model.config
    assert config.eos_token_ids == (2,)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert (config.head_dim, config.hidden_size, config.vocab_size) == (64, 576, 49152)
    assert config.max_position_embeddings == 8192
    assert config.rope_theta == 100000.0
    assert config.tie_word_embeddings
