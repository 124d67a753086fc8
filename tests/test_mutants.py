"""The table of failures in tests/mutants.py fits the package; `python -m tests.mutants` runs it."""

import ast

import pytest

from tests import mutants


@pytest.mark.slow
def test_every_mutant_changes_one_place_of_the_code():
    """And is Python still; the whole of what it changes is code, not a sentence about it."""
    for mutant in mutants.MUTANTS:
        ast.parse(mutants.changed(mutant))
        before, after = ((mutants.ROOT / 'semisfl_jax' / mutant.file).read_text(), mutants.changed(mutant))
        assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after)), mutant.name
        for name in mutant.tests.split():
            assert (mutants.ROOT / 'tests' / f'test_{name}.py').is_file(), name


def test_no_mutant_stands_there_twice():
    names = [(mutant.file, mutant.name) for mutant in mutants.MUTANTS]
    assert len(names) == len(set(names))
