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
            assert (mutants.ROOT / mutants.path_of(name)).is_file(), name


def test_every_module_has_its_test_file_which_fails_for_a_mutant_of_the_module():
    """tests/ROOM/test_MODULE.py, the first that a mutant of semisfl_jax/ROOM/MODULE.py names."""
    names = {file: mutants.name_of(file) for file in mutants.modules()}
    assert [name for name in names.values() if not (mutants.ROOT / mutants.path_of(name)).is_file()] == []
    first = {(mutant.file, mutant.tests.split()[0]) for mutant in mutants.MUTANTS}
    assert [file for file, name in names.items() if (file, name) not in first] == []


@pytest.mark.slow
def test_every_mutant_is_python_that_differs():
    """The whole of what it changes is code, not a sentence about it."""
    for mutant in mutants.MUTANTS:
        before, after = ((mutants.ROOT / 'semisfl_jax' / mutant.file).read_text(), mutants.changed(mutant))
        assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after)), mutant.name
