"""Encoders from a file: whose values come back, and every file that does not fit."""

import sys
import types

import flax
import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

from semisfl_jax import models
from semisfl_jax.base.errors import UserError
from semisfl_jax.models.resnet import ResNet
from semisfl_jax.models.weights import torch_name
from tests.helpers import dense_twin

STEM, WIDTHS, DEPTHS = 4, (4, 6, 5, 3), (1, 2, 2, 2)


def state_dict():
    return dense_twin.state_dict(np.random.default_rng(0), True, STEM, WIDTHS, DEPTHS)


@pytest.fixture(scope='module')
def variables():
    return ResNet(DEPTHS, True, stem=STEM, widths=WIDTHS).lazy_init(
        jax.random.key(0), jax.ShapeDtypeStruct((1, 16, 16, 3), np.float32), train=False
    )


def load(path, variables, **state):
    np.savez(path, **state)
    return models.load_encoder(str(path), variables)


@pytest.mark.slow
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


def test_a_file_with_the_names_of_this_package_is_read(tmp_path):
    """As the docstring says, of any encoder."""
    model = models.build_dense('scene_net', 4, (16, 16, 3))
    bottom = jax.eval_shape(model.init, jax.random.key(0)).bottom
    rng = np.random.default_rng(0)
    saved = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), bottom)
    loaded = load(tmp_path / 'own.npz', bottom, **flax.traverse_util.flatten_dict(saved, sep='/'))
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded, saved))


def test_a_file_of_safetensors_is_read(tmp_path, variables):
    state = {name: np.asarray(array) for name, array in state_dict().items()}
    safetensors.save_file(state, tmp_path / 'resnet.safetensors')
    loaded = models.load_encoder(str(tmp_path / 'resnet.safetensors'), variables)
    np.testing.assert_array_equal(loaded['params']['conv1']['norm']['scale'], state['bn1.weight'])


def test_a_file_of_pytorch_is_read(tmp_path, variables, monkeypatch):
    """PyTorch may be absent where tests run: a stand-in that hands out the arrays as tensors."""
    state = state_dict()

    def tensor(array):
        return types.SimpleNamespace(float=lambda: types.SimpleNamespace(numpy=lambda: np.float32(array)))

    def torch_load(file, map_location, weights_only):
        assert (file.name, map_location, weights_only) == (str(tmp_path / 'resnet.pth'), 'cpu', True)
        return {'state_dict': {name: tensor(array) for name, array in state.items()}}

    monkeypatch.setitem(sys.modules, 'torch', types.SimpleNamespace(load=torch_load))
    (tmp_path / 'resnet.pth').write_bytes(b'any')
    loaded = models.load_encoder(str(tmp_path / 'resnet.pth'), variables)
    np.testing.assert_array_equal(loaded['params']['conv1']['norm']['scale'], state['bn1.weight'])


def changed(**changes):
    """The state dict with other arrays, without those that are None."""
    state = {**state_dict(), **{name.replace('__', '.'): array for name, array in changes.items()}}
    return {name: array for name, array in state.items() if array is not None}


@pytest.mark.parametrize(
    ('state', 'name'),
    [
        (changed(bn1__bias=None, bn1__weight=None), r'bn1\.bias'),
        (changed(conv1__weight=np.ones((4, 1, 7, 7))), r'conv1\.weight'),
        (changed(layer2__2__conv1__weight=np.ones((6, 24, 1, 1))), r'layer2\.2\.conv1'),  # of a deeper network
        (changed(bn1__bias=np.array([0.0, np.nan, 0.0, 0.0])), r'bn1\.bias'),
        (changed(bn1__bias=np.array([None, 1, 1, 1])), 'encoder'),  # a pickle
        ({}, 'encoder'),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_its_fault(tmp_path, variables, state, name):
    """The file and what is wrong in it are named."""
    with pytest.raises(UserError, match=name) as raised:
        load(tmp_path / 'encoder.npz', variables, **state)
    assert 'model.weights' in str(raised.value)


def test_a_file_of_zeros_is_not_unpacked(tmp_path, variables):
    np.savez_compressed(tmp_path / 'zeros.npz', **{'conv1.weight': np.zeros(2**21, np.float32)})
    with pytest.raises(UserError, match=r'KiB would unpack to 8\.0 MiB'):
        models.load_encoder(str(tmp_path / 'zeros.npz'), variables)


@pytest.mark.parametrize('name', ['none.npz', 'encoder.h5', 'array.npz'])
def test_a_file_of_another_format_is_named(tmp_path, variables, name):
    """One that is not there, one of no known format, and one that is not what its ending says."""
    with open(tmp_path / 'array.npz', 'wb') as file:
        np.save(file, np.ones(3))
    (tmp_path / 'encoder.h5').write_bytes(b'any')
    with pytest.raises(UserError, match=name):
        models.load_encoder(str(tmp_path / name), variables)
