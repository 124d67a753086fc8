"""Folders of several seeds: their states, and that their lines are close."""

import pytest

from semisfl_jax.training import load
from tests import runs

SEEDS = (2, 0, 5)  # the tiny run's K_s falls later with seed 2 than with seed 0
TOLERANCE = 2e-4  # of a batched program, relative, on losses after four rounds


def seeds_of(folder):
    return {seed: folder / f'seed_{seed}' for seed in SEEDS}


def state_of(folder):
    """The state after the last round of a tiny run of one trial."""
    return load.state(folder, load.experiment(folder))[1]


def assert_lines_close(folder, expected, tolerance=TOLERANCE):
    """metrics.jsonl of two runs, up to rounding: counts are equal, an accuracy may differ by two of 360 images."""
    for ours, theirs in zip(runs.records(folder), runs.records(expected), strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - set(runs.TIMES):
            if theirs[key] is None:
                assert ours[key] is None
            elif key in ('teacher_accuracy', 'student_accuracy'):
                assert abs(ours[key] - theirs[key]) <= 2.001 / 360
            else:
                assert ours[key] == pytest.approx(theirs[key], rel=tolerance, abs=1e-6), (ours['round'], key)
