"""The table of failures in tests/mutants.txt fits the package; `python -m tests.mutants` runs it."""

import ast

import pytest

from tests import mutants


def test_every_mutant_stands_there_once_and_changes_one_place_of_the_code():
    names = [(mutant.file, mutant.name) for mutant in mutants.MUTANTS]
    assert len(names) == len(set(names))
    for mutant in mutants.MUTANTS:
        mutants.changed(mutant)
        for name in mutant.tests.split():
            assert (mutants.ROOT / 'tests' / f'test_{name}.py').is_file(), name


@pytest.mark.slow
def test_every_mutant_is_python_that_differs():
    """The whole of what it changes is code, not a sentence about it."""
    for mutant in mutants.MUTANTS:
        before, after = ((mutants.ROOT / 'semisfl_jax' / mutant.file).read_text(), mutants.changed(mutant))
        assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after)), mutant.name
