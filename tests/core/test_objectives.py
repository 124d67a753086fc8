"""FixMatch and UDA by hand: masks, losses, sharpening, signal annealing, counts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core.hparams import Local
from semisfl_jax.core.objectives import fixmatch, ramp, signal_threshold, uda

LOG = np.log
# Three rows of probabilities 0.9/0.1, 0.6/0.4, 0.2/0.8 on the weak view; uniform, 0.5/0.5, 0.75/0.25 on the strong one.
WEAK = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
STRONG = jnp.log(jnp.array([[0.5, 0.5], [0.5, 0.5], [0.75, 0.25]]))
ONES = jnp.ones(3)


def test_fixmatch_by_hand():
    """With tau 0.7 rows 0 and 2 count, labels 0 and 1: (log 2 + log 4) / 3. The middle row stays in the mean."""
    value, labels, confident = fixmatch(0.7)(WEAK, STRONG, ONES)
    np.testing.assert_allclose(value, (LOG(2) + LOG(4)) / 3, rtol=1e-6)
    np.testing.assert_array_equal(labels, [0, 0, 1])
    np.testing.assert_array_equal(confident, [True, False, True])
    value, *_ = fixmatch(0.7)(WEAK, STRONG, jnp.array([1.0, 1.0, 0.0]))  # the last row is a labeled one
    np.testing.assert_allclose(value, LOG(2) / 2, rtol=1e-6)


def test_uda_by_hand():
    """Temperature 0.5 squares and renormalizes: 0.9/0.1 -> 81/82, 1/82; confidence is that of 0.9, not of 81/82."""
    value, _, confident = uda(0.7, 0.5)(WEAK, STRONG, ONES)
    first = 81 / 82 * LOG(81 / 82 / 0.5) + 1 / 82 * LOG(1 / 82 / 0.5)
    last = 1 / 17 * LOG(1 / 17 / 0.75) + 16 / 17 * LOG(16 / 17 / 0.25)
    np.testing.assert_allclose(value, (first + last) / 3, rtol=1e-5)
    np.testing.assert_array_equal(confident, [True, False, True])


def test_a_row_at_the_threshold_does_not_count_in_uda():
    """Its authors' mask is strict, where FixMatch's takes the row at the threshold in; at 0 all rows count."""
    weak = jnp.array([[0.0, 0.0, -80.0]])
    assert float(jax.nn.softmax(weak).max()) == 0.5
    assert bool(fixmatch(0.5)(weak, weak, ONES[:1])[2][0])
    for threshold, counts in ((0.5, False), (0.49, True), (0.0, True)):
        assert bool(uda(threshold, 1.0)(weak, weak, ONES[:1])[2][0]) == counts


def test_uda_is_zero_where_the_views_agree_and_its_gradient_is_a_difference():
    rule = uda(0.0, 1.0)
    np.testing.assert_allclose(rule(WEAK, WEAK, ONES)[0], 0.0, atol=1e-7)
    gradient = jax.grad(lambda strong: rule(WEAK, strong, ONES)[0])(STRONG)
    np.testing.assert_allclose(gradient, (np.exp(STRONG) - np.exp(WEAK)) / 3, atol=1e-6)  # softmax(q) - p


@pytest.mark.parametrize(
    ('schedule', 'progress', 'alpha'), [('linear', 0.25, 0.25), ('exp', 1.0, 1.0), ('log', 0.4, 1.0 - math.exp(-2.0))]
)
def test_signal_annealing_by_hand(schedule, progress, alpha):
    threshold = signal_threshold(schedule, jnp.float32(progress), 4)
    np.testing.assert_allclose(threshold, alpha * 0.75 + 0.25, rtol=1e-5)
    assert math.isinf(signal_threshold('off', jnp.float32(progress), 4))


@pytest.mark.parametrize(('kind', 'half'), [('pseudo_label', 0.5), ('mean_teacher', math.exp(-1.25))])
def test_a_ramp_ends(kind, half):
    """It is 1 from its last round on: exp(-5 (1 - t)^2) for mean teachers, t for pseudo-labels."""
    found = [float(ramp(Local(kind, ramp_rounds=4), jnp.int32(index))) for index in (2, 4, 9)]
    np.testing.assert_allclose(found, [half, 1, 1], rtol=1e-6)
