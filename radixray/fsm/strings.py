"""Constraints asked about texts: no model, no tokenizer, the same automata that mask."""

from __future__ import annotations

from functools import cache

from radixray.constraint import Constraint
from radixray.errors import ConstraintError
from radixray.fsm.compiler import ConstraintCompiler
from radixray.fsm.matcher import Matcher
from radixray.fsm.vocabulary import TokenVocabulary

EOS = 256
"""The id after those of the bytes."""


@cache
def byte_vocabulary() -> TokenVocabulary:
    """A token for each byte, its id the byte, and one EOS id."""
    return TokenVocabulary([*(bytes((byte,)) for byte in range(256)), b""], {EOS})


@cache
def _compiler() -> ConstraintCompiler:
    return ConstraintCompiler(byte_vocabulary())


def byte_matcher(constraint: Constraint) -> Matcher:
    """A matcher of `constraint` whose tokens are the bytes.

    Raises:
        ConstraintError: see `compile_constraint`.
    """
    return _compiler().compile(constraint).matcher()


def accepts(constraint: Constraint, text: str | bytes) -> bool:
    """Whether `text` as a whole meets the constraint.

    Raises:
        ConstraintError: the constraint cannot be compiled.
    """
    matcher, data = byte_matcher(constraint), _bytes(text)
    if matcher.viable(data) < len(data):
        return False
    try:
        for byte in data:
            matcher.advance(byte)
    except ConstraintError:
        return False
    return matcher.is_accepting()


def prefix_ok(constraint: Constraint, text: str | bytes) -> bool:
    """Whether some text that meets the constraint begins with `text`.

    Raises:
        ConstraintError: the constraint cannot be compiled.
    """
    data = _bytes(text)
    return byte_matcher(constraint).viable(data) == len(data)


def _bytes(text: str | bytes) -> bytes:
    # Half of a surrogate pair is no character: no constraint allows its bytes.
    return text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
