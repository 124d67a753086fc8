"""The teacher's coefficients and its update."""

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core.teacher import count_pseudo_labels, ema, ema_coefficient, pseudo_label_rates


@pytest.mark.parametrize(
    ('t', 'expected'), [(1, 1 / 2), (2, 2 / 3), (3, 3 / 4), (98, 98 / 99), (99, 0.99), (5000, 0.99)]
)
def test_the_decay_warms_up_to_its_value(t, expected):
    np.testing.assert_allclose(ema_coefficient(jnp.int32(t), 0.99, warmup=True), expected, rtol=1e-6)
    np.testing.assert_allclose(ema_coefficient(jnp.int32(t), 0.99, warmup=False), 0.99, rtol=1e-6)


def test_an_update_moves_parameters_and_statistics_by_what_is_not_kept():
    """At t = 2 two thirds stay, and a third is the student's."""
    teacher = {'params': {'w': jnp.array([3.0, 6.0])}, 'batch_stats': {'mean': jnp.array([0.0])}}
    student = {'params': {'w': jnp.array([0.0, 12.0])}, 'batch_stats': {'mean': jnp.array([1.0])}}
    moved = ema(teacher, student, ema_coefficient(jnp.int32(2), 0.99, warmup=True))
    np.testing.assert_allclose(moved['params']['w'], [2.0, 8.0], rtol=1e-6)
    np.testing.assert_allclose(moved['batch_stats']['mean'], [1 / 3], rtol=1e-6)


def test_pseudo_labels_are_counted_and_rated():
    labels, truth = jnp.array([0, 1, 1, 2, 2]), jnp.array([0, 1, 0, -1, 2])
    confident = jnp.array([True, True, True, True, False])
    unlabeled = jnp.array([False, True, True, True, True])
    counts = count_pseudo_labels(labels, confident, truth, unlabeled)
    assert {name: int(value) for name, value in counts.items()} == {
        'unlabeled': 4, 'confident': 3, 'evaluable': 2, 'correct': 1,
    }  # fmt: skip
    rates = pseudo_label_rates(counts)
    assert (float(rates['mask_rate']), float(rates['pseudo_label_accuracy'])) == (0.75, 0.5)
