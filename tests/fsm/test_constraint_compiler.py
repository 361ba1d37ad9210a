"""Compiled constraints are shared: by requests, by threads, within bounds."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fsm_vocabularies import byte_vocabulary

from radixray.errors import ConstraintError
from radixray.fsm.compiler import ConstraintCompiler, compile_constraint
from radixray.fsm.regex_constraint import RegexConstraint
from radixray.protocol import Constraint


def test_compile_constraint() -> None:
    vocabulary = byte_vocabulary()
    matcher = compile_constraint(Constraint(regex="ab"), vocabulary).matcher()
    assert matcher.forced() == b"ab"
    with pytest.raises(ConstraintError, match="empty"):
        compile_constraint(Constraint(), vocabulary)
    # An empty pattern is a constraint: nothing but EOS.
    mask = compile_constraint(Constraint(regex=""), vocabulary).matcher().mask()
    assert np.flatnonzero(mask).tolist() == list(vocabulary.eos_token_ids)


def test_compiler_keeps_the_last_used() -> None:
    compiler = ConstraintCompiler(byte_vocabulary(), max_constraints=2)
    a = compiler.compile(Constraint(regex="a"))
    b = compiler.compile(Constraint(regex="b"))
    assert compiler.compile(Constraint(regex="a")) is a
    compiler.compile(Constraint(regex="c"))  # drops b
    assert compiler.compile(Constraint(regex="a")) is a
    assert compiler.compile(Constraint(regex="b")) is not b
    for _ in range(2):
        with pytest.raises(ConstraintError, match="position 1"):
            compiler.compile(Constraint(regex="a(?=b)"))


def test_masks_are_read_only_and_bounded() -> None:
    vocabulary = byte_vocabulary()
    constraint = RegexConstraint.compile("abcdef", vocabulary, 2 * vocabulary.vocab_size)
    first = constraint.mask(1)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = True
    assert constraint.mask(1) is first
    constraint.mask(2)
    constraint.mask(3)
    assert constraint.mask(1) is not first
    assert (constraint.mask(1) == first).all()


def test_threads_share_a_constraint() -> None:
    vocabulary = byte_vocabulary()
    compiler = ConstraintCompiler(vocabulary)
    pattern = Constraint(regex="(?:[a-y]{1,40}z){3}")
    reference = compile_constraint(pattern, vocabulary)

    def run(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        matcher, alone = compiler.compile(pattern).matcher(), reference.matcher()
        while not matcher.is_finished():
            token_id = int(rng.choice(np.flatnonzero(matcher.mask())))
            matcher.advance(token_id)
            alone.advance(token_id)
        return matcher.trace() == alone.trace()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(40)))


def test_the_package_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys, radixray.fsm; assert 'numpy' not in sys.modules;"
        "import radixray.fsm.compiler; assert not {'torch', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
