"""Drives an engine to the end of its requests and joins their Deltas."""

from __future__ import annotations

from radixray.engine.engine import Engine
from radixray.fsm.matcher import Matcher
from radixray.protocol import (
    Completion,
    Delta,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
)

GREEDY = SamplingParams(temperature=0, max_tokens=24)


class EngineDriver:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._next = 0

    def request(
        self, prompt_ids: list[int], sampling: SamplingParams = GREEDY, cache_salt: str = ""
    ) -> GenerateRequest:
        self._next += 1
        return GenerateRequest(
            request_id=f"r{self._next}",
            prompt_ids=prompt_ids,
            sampling=sampling,
            cache_salt=cache_salt,
        )

    def drain(self) -> dict[str, list[Delta]]:
        """Steps until nothing is left; the Deltas of each request."""
        found: dict[str, list[Delta]] = {}
        for _ in range(100_000):
            if not self.engine.has_work:
                return found
            for delta in self.engine.step().deltas:
                found.setdefault(delta.request_id, []).append(delta)
        raise AssertionError("the engine does not come to an end")

    def generate(
        self,
        prompts: list[list[int]],
        sampling: SamplingParams | list[SamplingParams] = GREEDY,
        *,
        cache_salt: str = "",
        matchers: list[Matcher] | None = None,
    ) -> list[Completion]:
        """Completions of prompts that all run at once."""
        requests = []
        for index, prompt in enumerate(prompts):
            params = sampling[index] if isinstance(sampling, list) else sampling
            request = self.request(prompt, params, cache_salt)
            requests.append(request)
            self.engine.add(request, matchers[index] if matchers else None)
        deltas = self.drain()
        return [join(deltas[request.request_id]) for request in requests]

    def one(
        self, prompt: list[int], sampling: SamplingParams = GREEDY, **kwargs: str
    ) -> Completion:
        return self.generate([prompt], sampling, **kwargs)[0]

    def score(self, prompt: list[int], choices: list[list[int]]) -> list[Delta]:
        self._next += 1
        self.engine.add(
            ScoreRequest(request_id=f"s{self._next}", prompt_ids=prompt, choices=choices)
        )
        return self.drain()[f"s{self._next}"]


def join(deltas: list[Delta]) -> Completion:
    """One Completion of a request's Deltas; fails if any token is lost or repeated."""
    token_ids: list[int] = []
    for delta in deltas:
        assert delta.index == len(token_ids)
        assert delta.error is None, delta.error
        token_ids += delta.token_ids
    last = deltas[-1]
    assert last.finish_reason is not None and last.usage is not None
    assert last.usage.completion == len(token_ids)
    return Completion(
        request_id=last.request_id,
        token_ids=token_ids,
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        usage=last.usage,
    )
