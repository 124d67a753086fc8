"""Models for dense tasks: parameters, the cut between encoder and decoder, BatchNorm, dropout, names, costs."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.costs.pieces import measure_dense
from semisfl_jax.errors import UserError
from semisfl_jax.models.deeplab import DeepLabV3, DeepLabV3Plus
from semisfl_jax.models.resizing import resize
from semisfl_jax.models.resnet import ResNet
from semisfl_jax.models.scene_net import SceneDecoder, SceneEncoder
from tests import dense_twin
from tests.marks import slow_but

MIB = 2**20
SHAPE = (18, 21, 3)
# Encoder, decoder of two outputs: the kinds of the models by name, at a fraction of their width.
NARROW = {
    'scene_net': (SceneEncoder(3, (4, 5, 6)), SceneDecoder(2, width=4)),
    'deeplabv3': (ResNet((1, 1, 1, 1), False, 16, False, 4, (4, 4, 5, 6)), DeepLabV3(2, (1, 2, 3), width=4)),
    'deeplabv3plus': (
        ResNet((1, 1, 1, 1), True, 8, True, 4, (2, 2, 3, 2)),
        DeepLabV3Plus(2, (1, 2, 3), width=4, low_width=3),
    ),
}


@functools.cache
def narrow(name):
    """A small model and its variables."""
    model = models.encoder_decoder(*NARROW[name], SHAPE)
    return model, jax.jit(model.init)(jax.random.key(0))


def images(rows, seed=1):
    return jax.random.normal(jax.random.key(seed), (rows, *SHAPE))


def count(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def shapes(name, outputs=21, shape=(64, 64, 3), **options):
    model = models.build_dense(name, outputs, shape, **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))


def assert_close(got, expected):
    for path, wanted in jax.tree_util.tree_leaves_with_path(expected):
        leaf = functools.reduce(lambda tree, key: tree[getattr(key, 'key', getattr(key, 'idx', None))], path, got)
        scale = float(jnp.max(jnp.abs(wanted)))
        np.testing.assert_allclose(leaf, wanted, rtol=1e-3, atol=1e-4 * scale + 1e-7, err_msg=str(path))


# --- parameters

ENCODERS = {18: (11_176_512, 9_600), 50: (23_508_032, 53_120), 101: (42_500_160, 105_344)}  # and running statistics
# ASPP of c channels: 2 * 256 c + 3 * 9 * 256 c + 5 * 256^2, six BatchNorms of 2 * 256; the 3x3 and its BatchNorm
HEADS = {('v3', 18): 4_722_176, ('v3', 50): 16_125_440, ('v3plus', 18): 5_426_272}
HEADS['v3', 101] = HEADS['v3', 50]
# V3+ beside V3: the low-level layer of 256 channels, and a second 3x3 whose input has 48 more
HEADS['v3plus', 50] = HEADS['v3plus', 101] = HEADS['v3', 50] + 256 * 48 + 2 * 48 + 9 * (256 + 48) * 256 + 2 * 256


@pytest.mark.parametrize('depth', slow_but([18, 50, 101], 18, 50))
@pytest.mark.parametrize('head', ['v3', 'v3plus'])
def test_parameters_of_deeplab(head, depth):
    model, variables = shapes(f'deeplab{head}_resnet{depth}', outputs=7)
    assert (count(variables.bottom['params']), count(variables.bottom['batch_stats'])) == ENCODERS[depth]
    assert count(variables.top['params']) == HEADS[head, depth] + 257 * 7
    assert (variables.proj, model.projection_size) == ({'params': {}}, 0)
    expansion = 4 if depth > 18 else 1
    assert model.feature_size == expansion * (8 * 8 * 512 + (16 * 16 * 64 if head == 'v3plus' else 0))


def test_parameters_of_the_scene_net():
    """At 48x48, maps of 24, 12 and 6 pixels cross the cut."""
    model, variables = shapes('scene_net', outputs=11, shape=(48, 48, 3))
    kernels = 9 * (3 * 16 + 16 * 32 + 32 * 48 + 48 * 64 + 64 * 64)
    assert count(variables.bottom['params']) == kernels + 2 * (16 + 32 + 48 + 64 + 64) == 83_824
    laterals, smooth = (32 + 48 + 64) * 32, 2 * 9 * 32 * 32
    assert count(variables.top['params']) == laterals + smooth + 2 * 5 * 32 + 33 * 11 == 23_360 + 33 * 11
    assert model.feature_size == 24 * 24 * 32 + 12 * 12 * 48 + 6 * 6 * 64


@pytest.mark.parametrize(
    ('stride', 'side', 'rates'), [(8, 8, (12, 24, 36)), (16, 4, (6, 12, 18)), (32, 2, (6, 12, 18))]
)
def test_output_strides(stride, side, rates):
    """Parameters do not depend on the stride; dilations of the decoder do."""
    model, variables = shapes('deeplabv3plus_resnet18', output_stride=stride)
    batch = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    maps = jax.eval_shape(lambda bottom, x: model.bottom(bottom, x, None, False)[0], variables.bottom, batch)
    assert [feature_map.shape for feature_map in maps] == [(2, 16, 16, 64), (2, side, side, 512)]
    assert count(variables.top['params']) == HEADS['v3plus', 18] + 257 * 21
    jaxpr = str(jax.make_jaxpr(lambda top, maps: model.top(top, maps, None, False)[0])(variables.top, maps))
    for rate in (6, 12, 18, 24, 36):
        assert (f'rhs_dilation=({rate}, {rate})' in jaxpr) == (rate in rates)


def test_tasks_share_the_encoder_that_a_key_gives():
    one, other = (models.encoder_decoder(NARROW['scene_net'][0], SceneDecoder(n, width=4), SHAPE) for n in (2, 5))
    first, second = (jax.jit(model.init)(jax.random.key(3)) for model in (one, other))
    assert jax.tree.all(jax.tree.map(np.array_equal, first.bottom, second.bottom))
    assert jax.tree.map(np.shape, first.top) != jax.tree.map(np.shape, second.top)


def test_initial_weights():
    """Kaiming's normal in the encoder, sqrt(2 / fan_out); PyTorch's uniform in DeepLab, 1 / sqrt(3 fan_in)."""
    encoder = ResNet((1, 1, 1, 1), False, low_level=False, stem=16, widths=(16, 16, 24, 24))
    model = models.encoder_decoder(encoder, DeepLabV3(3, (1, 2, 3), width=16), SHAPE)
    variables = jax.jit(model.init)(jax.random.key(0))
    for piece, expected in (
        (variables.bottom, lambda size, inputs, outputs: (2 / (size * outputs)) ** 0.5),
        (variables.top, lambda size, inputs, outputs: (3 * size * inputs) ** -0.5),
    ):
        for path, leaf in jax.tree_util.tree_leaves_with_path(piece['params']):
            if path[-1].key == 'kernel':
                high, wide, inputs, outputs = leaf.shape
                tolerance = 5 / np.sqrt(leaf.size)
                assert np.std(leaf) == pytest.approx(expected(high * wide, inputs, outputs), rel=tolerance), path
            elif 'norm' in jax.tree_util.keystr(path):
                assert np.all(leaf == (path[-1].key == 'scale'))


# --- the cut


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


@pytest.mark.slow
def test_a_step_of_a_whole_model():
    model = models.build_dense('deeplabv3plus_resnet18', 4, (32, 32, 3), dtype='bfloat16')
    variables = jax.jit(model.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))

    def loss(bottom, top):
        maps, _ = model.bottom({**variables.bottom, 'params': bottom}, x, None, True)
        outputs, _ = model.top({**variables.top, 'params': top}, maps, jax.random.key(2), True)
        return -jnp.mean(jax.nn.log_softmax(outputs)[..., 0])

    gradients = jax.jit(jax.grad(loss, (0, 1)))(variables.bottom['params'], variables.top['params'])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients[0]))


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


# --- names and messages


def test_names():
    assert (
        'scene_net',
        *(f'deeplab{head}_resnet{depth}' for head in ('v3', 'v3plus') for depth in (18, 50, 101)),
    ) == tuple(models.DENSE_ARCHITECTURES)
    assert not set(models.DENSE_ARCHITECTURES) & set(models.ARCHITECTURES)


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (lambda: models.build('scene_net', 10, (48, 48, 3)), "'scene_net' is for dense tasks.* use one of small_cnn"),
        (lambda: models.build_dense('cnn', 3, (48, 48, 3)), "'cnn' is for classification.* use one of scene_net"),
        (lambda: models.build_dense('scenenet', 3, (48, 48, 3)), "'scenenet' is unknown.*did you mean 'scene_net'"),
        (lambda: models.build_dense('scene_net', 3, (7, 48, 3)), 'images of 7x48 are too small for this model'),
        (lambda: models.build_dense('scene_net', 3, (48, 48, 3), output_stride=16), 'output_stride=16 .*; use 8$'),
        (
            lambda: models.build_dense('deeplabv3_resnet18', 3, (48, 48, 3), output_stride=4),
            r"output_stride=4 .*'deeplabv3_resnet18'; use 8, 16, 32$",
        ),
        (lambda: narrow('scene_net')[0].project({}, None), 'no projection head'),
        (lambda: narrow('scene_net')[0].tops({}, None, None), 'no top over the rows of many clients'),
    ],
)
def test_what_is_not_possible(build, message):
    with pytest.raises(UserError, match=message):
        build()


class Odd(nn.Module):
    """An encoder or a decoder of a user: what `function` makes of its input."""

    function: Callable

    @nn.compact
    def __call__(self, x, train):
        return self.function(x)


def fail(x):
    raise ValueError('a slip of the user')


ENCODER, DECODER = Odd(lambda x: (x, x[:, ::2])), Odd(lambda maps: maps[0])


@pytest.mark.parametrize(
    ('made', 'error', 'message'),
    [
        (None, UserError, r"'mine', of a function .*: it returns None; return EncoderDecoder\(encoder, decoder\)"),
        ((Odd, DECODER), UserError, 'its encoder is the class Odd; use a Flax module'),
        (
            (Odd(lambda x: x), DECODER),
            UserError,
            r'the encoder .* returns float32 \[2, 9, 8, 3\]; return a tuple of maps',
        ),
        ((Odd(lambda x: (x, x[0])), DECODER), UserError, r'returns float32 \[9, 8, 3\] in place 1 of its tuple'),
        (
            (ENCODER, Odd(lambda maps: maps)),
            UserError,
            r'the decoder .* returns a tuple .*return one map \[B, h, w, 3\]',
        ),
        ((ENCODER, Odd(lambda maps: maps[1][..., :2])), UserError, r'the decoder .* returns float32 \[2, 5, 8, 2\]'),
        ((Odd(fail), DECODER), ValueError, 'a slip of the user'),
        ((ENCODER, Odd(fail)), ValueError, 'a slip of the user'),
    ],
)
def test_a_model_of_a_user_returns_maps(monkeypatch, made, error, message):
    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', lambda *_: (ENCODER, DECODER))
    assert models.build_dense('mine', 3, (9, 8, 3)).feature_size == 9 * 8 * 3 + 5 * 8 * 3
    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', lambda *_: made)
    with pytest.raises(error, match=message):
        models.build_dense('mine', 3, (9, 8, 3))


def test_the_smallest_images():
    assert models.build_dense('scene_net', 3, (8, 9, 3)).feature_size == 4 * 4 * 32 + 2 * 2 * 48 + 64
    assert models.build_dense('deeplabv3_resnet18', 3, (1, 1, 3)).feature_size == 512  # it rounds up


# --- costs


def test_bytes_and_operations_of_the_scene_net():
    """Products alone, where a kernel lies on the map: (3 s - 2)^2 multiply-adds a pair of channels at side s."""
    pieces = measure_dense('scene_net', 11, (48, 48, 3), 8)
    statistics = 2 * (16 + 32 + 48 + 64 + 64), 2 * 5 * 32
    assert (pieces.bottom, pieces.top) == (4 * (83_824 + statistics[0]), 4 * (23_360 + 33 * 11 + statistics[1]))
    assert pieces.statistics == 4 * sum(statistics)
    assert pieces.features == 4 * (24 * 24 * 32 + 12 * 12 * 48 + 6 * 6 * 64)
    assert pieces.head_work.train == pieces.pair_work.train == 0

    def three(side, inputs, outputs):
        return 2 * (3 * side - 2) ** 2 * inputs * outputs

    encoder = [three(48, 3, 16), three(24, 16, 32), three(12, 32, 48), three(6, 48, 64), three(6, 64, 64)]
    decoder = [
        2 * 32 * (6**2 * 64 + 12**2 * 48 + 24**2 * 32),
        three(12, 32, 32),
        three(24, 32, 32),
        2 * 24**2 * 32 * 11,
    ]
    # Resizing, one side after the other: 6 to 12 and 12 to 24 with 32 channels, 24 to 48 with the outputs. Its matrices
    # have no gradient.
    resizing = [2 * c * (2 * n * n * n + 4 * n * n * n) for n, c in ((6, 32), (12, 32), (24, 11))]
    for work, forward, train in (
        (pieces.bottom_work, sum(encoder), 3 * sum(encoder) - encoder[0]),
        (pieces.top_work, sum(decoder + resizing), 3 * sum(decoder) + 2 * sum(resizing)),
    ):
        assert forward < work.forward < 1.05 * forward
        assert train < work.train < 1.1 * train


def test_bytes_of_the_papers_model():
    """ResNet-18 with V3+ and 21 classes, before BatchNorm's statistics: F_k and g down, F_k up."""
    _, variables = shapes('deeplabv3plus_resnet18', outputs=21, shape=(32, 32, 3))
    encoder, decoder = (4 * count(piece['params']) for piece in (variables.bottom, variables.top))
    assert (encoder + decoder + encoder) / MIB == pytest.approx(106.0, abs=0.05)
    assert (encoder + decoder) / MIB == pytest.approx(63.4, abs=0.05)
