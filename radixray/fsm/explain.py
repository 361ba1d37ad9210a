"""Why a text meets a constraint or does not, in steps that people can read.

Answers "which text is forced here?" and "why was this token not allowed?".
"""

from __future__ import annotations

from itertools import groupby

import msgspec

from radixray.constraint import Constraint, TraceStep
from radixray.fsm.matcher import Matcher
from radixray.fsm.strings import byte_matcher
from radixray.fsm.utf8 import whole_characters
from radixray.fsm.vocabulary import TokenVocabulary

_LEADS = ((0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))


class Step(msgspec.Struct, frozen=True):
    """One character of a text, or what of it was allowed.

    Attributes:
        at: index of its first byte.
        text: the character; bytes as ``\\xNN``.
        state: of the automaton before it, or a running number.
        allowed: number of bytes that might have come.
        could_be: those, as `shown_bytes` gives them.
        forced: what had to come here, "" where there was a choice.
    """

    at: int
    text: str
    state: int
    allowed: int
    could_be: str
    forced: str


class Explanation(msgspec.Struct, frozen=True):
    """A text followed through a constraint.

    Attributes:
        kind: of the constraint.
        steps: as far as the text is allowed.
        verdict: ``member``, ``prefix`` (more must come) or ``refused``.
        why: one sentence.
        could_be: what might have come where the text ends or is refused.
        forced: what must come where the text ends, or had to come where it is refused.
    """

    kind: str
    steps: list[Step]
    verdict: str
    why: str
    could_be: str
    forced: str


def explain(constraint: Constraint, text: str) -> Explanation:
    """Follows `text` a character at a time.

    Raises:
        ConstraintError: the constraint cannot be compiled, or fails on the way.
    """
    matcher, data = byte_matcher(constraint), text.encode(errors="surrogatepass")
    steps: list[Step] = []
    at, viable = 0, matcher.viable(data)
    for char in text:
        spelling = char.encode(errors="surrogatepass")
        if at + len(spelling) > viable:
            break
        here = next_bytes(matcher)
        forced = matcher.forced()
        state = state_of(matcher)
        for byte in spelling:
            matcher.advance(byte)
        steps.append(
            Step(at, _shown(spelling), state, len(here), shown_bytes(here), _shown(forced))
        )
        at += len(spelling)
    rest = data[at:]
    good = rest[: viable - at]
    could_be = shown_bytes(next_bytes(matcher, good))
    forced = _shown(matcher.forced())
    if rest:
        verdict = "refused"
        wrong = _shown(rest[len(good) : len(good) + 1]) if good else _shown(_first(rest))
        why = f"{wrong} cannot come at byte {viable}"
        if not could_be:
            why += ": nothing can follow what comes before it"
    elif matcher.is_accepting():
        verdict = "member"
        why = "matches" + (", and more may follow" if could_be else ", and nothing can follow")
    else:
        verdict = "prefix"
        why = "matches so far, and more must follow"
    return Explanation(constraint.kind, steps, verdict, why, could_be, forced)


def why_not(matcher: Matcher, token_id: int, vocabulary: TokenVocabulary) -> str:
    """Why a token may not come next, in one sentence; or that it may."""
    if 0 <= token_id < vocabulary.vocab_size and matcher.mask()[token_id]:
        return f"token {token_id} is allowed"
    if matcher.is_finished():
        return f"token {token_id} cannot come: the output is complete"
    if token_id in vocabulary.eos_token_ids:
        could_be = shown_bytes(next_bytes(matcher))
        return (
            f"token {token_id} would end the output, which does not match yet: next can come "
            f"{could_be}"
        )
    spelling = vocabulary.bytes_of(token_id)
    if not spelling:
        return f"token {token_id} spells no text: no constraint allows it"
    viable = matcher.viable(spelling)
    if viable == len(spelling):
        return (
            f"token {token_id} ({_shown(spelling)}) could come, but the vocabulary has no tokens "
            "to go on from there"
        )
    good, wrong = spelling[:viable], spelling[viable : viable + 1]
    after = f"after its {_shown(good)}" if good else "here"
    could_be = shown_bytes(next_bytes(matcher, good))
    return (
        f"token {token_id} ({_shown(spelling)}) cannot come: {after} can follow "
        f"{could_be or 'nothing'}, not {_shown(wrong)}"
    )


def next_bytes(matcher: Matcher, after: bytes = b"") -> list[int]:
    """The bytes that can come next, or after some that can."""
    return [byte for byte in range(256) if matcher.viable(after + bytes((byte,))) == len(after) + 1]


def state_of(matcher: Matcher) -> int:
    """The number a trace would have for where the matcher is."""
    state = getattr(matcher, "_state", None)
    return -1 if state is None else state()


def shown_bytes(values: list[int]) -> str:
    """Bytes for people: ASCII by ranges, first bytes of longer characters by their number."""
    parts: list[str] = []
    for _, run in groupby(enumerate(v for v in values if v < 0x80), lambda pair: pair[1] - pair[0]):
        members = [value for _, value in run]
        low, high = _shown(bytes((members[0],))), _shown(bytes((members[-1],)))
        parts.append(low if len(members) == 1 else f"{low} {high}" if len(members) == 2
                     else f"{low}-{high}")  # fmt: skip
    for low, high, size in _LEADS:
        count = sum(low <= value <= high for value in values)
        if count:
            exact = " ".join(f"\\x{v:02x}" for v in values if low <= v <= high)
            parts.append(exact if count <= 3 else f"characters of {size} bytes")
    inner = [value for value in values if 0x80 <= value < 0xC2 or value > 0xF4]
    if inner:
        parts.append(f"\\x{inner[0]:02x}-\\x{inner[-1]:02x}" if len(inner) > 1
                     else f"\\x{inner[0]:02x}")  # fmt: skip
    return " ".join(parts)


def table_of(steps: list[TraceStep], vocabulary: TokenVocabulary) -> str:
    """A trace of tokens as lines of text."""
    rows = [("step", "state", "token", "text", "allowed", "first of them", "why")]
    for step in steps:
        first = " ".join(_shown(vocabulary.bytes_of(i)) or f"<{i}>" for i in step.first_allowed)
        text = _shown(vocabulary.bytes_of(step.token)) or "<eos>"
        rows.append(
            (str(step.step), str(step.state), str(step.token), text, str(step.allowed), first,
             step.why)
        )  # fmt: skip
    widths = [min(60, max(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _first(data: bytes) -> bytes:
    """The first character of UTF-8 `data`."""
    return next(data[:n] for n in range(1, 5) if n >= len(data) or data[n] & 0xC0 != 0x80)


def _shown(data: bytes) -> str:
    """Bytes as text that fits on a line: what is no character as ``\\xNN``, spaces visible."""
    whole = whole_characters(data)
    text = whole.decode(errors="backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    text += "".join(f"\\x{byte:02x}" for byte in data[len(whole) :])
    return repr(text) if text != text.strip() or (not text and data) else text
