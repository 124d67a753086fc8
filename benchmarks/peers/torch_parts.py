"""The model, its data and its weights in PyTorch, for all sides that train with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.task import Task


def network(task: Task, memory_format: torch.memory_format = torch.channels_last) -> nn.Sequential:
    """The model with the first weights of a task. Channels last make the CNN faster on a CPU; the MLP is the same."""
    model = nn.Sequential(*_layers(task.model))
    model.load_state_dict(as_state(task.weights, model.state_dict()))
    return model.to(memory_format=memory_format)


def _layers(name: str) -> list[nn.Module]:
    if name == 'mlp200':
        return [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)]
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return [*first, *second, nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10)]


def data(task: Task) -> tuple[Tensor, Tensor]:
    """Images [N, M, 1, 28, 28] and labels [N, M] of all clients."""
    return torch.from_numpy(task.images).permute(0, 1, 4, 2, 3).contiguous(), torch.from_numpy(task.labels)


def as_state(weights: Sequence[np.ndarray], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in the layout of `Task.weights` -> a state dict with the names of `like`."""
    pairs = zip(like, weights, strict=True)
    return {name: torch.from_numpy(_to_torch(weight, tuple(like[name].shape))) for name, weight in pairs}


def as_weights(state: Mapping[str, Tensor], task: Task) -> list[np.ndarray]:
    """A state dict -> weights in the layout of `Task.weights`."""
    arrays = [tensor.detach().cpu().numpy() for tensor in state.values()]
    return [_from_torch(array, like.shape) for array, like in zip(arrays, task.weights, strict=True)]


def _to_torch(weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if weight.ndim == 4:  # [h, w, in, out] -> [out, in, h, w]
        return np.ascontiguousarray(weight.transpose(3, 2, 0, 1))
    if weight.ndim == 2 and weight.shape[0] == 64 * 7 * 7:  # rows in the order h, w, c -> c, h, w
        weight = weight.reshape(7, 7, 64, -1).transpose(2, 0, 1, 3).reshape(weight.shape)
    return np.ascontiguousarray(weight.T).reshape(shape).copy()


def _from_torch(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    if array.ndim == 2 and array.shape[1] == 64 * 7 * 7:
        return array.T.reshape(64, 7, 7, -1).transpose(1, 2, 0, 3).reshape(shape)
    return array.T
