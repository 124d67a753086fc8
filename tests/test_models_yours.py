"""Models that a user registers: what their functions return, and the line that refuses it."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax.numpy as jnp
import pytest

from semisfl_jax import models
from semisfl_jax.core.errors import UserError
from semisfl_jax.models import layers, zoo


class Odd(nn.Module):
    """A layer of a user: images [B, ...] -> what `function` makes of logits [B, 3]."""

    function: Callable

    @nn.compact
    def __call__(self, x, train):
        return self.function(nn.Dense(3)(x.reshape(len(x), -1)))


def mine(monkeypatch, made):
    monkeypatch.setitem(zoo.ARCHITECTURES, 'mine', lambda num_classes, compute: made)
    return models.build('mine', 3, (8, 8, 1))


def fail(x):
    raise TypeError('a slip of the user')


@pytest.mark.parametrize('place', [0, 1])
def test_an_error_in_a_layer_of_a_user_is_not_said_to_be_of_small_images(monkeypatch, place):
    functions = [fail if place == at else (lambda x: x) for at in range(2)]
    with pytest.raises(TypeError, match='a slip of the user'):
        mine(monkeypatch, zoo.Architecture(tuple(partial(Odd, function) for function in functions), 1))


@pytest.mark.parametrize(
    ('function', 'given'),
    [
        (lambda x: jnp.tile(x, (1, 5)), r'float32 \[2, 15\]'),
        (lambda x: x[:, None, None], r'float32 \[2, 1, 1, 3\]'),
        (lambda x: jnp.mean(x, axis=0, keepdims=True), r'float32 \[1, 3\]'),
        (lambda x: (x, x), 'a tuple'),
        (lambda x: None, 'None'),
    ],
)
def test_a_model_of_a_user_returns_logits(monkeypatch, function, given):
    first, last = partial(Odd, lambda x: x), partial(Odd, function)
    assert mine(monkeypatch, zoo.Architecture((first, first), 1)).feature_size == 3
    with pytest.raises(UserError, match=rf"last layer of .*'mine' returns {given} .* one array \[2, 3\]"):
        mine(monkeypatch, zoo.Architecture((first, last), 1))


def test_one_array_crosses_the_cut(monkeypatch):
    first, last = partial(Odd, lambda x: (x, x)), partial(Odd, lambda x: x)
    with pytest.raises(UserError, match=r'the first 1 layers of .*mine.* returns a tuple .* return one array \[2, '):
        mine(monkeypatch, zoo.Architecture((first, last), 1))


DENSE = partial(layers.DenseLayer, 3)


@pytest.mark.parametrize(
    ('made', 'message'),
    [
        (None, "'mine': the function returns None; return an Architecture"),
        (zoo.Architecture((DENSE,), 1), 'paper_split=1: this model has 1 layers'),
        (zoo.Architecture((DENSE, DENSE), 2), 'paper_split=2: .* use 1 to 1'),
    ],
)
def test_a_function_of_a_user_that_makes_no_layers_is_refused(monkeypatch, made, message):
    with pytest.raises(UserError, match=message):
        mine(monkeypatch, made)
