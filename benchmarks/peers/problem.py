"""The task of a workload, as this project draws it: images, their split, cohorts, models and first weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import report
from benchmarks.peers.workloads import DROPOUT, Workload
from configs import fedavg
from semisfl_jax import config as config_lib
from semisfl_jax import data, models
from semisfl_jax.core.types import SplitParams
from semisfl_jax.models.layers import Compute, ConvLayer, DenseLayer, unbiased_conv
from semisfl_jax.models.zoo import Architecture
from semisfl_jax.training import experiment as experiment_lib


def pfl_cnn(num_classes: int, compute: Compute, dropout: tuple[float, float] = (0.0, 0.0)) -> Architecture:
    """The `simple_cnn` of pfl-research's benchmarks: 1,626,442 parameters at 32x32x3."""
    conv, dense = (partial(layer, compute=compute) for layer in (ConvLayer, DenseLayer))
    layers = (
        partial(conv, 32, padding=0),
        partial(conv, 64, padding=0, pool='floor', dropout=dropout[0]),
        partial(dense, 128),
        partial(dense, num_classes, dropout=dropout[1], activation=False),
    )
    return Architecture(layers, paper_split=2)


def blazefl_cnn(num_classes: int, compute: Compute) -> Architecture:
    """The CNN of BlazeFL's benchmark, which is that of a tutorial of PyTorch: 62,006 parameters at 32x32x3."""
    conv, dense = (partial(layer, compute=compute) for layer in (ConvLayer, DenseLayer))
    layers = [partial(conv, width, kernel=5, padding=0, pool='floor') for width in (6, 16)]
    layers += [partial(dense, 120), partial(dense, 84), partial(dense, num_classes, activation=False)]
    return Architecture(tuple(layers), paper_split=2)


def blazefl_resnet18(num_classes: int, compute: Compute) -> Architecture:
    """The ResNet-18 of BlazeFL's benchmark: torchvision's, whose stem for large images leaves one pixel of 32x32."""
    made = models.ARCHITECTURES['resnet18'](num_classes, compute)
    stem = partial(unbiased_conv, 64, 7, 2, pool='overlap', compute=compute)
    return made._replace(layers=(stem, *made.layers[1:]))


OWN = {  # models that this package has not
    'pfl_cnn': pfl_cnn,
    'pfl_cnn' + DROPOUT: partial(pfl_cnn, dropout=(0.25, 0.5)),
    'blazefl_cnn': blazefl_cnn,
    'blazefl_resnet18': blazefl_resnet18,
}


def configuration(workload: Workload) -> ConfigDict:
    """configs/fedavg.py with the sizes of a workload, on synthetic images; registers the models of peers."""
    models.ARCHITECTURES.update(OWN)
    config = fedavg.get_config()
    config.data.update(name=workload.data, fake=True, fake_size=workload.clients * workload.images)
    config.federation.update(num_clients=workload.clients, num_active=workload.active, partition=workload.partition)
    config.model.name = workload.model
    config.local.epochs = 0
    config.update(k_u=workload.steps, batch_size=workload.batch_size, lr=workload.lr, lr_min=workload.lr)
    config.update(rounds=workload.rounds, eval_every=workload.evaluate or workload.rounds + 1)
    config_lib.check(config)
    return config


def write(workload: Workload, folder: Path) -> None:
    """Writes task.npz and task.json to `folder`, which is made.

    Raises:
      ValueError: clients with unequal numbers of images.
    """
    config = config_lib.resolve(configuration(workload))
    experiment = experiment_lib.build(config)
    rows = np.stack(experiment.partition.client_index)
    cohorts = [data.draw_cohort(config.seed, r, workload.clients, workload.active) for r in range(workload.rounds)]
    weights = flat(experiment.algorithm.init(experiment.key).student)
    dataset = experiment.dataset
    tested = slice(None if workload.evaluate else 0)
    folder.mkdir(parents=True)
    np.savez(
        folder / 'task.npz',
        images=dataset.train_images,
        labels=dataset.train_labels,
        test_images=dataset.test_images[tested],
        test_labels=dataset.test_labels[tested],
        mean=np.array(dataset.mean, np.float32),
        std=np.array(dataset.std, np.float32),
        rows=rows,
        cohorts=np.array(cohorts, np.int64),
        **{f'weight_{number}': weight for number, weight in enumerate(weights)},
    )
    facts = {
        'workload': dataclasses.asdict(workload),
        'cores': report.machine()['cores'],
        'weights': len(weights),
    }
    (folder / 'task.json').write_text(json.dumps(facts, indent=1) + '\n')


def read(folder: str) -> Workload:
    """The workload whose task is in `folder`."""
    return Workload(**json.loads((Path(folder) / 'task.json').read_text())['workload'])


def flat(student: SplitParams) -> list[np.ndarray]:
    """Kernel and bias of every layer, from the images to the logits, as in `task.Task.weights`."""
    return [*_leaves(student.bottom['params']), *_leaves(student.top['params'])]


def _leaves(tree: Any) -> Iterator[np.ndarray]:
    """The arrays by their names (layer_0, layer_1, …), but kernel and scale first, as in PyTorch."""
    if isinstance(tree, Mapping):
        for name in sorted(tree, key=lambda name: (name not in ('kernel', 'scale'), name)):
            yield from _leaves(tree[name])
    else:
        yield np.asarray(jax.device_get(tree))
