"""The model's chat template: messages to the text it was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radixray.errors import TemplateError

SPECIAL_VARIABLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Special tokens that a template may name."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """Renders as transformers' ``apply_chat_template(tokenize=False)``, byte for byte.

    Args:
        source: the Jinja source, or None where the model has none.
        variables: special tokens by name, which the template may use.
    """

    def __init__(self, source: str | None, variables: Mapping[str, str]) -> None:
        self.source = source
        self.variables = dict(variables)

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **extra: Any
    ) -> str:
        """The text of `messages`.

        Args:
            messages: mappings with `role`, `content` and what else the template reads.
            add_generation_prompt: end with what opens the model's answer.
            extra: further variables of the template, e.g. `tools`.

        Raises:
            TemplateError: there is no template, it cannot be compiled, or it fails; the message
                is the template's own.
        """
        variables = {
            "tools": None,
            "documents": None,
            **self.variables,
            **_plain(extra),
            "messages": [_message(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._compiled
        try:
            return template.render(variables)
        except Exception as error:  # a template is a foreign program: it may raise anything
            raise TemplateError(_reason(error), param="messages") from error

    def check(self, text: str) -> None:
        """Raises InvalidRequestError: text that the template's own could not be told from.

        A model's template has none: what is special is for its tokenizer to say.
        """

    @cached_property
    def _compiled(self) -> jinja2.Template:
        if self.source is None:
            raise TemplateError("the model has no chat template")
        try:
            return _environment().from_string(self.source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is invalid: {_reason(error)}") from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(
            f"a message must be a mapping with role and content, not {message!r:.80}",
            param="messages",
        )
    # A key set to None means the same as a missing one, which is what templates test for.
    plain = {key: value for key, value in _plain(message).items() if value is not None}
    # One reasoning text goes by several names; each template reads its own.
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any) -> Any:
    """Only JSON's types reach a template: methods of other objects might be harmful."""
    if value is None or isinstance(value, bool):
        return value
    # Subclasses, such as enums, are taken down to the plain value.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return f"<{type(value).__name__}>"


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(Extension):
    """``{% generation %}`` marks the model's own words, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes characters for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _reason(error: Exception) -> str:
    message = str(error)
    if isinstance(error, jinja2.TemplateError):
        return message
    return f"the chat template failed: {type(error).__name__}: {message}"
