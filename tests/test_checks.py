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


def state(**changes):
    return State(
        **{'round': jnp.int32(0), 'step': jnp.int32(0), 'student': {'w': shape(2, 3)}, 'teacher': (), 'queue': ()}
        | {'clients': (shape(5),)}
        | changes
    )


RIGHT = {'depth': shape(), 'constant': 1.5}


@pytest.mark.parametrize(
    ('returned', 'message'),
    [
        ((state(), {'wall_seconds': shape()}), "the loop itself writes 'wall_seconds'"),
        ((state(), {'depths': shape(2)}), r"metric 'depths' is float32 \[2\]; return a scalar"),
        (
            (state(student={'w': jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)}), RIGHT),
            r"a round takes float32 \[2, 3\] as state\.student\['w'\] and returns bfloat16 \[2, 3\]; return a state of",
        ),
        (
            (state(server={'sum': shape()}), RIGHT),
            r"a round takes nothing as state\.server\['sum'\] and ret",
        ),
    ],
)
def test_a_round_returns_a_state_like_the_one_before_and_scalars(returned, message):
    checks.check_round('mine', state(), state(), RIGHT)
    with pytest.raises(UserError, match=f"method 'mine': {message}"):
        checks.check_round('mine', state(), *returned)


@pytest.mark.parametrize(
    ('outputs', 'message'),
    [
        ({}, r'predict returns outputs \[\]; return a dict of outputs, by some of teacher, student, after_server'),
        ({'best': shape(2, 10)}, r"predict returns outputs \['best'\]; return"),
        ({'teacher': shape(2, 10)}, "with the headline 'student'"),
        ({'student': shape(2, 13)}, r"returns float32 \[2, 13\] for 'student' of 2 images; return \[2, 10\]"),
    ],
)
def test_predict_returns_logits_and_the_headline_is_one_of_them(outputs, message):
    def predict(outputs):
        algorithm = Algorithm(None, None, lambda state, images: outputs, 'student')
        checked = checks.check_predict('mine', algorithm, lambda name: tasks.classification(10))
        return checked(None, np.zeros((2, 8, 8)))

    right = {'student': shape(2, 10), 'teacher': (shape(2, 10), shape(2, 10))}
    assert predict(right) is right
    with pytest.raises(UserError, match=f"method 'mine': .*{message}"):
        predict(outputs)
