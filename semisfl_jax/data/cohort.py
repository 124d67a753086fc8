"""Which clients take part in a round, and in how many earlier ones each did. Replayed rather than saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.types import Cohort


def draw_cohort(seed: int, round_index: int, num_clients: int, num_active: int, tasks: int = 1) -> np.ndarray:
    """The active clients of a round, uniform without replacement; of several tasks, equally many of each.

    Args:
      seed: `config.seed`.
      round_index: 0-based.
      num_clients: N.
      num_active: A <= N.
      tasks: T, a divisor of both. Client n works on task n mod T.

    Returns:
      [A] int32: the lowest of each task, then the second of each, and so on; ascending if T is 1.
    """
    generator = rng.host(seed, 'cohort', round_index)
    clients, active = num_clients // tasks, num_active // tasks
    drawn = [np.sort(generator.choice(clients, active, replace=False, shuffle=False)) for _ in range(tasks)]
    return (np.stack(drawn, axis=1) * tasks + np.arange(tasks)).ravel().astype(np.int32)


def participations_before(
    seed: int,
    round_index: int,
    num_clients: int,
    num_active: int,
    first: int = 0,
    started: Callable[[int], np.ndarray] | None = None,
    tasks: int = 1,
) -> np.ndarray:
    """The number of rounds in first .. round_index - 1 in which each client took part, from replaying the draws.

    Args:
      seed, num_clients, num_active, tasks: as in `draw_cohort`.
      round_index: the round about to run.
      first: first round in which clients draw batches, `config.pre_rounds`.
      started: round -> ids of the active clients that drew batches; None: all active clients.

    Returns:
      [N] int32.
    """
    participations = np.zeros(num_clients, np.int32)
    for earlier in range(first, round_index):
        ids = started(earlier) if started else draw_cohort(seed, earlier, num_clients, num_active, tasks)
        participations = add_participation(participations, ids)
    return participations


def add_participation(participations: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The participations [N] after a round with the clients `ids` [A], as a new array."""
    participations = participations.copy()
    participations[ids] += 1
    return participations


def make_cohort(
    ids: np.ndarray, participations: np.ndarray, padded_size: int = 0, failed: np.ndarray | None = None, tasks: int = 1
) -> Cohort:
    """The Cohort of clients `ids` [A], given the participations [N] of all clients before this round.

    All have weight 1, except those that `failed` [A] bool, which have 0. Copies of the last client, of T tasks those
    of the last T, with weight 0 pad the cohort to `padded_size`.
    """
    padding = max(padded_size - len(ids), 0)
    padded = np.concatenate([ids, np.tile(ids[-tasks:], padding // tasks)])
    valid = np.arange(len(padded)) < len(ids)
    if failed is not None:
        valid &= ~np.pad(failed, (0, padding))
    # On the host, where a program takes them from: three arrays fewer to create in every round of every trial
    fields: Any = padded.astype(np.int32), valid.astype(np.float32), participations[padded].astype(np.int32)
    return Cohort(*fields)
