"""The cut of dense models between encoder and decoder, BatchNorm, dropout, precision and steps."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.models.layers import resize
from tests import dense_twin
from tests.dense_models import NARROW, SHAPE, assert_close, images, narrow
from tests.marks import slow_but


class Uncut(nn.Module):
    """Encoder and decoder as one module."""

    encoder: nn.Module
    decoder: nn.Module

    @nn.compact
    def __call__(self, x, train):
        return resize(self.decoder(self.encoder(x, train), train), *SHAPE[:2])


def without_dropout(call, arguments, options, context):
    """A Flax interceptor: what dropout draws depends on where its module is."""
    return arguments[0] if isinstance(context.module, nn.Dropout) else call(*arguments, **options)


@pytest.mark.parametrize('name', slow_but(NARROW, 'scene_net', 'deeplabv3plus'))
def test_the_cut_computes_the_uncut_model_and_its_gradient(name):
    """In training mode: maps up, their gradients down."""
    model, variables = narrow(name)
    x, target = images(3), jax.random.normal(jax.random.key(2), (3, *SHAPE[:2], 2))
    uncut = Uncut(*(module.clone() for module in NARROW[name]))
    both = {kind: {'encoder': variables.bottom[kind], 'decoder': variables.top[kind]} for kind in variables.bottom}

    def whole(parameters):
        outputs, moved = uncut.apply({**both, 'params': parameters}, x, train=True, mutable=['batch_stats'])
        return jnp.sum(outputs * target), moved['batch_stats']

    @jax.jit
    def split(bottom, top):
        def encode(p):
            return model.bottom({**variables.bottom, 'params': p}, x, None, True)

        def decode(p, maps):
            outputs, moved = model.top({**variables.top, 'params': p}, maps, None, True)
            assert outputs.shape == target.shape
            return jnp.sum(outputs * target), moved['batch_stats']

        maps, backward, moved_bottom = jax.vjp(encode, bottom, has_aux=True)
        (value, moved_top), (of_top, down) = jax.value_and_grad(decode, (0, 1), has_aux=True)(top, maps)
        statistics = {'encoder': moved_bottom['batch_stats'], 'decoder': moved_top}
        return (value, statistics), {'encoder': backward(down)[0], 'decoder': of_top}

    with nn.intercept_methods(without_dropout):
        expected = jax.jit(jax.value_and_grad(whole, has_aux=True))(both['params'])
        assert_close(split(variables.bottom['params'], variables.top['params']), expected)


@pytest.mark.parametrize('name', NARROW)
def test_only_training_draws_and_moves_statistics(name):
    model, variables = narrow(name)
    x = 2.0 + images(4)

    @functools.partial(jax.jit, static_argnums=1)
    def run(key, train):
        maps, bottom = model.bottom(variables.bottom, x, jax.random.fold_in(key, 0), train)
        outputs, top = model.top(variables.top, maps, jax.random.fold_in(key, 1), train)
        return outputs, (bottom, top)

    one, other = jax.random.key(0), jax.random.key(1)
    outputs, same = run(one, False)
    np.testing.assert_array_equal(outputs, run(other, False)[0])
    assert jax.tree.all(jax.tree.map(np.array_equal, same, (variables.bottom, variables.top)))
    outputs, moved = run(one, True)
    assert (outputs.shape, outputs.dtype) == ((4, *SHAPE[:2], 2), jnp.float32)
    drawn_alike = np.array_equal(outputs, run(other, True)[0])
    assert drawn_alike == (name == 'scene_net')  # DeepLab's decoders have dropout
    old = variables.bottom['batch_stats'], variables.top['batch_stats']
    new = moved[0]['batch_stats'], moved[1]['batch_stats']
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, old, new)))  # every one has moved

    # of the first layer, by a tenth towards those of the batch
    stem, stride, padding = ('stem', 1, 1) if name == 'scene_net' else ('conv1', 2, 3)
    kernel = np.asarray(variables.bottom['params'][stem]['kernel']).transpose(3, 2, 0, 1)
    before = dense_twin.convolve(x, kernel, stride, padding)
    got = moved[0]['batch_stats'][stem]['norm']
    np.testing.assert_allclose(got['mean'], 0.1 * before.mean((0, 1, 2)), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(got['var'], 0.9 + 0.1 * before.var((0, 1, 2)), rtol=1e-3)


def test_rows_that_are_not_valid_do_not_count():
    """Three valid rows of five move the statistics as three alone do."""
    model, variables = narrow('scene_net')
    x = images(5)

    def statistics(x, rows):
        maps, bottom = model.bottom(variables.bottom, x, None, True, rows)
        _, top = model.top(variables.top, maps, None, True, rows)
        return bottom['batch_stats'], top['batch_stats']

    valid = jnp.array([True, False, True, True, False])
    assert_close(jax.jit(statistics)(x, valid), jax.jit(lambda x: statistics(x, None))(x[valid]))


def test_bfloat16_computes_in_bfloat16_and_gives_float32():
    exact, rounded = (models.build_dense('scene_net', 3, (16, 16, 3), dtype=dtype) for dtype in ('float32', 'bfloat16'))
    variables = jax.jit(rounded.init)(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype('float32')}
    x = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))

    def run(model):
        maps, _ = model.bottom(variables.bottom, x, None, True)
        return *maps, model.top(variables.top, maps, None, True)[0]

    for got, expected in zip(jax.jit(lambda: run(rounded))(), jax.jit(lambda: run(exact))(), strict=True):
        assert got.dtype == jnp.float32
        error = jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected)
        assert 1e-4 < error < 0.1  # bfloat16 keeps 8 bits: 0.4 % a number


def test_every_convolution_keeps_the_fast_form_inside_a_loop():
    """Of the small net in all passes, as XLA's CPU backend wants them: no groups."""
    model = models.build_dense('scene_net', 3, (16, 16, 3), convolution='direct')
    variables = jax.eval_shape(model.init, jax.random.key(0))
    parts = variables.bottom, variables.top
    parameters, statistics = ([part[kind] for part in parts] for kind in ('params', 'batch_stats'))

    def loss(parameters, statistics, x):
        bottom, top = ({'params': p, 'batch_stats': s} for p, s in zip(parameters, statistics, strict=True))
        maps, _ = model.bottom(bottom, x, None, True)
        return jnp.sum(model.top(top, maps, None, True)[0] ** 2)

    def looped(parameters, statistics, x):
        return jax.lax.map(lambda one: jax.grad(loss)(one[0], statistics, one[1]), (parameters, x))

    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), parameters)
    text = jax.jit(looped).lower(stacked, statistics, jnp.zeros((2, 4, 16, 16, 3))).as_text(dialect='hlo')
    convolutions = [line for line in text.splitlines() if ' convolution(' in line]
    assert len(convolutions) == 3 * 11 - 1  # 5 and 6 layers: forward, kernels and inputs; images need no gradient
    for line in convolutions:
        assert 'dim_labels=b01f_01io->b01f' in line
        assert 'group_count' not in line
