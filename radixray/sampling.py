"""How tokens are chosen, and when an output stops."""

from __future__ import annotations

from typing import Any

import msgspec

from radixray.checks import check_int, check_number, check_sequence, check_text
from radixray.errors import InvalidRequestError

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_REGEXES = 8
MAX_STOP_REGEX_LENGTH = 256
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_SEED = 2**63 - 1
MAX_INT = 2**31 - 1


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
        elif name in given and not isinstance(given[name], list | tuple):
            raise InvalidRequestError(
                f"{name} must be a string or a list of strings, not {given[name]!r:.80}", param=name
            )
    for name in ("stop", "stop_regex", "stop_token_ids"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    sampling = SamplingParams(**given)
    sampling.validate()
    return sampling
