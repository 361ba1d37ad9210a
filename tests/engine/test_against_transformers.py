"""Greedy tokens, logits and scores equal transformers', whatever cache and batch do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_driver import GREEDY, EngineDriver

from radixray.protocol import Completion, SamplingParams

STORY = (
    "The lighthouse keeper counted the ships that passed in the night, one by one, and wrote "
    "their names into a ledger bound in green cloth. Some names he knew; others he made up. "
)
PLAIN = [
    "a",
    "The",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4,",
    '{"name": "Ada", "born":',
    "Once upon a time",
    "Übergröße: 身長と体重 — наука 🚀 is",
    STORY,
    STORY * 3,
    STORY * 8,
    STORY * 16,
    STORY * 40,
    "Q: What is 2+2?\nA: 4\nQ: What is the colour of the sky?\nA:",
]
CHATS = [
    [("user", "Hello!")],
    [("system", "You answer in one word."), ("user", "Name a fruit.")],
    [("user", "Hi"), ("assistant", "Hello, how can I help?"), ("user", "Tell me about rivers.")],
    [("system", STORY), ("user", "Summarise.")],
    [("user", STORY * 5 + "What did the keeper write?")],
    [("user", "Write a haiku about radix trees.")],
]


@pytest.fixture(scope="module")
def prompts(hf_tokenizer: Any) -> list[list[int]]:
    plain = [hf_tokenizer(text)["input_ids"] for text in PLAIN]
    chats = [
        hf_tokenizer(
            hf_tokenizer.apply_chat_template(
                [{"role": role, "content": content} for role, content in chat],
                tokenize=False,
                add_generation_prompt=True,
            ),
            add_special_tokens=False,
        )["input_ids"]
        for chat in CHATS
    ]
    found = plain + chats
    assert len(found) == 20
    assert min(map(len, found)) == 1 and max(map(len, found)) >= 1500
    return found


@pytest.fixture(scope="module")
def expected(hf_model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy token ids of transformers' generate."""
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            out = hf_model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt)),
                max_new_tokens=GREEDY.max_tokens,
                do_sample=False,
            )
        found.append(out[0, len(prompt) :].tolist())
    return found


def ids(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def test_cold_then_warm_alone(make_engine: Any, prompts: Any, expected: Any) -> None:
    driver: EngineDriver = make_engine()
    cold = [driver.one(p, cache_salt=str(i)) for i, p in enumerate(prompts)]
    warm = [driver.one(p, cache_salt=str(i)) for i, p in enumerate(prompts)]
    assert ids(cold) == expected
    assert ids(warm) == expected
    assert all(c.usage.cached == 0 for c in cold)
    # All but the last prompt token, whose logits are needed.
    assert [w.usage.cached for w in warm] == [len(p) - 1 for p in prompts]


def test_in_a_batch_of_16_cold_and_warm(make_engine: Any, prompts: Any, expected: Any) -> None:
    driver: EngineDriver = make_engine(max_num_seqs=16)
    assert ids(driver.generate(prompts)) == expected
    again = driver.generate(prompts)
    assert ids(again) == expected
    assert all(c.usage.cached > 0 for c in again if c.usage.prompt > 1)


@pytest.mark.parametrize(
    ("page_size", "chunk"), [(1, 64), (16, 512), (64, 100)], ids=lambda v: str(v)
)
def test_pages_and_chunks_change_nothing(
    make_engine: Any, prompts: Any, expected: Any, page_size: int, chunk: int
) -> None:
    driver: EngineDriver = make_engine(page_size=page_size, chunked_prefill_size=chunk)
    for _ in range(2):
        assert ids(driver.generate(prompts)) == expected


def test_retraction_changes_nothing(make_engine: Any, prompts: Any, expected: Any) -> None:
    # Room for three of these at once, but not with their outputs.
    chosen = [i for i, p in enumerate(prompts) if len(p) < 200] * 2
    driver: EngineDriver = make_engine(pool_tokens=240)
    out = driver.generate([prompts[i] for i in chosen])
    assert ids(out) == [expected[i] for i in chosen]
    assert driver.engine.stats.retractions > 0


def test_scores_equal_log_softmax(make_engine: Any, hf_model: Any, hf_tokenizer: Any) -> None:
    prompt = hf_tokenizer("The capital of France is")["input_ids"]
    texts = [" Paris", " the city of light", " the city of love and light", " London", " the city"]
    choices = [hf_tokenizer(text)["input_ids"] for text in texts]
    driver: EngineDriver = make_engine()
    for _ in range(2):  # cold, then warm
        (delta,) = driver.score(prompt, choices)
        assert delta.choice_logprobs is not None
        for choice, got in zip(choices, delta.choice_logprobs, strict=True):
            with torch.inference_mode():
                logits = hf_model(torch.tensor([prompt + choice])).logits[0]
            logprobs = torch.log_softmax(logits.float(), dim=-1)
            want = [float(logprobs[len(prompt) - 1 + i, t]) for i, t in enumerate(choice)]
            assert got == pytest.approx(want, abs=1e-3)
    assert delta.usage is not None and delta.usage.cached == len(prompt) - 1


def test_generated_text_is_reused_in_the_next_turn(make_engine: Any, hf_tokenizer: Any) -> None:
    driver: EngineDriver = make_engine()
    prompt = hf_tokenizer(STORY)["input_ids"]
    first = driver.one(prompt)
    second = driver.one(prompt + first.token_ids + hf_tokenizer(" And then")["input_ids"])
    # The last sampled token was never computed.
    assert second.usage.cached == len(prompt) + len(first.token_ids) - 1


def test_logprobs_equal_transformers_cold_and_warm(
    make_engine: Any, hf_model: Any, hf_tokenizer: Any
) -> None:
    prompt = hf_tokenizer(STORY)["input_ids"]
    first = 9
    sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs_from=first)
    driver: EngineDriver = make_engine(chunked_prefill_size=16)
    driver.one(hf_tokenizer(STORY[:90])["input_ids"])  # another prompt that overlaps
    for _ in range(2):
        request = driver.request(prompt, sampling)
        driver.engine.add(request)
        deltas = driver.drain()[request.request_id]
        ids = [t for d in deltas for t in d.token_ids]
        with torch.inference_mode():
            logits = hf_model(torch.tensor([prompt + ids])).logits[0]
        want = torch.log_softmax(logits.float(), -1)
        got = deltas[0].prompt_logprobs
        assert got is not None and [t.token_id for t in got] == prompt[first:]
        output = [t for d in deltas for t in d.logprobs or []]
        assert [t.token_id for t in output] == ids
        for position, token in enumerate([*got, *output], start=first - 1):
            assert token.logprob == pytest.approx(float(want[position, token.token_id]), abs=1e-3)
            top = torch.topk(want[position], 3)
            assert [i for i, _ in token.top] == top.indices.tolist()
            assert [p for _, p in token.top] == pytest.approx(top.values.tolist(), abs=1e-3)
        # Only what comes before the first asked for is taken from the cache.
        usage = deltas[-1].usage
        assert usage is not None and usage.cached <= first - 1
    assert usage.cached == first - 1
