"""Inputs of the rounds of an experiment: the cohort, its failures, and the images that it draws."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, costs, data
from semisfl_jax.config import failures
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.types import Array, Cohort, Federation
from semisfl_jax.training.experiment import Experiment


def inputs(experiment: Experiment, first: int) -> Iterator[tuple[Federation, Cohort]]:
    """The inputs of the jitted round besides its state, for round `first` (0-based) and all later ones.

    If the client images are on the host, each federation holds the images that its round will draw.
    """
    federation, mesh = experiment.federation, experiment.mesh
    if isinstance(federation, data.HostFederation):
        placed = dataclasses.replace(federation, tables=core.replicate(mesh, federation.tables))
    for cohort in cohorts(experiment, first):
        sharded = jax.tree.map(lambda x: core.shard(mesh, x.shape, np.asarray(x).__getitem__), cohort)
        if not isinstance(federation, data.HostFederation):
            yield federation, sharded
        elif experiment.method.clients:
            reads, place = experiment.method.reads, partial(core.shard, mesh)
            yield placed.streamed(rows(experiment, cohort), reads, place=place), sharded
        else:
            yield placed.tables, sharded


def cohorts(experiment: Experiment, first: int) -> Iterator[Cohort]:
    """The cohorts of round `first` (0-based) and all later ones, padded to a multiple of the devices."""
    config = experiment.config
    clients, active = config.federation.num_clients, config.federation.num_active
    tasks = max(1, len(config.data.tasks))
    padded = core.padded_size(experiment.mesh, active, tasks)
    if not experiment.method.clients:
        yield from itertools.repeat(data.make_cohort(np.arange(active), np.zeros(clients, np.int32)))

    visits = data.participations_before(
        config.seed, first, clients, active, first=config.pre_rounds, started=partial(_started, experiment), tasks=tasks
    )
    for index in itertools.count(first):
        ids = data.draw_cohort(config.seed, index, clients, active, tasks)
        participants = participation(experiment, index)
        yield data.make_cohort(ids, visits, padded, participants.failed if participants else None, tasks)
        if participants:
            visits = data.add_participation(visits, _started(experiment, index))


def _started(experiment: Experiment, index: int) -> np.ndarray:
    """Active clients of round `index` (0-based) that drew batches: all except those that failed before the round."""
    clients = participation(experiment, index)
    assert clients is not None  # only asked for rounds with clients
    return clients.ids[clients.started | ~clients.failed]


def participation(experiment: Experiment, index: int) -> costs.Clients | None:
    """Participation of the active clients in round `index` (0-based); None for a server-only round."""
    if not has_cross_entity_phase(experiment, index):
        return None
    config, hparams = experiment.config, experiment.hparams
    fed, tasks = config.federation, max(1, len(config.data.tasks))
    ids = data.draw_cohort(config.seed, index, fed.num_clients, fed.num_active, tasks)
    unlabeled, labeled = experiment.held[:, ids]
    images = np.asarray(sampling.images_held(unlabeled, labeled, hparams.batch_size, hparams.labeled_rows))
    has_labels = (labeled > 0) & (hparams.labeled_rows > 0)
    without = np.where(hparams.labeled_rows < hparams.batch_size, unlabeled, 0)
    clients = costs.no_failures(ids, images, _steps(experiment, ids), has_labels, unlabeled=without)
    return failures.happen(config.failures, experiment.costs, index, clients)


def rows(experiment: Experiment, cohort: Cohort) -> Array:
    """Rows of the training set that a cohort reads in one round: [A, K_u, B], or [A, S + S_l] of whole sets.

    For client images on the host. Computed separately from the round, and identically in every process.
    """
    key, tables = rng.root(experiment.config.seed), data.tables(experiment.federation)
    tasks = tuple(experiment.config.data.tasks)
    return _rows(key, tables, cohort, reads=experiment.method.reads, hparams=experiment.hparams, tasks=tasks)


@partial(jax.jit, static_argnames=('reads', 'hparams', 'tasks'))
def _rows(
    key: Array, tables: Federation, cohort: Cohort, reads: str, hparams: hparams_lib.HParams, tasks: tuple[str, ...]
) -> Array:
    if not tasks:
        return sampling.rows(reads, key, tables, cohort, hparams.batches, hparams.sampling)[0]
    parts = [sampling.of_task(key, tables, cohort, tasks, name) for name in tasks]
    rows_of_tasks = [sampling.rows(reads, *part, hparams.batches, hparams.sampling)[0] for part in parts]
    return jnp.stack(rows_of_tasks, axis=1).reshape(len(tasks) * rows_of_tasks[0].shape[0], *rows_of_tasks[0].shape[1:])


def images_per_round(
    experiment: Experiment, index: int, k_s: int, measured: Mapping[str, Any] = MappingProxyType({})
) -> int:
    """Images that the student sees in round `index` (0-based): labeled ones and those of the active clients.

    `measured` are the metrics of that round, the only source where clients choose their number of steps or sit out.
    Without them, all clients that have images and did not fail are counted.
    """
    clients, count = participation(experiment, index), k_s * experiment.config.server_batch_size
    if clients is None or failures.lost_all(clients):
        return count
    steps = int(np.sum(clients.made[clients.survived]))
    if 'client_steps' in measured:
        trained = (1 - measured.get('clients_sitting_out', 0.0)) * np.sum(clients.survived)
        steps = round(float(measured['client_steps'] * trained))
        if 'client_images' in measured:  # passes end with a short batch, at the server as well
            labels, batch = len(experiment.partition.server_index), experiment.config.server_batch_size
            return round(k_s * labels / -(-labels // batch)) + round(float(measured['client_images'] * trained))
    return count + steps * experiment.config.batch_size


def _steps(experiment: Experiment, ids: np.ndarray) -> np.ndarray:
    """Iterations [A] of the clients `ids` in a round."""
    if not experiment.config.local.epochs:
        return np.full(ids.shape, experiment.config.k_u)
    federation = data.tables(experiment.federation)
    federation = federation.replace(size=experiment.held[0], labeled_size=experiment.held[1])
    cohort = data.make_cohort(ids, np.zeros(experiment.config.federation.num_clients, np.int32))
    return np.asarray(sampling.client_steps(federation, cohort, experiment.hparams.batches))


def has_cross_entity_phase(experiment: Experiment, index: int) -> bool:
    """Whether clients take part in round `index` (0-based)."""
    return experiment.method.clients and index >= experiment.config.pre_rounds
