"""Programs in SGLang's own language, run by its own frontend against a server; results as JSON.

    python sglang_programs.py http://127.0.0.1:8000 [API_KEY]

Needs ``pip install --no-deps sglang==0.5.23`` and ``requests aiohttp numpy pydantic tqdm pybase64
ipython msgspec``. `import sglang` itself would load its serving runtime, with torch and CUDA, so
the bare package is registered first, and only its language loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from typing import Any

spec = importlib.util.find_spec("sglang")
assert spec is not None and spec.submodule_search_locations
package = types.ModuleType("sglang")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["sglang"] = package
sgl: Any = importlib.import_module("sglang.lang.api")
choices: Any = importlib.import_module("sglang.lang.choices")
endpoint: Any = importlib.import_module("sglang.lang.backend.runtime_endpoint")

SHOTS = "The capital of Japan is Tokyo.\nThe capital of Egypt is Cairo.\n"
COUNTRIES = ["France", "Italy", "Spain", "Norway"]
SELECTS = [
    ["The capital of France is", [" Paris", " London", " a city"]],
    ["Two plus two is", [" four", " five", " a number that I forgot"]],
    ["The opposite of hot is", [" cold", " warm"]],
]
METHODS = [
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
]


def few_shot(s: Any, country: str) -> None:
    s += SHOTS + f"The capital of {country} is"
    s += sgl.gen("city", max_tokens=8, stop=".")


def tips(s: Any) -> None:
    s += "Three tips about sleep.\n"
    forks = s.fork(3)
    for number, fork in enumerate(forks, start=1):
        fork += f"Tip {number}:"
        fork += sgl.gen("tip", max_tokens=12, stop="\n")
    forks.join()
    for fork in forks:
        s += "-" + fork["tip"] + "\n"
    s += "The best is"
    s += sgl.gen("best", max_tokens=12, stop="\n")


def choose(s: Any, start: str, options: list[str], method: str) -> None:
    s += start
    s += sgl.select("choice", options, choices_method=getattr(choices, method))


def date(s: Any) -> None:
    s += "The war ended on"
    s += sgl.gen("date", max_tokens=16, regex=" [0-9]{4}-[0-9]{2}-[0-9]{2}")
    s += " and lasted"
    s += sgl.gen("years", max_tokens=8, regex=" [0-9]{1,2} years")


def chat(s: Any) -> None:
    s += sgl.system("Be short.")
    s += sgl.user("Hello")
    s += sgl.assistant(sgl.gen("first", max_tokens=8))
    s += sgl.user("And now?")
    s += sgl.assistant(sgl.gen("second", max_tokens=8))


def logprobs(s: Any) -> None:
    s += SHOTS
    s += sgl.gen(
        "line",
        max_tokens=6,
        return_logprob=True,
        logprob_start_len=4,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
    )


def results() -> dict[str, Any]:
    """What each program gave, greedily."""
    batch = sgl.function(few_shot).run_batch(
        [{"country": country} for country in COUNTRIES], temperature=0, num_threads=4
    )
    forked = sgl.function(tips).run(temperature=0)
    dated = sgl.function(date).run(temperature=0)
    chatted = sgl.function(chat).run(temperature=0)
    scored = sgl.function(logprobs).run(temperature=0)
    selected = {}
    for method in METHODS:
        for i, (start, options) in enumerate(SELECTS):
            state = sgl.function(choose).run(
                start=start, options=options, method=method, temperature=0
            )
            meta = state.get_meta_info("choice")
            selected[f"{method} {i}"] = state["choice"], meta["input_token_logprobs"]
    streamed = sgl.function(few_shot).run(country="France", temperature=0, stream=True)
    text = "".join(streamed.text_iter())
    watched = sgl.function(few_shot).run(country="France", temperature=0, stream=True)
    # A program that ends before it is looked at gives the frontend nothing to iterate over.
    city = "".join(watched.text_iter(var_name="city")) or watched["city"]
    return {
        "few_shot": [state["city"] for state in batch],
        "tips": [forked.text(), forked["best"]],
        "date": [dated["date"], dated["years"]],
        "chat": chatted.text(),
        "line": scored["line"],
        "scores": {k: v for k, v in scored.get_meta_info("line").items() if "logprobs" in k},
        "select": selected,
        "stream": text,
        "stream_of_city": city,
    }


if __name__ == "__main__":
    backend = endpoint.RuntimeEndpoint(sys.argv[1], *sys.argv[2:])
    sgl.set_default_backend(backend)
    backend.cache_prefix(SHOTS)
    found = results()
    backend.flush_cache()
    again = results()
    differ = {name: (found[name], again[name]) for name in found if found[name] != again[name]}
    assert not differ, f"not the same with a cold cache: {differ}"
    print(json.dumps(found | {"model": backend.get_model_name()}))
