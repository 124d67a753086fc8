"""The run of which the benchmark takes images; that needs root."""

import subprocess
import sys

import pytest

from benchmarks import power_loss
from tests.helpers import runs


@pytest.mark.slow
def test_every_save_is_reported_once_it_is_done(tmp_path):
    folder, report = tmp_path / 'run', tmp_path / 'report'
    subprocess.run([sys.executable, '-c', power_loss.RUN, folder, report], cwd=runs.ROOT, check=True)
    assert [number for number, _ in power_loss.saves(report)] == [*range(1, power_loss.ROUNDS + 1)]
    assert power_loss.lost(folder, power_loss.ROUNDS) == ''
    assert power_loss.lost(folder, power_loss.ROUNDS + 1).startswith('no usable checkpoint of round 31')
