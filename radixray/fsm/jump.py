"""From forced bytes to tokens that are safe to append without asking the model.

A constraint may leave only one text to write. Appending its tokenisation as it stands would force
its last tokens too, which the model might have joined with what follows: with `order` forced
before `Id` or `Name`, taking the token ``order`` makes ``orderId`` unreachable. So the end of the
forced text that could still be spelt otherwise is left to the model, as a constraint on its next
tokens. The method is llguidance's (docs/fast_forward.md of that project); SGLang's jump-forward
(arXiv 2312.07104, section 4), which kept the last token, was removed there for its bugs.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Callable, Sequence

from radixray.errors import ConstraintError
from radixray.fsm.matcher import Matcher
from radixray.fsm.utf8 import whole_characters
from radixray.fsm.vocabulary import TokenVocabulary

LOOK_BACK = 4
"""Most tokens before the forced text that are tokenised with it."""

PROBES = tuple(
    tuple(char.encode() for char in kind)
    for kind in (
        string.ascii_lowercase, string.ascii_uppercase, string.digits, " ", "\t", "\n\r",
        "'", string.punctuation, "éßжα", "漢海東", "😀→°", "\u00a0\u3000",
    )
)  # fmt: skip
"""Characters by the kinds that pre-tokenisers tell apart."""

Encode = Callable[[bytes], Sequence[int]]


def forced_tokens(
    matcher: Matcher, tail: Sequence[int], encode: Encode, vocabulary: TokenVocabulary
) -> list[int]:
    """The tokens that may be appended now because nothing else can come.

    Each is allowed by the matcher in turn, they end where a character ends, and whatever is
    generated after them, tokenising the text again gives the same tokens.

    Args:
        matcher: at the end of the output; is left as it was.
        tail: the last tokens of the output (LOOK_BACK are enough, none are fine). Never ids of
            the prompt: the output's own tokens must not depend on how the prompt was split.
        encode: UTF-8 text -> ids, as in the middle of a text: no special tokens, no space in
            front. Where it does not reproduce the text exactly nothing is forced.
        vocabulary: the one of the matcher.

    Returns:
        Ids, maybe none. What of `matcher.forced()` they do not cover is forced still, and what
        the masks from here on allow.

    Raises:
        ConstraintError: the matcher itself failed.
    """
    forced = matcher.forced()
    if not forced:
        return []
    tail = list(tail[-LOOK_BACK:])
    # Text can be tokenised only from a character's first byte on.
    while tail and _continues_character(vocabulary.bytes_of(tail[0])):
        tail.pop(0)
    for context in [tail, []] if tail else [[]]:
        before = b"".join(map(vocabulary.bytes_of, context))
        text = whole_characters(before + forced)
        if len(text) <= len(before) or _continues_character(text):
            continue
        ids = list(encode(text))
        # With a tail that comes out differently, the forced text is taken alone: what was
        # generated, and perhaps seen by someone, is never changed.
        if ids[: len(context)] == context and _spells(ids, text, vocabulary):
            return _stable(matcher, ids, len(context), encode, vocabulary)
    return []


def _stable(
    matcher: Matcher, ids: list[int], taken: int, encode: Encode, vocabulary: TokenVocabulary
) -> list[int]:
    """`ids[taken:]` up to where they could come out differently if more text followed."""
    text = b"".join(map(vocabulary.bytes_of, ids))
    advanced = 0
    try:
        for token_id in ids[taken:]:
            matcher.advance(token_id)
            advanced += 1
        keep = _kept_by_merges(matcher, ids, text, vocabulary)
        keep = min(keep, _kept_by_probes(matcher, ids, text, encode))
    except ConstraintError:
        if advanced == len(ids) - taken:
            raise
        return []  # the masks lead another way to the same bytes
    finally:
        matcher.rollback(advanced)
    # What goes out must be whole characters too.
    while keep > taken:
        kept = b"".join(map(vocabulary.bytes_of, ids[:keep]))
        if len(whole_characters(kept)) == len(kept):
            break
        keep -= 1
    return ids[taken:keep]


def _kept_by_merges(
    matcher: Matcher, ids: list[int], text: bytes, vocabulary: TokenVocabulary
) -> int:
    """How many of `ids` no token can swallow that starts in them and ends after them."""
    longest = vocabulary.longest
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if _can_be_extended(matcher, text[start:], vocabulary):
            keep, end = 0, 0
            while (end := end + len(vocabulary.bytes_of(ids[keep]))) <= start:
                keep += 1
            return keep
    return len(ids)


def _can_be_extended(matcher: Matcher, suffix: bytes, vocabulary: TokenVocabulary) -> bool:
    """Whether some token is `suffix` and then bytes that may follow here."""
    spellings = vocabulary.spellings
    index = bisect_right(spellings, suffix)
    while index < len(spellings) and spellings[index].startswith(suffix):
        spelling = spellings[index]
        rest = spelling[len(suffix) :]
        viable = matcher.viable(rest)
        if viable == len(rest):
            return True
        # Nor can any other token that begins like this one up to the byte that failed.
        failed = len(suffix) + viable + 1
        index = bisect_right(spellings, spelling[:failed], lo=index, key=lambda s: s[:failed])
    return False


def _kept_by_probes(matcher: Matcher, ids: list[int], text: bytes, encode: Encode) -> int:
    """How many of `ids` come out again whatever kind of character follows.

    Pre-tokenisers split before they look at the vocabulary: GPT-2's takes two newlines as one
    token at the end of a text, and as two before a letter.
    """
    keep = len(ids)
    for kind in PROBES:
        probe = next((char for char in kind if matcher.viable(char) == len(char)), None)
        if probe is not None:
            again = encode(text + probe)
            keep = next((i for i in range(keep) if i >= len(again) or again[i] != ids[i]), keep)
    return keep


def _continues_character(data: bytes) -> bool:
    return bool(data) and data[0] & 0xC0 == 0x80


def _spells(ids: list[int], text: bytes, vocabulary: TokenVocabulary) -> bool:
    spellings = [vocabulary.bytes_of(token_id) for token_id in ids]
    return all(spellings) and b"".join(spellings) == text
