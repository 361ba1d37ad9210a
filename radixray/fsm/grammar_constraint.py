"""Context-free constraints: llguidance's Earley parser and lexer run over our vocabulary.

llguidance (github.com/guidance-ai/llguidance) never raises for a bad grammar, a limit, or a token
that is not allowed: its matcher enters an error state whose mask is EOS, which unchecked would cut
an output short. So the error state is looked at after every call. It is loaded on first use.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from radixray.errors import ConstraintError, GrammarTooComplexError
from radixray.fsm.base_matcher import BaseMatcher
from radixray.fsm.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
"""Masks of all tokens that may come. Else, where text is forced, they would be of the one token
that llguidance takes for canonical, and of the model's tokenizer it knows nothing."""

_LIMIT_WORDS = ("too complex", "too many", "too large", "too big", "limit", "fuel", "exceeded")
_BYTES, _BYTES_PER_CHARACTER = 2**20, 100

_NEVER = b"\xff"
"""A byte no text holds; llguidance marks special tokens with it."""

_tokenizers: WeakKeyDictionary[TokenVocabulary, LLTokenizer] = WeakKeyDictionary()
_tokenizers_lock = Lock()


class GrammarConstraint:
    """A compiled grammar.

    Attributes:
        vocabulary: whose ids the masks are over.
        warnings: what llguidance has to say about a grammar it took.
        nbytes: an estimate, as llguidance does not tell.
    """

    def __init__(self, grammar: str, vocabulary: TokenVocabulary, param: str) -> None:
        """Compiles.

        Args:
            grammar: in llguidance's Lark dialect.
            vocabulary: see the class.
            param: the field of `constraint.Constraint` that errors are about.

        Raises:
            ConstraintError: the grammar is wrong, matches nothing, or the vocabulary cannot even
                begin it.
            GrammarTooComplexError: one of llguidance's limits.
        """
        from llguidance import LLMatcher

        self.vocabulary = vocabulary
        self.nbytes = _BYTES + _BYTES_PER_CHARACTER * len(grammar)
        self._param = param
        # Copied for each request; never moved itself, so that copies begin at the start.
        source = LLMatcher.grammar_from_lark(grammar + _OPTIONS)
        self._first = LLMatcher(tokenizer_of(vocabulary), source, log_level=0)
        self._lock = Lock()
        if self._first.is_error():
            raise grammar_error(param, self._first.get_error())
        self.warnings: tuple[str, ...] = tuple(self._first.get_grammar_warnings())
        try:
            self.matcher().mask()
        except GrammarTooComplexError:
            raise
        except ConstraintError as error:
            raise ConstraintError(
                f"{param} cannot be met: it matches no string, or the model's vocabulary has no "
                f"tokens to begin one ({error.message})",
                param=param,
            ) from error

    def matcher(self) -> GrammarMatcher:
        """A new matcher, at the start of an output."""
        with self._lock:  # the library lets only one thread use a matcher
            return GrammarMatcher(self._first.deep_copy(), self.vocabulary, self._param)


class GrammarMatcher(BaseMatcher):
    """A position in a GrammarConstraint."""

    def __init__(self, matcher: LLMatcher, vocabulary: TokenVocabulary, param: str) -> None:
        super().__init__(vocabulary)
        self._matcher = matcher
        self._param = param
        self._known_mask: NDArray[np.bool_] | None = None
        self._bits = np.zeros((_extended_size(vocabulary) + 31) // 32, dtype=np.int32)

    def _mask(self) -> NDArray[np.bool_]:
        if self._known_mask is None:
            self._known_mask = self._compute_mask()
        return self._known_mask

    def _compute_mask(self) -> NDArray[np.bool_]:
        size = self.vocabulary.vocab_size
        if self._matcher.is_stopped():
            self._check()
            mask = np.zeros(size, dtype=np.bool_)
        else:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            self._check()
            bits = np.unpackbits(self._bits.view(np.uint8), count=size, bitorder="little")
            mask = bits.view(np.bool_)
        mask[self.vocabulary.eos_index] = self.is_accepting()
        if not mask.any():
            raise ConstraintError(
                f"{self._param}: no token is allowed after output token {len(self._tokens)}, and "
                "the output does not match yet",
                param=self._param,
            )
        mask.flags.writeable = False
        return mask

    def _take(self, token_id: int, spelling: bytes) -> bool:
        if _NEVER in spelling or self._matcher.is_stopped():
            return False
        taken = self._matcher.try_consume_tokens([token_id]) == 1
        self._check()
        if taken:
            self._known_mask = None
        return taken

    def _undo(self, n: int) -> None:
        # A matcher that has stopped stays so when it is rolled back.
        if self._matcher.is_stopped():
            self._matcher.reset()
            self._matcher.consume_tokens(self._tokens[: self._content() - n])
        else:
            self._matcher.rollback(n)
        self._known_mask = None
        self._check()

    def _content(self) -> int:
        """How many of the tokens taken are text: an EOS id is never given to the library."""
        eos = self.vocabulary.eos_token_ids
        return len(self._tokens) - bool(self._tokens and self._tokens[-1] in eos)

    def _forced(self) -> bytes:
        if self._matcher.is_stopped():
            return b""
        forced = self._matcher.compute_ff_bytes()
        self._check()
        return forced

    def _viable(self, data: bytes) -> int:
        data = data.partition(_NEVER)[0]
        if not data or self._matcher.is_stopped():
            return 0
        first = self.vocabulary.vocab_size
        count = self._matcher.validate_tokens([first + byte for byte in data])
        self._check()
        return count

    def is_accepting(self) -> bool:
        """See `Matcher.is_accepting`."""
        return self._matcher.is_accepting()

    def _continues(self) -> bool:
        if self._matcher.is_stopped():
            return False
        return self.vocabulary.has_every_byte or super()._continues()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise grammar_error(self._param, self._matcher.get_error())


def tokenizer_of(vocabulary: TokenVocabulary) -> LLTokenizer:
    """llguidance's own view of a vocabulary, made once.

    After our ids come 256 of single bytes, so that a text can be tried byte by byte whatever tokens
    there are, and one that stands for the end: the real EOS ids are handled here.
    """
    from llguidance import LLTokenizer

    with _tokenizers_lock:
        known = _tokenizers.get(vocabulary)
        if known is None:
            size = _extended_size(vocabulary)
            known = LLTokenizer(_TokenTable(vocabulary), n_vocab=size, eos_token=size - 1)  # pyright: ignore[reportArgumentType]
            _tokenizers[vocabulary] = known
        return known


class _TokenTable:
    """What LLTokenizer asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        tokens = map(vocabulary.bytes_of, range(vocabulary.vocab_size))
        single = (bytes([byte]) for byte in range(256))
        usable = [b"" if _NEVER in token else token for token in (*tokens, *single)]
        self.tokens = [*usable, b"<end>"]
        self.eos_token_id = len(usable)
        self.special_token_ids = [len(usable)]

    def __call__(self, text: str) -> list[int]:
        # Only asked for its own forced tokens, of which we make no use (see `jump`).
        return []


def _extended_size(vocabulary: TokenVocabulary) -> int:
    return vocabulary.vocab_size + 256 + 1


def grammar_error(param: str, text: str) -> ConstraintError:
    """What llguidance said, as an error."""
    lines = text.partition("<state>")[0].splitlines()
    said = "\n".join(line for line in lines if _OPTIONS.strip() not in line).strip()
    said = said.removeprefix("Parser Error:").strip() or "the grammar cannot be used"
    if param == "json_schema":  # the Lark around it is ours, and says nothing to its author
        said = said.partition("\n")[0].rpartition("failed to compile JSON schema: ")[2]
    too_complex = any(word in said.lower() for word in _LIMIT_WORDS)
    kind = GrammarTooComplexError if too_complex else ConstraintError
    return kind(f"{param}: {said}", param=param)
