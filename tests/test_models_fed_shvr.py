"""The models of Fed-SHVR: parameters counted by hand, the MLP and CNN13 against NumPy, dropout between stages."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import models
from semisfl_jax.core import cross_entity
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.types import LOCAL_CLIENTS
from semisfl_jax.costs.prices import ModelSpec, measure
from semisfl_jax.models import layers, zoo
from semisfl_jax.models.split import Stack
from tests import runs
from tests.architectures import count
from tests.convolution import convolve

# Kernels, outputs of nine convolutions, the classifier; BatchNorm has a scale and a shift of every output
CHANNELS = (3, 128, 128, 128, 256, 256, 256, 512, 256, 128)
KERNELS = (3, 3, 3, 3, 3, 3, 3, 1, 1)
CNN13_WEIGHTS = sum(k * k * a * b for k, (a, b) in zip(KERNELS, itertools.pairwise(CHANNELS), strict=True))
CNN13_OUTPUTS = sum(CHANNELS[1:])


def shapes(name, shape, **options):
    model = models.build(name, 10, shape, **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))


@pytest.mark.parametrize(('name', 'hidden', 'total'), [('mlp5000', 5000, 3_975_010), ('mlp200', 200, 159_010)])
def test_parameters_of_the_mlp(name, hidden, total):
    model, variables = shapes(name, (28, 28, 1))
    assert model.feature_size == hidden
    assert count(variables.bottom) == 784 * hidden + hidden
    assert count(variables.top) == hidden * 10 + 10
    assert count(variables.bottom) + count(variables.top) == total
    pieces = measure(ModelSpec(name, 10, (28, 28, 1), None, 'none', 128))
    assert pieces.whole_bytes == 4 * total
    assert pieces.bottom_work.forward == pytest.approx(2 * 784 * hidden, rel=0.01)


def test_parameters_of_cnn13():
    model, variables = shapes('cnn13', (32, 32, 3))
    bottom, top = variables.bottom, variables.top
    assert model.feature_size == 128
    assert CNN13_WEIGHTS == 3456 + 2 * 147_456 + 294_912 + 2 * 589_824 + 1_179_648 + 131_072 + 32_768
    assert count(bottom['params']) == CNN13_WEIGHTS + CNN13_OUTPUTS + 2 * CNN13_OUTPUTS
    assert count(bottom['batch_stats']) == 2 * CNN13_OUTPUTS
    assert count(top) == 128 * 10 + 10
    assert count(bottom['params']) + count(top) == 3_123_850
    pieces = measure(ModelSpec('cnn13', 10, (32, 32, 3), None, 'none', 128))
    assert pieces.whole_bytes == 4 * (3_123_850 + 2 * CNN13_OUTPUTS)
    assert pieces.statistics == 4 * 2 * CNN13_OUTPUTS


def test_maps_of_cnn13():
    """32 x 32, halved twice, 6 x 6 after the convolution without padding; the mean is one number per channel."""
    sizes = [model.feature_size for model in (shapes('cnn13', (32, 32, 3), split_index=i)[0] for i in range(1, 10))]
    sides = (32, 32, 16, 16, 16, 8, 6, 6)
    assert sizes == [*(s * s * c for s, c in zip(sides, CHANNELS[1:], strict=False)), 128]


@pytest.mark.parametrize('shape', [(28, 28, 1), (5, 7, 3)])
def test_mlp_against_numpy(shape):
    model = models.build('mlp200', 10, shape)
    variables = jax.jit(model.init)(jax.random.key(0))
    images = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    features, _ = model.bottom(variables.bottom, images, None, True)  # without dropout, no key
    logits, _ = model.top(variables.top, features, None, True)
    hidden, out = (
        np.float64(piece['params'][f'layer_{i}']['dense']['kernel']) for i, piece in enumerate(variables[:2])
    )
    shift, end = (np.float64(piece['params'][f'layer_{i}']['dense']['bias']) for i, piece in enumerate(variables[:2]))
    expected = np.maximum(images.reshape(3, -1) @ hidden + shift, 0.0)
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logits, expected @ out + end, rtol=1e-4, atol=1e-5)


NARROW = {'channels': (3, 4, 5, 4, 3), 'depths': (3, 3)}


def narrow_cnn13(index=None, side=12, convolution='native'):
    """A narrow CNN13, its variables with statistics, scales and shifts unlike those it starts with, and images."""
    compute = layers.Compute(convolution=convolution)
    model = models.cut(zoo.ARCHITECTURES['cnn13'](4, compute, **NARROW), (side, side, 2), index, 'none', 8, compute)
    variables = jax.jit(model.init)(jax.random.key(0))
    rng = np.random.default_rng(1)

    def drawn(path, leaf):
        norm = any(getattr(part, 'key', '') in ('norm', 'batch_stats') for part in path)
        return np.float32(rng.uniform(0.5, 1.5, leaf.shape)) if norm else np.asarray(leaf)

    variables = jax.tree_util.tree_map_with_path(drawn, variables)
    return model, variables, rng.normal(size=(2, side, side, 2)).astype(np.float32)


def in_numpy(variables, x):
    """The outputs of the ten layers in evaluation mode, from the definition of each."""
    parameters = {**variables.bottom['params'], **variables.top['params']}
    statistics = {**variables.bottom.get('batch_stats', {}), **variables.top.get('batch_stats', {})}
    outputs = []
    for index in range(9):
        layer, moments = parameters[f'layer_{index}'], statistics[f'layer_{index}']['norm']
        x = convolve(x, layer['kernel'], 1 if index < 6 else 0) + layer['bias']
        x = (x - moments['mean']) / np.sqrt(moments['var'] + 1e-5) * layer['norm']['scale'] + layer['norm']['bias']
        x = np.where(x > 0, x, 0.1 * x)
        if index in (2, 5):
            half = x.shape[1] // 2
            x = x[:, : 2 * half, : 2 * half].reshape(len(x), half, 2, half, 2, -1).max((2, 4))
        outputs.append(x)
    outputs[-1] = outputs[-1].mean((1, 2))
    dense = parameters['layer_9']['dense']
    return [*outputs, outputs[-1] @ dense['kernel'] + dense['bias']]


@functools.cache
def of_every_layer(train):
    """(variables, images, key) -> the outputs of the ten layers of a narrow CNN13 that is not cut."""
    stack = Stack(zoo.ARCHITECTURES['cnn13'](4, layers.FLOAT32, **NARROW).layers)

    def run(variables, images, key):
        joined = {
            'params': {**variables.bottom['params'], **variables.top['params']},
            'batch_stats': variables.bottom['batch_stats'],
        }
        written = ['intermediates', 'batch_stats']
        rngs = {'dropout': key}
        _, moved = stack.apply(joined, images, train, rngs=rngs, mutable=written, capture_intermediates=True)
        return [moved['intermediates'][f'layer_{index}']['__call__'][0] for index in range(10)]

    return jax.jit(run)


@pytest.mark.parametrize('side', [12, 15])
def test_cnn13_against_numpy(side):
    """The output of every layer; features and logits of the model that is cut."""
    model, variables, images = narrow_cnn13(side=side)
    expected = in_numpy(variables, images)
    for got, wanted in zip(of_every_layer(False)(variables, images, jax.random.key(0)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    features, same = model.bottom(variables.bottom, images, None, False)
    assert same is variables.bottom
    logits, _ = model.top(variables.top, features, None, False)
    for got, wanted in ((features, expected[-2]), (logits, expected[-1])):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_dropout_ends_the_first_two_stages():
    """Half of the numbers after them are zero in training, none after other layers, as LeakyReLU makes no zeros. In
    evaluation there are none, and no key is read."""
    images = np.random.default_rng(2).normal(size=(16, 12, 12, 2)).astype(np.float32)
    _, variables, _ = narrow_cnn13()
    train, evaluate = of_every_layer(True), of_every_layer(False)
    keys = jax.random.key(0), jax.random.key(1)
    for index, (one, other) in enumerate(zip(*(train(variables, images, key) for key in keys), strict=True)):
        dropped = np.asarray(one) == 0.0
        deviation = (0.25 / dropped.size) ** 0.5  # of the share of heads in so many tosses of a coin
        if index in (2, 5):
            assert abs(dropped.mean() - 0.5) < 5 * deviation, index
            assert np.any(dropped != (np.asarray(other) == 0.0))
        else:
            assert not dropped.any(), index
    for one, other in zip(*(evaluate(variables, images, key) for key in keys), strict=True):
        np.testing.assert_array_equal(one, other)
        assert not np.any(np.asarray(one) == 0.0)


def test_clients_draw_dropout_of_their_own():
    """In the server's part, too: the two clients of `tops` have the same rows, and differ by their keys alone."""
    model, variables, _ = narrow_cnn13(5)
    rows = jnp.tile(jax.random.normal(jax.random.key(1), (1, 4, model.feature_size)), (2, 1, 1))
    tops = jax.jit(model.tops)
    same, different = (jax.random.split(jax.random.key(0))[index] for index in (jnp.array([0, 0]), jnp.array([0, 1])))
    for keys, equal in ((same, True), (different, False)):
        logits, _ = tops(variables.top, rows, keys)
        assert np.allclose(logits[0], logits[1], rtol=1e-5, atol=1e-6) == equal


@pytest.mark.parametrize('statistics', ['eval', 'train'])
def test_a_teacher_drops_nothing_in_evaluation_mode(statistics):
    """Its features and labels at the clients are those without a key; in training mode they are other ones."""
    model, variables, images = narrow_cnn13()
    hparams = config_lib.hparams(config_lib.resolve(runs.config(client_teacher_bn=statistics)))
    keys = jax.random.split(jax.random.key(0), 2)
    models, x = (variables, variables), jnp.stack([images, images])
    got, _ = cross_entity.weak_rows(model, hparams, LOCAL_CLIENTS, *models, x, keys, True)
    plain, _ = model.bottom(variables.bottom, images, None, False)
    assert np.allclose(got, jnp.concatenate([plain, plain]), rtol=1e-4, atol=1e-5) == (statistics == 'eval')
    assert np.allclose(got[:2], got[2:], rtol=1e-4, atol=1e-5) == (statistics == 'eval')  # of the same images


@pytest.mark.parametrize(
    ('name', 'side', 'cut'), [('cnn13', 8, None), ('cnn13', 11, 3), ('cnn13', 8, 1), ('alexnet', 4, 1)]
)
def test_images_too_small_for_either_part(name, side, cut):
    """12 pixels are the fewest: 12, 6, 3, and 1 after the convolution without padding. AlexNet halves three times."""
    with pytest.raises(UserError, match='images are too small'):
        models.build(name, 10, (side, side, 3), cut)
    assert models.build(name, 10, (12, 12, 3), cut).feature_size > 0
