"""Inputs of the rounds of an experiment: the images, the cohort that draws from them, and which clients take part."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import core, costs, data
from semisfl_jax.base.errors import count
from semisfl_jax.config import failures
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.types import Array, Cohort, Federation
from semisfl_jax.training.experiment import Experiment


def cohorts(experiment: Experiment, first: int) -> Iterator[tuple[Cohort, costs.Clients | None]]:
    """Yields cohort and participation (None without clients) of round `first` (0-based) and of all later ones.

    Cohorts are padded to a multiple of the devices.
    """
    config, federation = experiment.config, experiment.config.federation
    participations = np.zeros(federation.num_clients, np.int32)  # of each client, in the rounds so far
    if not experiment.method.clients:
        yield from itertools.repeat((data.make_cohort(np.arange(federation.num_active), participations), None))
    tasks = config_lib.num_tasks(config)
    padded = core.clients.padded_size(experiment.mesh, federation.num_active, tasks)
    for index in itertools.count(min(first, config.pre_rounds)):
        participants = participation(experiment, index)
        if index >= first:
            failed = participants.failed if participants else None
            ids = participants.ids if participants else _draw(config, index)
            yield data.make_cohort(ids, participations, padded, failed, tasks), participants
        if participants:  # all clients draw batches, except those that failed before the round
            participations[participants.ids[participants.started | ~participants.failed]] += 1


def _draw(config: ConfigDict, index: int) -> np.ndarray:
    """Draws the active clients [A] of round `index` (0-based)."""
    federation = config.federation
    sizes = federation.num_clients, federation.num_active, config_lib.num_tasks(config)
    return data.draw_cohort(config.seed, index, *sizes)


def participation(experiment: Experiment, index: int) -> costs.Clients | None:
    """Returns the participation of the active clients in round `index` (0-based), None for a server-only round."""
    if not experiment.method.clients or index < experiment.config.pre_rounds:
        return None
    config, hparams, ids = experiment.config, experiment.hparams, _draw(experiment.config, index)
    unlabeled, labeled = experiment.held[:, ids]
    images = np.asarray(sampling.images_held(unlabeled, labeled, hparams.batch_size, hparams.labeled_rows))
    has_labels = (labeled > 0) & (hparams.labeled_rows > 0)
    without = np.where(hparams.labeled_rows < hparams.batch_size, unlabeled, 0)
    clients = costs.no_failures(ids, images, _steps(experiment, ids), has_labels, unlabeled=without)
    return failures.apply_failures(config.failures, experiment.costs, index, clients)


def warnings(trials: Sequence[Experiment]) -> Iterator[str]:
    """Warns before a run about what is certain: clients that never train, or no round with any client."""
    first, config, hparams = trials[0], trials[0].config, trials[0].hparams
    if not first.method.clients:
        return
    unlabeled, labeled = np.concatenate([trial.held for trial in trials], axis=1)
    images = np.asarray(sampling.images_held(unlabeled, labeled, hparams.batch_size, hparams.labeled_rows))
    if never := int(np.sum(images == 0)):
        alone = hparams.labeled_rows == hparams.batch_size
        kind, more = ('labeled image', 'data.client_labels') if alone else ('image', 'data.num_unlabeled')
        advice = f'more images ({more}), another federation.partition, or fewer clients (federation.num_clients)'
        yield f'{never:,} of {count(len(images), "client")} never train, as they hold no {kind}: use {advice}'
    causes = [f'{key}={value}' for key, value in config.failures.items() if value and key != 'trace_hash']
    rounds = range(config.pre_rounds, config.rounds if causes else 0)  # the first round with a client ends the search
    if rounds and all(failures.lost_all(participation(trial, index)) for trial in trials for index in rounds):
        yield f'no client takes part in any round, by config.failures.{" and ".join(causes)}: clients train nothing'


def warnings_after(pre_rounds: int, records: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Warns after a run about rounds that lost all clients, by the lines of metrics.jsonl of each trial."""
    clients = [line['clients'] for lines in records for line in lines[pre_rounds:] if 'clients' in line]
    if any(clients) and (lost := clients.count(0)):
        yield f'no client took part in {lost:,} of {count(len(clients), "round")} (config.failures)'


def rows(experiment: Experiment, cohort: Cohort) -> Array:
    """Returns the rows of the training set that a cohort reads in one round, for client images on the host.

    They are computed separately from the round, and identically in every process.

    Args:
      experiment: the experiment.
      cohort: cohort of the round.

    Returns:
      [A, K_u, B], or [A, S + S_l] if clients read their whole sets.
    """
    key, tables = rng.root(experiment.config.seed), data.tables(experiment.federation)
    tasks = tuple(experiment.config.data.tasks)
    return _rows(key, tables, cohort, experiment.method.reads, experiment.hparams.batches, tasks)


@partial(jax.jit, static_argnames=('reads', 'plan', 'tasks'))
def _rows(
    key: Array, tables: Federation, cohort: Cohort, reads: str, plan: sampling.BatchPlan, tasks: tuple[str, ...]
) -> Array:
    parts = [sampling.select_task(key, tables, cohort, tasks, name) for name in tasks] or [(key, tables, cohort)]
    rows_by_task = [sampling.rows(reads, *part, plan)[0] for part in parts]
    return jnp.stack(rows_by_task, axis=1).reshape(len(cohort.ids), *rows_by_task[0].shape[1:])  # in the cohort's order


def images_per_round(
    experiment: Experiment,
    clients: costs.Clients | None,
    k_s: int,
    measured: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Counts the images that the student sees in a round.

    Args:
      experiment: the experiment.
      clients: participation; None in a round without clients.
      k_s: supervised steps of the round, each on a labeled batch.
      measured: metrics of that round, the only source where clients choose their number of steps or sit out. Without
        them, all clients that have images and did not fail are counted.

    Returns:
      Labeled images at the server and images of the active clients.
    """
    count = k_s * experiment.config.server_batch_size
    if clients is None or failures.lost_all(clients):
        return count
    steps = int(np.sum(clients.completed[clients.survived]))
    if 'client_steps' in measured:
        trained = (1 - measured.get('clients_sitting_out', 0.0)) * np.sum(clients.survived)
        steps = round(float(measured['client_steps'] * trained))
        if 'client_images' in measured:  # passes end with a short batch, also at the server
            labels, batch = len(experiment.partition.server_index), experiment.config.server_batch_size
            return round(k_s * labels / -(-labels // batch)) + round(float(measured['client_images'] * trained))
    return count + steps * experiment.config.batch_size


def _steps(experiment: Experiment, ids: np.ndarray) -> np.ndarray:
    """Counts the iterations [A] of the clients `ids` in a round."""
    if not experiment.config.local.epochs:
        return np.full(ids.shape, experiment.config.k_u)
    unlabeled, labeled = experiment.held
    federation = data.tables(experiment.federation).replace(size=unlabeled, labeled_size=labeled)
    cohort = data.make_cohort(ids, np.zeros(experiment.config.federation.num_clients, np.int32))
    return np.asarray(sampling.client_steps(federation, cohort, experiment.hparams.batches))
