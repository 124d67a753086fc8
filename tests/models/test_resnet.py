"""ResNets: how many weights they have, their maps and logits against NumPy and PyTorch, and what a file starts."""

import jax
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.base.errors import UserError
from semisfl_jax.models import layers, resnet, zoo
from semisfl_jax.models.resnet import ResNet
from tests.helpers import dense_twin
from tests.helpers.architectures import count
from tests.helpers.marks import slow_but

STEM, WIDTHS, DEPTHS = 4, (4, 6, 5, 3), (1, 2, 2, 2)
REPLACED = {32: (False, False, False), 16: (False, False, True), 8: (False, True, True)}


# As torchvision documents them, and those that CIFAR is trained with (github.com/kuangliu/pytorch-cifar)
PUBLISHED = [
    ('resnet18', 224, 1000, 11_689_512),
    ('resnet50', 224, 1000, 25_557_032),
    ('resnet18', 32, 10, 11_173_962),
    ('resnet50', 32, 10, 23_520_842),
]


@pytest.mark.parametrize(('name', 'side', 'classes', 'parameters'), slow_but(PUBLISHED, PUBLISHED[0], PUBLISHED[3]))
def test_models_have_the_published_numbers_of_parameters(name, side, classes, parameters):
    model = models.build(name, classes, (side, side, 3))
    variables = jax.eval_shape(model.init, jax.random.key(0))
    assert count(variables.bottom['params']) + count(variables.top['params']) == parameters
    assert model.feature_size == {'resnet18': 512, 'resnet50': 2048}[name]  # cut before the classifier


def test_images_below_64_pixels_have_the_stem_for_small_ones():
    """Of the first layer: all of 63 x 80 pixels, and a quarter of each side of 64 x 80."""
    for shape, features in (((63, 80, 3), 63 * 80 * 64), ((64, 80, 3), 16 * 20 * 64)):
        assert models.build('resnet18', 10, shape, 1).feature_size == features


@pytest.mark.slow
@pytest.mark.parametrize(('bottleneck', 'output_stride'), [(False, 8), (True, 16), (True, 32)])
def test_maps_are_those_of_torchvision(tmp_path, bottleneck, output_stride):
    """Strides, dilations, pooling and names, at a fraction of its width; sides that no stride divides."""
    rng = np.random.default_rng(1)
    state = dense_twin.state_dict(rng, bottleneck, STEM, WIDTHS, DEPTHS)
    np.savez(tmp_path / 'state.npz', **state)
    encoder = ResNet(DEPTHS, bottleneck, output_stride, (2, 3, 4, 5), STEM, WIDTHS)
    x = rng.normal(size=(2, 37, 42, 3)).astype(np.float32)
    variables = models.load_encoder(str(tmp_path / 'state.npz'), encoder.lazy_init(jax.random.key(0), x, train=False))
    maps = jax.jit(lambda variables, x: encoder.apply(variables, x, train=False))(variables, x)
    side = {8: (5, 6), 16: (3, 3), 32: (2, 2)}[output_stride]  # 37 and 42 divided by the stride, rounded up
    assert (maps[0].shape[1:3], maps[1].shape[1:3], maps[3].shape[1:3]) == ((10, 11), (5, 6), side)
    for got, expected in zip(maps, dense_twin.resnet(state, x, bottleneck, REPLACED[output_stride]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def torch_logits(torch, state, images):
    """torchvision's ResNet in evaluation, with its stem or, below 64 pixels, that for CIFAR."""
    ops = torch.nn.functional

    def layer(conv, norm, x, stride=1):
        kernel = state[f'{conv}.weight']
        x = ops.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        parts = (state[f'{norm}.{part}'] for part in ('running_mean', 'running_var', 'weight', 'bias'))
        return ops.batch_norm(x, *parts)

    x, small = images.permute(0, 3, 1, 2), images.shape[1] < 64
    x = torch.relu(layer('conv1', 'bn1', x, 1 if small else 2))
    x = x if small else ops.max_pool2d(x, 3, 2, 1)
    blocks = sorted({tuple(map(int, name[5:].split('.')[:2])) for name in state if name.startswith('layer')})
    for stage, index in blocks:
        name, y = f'layer{stage}.{index}', x
        stride = 2 if stage > 1 and index == 0 else 1
        convolutions = 3 if f'{name}.conv3.weight' in state else 2
        for number in range(1, convolutions + 1):
            strided = number == convolutions - 1  # the 3 x 3 one of a bottleneck, the first one otherwise
            y = layer(f'{name}.conv{number}', f'{name}.bn{number}', y, stride if strided else 1)
            y = torch.relu(y) if number < convolutions else y
        if f'{name}.downsample.0.weight' in state:
            x = layer(f'{name}.downsample.0', f'{name}.downsample.1', x, stride)
        x = torch.relu(x + y)
    return ops.linear(x.mean((2, 3)), state['fc.weight'], state['fc.bias'])


@pytest.mark.slow
@pytest.mark.parametrize(('depth', 'side', 'cut'), [(18, 32, 3), (50, 65, None)])
def test_logits_are_those_of_pytorch_with_its_file(tmp_path, depth, side, cut):
    """Whole models, both stems, at any cut. Logits are about 1."""
    torch = pytest.importorskip('torch', reason="pip install -e '.[benchmark]'")
    rng = np.random.default_rng(depth)
    kernel = 3 if side < 64 else 7
    state = dense_twin.state_dict(rng, depth > 18, 64, resnet.WIDTHS, resnet.DEPTHS[depth], kernel=kernel)
    state['fc.bias'] = rng.normal(size=10).astype(np.float32)
    images = torch.from_numpy(rng.normal(size=(2, side, side, 3)).astype(np.float32))
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in state.items()}
    tensors['fc.weight'] /= (torch_logits(torch, tensors, images) - tensors['fc.bias']).std()
    torch.save(tensors, tmp_path / 'state.pth')
    model = models.build(f'resnet{depth}', 10, (side, side, 3), cut, 'none')
    variables = jax.jit(models.start_with(model, str(tmp_path / 'state.pth')).init)(jax.random.key(0))

    @jax.jit
    def logits(variables, images):
        features, _ = model.bottom(variables.bottom, images, None, False)
        return model.top(variables.top, features, None, False)[0]

    expected = torch_logits(torch, tensors, images).numpy()
    np.testing.assert_allclose(logits(variables, images.numpy()), expected, rtol=0, atol=1e-4)


# --- a file of weights

ONE = 1, 1, 1, 1


@pytest.fixture(scope='module')
def file(tmp_path_factory):
    """A state dict of ten classes, for the stem with pooling, and its path."""
    state = dense_twin.state_dict(np.random.default_rng(0), True, STEM, WIDTHS, ONE)
    path = tmp_path_factory.mktemp('weights') / 'state.npz'
    np.savez(path, **state)
    return state, str(path)


def narrow(classes, side=64):
    """A model of the same layers that is cut after the second stage."""
    architecture = zoo.ARCHITECTURES['resnet50'](classes, layers.FLOAT32, depths=ONE, stem=STEM, widths=WIDTHS)
    return models.cut(architecture, (side, side, 3), 3, 'none', 0)


@pytest.mark.parametrize('classes', [10, 7])
def test_a_classifier_is_taken_if_it_has_as_many_classes(file, caplog, classes):
    """Another one stays as the model draws it, and a warning says so."""
    state, path = file
    model, key = narrow(classes), jax.random.key(3)
    bottom, top, _ = jax.jit(models.start_with(model, path).init)(key)
    assert np.array_equal(bottom['params']['conv1']['kernel'][1, 2], state['conv1.weight'][:, :, 1, 2].T)
    assert np.array_equal(top['batch_stats']['layer4_0']['conv1']['norm']['var'], state['layer4.0.bn1.running_var'])
    told = f"model.weights: the classifier of 10 classes in '{path}' is left out, as the data have 7"
    assert caplog.messages == ([] if classes == 10 else [told])
    expected = {'kernel': state['fc.weight'].T, 'bias': state['fc.bias']}
    if classes == 7:
        expected = dict(jax.jit(model.init)(key).top['params']['fc']['dense'])
    jax.tree.map(np.testing.assert_array_equal, top['params']['fc']['dense'], expected)


def test_weights_for_larger_images_ask_for_them(file):
    with pytest.raises(UserError, match=r'conv1\.weight.*\(4, 3, 7, 7\), not \(4, 3, 3, 3\).*data\.image_size'):
        models.start_with(narrow(10, side=32), file[1])
