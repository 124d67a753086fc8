"""Parameter counts of the models in the authors' code, projection heads, first weights, and what is no model."""

from collections.abc import Callable
from functools import partial

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.core.errors import UserError
from semisfl_jax.models import layers, lowerings, zoo
from semisfl_jax.models.split import ProjectionHead
from tests.architectures import count, narrow, shapes

# Kernels of a ResNet-9 and the channels they make; of a WideResNet-28-2, 1 x 1 shortcuts last, and the channels that
# its BatchNorms see; of a CNN13.
RESNET9 = 9 * (3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 256 * 512 + 2 * 512 * 512)
RESNET9_CHANNELS = 64 + 3 * 128 + 256 + 3 * 512
WIDE = 9 * (3 * 16 + 16 * 32 + 7 * 32 * 32 + 32 * 64 + 7 * 64 * 64 + 64 * 128 + 7 * 128 * 128)
WIDE += 16 * 32 + 32 * 64 + 64 * 128
WIDE_CHANNELS = (16 + 7 * 32) + (32 + 7 * 64) + (64 + 7 * 128) + 128
CNN13 = 3456 + 2 * 147_456 + 294_912 + 2 * 589_824 + 1_179_648 + 131_072 + 32_768
CNN13_CHANNELS = 3 * 128 + 3 * 256 + 512 + 256 + 128


@pytest.mark.parametrize(
    ('name', 'bottom', 'buffers', 'top', 'features', 'head'),
    [
        ('cnn', 53_696, 0, 824_842, 1600, 2_766_528),
        ('alexnet', 2_251_584, 0, 33_603_594, 4096, 17_305_728),
        ('vgg13', 9_410_880, 5_888, 35_700_746, 4608, 4608 * 4608 + 4608 + 4608 * 128 + 128),
        ('vgg16', 14_723_136, 8_448, 69_623_908, 12_800, 12_800 * 12_800 + 12_800 + 12_800 * 128 + 128),
        # 3*3*1*16 + 16 + 3*3*16*32 + 32; D = 2*2*32; 128*64 + 64 + 64*10 + 10; 128*128 + 128 + 128*128 + 128
        ('small_cnn', 4_800, 0, 8_906, 128, 33_024),
        ('resnet9', RESNET9 + 3 * RESNET9_CHANNELS, 2 * RESNET9_CHANNELS, 512 * 10 + 10, 512, 328_320),
        ('resnet9_plain', RESNET9, 0, 512 * 10, 512, 328_320),
        ('wresnet28x2', WIDE + 2 * WIDE_CHANNELS, 2 * WIDE_CHANNELS, 128 * 10 + 10, 128, 33_024),
        ('mlp5000', 784 * 5000 + 5000, 0, 5000 * 10 + 10, 5000, 5000 * 5000 + 5000 + 5000 * 128 + 128),
        ('mlp200', 784 * 200 + 200, 0, 200 * 10 + 10, 200, 200 * 200 + 200 + 200 * 128 + 128),
        ('cnn13', CNN13 + 3 * CNN13_CHANNELS, 2 * CNN13_CHANNELS, 128 * 10 + 10, 128, 33_024),
    ],
)
def test_parameter_counts(name, bottom, buffers, top, features, head):
    model, variables = shapes(name)
    assert count(variables.bottom['params']) == bottom
    assert count(variables.bottom.get('batch_stats', {})) == buffers
    assert count(variables.top['params']) == top
    assert count(variables.top.get('batch_stats', {})) == 0
    assert (model.feature_size, model.projection_size) == (features, 128)
    assert count(variables.proj) == head


@pytest.mark.parametrize(
    ('projection', 'size', 'parameters'),
    [('mlp', 16, 128 * 128 + 128 + 128 * 16 + 16), ('linear', 16, 128 * 16 + 16), ('none', 128, 0)],
)
def test_projection_heads(projection, size, parameters):
    model, _ = shapes('small_cnn', projection=projection, projection_dim=16)
    assert model.projection_size == size
    variables = model.init(jax.random.key(0)).proj
    assert count(variables) == parameters
    features = jax.random.normal(jax.random.key(1), (5, 128))
    rows = model.project(variables, features)
    assert rows.shape == (5, size)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)
    if projection == 'none':
        np.testing.assert_allclose(rows, features / np.linalg.norm(features, axis=1, keepdims=True), rtol=1e-5)


def test_projection_of_zero_features_has_no_nan_gradient():
    head = ProjectionHead('none', 0)
    gradient = jax.grad(lambda x: jnp.sum(head.apply({}, x)))(jnp.zeros((2, 4)))
    assert np.all(np.isfinite(gradient))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn', 'wresnet28x2'])
def test_bfloat16_computes_in_bfloat16_and_keeps_float32(name):
    """Parameters, features, logits and projections are float32; products in between take bfloat16 on both sides."""
    model = models.build(name, 10, (32, 32, 3), convolution='native', dtype='bfloat16')
    exact = models.build(name, 10, (32, 32, 3), convolution='native')
    params = model.init(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}
    x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))

    def outputs(model):
        features, _ = model.bottom(params.bottom, x, None, False)
        return features, model.top(params.top, features, None, False)[0], model.project(params.proj, features)

    for got, expected in zip(outputs(model), outputs(exact), strict=True):
        assert got.dtype == jnp.float32
        error = jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected)
        assert 1e-5 < error < 0.05  # bfloat16 keeps 8 bits: 0.4 % a number
    text = jax.jit(lambda: outputs(model)).lower().as_text()
    products = [line for line in text.splitlines() if 'stablehlo.convolution' in line or 'stablehlo.dot' in line]
    assert products
    assert all('bf16' in line for line in products)


WIDTHS = {'cnn': {'channels': (16, 16), 'dense': 64}, 'wresnet28x2': {'channels': (8, 16, 24, 16), 'depth': 1}}
KAIMING = {'wresnet28x2': lambda fan_in, fan_out: (2 / fan_out) ** 0.5, 'resnet9_plain': lambda fan_in, _: fan_in**-0.5}


@pytest.mark.parametrize('name', ['cnn', 'resnet9', 'resnet9_plain', 'wresnet28x2'])
def test_initial_weights(name):
    """Deviations: PyTorch's uniform 1 / sqrt(3 fan_in), Keras's 1 / sqrt(fan_in), Kaiming's sqrt(2 / fan_out)."""
    architecture = zoo.ARCHITECTURES[name](10, layers.FLOAT32, **WIDTHS.get(name, {'channels': (16,) * 4}))
    bottom, top, _ = jax.jit(models.cut(architecture, (32, 32, 3), None, 'none', 0).init)(jax.random.key(0))
    found = flax.traverse_util.flatten_dict(jax.device_get({**bottom['params'], **top['params']}))
    for path, leaf in found.items():
        if path[-1] == 'scale':
            assert np.all(leaf == 1)
        elif path[-1] == 'kernel':
            *spatial, inputs, outputs = leaf.shape
            fan_in, fan_out = np.prod(spatial) * inputs, np.prod(spatial) * outputs
            uniform = name not in KAIMING or (name == 'wresnet28x2' and 'dense' in path)
            expected = (3 * fan_in) ** -0.5 if uniform else KAIMING[name](fan_in, fan_out)
            assert np.std(leaf) == pytest.approx(expected, rel=4 / leaf.size**0.5), path
            bias = found.get((*path[:-1], 'bias'))
            if uniform and name != 'wresnet28x2':
                assert 0 < max(np.abs(leaf).max(), np.abs(bias).max()) <= fan_in**-0.5
            else:
                assert not np.any(bias) if 'dense' in path and name == 'wresnet28x2' else bias is None


@pytest.mark.parametrize('lowering', lowerings.LOWERINGS)
@pytest.mark.parametrize(
    ('name', 'side', 'cut'),
    [('cnn', 8, None), ('alexnet', 4, 1), ('resnet9', 4, None), ('cnn13', 11, 3), ('cnn13', 8, 1)],
)
def test_images_too_small_for_either_part(name, side, cut, lowering):
    """12 pixels are the fewest of CNN13: 12, 6, 3, and 1 after the convolution without padding."""
    with pytest.raises(UserError, match=name):
        models.build(name, 10, (side, side, 3), cut, convolution=lowering)
    if name == 'cnn13':
        assert models.build(name, 10, (12, 12, 3), cut, convolution=lowering).feature_size > 0


@pytest.mark.parametrize(('shape', 'features'), [((28, 28, 1), 512), ((64, 64, 3), 2 * 2 * 512)])
def test_residual_models_of_other_sizes(shape, features):
    assert models.build('resnet9', 10, shape).feature_size == features
    assert models.build('wresnet28x2', 10, shape).feature_size == 128


@pytest.mark.parametrize('index', [0, 4])
def test_cut_out_of_range(index):
    with pytest.raises(UserError, match=f'split_index={index}'):
        narrow('small_cnn', index)


# --- models of a user


class Odd(nn.Module):
    """A layer of a user: images [B, ...] -> what `function` makes of logits [B, 3]."""

    function: Callable

    @nn.compact
    def __call__(self, x, train):
        return self.function(nn.Dense(3)(x.reshape(len(x), -1)))


class OddMaps(nn.Module):
    """An encoder or a decoder of a user: what `function` makes of its input."""

    function: Callable

    @nn.compact
    def __call__(self, x, train):
        return self.function(x)


def fail(x):
    raise TypeError('a slip of the user')


PLAIN, DENSE = partial(Odd, lambda x: x), partial(layers.DenseLayer, 3)
WRONG = (  # rows side by side, a map, one row for all, two arrays, nothing
    lambda x: jnp.tile(x, (1, 5)),
    lambda x: x[:, None, None],
    lambda x: jnp.mean(x, axis=0, keepdims=True),
    lambda x: (x, x),
    lambda x: None,
)
ENCODER, DECODER = OddMaps(lambda x: (x, x[:, ::2])), OddMaps(lambda maps: maps[0])


@pytest.mark.parametrize(
    ('made', 'error'),
    [
        (zoo.Architecture((partial(Odd, fail), PLAIN), 1), TypeError),
        (zoo.Architecture((PLAIN, partial(Odd, fail)), 1), TypeError),
        *((zoo.Architecture((PLAIN, partial(Odd, function)), 1), UserError) for function in WRONG),
        (zoo.Architecture((partial(Odd, lambda x: (x, x)), PLAIN), 1), UserError),
        (None, UserError),
        (zoo.Architecture((DENSE,), 1), UserError),
        (zoo.Architecture((DENSE, DENSE), 2), UserError),
    ],
)
def test_a_model_of_a_user_returns_logits_and_its_own_errors_stay(monkeypatch, made, error):
    """The line names the model; an error in a layer is not said to be of small images."""
    monkeypatch.setitem(zoo.ARCHITECTURES, 'mine', lambda *_: zoo.Architecture((PLAIN, PLAIN), 1))
    assert models.build('mine', 3, (8, 8, 1)).feature_size == 3
    monkeypatch.setitem(zoo.ARCHITECTURES, 'mine', lambda *_: made)
    with pytest.raises(error, match='mine|paper_split' if error is UserError else 'a slip of the user'):
        models.build('mine', 3, (8, 8, 1))


@pytest.mark.parametrize(
    ('made', 'error'),
    [
        ((OddMaps(lambda x: x), DECODER), UserError),
        ((OddMaps(lambda x: (x, x[0])), DECODER), UserError),
        ((ENCODER, OddMaps(lambda maps: maps)), UserError),
        ((ENCODER, OddMaps(lambda maps: maps[1][..., :2])), UserError),
        ((OddMaps(fail), DECODER), TypeError),
        ((ENCODER, OddMaps(fail)), TypeError),
    ],
)
def test_a_dense_model_of_a_user_returns_maps(monkeypatch, made, error):
    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', lambda *_: (ENCODER, DECODER))
    assert models.build_dense('mine', 3, (9, 8, 3)).feature_size == 9 * 8 * 3 + 5 * 8 * 3
    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', lambda *_: made)
    with pytest.raises(error, match='mine' if error is UserError else 'a slip of the user'):
        models.build_dense('mine', 3, (9, 8, 3))
