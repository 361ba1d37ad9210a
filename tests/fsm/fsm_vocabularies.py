"""Vocabularies for the tests: small and awkward, or large and ordinary."""

from __future__ import annotations

import random

from radixray.fsm.vocabulary import TokenVocabulary

EOS = (256, 258)


def byte_vocabulary() -> TokenVocabulary:
    """Every byte, an empty token, two EOS ids, and padding at the end."""
    tokens = [bytes([byte]) for byte in range(256)]
    return TokenVocabulary([*tokens, b"</s>", b"", b"<|end|>"], EOS, vocab_size=270)


def random_vocabulary(text: bytes, seed: int, *, every_byte: bool) -> TokenVocabulary:
    """Pieces of `text` (across character borders, inside characters), duplicates, gaps.

    Args:
        text: what the pieces are cut from.
        every_byte: whether each byte of `text` is sure to be a token of its own.
    """
    rng = random.Random(seed)
    tokens = [b"", b"a", b"</s>", b"a"]  # id 2 is EOS, whatever it spells
    for _ in range(40):
        start = rng.randrange(len(text))
        tokens.append(text[start : start + rng.randint(1, 5)])
    tokens += [bytes([rng.randrange(256)]) for _ in range(10)]
    tokens += [b"", text[:3], text[:3], b"zz\xff"]
    if every_byte:
        tokens += [bytes([byte]) for byte in sorted(set(text))]
    return TokenVocabulary(tokens, {2, len(tokens) + 1}, vocab_size=len(tokens) + 7)


def large_vocabulary(size: int = 49_152) -> TokenVocabulary:
    """As many distinct tokens as a real model has, of similar lengths; all single bytes."""
    rng = random.Random(0)
    syllables = ["".join(rng.choices("abcdefghijklmnoprstuvwyz", k=rng.randint(1, 3)))
                 for _ in range(400)]  # fmt: skip
    extras = ["0", "12", ".", ", ", '":', "{", "\n", "é", "漢字", "😀", "ß"]
    tokens = [bytes([byte]) for byte in range(256)] + [b" " * n for n in range(2, 80)]
    seen = set(tokens)
    while len(tokens) < size - 2:
        word = "".join(rng.choices(syllables, k=rng.randint(1, 5)))
        if rng.random() < 0.1:
            word += rng.choice(extras)
        token = (rng.choice(["", " "]) + word).encode()
        if rng.random() < 0.02:
            token = token[:-1]
        if token and token not in seen:
            seen.add(token)
            tokens.append(token)
    return TokenVocabulary([*tokens, b"", b""], {size - 1, size - 2})
