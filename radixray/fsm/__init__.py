"""Constrained decoding: what a request's output must match, as token masks and forced bytes.

    strings         is this text a member, or the beginning of one?
    compiler        `constraint.Constraint`   -> a cached compiled constraint
    bounded         the same, in a child process with limits
    explain         a text, step by step: what was allowed, what was forced, what went wrong
    jump            forced bytes            -> tokens that nothing which follows can change
    matcher, base_matcher                      the protocol of every kind, and its common part
    vocabulary      token ids               -> a byte trie that is walked a level at a time

Regular languages, and recursive ones that are not:

    regex_parser    Python `re` syntax      -> a small syntax tree (refusals name their position)
    gbnf            `::=` grammars          -> the same tree, with references to rules
    gbnf_lowering   rules without recursion -> one regular expression; others:
    lark_writer, terminals                     a Lark grammar for llguidance, of the same language
    char_classes, utf8                         classes and flags as code points, and as bytes
    nfa             the syntax tree         -> a trimmed Thompson automaton over bytes
    byte_automaton  the NFA                 -> a DFA without dead states
    choices         a list of strings       -> a minimal DFA
    regex_constraint  DFA and vocabulary    -> masks, forced bytes, one matcher a request
    schema          JSON Schema             -> a plain schema that is enforced, or a refusal;
                                               with schema_sanity, schema_patterns, schema_numbers
    grammar_constraint  llguidance          -> the same for grammars and schemas
    predicate       Python code             -> the same for what only a program can say
    product, start_after                       two at once; one that begins after a marker

Automata work on bytes because tokens do not respect characters: a token may hold half of one. The
forced runs are the compressed edges of the SGLang paper (arXiv 2312.07104, section 4).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixray.constraint import Constraint
    from radixray.fsm.compiler import compile_constraint
    from radixray.fsm.strings import accepts, prefix_ok

_HOMES = {
    "Constraint": "radixray.constraint",
    "accepts": "radixray.fsm.strings",
    "compile_constraint": "radixray.fsm.compiler",
    "prefix_ok": "radixray.fsm.strings",
}

__all__ = ["Constraint", "accepts", "compile_constraint", "prefix_ok"]


def __getattr__(name: str) -> Any:
    # On first use: importing the package loads nothing.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
