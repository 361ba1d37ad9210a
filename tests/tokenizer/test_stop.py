from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixray.tokenizer.stop import StopStrings

ALPHABET = st.text("ab", min_size=1, max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the shortest beginning of `text` that ends in a stop, the longest of them."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(stops: list[str], parts: list[str]) -> tuple[str, str | None]:
    search = StopStrings(stops)
    out = ""
    for part in parts:
        text, matched = search.push(part)
        out += text
        if matched:
            assert search.push("more") == ("", matched)
            assert search.finish() == ""
            return out, matched
    return out + search.finish(), None


@given(stops=st.lists(ALPHABET, max_size=3), parts=st.lists(st.text("ab", max_size=5), max_size=6))
def test_any_cut_gives_the_definition(stops: list[str], parts: list[str]) -> None:
    assert run(stops, parts) == first_stop("".join(parts), stops)


@given(stops=st.lists(ALPHABET, min_size=1, max_size=3), text=st.text("ab", max_size=12))
def test_holds_back_no_more_than_it_must(stops: list[str], text: str) -> None:
    search = StopStrings(stops)
    emitted = ""
    for n, char in enumerate(text, 1):
        out, matched = search.push(char)
        if matched:
            return
        emitted += out
        held = text[len(emitted) : n]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_examples() -> None:
    assert run(["END"], ["a E", "N", "E", "ND tail"]) == ("a ENE"[:-1], "END")
    assert run(["\n\n"], ["one\n", "two\n", "\nthree"]) == ("one\ntwo", "\n\n")
    assert run(["abcd", "bc"], ["abcd"]) == ("a", "bc")
    assert run([], ["text"]) == ("text", None)
    assert run(["日本"], ["日", "曜"]) == ("日曜", None)
