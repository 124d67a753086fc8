"""Starts the tests of trials in a process whose programs are compiled as for a user: two of them give the same bytes
only if the compiler treats what they share alike."""

import os
import subprocess
import sys

from tests import runs


def test_trials_as_users_compile_them():
    """Runs tests/test_trials.py."""
    path = runs.ROOT / 'tests' / 'test_trials.py'
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', str(path)],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        env=os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert ' passed' in result.stdout
    print(result.stdout)
