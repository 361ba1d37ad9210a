"""The messages between programs, the scheduler actor and model actors.

Plain `msgspec.Struct`s: they can be printed, replayed, and sent as msgpack. Token ids travel,
not text (`design.md`: tokenise once, at the edge).
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixray.checks import check_int, check_number, check_sequence, check_text
from radixray.constraint import Constraint, GrammarReport
from radixray.errors import (
    WIRE_ERRORS,
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
    RadixRayError,
)
from radixray.images import Image, check_images

PROTOCOL_VERSION = 1

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_REGEXES = 8
MAX_STOP_REGEX_LENGTH = 256
MAX_CHOICES = 1024
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_PRIORITY = 1000
MAX_TIMEOUT_S = 86_400.0
MAX_SEED = 2**63 - 1
MAX_INT = 2**31 - 1
MAX_SALT_LENGTH = 1024
MAX_ID_LENGTH = 256


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens and when to stop. Names and meaning are the field's.

    Attributes:
        max_tokens: most tokens to generate; None takes what the context leaves. 0 only caches
            the prompt.
        min_tokens: until so many are generated, no token that would end the output may be, and
            stop strings are not looked for. A constraint that is complete ends it all the same.
        temperature: 0 is greedy.
        top_k: sample among the k likeliest tokens; -1 is off.
        top_p: sample among the likeliest tokens whose probabilities sum to top_p.
        min_p: drop tokens less likely than min_p times the likeliest.
        frequency_penalty: subtracted from a token's logit per occurrence in the output.
        presence_penalty: subtracted once if a token occurs in the output.
        repetition_penalty: divides the positive logit of a token that occurs in prompt or output,
            and multiplies a negative one (Keskar et al., 2019); 1 is off.
        logit_bias: added to the logits of these token ids.
        seed: makes sampling repeatable; None draws one. A token depends on (seed, position) and
            the distribution only, never on the batch.
        stop: strings that end the output; they are not part of it.
        stop_regex: patterns, in the dialect of `Constraint.regex`, of texts that end the output:
            the match that ends first, and of several that end there the longest.
        stop_token_ids: token ids that end the output, beside the model's own EOS ids.
        ignore_eos: do not stop at the model's EOS ids.
        logprobs: give each output token's log-probability, and those of so many likeliest
            tokens; None is off. They are the model's own: before temperature, penalties, masks.
        prompt_logprobs_from: give the log-probabilities of the prompt's tokens from this index
            on; at least 1, as nothing comes before the first. What lies before may come from
            the cache.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs_from: int | None = None

    def validate(self) -> None:
        """Raises InvalidRequestError, naming the parameter and its limit."""
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 0, MAX_INT)
        check_int("min_tokens", self.min_tokens, 0, MAX_INT)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, not {self.min_tokens}",
                param="min_tokens",
            )
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_int("top_k", self.top_k, -1, MAX_INT)
        if self.top_k == 0:
            raise InvalidRequestError("top_k must be -1 (off) or at least 1, not 0", param="top_k")
        check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise InvalidRequestError("top_p must be above 0 and at most 1, not 0", param="top_p")
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if not isinstance(self.logit_bias, dict) or len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias must map at most {MAX_LOGIT_BIAS} token ids to numbers",
                param="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            check_int("logit_bias", token, 0, MAX_INT)
            check_number("logit_bias", bias, -100.0, 100.0)
        if self.seed is not None:
            check_int("seed", self.seed, 0, MAX_SEED)
        for name, stops, most, longest in (
            ("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_LENGTH),
            ("stop_regex", self.stop_regex, MAX_STOP_REGEXES, MAX_STOP_REGEX_LENGTH),
        ):
            check_sequence(name, stops, most)
            for stop in stops:
                check_text(name, stop, longest)
                if not stop:
                    raise InvalidRequestError(f"{name} must not hold empty strings", param=name)
        check_sequence("stop_token_ids", self.stop_token_ids, MAX_STOP_STRINGS)
        for token in self.stop_token_ids:
            check_int("stop_token_ids", token, 0, MAX_INT)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(
                f"ignore_eos must be true or false, not {self.ignore_eos!r}", param="ignore_eos"
            )
        if self.logprobs is not None:
            check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs_from is not None:
            check_int("prompt_logprobs_from", self.prompt_logprobs_from, 1)


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What callers need to know of a served model, so that they can tokenise and validate.

    Attributes:
        name: as given by the user (`--model`).
        context_length: most tokens of one sequence, prompt and output together.
        pool_tokens: tokens the KV pool of one model actor holds.
        vocab_size: number of token ids the model scores.
        eos_token_ids: ids that end a generation.
        dtype: of the weights.
        max_queued_requests: waiting requests one model actor accepts.
        image_placeholder: the text that stands for an image in a prompt; None where the model
            takes no images.
        own_tokens: whether token ids are the model's own; else they stand for the bytes of text,
            which is all that can be sent.
    """

    name: str
    context_length: int
    pool_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    max_queued_requests: int
    image_placeholder: str | None = None
    own_tokens: bool = True

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens one request may hold: what the context and the pool both allow."""
        return min(self.context_length, self.pool_tokens)


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller already has of an output whose model actor died; another goes on from there.

    Attributes:
        token_ids: the output tokens it has; at least one.
        text_length: characters of the text it has.
        cached, jumped: as in `Usage`, so far.
    """

    token_ids: list[int]
    text_length: int
    cached: int = 0
    jumped: int = 0


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Continue `prompt_ids`.

    Attributes:
        request_id: unique among live requests.
        prompt_ids: at least one token id.
        sampling: how to choose tokens.
        constraint: what the output must match, or None.
        fsm_debug: report each token of a constrained output: what was allowed, what was forced,
            and why.
        jump_forward: take text that the constraint forces without asking the model. The output
            is in the same language either way; only the tokens that spell it may differ.
        cache_salt: requests share cached prefixes only with requests of the same salt.
        priority: higher ones start first where the schedule policy is ``priority``, and their
            prefixes stay longer where the eviction policy is.
        timeout_s: seconds from its arrival at the engine; then it ends with
            DeadlineExceededError.
        whole: nobody looks at the output before it is complete: one Delta with all of it will do,
            which saves a message for each token.
        attempt: model actors that died with this request before. It may be the cause: until it has
            a token, it runs in batches of its own. When it begins, an empty Delta says so at once.
        emitted: go on from here instead of from the prompt's end; None for a new request. Deltas
            begin with what follows. The rest of the request, its seed included, must be as it was.
        images: what the placeholders in the prompt stand for, in their order.
        image_data: bytes of those images, by `sha256`; left out where they are known already.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    jump_forward: bool = True
    fsm_debug: bool = False
    cache_salt: str = ""
    priority: int = 0
    timeout_s: float | None = None
    whole: bool = False
    attempt: int = 0
    emitted: Emitted | None = None
    images: tuple[Image, ...] = ()
    image_data: dict[str, bytes] = {}

    def validate(self, info: ModelInfo) -> None:
        """Raises InvalidRequestError or ContextLengthError, naming parameter and limit."""
        check_text("request_id", self.request_id, MAX_ID_LENGTH)
        self.sampling.validate()
        check_int("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, 0.0, MAX_TIMEOUT_S)
        if self.constraint is not None:
            self.constraint.validate()
        check_text("cache_salt", self.cache_salt, MAX_SALT_LENGTH)
        _check_prompt("prompt", self.prompt_ids, info)
        _check_length(len(self.prompt_ids), self.sampling.max_tokens, info)
        if self.sampling.logit_bias:
            _check_token_range("logit_bias", list(self.sampling.logit_bias), info)
        check_images(self.images, self.image_data, info.name, info.image_placeholder)
        if self.emitted is not None:
            self._check_emitted(self.emitted.token_ids, info)

    def _check_emitted(self, token_ids: list[int], info: ModelInfo) -> None:
        if not 1 <= len(token_ids) < self.max_new_tokens(info):
            raise InvalidRequestError(
                f"emitted must hold at least 1 and fewer than {self.max_new_tokens(info)} tokens, "
                f"not {len(token_ids)}",
                param="emitted",
            )
        _check_token_range("emitted", token_ids, info)

    def max_new_tokens(self, info: ModelInfo) -> int:
        """The number of tokens this request may generate."""
        room = info.max_sequence_tokens - len(self.prompt_ids)
        limit = self.sampling.max_tokens
        return room if limit is None else min(limit, room)


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """Log-probabilities of several continuations of one prompt, computed over a shared prefix.

    Attributes:
        request_id: unique among live requests.
        prompt_ids: at least one token id.
        choices: token ids of each continuation, each at least one.
        cache_salt, timeout_s, attempt, images, image_data: as in GenerateRequest.
    """

    request_id: str
    prompt_ids: list[int]
    choices: list[list[int]]
    cache_salt: str = ""
    timeout_s: float | None = None
    attempt: int = 0
    images: tuple[Image, ...] = ()
    image_data: dict[str, bytes] = {}

    def validate(self, info: ModelInfo) -> None:
        """Raises InvalidRequestError or ContextLengthError, naming parameter and limit."""
        check_text("request_id", self.request_id, MAX_ID_LENGTH)
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, 0.0, MAX_TIMEOUT_S)
        check_text("cache_salt", self.cache_salt, MAX_SALT_LENGTH)
        _check_prompt("prompt", self.prompt_ids, info)
        if not 1 <= len(self.choices) <= MAX_CHOICES:
            raise InvalidRequestError(
                f"choices must hold 1 to {MAX_CHOICES} items, not {len(self.choices)}",
                param="choices",
            )
        check_images(self.images, self.image_data, info.name, info.image_placeholder)
        for choice in self.choices:
            if not choice:
                raise InvalidRequestError("choices must not be empty strings", param="choices")
            _check_token_range("choices", choice, info)
            _check_length(len(self.prompt_ids) + len(choice), 0, info)


Request = GenerateRequest | ScoreRequest


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of one request.

    Attributes:
        prompt: tokens of the prompt.
        cached: prompt tokens whose KV was found in the radix cache.
        completion: tokens generated.
        jumped: generated tokens that the constraint forced, taken without asking the model.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    jumped: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            completion=self.completion + other.completion,
            jumped=self.jumped + other.jumped,
        )


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A RadixRayError on the wire: class name, message, parameter."""

    type: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: RadixRayError) -> ErrorInfo:
        """The wire form of `error`; a class unknown to WIRE_ERRORS travels as its nearest base."""
        name = next(c.__name__ for c in type(error).__mro__ if c.__name__ in WIRE_ERRORS)
        after = error.retry_after_s if isinstance(error, OverloadedError) else None
        return cls(type=name, message=error.message, param=error.param, retry_after_s=after)

    def to_error(self) -> RadixRayError:
        """The error again, as the class it was."""
        error = WIRE_ERRORS.get(self.type, RadixRayError)(self.message, param=self.param)
        if isinstance(error, OverloadedError) and self.retry_after_s is not None:
            error.retry_after_s = self.retry_after_s
        return error


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token's natural-log probability.

    Attributes:
        top: (token id, log-probability) of the likeliest tokens, likeliest first.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one engine step added to one request.

    Attributes:
        request_id: whose.
        index: number of output tokens before this delta; lets a consumer spot loss or repeats.
        token_ids: tokens this step added, stop token included.
        jumped: how many of them a constraint forced; see `Usage`.
        text: characters that became certain; never part of a character, never part of a stop
            string.
        finish_reason: None while it runs; else ``stop``, ``length``, ``abort``, ``error``, or
            ``grammar_error`` where the constraint could go no further.
        stop_reason: the stop string, the text that a stop_regex matched, or the token id that
            ended it, or None.
        usage: on the last delta, and on the first (with what was found in the cache).
        logprobs: of `token_ids`, where the request asks for them.
        prompt_logprobs: of the prompt's tokens from `prompt_logprobs_from` on; on the first
            delta, where the request asks for them.
        choice_logprobs: on a ScoreRequest's last delta, natural-log probabilities per choice and
            token.
        grammar: of a constrained request, on the last delta.
        error: set when finish_reason is ``error``.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    jumped: int = 0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    choice_logprobs: list[list[float]] | None = None
    grammar: GrammarReport | None = None
    error: ErrorInfo | None = None


def join_deltas(deltas: list[Delta]) -> Delta:
    """One Delta in place of several of the same request that follow each other, at least one."""
    first, last = deltas[0], deltas[-1]
    if first is last:
        return last
    logprobs = [item for delta in deltas for item in delta.logprobs or ()]
    return Delta(
        request_id=last.request_id,
        index=first.index,
        token_ids=[token for delta in deltas for token in delta.token_ids],
        jumped=sum(delta.jumped for delta in deltas),
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        usage=last.usage or first.usage,
        logprobs=logprobs or None,
        prompt_logprobs=first.prompt_logprobs,
        choice_logprobs=last.choice_logprobs,
        grammar=last.grammar,
        error=last.error,
    )


class Completion(msgspec.Struct, kw_only=True):
    """The whole output of one GenerateRequest: its Deltas joined.

    Attributes:
        token_ids: all output tokens, stop token included.
        text: the output, without stop token and stop string.
        finish_reason: ``stop``, ``length``, ``abort`` or ``grammar_error``.
        stop_reason: the stop string or token id that ended it, or None.
        grammar: of a constrained request.
    """

    request_id: str
    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: int | str | None
    usage: Usage
    grammar: GrammarReport | None = None


class ScoreResult(msgspec.Struct, kw_only=True):
    """The answer to one ScoreRequest.

    Attributes:
        logprobs: natural-log probability of each token of each choice, in the request's order.
        usage: `prompt` and `cached` of the shared prompt; `completion` is 0.
    """

    request_id: str
    logprobs: list[list[float]]
    usage: Usage


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller needs to rebuild the model's tokenizer without the model's folder.

    Attributes:
        tokenizer_json: the `tokenizers` library's file.
        tokenizer_config: contents of ``tokenizer_config.json``.
        chat_template: Jinja source, or None where the model has none.
    """

    tokenizer_json: bytes
    tokenizer_config: bytes
    chat_template: str | None = None


def sampling_from(params: dict[str, Any]) -> SamplingParams:
    """SamplingParams from loose keyword arguments, validated.

    `stop` and `stop_regex` may be one string or any sequence; None values mean "not given".

    Raises:
        InvalidRequestError: an unknown name, a wrong type, or a value outside its limit.
    """
    known = SamplingParams.__struct_fields__
    given = {name: value for name, value in params.items() if value is not None}
    for name in given:
        if name not in known:
            raise InvalidRequestError(
                f"unknown parameter {name!r}; known are {', '.join(sorted(known))}", param=name
            )
    for name in ("stop", "stop_regex"):
        if isinstance(given.get(name), str):
            given[name] = (given[name],)
    for name in ("stop", "stop_regex", "stop_token_ids"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    sampling = SamplingParams(**given)
    sampling.validate()
    return sampling


def _check_token_range(name: str, token_ids: list[int], info: ModelInfo) -> None:
    low, high = min(token_ids), max(token_ids)
    if low < 0 or high >= info.vocab_size:
        raise InvalidRequestError(
            f"{name} holds token id {low if low < 0 else high}; ids go from 0 to "
            f"{info.vocab_size - 1}",
            param=name,
        )


def _check_prompt(name: str, prompt_ids: list[int], info: ModelInfo) -> None:
    if not prompt_ids:
        raise InvalidRequestError(
            f"{name} is empty; at least one token is needed to continue from", param=name
        )
    _check_token_range(name, prompt_ids, info)


def _check_length(prompt: int, max_tokens: int | None, info: ModelInfo) -> None:
    # With max_tokens open, there must be room for at least one token.
    new = 1 if max_tokens is None else max_tokens
    for limit, what in (
        (info.context_length, "the model's context"),
        (info.pool_tokens, "the KV pool of a model actor"),
    ):
        if prompt + min(new, 1) > limit:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens, but {what} holds {limit} with the output",
                param="prompt",
            )
        if prompt + new > limit:
            raise ContextLengthError(
                f"the prompt's {prompt} tokens plus max_tokens {new} exceed the {limit} tokens "
                f"that {what} holds",
                param="max_tokens",
            )
