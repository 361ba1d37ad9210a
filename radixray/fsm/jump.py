"""From forced bytes to tokens that are safe to append without asking the model.

A constraint may leave only one text to write. Appending its tokenisation as it stands would force
its last tokens too, which the model might have joined with what follows: with `order` forced
before `Id` or `Name`, taking the token ``order`` makes ``orderId`` unreachable. So the end of the
forced text that could still be spelt otherwise is left to the model, as a constraint on its next
tokens. The idea is llguidance's (docs/fast_forward.md of that project); SGLang's jump-forward
(arXiv 2312.07104, section 4), which kept the last token, was removed there for its bugs.

How much of the end that is: byte-level BPE merges within pre-tokens only, so all tokens stay if
whatever may follow begins another pre-token, and else those before the last one. Trying what may
follow is not enough: one character can change merges several tokens before it.
"""

from __future__ import annotations

import string
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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

KEPT_TEXTS, KEPT_LENGTH = 4096, 512
"""How many texts' tokens are remembered, and how many bytes of text at most."""

Encode = Callable[[bytes], Sequence[int]]
Pieces = Callable[[str], Sequence[int]]


@dataclass(slots=True)
class Tokenised:
    """What is known of a text's tokens, whatever may follow it.

    Attributes:
        ids: the tokens; none where they do not spell the text.
        ends: where each token ends in the text.
        joints: where the endings of the text start that some token goes on from.
        pieces: where each of its pre-tokens ends, in characters.
        ends_piece: by index of PROBES, whether a pre-token ends with the text when a character of
            that kind follows; as far as it was asked.
    """

    ids: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    joints: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    ends_piece: dict[int, bool] = field(default_factory=dict)


class Jumper:
    """Forced text to tokens, for one tokenizer; remembers what it learnt of recent texts.

    The same texts come again and again: the keys of a schema in each of its outputs.
    """

    def __init__(self, encode: Encode, pieces: Pieces | None = None) -> None:
        """Makes one that knows nothing yet.

        Args:
            encode: UTF-8 text -> ids, as in the middle of a text: no special tokens, no space in
                front. Where it does not reproduce a text exactly nothing is forced.
            pieces: where each pre-token of a text ends, in characters. Tokens do not cross those,
                and only the last one can change when text is appended. None where the tokenizer
                has no pre-tokens: its tokens are then taken to be the longest that fit.
        """
        self._encode = encode
        self._pieces = pieces
        self._vocabulary: TokenVocabulary | None = None
        self._known: OrderedDict[bytes, Tokenised] = OrderedDict()

    def tokens(self, matcher: Matcher, tail: Sequence[int]) -> list[int]:
        """The tokens that may be appended now because nothing else can come.

        Each is allowed by the matcher in turn, they end where a character ends, and whatever is
        generated after them, tokenising the text again gives the same tokens.

        Args:
            matcher: at the end of the output; is left as it was.
            tail: the last tokens of the output (LOOK_BACK are enough, none are fine). Never ids of
                the prompt: the output's own tokens must not depend on how the prompt was split.

        Returns:
            Ids, maybe none. What of `matcher.forced()` they do not cover is forced still, and what
            the masks from here on allow.

        Raises:
            ConstraintError: the matcher itself failed.
        """
        forced = matcher.forced()
        if not forced:
            return []
        if matcher.vocabulary is not self._vocabulary:
            self._vocabulary = matcher.vocabulary
            self._known.clear()
        bytes_of = matcher.vocabulary.bytes_of
        tail = list(tail[-LOOK_BACK:])
        # Text can be tokenised only from a character's first byte on.
        while tail and _continues_character(bytes_of(tail[0])):
            tail.pop(0)
        for context in [tail, []] if tail else [[]]:
            before = b"".join(map(bytes_of, context))
            text = whole_characters(before + forced)
            if len(text) <= len(before) or _continues_character(text):
                continue
            found = self._tokenised(text, matcher.vocabulary)
            # With a tail that comes out differently, the forced text is taken alone: what was
            # generated, and perhaps seen by someone, is never changed.
            if found.ids and list(found.ids[: len(context)]) == context:
                return self._stable(matcher, text, found, len(context))
        return []

    def _tokenised(self, text: bytes, vocabulary: TokenVocabulary) -> Tokenised:
        known = self._known.get(text)
        if known is None:
            known = self._tokenise(text, vocabulary)
            if len(text) <= KEPT_LENGTH:
                self._known[text] = known
                if len(self._known) > KEPT_TEXTS:
                    self._known.popitem(last=False)
        else:
            self._known.move_to_end(text)
        return known

    def _tokenise(self, text: bytes, vocabulary: TokenVocabulary) -> Tokenised:
        try:
            text.decode()
        except UnicodeDecodeError:  # a predicate forces it, or it came before a marker
            return Tokenised()
        ids = tuple(self._encode(text))
        ends: list[int] = []
        for spelling in map(vocabulary.bytes_of, ids):
            start = ends[-1] if ends else 0
            if not spelling or not text.startswith(spelling, start):
                return Tokenised()
            ends.append(start + len(spelling))
        if not ids or ends[-1] < len(text):
            return Tokenised()
        first = max(0, len(text) - vocabulary.longest + 1)
        joints = (start for start in range(first, len(text)) if _goes_on(text[start:], vocabulary))
        pieces = () if self._pieces is None else tuple(self._pieces(text.decode()))
        return Tokenised(ids, tuple(ends), tuple(joints), pieces)

    def _stable(self, matcher: Matcher, text: bytes, found: Tokenised, taken: int) -> list[int]:
        """`found.ids[taken:]` up to where they could come out differently if more text followed."""
        ids = found.ids
        advanced = 0
        try:
            for token_id in ids[taken:]:
                matcher.advance(token_id)
                advanced += 1
            keep = len(ids)
            if not matcher.is_finished():
                keep = self._kept(matcher, text, found)
        except ConstraintError:
            if advanced == len(ids) - taken:
                raise
            return []  # the masks lead another way to the same bytes
        finally:
            matcher.rollback(advanced)
        # What goes out must be whole characters too.
        while (
            keep > taken
            and len(whole_characters(text[: found.ends[keep - 1]])) < (found.ends[keep - 1])
        ):
            keep -= 1
        return list(ids[taken:keep])

    def _kept(self, matcher: Matcher, text: bytes, found: Tokenised) -> int:
        """How many tokens stay what they are whatever follows.

        All, if whatever can follow begins another pre-token. Else those of the pre-tokens before
        the last: which merges are made within one depends on all of it.
        """
        if not found.pieces:
            return _kept_by_merges(matcher, text, found)
        shown = text.decode()
        # Two letters may follow an apostrophe before it is clear whether they belong to it.
        apostrophe = shown.rfind("'", max(0, len(shown) - 3))
        if apostrophe < 0 and all(
            self._ends_piece(index, shown, found)
            for index, kind in enumerate(PROBES)
            if any(matcher.viable(char) == len(char) for char in kind)
        ):
            return len(found.ids)
        cut = len(shown) if apostrophe < 0 else apostrophe + 1
        last = bisect_left(found.pieces, cut)
        start = len(shown[: found.pieces[last - 1]].encode()) if last else 0
        return bisect_right(found.ends, start)

    def _ends_piece(self, index: int, text: str, found: Tokenised) -> bool:
        known = found.ends_piece.get(index)
        if known is None:
            assert self._pieces is not None
            pieces = tuple(self._pieces(text + PROBES[index][0].decode()))
            known = found.ends_piece[index] = pieces[: len(found.pieces)] == found.pieces
        return known


def _kept_by_merges(matcher: Matcher, text: bytes, found: Tokenised) -> int:
    """How many tokens no token can swallow that starts in them and ends after them."""
    for start in found.joints:
        if _can_be_extended(matcher, text[start:], matcher.vocabulary):
            return bisect_right(found.ends, start)
    return len(found.ids)


def _goes_on(suffix: bytes, vocabulary: TokenVocabulary) -> bool:
    """Whether some token begins with `suffix` and is longer."""
    spellings = vocabulary.spellings
    index = bisect_right(spellings, suffix)
    return index < len(spellings) and spellings[index].startswith(suffix)


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


def _continues_character(data: bytes) -> bool:
    return bool(data) and data[0] & 0xC0 == 0x80
