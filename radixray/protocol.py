"""The messages between programs, the scheduler actor and model actors: what is asked.

What comes back is in `radixray.answers`, how tokens are chosen in `radixray.sampling`; all of that
can be imported from here. Plain `msgspec.Struct`s: they can be printed, replayed, sent as msgpack.
Token ids travel, not text (`design.md`: tokenise once, at the edge).
"""

from __future__ import annotations

import msgspec

from radixray.answers import (
    Completion,
    Delta,
    ErrorInfo,
    ScoreResult,
    TokenLogprob,
    Usage,
    join_deltas,
)
from radixray.checks import check_int, check_number, check_text
from radixray.constraint import Constraint
from radixray.errors import ContextLengthError, InvalidRequestError
from radixray.images import Image, check_images
from radixray.sampling import (
    MAX_INT,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_LENGTH,
    MAX_STOP_REGEX_LENGTH,
    MAX_STOP_REGEXES,
    MAX_STOP_STRINGS,
    SamplingParams,
    sampling_from,
)

__all__ = [
    "MAX_CHOICES",
    "MAX_ID_LENGTH",
    "MAX_INT",
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_PRIORITY",
    "MAX_SALT_LENGTH",
    "MAX_SEED",
    "MAX_STOP_LENGTH",
    "MAX_STOP_REGEXES",
    "MAX_STOP_REGEX_LENGTH",
    "MAX_STOP_STRINGS",
    "MAX_TIMEOUT_S",
    "PROTOCOL_VERSION",
    "Completion",
    "Constraint",
    "Delta",
    "Emitted",
    "ErrorInfo",
    "GenerateRequest",
    "Handle",
    "ModelInfo",
    "Request",
    "SamplingParams",
    "ScoreRequest",
    "ScoreResult",
    "TokenLogprob",
    "TokenizerFiles",
    "Usage",
    "join_deltas",
    "sampling_from",
]

PROTOCOL_VERSION = 1

MAX_CHOICES = 1024
MAX_PRIORITY = 1000
MAX_TIMEOUT_S = 86_400.0
MAX_SALT_LENGTH = 1024
MAX_ID_LENGTH = 256


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


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """Names a request to those who do not wait for it. Several may have the same.

    Attributes:
        owner: whose request it is; nobody else's handle finds it.
        rid: the owner's name for it. That of the batch `r` finds `r_0`, `r_1` and so on, too, and
            an empty one finds all.
    """

    owner: str
    rid: str

    def finds(self, other: Handle) -> bool:
        """Whether `other` is what this names."""
        rid = self.rid
        same = not rid or other.rid == rid or other.rid.startswith(f"{rid}_")
        return same and other.owner == self.owner


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
        session: whose turn it is in: a conversation, an agent. May decide where it runs
            (`DeploymentConfig.sticky_sessions`, and the policy ``consistent_hash``).
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
        handle: whose it is, and what its owner calls it: so it is found by `EndsByHandle.end`.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    jump_forward: bool = True
    fsm_debug: bool = False
    cache_salt: str = ""
    session: str = ""
    priority: int = 0
    timeout_s: float | None = None
    whole: bool = False
    attempt: int = 0
    emitted: Emitted | None = None
    images: tuple[Image, ...] = ()
    image_data: dict[str, bytes] = {}
    handle: Handle | None = None

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
        check_text("session", self.session, MAX_ID_LENGTH)
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
        cache_salt, session, timeout_s, attempt, images, image_data: as in GenerateRequest.
    """

    request_id: str
    prompt_ids: list[int]
    choices: list[list[int]]
    cache_salt: str = ""
    session: str = ""
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
        check_text("session", self.session, MAX_ID_LENGTH)
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
