"""Statistics of BatchNorm taken afresh, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.algorithms import semifl
from semisfl_jax.algorithms.semifl import build_statistics
from semisfl_jax.core import rng
from tests import draws, linear, toy
from tests.batch_norm_twin import statistics
from tests.marks import slow_but

KEY = jax.random.key(5)


@pytest.mark.parametrize(
    ('by_rows', 'variance'), slow_but([(False, 'biased'), (True, 'biased'), (False, 'unbiased')], (True, 'biased'))
)
def test_cumulative_average(by_rows, variance):
    model = toy.model(split_index=1, top_norm=True, variance=variance)
    variables = model.init(jax.random.key(0))
    variables = variables._replace(  # old statistics must not matter
        bottom={**variables.bottom, 'batch_stats': jax.tree.map(lambda x: x + 7.0, variables.bottom['batch_stats'])}
    )
    images = np.random.default_rng(0).normal(1.0, 2.0, (30, *toy.SHAPE)).astype(np.float32)
    rows = np.random.default_rng(1).permutation(30)[:24].reshape(4, 6)
    if by_rows:
        got = jax.jit(lambda v, rows, images: semifl.recompute_statistics(model, v, lambda t: images[rows[t]], 4, KEY))(
            variables, rows, images
        )
    else:
        got = jax.jit(lambda v, batches: semifl.recompute_statistics(model, v, batches.__getitem__, 4, KEY))(
            variables, images[rows]
        )
    norms = [got.bottom['batch_stats']['layer_0']['norm'], got.top['batch_stats']['layer_1']['norm']]
    norms = [norm[kind] for norm in norms for kind in ('mean', 'var')]
    for value, expected in zip(norms, statistics(variables, images[rows], variance == 'unbiased'), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)  # n is 216 and 54
    for name in ('bottom', 'top'):
        assert getattr(got, name)['params'].keys() == getattr(variables, name)['params'].keys()
    for old, new in zip(jax.tree.leaves(variables.top['params']), jax.tree.leaves(got.top['params']), strict=True):
        np.testing.assert_array_equal(old, new)


def test_pieces_without_batch_norm():
    plain = models.build('small_cnn', 3, (8, 8, 1))
    variables = plain.init(jax.random.key(0))
    assert semifl.recompute_statistics(plain, variables, jnp.zeros((2, 4, 8, 8, 1)).__getitem__, 2, KEY) is variables

    model = toy.model(split_index=2)  # BatchNorm in the bottom alone, dropout in the top
    variables = model.init(jax.random.key(0))
    batches = jax.random.normal(jax.random.key(1), (2, 4, *toy.SHAPE))
    got = semifl.recompute_statistics(model, variables, batches.__getitem__, 2, KEY)
    assert jax.tree.structure(got) == jax.tree.structure(variables)
    old, new = (v.bottom['batch_stats']['layer_0']['norm']['var'] for v in (variables, got))
    assert not np.allclose(old, new)


@pytest.mark.parametrize('whose', ['all', 'server'])
def test_whose_images_the_statistics_are_of(whose):
    """A mean over batches of 8, of 12 images of the server and 9 + 13 of two clients, or of those 12 alone; the last
    batch is filled up with images of the next epoch."""
    federation, model = toy.federation(), linear.model()
    federation = federation.replace(size=federation.size.at[jnp.array([0, 1, 3])].set(0).at[2].set(9).at[4].set(13))
    images = [np.asarray(federation.server_images)]
    if whose == 'all':
        held = np.asarray(federation.index)
        images += [np.asarray(federation.client_images)[held[client, :size]] for client, size in ((2, 9), (4, 13))]
    images = np.concatenate(images)
    assert len(images) == {'all': 34, 'server': 12}[whose]
    variables = model.init(KEY)
    found = jax.jit(build_statistics(model, toy.VIEWS, whose, 8))(KEY, variables, federation)
    word = jax.random.bits(rng.fold(KEY, 'batch_norm', 'order'))
    order = draws.read(word, jnp.arange(-(-len(images) // 8) * 8), jnp.int32(len(images)))
    pixels = np.asarray(toy.VIEWS.normalize(images[np.asarray(order)]), np.float64).reshape(len(order), -1)
    expected = np.mean(pixels @ np.asarray(variables.bottom['params']['w'], np.float64), axis=0)
    np.testing.assert_allclose(found.bottom['batch_stats']['mean'], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.bottom['params']['w'], variables.bottom['params']['w'])
