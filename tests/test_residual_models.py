"""ResNet-9 and WideResNet-28-2 against the same networks in PyTorch; how they start; rows of several clients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.algorithms import semifl
from semisfl_jax.core.types import SplitParams
from tests.marks import slow_but

NAMES = ('resnet9', 'resnet9_plain', 'wresnet28x2')


def torch_network(name, torch):
    """Ten classes, built as in the authors' code. Modules with parameters come in the order of the layers."""
    nn = torch.nn

    def conv_layer(inputs, outputs, pool=False):
        norm = name == 'resnet9'
        layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm)]
        layers += [nn.BatchNorm2d(outputs)] if norm else []
        return nn.Sequential(*layers, nn.ReLU(), *([nn.MaxPool2d(2)] if pool else []))

    class Residual(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.Sequential(conv_layer(width, width), conv_layer(width, width))

        def forward(self, x):
            return self.inner(x) + x

    class Preactivation(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.first = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
            self.conv_0 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.second = nn.Sequential(nn.BatchNorm2d(outputs), nn.ReLU())
            self.conv_1 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)

        def forward(self, x):
            y = self.first(x)
            x = x if self.shortcut is None else self.shortcut(y)
            return x + self.conv_1(self.second(self.conv_0(y)))

    if name == 'wresnet28x2':
        blocks = []
        for inputs, outputs, stride in ((16, 32, 1), (32, 64, 2), (64, 128, 2)):
            blocks += [Preactivation(inputs, outputs, stride), *[Preactivation(outputs, outputs, 1) for _ in range(3)]]
        end = nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), *blocks, *end)
    return nn.Sequential(
        conv_layer(3, 64),
        conv_layer(64, 128, pool=True),
        Residual(128),
        conv_layer(128, 256, pool=True),
        conv_layer(256, 512, pool=True),
        Residual(512),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10, bias=name == 'resnet9'),
    )


def layers_of(variables):
    """The layers of both pieces: {'layer_0': …}, parameters and statistics."""
    bottom, top = variables.bottom, variables.top
    return {**bottom['params'], **top['params']}, {**bottom.get('batch_stats', {}), **top.get('batch_stats', {})}


def modules(name):
    """Paths of the modules with parameters, in the order in which the PyTorch network above has them."""
    if name == 'wresnet28x2':
        paths = [('layer_0',)]
        for index in range(1, 13):
            shortcut = [(f'layer_{index}', 'shortcut')] if index in (1, 5, 9) else []
            norm_0, *rest = ((f'layer_{index}', part) for part in ('norm_0', 'conv_0', 'norm_1', 'conv_1'))
            paths += [norm_0, *shortcut, *rest]
        return [*paths, ('layer_12', 'norm_2'), ('layer_13', 'dense')]
    convolutions = [('layer_0',), ('layer_1',), ('layer_2', 'conv_0'), ('layer_2', 'conv_1')]
    convolutions += [('layer_3',), ('layer_4',), ('layer_5', 'conv_0'), ('layer_5', 'conv_1')]
    each = [[path, (*path, 'norm')] if name == 'resnet9' else [path] for path in convolutions]
    return [*itertools.chain(*each), ('layer_6', 'dense')]


def at(tree, path):
    for part in path:
        tree = tree[part]
    return tree


def pair(name, size):
    """A model, its variables with statistics unlike those it starts with, and the same network in PyTorch."""
    torch = pytest.importorskip('torch')
    model = models.build(name, 10, (size, size, 3), split_index=3, projection='none')  # an MLP would have 32,768^2
    variables = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)

    def drawn(piece):
        draw = lambda leaf: jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), jnp.float32)  # noqa: E731
        return {**piece, 'batch_stats': jax.tree.map(draw, piece['batch_stats'])} if 'batch_stats' in piece else piece

    variables = SplitParams(drawn(variables.bottom), drawn(variables.top), variables.proj)
    parameters, statistics = layers_of(variables)
    network = torch_network(name, torch)
    layers = [m for m in network.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.Linear))]

    def fill(target, array):
        assert tuple(target.shape) == array.shape
        target.data = torch.from_numpy(np.array(array))

    for module, path in zip(layers, modules(name), strict=True):
        leaf = at(parameters, path)
        if isinstance(module, torch.nn.Conv2d):
            fill(module.weight, leaf['kernel'].transpose(3, 2, 0, 1))
        elif isinstance(module, torch.nn.Linear):
            fill(module.weight, leaf['kernel'].T)
        else:
            fill(module.weight, leaf['scale'])
            fill(module.running_mean, at(statistics, path)['mean'])
            fill(module.running_var, at(statistics, path)['var'])
        if module.bias is not None:
            fill(module.bias, leaf['bias'])
    return model, variables, network, torch


@pytest.mark.parametrize('name', NAMES)
def test_logits_are_those_of_pytorch(name):
    size = 16 if name == 'wresnet28x2' else 32
    model, variables, network, torch = pair(name, size)
    images = np.random.default_rng(1).normal(size=(2, size, size, 3)).astype(np.float32)
    run = jax.jit(
        lambda variables, x, train: model.top(
            variables.top, model.bottom(variables.bottom, x, None, train)[0], None, train
        )[0],
        static_argnums=2,
    )
    for train in (False, True):
        network.train(train)
        with torch.no_grad():
            expected = network(torch.from_numpy(images.transpose(0, 3, 1, 2))).numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(run(variables, images, train), expected, rtol=1e-3, atol=1e-4 * scale)


def test_static_statistics_are_those_of_pytorch():
    """Momentum None is PyTorch's cumulative average. Its variances are unbiased: n / (n - 1) times ours."""
    model, variables, network, torch = pair('wresnet28x2', 8)
    batches = np.random.default_rng(2).normal(size=(3, 4, 8, 8, 3)).astype(np.float32)
    norms, values = [], {}
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
            module.register_forward_hook(
                lambda m, inputs, _: values.__setitem__(m, inputs[0].numel() // m.num_features)
            )
            norms.append(module)
    network.train()
    with torch.no_grad():
        for batch in batches:
            network(torch.from_numpy(batch.transpose(0, 3, 1, 2)))

    recompute = jax.jit(
        lambda variables, batches: semifl.recompute_statistics(
            model, variables, batches.__getitem__, len(batches), jax.random.key(3)
        )
    )
    _, statistics = layers_of(recompute(variables, batches))
    paths = [path for path in modules('wresnet28x2') if 'norm' in path[-1]]
    for norm, path in zip(norms, paths, strict=True):
        got, n = at(statistics, path), values[norm]
        mean, variance = norm.running_mean.numpy(), norm.running_var.numpy()
        np.testing.assert_allclose(got['mean'], mean, rtol=1e-3, atol=1e-4 * np.abs(mean).max(), err_msg=str(path))
        np.testing.assert_allclose(np.asarray(got['var']) * n / (n - 1), variance, rtol=2e-3, err_msg=str(path))


@pytest.mark.slow
def test_initial_weights():
    """Deviations: PyTorch's uniform 1 / sqrt(3 fan_in), Keras's 1 / sqrt(fan_in), Kaiming's sqrt(2 / fan_out)."""
    for name in NAMES:
        model = models.build(name, 10, (16, 16, 3))
        parameters, _ = layers_of(model.init(jax.random.key(0)))
        for path in modules(name):
            leaf = at(parameters, path)
            if 'scale' in leaf:
                assert np.all(leaf['scale'] == 1)
                assert np.all(leaf['bias'] == 0)
                continue
            *spatial, inputs, outputs = leaf['kernel'].shape
            fan_in, fan_out = np.prod(spatial) * inputs, np.prod(spatial) * outputs
            expected = {'resnet9': (3 * fan_in) ** -0.5, 'resnet9_plain': fan_in**-0.5}.get(name, (2 / fan_out) ** 0.5)
            if path[-1] == 'dense' and name == 'wresnet28x2':
                expected = (3 * fan_in) ** -0.5
                assert np.all(leaf['bias'] == 0)
            tolerance = 4 / np.sqrt(leaf['kernel'].size)
            assert np.std(leaf['kernel']) == pytest.approx(expected, rel=tolerance), path
            assert ('bias' in leaf) == (name == 'resnet9' or (name == 'wresnet28x2' and path[-1] == 'dense'))


@pytest.mark.parametrize('name', slow_but(['resnet9', 'wresnet28x2']))
def test_the_top_takes_the_statistics_of_all_clients(name):
    """Three clients' rows give what one batch of all rows gives: logits and moved statistics."""
    model = models.build(name, 10, (8, 8, 3), split_index=4)
    top = model.init(jax.random.key(0)).top
    features = jax.random.normal(jax.random.key(1), (3, 5, model.feature_size))
    keys = jax.random.split(jax.random.key(2), 3)
    logits, moved = jax.jit(model.tops)(top, features, keys)
    expected, expected_moved = model.top(top, features.reshape(15, -1), None, True)
    np.testing.assert_allclose(logits.reshape(15, 10), expected, rtol=1e-3, atol=1e-3)
    assert 'batch_stats' in moved
    for got, wanted in zip(jax.tree.leaves(moved), jax.tree.leaves(expected_moved), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(('shape', 'features'), [((28, 28, 1), 512), ((8, 8, 1), 512), ((64, 64, 3), 2 * 2 * 512)])
def test_other_sizes(shape, features):
    assert models.build('resnet9', 10, shape).feature_size == features
    assert models.build('wresnet28x2', 10, shape).feature_size == 128
