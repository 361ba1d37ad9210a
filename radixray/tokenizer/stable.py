"""Where a text may be cut so that its tokens stay what they are, whatever is appended.

Byte-level BPE merges inside pre-tokens only, and pre-tokens are cut from left to right by a
pattern that looks at most a few characters ahead. So a cut is safe
  - right after a special token (unless it swallows the whitespace behind it), and
  - where a word ends and whitespace or CJK punctuation, already there, begins a new pre-token.
What may still grow into a special token, and everything after the last safe cut, is held back.
"""

from __future__ import annotations

import re
from typing import Any

_WORD_END = re.compile(r"(?<=\S)(?=[ \t\r\n])|(?<=\w)(?=[。、，！？；：])")  # noqa: RUF001
_NEVER = re.compile(r"(?!)")


class StableSplitter:
    """Finds the last safe cut of a text.

    Args:
        setup: the parsed ``tokenizer.json``.
        pre_tokenizer: the tokenizers library's object of the same file.
    """

    def __init__(self, setup: dict[str, Any], pre_tokenizer: Any) -> None:
        added = setup["added_tokens"]
        self._pre_tokenizer = pre_tokenizer
        self._known = _rules_known(setup) and not any(token["single_word"] for token in added)
        self._greedy = {token["content"] for token in added if token["rstrip"]}
        contents = sorted((t["content"] for t in added if t["content"]), key=len, reverse=True)
        # Longest first, so that the pattern takes the token the tokenizer takes.
        self._special = re.compile("|".join(map(re.escape, contents))) if contents else _NEVER
        self._beginnings = frozenset(c[:n] for c in contents for n in range(1, len(c)))
        self._longest = max(map(len, contents), default=0)

    @property
    def has_pieces(self) -> bool:
        """Whether the tokenizer's rules are of the kind described above, and it cuts texts."""
        return self._known and len(self.pieces("One, two: 3")) > 1

    def pieces(self, text: str) -> list[int]:
        """Where each pre-token ends."""
        return [end for _, (_, end) in self._pre_tokenizer.pre_tokenize_str(text)]

    def border(self, text: str) -> int:
        """The last index at which `text` may be cut; 0 where there is none."""
        if not self._known:
            return 0
        end = self._certain_end(text)
        start = 0
        hard = 0
        for match in self._special.finditer(text, 0, end):
            start = match.end()
            if match[0] in self._greedy:
                start += len(text[start:end]) - len(text[start:end].lstrip())
            elif not match[0][-1].isspace():  # the next special token may swallow whitespace
                hard = start
        segment = text[start:end]
        starts = {piece[1][0] for piece in self._pre_tokenizer.pre_tokenize_str(segment)}
        cuts = [cut for m in _WORD_END.finditer(segment) if (cut := m.start()) in starts and cut]
        return start + cuts[-1] if cuts else hard

    def _certain_end(self, text: str) -> int:
        """Where the text's longest ending begins that may yet become a special token."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return len(text) - length
        return len(text)


def _rules_known(setup: dict[str, Any]) -> bool:
    normalizer = setup["normalizer"]
    pre_tokenizer: dict[str, Any] = setup["pre_tokenizer"] or {"type": None}
    steps: list[dict[str, Any]] = pre_tokenizer.get("pretokenizers") or [pre_tokenizer]
    return (
        setup["model"]["type"] == "BPE"
        and not setup["model"].get("dropout")
        and (normalizer is None or normalizer["type"] == "NFC")
        and all(step["type"] in ("ByteLevel", "Split", "Digits", "Punctuation") for step in steps)
        and any(step["type"] == "ByteLevel" for step in steps)
        # A space put in front of a text would come again in front of the rest.
        and not any(step.get("add_prefix_space") for step in steps)
    )
