"""Encoders from a file: names and shapes of a state dict, this package's own names, and what is wrong with a file."""

import sys
import types

import flax
import jax
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.core.errors import UserError
from semisfl_jax.models.dense_zoo import ResNet
from semisfl_jax.models.weights import torch_name
from tests import dense_twin
from tests.marks import slow_but

STEM, WIDTHS, DEPTHS = 2, (2, 3, 2, 3), (1, 2, 1, 1)
IMAGES = jax.ShapeDtypeStruct((1, 16, 16, 3), np.float32)


def state_dict():
    return dense_twin.state_dict(np.random.default_rng(0), True, STEM, WIDTHS, DEPTHS)


@pytest.fixture(scope='module')
def variables():
    return ResNet(DEPTHS, True, stem=STEM, widths=WIDTHS).lazy_init(jax.random.key(0), IMAGES, train=False)


def load(path, variables, **state):
    np.savez(path, **state)
    return models.load_encoder(str(path), variables)


def test_every_value_is_that_of_the_state_dict(tmp_path, variables):
    """Kernels are turned from OIHW to HWIO; the classifier and counts of batches are left out."""
    state = state_dict()
    loaded = load(tmp_path / 'resnet.npz', variables, **state)
    assert jax.tree.map(np.shape, loaded) == jax.tree.map(np.shape, variables)
    first = loaded['params']['layer2_0']
    np.testing.assert_array_equal(first['conv2']['kernel'][2, 0], state['layer2.0.conv2.weight'][:, :, 2, 0].T)
    np.testing.assert_array_equal(first['downsample']['norm']['bias'], state['layer2.0.downsample.1.bias'])
    statistics = loaded['batch_stats']['layer2_1']['conv3']['norm']
    np.testing.assert_array_equal(statistics['var'], state['layer2.1.bn3.running_var'])
    used = {torch_name(parts) for parts in flax.traverse_util.flatten_dict(loaded)}
    left_out = {name for name in state if name.startswith('fc.') or name.endswith('num_batches_tracked')}
    assert used == set(state) - left_out


@pytest.mark.parametrize(('depth', 'arrays'), slow_but([(18, 100), (50, 265), (101, 520)], (18, 100), (50, 265)))
def test_names_of_whole_resnets(depth, arrays):
    """Per convolution a kernel and four arrays of its BatchNorm: 20, 53 and 104 of them."""
    name = f'deeplabv3_resnet{depth}'
    bottom = jax.eval_shape(models.build_dense(name, 21, (32, 32, 3)).init, jax.random.key(0)).bottom
    names = {torch_name(parts) for parts in flax.traverse_util.flatten_dict(bottom)}
    assert len(names) == arrays
    last = {18: 2, 50: 3, 101: 3}[depth]
    assert {'conv1.weight', 'bn1.running_mean', f'layer4.1.bn{last}.weight', 'layer3.0.downsample.0.weight'} <= names
    assert ('layer3.22.conv3.weight' in names) == (depth == 101)
    assert ('layer1.0.downsample.1.running_var' in names) == (depth > 18)


def test_own_names(tmp_path):
    """As the docstring says, of any encoder."""
    model = models.build_dense('scene_net', 4, (16, 16, 3))
    bottom = jax.eval_shape(model.init, jax.random.key(0)).bottom
    rng = np.random.default_rng(0)
    saved = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), bottom)
    loaded = load(tmp_path / 'own.npz', bottom, **flax.traverse_util.flatten_dict(saved, sep='/'))
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded, saved))


def test_safetensors(tmp_path, variables):
    save_file = pytest.importorskip('safetensors.numpy').save_file
    state = {name: np.asarray(array) for name, array in state_dict().items()}
    save_file(state, tmp_path / 'resnet.safetensors')
    loaded = models.load_encoder(str(tmp_path / 'resnet.safetensors'), variables)
    np.testing.assert_array_equal(loaded['params']['conv1']['norm']['scale'], state['bn1.weight'])


class Tensor:
    """What is used of PyTorch's."""

    def __init__(self, array):
        self.array = array

    def float(self):
        return Tensor(np.float32(self.array))

    def numpy(self):
        return self.array


def test_files_of_pytorch(tmp_path, variables, monkeypatch):
    """PyTorch may be absent where tests run: a stand-in that hands out the arrays as tensors."""
    state = state_dict()

    def torch_load(file, map_location, weights_only):
        assert (file.name, map_location, weights_only) == ('resnet.pth', 'cpu', True)
        return {name: Tensor(array) for name, array in state.items()}

    monkeypatch.setitem(sys.modules, 'torch', types.SimpleNamespace(load=torch_load))
    (tmp_path / 'resnet.pth').write_bytes(b'any')
    loaded = models.load_encoder(str(tmp_path / 'resnet.pth'), variables)
    np.testing.assert_array_equal(loaded['params']['conv1']['norm']['scale'], state['bn1.weight'])


@pytest.mark.parametrize(
    ('ending', 'package'),
    [('pt', 'torch'), ('safetensors', 'safetensors')],
)
def test_packages_that_are_not_installed(tmp_path, variables, monkeypatch, ending, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f'{package}.numpy', None)
    path = tmp_path / f'encoder.{ending}'
    path.write_bytes(b'any')
    with pytest.raises(UserError, match=rf'model\.weights=.* needs the package {package}.*: .*install.*\.npz'):
        models.load_encoder(str(path), variables)


def changed(**changes):
    """The state dict with other arrays, without those that are None."""
    state = {**state_dict(), **{name.replace('__', '.'): array for name, array in changes.items()}}
    return {name: array for name, array in state.items() if array is not None}


@pytest.mark.parametrize(
    ('state', 'message'),
    [
        (changed(bn1__bias=None, bn1__weight=None), r"lacks 2 arrays, such as 'bn1\.bias'"),
        (changed(layer4__1__conv1__weight=np.ones(1)), r"has, beyond .* 1 arrays, .*'layer4\.1\.conv1"),
        (changed(conv1__weight=np.ones((2, 1, 7, 7))), r"'conv1\.weight' .* \(2, 1, 7, 7\), not \(2, 3, 7, 7\)"),
        (changed(bn1__bias=np.array([0.0, np.nan])), r"'bn1\.bias' .* not finite"),
        (changed(bn1__bias=np.array(['a', 'b'])), r'cannot be read'),
        (changed(bn1__bias=np.array([None, 1])), r'cannot be read'),  # a pickle
        ({}, r'lacks 100 arrays'),
    ],
)
def test_files_that_do_not_fit(tmp_path, variables, state, message):
    """100 arrays: five for each of 1 + 5 * 3 convolutions and 4 shortcuts."""
    with pytest.raises(UserError, match=message) as raised:
        load(tmp_path / 'encoder.npz', variables, **state)
    assert 'model.weights' in str(raised.value)


def test_other_files(tmp_path, variables):
    with pytest.raises(UserError, match=r"model\.weights '.*none\.npz' cannot be read"):
        models.load_encoder(str(tmp_path / 'none.npz'), variables)
    (tmp_path / 'encoder.h5').write_bytes(b'any')
    with pytest.raises(UserError, match=r'no known format; use \.npz, \.safetensors, \.pth, \.pt'):
        models.load_encoder(str(tmp_path / 'encoder.h5'), variables)
    np.save(tmp_path / 'array.npy', np.ones(3))
    (tmp_path / 'array.npy').rename(tmp_path / 'array.npz')
    with pytest.raises(UserError, match='cannot be read as its ending says'):
        models.load_encoder(str(tmp_path / 'array.npz'), variables)
