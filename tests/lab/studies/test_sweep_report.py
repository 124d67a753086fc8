"""The report of a sweep, of trials that are made up."""

import numpy as np

from semisfl_jax.lab.plots import style
from semisfl_jax.lab.studies import sweep_report
from semisfl_jax.lab.studies.search import COMPLETE, DIVERGED, Result, Trial
from tests.helpers import sweeps_toy

TRIALS = [
    Trial({'lr': 0.02}, COMPLETE, 0.5, {2: 0.6}, 8, 'run-a', 'depth_rmse', 0),
    Trial({'lr': 0.1}, DIVERGED, None, {}, 3, 'run-b', 'depth_rmse', 1, 'nan'),
    Trial({'lr': 0.03}, COMPLETE, 0.25, {2: 0.3}, 8, 'run-c', 'depth_rmse', 2),
    Trial({'lr': 0.04}, COMPLETE, 0.75, {2: 0.9}, 8, 'run-d', 'depth_rmse', 3),
]
RESULT = Result(sweeps_toy.ENTRIES[1], TRIALS)


def test_trials_are_rows_in_their_order():
    rows = sweep_report.rows([RESULT])
    assert [row['trial'] for row in rows] == [0, 1, 2, 3]
    assert [row['validation'] for row in rows] == [0.5, None, 0.25, 0.75]
    assert (rows[1]['why'], rows[2]['settings'], rows[2]['curve']) == ('nan', '{"lr": 0.03}', '{"2": 0.3}')


def test_the_best_so_far_of_an_error_is_the_lowest():
    with style.context():
        (line,) = sweep_report._running_best([RESULT]).axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [0.5, 0.5, 0.25, 0.25])
