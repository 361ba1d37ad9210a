"""Generating: one continuation of one prompt."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray

from radixray.constraint import GrammarReport, TraceStep
from radixray.engine.logprobs import PromptLogprobs, token_logprob
from radixray.engine.output_text import OutputText
from radixray.engine.sampler import SamplingRow
from radixray.engine.sequence import LiveSequence
from radixray.engine.tasks import TaskBase
from radixray.errors import ConstraintError, EngineError, RadixRayError
from radixray.fsm.explain import table_of
from radixray.fsm.jump import LOOK_BACK, Jumper
from radixray.fsm.matcher import Matcher
from radixray.namespaces import namespace_of
from radixray.protocol import Delta, Emitted, GenerateRequest, ModelInfo, TokenLogprob
from radixray.tokenizer.tokenizer import Tokenizer

log = logging.getLogger("radixray")


class GenerateTask(TaskBase):
    """One continuation of one prompt.

    A token comes in two halves. `accept` does what the next step depends on: is it the last one,
    and what may follow. `take_delta` makes the text, which may be while the model computes.

    Args:
        seed: for sampling, where the request has none.
        matcher: of the request's constraint, or None.
        jumper: of the tokenizer.
        fsm_debug: log the trace of a constrained output.
    """

    def __init__(
        self,
        request: GenerateRequest,
        info: ModelInfo,
        tokenizer: Tokenizer,
        matcher: Matcher | None,
        jumper: Jumper,
        *,
        seed: int,
        arrival: int,
        fsm_debug: bool = False,
    ) -> None:
        super().__init__(request)
        self.max_new = request.max_new_tokens(info)
        self._sampling = request.sampling
        self._seed = seed if request.sampling.seed is None else request.sampling.seed
        self._matcher = matcher
        self._mask: NDArray[np.bool_] | None = None
        self._vocab_size = info.vocab_size
        self._jumper = jumper
        sampling = request.sampling
        self._text = OutputText(tokenizer, sampling.stop, sampling.stop_regex)
        self._stop_reason: int | str | None = None
        self._unsent_ids: list[int] = []
        self._unsent_jumped = 0
        self._unsent_logprobs: list[TokenLogprob] = []
        # Logits of every output token are needed, or of the prompt's.
        self._scored = self.wants_logprobs or request.sampling.prompt_logprobs_from is not None
        may_stop_within = bool(sampling.stop or sampling.stop_regex or sampling.stop_token_ids)
        self._jumps = request.jump_forward and not (self._scored and may_stop_within)
        self._jumped: deque[int] = deque()
        self._wants_trace = request.fsm_debug or fsm_debug
        self._logs_trace = fsm_debug
        self._grammar_error = ""
        self._stop_ids = set(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            self._stop_ids.update(info.eos_token_ids)
        if matcher is not None:
            # A constrained output is complete at EOS whatever the caller thinks of EOS.
            self._stop_ids.update(matcher.vocabulary.eos_token_ids)
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
            namespace_of(
                info.name, request.cache_salt, images=[image.key for image in request.images]
            ),
            prompt,
            self,
            reusable=reusable,
            arrival=arrival,
            priority=request.priority,
            max_new=self.max_new,
        )
        self.sequences = [self._sequence]
        if self.max_new > 0:
            try:
                if request.emitted is not None:
                    self._go_on_from(request.emitted)
                # A Delta ends behind a jump, except that tokens wait for their log-probabilities.
                if request.emitted is None or self.wants_logprobs:
                    self._jump()
            except ConstraintError as error:
                self._end_in_grammar(error)

    @property
    def _may_stop(self) -> bool:
        return self.usage.completion >= self._sampling.min_tokens

    @property
    def wants_logprobs(self) -> bool:
        """Whether output tokens are to come with their log-probabilities."""
        return self._sampling.logprobs is not None

    def score(self, position: int, logits: torch.Tensor) -> None:
        """Takes float32 logits [rows, vocab] from `position` on; those at a position score the
        token that follows.

        They are of the prompt's tokens where those are asked for, and of tokens that were jumped
        over.
        """
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.take(position, logits)
        while self._jumped:
            row = self._sequence.num_tokens - len(self._jumped) - 1 - position
            if not 0 <= row < len(logits):
                break
            token = self._jumped.popleft()
            self._unsent_jumped += 1
            self._publish(token, self._logprob(logits[row], token))

    def prepare(self) -> None:
        """Finds out what the constraint allows next, while there is time."""
        if self._matcher is not None and self._mask is None:
            # A fault is met again, and reported, where the mask is used.
            with suppress(Exception):
                self._mask = self._matcher.mask()

    def sampling_row(self) -> SamplingRow:
        """How to choose the next token.

        Raises:
            ConstraintError: the constraint allows none, or failed.
        """
        if self._matcher is not None and self._mask is None:
            self._mask = self._matcher.mask()
        sequence = self._sequence
        return SamplingRow(
            self._sampling,
            self._seed,
            sequence.num_tokens,
            self._mask,
            sequence.tokens,
            self.usage.prompt,
            self._banned(),
        )

    def finish_prefill(self) -> None:
        """The prompt is computed, and that was all that was wanted."""
        self._end("length")

    def accept(self, token: int, logits: torch.Tensor) -> None:
        """Takes a token chosen from float32 logits [vocab], and finds out whether it is the last.

        Raises:
            ConstraintError: the constraint does not allow it, or failed.
        """
        self.suspect = False
        self._append(token)
        self._publish(token, self._logprob(logits, token) if self.wants_logprobs else None)
        if not self.finished:
            self._jump()

    def take_delta(self) -> Delta:
        ids, self._unsent_ids = self._unsent_ids, []
        logprobs, self._unsent_logprobs = self._unsent_logprobs, []
        index = self.usage.completion - len(ids)
        prompt_logprobs = None
        if index == 0 and self._prompt_logprobs is not None and (ids or self.max_new == 0):
            prompt_logprobs = self._prompt_logprobs.result()
        if self.finished:
            # Ended early, what was jumped over but has no log-probability yet is lost.
            self.usage.jumped -= len(self._jumped)
            self._jumped.clear()
        # A copy, while the counts go on: a Delta is read in another thread.
        usage = self.usage if self.finished else copy(self.usage) if index == 0 else None
        jumped, self._unsent_jumped = self._unsent_jumped, 0
        return Delta(
            request_id=self.request_id,
            index=index,
            token_ids=ids,
            jumped=jumped,
            text=self._text.take(),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            usage=usage,
            logprobs=logprobs if self.wants_logprobs and ids else None,
            prompt_logprobs=prompt_logprobs,
            grammar=self._grammar_report() if self.finished else None,
        )

    def fail(self, error: RadixRayError) -> Delta:
        if not isinstance(error, ConstraintError):
            return super().fail(error)
        self._end_in_grammar(error)
        return self.take_delta()

    def _end_in_grammar(self, error: ConstraintError) -> None:
        # What there is of the output is no fault of the engine, and says where it went wrong.
        self.finished, self.finish_reason = True, "grammar_error"
        self._grammar_error = error.message

    def _go_on_from(self, emitted: Emitted) -> None:
        """Becomes what the task of an actor that died was, as far as its consumer can tell.

        All that counts follows from the tokens: what the constraint allows next, which half of a
        stop string has come, how often a token is penalised.

        Raises:
            EngineError: the text that the tokens make is not the text that was sent.
            ConstraintError: the constraint does not allow the tokens, or failed.
        """
        for token in emitted.token_ids:
            self._append(token)
            self.usage.completion += 1
            self._text.add(token, self._may_stop)
        if len(self._text.take()) != emitted.text_length:
            raise EngineError(
                f"request {self.request_id} cannot go on after {len(emitted.token_ids)} tokens: "
                "their text is not the one that was sent"
            )
        self.usage.cached, self.usage.jumped = emitted.cached, emitted.jumped
        self._started = True
        # The prompt's went with the first Delta.
        self._prompt_logprobs = None

    def _jump(self) -> None:
        """Takes the tokens that the constraint forces, without asking the model for them.

        They are computed together, beside what is computed anyway (SGLang, arXiv 2312.07104,
        section 4). Where log-probabilities are asked for, the tokens are published once they have
        theirs, and the last token of an output is never jumped over.

        Raises:
            ConstraintError: the constraint failed.
        """
        if self._matcher is None or not self._jumps:
            return
        sequence = self._sequence
        output = sequence.tokens[self.usage.prompt :]
        forced = self._jumper.tokens(self._matcher, output[-LOOK_BACK:].tolist())
        forced = forced[: self.max_new - len(output) - self._scored]
        if self._scored and forced and self._would_finish(self._matcher, forced):
            forced.pop()
        wanted_from = sequence.reusable
        for token in forced:
            self._append(token, forced=True)
            self.usage.jumped += 1
            if self.wants_logprobs:
                self._jumped.append(token)
                continue
            self._unsent_jumped += 1
            self._publish(token)
            if self.finished:
                return
        if self._scored:
            sequence.reusable = wanted_from

    def _banned(self) -> tuple[int, ...]:
        """The ids that would end the output too early."""
        if self.usage.completion >= self._sampling.min_tokens:
            return ()
        banned = tuple(token for token in self._stop_ids if token < self._vocab_size)
        if self._mask is not None and self._mask.sum() == self._mask[list(banned)].sum():
            return ()  # the constraint allows nothing else
        return banned

    def _append(self, token: int, *, forced: bool = False) -> None:
        """`token` is the next of the sequence, whether or not its consumer knows it yet."""
        self._mask = None
        if self._matcher is not None and token not in self._stop_ids:
            self._matcher.advance(token, forced=forced)
        self._sequence.append(token)

    def _publish(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """`token` is part of the output now; maybe its last."""
        self.usage.completion += 1
        self._unsent_ids.append(token)
        if logprob is not None:
            self._unsent_logprobs.append(logprob)
        if token in self._stop_ids:
            self._end("stop", token)
        elif (stop := self._text.add(token, self._may_stop)) is not None:
            self._end("stop", stop)
        elif self._matcher is not None and not self._jumped and self._matcher.is_finished():
            self._end("stop")
        elif self.usage.completion == self.max_new:
            self._end("length")

    def _grammar_report(self) -> GrammarReport | None:
        if self._matcher is None:
            return None
        trace: list[TraceStep] = []
        complete = False
        try:
            complete = self._matcher.is_accepting()
            if self._wants_trace or self._grammar_error:
                trace = self._matcher.trace()
        except ConstraintError as error:  # the trace asks a broken constraint once more
            self._grammar_error = self._grammar_error or error.message
        if self._logs_trace:
            table = table_of(trace, self._matcher.vocabulary)
            log.info("%s, constrained:\n%s %s", self.request_id, table, self._grammar_error)
        return GrammarReport(complete=complete, error=self._grammar_error, trace=trace)

    @staticmethod
    def _would_finish(matcher: Matcher, tokens: list[int]) -> bool:
        for token in tokens:
            matcher.advance(token)
        finished = matcher.is_finished()
        matcher.rollback(len(tokens))
        return finished

    def _logprob(self, logits: torch.Tensor, token: int) -> TokenLogprob:
        top = self._sampling.logprobs or 0
        return token_logprob(torch.log_softmax(logits, -1), token, top)

    def _end(self, reason: str, stop: int | str | None = None) -> None:
        if not isinstance(stop, str) and (found := self._text.end()) is not None:
            reason, stop = "stop", found
        self.finished, self.finish_reason, self._stop_reason = True, reason, stop
