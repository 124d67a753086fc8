"""Initializes models by name and shape, from a local file of weights or from those of a run."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import numpy as safetensors

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, warn
from semisfl_jax.core.types import Array, SplitModel, SplitParams, Variables
from semisfl_jax.models.resnet import SMALL

KEY = 'model.weights'  # the configuration key that messages name
LARGEST = 4 * 2**30  # bytes of a file
_COUNTS = re.compile(r'.*\.num_batches_tracked$')  # of batches, in a state dict
_CLASSIFIER = re.compile(r'(params/)?fc[./]')
_NORM = {'scale': 'weight', 'bias': 'bias', 'mean': 'running_mean', 'var': 'running_var'}
_ENDINGS = ('.npz', '.safetensors', '.pth', '.pt')
_OWN = ('params/', 'batch_stats/')  # prefixes of this package's own names
_OF_TORCH = {4: (3, 2, 0, 1), 2: (1, 0)}  # axes of kernels: HWIO to OIHW, and inputs, outputs to outputs, inputs


def start_with(model: SplitModel, path: str, arrays: Mapping[str, np.ndarray] | None = None) -> SplitModel:
    """Returns a model that starts with the values of a file: encoder and classifier, or a dense one's encoder alone.

    Args:
      model: the model.
      path: as in `load_encoder`.
      arrays: likewise.

    Raises:
      UserError: as from `load_encoder`.
    """
    pieces = ('bottom', 'top') if model.projection_size else ('bottom',)  # a decoder is in no file
    shapes = jax.eval_shape(model.init, jax.random.key(0))._asdict()
    flat = {parts: leaf for piece in pieces for parts, leaf in flatten_dict(shapes[piece]).items()}
    loaded = flatten_dict(load_encoder(path, unflatten_dict(flat), arrays))

    def init(key: Array) -> SplitParams:
        def put(parts: tuple, leaf: Array) -> Array:
            return loaded.get(tuple(part.key for part in parts), leaf)

        first = model.init(key)
        return first._replace(**{x: jax.tree_util.tree_map_with_path(put, getattr(first, x)) for x in pieces})

    return model._replace(init=init)


class _Place(NamedTuple):
    """Where an array of a file belongs."""

    parts: tuple[str, ...]  # path of the variable
    axes: tuple[int, ...]  # of the variable, in the file's order
    shape: tuple[int, ...]  # in the file


def load_encoder(path: str, variables: Variables, arrays: Mapping[str, np.ndarray] | None = None) -> Variables:
    """Returns an encoder's variables with all values replaced by those of a file.

    Names in the file are those of a PyTorch state dict of torchvision's ResNet ('layer1.0.conv1.weight', …), or this
    package's own, parts joined by '/' ('params/conv1/kernel', …):

        np.savez('encoder.npz', **flax.traverse_util.flatten_dict(variables.bottom, sep='/'))

    A classifier, 'fc', is left out unless file and variables have one of the same size.

    Args:
      path: a file .npz or .safetensors; or .pth or .pt, which needs PyTorch.
      variables: {'params': …, 'batch_stats': …}: `SplitParams.bottom` of a model for dense tasks, or bottom and top
        in one of a model for classification.
      arrays: {name: array} to use in place of the file's; messages then still name `path`.

    Raises:
      UserError: the file cannot be read, or its names and shapes are not exactly the encoder's.
    """
    return fill(path, variables, read(path) if arrays is None else arrays, torch_name)


def fill(
    path: str, variables: Variables, arrays: Mapping[str, np.ndarray], torch_name: Callable[[tuple[str, ...]], str]
) -> Variables:
    """Returns variables with the values of a file, as `load_encoder` does, for any network that torchvision has.

    Args:
      path: the file's, for messages.
      variables: to fill.
      arrays: {name: array} of the file.
      torch_name: path of a variable -> its name in a state dict.

    Raises:
      UserError: names and shapes are not exactly those of the variables.
    """
    ours = any(name.startswith(_OWN) for name in arrays)
    used = {name: array for name, array in arrays.items() if not _COUNTS.match(name)}
    places = {}
    for parts, leaf in flatten_dict(variables).items():
        axes = (() if ours else _OF_TORCH.get(leaf.ndim)) or tuple(range(leaf.ndim))
        shape = tuple(leaf.shape[axis] for axis in axes)
        places['/'.join(parts) if ours else torch_name(parts)] = _Place(parts, axes, shape)
    theirs = {name: array.shape for name, array in used.items() if _CLASSIFIER.match(name)}
    own = {name: place.shape for name, place in places.items() if _CLASSIFIER.match(name)}
    if theirs != own:
        used = {name: array for name, array in used.items() if name not in theirs}
        places = {name: place for name, place in places.items() if name not in own}
    lacking, extra = places.keys() - used, used.keys() - places
    for left, what in ((lacking, 'lacks'), (extra, 'has, beyond those of this encoder,')):
        if left:  # the file belongs to another network, such as a deeper one
            raise UserError(
                f"{KEY}: '{path}' {what} {len(left):,} arrays, such as '{min(left)}'; use the weights of this encoder "
                "(a state dict of torchvision's ResNet, or arrays by this package's names), or another model.name"
            )
    loaded = {}
    for name, (parts, axes, shape) in places.items():
        array = used[name]
        if array.shape != shape or not np.all(np.isfinite(array)):
            fault = f'has the shape {array.shape}, not {shape}' if array.shape != shape else 'is not finite'
            use = 'use the weights of this encoder, or another model.name'
            if array.shape.count(7) == 2 > shape.count(7):  # of the stem
                use = f'it is for images of {SMALL} pixels or more: set data.image_size'
            raise UserError(f"{KEY}: '{name}' in '{path}' {fault}; {use}")
        loaded[parts] = jnp.asarray(array.transpose(np.argsort(axes)))
    if theirs and own and theirs != own:
        classes = [min(shapes.values(), key=len)[0] for shapes in (theirs, own)]  # the length of the bias
        warn(
            f"{KEY}: the classifier of {classes[0]:,} classes in '{path}' is left out, as the data have {classes[1]:,}"
        )
    return unflatten_dict(loaded)


def torch_name(parts: tuple[str, ...]) -> str:
    """Returns the name of a variable in torchvision's ResNet.

    ('batch_stats', 'layer1_0', 'conv1', 'norm', 'mean') is 'layer1.0.bn1.running_mean'.
    """
    *modules, last = parts[1:]
    norm = modules[-1:] == ['norm']
    path = '.'.join(modules[:-1] if modules[-1:] in (['norm'], ['dense']) else modules).replace('_', '.')
    if path.endswith('downsample'):
        path += '.1' if norm else '.0'
    elif norm:
        path = re.sub(r'conv(\d+)$', r'bn\1', path)
    return f'{path}.{_NORM[last] if norm else "weight" if last == "kernel" else last}'


def read(path: str) -> dict[str, np.ndarray]:
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
