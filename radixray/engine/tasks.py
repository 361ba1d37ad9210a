"""Live requests: what they want from the logits of their sequences, and the Deltas they give."""

from __future__ import annotations

from copy import copy
from typing import Protocol

import torch

from radixray.engine.logprobs import PromptLogprobs, token_logprob
from radixray.engine.sampler import SamplingRow
from radixray.engine.sequence import LiveSequence
from radixray.errors import RadixRayError
from radixray.fsm.matcher import Matcher
from radixray.namespaces import namespace_of
from radixray.protocol import (
    Delta,
    ErrorInfo,
    GenerateRequest,
    ModelInfo,
    ScoreRequest,
    TokenLogprob,
    Usage,
)
from radixray.tokenizer.detokenizer import IncrementalDetokenizer
from radixray.tokenizer.stop import StopStrings
from radixray.tokenizer.tokenizer import Tokenizer


class Task(Protocol):
    """A live request.

    Attributes:
        request_id: whose.
        sequences: those the engine must compute; a finished task has none running.
        usage: token counts so far.
        finished: set by the Delta with a finish_reason.
    """

    request_id: str
    sequences: list[LiveSequence]
    usage: Usage
    finished: bool

    def started(self, sequence: LiveSequence) -> None:
        """`sequence` took its lease, for the first time or after a retraction."""
        ...

    def fail(self, error: RadixRayError) -> Delta:
        """The last Delta, with an error."""
        ...

    def abort(self) -> Delta:
        """The last Delta, with finish_reason ``abort``."""
        ...


class _TaskBase:
    def __init__(self, request_id: str, prompt_tokens: int) -> None:
        self.request_id = request_id
        self.sequences: list[LiveSequence] = []
        self.usage = Usage(prompt=prompt_tokens)
        self.finished = False
        self._started = False

    def started(self, sequence: LiveSequence) -> None:
        if not self._started:
            self._started = True
            self.usage.cached = min(sequence.computed, self.usage.prompt)

    def fail(self, error: RadixRayError) -> Delta:
        self.finished = True
        return Delta(
            request_id=self.request_id,
            index=self.usage.completion,
            finish_reason="error",
            usage=self.usage,
            error=ErrorInfo.of(error),
        )

    def abort(self) -> Delta:
        self.finished = True
        return Delta(
            request_id=self.request_id,
            index=self.usage.completion,
            finish_reason="abort",
            usage=self.usage,
        )


class GenerateTask(_TaskBase):
    """One continuation of one prompt.

    Args:
        seed: for sampling, where the request has none.
        matcher: of the request's constraint, or None.
    """

    def __init__(
        self,
        request: GenerateRequest,
        info: ModelInfo,
        tokenizer: Tokenizer,
        matcher: Matcher | None,
        *,
        seed: int,
        arrival: int,
    ) -> None:
        super().__init__(request.request_id, len(request.prompt_ids))
        self.max_new = request.max_new_tokens(info)
        self._sampling = request.sampling
        self._seed = seed if request.sampling.seed is None else request.sampling.seed
        self._matcher = matcher
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stops = StopStrings(request.sampling.stop)
        self._stop_ids = set(request.sampling.stop_token_ids)
        # A constrained output is complete at EOS whatever the caller thinks of EOS.
        if not request.sampling.ignore_eos or matcher is not None:
            self._stop_ids.update(info.eos_token_ids)
        prompt = request.prompt_ids
        # The last prompt token's logits are needed, unless nothing is to be generated.
        reusable = len(prompt) - 1 if self.max_new > 0 else len(prompt)
        self._prompt_logprobs: PromptLogprobs | None = None
        if (first := request.sampling.prompt_logprobs_from) is not None:
            self._prompt_logprobs = PromptLogprobs(prompt, first, request.sampling.logprobs or 0)
            # The logits at a position score the token that follows.
            reusable = max(0, min(reusable, first - 1))
        self._sequence = LiveSequence(
            request.request_id,
            namespace_of(info.name, request.cache_salt),
            prompt,
            self,
            reusable=reusable,
            arrival=arrival,
            priority=request.priority,
            max_new=self.max_new,
        )
        self.sequences = [self._sequence]

    @property
    def wants_logprobs(self) -> bool:
        """Whether output tokens are to come with their log-probabilities."""
        return self._sampling.logprobs is not None

    def token_logprob(self, logits: torch.Tensor, token: int) -> TokenLogprob:
        """Of a chosen token, by the model's own float32 logits [vocab]."""
        return token_logprob(torch.log_softmax(logits, -1), token, self._sampling.logprobs or 0)

    def score_prompt(self, position: int, logits: torch.Tensor) -> None:
        """Takes float32 logits [rows, vocab] from `position` on, before the first token."""
        if self._prompt_logprobs is not None and self.usage.completion == 0:
            self._prompt_logprobs.take(position, logits)

    def sampling_row(self) -> SamplingRow:
        """How to choose the next token."""
        sequence = self._sequence
        return SamplingRow(
            self._sampling,
            self._seed,
            sequence.num_tokens,
            None if self._matcher is None else self._matcher.mask(),
            sequence.tokens[self.usage.prompt :],
        )

    def prefilled(self) -> Delta | None:
        """The last Delta if only the prompt was to be computed, else None."""
        if self.max_new > 0:
            return None
        delta = self._finish([], "", "length", None)
        delta.prompt_logprobs = self._take_prompt_logprobs()
        return delta

    def accept(self, token: int, logprob: TokenLogprob | None = None) -> Delta:
        """Takes one chosen token; the Delta has a finish_reason if it was the last."""
        delta = self._accept(token)
        if logprob is not None:
            delta.logprobs = [logprob]
        if delta.index == 0:
            delta.prompt_logprobs = self._take_prompt_logprobs()
        return delta

    def _accept(self, token: int) -> Delta:
        self._sequence.append(token)
        self.usage.completion += 1
        if token in self._stop_ids:
            return self._finish([token], "", "stop", token)
        text, stop = self._stops.push(self._detokenizer.push([token]))
        if stop is not None:
            return self._finish([token], text, "stop", stop)
        if self._matcher is not None:
            self._matcher.advance(token)
            if self._matcher.is_finished():
                return self._finish([token], text, "stop", None)
        if self.usage.completion == self.max_new:
            return self._finish([token], text, "length", None)
        first = self.usage.completion == 1
        return Delta(
            request_id=self.request_id,
            index=self.usage.completion - 1,
            token_ids=[token],
            # A copy: this Delta is read in another thread while the counts go on.
            text=text,
            usage=copy(self.usage) if first else None,
        )

    def _take_prompt_logprobs(self) -> list[TokenLogprob] | None:
        return None if self._prompt_logprobs is None else self._prompt_logprobs.result()

    def _finish(
        self, token_ids: list[int], text: str, reason: str, stop: int | str | None
    ) -> Delta:
        self.finished = True
        if not isinstance(stop, str):
            # Text held back so far turned out to be no character and no stop string.
            tail, found = self._stops.push(self._detokenizer.finish())
            text += tail
            if found is None:
                text += self._stops.finish()
            else:
                reason, stop = "stop", found
        return Delta(
            request_id=self.request_id,
            index=self.usage.completion - len(token_ids),
            token_ids=token_ids,
            text=text,
            finish_reason=reason,
            stop_reason=stop,
            usage=self.usage,
        )


class ScoreTask(_TaskBase):
    """Log-probabilities of several continuations of one prompt.

    The logits at a position score the token that follows, so a choice's last token is never
    computed, and one sequence scores every choice that differs from it only in that token or is
    a prefix of it: single-token choices cost one sequence in all.
    """

    def __init__(self, request: ScoreRequest, info: ModelInfo, *, arrival: int) -> None:
        super().__init__(request.request_id, len(request.prompt_ids))
        self._choices = request.choices
        self._logprobs = [[0.0] * len(choice) for choice in request.choices]
        self._scored_by: dict[str, list[int]] = {}
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
                        namespace_of(info.name, request.cache_salt),
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

    def sequence_done(self, sequence: LiveSequence) -> Delta | None:
        """`sequence` is computed; the last Delta if it was the last one."""
        self.sequences.remove(sequence)
        if self.sequences:
            return None
        self.finished = True
        return Delta(
            request_id=self.request_id,
            finish_reason="stop",
            usage=self.usage,
            choice_logprobs=self._logprobs,
        )
