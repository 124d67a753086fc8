"""`model.recompute`: the same gradients with fewer numbers kept for them."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.models import zoo
from semisfl_jax.models.dense_zoo import SceneDecoder, SceneEncoder
from semisfl_jax.models.layers import Compute

SHAPE = (32, 32, 3)
BUILDERS = {
    'vgg13': partial(zoo.ARCHITECTURES['vgg13'], channels=(4, 4, 8, 8, 8), dense=8),
    'wresnet28x2': partial(zoo.ARCHITECTURES['wresnet28x2'], channels=(4, 4, 6, 8), depth=1),
    'cnn': zoo.ARCHITECTURES['cnn'],
}


def split(name, recompute, convolution):
    compute = Compute(convolution=convolution, recompute=recompute)
    return models.cut(BUILDERS[name](5, compute), SHAPE, None, 'none', 0, compute)


def backward(model, variables, x, key):
    """The pullback of bottom and top, whose leaves are what is kept for it."""

    def logits(parameters):
        bottom, top = ({**old, 'params': new} for old, new in zip(variables[:2], parameters, strict=True))
        features, moved = model.bottom(bottom, x, key, True)
        out, moved_top = model.top(top, features, key, True)
        return out, (moved, moved_top)

    return jax.vjp(logits, (variables.bottom['params'], variables.top['params']), has_aux=True)


@pytest.mark.parametrize('convolution', ['native', 'direct'])
@pytest.mark.parametrize('name', BUILDERS)
def test_gradients_statistics_and_dropout_are_the_same(name, convolution):
    key = jax.random.key(0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, *SHAPE)), jnp.float32)
    results = []
    for recompute in (False, True):
        model = split(name, recompute, convolution)
        variables = jax.jit(model.init)(key)

        @jax.jit
        def gradient(variables, model=model):
            out, pull, moved = backward(model, variables, x, key)
            return out, pull(jnp.ones_like(out)), moved

        results.append(gradient(variables))
    chex.assert_trees_all_close(*results, rtol=2e-3, atol=2e-5)


def test_half_is_kept_of_a_model_with_batch_norm():
    """Beside parameters and images: an output of each convolution, in place of that and what the next one reads."""

    def kept(recompute):
        model = split('vgg13', recompute, 'native')
        variables = jax.eval_shape(model.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((64, *SHAPE), jnp.float32)
        pull = jax.eval_shape(lambda v, x, key: backward(model, v, x, key)[1], variables, x, jax.random.key(0))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull) if leaf.size > 64 * 64)

    # two convolutions of each width at sides 32, 16, 8, 4 and 3 (the fourth pooling is padded)
    convolved = 4 * 64 * 2 * (4 * 32**2 + 4 * 16**2 + 8 * 8**2 + 8 * 4**2 + 8 * 3**2)
    assert kept(recompute=True) == pytest.approx(convolved + 4 * 64 * 32**2 * 3, rel=0.1)
    assert kept(recompute=False) > 1.8 * convolved


def test_dense_models_have_it():
    x = jax.random.normal(jax.random.key(1), (2, 24, 24, 3))

    def gradient(recompute):
        model = models.encoder_decoder(SceneEncoder(), SceneDecoder(3, width=4), (24, 24, 3), recompute)
        variables = model.init(jax.random.key(0))

        def loss(parameters):
            maps, _ = model.bottom({**variables.bottom, 'params': parameters}, x, None, True)
            return jnp.sum(model.top(variables.top, maps, None, True)[0] ** 2)

        return jax.jit(jax.grad(loss))(variables.bottom['params'])

    chex.assert_trees_all_close(gradient(False), gradient(True), rtol=2e-3, atol=1e-4)
