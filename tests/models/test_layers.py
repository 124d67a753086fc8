"""Models against NumPy in float64, layer by layer; cuts and recomputation, which change nothing; dropout."""

import functools
import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.models import layers, lowerings, winograd, zoo
from semisfl_jax.models.layers import Compute
from tests.helpers.architectures import drawn, narrow
from tests.helpers.convolution import convolve
from tests.helpers.marks import slow_but


def relu(x):
    return np.maximum(x, 0.0)


def max_pool(x, size):
    height, width = x.shape[1] // size, x.shape[2] // size
    x = x[:, : size * height, : size * width]
    return x.reshape(len(x), height, size, width, size, -1).max((2, 4))


def at(tree, path):
    return functools.reduce(operator.getitem, path, tree)


class Numpy:
    """The layers of a model by the names of their parameters, from the definition of each."""

    def __init__(self, variables, train):
        bottom, top, _ = jax.device_get(variables)
        self.parameters = {**bottom['params'], **top['params']}
        self.statistics = {**bottom.get('batch_stats', {}), **top.get('batch_stats', {})}
        self.train = train

    def norm(self, x, *path):
        leaf, moments = at(self.parameters, path), at(self.statistics, path)
        mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if self.train else (moments['mean'], moments['var'])
        return (x - mean) / np.sqrt(var + 1e-5) * leaf['scale'] + leaf['bias']

    def conv(self, x, *path, stride=1, padding=1):
        leaf = at(self.parameters, path)
        x = convolve(x, leaf['kernel'], padding, stride) + leaf.get('bias', 0.0)
        return self.norm(x, *path, 'norm') if 'norm' in leaf else x

    def dense(self, x, path):
        leaf = self.parameters[path]['dense']
        return x.reshape(len(x), -1) @ np.float64(leaf['kernel']) + leaf.get('bias', 0.0)

    def mlp200(self, x):
        return self.dense(relu(self.dense(x, 'layer_0')), 'layer_1')

    def resnet9(self, x):
        def residual(x, name):
            return x + relu(self.conv(relu(self.conv(x, name, 'conv_0')), name, 'conv_1'))

        x = max_pool(relu(self.conv(relu(self.conv(x, 'layer_0')), 'layer_1')), 2)
        x = max_pool(relu(self.conv(residual(x, 'layer_2'), 'layer_3')), 2)
        x = max_pool(relu(self.conv(x, 'layer_4')), 2)
        return self.dense(max_pool(residual(x, 'layer_5'), 4), 'layer_6')

    resnet9_plain = resnet9

    def wresnet28x2(self, x):
        x = self.conv(x, 'layer_0')
        for index in range(1, 7):  # two blocks a stage
            name, stride = f'layer_{index}', 2 if index in (3, 5) else 1
            y = relu(self.norm(x, name, 'norm_0'))
            if 'shortcut' in self.parameters[name]:
                x = self.conv(y, name, 'shortcut', stride=stride, padding=0)
            y = relu(self.norm(self.conv(y, name, 'conv_0', stride=stride), name, 'norm_1'))
            x = x + self.conv(y, name, 'conv_1')
        return self.dense(relu(self.norm(x, 'layer_6', 'norm_2')).mean((1, 2)), 'layer_7')

    def alexnet(self, x):
        for index in range(5):
            x = relu(self.conv(x, f'layer_{index}'))
            x = max_pool(x, 2) if index in (0, 1, 4) else x
        return self.dense(relu(self.dense(relu(self.dense(x, 'layer_5')), 'layer_6')), 'layer_7')

    def cnn13(self, x):
        for index in range(9):
            x = self.conv(x, f'layer_{index}', padding=int(index < 6))
            x = np.where(x > 0, x, 0.1 * x)
            x = max_pool(x, 2) if index in (2, 5) else x
        return self.dense(x.mean((1, 2)), 'layer_9')


@pytest.mark.parametrize(
    ('name', 'side', 'cut', 'train'),
    slow_but(
        [
            ('mlp200', 5, None, False),
            ('resnet9', 32, None, False),
            ('resnet9', 32, 3, True),
            ('resnet9_plain', 32, 2, False),
            ('wresnet28x2', 15, 1, False),
            ('wresnet28x2', 15, 5, True),
            ('cnn13', 15, 4, False),
        ],
        ('mlp200', 5, None, False),
        ('resnet9', 32, 3, True),
        ('wresnet28x2', 15, 1, False),
        ('cnn13', 15, 4, False),
    ),
)
def test_logits_equal_numpy_at_any_cut(name, side, cut, train):
    shape = (side, side, 3)
    model, variables = narrow(name, cut, shape), drawn(name, cut, shape)
    images = np.random.default_rng(2).normal(size=(2, *shape)).astype(np.float32)
    bottom, top = (jax.jit(piece, static_argnums=3) for piece in (model.bottom, model.top))
    features, _ = bottom(variables.bottom, images, None, train)
    assert features.shape == (2, model.feature_size)
    logits, _ = top(variables.top, features, None, train)
    expected = getattr(Numpy(variables, train), name)(images)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize('lowering', lowerings.LOWERINGS)
def test_every_form_of_a_convolution_has_the_logits_and_gradients_of_numpy(lowering, monkeypatch):
    """Bias, ReLU and pooling are part of some; a central difference in float64 is the gradient of the biases."""
    monkeypatch.setattr(winograd, 'WIDE', 1)
    model = narrow('alexnet', compute=Compute(convolution=lowering))
    variables = jax.tree.map(lambda leaf: leaf + 0.05, drawn('alexnet'))
    images = np.random.default_rng(2).normal(size=(2, 16, 16, 3)).astype(np.float32)

    def squares(bottom):
        logits, _ = model.top(variables.top, model.bottom(bottom, images, None, False)[0], None, False)
        return jnp.sum(logits**2), logits

    (_, logits), gradient = jax.jit(jax.value_and_grad(squares, has_aux=True))(variables.bottom)
    expected = Numpy(variables, False).alexnet(images)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    for layer in ('layer_0', 'layer_3', 'layer_4'):
        sums = []
        for step in (1e-5, -1e-5):
            numpy = Numpy(variables, False)
            leaf = jax.tree.map(np.float64, numpy.parameters[layer])
            numpy.parameters[layer] = {**leaf, 'bias': leaf['bias'] + step}
            sums.append(np.sum(numpy.alexnet(np.float64(images)) ** 2))
        slope = (sums[0] - sums[1]) / 2e-5
        np.testing.assert_allclose(np.sum(gradient['params'][layer]['bias']), slope, rtol=1e-2)


# Where the heads of the authors' code drop half of the numbers: before the first, second and third dense layer.
# AlexNet: Dropout, Linear, ReLU, Dropout, Linear, ReLU, Linear.
# VGG: Linear, ReLU, Dropout, Linear, ReLU, Dropout, Linear.
DROPPED = {'alexnet': (0.5, 0.5, 0.0), 'vgg13': (0.0, 0.5, 0.5)}


@pytest.mark.parametrize('layer', [0, 1, 2])
@pytest.mark.parametrize('name', slow_but(DROPPED, 'vgg13'))
def test_dropout_stands_where_the_authors_have_it(name, layer):
    """A gradient that passes a dropout is exactly zero where the number was dropped, in half of the places. At the
    paper's cut (layer 0) this is the gradient that reaches the clients."""
    model = narrow(name, zoo.ARCHITECTURES[name](4, layers.FLOAT32).paper_split + layer)
    variables = jax.jit(model.init)(jax.random.key(0))
    features = jax.random.normal(jax.random.key(1), (64, model.feature_size))

    def cross_entropy(features, key, train):
        logits, _ = model.top(variables.top, features, key, train)
        return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])

    gradient = jax.jit(jax.grad(cross_entropy), static_argnums=2)
    share = float(jnp.mean(gradient(features, jax.random.key(2), True) == 0.0))
    dropped = DROPPED[name][layer]
    deviation = (0.25 / features.size) ** 0.5  # of the share of heads in so many tosses of a coin
    assert abs(share - dropped) <= (5 * deviation if dropped else 0.0)
    assert not jnp.any(gradient(features, None, False) == 0.0)  # evaluation reads no key


@pytest.mark.parametrize(
    ('index', 'dropped'), slow_but([(2, 0.0), (3, 0.5), (5, 0.0), (6, 0.5), (7, 0.0)], (2, 0.0), (3, 0.5))
)
def test_dropout_ends_the_first_two_stages_of_cnn13(index, dropped):
    """Numbers that leave a stage are zero half of the time; LeakyReLU makes no zeros."""
    model, variables = narrow('cnn13', index), drawn('cnn13', index)
    images = np.random.default_rng(2).normal(size=(16, 16, 16, 3)).astype(np.float32)
    keys = jax.random.key(0), jax.random.key(1), None  # in evaluation none is read
    bottom = jax.jit(model.bottom, static_argnums=3)
    one, other, none = (np.asarray(bottom(variables.bottom, images, k, k is not None)[0]) == 0.0 for k in keys)
    assert not none.any()
    assert abs(one.mean() - dropped) <= (5 * (0.25 / one.size) ** 0.5 if dropped else 0.0)
    assert np.any(one != other) == (dropped > 0)


def test_clients_draw_dropout_of_their_own():
    """In the server's part: two clients with the same rows differ by their keys alone."""
    model, keys = narrow('vgg13'), jax.random.split(jax.random.key(0))
    rows = jnp.tile(jax.random.normal(jax.random.key(1), (1, 4, model.feature_size)), (2, 1, 1))
    for of_clients, equal in (([0, 0], True), ([0, 1], False)):
        logits, _ = jax.jit(model.tops)(drawn('vgg13').top, rows, keys[jnp.array(of_clients)])
        assert np.allclose(*logits, rtol=1e-5, atol=1e-6) == equal


# --- recomputation

SHAPE = (32, 32, 3)


def split(recompute):
    compute = Compute(recompute=recompute)
    architecture = zoo.ARCHITECTURES['vgg13'](5, compute, channels=(4, 4, 8, 8, 8), dense=8)
    return models.cut(architecture, SHAPE, None, 'none', 0, compute)


def backward(model, variables, x, key):
    """The pullback of bottom and top, whose leaves are what is kept for it."""

    def logits(parameters):
        bottom, top = ({**old, 'params': new} for old, new in zip(variables[:2], parameters, strict=True))
        features, moved = model.bottom(bottom, x, key, True)
        out, moved_top = model.top(top, features, key, True)
        return out, (moved, moved_top)

    return jax.vjp(logits, (variables.bottom['params'], variables.top['params']), has_aux=True)


@pytest.mark.slow
def test_recomputed_gradients_statistics_and_dropout_are_the_same():
    key = jax.random.key(0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, *SHAPE)), jnp.float32)
    results = []
    for recompute in (False, True):
        model = split(recompute)

        @jax.jit
        def gradient(variables, model=model):
            out, pull, moved = backward(model, variables, x, key)
            return out, pull(jnp.ones_like(out)), moved

        results.append(gradient(jax.jit(model.init)(key)))
    chex.assert_trees_all_close(*results, rtol=2e-3, atol=2e-5)


@pytest.mark.slow
def test_half_is_kept_of_a_model_with_batch_norm():
    """Beside parameters and images: an output of each convolution, in place of that and what the next one reads."""

    def kept(recompute):
        model = split(recompute)
        variables = jax.eval_shape(model.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((64, *SHAPE), jnp.float32)
        pull = jax.eval_shape(lambda v, x, key: backward(model, v, x, key)[1], variables, x, jax.random.key(0))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull) if leaf.size > 64 * 64)

    # two convolutions of each width at sides 32, 16, 8, 4 and 3 (the fourth pooling is padded)
    convolved = 4 * 64 * 2 * (4 * 32**2 + 4 * 16**2 + 8 * 8**2 + 8 * 4**2 + 8 * 3**2)
    assert kept(recompute=True) == pytest.approx(convolved + 4 * 64 * 32**2 * 3, rel=0.1)
    assert kept(recompute=False) > 1.8 * convolved
