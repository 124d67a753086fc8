"""Parameter counts of the models in the authors' codes, convolutions against SciPy-like loops, cuts."""

import itertools
from collections.abc import Callable
from functools import partial

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.errors import UserError
from semisfl_jax.models import layers, lowerings, pooling, zoo
from semisfl_jax.models.split import ProjectionHead, Stack
from tests.marks import slow_but
from tests.test_semisfl import assert_trees_close

SHAPES = {
    'small_cnn': (8, 8, 1),
    'cnn': (32, 32, 3),
    'alexnet': (32, 32, 3),
    'vgg13': (96, 96, 3),
    'vgg16': (144, 144, 3),
    'resnet9': (32, 32, 3),
    'resnet9_plain': (32, 32, 3),
    'wresnet28x2': (32, 32, 3),
}
CLASSES = {'vgg16': 100}


# Kernels of a ResNet-9 and the channels they make; of a WideResNet-28-2, 1 x 1 shortcuts last, and the channels that
# its BatchNorms see.
RESNET9 = 9 * (3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 256 * 512 + 2 * 512 * 512)
RESNET9_CHANNELS = 64 + 3 * 128 + 256 + 3 * 512
WIDE = 9 * (3 * 16 + 16 * 32 + 7 * 32 * 32 + 32 * 64 + 7 * 64 * 64 + 64 * 128 + 7 * 128 * 128)
WIDE += 16 * 32 + 32 * 64 + 64 * 128
WIDE_CHANNELS = (16 + 7 * 32) + (32 + 7 * 64) + (64 + 7 * 128) + 128


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
        ('resnet9', RESNET9 + 3 * RESNET9_CHANNELS, 2 * RESNET9_CHANNELS, 512 * 10 + 10, 512, 328_320),
        ('resnet9_plain', RESNET9, 0, 512 * 10, 512, 328_320),
        ('wresnet28x2', WIDE + 2 * WIDE_CHANNELS, 2 * WIDE_CHANNELS, 128 * 10 + 10, 128, 33_024),
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


def test_total_parameter_counts():
    totals = {name: sum(count(piece['params']) for piece in shapes(name)[1][:2]) for name in SHAPES}
    assert totals['cnn'] == 878_538
    assert totals['alexnet'] == 35_855_178
    assert totals['vgg13'] == 45_111_626
    assert totals['vgg16'] == 84_347_044
    assert totals['resnet9'] == 6_575_370
    assert totals['resnet9_plain'] == 6_568_640
    assert totals['wresnet28x2'] == 1_467_610


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


def convolve(x, kernel, padding, stride=1):
    """Direct sum over kernel positions in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    size = kernel.shape[0]
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    out = np.zeros((x.shape[0], height, width, kernel.shape[-1]))
    for i, j in itertools.product(range(size), range(size)):
        out += x[:, i : i + height, j : j + width] @ kernel[i, j].astype(np.float64)
    return out[:, ::stride, ::stride]


STRIDED = [(3, 1, 2), (1, 0, 2), (3, 0, 2), (5, 2, 3)]  # one side of 9 x 8 ends between two windows


@pytest.mark.parametrize('lowering', sorted(lowerings.LOWERINGS))
@pytest.mark.parametrize(('size', 'padding', 'stride'), [(3, 1, 1), (5, 0, 1), (3, 0, 1), *STRIDED])
def test_convolutions(lowering, size, padding, stride):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 9, 8, 3)).astype(np.float32), rng.normal(size=(size, size, 3, 4)).astype(np.float32)
    got = lowerings.LOWERINGS[lowering](x, kernel, padding, stride)
    np.testing.assert_allclose(got, convolve(x, kernel, padding, stride), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('lowering', sorted(lowerings.LOWERINGS))
@pytest.mark.parametrize(('size', 'padding', 'stride'), [(3, 1, 1), (5, 0, 1), (3, 0, 1), (5, 2, 1), *STRIDED])
def test_gradients_of_convolutions(lowering, size, padding, stride):
    """A convolution is linear in each argument, so its gradients are sums over the positions, taken here in float64.
    One with a stride is one without, of which all other outputs are thrown away."""
    rng = np.random.default_rng(1)
    x, kernel = rng.normal(size=(2, 9, 8, 3)), rng.normal(size=(size, size, 3, 4))
    cotangent = rng.normal(size=convolve(x, kernel, padding, stride).shape)
    out = np.zeros((2, 9 + 2 * padding - size + 1, 8 + 2 * padding - size + 1, 4))
    out[:, ::stride, ::stride] = cotangent
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    of_padded, of_kernel = np.zeros_like(padded), np.zeros_like(kernel)
    for i, j in itertools.product(range(size), range(size)):
        window = np.s_[:, i : i + out.shape[1], j : j + out.shape[2]]
        of_padded[window] += out @ kernel[i, j].T
        of_kernel[i, j] = np.einsum('bhwc,bhwf->cf', padded[window], out)
    of_x = of_padded[:, padding : padding + 9, padding : padding + 8]

    function = partial(lowerings.LOWERINGS[lowering], padding=padding, stride=stride)
    _, back = jax.vjp(function, jnp.float32(x), jnp.float32(kernel))
    for got, expected in zip(back(jnp.float32(cotangent)), (of_x, of_kernel), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('rows', 'inputs', 'outputs'), [(5, 7, 3), (256, 2048, 2048)])
def test_dense_product_and_its_gradients(rows, inputs, outputs):
    rng = np.random.default_rng(3)
    shapes = (rows, inputs), (inputs, outputs), (rows, outputs)
    x, kernel, out = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    got, back = jax.vjp(lowerings.dense_direct, x, kernel)
    np.testing.assert_allclose(got, x @ kernel, rtol=1e-4, atol=1e-3)
    for gradient, expected in zip(back(out), (out @ kernel.T, x.T @ out), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-3)


def test_dense_products_of_clients_are_one():
    """Over the rows of all clients, with one gradient of the kernel that they share."""
    draw = np.random.default_rng(4)
    x, kernel, out = (draw.normal(size=size).astype(np.float32) for size in ((3, 5, 7), (7, 4), (3, 5, 4)))

    def of_all(x, kernel):
        return jax.vmap(lowerings.dense_of_clients, in_axes=(0, None))(x, kernel)

    got, back = jax.vjp(of_all, x, kernel)
    np.testing.assert_allclose(got, x @ kernel, rtol=1e-5, atol=1e-5)
    expected = out @ kernel.T, np.einsum('abd,abf->df', x, out)
    for gradient, by_hand in zip(back(out), expected, strict=True):
        np.testing.assert_allclose(gradient, by_hand, rtol=1e-5, atol=1e-5)
    lines = jax.jit(lambda *args: jax.vjp(of_all, *args[:2])[1](args[2])).lower(x, kernel, out).as_text().splitlines()
    products = [line for line in lines if 'dot_general' in line]
    assert len(products) == 2  # the forward pass is not needed for a linear function's gradients
    assert not any('batching_dims' in line for line in products)
    kernels = np.stack([kernel, 2 * kernel, 3 * kernel])
    each = jax.vmap(lowerings.dense_of_clients)(x, kernels)  # each its own
    np.testing.assert_allclose(each, x @ kernels, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(('size', 'padding'), [(3, 1), (5, 0), (3, 0), (5, 2)])
@pytest.mark.parametrize('channels', [1, 3])
def test_corners_of_windows(size, padding, channels):
    """`direct_corners` holds the same numbers as the convolution, window by window, odd sides included."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 10, 9, channels)).astype(np.float32)
    kernel = rng.normal(size=(size, size, channels, 4)).astype(np.float32)
    full = convolve(x, kernel, padding)
    height, width = full.shape[1] // 2, full.shape[2] // 2
    expected = np.stack([full[:, i : 2 * height : 2, j : 2 * width : 2] for i in (0, 1) for j in (0, 1)], axis=-2)
    got = lowerings.direct_corners(jnp.asarray(x), jnp.asarray(kernel), padding)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'shape'), [('small_cnn', (9, 8, 1)), ('cnn', (28, 28, 1)), ('cnn', (32, 32, 3))])
def test_lowerings_give_the_same_features_and_gradients(name, shape):
    """Pooling included: with `direct`, the first layer is computed corner by corner."""
    results = []
    for lowering in lowerings.LOWERINGS:
        model = models.build(name, 10, shape, convolution=lowering)
        parameters = model.init(jax.random.key(0))
        images = jax.random.normal(jax.random.key(1), (3, *shape))

        def loss(params, model=model, parameters=parameters, images=images):
            features, _ = model.bottom({'params': params}, images, None, True)
            logits, _ = model.top(parameters.top, features, None, True)
            return jnp.sum(logits**2), features

        results.append(jax.value_and_grad(loss, has_aux=True)(parameters.bottom['params']))
    for other in results[1:]:
        assert_trees_close(other, results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('name', 'number'), [('cnn', 2), ('wresnet28x2', 28)])
def test_every_convolution_keeps_the_fast_form_inside_a_loop(name, number):
    """Kernels and batch as XLA's CPU backend wants them in all passes, and no groups."""
    model = models.build(name, 10, (32, 32, 3), convolution='direct')
    bottom = jax.eval_shape(model.init, jax.random.key(0)).bottom

    def loss(parameters, statistics, x):
        variables = {'params': parameters, 'batch_stats': statistics}
        return jnp.sum(model.bottom(variables, x, None, True)[0] ** 2)

    def looped(parameters, statistics, x):
        return jax.lax.map(lambda one: jax.grad(loss)(one[0], statistics, one[1]), (parameters, x))

    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), bottom['params'])
    text = jax.jit(looped).lower(stacked, bottom.get('batch_stats', {}), jnp.zeros((2, 4, 32, 32, 3)))
    text = text.as_text(dialect='hlo')
    convolutions = [line for line in text.splitlines() if ' convolution(' in line]
    assert len(convolutions) == 3 * number - 1  # forward, kernels and inputs; images need no gradient
    for line in convolutions:
        assert 'dim_labels=b01f_01io->b01f' in line
        assert 'feature_group_count' not in line
        assert 'batch_group_count' not in line


@pytest.mark.parametrize('pad', [False, True])
@pytest.mark.parametrize('side', [4, 5, 7])
def test_max_pool(side, pad):
    x = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf) if pad else x
    out = (side + 2 * pad) // 2
    expected = np.stack(
        [[padded[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)) for j in range(out)] for i in range(out)]
    )
    np.testing.assert_array_equal(pooling.max_pool(jnp.asarray(x), pad), expected.transpose(2, 0, 1, 3))


def test_gradient_of_max_pool_goes_to_the_first_largest():
    x = np.array([[1.0, 3, 0, 0], [3, 2, 0, 0], [-1, -2, 5, 5], [-3, -1, 5, 5]], np.float32)[None, :, :, None]
    gradient = jax.grad(lambda x: jnp.sum(pooling.max_pool(x) * jnp.array([[1.0, 2], [3, 4]])[None, :, :, None]))(x)
    expected = np.array([[0, 1, 2, 0], [0, 0, 0, 0], [3, 0, 4, 0], [0, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(gradient[0, :, :, 0], expected)


def test_pooling_bias_and_relu_in_one_with_their_gradient():
    """As one after another, ties and dead windows included: small integers, so that both are exact."""
    draw = np.random.default_rng(5)
    x, out = (
        draw.integers(-3, 4, (4, 6, 6, 8)).astype(np.float32),
        draw.integers(-3, 4, (4, 3, 3, 8)).astype(np.float32),
    )
    bias = np.arange(-4, 4).astype(np.float32)  # at the first all are dead, at the last hardly any

    def in_turn(x, bias):
        return jax.nn.relu(pooling.max_pool(x) + bias)

    def at_once(x, bias):
        return pooling.activated_max_of_corners(pooling.windows(x), bias)

    expected, back = jax.vjp(in_turn, x, bias)
    got, back_at_once = jax.vjp(at_once, x, bias)
    assert 0.2 < np.mean(np.asarray(expected) == 0) < 0.8
    np.testing.assert_array_equal(got, expected)
    for one, other in zip(back_at_once(out), back(out), strict=True):
        np.testing.assert_array_equal(one, other)

    def of_gradients(function):  # for losses that contain a gradient, as those of FedDure's regulators
        def squares(x, bias):
            values, back = jax.vjp(function, x, bias)
            return sum(jnp.sum(gradient**2) for gradient in back(values * out))

        return jax.grad(squares, (0, 1))(x, bias)

    x = draw.permutation(x.size).reshape(x.shape).astype(np.float32) / x.size - 0.5  # no ties: those may be divided
    bias = bias / 8
    for one, other in zip(of_gradients(at_once), of_gradients(in_turn), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn', 'resnet9', 'wresnet28x2'])
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


def test_initial_weights_are_pytorch_uniform():
    model = models.build('cnn', 10, (32, 32, 3))
    for piece in model.init(jax.random.key(0))[:2]:
        for name, layer in piece['params'].items():
            layer = layer.get('dense', layer)
            bound = np.prod(layer['kernel'].shape[:-1]) ** -0.5
            for leaf in (layer['kernel'], layer['bias']):
                assert np.max(np.abs(leaf)) <= bound, name
            assert np.std(layer['kernel']) == pytest.approx(bound / np.sqrt(3), rel=0.1)


CUTS = {'alexnet': (1, 5, 6), 'resnet9': (3, 6), 'resnet9_plain': (2,), 'wresnet28x2': (1, 6)}


@pytest.mark.parametrize('name', slow_but(['small_cnn', 'cnn', *CUTS], 'small_cnn'))
def test_any_cut_computes_the_uncut_model_and_its_gradient(name):
    """Bottom and top of every cut, glued together, are the uncut model: same logits, same gradient."""
    shape = (12, 12, 3) if 'resnet' in name else SHAPES[name]
    architecture = zoo.ARCHITECTURES[name](10, layers.FLOAT32)
    uncut = Stack(architecture.layers)
    images = jax.random.normal(jax.random.key(1), (2, *shape))
    variables = uncut.init(jax.random.key(0), images, train=False)
    parameters, statistics = variables['params'], {'batch_stats': variables.get('batch_stats', {})}
    target = jnp.arange(10.0)
    expected, gradient = jax.value_and_grad(
        lambda p: jnp.sum(uncut.apply({'params': p, **statistics}, images, train=False) @ target)
    )(parameters)
    for index in CUTS.get(name, range(1, len(architecture.layers))):
        model = models.build(name, 10, shape, split_index=index, convolution='native')
        bottom = {'params': {f'layer_{i}': parameters[f'layer_{i}'] for i in range(index)}}
        top = {'params': {f'layer_{i}': parameters[f'layer_{i}'] for i in range(index, len(architecture.layers))}}

        # the explicit exchange: features up, their gradient down
        features, client_backward = jax.vjp(
            lambda p, model=model: model.bottom({'params': p, **statistics}, images, None, False)[0], bottom['params']
        )
        assert features.shape == (2, model.feature_size)
        (value, (top_gradient, down)) = jax.value_and_grad(
            lambda p, e, model=model: jnp.sum(model.top({'params': p, **statistics}, e, None, False)[0] @ target),
            argnums=(0, 1),
        )(top['params'], features)
        (bottom_gradient,) = client_backward(down)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
        flat = flax.traverse_util.flatten_dict({**bottom_gradient, **top_gradient})
        for path, leaf in flax.traverse_util.flatten_dict(gradient).items():
            np.testing.assert_allclose(
                flat[path], leaf, rtol=1e-3, atol=1e-4 * float(jnp.max(jnp.abs(leaf))), err_msg=str(path)
            )


# Where the heads of the authors' code drop half of the numbers: before the first, second and third dense layer.
# AlexNet: Dropout, Linear, ReLU, Dropout, Linear, ReLU, Linear.
# VGG: Linear, ReLU, Dropout, Linear, ReLU, Dropout, Linear.
DROPPED = {'alexnet': (0.5, 0.5, 0.0), 'vgg13': (0.0, 0.5, 0.5), 'vgg16': (0.0, 0.5, 0.5)}


@pytest.mark.parametrize('layer', [0, 1, 2])
@pytest.mark.parametrize('name', slow_but(DROPPED, 'vgg13'))
def test_dropout_stands_where_the_authors_have_it(name, layer):
    """A gradient that passes a dropout is exactly zero where the number was dropped, in half of the places. At the
    paper's cut (layer 0) this is the gradient that reaches the clients."""
    architecture = zoo.ARCHITECTURES[name](10, layers.FLOAT32, (4, 4, 4, 4, 8), dense=96)
    index = architecture.paper_split + layer
    model = models.cut(architecture, (16, 16, 3), index, 'linear', 8)
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

    plain = gradient(features, jax.random.key(2), False)
    np.testing.assert_array_equal(plain, gradient(features, jax.random.key(3), False))  # evaluation draws nothing
    assert not jnp.any(plain == 0.0)


@pytest.mark.parametrize('index', [0, 4, -1, 17])
def test_cut_out_of_range(index):
    with pytest.raises(UserError, match=rf'split_index={index} .* use 1 to 3'):
        models.build('small_cnn', 10, (8, 8, 1), split_index=index)


@pytest.mark.parametrize(
    ('layers', 'paper_split', 'message'),
    [
        (0, 0, 'each side of a cut needs a layer, but this model has only 0; give it two or more'),
        (1, 1, 'each side of a cut needs a layer, but this model has only 1; give it two or more'),
        (3, 3, 'paper_split=3 is out of range: this model has 3 layers and each side needs one; use 1 to 2$'),
    ],
)
def test_an_architecture_that_cannot_be_cut(layers, paper_split, message):
    with pytest.raises(UserError, match=message):
        models.cut(models.zoo.Architecture((None,) * layers, paper_split), (8, 8, 1), None, 'none', 1)


@pytest.mark.parametrize('lowering', lowerings.LOWERINGS)
@pytest.mark.parametrize(('name', 'shape'), [('cnn', (8, 8, 1)), ('alexnet', (4, 4, 3)), ('resnet9', (4, 4, 3))])
def test_images_too_small(name, shape, lowering):
    with pytest.raises(UserError, match=f'images of {shape[0]}x{shape[1]} are too small for this model'):
        models.build(name, 10, shape, convolution=lowering)


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
        (lambda x: jnp.tile(x, (1, 5)), r'float32 \[2, 15\] for 2 images; return logits \[B, 3\], one for each class'),
        (lambda x: x[:, None, None], r'float32 \[2, 1, 1, 3\] for 2 images; return logits'),
        (lambda x: jnp.mean(x, axis=0, keepdims=True), r'float32 \[1, 3\] for 2 images; return logits'),
        (lambda x: (x, x), 'a tuple for 2 images; return logits'),
        (lambda x: None, 'None for 2 images; return logits'),
    ],
)
def test_a_model_of_a_user_returns_logits(monkeypatch, function, given):
    first, last = partial(Odd, lambda x: x), partial(Odd, function)
    assert mine(monkeypatch, zoo.Architecture((first, first), 1)).feature_size == 3
    with pytest.raises(UserError, match=r"the last layer of model\.name='mine' returns " + given):
        mine(monkeypatch, zoo.Architecture((first, last), 1))


def test_one_array_crosses_the_cut(monkeypatch):
    first, last = partial(Odd, lambda x: (x, x)), partial(Odd, lambda x: x)
    with pytest.raises(
        UserError, match=r'the first 1 layers of .*mine.* return a tuple for 2 images; return one array \[B, '
    ):
        mine(monkeypatch, zoo.Architecture((first, last), 1))


DENSE = partial(layers.DenseLayer, 3)


@pytest.mark.parametrize(
    ('made', 'message'),
    [
        (None, r'it returns None; return Architecture\(layers, paper_split\)'),
        (((DENSE, DENSE), 1), 'it returns a tuple; return Architecture'),
        (zoo.Architecture(DENSE, 1), 'its layers are a partial; use a tuple of at least two'),
        (zoo.Architecture((DENSE,), 1), 'its layers are 1 layers; use a tuple of at least two'),
        (zoo.Architecture((DENSE, layers.DenseLayer(3)), 1), 'layer 1 is a DenseLayer; use a function that takes a '),
        (zoo.Architecture((DENSE, 'dense'), 1), "layer 1 is 'dense'; use a function"),
        (zoo.Architecture((lambda name: 3, DENSE), 1), 'layer 0 makes 3; let it return a Flax module'),
        (zoo.Architecture((DENSE, DENSE), '1'), "paper_split='1'; use the number of layers at the client, 1 to 1"),
        (zoo.Architecture((DENSE, DENSE), 2), 'paper_split=2; use the number of layers at the client, 1 to 1'),
        (zoo.Architecture((DENSE, DENSE, DENSE), 1.0), 'paper_split=1.0; use the number .* 1 to 2'),
    ],
)
def test_a_function_of_a_user_that_makes_no_layers_is_refused(monkeypatch, made, message):
    with pytest.raises(UserError, match=rf"model 'mine', of a function in models\.ARCHITECTURES: {message}"):
        mine(monkeypatch, made)


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
