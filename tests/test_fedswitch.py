"""FedSwitch's rule: who labels, by the classes of a client's confident pseudo-labels; rounds: tests/test_phases.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.algorithms import fedswitch as switching
from tests.rows import STUDENT, TEACHER, Row

ROW = Row(f'{STUDENT} {TEACHER}', STUDENT)


def test_histogram_counts_what_counts():
    labels = jnp.array([[0, 2, 2, 1], [1, 1, 1, 1]])
    counted = jnp.array([[True, True, True, False], [True, False, True, True]])
    np.testing.assert_array_equal(switching.histogram(labels, counted, 4), [[1, 0, 2, 0], [0, 3, 0, 0]])


@pytest.mark.parametrize('classes', [2, 10, 100])
def test_even_classes_have_no_skew_and_one_class_has_all(classes):
    even = jnp.full((3, classes), 11.0) * jnp.array([1.0, 3.0, 977.0])[:, None]
    np.testing.assert_array_equal(switching.skew(even), np.zeros(3))  # exactly
    alone = 5.0 * jnp.eye(classes)
    np.testing.assert_allclose(switching.skew(alone), np.full(classes, np.log(classes)), rtol=1e-6)


def test_skew_is_the_divergence_from_even_shares():
    counts = np.array([[1.0, 2.0, 5.0, 0.0], [10.0, 9.0, 11.0, 10.0]])
    share = counts / counts.sum(axis=1, keepdims=True)
    expected = [sum(p * np.log(p / 0.25) for p in row if p) for row in share]
    np.testing.assert_allclose(switching.skew(jnp.asarray(counts)), expected, rtol=1e-5)


def test_without_a_confident_label_the_skew_is_the_highest():
    """No evidence of IID data: the teacher labels, unless beta is so high that it never does."""
    np.testing.assert_array_equal(switching.skew(jnp.zeros((2, 10))), np.full(2, np.log(np.float32(10.0))))
    assert bool(switching.by_teacher(jnp.zeros(10), 2.3))
    assert not bool(switching.by_teacher(jnp.zeros(10), 2.31))


def test_switched_exactly_at_the_threshold():
    counts = jnp.array([3.0, 1.0])
    at = float(switching.skew(counts))
    assert not bool(switching.by_teacher(counts, at))  # a skew of beta still counts as IID: the student labels
    assert bool(switching.by_teacher(counts, np.nextafter(np.float32(at), np.float32(0))))
    np.testing.assert_array_equal(switching.by_teacher(jnp.array([[2.0, 2.0], [9.0, 0.0]]), 0.0), [False, True])
