"""BatchNorm's running variance, statistics that are taken afresh, and rows that are not there, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import core, models
from semisfl_jax.algorithms import semifl
from semisfl_jax.core import rng
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.models import layers
from tests.helpers import draws, linear, toy
from tests.helpers.convolution import convolve
from tests.helpers.marks import slow_but
from tests.helpers.trees import assert_trees_close

KEY = jax.random.key(5)

VARIANCES = {'biased': 0, 'unbiased': 1}  # what is subtracted from n, NumPy's ddof


@functools.cache
def one_layer(variance, dtype='float32'):
    """A 3 x 3 convolution with BatchNorm on 2 x 2 images, then a classifier."""
    compute = layers.Compute(dtype, 'native', variance)
    architecture = models.zoo.Architecture(
        (
            lambda name: layers.ConvLayer(4, norm=True, compute=compute, name=name),
            lambda name: layers.DenseLayer(3, activation=False, name=name),
        ),
        1,
    )
    return models.cut(architecture, (2, 2, 3), None, 'linear', 8)


def normed(variables):
    return variables['batch_stats']['layer_0']['norm']


def convolved(variables, images):
    kernel, bias = (np.asarray(variables['params']['layer_0'][name]) for name in ('kernel', 'bias'))
    return convolve(np.asarray(images), kernel, 1) + bias


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('variance', VARIANCES)
def test_the_running_variance_after_two_steps_equals_numpy(variance, dtype):
    """Two images of 2 x 2 pixels: n = 8, so the two kinds are 12 % apart. Outputs are the same for both."""
    model = one_layer(variance, dtype)
    bottom, plain = (jax.jit(one_layer(name, dtype).bottom, static_argnums=3) for name in (variance, 'biased'))
    variables = moved = model.init(jax.random.key(0)).bottom
    mean, var = np.zeros(4), np.ones(4)
    for step in (1, 2):
        images = 3.0 + jax.random.normal(jax.random.key(step), (2, 2, 2, 3))
        features, moved = bottom(moved, images, None, True)
        np.testing.assert_array_equal(features, plain(variables, images, None, True)[0])
        before = convolved(variables, images)
        mean = 0.9 * mean + 0.1 * before.mean((0, 1, 2))
        var = 0.9 * var + 0.1 * before.var((0, 1, 2), ddof=VARIANCES[variance])
    tolerance = {'float32': 1e-5, 'bfloat16': 3e-2}[dtype]
    np.testing.assert_allclose(normed(moved)['mean'], mean, rtol=tolerance)
    np.testing.assert_allclose(normed(moved)['var'], var, rtol=tolerance)
    assert normed(moved)['var'].dtype == jnp.float32
    _, same = model.bottom(moved, images, None, False)
    assert same is moved


@pytest.mark.parametrize('devices', slow_but([1, 2], 2))
@pytest.mark.parametrize('variance', VARIANCES)
def test_the_rows_of_all_clients_count(variance, devices):
    """The server's BatchNorm spans the clients, here 3 of one row on each device: n = 9 pixels times all rows."""
    axes = ('devices',) if devices > 1 else ()
    model = toy.model(split_index=1, top_norm=True, variance=variance, axes=axes)
    top = jax.tree.map(jnp.copy, model.init(jax.random.key(0)).top)
    features = jax.random.normal(jax.random.key(1), (devices, 3, 1, model.feature_size))
    keys = jax.random.split(jax.random.key(2), (devices, 3))
    if devices > 1:
        tops = jax.vmap(model.tops, in_axes=(None, 0, 0), out_axes=(0, None), axis_name='devices')
        _, moved = jax.jit(tops)(top, features, keys)
    else:
        _, moved = jax.jit(model.tops)(top, features[0], keys[0])
    layer = top['params']['layer_1']
    rows = np.asarray(features).reshape(-1, 3, 3, 4)
    seen = convolve(rows, np.asarray(layer['kernel']), 1) + np.asarray(layer['bias'])
    assert seen[..., 0].size == devices * 3 * 9
    expected = 0.9 + 0.1 * seen.var((0, 1, 2), ddof=VARIANCES[variance])
    np.testing.assert_allclose(moved['batch_stats']['layer_1']['norm']['var'], expected, rtol=1e-5)


def test_a_single_number_has_the_variance_zero():
    """PyTorch refuses to train on one number a channel. Here its unbiased variance is 0, and not 0 / 0."""
    norm = layers.UnbiasedBatchNorm(False, momentum=0.9)
    variables = norm.init(jax.random.key(0), jnp.ones((1, 4)))
    np.testing.assert_array_equal(variables['batch_stats']['var'], 1.0)
    _, moved = norm.apply(variables, jnp.full((1, 4), 5.0), mutable='batch_stats')
    np.testing.assert_allclose(moved['batch_stats']['var'], 0.9, rtol=1e-6)


# --- taken afresh


def statistics(variables, batches, ddof):
    """Mean over batches of the mean and the variance that each BatchNorm of `toy.model` sees in each batch."""
    bottom, top = jax.device_get((variables.bottom, variables.top))
    seen = []
    for x in batches:
        of_batch = []
        for layer in (bottom['params']['layer_0'], top['params']['layer_1']):
            y = convolve(np.asarray(x), layer['kernel'], 1) + layer['bias']
            mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
            of_batch += [mean, y.var((0, 1, 2), ddof=ddof)]
            y = (y - mean) / np.sqrt(variance + 1e-5) * layer['norm']['scale'] + layer['norm']['bias']
            x = np.maximum(y.reshape(len(y), 3, 2, 3, 2, 4).max((2, 4)) if y.shape[-1] == 4 else y, 0)
        seen.append(of_batch)
    return [np.mean(values, axis=0) for values in zip(*seen, strict=True)]


@pytest.mark.parametrize('variance', VARIANCES)
def test_statistics_taken_afresh_are_a_cumulative_average(variance):
    model = toy.model(split_index=1, top_norm=True, variance=variance)
    variables = model.init(jax.random.key(0))
    variables = variables._replace(  # old statistics must not matter
        bottom={**variables.bottom, 'batch_stats': jax.tree.map(lambda x: x + 7.0, variables.bottom['batch_stats'])}
    )
    images = np.random.default_rng(0).normal(1.0, 2.0, (30, *toy.SHAPE)).astype(np.float32)
    rows = np.random.default_rng(1).permutation(30)[:24].reshape(4, 6)
    got = jax.jit(lambda v, rows, images: semifl.recompute_statistics(model, v, lambda t: images[rows[t]], 4, KEY))(
        variables, rows, images
    )
    norms = [got.bottom['batch_stats']['layer_0']['norm'], got.top['batch_stats']['layer_1']['norm']]
    norms = [norm[kind] for norm in norms for kind in ('mean', 'var')]
    for value, expected in zip(norms, statistics(variables, images[rows], VARIANCES[variance]), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)  # n is 216 and 54
    jax.tree.map(np.testing.assert_array_equal, trainable(got), trainable(variables))


def test_a_model_without_batch_norm_stays_as_it_is():
    plain = models.build('small_cnn', 3, (8, 8, 1))
    variables = plain.init(jax.random.key(0))
    assert semifl.recompute_statistics(plain, variables, jnp.zeros((2, 4, 8, 8, 1)).__getitem__, 2, KEY) is variables


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
    found = jax.jit(semifl.build_statistics(model, toy.VIEWS, whose, 8))(KEY, variables, federation)
    word = jax.random.bits(rng.fold(KEY, 'batch_norm', 'order'))
    order = draws.read(word, jnp.arange(-(-len(images) // 8) * 8), jnp.int32(len(images)))
    pixels = np.asarray(toy.VIEWS.normalize(images[np.asarray(order)]), np.float64).reshape(len(order), -1)
    expected = np.mean(pixels @ np.asarray(variables.bottom['params']['w'], np.float64), axis=0)
    np.testing.assert_allclose(found.bottom['batch_stats']['mean'], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.bottom['params']['w'], variables.bottom['params']['w'])


# --- rows that are not there

BATCH, THERE = 7, 3


def run(model, student, images, weight, rows):
    """Logits, statistics, and the gradient of a weighted sum of squares of the logits."""

    def loss(parameters):
        variables = with_parameters(student, parameters)
        logits, moved = core.forward(model, variables, images, rng.root(3), True, rows)
        return jnp.sum(logits**2 * weight[:, None]) / jnp.sum(weight), (logits, moved)

    gradient, (logits, moved) = jax.grad(loss, has_aux=True)(trainable(student))
    return logits, moved, gradient


@pytest.mark.slow
@pytest.mark.parametrize('variance', ['biased', 'unbiased'])
def test_rows_that_are_not_there_change_nothing(variance):
    """Outputs, gradients and BatchNorm, on both sides of the cut, are those of a batch of the others alone."""
    model = toy.model(split_index=1, top_norm=True, variance=variance)  # with dropout
    student = model.init(rng.root(0))
    images = jax.random.normal(jax.random.key(1), (BATCH, *toy.SHAPE))
    images = images.at[THERE:].mul(50.0)  # the others would be seen in every statistic
    valid = jnp.arange(BATCH) < THERE
    padded, moved, gradient = run(model, student, images, valid.astype(jnp.float32), valid)
    expected_logits, expected, expected_gradient = run(model, student, images[:THERE], jnp.ones(THERE), None)
    np.testing.assert_allclose(padded[:THERE], expected_logits, rtol=2e-3, atol=1e-4)
    assert_trees_close(moved, expected, rtol=2e-3, atol=1e-4)
    assert_trees_close(gradient, expected_gradient, rtol=5e-3, atol=5e-4)
    without, _, _ = run(model, student, images, valid.astype(jnp.float32), None)
    assert not np.allclose(without[:THERE], expected_logits, rtol=0.1, atol=0.01)
