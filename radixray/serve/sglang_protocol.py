"""SGLang's own protocol as data; names and meaning are SGLang's."""

from __future__ import annotations

from typing import Any

import msgspec


class NativeSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``sampling_params``; a number left out is as at SGLang."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    min_new_tokens: int = 0
    sampling_seed: int | None = None
    n: int = 1
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    regex: str | None = None
    json_schema: dict[str, Any] | str | None = None
    ebnf: str | None = None
    stop_regex: str | tuple[str, ...] = ()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class NativeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /generate``: `text` or `input_ids`, of one prompt or of several."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: NativeSampling = NativeSampling()
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False
    stream: bool = False
    rid: str | list[str] | None = None
    priority: int = 0

    @property
    def score_from(self) -> int:
        """The first prompt token to tell of; -1 is none.

        Where nothing is generated, only the prompt's log-probabilities can be meant.
        """
        if self.logprob_start_len is not None:
            return self.logprob_start_len
        return 0 if self.sampling_params.max_new_tokens == 0 else -1


Scored = tuple[float | None, int, str | None]
"""A token's log-probability, its id, and its text where asked for."""


class MetaInfo(msgspec.Struct, omit_defaults=True):
    """All that is known of an answer beside its text; log-probabilities where asked for.

    The prompt's very first token has no log-probability. SGLang's server gives none for the one at
    `logprob_start_len`, wherever that is, and two of its frontend's choices methods fail on that.
    """

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    input_token_logprobs: list[Scored] | msgspec.UnsetType = msgspec.UNSET
    output_token_logprobs: list[Scored] | msgspec.UnsetType = msgspec.UNSET
    input_top_logprobs: list[list[Scored] | None] | msgspec.UnsetType = msgspec.UNSET
    output_top_logprobs: list[list[Scored] | None] | msgspec.UnsetType = msgspec.UNSET


class NativeAnswer(msgspec.Struct, omit_defaults=True):
    """One answer, or what there is of it so far; `index` says which of a streamed batch."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | msgspec.UnsetType = msgspec.UNSET


class NativeModelInfo(msgspec.Struct):
    """The served model."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True


class NativeServerInfo(msgspec.Struct):
    """The served model and what the model actors are doing."""

    model_path: str
    context_length: int
    max_total_num_tokens: int
    dtype: str
    version: str
    internal_states: list[Any]
