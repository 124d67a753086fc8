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
    with pytest.raises(UserError, match=rf'model\.weights=.*{package}'):
        models.load_encoder(str(path), variables)


def changed(**changes):
    """The state dict with other arrays, without those that are None."""
    state = {**state_dict(), **{name.replace('__', '.'): array for name, array in changes.items()}}
    return {name: array for name, array in state.items() if array is not None}


@pytest.mark.parametrize(
    ('state', 'name'),
    [
        (changed(bn1__bias=None, bn1__weight=None), r'bn1\.bias'),
        (changed(layer4__1__conv1__weight=np.ones(1)), r'layer4\.1\.conv1'),
        (changed(conv1__weight=np.ones((2, 1, 7, 7))), r'conv1\.weight'),
        (changed(bn1__bias=np.array([0.0, np.nan])), r'bn1\.bias'),
        (changed(bn1__bias=np.array(['a', 'b'])), 'encoder'),
        (changed(bn1__bias=np.array([None, 1])), 'encoder'),  # a pickle
        ({}, 'encoder'),
    ],
)
def test_files_that_do_not_fit(tmp_path, variables, state, name):
    """The file and what is wrong in it are named."""
    with pytest.raises(UserError, match=name) as raised:
        load(tmp_path / 'encoder.npz', variables, **state)
    assert 'model.weights' in str(raised.value)


@pytest.mark.parametrize('name', ['none.npz', 'encoder.h5', 'array.npz'])
def test_other_files(tmp_path, variables, name):
    """One that is not there, one of no known format, and one that is not what its ending says."""
    with open(tmp_path / 'array.npz', 'wb') as file:
        np.save(file, np.ones(3))
    (tmp_path / 'encoder.h5').write_bytes(b'any')
    with pytest.raises(UserError, match=name):
        models.load_encoder(str(tmp_path / name), variables)
