"""GBNF: its syntax, and that both ways of running it have the same language."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable

import numpy as np
import pytest
from fsm_vocabularies import random_vocabulary

from radixray.errors import ConstraintError
from radixray.fsm import accepts, prefix_ok
from radixray.fsm.byte_automaton import ByteAutomaton
from radixray.fsm.gbnf import read_rules
from radixray.fsm.gbnf_lowering import read_gbnf, regular_rules
from radixray.fsm.grammar_constraint import GrammarConstraint
from radixray.fsm.lark_writer import lark_of
from radixray.fsm.strings import byte_vocabulary
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import Constraint


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("root ::= foo\n", "'foo' is not defined", "line 1, column 10"),
        ('a ::= "x"\n', "no rule 'root'", "line 1, column 1"),
        ('root ::= "a\n', "text is never closed", "line 1, column 10"),
        ("root ::= [a-", "class is never closed", "line 1, column 10"),
        ('root ::= ("a"\n b ::= "c"', "parenthesis is never closed", "line 1, column 10"),
        ('root ::= "a")', "')' was not expected", "line 1, column 13"),
        ('root ::= "a"\n\nroot ::= "b"', "defined twice", "line 3, column 1"),
        ("root ::= [z-a]", "range's end", "line 1, column 11"),
        ('root ::= "a"{3,2}', "below its first", "line 1, column 13"),
        ('root ::= "a"{x}', "a repeat is", "line 1, column 13"),
        ('root ::= "a"{99999}', "at most 20000", "line 1, column 13"),
        (r'root ::= "\q"', "no escape", "line 1, column 11"),
        (r'root ::= "\uD800"', "no character", "line 1, column 11"),
        (r'root ::= "\UFFFFFFFF"', "no character", "line 1, column 11"),
        ('root ::= "a" ? ? $', "'$' was not expected", "line 1, column 18"),
        ('root = "a"', "'::=' was expected", "line 1, column 5"),
        ("root ::= " + "(" * 200, "nested over 40 deep", "line 1"),
        ('root ::= "a" root', "never end", ""),
        ("root ::= root", "never end", ""),
        ("root ::= [^\\x00-\\U0010FFFF]", "no finite text", ""),
    ],
)
def test_refusals_name_line_and_column(text: str, reason: str, place: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        read_gbnf(text)
    assert reason in str(caught.value) and place in str(caught.value), str(caught.value)
    assert caught.value.param == "ebnf"


@pytest.mark.parametrize(
    ("text", "members", "others"),
    [
        (r'root ::= "\U0001F600" | "\u00e9" | "\x41"', ["😀", "é", "A"], ["U", ""]),
        ('root ::= ("a"+)+ "b"', ["ab", "aaab"], ["b", "a"]),
        ('root ::= ("a"*)* ("b"?)+', ["", "aab", "bb"], ["ba"]),
        ('root ::= "a"{2} "b"{1,} [cd]{0,2} .{,1}', ["aab", "aabbcdx"], ["ab", "aabccxx"]),
        (r'root ::= [^a-c\]\-] "\"" [-a] [a-]', ['x"-a', 'd"a-'], ['a"-a', ']"-a', 'x"b-']),
        ("root ::= 'a\"' # 'x'\n | b # y\n\nb ::=\n 'c'\n  'd'", ['a"', "cd"], ["c", "a"]),
        ('root ::= a-1 | _b\na-1 ::= "x"\n_b ::= "y"', ["x", "y"], ["z"]),
        ('root ::= "" | ()', [""], ["a"]),
        ('root ::= "(" root ")" | [0-9]+', ["((12))", "3"], ["(1", "()"]),
        ('root ::= root "a" | ""', ["", "aaa"], ["b"]),
        ('root ::= x "c"\nx ::= y*\ny ::= "a" x "b"', ["c", "abc", "aabbabc"], ["ac", "abbc"]),
    ],
)
def test_syntax(text: str, members: list[str], others: list[str]) -> None:
    constraint = Constraint(ebnf=text)
    for member in members:
        assert accepts(constraint, member), member
        assert all(prefix_ok(constraint, member[:n]) for n in range(len(member)))
    for other in others:
        assert not accepts(constraint, other), other


def test_many_rules() -> None:
    rules = ['root ::= "[" root "]" | r0']
    rules += [f'r{n} ::= "{n % 10}" r{n + 1} | "x"' for n in range(300)]
    constraint = Constraint(ebnf="\n".join([*rules, 'r300 ::= "z"']))
    assert accepts(constraint, "[[" + "".join(str(n % 10) for n in range(300)) + "z]]")
    assert accepts(constraint, "[01x]") and not accepts(constraint, "[00x]")


def test_a_grammar_too_big_for_an_automaton_still_runs() -> None:
    # Doubled sixteen times: written out it would have 65,536 times two characters.
    rules = ["root ::= r0 r0"] + [f"r{n} ::= r{n + 1} r{n + 1}" for n in range(15)]
    text = "\n".join([*rules, 'r15 ::= "a" | "bc"'])
    assert isinstance(read_gbnf(text), str)
    constraint = Constraint(ebnf=text)
    assert prefix_ok(constraint, "abca" * 20) and not prefix_ok(constraint, "abb")


def _random_body(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(['"a"', '"b"', '"ab"', '"ba"', "[ab]", '"é"', '""', '"abb"'])
    inner = [_random_body(rng, depth - 1) for _ in range(2)]
    kind = rng.randrange(4)
    if kind == 0:
        return " ".join(inner)
    if kind == 1:
        return f"({' | '.join(inner)})"
    if kind == 2:
        return inner[0]
    return f"({inner[0]}){rng.choice(['*', '+', '?', '{2}', '{0,2}', '{1,}'])}"


SHORT = ["".join(chars) for n in range(6) for chars in itertools.product("abé", repeat=n)]


@pytest.mark.parametrize("seed", range(6))
def test_automaton_and_parser_agree(seed: int) -> None:
    # Also as if no rule were regular, which is what recursive grammars are made into.
    rng = random.Random(seed)
    for _ in range(12):
        text = (
            f"root ::= {_random_body(rng, 2)} x {_random_body(rng, 1)}\n"
            f"x ::= {_random_body(rng, 3)} | y {_random_body(rng, 1)}\ny ::= {_random_body(rng, 2)}"
        )
        automaton = read_gbnf(text)
        assert isinstance(automaton, ByteAutomaton)
        grammar = lark_of(read_rules(text), {})
        constraint = GrammarConstraint(grammar, byte_vocabulary(), "ebnf")
        rng.shuffle(SHORT)
        for word in SHORT[:60]:
            data = word.encode()
            expected = automaton.accepts(data)
            matcher = constraint.matcher()
            fits = matcher.viable(data) == len(data)
            assert fits == (automaton.walk(1, data) != 0), (text, word)
            if fits:
                for byte in data:
                    matcher.advance(byte)
            assert (fits and matcher.is_accepting()) == expected, (text, word)


RECURSIVE: dict[str, Callable[[str], object]] = {
    'root ::= "a" root "b" | ""': lambda w: w == "a" * (len(w) // 2) + "b" * (len(w) // 2),
    'root ::= "a" root "a" | "b" root "b" | ""': lambda w: w == w[::-1] and len(w) % 2 == 0,
    'root ::= "ab" root | "a" "ba" root | "a"': re.compile("(?:ab|aba)*a").fullmatch,
    'root ::= [ab]* x\nx ::= "ba" x "b" | "a"': re.compile(
        "[ab]*(?:a|baab|babaabb|(?:ba){3}abbb)"
    ).fullmatch,
}


@pytest.mark.parametrize("text", RECURSIVE)
def test_tokens_allowed_are_those_of_some_member(text: str) -> None:
    words = ["".join(chars) for n in range(13) for chars in itertools.product("ab", repeat=n)]
    rule = RECURSIVE[text]
    members = {word.encode() for word in words if rule(word)}
    prefixes = {member[:n] for member in members for n in range(len(member) + 1)}
    draft = random_vocabulary(b"abbaabab", 3, every_byte=True)
    vocabulary = TokenVocabulary(
        [t if len(t := draft.bytes_of(i)) <= 3 else b"" for i in range(draft.vocab_size)],
        draft.eos_token_ids,
    )
    constraint = GrammarConstraint(
        lark_of(read_rules(text), regular_rules(read_rules(text), 1000, 16)), vocabulary, "ebnf"
    )
    for word in words[:15]:  # up to three letters, and up to three more; members have twelve
        data = word.encode()
        matcher = constraint.matcher()
        if data not in prefixes:
            assert matcher.viable(data) < len(data)
            continue
        for byte in data:
            token_id = next(
                i for i in range(vocabulary.vocab_size) if vocabulary.bytes_of(i) == bytes((byte,))
            )
            matcher.advance(token_id)
        mask = matcher.mask()
        for token_id in range(vocabulary.vocab_size):
            token = vocabulary.bytes_of(token_id)
            if token_id in vocabulary.eos_token_ids:
                assert mask[token_id] == (data in members)
            else:
                assert mask[token_id] == (bool(token) and data + token in prefixes), (word, token)
        forced = matcher.forced()
        assert all(p.startswith((data + forced)[: len(p)]) for p in prefixes if p.startswith(data))
        assert np.array_equal(matcher.mask(), mask)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= (tag | [ab]+)*\ntag ::= "<" root ">"',
        'root ::= ([ab] | tag | "a")*\ntag ::= "<" root ">"',
        'root ::= (tag | "ab"? | "a" | tag | "b"+)* [ab]{0,2}\ntag ::= "<" (root) ">"',
    ],
)
def test_text_among_recursion(text: str) -> None:
    constraint = Constraint(ebnf=text)
    for word in ("".join(c) for n in range(6) for c in itertools.product("a<b>", repeat=n)):
        depths = list(itertools.accumulate({"<": 1, ">": -1}.get(c, 0) for c in word))
        viable = min(depths, default=0) >= 0
        assert prefix_ok(constraint, word) == viable, word
        if viable:
            assert accepts(constraint, word) == (not depths or depths[-1] == 0), word


@pytest.mark.parametrize(
    ("lark", "reason"),
    [("start: foo", "foo"), ("start: /a(/", "regex"), ("", "start"), ('start: "a', "1")],
)
def test_lark_errors(lark: str, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason) as caught:
        accepts(Constraint(lark=lark), "")
    assert caught.value.param == "lark" and "no_forcing" not in str(caught.value)


def test_lark() -> None:
    constraint = Constraint(lark='start: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/')
    assert accepts(constraint, "((12))") and not accepts(constraint, "((12)")
