"""Computes diagnostics from the state after a round, in separate programs, so that the round stays one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, data
from semisfl_jax.core import machine, rng
from semisfl_jax.core.state import trainable
from semisfl_jax.core.teacher import hard_labels
from semisfl_jax.core.types import Array, Cohort, Federation, Views
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training.diagnostics import replay, tables
from semisfl_jax.training.experiment import Experiment

Arrays = dict[str, np.ndarray]


def build(experiment: Experiment, jit: Callable = machine.jit) -> Callable[[Experiment, Any, int, int], Arrays]:
    """Builds the diagnostics of a run; they are compiled on first use.

    Args:
      experiment: one of its trials, which all share the programs.
      jit: `compilation.jit`, possibly with settings applied.

    Returns:
      diagnose(trial, state, number, k_s) -> the arrays listed in the package docstring. `state` is that after round
      `number` (1-based), `k_s` the supervised steps of that round. In a run of several processes, all must call it.
    """
    predict, hparams = experiment.algorithm.predict, experiment.hparams
    views = experiment_lib.views(experiment.config.augment, experiment.dataset)

    def guess(state: Any, key: Array, images: Array) -> dict[str, tuple[Array, Array]]:
        logits = predict(state, views.weak(key, images))
        return {model: hard_labels(model_logits, hparams.threshold) for model, model_logits in logits.items()}

    def classify(state: Any, images: Array) -> dict[str, Array]:
        return {model: jnp.argmax(model_logits, axis=-1) for model, model_logits in predict(state, images).items()}

    guess, classify, gap = jit(guess), jit(classify), jit(_gap)
    queued = _build_queue(experiment, views, jit)

    def diagnose(trial: Experiment, state: Any, number: int, k_s: int) -> Arrays:
        arrays = {'round': np.array(number, np.int32), **_pseudo_labels(trial, guess, state, number)}
        arrays |= _on_test_images(trial, classify, state)
        if trial.dataset.eval_split != 'test':
            arrays['eval_split'] = np.array(trial.dataset.eval_split)
        if queued:
            arrays |= queued(trial, state, number, k_s)
        if state.teacher:
            distance, norm = jax.device_get(gap(state))
            arrays |= {'pieces': np.array(['bottom', 'top', 'proj']), 'distance': distance, 'norm': norm}
        return arrays

    return diagnose


def _batches(images: np.ndarray, rows: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray, int]]:
    """`rows` of `images` in batches of equal size: (number, images [B, H, W, C], how many are not padding)."""
    size = min(size, len(rows))
    for number, start in enumerate(range(0, len(rows), size)):
        part = rows[start : start + size]
        yield number, images[np.resize(part, size)], len(part)


def _pseudo_labels(trial: Experiment, guess: Callable, state: Any, number: int) -> Arrays:
    """`unlabeled` and `MODEL_confident`."""
    held = trial.partition.client_index
    clients, classes = len(held), trial.dataset.num_classes
    rows, owner = np.concatenate(held), np.repeat(np.arange(clients), [len(client_rows) for client_rows in held])
    truth = trial.dataset.train_labels[rows]
    parts = []
    key = rng.fold(rng.root(trial.config.seed), 'diagnostics', number)
    for batch, images, count in _batches(trial.dataset.train_images, rows, trial.config.eval_batch_size):
        guesses = guess(state, *core.replicate(trial.mesh, (rng.fold(key, batch), jnp.asarray(images))))
        parts.append(jax.tree.map(lambda x, count=count: x[:count], jax.device_get(guesses)))
    mask = np.ones(len(rows), bool)
    counts = {'unlabeled': tables.count_labels(owner, truth, np.zeros_like(truth), mask, clients, classes)}
    counts['unlabeled'] = counts['unlabeled'].sum(axis=-1, dtype=np.int32)
    for model in sorted(parts[0], reverse=True):
        labels, confident = (np.concatenate(values) for values in zip(*(part[model] for part in parts), strict=True))
        counts[f'{model}_confident'] = tables.count_labels(owner, truth, labels, confident, clients, classes)
    return counts


def _on_test_images(trial: Experiment, classify: Callable, state: Any) -> Arrays:
    """`MODEL_test` and `agreement`."""
    dataset, parts = trial.dataset, []
    rows = np.arange(len(dataset.test_labels))
    for _, images, count in _batches(dataset.test_images, rows, trial.config.eval_batch_size):
        predictions = jax.device_get(classify(state, core.replicate(trial.mesh, jnp.asarray(images))))
        parts.append({model: labels[:count] for model, labels in predictions.items()})
    predicted = {model: np.concatenate([part[model] for part in parts]) for model in sorted(parts[0], reverse=True)}

    def pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        groups, mask = np.zeros(len(rows), int), np.ones(len(rows), bool)
        return tables.count_labels(groups, first, second, mask, 1, dataset.num_classes)[0, :-1]

    counts = {f'{model}_test': pairs(dataset.test_labels, labels) for model, labels in predicted.items()}
    if 'teacher' in predicted:
        counts['agreement'] = pairs(predicted['teacher'], predicted['student'])
    return counts


def _build_queue(experiment: Experiment, views: Views, jit: Callable) -> Callable[..., Arrays] | None:
    """`queue_levels`, `queue` and `queue_empty`, or None if they cannot be recomputed or there is no queue."""
    hparams, federation = experiment.hparams, experiment.config.federation
    queue = jax.eval_shape(experiment.algorithm.init, experiment.key).queue
    if hparams.client_teacher_ema or not jax.tree.leaves(queue):
        return None
    client_map = core.client_map(federation.client_chunk, federation.client_map)
    run = jit(replay.build_replay(experiment.model, views, hparams, client_map))

    def queued(trial: Experiment, state: Any, number: int, k_s: int) -> Arrays:
        round_federation, cohort = _inputs(trial, number - 1)
        levels = jax.device_get(run(trial.key, state, round_federation, cohort, np.int32(k_s)))
        classes = trial.dataset.num_classes
        slots, empty = zip(
            *(
                tables.count_slots(level.labels, level.confident, level.keys[:, 0].astype(np.int64), classes)
                for level in levels
            ),
            strict=True,
        )
        names = replay.LEVELS[hparams.queue]
        return {'queue_levels': np.array(names), 'queue': np.stack(slots), 'queue_empty': np.array(empty, np.int32)}

    return queued


def _inputs(trial: Experiment, index: int) -> tuple[Federation, Cohort]:
    """Federation and cohort of round `index` (0-based), not divided over devices."""
    federation, cohort = trial.federation, next(inputs.cohorts(trial, index))
    cohort = jax.tree.map(lambda x: x[: trial.config.federation.num_active], cohort)  # without padding
    if isinstance(federation, data.HostFederation):
        streamed = federation.streamed(inputs.rows(trial, cohort), trial.method.reads)
        federation = core.replicate(trial.mesh, streamed)
    return federation, core.replicate(trial.mesh, cohort)


def _gap(state: Any) -> tuple[Array, Array]:
    """Distance of teacher and student parameters, and norm of the student's, [3] each: bottom, top, projection head."""

    def norm(piece: Any) -> Array:
        leaves = jax.tree.leaves(piece)
        return jnp.sqrt(sum((jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves), jnp.float32(0)))

    student, teacher = trainable(state.student), trainable(state.teacher)
    difference = jax.tree.map(jnp.subtract, student, teacher)
    return jnp.stack([norm(piece) for piece in difference]), jnp.stack([norm(piece) for piece in student])
