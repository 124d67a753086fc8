"""Curves of groups of runs: means over seeds, with what is missing named."""

import numpy as np
import pytest

from semisfl_jax import runs as runs_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.plots import collect
from tests.helpers.plots_toy import GIB, made_up


def test_a_curve_is_the_mean_over_seeds_with_its_error():
    members = {0: made_up(0, [0.5, 0.7]), 1: made_up(1, [0.6, 0.9], up=(GIB, 4 * GIB, 5 * GIB))}
    curve = collect.curve('semisfl', members, 'score')
    assert (curve.label, curve.x.tolist()) == ('SemiSFL', [2, 3])
    np.testing.assert_allclose(curve.mean, [0.55, 0.8])
    # standard deviation of two values: their difference over sqrt(2); over sqrt(2) again
    np.testing.assert_allclose([curve.low, curve.high], [[0.5, 0.7], [0.6, 0.9]])
    traffic = collect.curve('semisfl', members, 'score', 'gigabytes')
    np.testing.assert_allclose(traffic.x, [5, 7])  # means of 2 + 2 and 4 + 2, of 3 + 3 and 5 + 3
    np.testing.assert_allclose(collect.curve('semisfl', members, 'score', 'minutes').x, [1, 1.5])
    assert np.isnan(collect.curve('semisfl', {0: members[0]}, 'score').low).all()


def test_what_is_missing_is_named():
    plain = made_up(0, [0.5, 0.7])
    bare = plain._replace(table=runs_lib.rows([{'round': 1, 'teacher_accuracy': 0.5}]))
    with pytest.raises(UserError, match=r'run0/metrics\.jsonl.*bytes_up.*bytes_down'):
        collect.curve('semisfl', {0: bare}, 'score', 'gigabytes')
    with pytest.raises(UserError, match='mask_rate'):
        collect.curves({'semisfl': {0: plain}}, 'mask_rate')
    groups = {'a': {0: plain}, 'b': {0: bare}}
    assert [curve.label for curve in collect.curves(groups, 'score', 'minutes')] == ['a']
    assert list(collect.curves_by_name(groups, {'a': 'loss_consistency', 'b': 'loss_fix'})) == ['a']
