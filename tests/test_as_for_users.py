"""Starts tests of bytes in a process whose programs are compiled as for a user: two programs give the same last digit
only if the compiler treats what they share alike. The rest compiles without optimisation (tests/conftest.py)."""

import pytest

from tests import runs


@pytest.mark.slow
@pytest.mark.parametrize('name', ['test_trials.py', 'test_local_run.py', 'test_train_run.py'])
def test_compiled_as_for_users(name):
    """Runs a file of tests."""
    runs.run_tests(runs.ROOT / 'tests' / name, flags='')
