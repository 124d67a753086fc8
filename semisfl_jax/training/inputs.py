"""Inputs of the rounds of an experiment: the images, the cohort that draws from them, and who of it takes part."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, costs, data
from semisfl_jax.config import failures
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.types import Array, Cohort, Federation
from semisfl_jax.training.experiment import Experiment


class RoundInputs(NamedTuple):
    """What a round takes besides its state; of R trials with leading axes [R], see `driver`."""

    federation: Federation
    cohort: Cohort
    clients: Any  # participation of the active clients, `costs.Clients`, None in a round without; [R] of trials


def inputs(experiment: Experiment, first: int) -> Iterator[RoundInputs]:
    """The inputs of round `first` (0-based) and of all later ones.

    If the client images are on the host, each federation holds the images that its round will draw.
    """
    mesh, method, federation, host = experiment.mesh, experiment.method, experiment.federation, None
    tables = data.tables(federation)
    if isinstance(federation, data.HostFederation):
        tables = core.replicate(mesh, tables)
        host = dataclasses.replace(federation, tables=tables) if method.clients else None

    def drawn() -> Iterator[tuple[Cohort, costs.Clients | None, Any]]:
        for cohort, clients in cohorts(experiment, first):
            yield cohort, clients, rows(experiment, cohort) if host else None

    # A round's rows are drawn before the round ahead of it starts: a device would only begin with them after it
    for (cohort, clients, read), _ in itertools.pairwise(drawn()):
        if host:
            tables = host.streamed(read, method.reads, place=partial(core.shard, mesh))
        sharded = jax.tree.map(lambda x: core.shard(mesh, x.shape, np.asarray(x).__getitem__), cohort)
        yield RoundInputs(tables, sharded, clients)


def cohorts(experiment: Experiment, first: int) -> Iterator[tuple[Cohort, costs.Clients | None]]:
    """The cohorts of round `first` (0-based) and all later ones, padded to a multiple of the devices, and their
    participation, None in rounds without clients."""
    config = experiment.config
    clients, active = config.federation.num_clients, config.federation.num_active
    tasks = max(1, len(config.data.tasks))
    padded = core.padded_size(experiment.mesh, active, tasks)
    if not experiment.method.clients:
        yield from itertools.repeat((data.make_cohort(np.arange(active), np.zeros(clients, np.int32)), None))
    participations = np.zeros(clients, np.int32)  # of each client, in the rounds so far
    for index in itertools.count(min(first, config.pre_rounds)):
        participants = participation(experiment, index)
        if index >= first:
            ids = data.draw_cohort(config.seed, index, clients, active, tasks)
            failed = participants.failed if participants else None
            yield data.make_cohort(ids, participations, padded, failed, tasks), participants
        if participants:  # all draw batches but those that failed before the round
            participations[participants.ids[participants.started | ~participants.failed]] += 1


def participation(experiment: Experiment, index: int) -> costs.Clients | None:
    """Participation of the active clients in round `index` (0-based); None for a server-only round."""
    if not experiment.method.clients or index < experiment.config.pre_rounds:
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
        return sampling.rows(reads, key, tables, cohort, hparams.batches)[0]
    parts = [sampling.of_task(key, tables, cohort, tasks, name) for name in tasks]
    rows_of_tasks = [sampling.rows(reads, *part, hparams.batches)[0] for part in parts]
    return jnp.stack(rows_of_tasks, axis=1).reshape(len(tasks) * rows_of_tasks[0].shape[0], *rows_of_tasks[0].shape[1:])


def images_per_round(
    experiment: Experiment,
    clients: costs.Clients | None,
    k_s: int,
    measured: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Images that the student sees in a round of K_s steps: labeled ones and those of the active `clients`.

    `measured` are the metrics of that round, the only source where clients choose their number of steps or sit out.
    Without them, all clients that have images and did not fail are counted.
    """
    count = k_s * experiment.config.server_batch_size
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
