"""Starts tests of bytes in a process whose programs are compiled as for a user: two programs give the same last digit
only if the compiler treats what they share alike. They are marked `as_for_users`; the rest compiles without
optimization (tests/conftest.py). By hand: `XLA_FLAGS= pytest tests/training/test_driver.py -m as_for_users`."""

from pathlib import Path

import pytest

from tests.helpers import runs


@pytest.mark.slow
def test_compiled_as_for_users():
    """One process for all of them: files share programs."""
    files = sorted(Path(__file__).parent.rglob('test_*.py'))
    files = [path for path in files if 'mark.as_for_users' in path.read_text()]
    runs.run_tests(*files, flags='', marks='as_for_users')
