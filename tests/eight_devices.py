"""Eight devices made of the CPU, in a process of its own: a file of tests starts it, and is read again in it."""

import os

import pytest

from tests import runs
from tests.conftest import UNOPTIMIZED

DEVICES = 8
FLAG = f'--xla_force_host_platform_device_count={DEVICES}'
INSIDE = FLAG in os.environ.get('XLA_FLAGS', '')  # whether this is that process
inside = pytest.mark.skipif(not INSIDE, reason='runs in a process of its own')
PASSES = [  # flags of XLA and marks of the tests that run with them, one process for each; the last if a file has such
    pytest.param(UNOPTIMIZED, 'not slow', id='every time'),
    pytest.param(UNOPTIMIZED, 'slow and not as_for_users', marks=pytest.mark.slow, id='slow'),
    pytest.param('--xla_llvm_disable_expensive_passes=true', 'as_for_users', marks=pytest.mark.slow, id='bytes'),
]


def run_tests(file: str, flags: str, marks: str) -> None:
    """Runs the tests of a file that have these marks, on eight devices."""
    runs.run_tests(file, flags=f'{FLAG} {flags}', marks=marks)
