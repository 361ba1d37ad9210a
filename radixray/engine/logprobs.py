"""Log-probabilities of tokens: the model's own, before temperature, penalties and masks."""

from __future__ import annotations

import torch

from radixray.protocol import TokenLogprob


def token_logprob(logprobs: torch.Tensor, token: int, top: int) -> TokenLogprob:
    """Of one token, and of the `top` likeliest, from log-probabilities [vocab]."""
    if top == 0:
        return TokenLogprob(token, float(logprobs[token]))
    values, ids = torch.topk(logprobs, top)
    pairs = list(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), pairs)


class PromptLogprobs:
    """Those of a prompt's tokens from index `first` on, gathered chunk by chunk.

    A prompt that is retracted half way starts over; what it computes again is the same.
    """

    def __init__(self, prompt_ids: list[int], first: int, top: int) -> None:
        self._prompt_ids = prompt_ids
        self._first = first
        self._top = top
        self._found: dict[int, TokenLogprob] = {}

    def take(self, position: int, logits: torch.Tensor) -> None:
        """Float32 logits [rows, vocab] of positions from `position` on; each scores the next."""
        for row, scored in enumerate(range(position + 1, position + 1 + len(logits))):
            if self._first <= scored < len(self._prompt_ids):
                logprobs = torch.log_softmax(logits[row], -1)
                self._found[scored] = token_logprob(logprobs, self._prompt_ids[scored], self._top)

    def result(self) -> list[TokenLogprob]:
        """In order of the prompt."""
        return [self._found[index] for index in sorted(self._found)]
