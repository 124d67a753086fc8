"""What the functions of a method return: what is right passes, anything else is one line that names the method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.state import State
from semisfl_jax.core.types import Algorithm
from semisfl_jax.training import checks


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


@pytest.mark.parametrize(
    ('returned', 'message'),
    [
        ((3, {'round': shape()}), "the loop itself writes 'round'; give the metric another name"),
        ((3, {'wall_seconds': shape()}), "the loop itself writes 'wall_seconds'"),
        ((3, {'bytes_up': shape()}), "the loop itself writes 'bytes_up'"),
        ((3, {'student_accuracy': shape()}), "the loop itself writes 'student_accuracy'"),
        ((3, {'depths': shape(2)}), r"metric 'depths' is float32 \[2\]; return a scalar"),
        ((3, {'depths': 'deep'}), "metric 'depths' is 'deep'; return a scalar"),
        ((3, {'depths': {'a': 1}}), "metric 'depths' is a dict; return a scalar"),
        ((3, {'depths': None}), "metric 'depths' is None; return a scalar"),
        (3, 'a round returns 3; return the state and a dict of metrics'),
        ((3, None), r'a round returns \(3, None\); return the state and a dict of metrics'),
    ],
)
def test_a_round_returns_a_state_and_scalars(returned, message):
    right = 3, {'depth': shape(), 'constant': 1.5}
    assert checks.check_round('mine', right) == right
    with pytest.raises(UserError, match=f"method 'mine': {message}"):
        checks.check_round('mine', returned)


def state(**changes):
    return State(
        **{'round': jnp.int32(0), 'step': jnp.int32(0), 'student': {'w': shape(2, 3)}, 'teacher': (), 'memory': ()}
        | changes
    )


@pytest.mark.parametrize(
    ('returned', 'message'),
    [
        (None, r'init returns None; return a state with round \[\] int32 and student, such as phases\.init_state'),
        ({'round': 0}, 'init returns a dict; return a state'),
        (state(round=jnp.float32(0)), r'init returns a state whose round is float32 \[\]; return a state'),
        (state(server='mine'), r"init returns 'mine' as state\.server; return arrays"),
    ],
)
def test_init_returns_a_state(returned, message):
    checks.check_state('mine', state(server=3))
    with pytest.raises(UserError, match=f"method 'mine': {message}"):
        checks.check_state('mine', returned)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'student': {'w': jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)}},
            r"a round takes float32 \[2, 3\] as state\.student\['w'\] and returns bfloat16 \[2, 3\]; return a state of",
        ),
        (
            {'student': {'w': shape(3)}},
            r"a round takes float32 \[2, 3\] as state\.student\['w'\] and returns float32 \[3\]",
        ),
        ({'student': {}}, r"a round takes float32 \[2, 3\] as state\.student\['w'\] and returns nothing"),
        ({'server': {'sum': shape()}}, r'a round takes a tuple as state\.server and returns nothing'),
        ({'teacher': None}, r'a round takes a tuple as state\.teacher and returns None'),
        ({'clients': [shape(5)]}, 'a round returns a state of another structure than it takes'),
        ({'round': jnp.zeros((), jnp.float32)}, r'a round takes int32 \[\] as state\.round and returns float32 \[\]'),
        ({}, r'a round returns the state\.round that it takes; return state\.replace\(round=state\.round \+ 1'),
    ],
)
def test_a_state_that_cannot_be_carried_on_is_refused(changes, message):
    before = state(clients=(shape(5),))
    checks.check_carried('mine', before, before.replace(round=before.round + 1))
    with pytest.raises(UserError, match=f"method 'mine': {message}"):
        checks.check_carried('mine', before, before.replace(**changes))


@pytest.mark.parametrize(
    ('outputs', 'message'),
    [
        (None, 'predict returns None; return a dict of outputs, by some of teacher, student, after_server'),
        ({'best': shape(2, 10)}, "predict returns outputs of 'best'; name them by some of teacher, student, after_"),
        ({'teacher': shape(2, 10)}, "headline='student' is none of the outputs of predict; use one of teacher"),
        ({'student': shape(3)}, r"returns float32 \[3\] for 'student' of 2 images; return logits \[2, 10\]"),
        ({'student': shape(2, 13)}, r"returns float32 \[2, 13\] for 'student' of 2 images; return logits \[2, 10\]"),
        ({'student': None}, r"returns None for 'student' of 2 images; return logits \[2, 10\]"),
    ],
)
def test_predict_returns_logits_and_the_headline_is_one_of_them(outputs, message):
    def predict(outputs):
        algorithm = Algorithm(None, None, lambda state, images: outputs, 'student')
        return checks.checked_predict('mine', algorithm, lambda name: tasks.classification(10))(
            None, np.zeros((2, 8, 8))
        )

    right = {'student': shape(2, 10), 'teacher': (shape(2, 10), shape(2, 10))}
    assert predict(right) is right
    with pytest.raises(UserError, match=f"method 'mine': .*{message}"):
        predict(outputs)
