"""Jumping over forced text changes nothing but the number of steps.

On a model of single bytes there is one way to spell a text, so every output must be the same with
and without. The model is `hash_model`'s: one wrong page, position or seed gives other tokens.
"""

from __future__ import annotations

import random
import re

import pytest
from engine_driver import EngineDriver, join
from hash_model import VOCAB, HashModel
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from radixray.cache.prefix_cache import PrefixCache
from radixray.engine.engine import Engine
from radixray.fsm.compiler import compile_constraint
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import (
    Completion,
    Constraint,
    Delta,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    TokenizerFiles,
)
from radixray.scheduler.plan import BatchLimits
from radixray.tokenizer.tokenizer import Tokenizer

EOS = 0
PATTERNS = [
    r'\{"name": "[a-z]{1,6}", "age": [0-9]{1,2}\}',
    r"(?:yes, of course|yes, but|never)",
    r"abc",
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T00:00:00Z",
    r"<item>[ab]{2}</item>(?:<item>[ab]{2}</item>)?",
    r"(?:größe|grüße|日本語)!",
    r"x*",
    r"a{30}[bc]",
]


def byte_tokenizer() -> Tokenizer:
    """Token n is byte n, but for EOS."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {byte: chr(byte) for byte in printable}
    chars |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    vocab = {char: byte for byte, char in chars.items() if byte != EOS}
    backend = Backend(models.BPE(vocab={"<eos>": EOS, **vocab}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(TokenizerFiles(tokenizer_json=backend.to_str().encode(), tokenizer_config=b""))


TOKENIZER = byte_tokenizer()
VOCABULARY = TokenVocabulary(TOKENIZER.token_bytes, {EOS}, vocab_size=VOCAB)


def make(pool_tokens: int, page_size: int, chunk: int) -> Engine:
    return Engine(
        HashModel(pool_tokens),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        PrefixCache(pool_tokens // page_size, page_size),
        TOKENIZER,
        ModelInfo(
            name="hash",
            context_length=200,
            pool_tokens=pool_tokens // page_size * page_size,
            vocab_size=VOCAB,
            eos_token_ids=(EOS,),
            dtype="float32",
            max_queued_requests=1000,
        ),
        BatchLimits(max_num_seqs=16, max_batch_tokens=chunk, page_size=page_size),
        check_invariants=True,
    )


def requests(seed: int, count: int) -> list[GenerateRequest]:
    rng = random.Random(seed)
    prefix = [rng.randrange(1, VOCAB) for _ in range(40)]
    made = []
    for number in range(count):
        logprobs = rng.choice([None, None, 0, 2])
        first = rng.choice([None, None, None, 1, 20])
        made.append(
            GenerateRequest(
                request_id=f"r{number}",
                prompt_ids=[*prefix[: rng.randint(1, 40)], rng.randrange(1, VOCAB)],
                constraint=Constraint(regex=rng.choice(PATTERNS)),
                sampling=SamplingParams(
                    max_tokens=rng.choice([1, 2, 3, 5, 9, 40, 60]),
                    temperature=rng.choice([0.0, 1.0]),
                    seed=rng.randint(1, 99),
                    frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
                    logprobs=logprobs,
                    prompt_logprobs_from=first,
                    stop=rng.choice([(), (), ("e",), (', "a', "00:0"), ("</item",)]),
                    stop_token_ids=rng.choice([(), (), (ord("a"),)]),
                ),
            )
        )
    return made


def run(engine: Engine, wanted: list[GenerateRequest], *, jump: bool, retract_every: int = 0):
    """Completions and Deltas by request."""
    compiled = {}
    for request in wanted:
        spec = request.constraint
        assert spec is not None
        if spec not in compiled:
            compiled[spec] = compile_constraint(spec, VOCABULARY)
        engine.add(
            GenerateRequest(
                request_id=request.request_id,
                prompt_ids=request.prompt_ids,
                sampling=request.sampling,
                constraint=spec,
                jump_forward=jump,
            ),
            compiled[spec].matcher(),
        )
    deltas: dict[str, list[Delta]] = {}
    steps = 0
    while engine.has_work:
        steps += 1
        if retract_every and steps % retract_every == 0 and len(engine.roster.running) > 1:
            engine.roster.retract(list(engine.roster.running.values())[-1])
        for delta in engine.step().deltas:
            deltas.setdefault(delta.request_id, []).append(delta)
        assert steps < 5000
    return {name: (join(found), found) for name, found in deltas.items()}


def flat(completion: Completion, deltas: list[Delta]) -> tuple:
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    prompt = [entry for delta in deltas for entry in delta.prompt_logprobs or ()]
    return (
        completion.token_ids,
        completion.text,
        completion.finish_reason,
        completion.stop_reason,
        logprobs,
        prompt,
    )


@pytest.mark.parametrize(
    ("pool_tokens", "page_size", "chunk", "retract_every"),
    [(8000, 1, 512, 0), (512, 4, 16, 0), (4000, 16, 7, 3), (4000, 1, 5, 2)],
)
def test_outputs_are_the_same_with_and_without(
    pool_tokens: int, page_size: int, chunk: int, retract_every: int
) -> None:
    wanted = requests(seed=chunk, count=120)
    plain = run(make(8000, 1, 512), wanted, jump=False)
    engine = make(pool_tokens, page_size, chunk)
    jumped = run(engine, wanted, jump=True, retract_every=retract_every)
    assert plain.keys() == jumped.keys()
    for request in wanted:
        before, after = plain[request.request_id], jumped[request.request_id]
        assert flat(*before) == flat(*after), request
        assert before[0].usage.jumped == 0
        assert before[0].usage.completion == after[0].usage.completion
        if request.sampling.logprobs is not None:
            for delta in after[1]:
                assert len(delta.logprobs or ()) == len(delta.token_ids)
        if after[0].finish_reason == "stop" and after[0].stop_reason in (None, EOS):
            assert request.constraint is not None and request.constraint.regex is not None
            assert re.fullmatch(request.constraint.regex, after[0].text)
    assert sum(completion.usage.jumped for completion, _ in jumped.values()) > 150
    stats = engine.snapshot_stats()
    assert stats.jumped_tokens == sum(done.usage.jumped for done, _ in jumped.values())
    assert stats.generated_tokens == sum(len(done.token_ids) for done, _ in jumped.values())
    assert stats.pages_free + stats.pages_tree == stats.pages_total


def test_forced_text_costs_no_steps() -> None:
    constraint = Constraint(regex=r'\{"status": "[ab]", "checked": true\}')
    matcher = compile_constraint(constraint, VOCABULARY).matcher()
    engine = make(4000, 1, 512)
    driver = EngineDriver(engine)
    request = driver.request([5, 6, 7], SamplingParams(max_tokens=80, temperature=0))
    engine.add(request, matcher)
    done = join(driver.drain()[request.request_id])
    assert re.fullmatch(r'\{"status": "[ab]", "checked": true\}', done.text)
    assert done.usage.jumped == len(done.token_ids) - 1
    # One forward pass: the prompt and what is forced at first. After the one choice there is none
    # left, and the rest is written down. Two steps more at most tell the last Delta.
    assert engine.stats.steps <= 3
    assert engine._model.tokens_computed == 3 + len('{"status": "')  # type: ignore[attr-defined]


def test_an_output_that_is_all_forced_needs_no_model() -> None:
    engine = make(4000, 1, 512)
    driver = EngineDriver(engine)
    matcher = compile_constraint(Constraint(regex="fixed text"), VOCABULARY).matcher()
    (done,) = driver.generate([[5, 6, 7]], matchers=[matcher])
    assert (done.text, done.finish_reason, done.usage.jumped) == ("fixed text", "stop", 10)
    assert engine._model.tokens_computed == 0  # type: ignore[attr-defined]


def test_an_end_before_the_log_probabilities_came_counts_no_jump() -> None:
    engine = make(4000, 1, 512)
    driver = EngineDriver(engine)
    matcher = compile_constraint(Constraint(regex="some text[ab]"), VOCABULARY).matcher()
    request = driver.request([5, 6, 7], SamplingParams(max_tokens=80, logprobs=1))
    engine.add(request, matcher)
    engine.abort(request.request_id)
    done = join(driver.drain()[request.request_id])
    assert (done.token_ids, done.finish_reason, done.usage.jumped) == ([], "abort", 0)


def test_forced_text_may_be_longer_than_the_context() -> None:
    text = "It is a long way. " * 300  # 5,400 tokens; 200 are the context
    compiled = compile_constraint(Constraint(regex=f"[ab]{re.escape(text)}"), VOCABULARY)
    for jump in (True, False):
        wanted = [
            GenerateRequest(
                request_id=f"{logprobs}",
                prompt_ids=[5],
                sampling=SamplingParams(temperature=0, logprobs=logprobs),
                jump_forward=jump,
            )
            for logprobs in (None, 1)
        ]
        engine = make(200, 1, 64)
        for request in wanted:
            engine.add(request, compiled.matcher())
        for deltas in EngineDriver(engine).drain().values():
            done = join(deltas)
            assert done.finish_reason == "length" and len(done.token_ids) == 199
            assert text.startswith(done.text[1:])
            assert done.usage.jumped > 190 if jump else done.usage.jumped == 0
        stats = engine.snapshot_stats()
        assert stats.pages_free + stats.pages_tree == stats.pages_total


def test_the_empty_text_is_an_output() -> None:
    for constraint in (
        Constraint(regex=""),
        Constraint(choices=("",)),
        Constraint(lark='start: ""'),
    ):
        matchers = [compile_constraint(constraint, VOCABULARY).matcher() for _ in range(2)]
        first, second = EngineDriver(make(400, 1, 64)).generate([[5], [6, 7]], matchers=matchers)
        assert (first.text, first.finish_reason, second.text) == ("", "stop", "")
