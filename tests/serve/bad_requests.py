"""Ill-formed requests, and what each is told: status, and the parameter at fault."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fake_transport import INFO

from radixray.protocol import MAX_SEED
from radixray.serve.http_config import HttpConfig

MODEL = INFO.name
USER = {"role": "user", "content": "x"}
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "x"},
    "/v1/chat/completions": {"model": MODEL, "messages": [USER]},
    "/v1/responses": {"model": MODEL, "input": "x"},
    "/generate": {"text": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
    "/abort_request": {"rid": "x"},
}
"""A good body of each route."""

TEXT, CHAT, RESPONSES, NATIVE, TOKENIZE, DETOKENIZE, ABORT = BASES
OPENAI = (TEXT, CHAT)
GENERATING = (TEXT, CHAT, RESPONSES)


@dataclass(frozen=True)
class Bad:
    """One request.

    Attributes:
        param: the parameter that the answer names; None where none is at fault.
        body: as it is sent.
    """

    path: str
    param: str | None
    body: bytes
    status: int = 400
    method: str = "POST"
    code: str | None = None

    @property
    def id(self) -> str:
        """Short, for the test's name."""
        return f"{self.method} {self.path} {self.body[:70].decode(errors='replace')}"


def _tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {}} | changes}


def _fields(paths: tuple[str, ...], *given: tuple[dict[str, Any], str]) -> list[Bad]:
    """Good bodies with fields that are not."""
    return [
        Bad(path, param, json.dumps(BASES[path] | fields).encode())
        for path in paths
        for fields, param in given
    ]


def _raw(paths: tuple[str, ...], *given: tuple[bytes, str | None]) -> list[Bad]:
    """Bodies that no JSON library writes; ``BASE`` stands for the fields of a good one."""
    return [
        Bad(path, param, body.replace(b"BASE", json.dumps(BASES[path])[1:-1].encode()))
        for path in paths
        for body, param in given
    ]


def _nested(path: str, outer: str, *given: tuple[dict[str, Any], str]) -> list[Bad]:
    return _fields((path,), *(({outer: fields}, f"{outer}.{param}") for fields, param in given))


NOT_JSON = _raw(
    (TEXT, CHAT, RESPONSES, NATIVE, TOKENIZE, DETOKENIZE, ABORT),
    (b"", None),
    (b"{BASE", None),
    (b"{BASE,}", None),
    (b"{'model': 'x'}", None),
    (b"{BASE} {BASE}", None),
    (b"\xff\xfe{}", None),
    (b'{BASE, "x": "\xc3\x28"}', "x"),
    (b'{BASE, "x": "\\ud800"}', None),
    (b'{BASE, "x": "\n"}', None),
    (b'{BASE, "x": NaN}', None),
    (b'{BASE, "x": -Infinity}', None),
    (b'{BASE, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    (b"[]", None),
    (b"null", None),
    (b'"x"', None),
    (b"7", None),
)

NUMBERS = _raw(
    OPENAI,
    (b'{BASE, "temperature": 1e999}', "temperature"),
    (b'{BASE, "n": 1e999}', "n"),
    (b'{BASE, "seed": ' + b"9" * 5000 + b"}", "seed"),
    (b'{BASE, "max_tokens": 1' + b"0" * 30 + b"}", "max_tokens"),
    (b'{BASE, "logit_bias": {"5": 1e400}}', "logit_bias"),
    (b'{BASE, "n": 1, "n": 0}', "n"),  # of two, the last counts
)

SAMPLING = _fields(
    OPENAI,
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 101}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 101}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"n": True}, "n"),
    ({"seed": -1}, "seed"),
    ({"seed": MAX_SEED + 1}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"max_tokens": INFO.context_length}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias"),
    ({"logit_bias": {"5": -101}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {str(INFO.vocab_size): 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
    ({"logit_bias": {"five": 1}}, "logit_bias"),
    ({"logit_bias": {"1.5": 1}}, "logit_bias"),
    ({"logit_bias": {"": 1}}, "logit_bias"),
    ({"logit_bias": [[5, 1]]}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [2**31]}, "stop_token_ids"),
    ({"stop_token_ids": ["5"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [5] * 65}, "stop_token_ids"),
    ({"ignore_eos": "no"}, "ignore_eos"),
    ({"priority": 1001}, "priority"),
    ({"priority": -1001}, "priority"),
    ({"priority": 0.5}, "priority"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"cache_salt": "x" * 1025}, "cache_salt"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"return_token_ids": "yes"}, "return_token_ids"),
    ({"fsm_debug": 2}, "fsm_debug"),
    ({"no_such": 1}, "no_such"),
    ({"": 1}, ""),
    ({"model": 5}, "model"),
)

CONSTRAINTS = _fields(
    OPENAI,
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "text", "strict": True}}, "response_format.strict"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": "yes"}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice[0]"),
    ({"guided_regex": ["a"]}, "guided_regex"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "regex"),
    ({"structured_outputs": {"predicate": "x"}}, "structured_outputs.predicate"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.regex"),
)

PROMPTS = _fields(
    (TEXT,),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [INFO.vocab_size]}, "prompt"),
    ({"prompt": [2**64]}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [[[1]]]}, "prompt[0][0]"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": ["x"] * 1025}, "prompt"),
    ({"prompt": "nearly " * INFO.context_length}, "prompt"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"messages": [USER]}, "messages"),
)

CHATS = _fields(
    (CHAT,),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": {"0": USER}}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": None, "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [USER | {"colour": "red"}]}, "messages[0].colour"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
        "messages[0].tool_calls[0].function",
    ),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [_tool(name="")]}, "tools[0].function.name"),
    ({"tools": [_tool(name="no blanks")]}, "tools[0].function.name"),
    ({"tools": [_tool(name="x" * 65)]}, "tools[0].function.name"),
    ({"tools": [_tool(), _tool()]}, "tools[1].function.name"),
    ({"tools": [_tool(parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [_tool(parameters="{}")]}, "tools[0].function.parameters"),
    ({"tools": [_tool(code="x")]}, "tools[0].function.code"),
    ({"tools": [_tool(name=f"f{i}") for i in range(129)]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [_tool()], "tool_choice": "sometimes"}, "tool_choice"),
    (
        {
            "tools": [_tool()],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        "tool_choice",
    ),
    ({"tools": [_tool()], "regex": "a"}, "regex"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"prompt": "x"}, "prompt"),
)

RESPONSE_BODIES = _fields(
    (RESPONSES,),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": ["x"]}, "input[0]"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": INFO.context_length}, "max_output_tokens"),
    ({"temperature": 101}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"seed": -1}, "seed"),
    ({"priority": 1001}, "priority"),
    ({"metadata": {"a": 1}}, "metadata[...]"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"no_such": 1}, "no_such"),
)

NATIVE_BODIES = [
    *_nested(
        NATIVE,
        "sampling_params",
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": INFO.context_length}, "max_new_tokens"),
        ({"min_new_tokens": 200}, "min_new_tokens"),
        ({"sampling_seed": -1}, "sampling_seed"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop": ""}, "stop"),
        ({"stop_regex": ["a"] * 9}, "stop_regex"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"json_schema": "{"}, "json_schema"),
        ({"regex": "a", "ebnf": "b"}, "regex"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"no_such": 1}, "no_such"),
    ),
    *_fields(
        (NATIVE,),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": None}, "text"),
        ({"text": 5}, "text"),
        ({"input_ids": [1]}, "text"),
        ({"text": None, "input_ids": []}, "input_ids"),
        ({"text": None, "input_ids": [1, [2]]}, "input_ids"),
        ({"text": None, "input_ids": [-1]}, "input_ids"),
        ({"text": None, "input_ids": [INFO.vocab_size]}, "input_ids"),
        ({"text": ["x"] * 1025}, "text"),
        ({"text": "nearly " * INFO.context_length}, "text"),
        ({"sampling_params": []}, "sampling_params"),
        ({"rid": 5}, "rid"),
        ({"rid": ["a", "b"]}, "rid"),
        ({"logprob_start_len": -2}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": 2**40}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": 5}, "logprob_start_len"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"priority": 1001}, "priority"),
        ({"image_data": "x"}, "image_data"),
        ({"no_such": 1}, "no_such"),
    ),
]

TOKENS = [
    *_fields(
        (TOKENIZE,),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": [USER]}, "prompt"),
        ({"prompt": None, "messages": []}, "messages"),
        ({"prompt": "x" * 2_000_000}, "prompt"),
        ({"add_special_tokens": "no"}, "add_special_tokens"),
        ({"no_such": 1}, "no_such"),
    ),
    *_fields(
        (DETOKENIZE,),
        ({"tokens": None}, "tokens"),
        ({"tokens": "5"}, "tokens"),
        ({"tokens": ["5"]}, "tokens[0]"),
        ({"tokens": [-1]}, "tokens"),
        ({"tokens": [INFO.vocab_size]}, "tokens"),
        ({"tokens": [2**70]}, "tokens"),
    ),
    *_fields(
        (ABORT,),
        ({"rid": ""}, "rid"),
        ({"rid": 5}, "rid"),
        ({"abort_all": True}, "rid"),
        ({"abort_all": "yes"}, "abort_all"),
    ),
]

MODELS = [
    Bad(path, "model", json.dumps(body | {"model": "other"}).encode(), 404, code="model_not_found")
    for path, body in BASES.items()
    if path in (*GENERATING, TOKENIZE, DETOKENIZE)
]
MISSING = [
    Bad(path, name, json.dumps({k: v for k, v in body.items() if k != name}).encode())
    for path, body in BASES.items()
    for name in body
]
ROUTES = [
    *(Bad(path, None, b"", 405, "GET", "method_not_allowed") for path in BASES),
    *(Bad(TEXT, None, b"{}", 405, m, "method_not_allowed") for m in ("PUT", "DELETE", "PATCH")),
    Bad("/v1/models", None, b"{}", 405, code="method_not_allowed"),
    Bad("/health", None, b"{}", 405, code="method_not_allowed"),
    Bad("/v1/models/other", "model", b"", 404, "GET", "model_not_found"),
    Bad("/v1/nothing", None, b"{}", 404, code="not_found"),
    Bad("/V1/completions", None, b"{}", 404, code="not_found"),
    Bad("/v1/%2e%2e/completions", None, b"{}", 404, code="not_found"),
    Bad("/", None, b"", 404, "GET", "not_found"),
    Bad("/v1/embeddings", "model", b'{"model": "x", "input": "x"}'),
    Bad(TEXT, None, b" " * (HttpConfig().max_body_bytes + 1), 413, code="request_too_large"),
]

BAD_REQUESTS = [
    *NOT_JSON,
    *NUMBERS,
    *SAMPLING,
    *CONSTRAINTS,
    *PROMPTS,
    *CHATS,
    *RESPONSE_BODIES,
    *NATIVE_BODIES,
    *TOKENS,
    *MODELS,
    *MISSING,
    *ROUTES,
]
