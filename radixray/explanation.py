"""Why a request went where it went, and why it found in the cache what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from radixray.errors import InvalidRequestError


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model actor as the scheduler saw it when it placed a request.

    Attributes:
        actor: its name.
        matched: tokens of the prompt it was believed to hold.
        requests: placed there, and not finished.
        prefill_tokens: of their prompts, what it was believed to have to compute.
        up: whether it was believed to answer.
    """

    actor: str
    matched: int
    requests: int
    prefill_tokens: int
    up: bool


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prompt leaves the nearest of what was cached.

    Attributes:
        position: of the first token that differs.
        before: token ids that both have before it, the last few.
        prompt: how the prompt goes on, the first few token ids.
        cached: how what was cached goes on.
        before_text, prompt_text, cached_text: the same, where there was a tokenizer to read them.
    """

    position: int
    before: list[int] = []
    prompt: list[int] = []
    cached: list[int] = []
    before_text: str | None = None
    prompt_text: str | None = None
    cached_text: str | None = None


class PlacementNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler actor keeps of a placement.

    Attributes:
        at: when, in seconds since 1970.
        policy: by which it chose.
        actor: the chosen one.
        reason: as in `Placement`.
        session: of the request; empty where it had none.
        prompt_tokens: length of the prompt.
        predicted: of these, tokens that the chosen actor was believed to hold.
        found: tokens it did find there, as it said at the end; None before.
        candidates: those with the least work first, the chosen one always among them.
        left_out: candidates not shown.
        divergence: from what any actor held; None where all of the prompt was held, or nothing
            that begins alike goes on after it.
    """

    at: float
    policy: str
    actor: str
    reason: str
    session: str
    prompt_tokens: int
    predicted: int
    found: int | None
    candidates: list[Candidate]
    left_out: int = 0
    divergence: Divergence | None = None


class HitNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a model actor keeps of the first start of a request.

    Attributes:
        at: when, in seconds since 1970.
        prompt_tokens: tokens that had to be found or computed: the prompt, and what an actor that
            died had generated.
        cached: of these, tokens found in the cache.
        divergence: from what this actor had cached.
    """

    at: float
    prompt_tokens: int
    cached: int
    divergence: Divergence | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered of one request.

    Attributes:
        request_id: whose.
        actor: the model actor that ran it, or was to.
        placement: None where the scheduler actor was not asked, which is so with one model actor,
            or has forgotten.
        hit: None where the request has not started, or the model actor has forgotten or died.
        why: the same in sentences.
    """

    request_id: str
    actor: str
    placement: PlacementNote | None
    hit: HitNote | None
    why: list[str] = []


def explanation_of(
    request_id: str,
    actor: str,
    placement: PlacementNote | None,
    hit: HitNote | None,
    decode: Callable[[list[int]], str] | None = None,
) -> Explanation:
    """What is known, in words too.

    Args:
        decode: the text of token ids.

    Raises:
        InvalidRequestError: nothing is known; param ``request_id``.
    """
    if placement is None and hit is None:
        raise InvalidRequestError(
            f"nothing is known of request {request_id!r}: only some thousands of the latest are "
            "remembered, and of each from when it is placed or starts",
            param="request_id",
        )
    if decode is not None:
        placement, hit = _changed(placement, decode), _changed(hit, decode)
    why = _in_words(placement, hit, actor)
    return Explanation(request_id=request_id, actor=actor, placement=placement, hit=hit, why=why)


def without_content(explanation: Explanation) -> Explanation:
    """The same without tokens of prompts and cache, of which some may be another's."""
    placement, hit = _changed(explanation.placement), _changed(explanation.hit)
    if placement is not None:
        placement = msgspec.structs.replace(placement, session="")
    why = _in_words(placement, hit, explanation.actor)
    return msgspec.structs.replace(explanation, placement=placement, hit=hit, why=why)


NoteT = TypeVar("NoteT", PlacementNote | None, HitNote | None)


def _changed(note: NoteT, decode: Callable[[list[int]], str] | None = None) -> NoteT:
    """`note` with the text of its divergence, or without its tokens where nothing decodes them."""
    if note is None or (seen := note.divergence) is None:
        return note
    if decode is None:
        return msgspec.structs.replace(note, divergence=Divergence(position=seen.position))
    read = msgspec.structs.replace(
        seen,
        before_text=decode(seen.before),
        prompt_text=decode(seen.prompt),
        cached_text=decode(seen.cached),
    )
    return msgspec.structs.replace(note, divergence=read)


def _in_words(placement: PlacementNote | None, hit: HitNote | None, actor: str) -> list[str]:
    said: list[str] = []
    if placement is None:
        said.append(f"It ran on {actor}; no choice among model actors is remembered.")
    else:
        said.append(_choice(placement))
    if hit is not None:
        said.append(f"It found {hit.cached} of its {hit.prompt_tokens} tokens in the cache there.")
    elif placement is not None and placement.found is not None:
        said.append(f"It found {placement.found} tokens in the cache there.")
    else:
        said.append("What it found in the cache there is not known (yet).")
    found = hit.cached if hit is not None else None if placement is None else placement.found
    if placement is not None and found is not None:
        reusable = min(placement.predicted, placement.prompt_tokens - 1)
        if found < reusable:
            said.append(
                f"{reusable} were expected: the rest was evicted before it started, or was still "
                "to be computed by a request that did not get there."
            )
        elif found > placement.predicted:
            said.append(f"Only {placement.predicted} were expected: more was computed meanwhile.")
    for whose, note in (("this actor", hit), ("any actor", placement)):
        if note is not None and note.divergence is not None:
            said.append(_parting(note.divergence, whose))
            break
    else:
        if hit is not None and hit.cached == 0:
            said.append("Nothing cached began like it.")
    return said


def _choice(note: PlacementNote) -> str:
    chosen = next(each for each in note.candidates if each.actor == note.actor)
    best = max((each.matched for each in note.candidates if each.up), default=0)
    reasons = {
        "only": "it was the only one that could be reached",
        "session": "the last request of its session went there",
        "prefix": f"it held the longest prefix ({note.predicted} of {note.prompt_tokens} tokens) "
        "and was not so busy that computing it elsewhere would have been quicker",
        "load": "nothing that begins like it was cached, and it had the least to do"
        if best == 0
        else f"it had so much less to do than the holder of {best} tokens that computing them "
        "again was quicker",
    }
    why = reasons.get(note.reason, f"the policy {note.policy} chose it")
    return (
        f"It went to {note.actor} because {why}. That had {chosen.requests} requests with "
        f"{chosen.prefill_tokens} tokens to compute."
    )


def _parting(divergence: Divergence, whose: str) -> str:
    def shown(text: str | None, ids: list[int]) -> str:
        return repr(text) if text is not None else f"token ids {ids}"

    where = f"It differs from the nearest prefix that {whose} had cached at token "
    if not divergence.prompt:  # withheld
        return f"{where}{divergence.position}."
    return (
        f"{where}{divergence.position}: {shown(divergence.prompt_text, divergence.prompt)} instead "
        f"of {shown(divergence.cached_text, divergence.cached)}"
        + (
            f", after {shown(divergence.before_text, divergence.before)}."
            if divergence.before
            else "."
        )
    )
