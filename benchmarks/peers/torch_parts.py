"""The model, its data and its weights in PyTorch, for all sides that train with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.task import Task
from benchmarks.peers.workloads import DROPOUT

FLATTENED = {3136: (7, 7, 64), 12544: (14, 14, 64), 400: (5, 5, 16)}  # inputs of dense layers after a map: h, w, c


def network(task: Task, memory_format: torch.memory_format = torch.channels_last) -> nn.Module:
    """The model with the first weights of a task. Channels last make the CNN faster on a CPU; the MLP is the same."""
    model = _resnet18() if task.model == 'blazefl_resnet18' else nn.Sequential(*_layers(task.model))
    # not strict: statistics of BatchNorm are as they are
    model.load_state_dict(as_state(task.weights, dict(model.named_parameters())), strict=False)
    return model.to(memory_format=memory_format)


def _layers(name: str) -> list[nn.Module]:
    if name == 'mlp200':
        return [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)]
    if name.startswith('pfl_cnn'):
        first, second = (nn.Dropout(rate) if name.endswith(DROPOUT) else nn.Identity() for rate in (0.25, 0.5))
        body = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), first, nn.Flatten()]
        return [*body, nn.Linear(64 * 14 * 14, 128), nn.ReLU(), second, nn.Linear(128, 10)]
    if name == 'blazefl_cnn':
        body = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        dense = [nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
        return [*body, nn.Flatten(), *dense]
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return [*first, *second, nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10)]


def _resnet18() -> nn.Module:
    import_torchvision()
    from torchvision.models import resnet18

    return resnet18(num_classes=10)


def import_torchvision() -> None:
    """Imports torchvision, also one whose operators, not used here, were built for another PyTorch, say with CUDA."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # it insists that these be declared
        for name in ('nms', 'qnms'):
            torch.library.define(f'torchvision::{name}', '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')


def data(task: Task) -> tuple[Tensor, Tensor]:
    """Images [N, M, C, H, W] and labels [N, M] of all clients."""
    return torch.from_numpy(task.images).permute(0, 1, 4, 2, 3).contiguous(), torch.from_numpy(task.labels)


def test_data(task: Task) -> tuple[Tensor, Tensor]:
    """Images [T, C, H, W] and labels [T] for evaluations."""
    return torch.from_numpy(task.test_images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(task.test_labels)


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
    if weight.ndim == 2 and len(weight) in FLATTENED:  # rows in the order h, w, c -> c, h, w
        weight = weight.reshape(*FLATTENED[len(weight)], -1).transpose(2, 0, 1, 3).reshape(weight.shape)
    return np.ascontiguousarray(weight.T).reshape(shape).copy()


def _from_torch(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    if array.ndim == 2 and shape[0] in FLATTENED:
        height, width, channels = FLATTENED[shape[0]]
        return array.T.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(shape)
    return array.T
