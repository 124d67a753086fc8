"""The task of a workload, as this project draws it: images, their split, cohorts and first weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import report
from benchmarks.peers.workloads import LR, Workload
from configs import fedavg
from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.core.types import SplitParams
from semisfl_jax.training import experiment as experiment_lib


def configuration(workload: Workload) -> ConfigDict:
    """configs/fedavg.py with the sizes of a workload, on synthetic images of MNIST's shape."""
    config = fedavg.get_config()
    config.data.update(fake=True, fake_size=workload.clients * workload.images)
    config.federation.update(num_clients=workload.clients, num_active=workload.active)
    config.model.name = workload.model
    config.local.epochs = 0
    config.update(k_u=workload.steps, batch_size=workload.batch_size, lr=LR, lr_min=LR)
    config.update(rounds=workload.rounds, eval_every=workload.rounds + 1)
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
    folder.mkdir(parents=True)
    np.savez(
        folder / 'task.npz',
        images=dataset.train_images,
        labels=dataset.train_labels,
        mean=np.array(dataset.mean, np.float32),
        std=np.array(dataset.std, np.float32),
        rows=rows,
        cohorts=np.array(cohorts, np.int64),
        **{f'weight_{number}': weight for number, weight in enumerate(weights)},
    )
    facts = {
        'workload': dataclasses.asdict(workload),
        'lr': LR,
        'cores': report.machine()['cores'],
        'weights': len(weights),
    }
    (folder / 'task.json').write_text(json.dumps(facts, indent=1) + '\n')


def read(folder: str) -> Workload:
    """The workload whose task is in `folder`."""
    return Workload(**json.loads((Path(folder) / 'task.json').read_text())['workload'])


def flat(student: SplitParams) -> list[np.ndarray]:
    """Kernel and bias of every layer, from the images to the logits, as in `task.Task.weights`."""
    layers = student.bottom['params'] | student.top['params']
    named = [layers[name] for name in sorted(layers)]  # layer_0, layer_1, …
    pairs = [layer.get('dense', layer) for layer in named]
    return [np.asarray(jax.device_get(pair[name])) for pair in pairs for name in ('kernel', 'bias')]
