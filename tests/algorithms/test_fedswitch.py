"""FedSwitch: who labels, by the classes of a client's confident pseudo-labels, and rounds against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import core, costs
from semisfl_jax.algorithms import fedswitch as switching
from semisfl_jax.algorithms.fedswitch import FedSwitch
from semisfl_jax.core.hparams import Local
from tests.helpers import numpy_rounds
from tests.helpers.marks import slow_but
from tests.helpers.prices import everybody, paper_model
from tests.helpers.rows import STUDENT, TEACHER, Row

ROWS = {'fedswitch': Row(f'{STUDENT} {TEACHER}', STUDENT)}
CASES = {
    'the switch': ('fedswitch', {'options': FedSwitch(beta_iid=0.5), 'labeled_rows': 1, 'ema_decay': 0.7}),
    'the teacher': ('fedswitch', {'options': FedSwitch('teacher'), 'ema_decay': 0.3}),
    'the student': ('fedswitch', {'options': FedSwitch('student'), 'local': Local(epochs=1)}),
}


@pytest.mark.parametrize('case', slow_but(CASES, 'the switch'))
def test_rounds_equal_the_ones_in_numpy(case):
    numpy_rounds.check_whole(*CASES[case], shares_vary=case == 'the switch')


def test_a_histogram_counts_labels_where_they_count():
    labels = jnp.array([[0, 2, 2, 1], [1, 1, 1, 1]])
    counted = jnp.array([[True, True, True, False], [True, False, True, True]])
    np.testing.assert_array_equal(core.histogram(labels, counted, 4), [[1, 0, 2, 0], [0, 3, 0, 0]])


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


def test_a_skew_of_beta_itself_counts_as_even():
    counts = jnp.array([3.0, 1.0])
    at = float(switching.skew(counts))
    assert not bool(switching.by_teacher(counts, at))  # a skew of beta still counts as IID: the student labels
    assert bool(switching.by_teacher(counts, np.nextafter(np.float32(at), np.float32(0))))
    np.testing.assert_array_equal(switching.by_teacher(jnp.array([[2.0, 2.0], [9.0, 0.0]]), 0.0), [False, True])


def test_fedswitch_sends_the_teacher_to_whom_it_labels_for():
    model_bytes = 4 * 35_855_178
    expected = {'student': 10, 'teacher': 20}
    for mode, models in expected.items():
        model = paper_model('cifar10', 'fedswitch', **{'fedswitch.mode': mode})
        assert costs.price_round(model, 0, 100, everybody(model))[:2] == (10 * model_bytes, models * model_bytes)
    model = paper_model('cifar10', 'fedswitch')
    cost = costs.price_round(model, 0, 100, everybody(model), {'student_labels': np.float32(0.7)})
    assert cost[:2] == (10 * model_bytes + 10 * 4, 13 * model_bytes)  # three of ten ask, ten send a number
    assert costs.price_round(model, 0, 100, everybody(model))[1] == 20 * model_bytes  # before the round: at the most
    for mode, bottoms in {'student': 1, 'teacher': 2, 'switch': 2}.items():
        model = paper_model('cifar10', 'fedswitch_sl', **{'fedswitch.mode': mode})
        gradients = 50 * 64 * 4 * 4096
        down = costs.price_round(model, 0, 100, everybody(model))[1]
        assert down == 10 * (bottoms * model.pieces.bottom + gradients)
