"""FedSwitch: the switch at its threshold, the modes, who moves; rounds against the plain twin."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.algorithms import fedswitch as switching
from semisfl_jax.algorithms.fedswitch import FedSwitch
from semisfl_jax.core.hparams import Local, learning_rate
from semisfl_jax.core.teacher import ema_coefficient
from tests import toy
from tests.fedavg_rounds import FEDERATION, ROUNDS, start
from tests.local_twin import Twin
from tests.marks import slow_but
from tests.rows import STUDENT, TEACHER, Row
from tests.trees import assert_trees_close

ROW = Row(f'{STUDENT} {TEACHER}', STUDENT)

# of a client whose confident labels are all of one class: log 3
ONE_CLASS = float(switching.skew(jnp.array([0.0, 5.0, 0.0])))


def one_class():
    """A first state whose student calls everything class 1."""
    state = start('fedswitch', options=FedSwitch())[2]
    top = jax.tree.map(lambda w: w.at[1].add(40.0) if w.shape == (toy.CLASSES,) else w, state.student.top)
    return state.replace(student=state.student._replace(top=top))


EDGE = (ONE_CLASS, 1.0), (float(np.nextafter(np.float32(ONE_CLASS), np.float32(0))), 0.0)


@pytest.mark.parametrize(
    ('beta', 'student_labels'),
    slow_but([*EDGE, (0.0, 0.0), (2.0, 1.0)]),
)
def test_the_switch_at_its_threshold(beta, student_labels):
    np.testing.assert_allclose(ONE_CLASS, math.log(3), rtol=1e-6)
    algorithm, key, *_ = start('fedswitch', options=FedSwitch(beta_iid=beta))
    _, metrics = jax.jit(algorithm.round)(key, one_class(), FEDERATION, toy.cohort([1, 4]), jnp.int32(0))
    assert float(metrics['student_labels']) == student_labels


CASES = {
    'teacher': {'options': FedSwitch(mode='teacher'), 'ema_decay': 0.3},
    'student': {'options': FedSwitch(mode='student')},
    'switch': {'options': FedSwitch(beta_iid=0.5), 'local': Local(epochs=1)},
}


@pytest.mark.parametrize('case', slow_but(CASES))
def test_rounds_equal_the_plain_twin(case):
    algorithm, key, state, hparams = start('fedswitch', **CASES[case])
    twin = Twin(key, toy.model(), toy.VIEWS, hparams, state.student, 'fedswitch', teacher=state.teacher)
    run, seen = jax.jit(algorithm.round), set()
    for index, (ids, visits) in enumerate(ROUNDS):
        state, metrics = run(key, state, FEDERATION, toy.cohort(ids, visits), jnp.int32(0))
        expected = twin.run_round(FEDERATION, ids, visits, float(learning_rate(hparams, index)))
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=2e-4, atol=1e-6, err_msg=name)
        assert_trees_close(state.student, twin.student, rtol=2e-3, atol=2e-5)
        chex.assert_trees_all_equal(state.teacher, twin.teacher)  # clients move copies of it, and drop them
        seen.add(float(metrics['student_labels']))
    assert (seen == {float(case == 'student')}) == (case != 'switch')


def final(**changes):
    algorithm, key, state, _ = start('fedswitch', **changes)
    state, metrics = jax.jit(algorithm.round)(key, state, FEDERATION, toy.cohort([0, 2, 4]), jnp.int32(0))
    return state, {name: value for name, value in metrics.items() if name != 'student_labels'}


@pytest.mark.slow
def test_a_mode_is_a_switch_that_never_switches():
    """Skews lie in 0 .. log 3. Teacher: a threshold that no client meets; student: one that all meet."""
    teacher, student = (final(options=FedSwitch(mode=mode)) for mode in ('teacher', 'student'))
    never, always = (final(options=FedSwitch(beta_iid=beta)) for beta in (0.0, 2.0))
    chex.assert_trees_all_close(teacher, never, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(student, always, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(teacher[0].student, student[0].student, rtol=1e-4)


@pytest.mark.slow
def test_the_teacher_moves_in_the_supervised_phase_alone():
    """After one supervised step it is the midpoint of what it was and the student of that step."""
    algorithm, key, state, _ = start('fedswitch', server_trains=True)
    nobody = toy.cohort([2])._replace(weight=jnp.zeros(1))
    run = jax.jit(algorithm.round)
    middle, _ = run(key, state, FEDERATION, nobody, jnp.int32(1))
    after, _ = run(key, state, FEDERATION, toy.cohort([1, 4]), jnp.int32(1))
    expected = jax.tree.map(lambda a, b: (a + b) / 2, state.teacher, middle.student)
    assert_trees_close(after.teacher, expected, rtol=1e-5, atol=1e-6)
    assert float(ema_coefficient(jnp.int32(1), 0.99, True)) == 0.5
    assert algorithm.headline == 'teacher'
    assert set(algorithm.predict(after, FEDERATION.client_images[:2])) == {'teacher', 'student'}
