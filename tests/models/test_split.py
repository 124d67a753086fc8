"""A cut changes nothing; what a user's model lacks to be cut is named."""

from collections.abc import Callable
from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from semisfl_jax import models
from semisfl_jax.base.errors import UserError
from semisfl_jax.models import layers, zoo
from semisfl_jax.models.split import Stack
from tests.helpers.architectures import NARROW, narrow
from tests.helpers.marks import slow_but


@pytest.mark.parametrize('index', [0, 4])
def test_a_cut_out_of_range_is_refused(index):
    with pytest.raises(UserError, match=f'split_index={index}'):
        narrow('small_cnn', index)


@pytest.mark.parametrize('name', slow_but(['small_cnn', 'cnn', *NARROW], 'small_cnn'))
def test_any_cut_computes_the_uncut_model_and_its_gradient(name):
    """Features go up, and their gradient comes down."""
    images, target = jax.random.normal(jax.random.key(1), (2, 16, 16, 3)), jnp.arange(4.0)
    uncut = Stack(zoo.ARCHITECTURES[name](4, layers.FLOAT32, **NARROW.get(name, {})).named)
    variables = uncut.init(jax.random.key(0), images, train=False)

    def gradient(piece, *inputs):
        return jax.value_and_grad(lambda p, x: jnp.sum(piece({**variables, 'params': p}, x) @ target), (0, 1))(*inputs)

    expected, (of_all, _) = gradient(partial(uncut.apply, train=False), variables['params'], images)
    for index in range(1, len(uncut.layers)):
        m, weights = narrow(name, index), variables['params'].items()
        names = {layer for layer, _ in uncut.layers[:index]}
        bottom, top = ({k: v for k, v in weights if (k in names) == below} for below in (True, False))
        features, backward = jax.vjp(
            lambda p, m=m: m.bottom({**variables, 'params': p}, images, None, False)[0], bottom
        )
        value, (of_top, down) = gradient(lambda v, x, m=m: m.top(v, x, None, False)[0], top, features)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
        chex.assert_trees_all_close({**backward(down)[0], **of_top}, of_all, rtol=1e-3, atol=1e-5)


class Odd(nn.Module):
    """A layer, an encoder or a decoder of a user: what `function` makes of its input, times a number."""

    function: Callable
    kind: str = 'params'  # where the number is; '': it is none

    @nn.compact
    def __call__(self, x, train):
        if self.kind == 'params':
            one = self.param('one', nn.initializers.ones, ())
        else:
            one = self.variable(self.kind, 'one', jnp.ones, ()).value if self.kind else 1
        return jax.tree.map(lambda y: one * y, self.function(x))


class OfNnx(nnx.Module):
    """A layer or encoder of Flax's other kind of module."""

    def __init__(self, inputs, outputs, *, rngs):
        self.linear = nnx.Linear(inputs, outputs, rngs=rngs)

    def __call__(self, x, train):
        return self.linear(x.reshape(len(x), -1))


def of_nnx(name):
    return OfNnx(9 * 8 * 3, 3, rngs=nnx.Rngs(0))


def fail(x):
    raise TypeError('a slip of the user')


def layered(*functions, cut=1):
    return zoo.Architecture(tuple(partial(Odd, function) for function in functions), cut)


def weightless(*kinds):
    return zoo.Architecture(tuple(partial(Odd, flat, kind) for kind in kinds), 1)


def flat(x):
    return x.reshape(len(x), -1)[:, :3]


class Normalized(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.BatchNorm(use_running_average=not train)(x)


def test_plain_batch_norm_cannot_span_clients_and_is_named(monkeypatch):
    architecture = zoo.Architecture((partial(Odd, flat), Normalized), 1)
    monkeypatch.setitem(zoo.ARCHITECTURES, 'mine', lambda *_: architecture)
    model = models.build('mine', 3, (9, 8, 3))
    top = model.init(jax.random.key(0)).top
    assert model.top(top, jnp.ones((2, 3)), None, True)[0].shape == (2, 3)
    with pytest.raises(UserError, match=r"'mine' has BatchNorm .*layers\.batch_norm"):
        model.tops(top, jnp.ones((4, 2, 3)), jax.random.split(jax.random.key(0), 4))


ENCODER, DECODER = Odd(lambda x: (x, x[:, ::2])), Odd(lambda maps: maps[0])
MINE = {'build': (layered(flat, flat), 3), 'build_dense': ((ENCODER, DECODER), 9 * 8 * 3 + 5 * 8 * 3)}


@pytest.mark.parametrize(
    ('build', 'made', 'error'),
    [
        ('build', layered(fail, flat), TypeError),
        ('build', layered(flat, fail), TypeError),
        ('build', layered(flat, lambda x: jnp.tile(x, (1, 5))), UserError),
        ('build', layered(flat, lambda x: jnp.mean(x, axis=0, keepdims=True)), UserError),
        ('build', layered(flat, lambda x: (x, x)), UserError),
        ('build', layered(flat, lambda x: None), UserError),
        ('build', layered(lambda x: (x, x), flat), UserError),
        ('build', None, UserError),
        ('build', layered(flat, flat, cut=2), UserError),
        ('build', zoo.Architecture((of_nnx, partial(Odd, flat)), 1), UserError),
        ('build', zoo.Architecture((partial(Odd, flat), lambda name: nn.relu), 1), UserError),
        ('build', weightless('', ''), UserError),
        ('build', weightless('batch_stats', ''), UserError),
        ('build', weightless('params', 'lora'), UserError),
        ('build', weightless('cache', 'params'), UserError),
        ('build_dense', (of_nnx(''), DECODER), UserError),
        ('build_dense', (ENCODER, of_nnx('')), UserError),
        ('build_dense', (Odd(ENCODER.function, ''), Odd(DECODER.function, '')), UserError),
        ('build_dense', (ENCODER, Odd(DECODER.function, 'lora')), UserError),
        ('build_dense', ENCODER, UserError),
        ('build_dense', (Odd(lambda x: x), DECODER), UserError),
        ('build_dense', (Odd(lambda x: (x, x[0])), DECODER), UserError),
        ('build_dense', (ENCODER, Odd(lambda maps: maps)), UserError),
        ('build_dense', (ENCODER, Odd(lambda maps: maps[1][..., :2])), UserError),
        ('build_dense', (Odd(fail), DECODER), TypeError),
        ('build_dense', (ENCODER, Odd(fail)), TypeError),
    ],
)
def test_a_model_of_a_user_trains_and_returns_logits_or_maps_and_its_own_errors_stay(monkeypatch, build, made, error):
    """The line names the model or its key; an error in a layer is not said to be of small images."""
    known = zoo.ARCHITECTURES if build == 'build' else models.DENSE_ARCHITECTURES
    monkeypatch.setitem(known, 'mine', lambda *_: MINE[build][0])
    assert getattr(models, build)('mine', 3, (9, 8, 3)).feature_size == MINE[build][1]
    monkeypatch.setitem(known, 'mine', lambda *_: made)
    with pytest.raises(error, match='mine|paper_split' if error is UserError else 'a slip of the user'):
        getattr(models, build)('mine', 3, (9, 8, 3))


class Plain(nn.Module):
    """As Flax's examples are: a whole model, which knows nothing of `train`."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x.reshape(len(x), -1))


class PlainOfNnx(OfNnx):
    def __call__(self, x):
        return super().__call__(x, False)


@pytest.mark.parametrize(
    ('made', 'message'),
    [
        (Plain(), "'mine' is a Plain, which cannot be cut; .* Architecture"),
        (Plain, "'mine' is the class Plain, which cannot be cut"),
        (lambda *_: Plain(), "'mine' is a Plain, which cannot be cut"),
        (lambda *_: of_nnx(''), "'mine' is an OfNnx, which cannot be cut"),
        (of_nnx(''), "'mine' is an OfNnx, which cannot be cut"),
        (nn.Conv(3, (3, 3)), r'layer 0 .* is a Conv, .* layer\(name=…\) .*; use partial\(CLASS, …\)'),
        (partial(nn.Conv), 'layer 0 .* is the class Conv, .*missing'),
        (nn.relu, r'layer 0 .* as layer\(name=…\)'),
        (of_nnx(''), 'layer 0 .* is an OfNnx, .*nnx.bridge.to_linen'),
        (partial(OfNnx, 216, 3), 'layer 0 .* is the class OfNnx, .*nnx.bridge.to_linen'),
        (partial(nn.Conv, 3, (3, 3)), r'layer 0 .* is the class Conv, .* called as module\(x, train\); wrap it'),
        (nn.BatchNorm, 'layer 0 .* is the class BatchNorm, .* wrap it'),
        (partial(nn.Dropout, 0.5), 'layer 0 .* is the class Dropout, .* wrap it'),
        (Plain, 'layer 0 .* is the class Plain, .* wrap it'),
        (partial(nnx.bridge.to_linen, PlainOfNnx, 216, 3), 'layer 0 .* is the class PlainOfNnx, .* wrap it'),
    ],
)
def test_a_module_that_is_no_layer_or_no_model_gets_the_line_that_mends_it(monkeypatch, made, message):
    whole = made if 'cut' in message else lambda *_: zoo.Architecture((made, partial(Odd, flat)), 1)
    monkeypatch.setitem(zoo.ARCHITECTURES, 'mine', whole)
    with pytest.raises(UserError, match=message):
        models.build('mine', 3, (9, 8, 3))


def test_the_wrapper_that_the_message_names_trains(monkeypatch):
    """Its weights are where a round looks, and have a gradient."""
    wrapped = partial(nnx.bridge.to_linen, OfNnx, 9 * 8 * 3, 3)
    monkeypatch.setitem(zoo.ARCHITECTURES, 'mine', lambda *_: zoo.Architecture((wrapped, partial(Odd, flat)), 1))
    model, images = models.build('mine', 3, (9, 8, 3)), jnp.ones((2, 9, 8, 3))
    bottom = model.init(jax.random.key(0)).bottom
    slopes = jax.grad(lambda p: model.bottom({'params': p}, images, None, True)[0].sum())(bottom['params'])
    chex.assert_trees_all_close(
        slopes, {'layer_0': {'linear': {'bias': 2 * jnp.ones(3), 'kernel': 2 * jnp.ones((216, 3))}}}
    )
