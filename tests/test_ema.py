"""The teacher's coefficients and its update."""

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core.teacher import ema, ema_coefficient


@pytest.mark.parametrize(
    ('t', 'expected'), [(1, 1 / 2), (2, 2 / 3), (3, 3 / 4), (98, 98 / 99), (99, 0.99), (5000, 0.99)]
)
def test_warm_up(t, expected):
    np.testing.assert_allclose(ema_coefficient(jnp.int32(t), 0.99, warmup=True), expected, rtol=1e-6)
    np.testing.assert_allclose(ema_coefficient(jnp.int32(t), 0.99, warmup=False), 0.99, rtol=1e-6)


def test_first_update_is_the_midpoint_of_parameters_and_statistics():
    teacher = {'params': {'w': jnp.array([2.0, 4.0])}, 'batch_stats': {'mean': jnp.array([0.0])}}
    student = {'params': {'w': jnp.array([0.0, 8.0])}, 'batch_stats': {'mean': jnp.array([1.0])}}
    moved = ema(teacher, student, ema_coefficient(jnp.int32(1), 0.99, warmup=True))
    np.testing.assert_allclose(moved['params']['w'], [1.0, 6.0])
    np.testing.assert_allclose(moved['batch_stats']['mean'], [0.5])
