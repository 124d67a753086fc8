"""Starts tests of bytes in a process whose programs are compiled as for a user: two programs give the same last digit
only if the compiler treats what they share alike. The rest compiles without optimisation (tests/conftest.py)."""

import os
import subprocess
import sys

import pytest

from tests import runs


@pytest.mark.parametrize('name', ['test_trials.py', 'test_local_run.py', 'test_train_run.py'])
def test_compiled_as_for_users(name):
    """Runs a file of tests."""
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '-p', 'no:xdist', str(runs.ROOT / 'tests' / name)],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        env=os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert '100%' in result.stdout
    print(result.stdout)
