"""Reconstructs the content of the queue before it was emptied, from the state after the round.

The labels of the supervised phase are those of the images it drew. The cross-entity phase does not change the teacher,
so its labels for the weak views of an iteration can be recomputed by a forward pass, without training: same images,
same views, same weights, equal up to rounding at the threshold. True classes take the place of the keys, and the
queue's own code determines what remains in it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import State, queue, sampling
from semisfl_jax.core import cross_entity as cross_entity_phase
from semisfl_jax.core import supervised as supervised_phase
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.losses import References
from semisfl_jax.core.queue import Queue, Ring
from semisfl_jax.core.teacher import assign_pseudo_labels
from semisfl_jax.core.types import Array, ClientAxis, Cohort, Federation, Views
from semisfl_jax.models import SplitModel

LEVELS = {'two_level': ('supervised', 'unlabeled'), 'single_ring': ('ring',), 'off': ()}


def build_replay(
    model: SplitModel, views: Views, hparams: HParams, client_map: Callable = jax.vmap
) -> Callable[..., tuple[Ring, ...]]:
    """Builds the replay of SemiSFL's queue, without `client_teacher_ema`.

    Args:
      model: the split model.
      views: augmentations.
      hparams: settings.
      client_map: a function with the semantics of `jax.vmap`.

    Returns:
      run(key, state, federation, cohort, k_s []) -> the levels of the queue, with true classes as keys [Q, 1]. `key`,
      `federation`, `cohort` and `k_s` are those of the round, `state` is what it returned.
    """
    axis = ClientAxis(map=client_map)

    def note(labels: Array, confident: Array, truth: Array) -> References:
        return References(truth[:, None].astype(jnp.float32), labels, confident, jnp.ones_like(confident))

    def supervised(key: Array, state: State, federation: Federation, k_s: Array) -> Queue:
        def remember(step: Array, seen: Queue) -> Queue:
            labels = federation.server_labels[supervised_phase.draw_rows(hparams, key, step, federation)[0]]
            return seen.push_supervised(note(labels, jnp.ones_like(labels, bool), labels))

        first = state.step - k_s
        if hparams.pre_rounds and hparams.queue == 'single_ring':  # still holds the keys of all rounds so far
            first = jnp.where(state.round <= hparams.pre_rounds + 1, 0, first)
        return jax.lax.fori_loop(first, state.step, remember, queue.build(hparams, width=1))

    def cross_entity(key: Array, state: State, federation: Federation, cohort: Cohort, seen: Queue) -> Queue:
        round_key = cross_entity_phase.round_key(key, state.round - 1)
        rows, labeled = sampling.client_rows(key, federation, cohort, hparams.batches, hparams.sampling)
        kept_iterations = iterations_kept(hparams, rows.shape[0] * hparams.batch_size)

        def iteration(seen: Queue, inputs: tuple[Array, Array, Array]) -> tuple[Queue, None]:
            t, rows, labeled = inputs  # [], [A, B], [A, B]
            images, truth = federation.client_images[rows], federation.client_labels[rows].reshape(-1)
            keys = cross_entity_phase.iteration_keys(round_key, cohort.ids, t)
            x = views.normalize(axis.map(views.weak)(keys['weak'], images))
            models = state.teacher, state.student
            _, logits = cross_entity_phase.weak_rows(model, hparams, axis, *models, x, keys['teacher_dropout'], True)
            labels, confident = assign_pseudo_labels(hparams, logits, truth)
            labeled = labeled.reshape(-1)
            references = note(jnp.where(labeled, truth, labels), confident | labeled, truth)
            return seen.push_unlabeled(references, t), None

        per_iteration = (
            jnp.asarray(kept_iterations),
            jnp.swapaxes(rows, 0, 1)[kept_iterations],
            jnp.swapaxes(labeled, 0, 1)[kept_iterations],
        )
        return jax.lax.scan(iteration, seen, per_iteration)[0]

    def run(key: Array, state: State, federation: Federation, cohort: Cohort, k_s: Array) -> tuple[Ring, ...]:
        seen = supervised(key, state, federation, k_s)
        if hparams.pre_rounds:
            warming_up = state.round <= hparams.pre_rounds
            seen = jax.lax.cond(warming_up, lambda: seen, lambda: cross_entity(key, state, federation, cohort, seen))
        else:
            seen = cross_entity(key, state, federation, cohort, seen)
        return seen.rings

    return run


def iterations_kept(hparams: HParams, rows: int) -> np.ndarray:
    """Iterations (0-based, ascending) that may have rows in the queue at the end, if each adds `rows` of them."""
    pushes = -(-hparams.queue_size // rows)
    all_iterations = np.arange(hparams.k_u)
    iterations = all_iterations[-pushes:]
    if hparams.queue == 'two_level':
        iterations = np.union1d(iterations, all_iterations[(all_iterations + 1) % hparams.queue_stride == 0][-pushes:])
    return iterations
