"""SemiSFL's round in PyTorch, the reference for measuring the JAX one. Nothing from the package is used.

Clients share one process. Their forward passes run one after another (`loop`), in either memory format, or at once
over stacked weights (`vmap`). The frozen teacher sees all clients' images as one batch. One fused optimizer steps the
server and all clients, whose gradients autograd delivers in one backward pass.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmarks import pillow_views

MODES = ('loop', 'loop, channels last', 'vmap')


@dataclasses.dataclass(frozen=True)
class Options:
    """Names and values as in a configuration."""

    model: str = 'cnn'  # 'small_cnn' | 'cnn' | 'alexnet'
    clients: int = 10
    k_s: int = 100
    k_u: int = 50
    batch_size: int = 64
    server_batch_size: int = 64
    augment: bool = True
    supervised_views: str = 'strong'
    lr: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    dropout: float = 0.5
    threshold: float = 0.95
    temperature: float = 0.2
    queue_size: int = 1024
    queue_stride: int = 10
    ema_decay: float = 0.99
    bfloat16: bool = False  # autocast; parameters stay float32


def networks(name: str, dropout: float = 0.5, classes: int = 10, width: int = 128) -> nn.ModuleList:
    """Bottom, top and projection head for images [B, 3, 32, 32], or [B, 1, 8, 8] for the small CNN."""

    def conv(inputs: int, outputs: int, kernel: int, padding: int, pool: bool = True) -> list[nn.Module]:
        layers = [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU(inplace=True)]
        return [*layers, nn.MaxPool2d(2)] if pool else layers

    if name == 'small_cnn':
        features = 128
        bottom = [*conv(1, 16, 3, 1), *conv(16, 32, 3, 1)]
        top = [nn.Linear(features, 64), nn.ReLU(inplace=True), nn.Linear(64, classes)]
    elif name == 'cnn':
        features = 1600
        bottom = [*conv(3, 32, 5, 0), *conv(32, 64, 5, 0)]
        top = [nn.Linear(features, 512), nn.ReLU(inplace=True), nn.Linear(512, classes)]
    else:
        features = 4096
        bottom = [*conv(3, 64, 3, 1), *conv(64, 192, 3, 1), *conv(192, 384, 3, 1, pool=False)]
        bottom += [*conv(384, 256, 3, 1, pool=False), *conv(256, 256, 3, 1)]
        top = [nn.Dropout(dropout), nn.Linear(features, 4096), nn.ReLU(inplace=True)]
        top += [nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, classes)]
    head = [nn.Linear(features, features), nn.ReLU(inplace=True), nn.Linear(features, width)]
    return nn.ModuleList([nn.Sequential(*bottom, nn.Flatten()), nn.Sequential(*top), nn.Sequential(*head)])


class References(NamedTuple):
    """What the anchors of the contrastive loss are compared with."""

    keys: Tensor  # [T, P] unit rows
    labels: Tensor  # [T]
    confident: Tensor  # [T] bool


class Ring:
    """One level of the queue. Slots fill from the start, so that those in use are a slice."""

    def __init__(self, size: int, width: int, device: torch.device):
        self.slots = References(
            torch.zeros(size, width, device=device),
            torch.zeros(size, dtype=torch.long, device=device),
            torch.zeros(size, dtype=torch.bool, device=device),
        )
        self.size, self.head, self.filled = size, 0, 0

    def push(self, batch: References) -> None:
        rows = len(batch.labels)
        skipped = max(rows - self.size, 0)
        places = (torch.arange(skipped, rows, device=batch.labels.device) + self.head) % self.size
        for slots, new in zip(self.slots, batch, strict=True):
            slots[places] = new[skipped:]
        self.head, self.filled = (self.head + rows) % self.size, min(self.filled + rows, self.size)

    def clear(self) -> None:
        self.head = self.filled = 0

    def used(self) -> References:
        return References(*(slots[: self.filled] for slots in self.slots))


def contrastive(z: Tensor, labels: Tensor, references: list[References], temperature: float) -> Tensor:
    """Mean of the supervised-contrastive loss of unit rows z [R, P]; 0 for a row without a positive."""
    keys, others, confident = (torch.cat(parts) for parts in zip(*references, strict=True))
    similarity = z @ keys.T / temperature
    positive = confident & (labels[:, None] == others)
    count = positive.sum(1)
    rows = count * similarity.logsumexp(1) - (similarity * positive).sum(1)
    return (rows / count.clamp(min=1)).mean()


class SemiSFL:
    """Server state, and the two phases. Views are passed normalized, [.., 3, H, W] in `self.format`."""

    def __init__(self, options: Options, device: torch.device, mode: str = MODES[0]):
        self.options, self.mode = options, mode
        self.format = torch.channels_last if 'channels last' in mode else torch.contiguous_format
        torch.manual_seed(0)
        self.student = networks(options.model, options.dropout).to(device, memory_format=self.format)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False).eval()
        self.step = 0
        # entered anew in each iteration, because its cache of cast weights is cleared on exit
        self.autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=options.bfloat16)
        self.supervised_ring, self.unlabeled_ring = (Ring(options.queue_size, 128, device) for _ in range(2))

    def _sgd(self, parameters: Iterable[Tensor]) -> torch.optim.SGD:
        o = self.options
        return torch.optim.SGD(
            parameters, o.lr, momentum=o.momentum, nesterov=True, weight_decay=o.weight_decay, fused=True
        )

    def supervised(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """K_s steps on (view 1, view 2, labels [B_s]); returns the mean loss."""
        (bottom, top, head), (teacher_bottom, _, teacher_head) = self.student, self.teacher
        optimizer, total, steps = self._sgd(self.student.parameters()), 0.0, 0
        for view, other_view, labels in batches:
            with torch.no_grad(), self.autocast():
                keys = F.normalize(teacher_head(teacher_bottom(other_view)).float())
            batch = References(keys, labels, torch.ones_like(labels, dtype=torch.bool))
            references = [batch, self.supervised_ring.used()]
            with self.autocast():
                features = bottom(view)
                loss = F.cross_entropy(top(features), labels)
                z = F.normalize(head(features).float())
                loss = loss + contrastive(z, labels, references, self.options.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.step += 1
            keep = min(1 - 1 / (self.step + 1), self.options.ema_decay)
            with torch.no_grad():
                torch._foreach_lerp_(list(self.teacher.parameters()), list(self.student.parameters()), 1 - keep)
            self.supervised_ring.push(batch)
            total, steps = total + loss.detach(), steps + 1
        return total / steps

    def cross_entity(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """K_u iterations on (weak, strong) [A * B, 3, H, W], clients one after another; returns the mean loss."""
        o, (bottom, top, head), (teacher_bottom, teacher_top, teacher_head) = self.options, self.student, self.teacher
        clients = _Looped(bottom, o.clients) if self.mode != 'vmap' else _Stacked(bottom, o.clients)
        optimizer = self._sgd([*clients.parameters, *top.parameters(), *head.parameters()])
        total, steps = 0.0, 0
        for weak, strong in batches:
            with torch.no_grad(), self.autocast():
                teacher_features = teacher_bottom(weak)
                confidence, labels = teacher_top(teacher_features).softmax(1).max(1)
                keys = F.normalize(teacher_head(teacher_features).float())
                batch = References(keys, labels, confidence >= o.threshold)
            references = [batch, self.unlabeled_ring.used(), self.supervised_ring.used()]
            with self.autocast():
                features = clients.features(strong)
                features.register_hook(lambda gradient: gradient * o.clients)  # a client's loss: mean of its own rows
                rows = F.cross_entropy(top(features), labels, reduction='none')
                loss = (rows * batch.confident).mean()
                loss = loss + contrastive(F.normalize(head(features).float()), labels, references, o.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.unlabeled_ring.push(batch)
            steps += 1
            if steps % o.queue_stride == 0:
                self.supervised_ring.push(batch)
            total = total + loss.detach()
        with torch.no_grad():
            for parameter, mean in zip(bottom.parameters(), clients.means(), strict=True):
                parameter.copy_(mean)
        self.supervised_ring.clear()
        self.unlabeled_ring.clear()
        return total / steps


class _Looped:
    """Client bottoms as separate modules."""

    def __init__(self, bottom: nn.Module, clients: int):
        self.bottoms = [copy.deepcopy(bottom) for _ in range(clients)]
        self.parameters = [parameter for bottom in self.bottoms for parameter in bottom.parameters()]

    def features(self, images: Tensor) -> Tensor:
        parts = images.chunk(len(self.bottoms))
        return torch.cat([bottom(part) for bottom, part in zip(self.bottoms, parts, strict=True)])

    def means(self) -> list[Tensor]:
        return [torch.stack(copies).mean(0) for copies in zip(*(b.parameters() for b in self.bottoms), strict=True)]


class _Stacked:
    """Client bottoms as one module with weights [A, ...]."""

    def __init__(self, bottom: nn.Module, clients: int):
        self.clients = clients
        self.stacked = {
            name: parameter.detach().expand(clients, *parameter.shape).clone().requires_grad_()
            for name, parameter in bottom.named_parameters()
        }
        self.parameters = list(self.stacked.values())
        self.run = vmap(lambda parameters, images: functional_call(bottom, parameters, (images,)))

    def features(self, images: Tensor) -> Tensor:
        return self.run(self.stacked, images.unflatten(0, (self.clients, -1))).flatten(0, 1)

    def means(self) -> list[Tensor]:
        return [parameter.mean(0) for parameter in self.parameters]


class Rounds:
    """SemiSFL on data, with loader processes if there is augmentation, as a training script would use it."""

    def __init__(self, options: Options, images: np.ndarray, labels: np.ndarray, num_labeled: int, mode: str):
        """`images` are [M, H, W, 3] uint8, the first `num_labeled` at the server; clients share the rest equally."""
        self.options, self.random = options, np.random.default_rng(0)
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        self.method = SemiSFL(options, self.device, mode)
        self.labels = torch.from_numpy(labels).long().to(self.device)
        self.server_rows, unlabeled = np.split(np.arange(len(images)), [num_labeled])
        self.client_rows = np.array_split(unlabeled, options.clients)
        if options.augment:
            of_process = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
            processes = min(max(2, of_process), 16)
            self.stream = pillow_views.loader(images, processes, pin=self.device.type == 'cuda')
        else:
            self.images = torch.from_numpy(images).to(self.device)

    def run(self, supervised: bool = True) -> float:
        """One round, or only its cross-entity phase. Waits for completion and returns the last phase's mean loss."""
        o = self.options
        server = self._draw(self.server_rows, o.k_s if supervised else 0, o.server_batch_size)
        clients = np.stack([self._draw(rows, o.k_u, o.batch_size) for rows in self.client_rows], 1)  # [K_u, A, B]
        if o.augment:  # one list, so that the processes prepare client batches while the server still trains
            plan = [(rows, (o.supervised_views,) * 2) for rows in server]
            plan += [(rows, ('weak', 'strong')) for rows in clients.reshape(-1, o.batch_size)]
            views = self.stream(plan)
            server_views = (tuple(map(self._prepare, next(views))) for _ in server)
            client_views = self._gathered(views)
        else:
            server_views, client_views = self._unchanged(server), self._unchanged(clients.reshape(o.k_u, -1))
        if supervised:
            labels = self.labels[torch.from_numpy(server).to(self.device)]
            self.method.supervised(
                (*pair, batch_labels) for pair, batch_labels in zip(server_views, labels, strict=True)
            )
        return self.method.cross_entity(client_views).item()

    def _draw(self, rows: np.ndarray, count: int, batch: int) -> np.ndarray:
        """Batches [count, batch] of rows, epoch after epoch."""
        epochs = -(-count * batch // len(rows))
        order = [self.random.permutation(rows) for _ in range(epochs)]
        return np.concatenate([*order, rows[:0]])[: count * batch].reshape(count, batch)

    def _unchanged(self, batches: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.from_numpy(batches).to(self.device):
            images = self._prepare(self.images[rows])
            yield images, images

    def _gathered(self, views: Iterator) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of one client each -> batches of all clients."""
        for _ in range(self.options.k_u):
            parts = [next(views) for _ in range(self.options.clients)]
            yield tuple(self._prepare(torch.cat(side)) for side in zip(*parts, strict=True))

    def _prepare(self, images: Tensor) -> Tensor:
        """[B, H, W, 3] uint8 -> normalized [B, 3, H, W] on the device."""
        images = images.to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        images = images.to(torch.float32, memory_format=self.method.format)
        return images.div_(127.5).sub_(1)
