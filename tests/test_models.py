"""Parameter counts of facts 7, convolutions against SciPy-like loops, cuts."""

import itertools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.errors import UserError
from semisfl_jax.models import layers, zoo
from semisfl_jax.models.split import ProjectionHead, Stack

SHAPES = {
    'small_cnn': (8, 8, 1),
    'cnn': (32, 32, 3),
    'alexnet': (32, 32, 3),
    'vgg13': (96, 96, 3),
    'vgg16': (144, 144, 3),
}
CLASSES = {'vgg16': 100}


def count(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def shapes(name, **options):
    model = models.build(name, CLASSES.get(name, 10), SHAPES[name], **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))


@pytest.mark.parametrize(
    ('name', 'bottom', 'buffers', 'top', 'features', 'head'),
    [
        ('cnn', 53_696, 0, 824_842, 1600, 2_766_528),
        ('alexnet', 2_251_584, 0, 33_603_594, 4096, 17_305_728),
        ('vgg13', 9_410_880, 5_888, 35_700_746, 4608, 4608 * 4608 + 4608 + 4608 * 128 + 128),
        ('vgg16', 14_723_136, 8_448, 69_623_908, 12_800, 12_800 * 12_800 + 12_800 + 12_800 * 128 + 128),
        # 3*3*1*16 + 16 + 3*3*16*32 + 32; D = 2*2*32; 128*64 + 64 + 64*10 + 10; 128*128 + 128 + 128*128 + 128
        ('small_cnn', 4_800, 0, 8_906, 128, 33_024),
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


def test_totals_of_the_fact_sheet():
    totals = {name: sum(count(piece['params']) for piece in shapes(name)[1][:2]) for name in SHAPES}
    assert totals['cnn'] == 878_538
    assert totals['alexnet'] == 35_855_178
    assert totals['vgg13'] == 45_111_626
    assert totals['vgg16'] == 84_347_044


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


def convolve(x, kernel, padding):
    """Direct sum over kernel positions in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    size = kernel.shape[0]
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    out = np.zeros((x.shape[0], height, width, kernel.shape[-1]))
    for i, j in itertools.product(range(size), range(size)):
        out += x[:, i : i + height, j : j + width] @ kernel[i, j].astype(np.float64)
    return out


@pytest.mark.parametrize('lowering', ['patches', 'native'])
@pytest.mark.parametrize(('size', 'padding'), [(3, 1), (5, 0), (3, 0)])
def test_convolutions(lowering, size, padding):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 9, 7, 3)).astype(np.float32), rng.normal(size=(size, size, 3, 4)).astype(np.float32)
    got = layers.LOWERINGS[lowering](x, kernel, padding)
    np.testing.assert_allclose(got, convolve(x, kernel, padding), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('pad', [False, True])
@pytest.mark.parametrize('side', [4, 5, 7])
def test_max_pool(side, pad):
    x = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf) if pad else x
    out = (side + 2 * pad) // 2
    expected = np.stack(
        [[padded[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)) for j in range(out)] for i in range(out)]
    )
    np.testing.assert_array_equal(layers.max_pool(jnp.asarray(x), pad), expected.transpose(2, 0, 1, 3))


def test_initial_weights_are_pytorch_uniform():
    model = models.build('cnn', 10, (32, 32, 3))
    for piece in model.init(jax.random.key(0))[:2]:
        for name, layer in piece['params'].items():
            layer = layer.get('dense', layer)
            bound = np.prod(layer['kernel'].shape[:-1]) ** -0.5
            for leaf in (layer['kernel'], layer['bias']):
                assert np.max(np.abs(leaf)) <= bound, name
            assert np.std(layer['kernel']) == pytest.approx(bound / np.sqrt(3), rel=0.1)


@pytest.mark.parametrize('name', ['small_cnn', 'cnn', 'alexnet'])
def test_any_cut_computes_the_uncut_model_and_its_gradient(name):
    """Bottom and top of every cut, glued together, are the uncut model: same logits, same gradient."""
    shape = SHAPES[name]
    architecture = zoo.ARCHITECTURES[name](10, 'native')
    whole = Stack(architecture.layers)
    images = jax.random.normal(jax.random.key(1), (2, *shape))
    parameters = whole.init(jax.random.key(0), images, train=False)['params']
    target = jnp.arange(10.0)
    expected, gradient = jax.value_and_grad(
        lambda p: jnp.sum(whole.apply({'params': p}, images, train=False) @ target)
    )(parameters)
    cuts = range(1, len(architecture.layers)) if name != 'alexnet' else (1, 5, 6)
    for index in cuts:
        model = models.build(name, 10, shape, split_index=index, convolution='native')
        bottom = {'params': {f'layer_{i}': parameters[f'layer_{i}'] for i in range(index)}}
        top = {'params': {f'layer_{i}': parameters[f'layer_{i}'] for i in range(index, len(architecture.layers))}}

        # the explicit exchange: features up, their gradient down
        features, client_backward = jax.vjp(
            lambda p, model=model: model.bottom({'params': p}, images, None, False)[0], bottom['params']
        )
        assert features.shape == (2, model.feature_size)
        (value, (top_gradient, down)) = jax.value_and_grad(
            lambda p, e, model=model: jnp.sum(model.top({'params': p}, e, None, False)[0] @ target), argnums=(0, 1)
        )(top['params'], features)
        (bottom_gradient,) = client_backward(down)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
        flat = flax.traverse_util.flatten_dict({**bottom_gradient, **top_gradient})
        for path, leaf in flax.traverse_util.flatten_dict(gradient).items():
            np.testing.assert_allclose(
                flat[path], leaf, rtol=1e-3, atol=1e-4 * float(jnp.max(jnp.abs(leaf))), err_msg=str(path)
            )


@pytest.mark.parametrize('index', [0, 4, -1, 17])
def test_cut_out_of_range(index):
    with pytest.raises(UserError, match=rf'split_index={index} .* use 1 to 3'):
        models.build('small_cnn', 10, (8, 8, 1), split_index=index)


@pytest.mark.parametrize(('name', 'shape'), [('cnn', (8, 8, 1)), ('alexnet', (4, 4, 3))])
def test_images_too_small(name, shape):
    with pytest.raises(UserError, match='too small'):
        models.build(name, 10, shape)


def test_batch_norm_moves_in_training_alone():
    architecture = zoo.Architecture(
        (
            lambda name: layers.ConvLayer(4, norm=True, name=name),
            lambda name: layers.DenseLayer(3, activation=False, name=name),
        ),
        1,
    )
    model = models.cut(architecture, (6, 6, 2), None, 'linear', 8)
    variables = model.init(jax.random.key(0)).bottom
    images = 3.0 + jax.random.normal(jax.random.key(1), (16, 6, 6, 2))
    _, same = model.bottom(variables, images, None, False)
    assert same is variables
    _, moved = model.bottom(variables, images, None, True)
    kernel, bias = (np.asarray(variables['params']['layer_0'][name]) for name in ('kernel', 'bias'))
    before = convolve(np.asarray(images), kernel, 1) + bias
    np.testing.assert_allclose(moved['batch_stats']['layer_0']['norm']['mean'], 0.1 * before.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(
        moved['batch_stats']['layer_0']['norm']['var'], 0.9 + 0.1 * before.var((0, 1, 2)), rtol=1e-4
    )
