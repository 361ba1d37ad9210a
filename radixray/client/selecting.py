"""Choosing one of several texts: by their likelihood, or by a generation held to them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

from radixray.actors.transport import Transport
from radixray.client import ops
from radixray.client.chat import Transcript
from radixray.client.choice_methods import (
    greedy_choice,
    needs_unconditional,
    probabilities,
    scores_of,
)
from radixray.client.expressions import SelectExpression
from radixray.client.op_queue import OpQueue
from radixray.client.parameters import ResolvedParameters
from radixray.client.results import Choice
from radixray.client.together import together
from radixray.constraint import Constraint
from radixray.errors import OutputError, UnsupportedFeatureError
from radixray.protocol import SamplingParams, ScoreRequest, ScoreResult, Usage

_SPACE = (
    "select after a text that ends with a space: models seldom see words without the space before "
    "them, so all choices look unlikely; move it to the beginning of each choice"
)

_WARNED: dict[Any, Any] = {}
"""Where in programs that was said."""


async def select(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    asked: SelectExpression,
    cache_salt: str,
    timeout_s: float | None,
    seed: int | None,
) -> Choice:
    """Appends the choice taken; raises the transport's typed errors."""
    common = {"cache_salt": cache_salt, "timeout_s": timeout_s}
    if asked.mode == "mask":
        return await _by_mask(transport, transcript, queue, asked, common, seed)
    return await _by_score(transport, transcript, queue, asked, common, seed)


async def _by_score(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    asked: SelectExpression,
    common: dict[str, Any],
    seed: int | None,
) -> Choice:
    if asked.method == "unconditional_likelihood_normalized" and not transport.info.own_tokens:
        raise UnsupportedFeatureError(
            f"method {asked.method!r} scores tokens by themselves, and texts are all that can be "
            f"sent to this endpoint",
            param="method",
        )
    # Each choice is tokenised on its own after the same prompt tokens, so that all are scored on
    # exactly their own text.
    prompt_ids = transcript.prompt_ids()
    if transcript.content.text.endswith(" ") and not any(c[0].isspace() for c in asked.choices):
        file, line = queue.line or (__file__, 0)
        warnings.warn_explicit(_SPACE, UserWarning, file, line, registry=_WARNED)
    ids = [transport.tokenizer.encode(choice) for choice in asked.choices]
    request = ScoreRequest(
        request_id=ops.new_request(queue),
        prompt_ids=prompt_ids,
        choices=ids,
        **common,
        **transcript.request_images(),
    )
    result = await _score(transport, request)
    logprobs, usage = result.logprobs, result.usage
    unconditional: list[list[float]] | None = None
    if needs_unconditional(asked.method):
        unconditional, alone = await _unconditional(transport, queue, ids, common)
        usage += alone
    scores = scores_of(asked.method, logprobs, unconditional)
    chances = probabilities(scores, asked.temperature or 1.0)
    if asked.method == "greedy_token_selection":
        best = greedy_choice(logprobs)
    elif asked.temperature > 0:
        (best,) = random.Random(seed).choices(range(len(ids)), chances)
    else:
        best = max(range(len(ids)), key=scores.__getitem__)
    if asked.appends:
        transcript.add_output(prompt_ids, ids[best], asked.choices[best])
    return Choice(
        text=asked.choices[best],
        index=best,
        scores=scores,
        probabilities=chances,
        logprobs=logprobs,
        unconditional_logprobs=unconditional,
        usage=usage,
        request_id=request.request_id,
    )


async def _unconditional(
    transport: Transport, queue: OpQueue, ids: Sequence[list[int]], common: dict[str, Any]
) -> tuple[list[list[float]], Usage]:
    """The log-probabilities of the choices with nothing before them, 0 for each first token."""
    logprobs = [[0.0] for _ in ids]
    # Choices that begin alike are scored together; those of one token need no scoring.
    groups: dict[int, list[int]] = {}
    for index, choice in enumerate(ids):
        if len(choice) > 1:
            groups.setdefault(choice[0], []).append(index)
    requests = [
        ScoreRequest(
            request_id=ops.new_request(queue),
            prompt_ids=[first],
            choices=[ids[index][1:] for index in group],
            **common,
        )
        for first, group in groups.items()
    ]
    results = await together(_score(transport, request) for request in requests)
    for group, result in zip(groups.values(), results, strict=True):
        for index, row in zip(group, result.logprobs, strict=True):
            logprobs[index] += row
    return logprobs, sum((result.usage for result in results), Usage())


async def _score(transport: Transport, request: ScoreRequest) -> ScoreResult:
    request.validate(transport.info)
    return await transport.score(request)


async def _by_mask(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    asked: SelectExpression,
    common: dict[str, Any],
    seed: int | None,
) -> Choice:
    room = transport.info.max_sequence_tokens - len(transcript.prompt_ids())
    longest = max(len(choice.encode()) for choice in asked.choices)
    params = ResolvedParameters(
        # A token spells at least one byte, and the end may take one more.
        sampling=SamplingParams(
            max_tokens=max(1, min(room, longest + 1)), temperature=asked.temperature, seed=seed
        ),
        constraint=Constraint(choices=asked.choices),
        reading=None,
        n=1,
        request=common,
    )
    output = await ops.generate(transport, transcript, queue, params, None)
    if output.text not in asked.choices:
        raise OutputError(
            f"the context has no room for a choice: {output.text!r:.80} is cut off",
            text=output.text,
        )
    return Choice(
        text=output.text,
        index=asked.choices.index(output.text),
        usage=output.usage,
        request_id=output.request_id,
    )
