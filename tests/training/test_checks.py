"""What a method returns is checked: the state and metrics of a round, predictions, rounds that are counted."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, costs, tasks
from semisfl_jax.base.errors import UserError
from semisfl_jax.core.state import State
from semisfl_jax.core.types import Algorithm
from semisfl_jax.training import checks
from tests.helpers import runs
from tests.helpers.one_line import assert_one_line
from tests.helpers.one_pass import METHOD

TOY = {'algorithm': 'one_pass', 'rounds': 2, 'checkpoint_every': 1}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', METHOD)


def shape(*sizes, kind=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, kind)


def state(**changes):
    plain = {'round': jnp.int32(0), 'step': jnp.int32(0), 'student': {'w': shape(2, 3)}, 'teacher': (), 'queue': ()}
    return State(**plain | {'clients': (shape(5),)} | changes)


def test_a_round_returns_a_state_like_the_one_before_and_scalars():
    right, narrow = {'depth': shape(), 'constant': 1.5}, {'w': shape(2, 3, kind=jnp.bfloat16)}
    checks.check_round('mine', state(), state(), right)
    for after, metrics, named in (
        (state(), {'wall_seconds': shape()}, "'wall_seconds'"),
        (state(), {'depths': shape(2)}, "'depths' is float32 [2]"),
        (state(student=narrow), {}, "float32 [2, 3] as state.student['w'] and returns bfloat16 [2, 3]"),
        (state(server={'sum': shape()}), {}, "nothing as state.server['sum']"),
    ):
        with pytest.raises(UserError, match=f"'mine': .*{re.escape(named)}"):
            checks.check_round('mine', state(), after, right | metrics)


def test_predict_returns_logits_and_the_headline_is_one_of_them():
    def predict(outputs):
        algorithm = Algorithm(None, None, lambda state, images: outputs, 'student')
        return checks.check_predict('mine', algorithm, lambda name: tasks.classification(10))(None, np.zeros((2, 8, 8)))

    right = {'student': shape(2, 10), 'teacher': (shape(2, 10), shape(2, 10))}
    assert predict(right) is right
    for wrong in ({}, {'best': shape(2, 10)}, {'teacher': shape(2, 10)}, {'student': shape(2, 13)}):
        with pytest.raises(UserError, match=r"'mine': .*(2, 13|student)"):
            predict(wrong)


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'price': lambda context: 3}, 'price'),
        ({'price': lambda context: costs.ClientCost(order='sequentiel')}, "order='sequentiel'"),
        ({'build': lambda *_: None}, 'build returns None'),
        ({'reads': 'batches'}, "reads='batches'"),  # its clients read sets
    ],
)
def test_what_a_method_returns_is_refused_before_anything_is_written(monkeypatch, tmp_path, capsys, changes, named):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', dataclasses.replace(METHOD, **changes))
    assert runs.run(tmp_path / 'run', **TOY, data__residency='host') == 2
    assert_one_line(capsys.readouterr().err, [named])
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_rounds_that_are_not_counted_end_the_run(monkeypatch, tmp_path, capsys):
    def change(round_):
        def changed(key, state, *rest):
            after, found = round_(key, state, *rest)
            return after.replace(round=state.round * 2), found  # known only once it is computed

        return changed

    runs.change_rounds(monkeypatch, change)
    assert runs.run(tmp_path / 'run', **TOY, seeds='0,1') == 2
    assert_one_line(capsys.readouterr().err, ["'one_pass'", 'round=0'])
    assert not list((tmp_path / 'run').rglob('checkpoints/*'))
