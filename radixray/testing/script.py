"""A transport whose answers a test writes itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from radixray.errors import NotRecordedError
from radixray.protocol import (
    MAX_INT,
    Delta,
    GenerateRequest,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
    Usage,
)
from radixray.reports import EngineStats
from radixray.tokenizer.byte_tokenizer import ByteTokenizer
from radixray.tokenizer.chat_template import ChatTemplate

Answer = str | Exception | Callable[[str], str]
Answers = Mapping[str, Answer | Sequence[Answer]]

_WORD = re.compile(r"\s*\S+|\s+")
_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)


class Script:
    """A `Transport` that answers a prompt by the key that occurs last in it.

    Args:
        answers: parts of prompts, and what is answered: a text; an error to be raised; a function
            of the prompt; or several of them, taken in turn. A `select` takes the choice that is
            answered.

    Attributes:
        prompts: all that was asked, roles as lines ``user:``.
    """

    def __init__(self, answers: Answers) -> None:
        self.prompts: list[str] = []
        self._answers = answers
        self._taken = dict.fromkeys(answers, 0)
        self._tokenizer = ByteTokenizer(ChatTemplate(_TEMPLATE, {}))

    @property
    def info(self) -> ModelInfo:
        """A model without limits."""
        return ModelInfo(
            name="scripted",
            context_length=MAX_INT,
            pool_tokens=MAX_INT,
            vocab_size=self._tokenizer.vocab_size,
            eos_token_ids=(),
            dtype="",
            max_queued_requests=MAX_INT,
        )

    @property
    def tokenizer(self) -> ByteTokenizer:
        """A token for each byte."""
        return self._tokenizer

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The answer up to a stop string, word by word; `max_tokens` does not cut it.

        Raises:
            NotRecordedError: no key occurs in the prompt, or it has no answer left.
        """
        await asyncio.sleep(0)
        usage = Usage(prompt=len(request.prompt_ids))
        index, stop, words = 0, None, []
        if request.sampling.max_tokens != 0:
            text, stop = _stopped(self._answer(request.prompt_ids), request.sampling.stop)
            words = _WORD.findall(text)
        for word in words:
            ids = self._tokenizer.encode(word)
            yield Delta(request_id=request.request_id, index=index, token_ids=ids, text=word)
            index += len(ids)
            await asyncio.sleep(0)
        usage.completion = index
        yield Delta(
            request_id=request.request_id,
            index=index,
            finish_reason="stop" if request.sampling.max_tokens != 0 else "length",
            stop_reason=stop,
            usage=usage,
        )

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """The choice answered is certain, all others are not; raises as `generate`."""
        await asyncio.sleep(0)
        choices = [self._tokenizer.decode(choice) for choice in request.choices]
        # Of one token: choices scored by themselves, for comparison.
        answer = None if len(request.prompt_ids) == 1 else self._answer(request.prompt_ids)
        if answer is not None and answer not in choices:
            raise NotRecordedError(f"the script answers {answer!r}, the choices are {choices}")
        return ScoreResult(
            request_id=request.request_id,
            logprobs=[
                [0.0 if answer in (None, text) else -1.0] * len(ids)
                for text, ids in zip(choices, request.choices, strict=True)
            ],
            usage=Usage(prompt=len(request.prompt_ids)),
        )

    async def flush(self) -> int:
        """0: there is no cache."""
        return 0

    async def stats(self) -> dict[str, EngineStats]:
        """None: there is no engine."""
        return {}

    def _answer(self, prompt_ids: list[int]) -> str:
        prompt = self._tokenizer.decode(prompt_ids)
        self.prompts.append(prompt)
        places = [(prompt.rfind(key) + len(key), len(key), key) for key in self._answers]
        found = [place for place in places if prompt[: place[0]].endswith(place[2])]
        if not found:
            keys = ", ".join(map(repr, self._answers))
            raise NotRecordedError(f"no key of the script ({keys}) is in {prompt[-200:]!r}")
        key = max(found)[2]
        answer = self._answers[key]
        if isinstance(answer, Sequence) and not isinstance(answer, str):
            number = self._taken[key]
            if number >= len(answer):
                raise NotRecordedError(
                    f"the script has {number} answers to {key!r}, and is asked once more"
                )
            self._taken[key] = number + 1
            answer = answer[number]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, str) else answer(prompt)


def _stopped(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    found = min(((text.find(stop), stop) for stop in stops if stop in text), default=None)
    return (text, None) if found is None else (text[: found[0]], found[1])
