"""Scoring: log-probabilities of several continuations of one prompt."""

from __future__ import annotations

import torch

from radixray.engine.sequence import LiveSequence
from radixray.engine.tasks import TaskBase
from radixray.namespaces import namespace_of
from radixray.protocol import Delta, ModelInfo, ScoreRequest


class ScoreTask(TaskBase):
    """Log-probabilities of several continuations of one prompt.

    The logits at a position score the token that follows, so a choice's last token is never
    computed, and one sequence scores every choice that differs from it only in that token or is
    a prefix of it: single-token choices cost one sequence in all.
    """

    def __init__(self, request: ScoreRequest, info: ModelInfo, *, arrival: int) -> None:
        super().__init__(request)
        self._choices = request.choices
        self._logprobs = [[0.0] * len(choice) for choice in request.choices]
        self._scored_by: dict[str, list[int]] = {}
        namespace = namespace_of(
            info.name, request.cache_salt, images=[image.key for image in request.images]
        )
        bodies = [tuple(choice[:-1]) for choice in request.choices]
        last: tuple[int, ...] | None = None
        carrier = ""
        # In descending order, what extends a body comes right before it.
        for index in sorted(range(len(bodies)), key=bodies.__getitem__, reverse=True):
            body = bodies[index]
            if last is None or last[: len(body)] != body:
                carrier = f"{request.request_id}#{len(self.sequences)}"
                self.sequences.append(
                    LiveSequence(
                        carrier,
                        namespace,
                        [*request.prompt_ids, *body],
                        self,
                        reusable=len(request.prompt_ids) - 1,
                        arrival=arrival,
                    )
                )
                last = body
            self._scored_by.setdefault(carrier, []).append(index)

    def score(self, sequence: LiveSequence, position: int, logits: torch.Tensor) -> None:
        """Takes float32 logits [rows, vocab] of `sequence` from `position` on."""
        logprobs = torch.log_softmax(logits, dim=-1)
        start = position - (self.usage.prompt - 1)
        for index in self._scored_by[sequence.sequence_id]:
            choice = self._choices[index]
            for row, at in enumerate(range(start, min(start + len(logits), len(choice)))):
                self._logprobs[index][at] = float(logprobs[row, choice[at]])

    def sequence_done(self, sequence: LiveSequence) -> None:
        """`sequence` is computed; the request is finished with its last one."""
        self.sequences.remove(sequence)
        if not self.sequences:
            self.finished, self.finish_reason = True, "stop"

    def take_delta(self) -> Delta:
        delta = super().take_delta()
        if self.finish_reason == "stop":
            delta.choice_logprobs = self._logprobs
        return delta
