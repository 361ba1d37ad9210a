"""Constrained decoding: what a request's output must match, as token masks and forced bytes.

From the pattern's text to the logits, one module a step:

    regex_parser    Python `re` syntax      -> a small syntax tree (refusals name their position)
    char_classes    classes, flags          -> sets of code points
    utf8            a set of code points    -> the byte sequences that spell it
    nfa             the syntax tree         -> a trimmed Thompson automaton over bytes
    byte_automaton  the NFA                 -> a DFA without dead states
    vocabulary      token ids               -> a byte trie that is walked a level at a time
    regex_constraint  DFA and vocabulary    -> masks, forced bytes, one matcher a request
    matcher         the protocols every kind of constraint implements
    compiler        `protocol.Constraint`   -> a cached compiled constraint

The DFA works on bytes because tokens do not respect characters: a token may hold half of one. The
forced runs are the compressed edges of the SGLang paper (arXiv 2312.07104, section 4).
"""
