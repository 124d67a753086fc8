"""Initializes encoders by name and shape, from a local file of weights or from those of a run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import numpy as safetensors

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.core.types import Variables

KEY = 'model.weights'  # the configuration key that messages name
LARGEST = 4 * 2**30  # bytes of a file
_LEFT_OUT = re.compile(r'fc\.|.*\.num_batches_tracked$')  # in a state dict: the classifier, and counts of batches
_NORM = {'scale': 'weight', 'bias': 'bias', 'mean': 'running_mean', 'var': 'running_var'}
_ENDINGS = ('.npz', '.safetensors', '.pth', '.pt')
_OWN = ('params/', 'batch_stats/')  # prefixes of this package's own names


def load_encoder(path: str, variables: Variables, arrays: Mapping[str, np.ndarray] | None = None) -> Variables:
    """Returns an encoder's variables with all values replaced by those of a file.

    Names in the file are those of a PyTorch state dict of torchvision's ResNet ('layer1.0.conv1.weight', …; its
    classifier 'fc' is left out), or this package's own, parts joined by '/' ('params/conv1/kernel', …):

        np.savez('encoder.npz', **flax.traverse_util.flatten_dict(variables.bottom, sep='/'))

    Args:
      path: a file .npz or .safetensors; or .pth or .pt, which needs PyTorch.
      variables: the encoder's, {'params': …, 'batch_stats': …}: `SplitParams.bottom` of a model for dense tasks.
      arrays: {name: array} to use in place of the file's; messages then still name `path`.

    Raises:
      UserError: the file cannot be read, or its names and shapes are not exactly the encoder's.
    """
    arrays = _read(path) if arrays is None else arrays
    ours = any(name.startswith(_OWN) for name in arrays)
    read = arrays if ours else {name: array for name, array in arrays.items() if not _LEFT_OUT.match(name)}
    leaves = flatten_dict(variables)
    names = {parts: '/'.join(parts) if ours else torch_name(parts) for parts in leaves}
    lacking, extra = set(names.values()) - set(read), set(read) - set(names.values())
    for left, what in ((lacking, 'lacks'), (extra, 'has, beyond those of this encoder,')):
        if left:  # the file belongs to another network, such as a deeper one
            raise UserError(
                f"{KEY}: '{path}' {what} {len(left):,} arrays, such as '{min(left)}'; use the weights of this encoder "
                "(a state dict of torchvision's ResNet, or arrays by this package's names), or another model.name"
            )
    loaded = {}
    for parts, leaf in leaves.items():
        name = names[parts]
        is_kernel = len(leaf.shape) == 4 and not ours
        wanted = tuple(leaf.shape[axis] for axis in (3, 2, 0, 1)) if is_kernel else tuple(leaf.shape)  # HWIO to OIHW
        array = read[name]
        if array.shape != wanted or not np.all(np.isfinite(array)):
            fault = f'has the shape {array.shape}, not {wanted}' if array.shape != wanted else 'is not finite'
            raise UserError(
                f"{KEY}: '{name}' in '{path}' {fault}; use the weights of this encoder, or another model.name"
            )
        loaded[parts] = jnp.asarray(array.transpose(2, 3, 1, 0) if is_kernel else array)
    return unflatten_dict(loaded)


def torch_name(parts: tuple[str, ...]) -> str:
    """Returns the name of a variable in torchvision's ResNet.

    ('batch_stats', 'layer1_0', 'conv1', 'norm', 'mean') is 'layer1.0.bn1.running_mean'.
    """
    *modules, last = parts[1:]
    norm = modules[-1:] == ['norm']
    path = '.'.join(modules[:-1] if norm else modules).replace('_', '.')
    if path.endswith('downsample'):
        path += '.1' if norm else '.0'
    elif norm:
        path = re.sub(r'conv(\d+)$', r'bn\1', path)
    return f'{path}.{_NORM[last] if norm else "weight" if last == "kernel" else last}'


def _read(path: str) -> dict[str, np.ndarray]:
    """Reads a file as {name: float32 array}."""
    file = file_io.check_file(path, KEY, LARGEST)
    if file.suffix not in _ENDINGS:
        raise UserError(f"{KEY}='{path}' has an unknown format; use {', '.join(_ENDINGS)}")
    try:
        return {name: np.asarray(array, np.float32) for name, array in _arrays(file).items()}
    except ImportError as error:
        raise UserError(f"{KEY}='{path}' needs the package {error.name}: install it, or use .npz") from error
    except Exception as error:  # the libraries fail in many ways on a file that is damaged or something else
        raise UserError(f"{KEY}='{path}' cannot be read as its ending says ({error!r}); use another file") from error


def _arrays(file: Path) -> Mapping[str, Any]:
    """Reads {name: array} in the format that the file's ending says."""
    if file.suffix == '.npz':
        return file_io.read_npz(file)
    if file.suffix == '.safetensors':
        return safetensors.load(file.read_bytes())
    import torch

    with file.open('rb') as opened:
        state = torch.load(opened, map_location='cpu', weights_only=True)
    state = state.get('state_dict', state)  # in a checkpoint of training
    return {name: tensor.float().numpy() for name, tensor in state.items()}
