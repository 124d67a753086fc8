"""Scores on the test or the validation images, those of trivial predictions, and the objective of the clients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, data, tasks
from semisfl_jax.core import machine, sampling
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Array
from semisfl_jax.data import maps
from semisfl_jax.tasks import Task
from semisfl_jax.training import checks
from semisfl_jax.training.experiment import Experiment, compile_with

Scores = dict[str, dict[str, float]]  # {output of `predict`: {score: value}}


class Batches(NamedTuple):
    """A set of images in n batches of B."""

    images: Array  # [n, B, H, W, C] uint8
    truths: dict[str, Array]  # by task, [n, B, ...]
    valid: Array  # [n, B] bool: which rows count
    sizes: Array | None  # [n, B, 2] int32, height and width of the truths if these are not as large as the images


def compile_evaluate(
    predict: Callable[[Any, Array], dict[str, Any]],
    like: Any,
    inputs: Any,
    task_of: Callable[[str], Task],
    jit: Callable = machine.jit,
) -> Callable[[Any, Any], Scores]:
    """Compiles the evaluation of `predict` for a state and batches like these, arrays or shapes:
    (batches, state) -> {output: {score: value}}, from exact counts; of several models, the mean and the best."""
    compiled = jit(counting(predict, task_of)).lower(like, inputs).compile()

    def evaluate(inputs: Any, state: Any) -> Scores:
        counted = jax.device_get(compiled(state, inputs))
        return {name: _scores(task_of(name), of_models) for name, of_models in counted.items()}

    return evaluate


def batched(
    images: np.ndarray,
    truth: Mapping[str, np.ndarray],
    batch_size: int,
    place: Callable[[np.ndarray], Array],
    sizes: np.ndarray | None = None,
) -> Batches:
    """Images [T, H, W, C] uint8 and truths [T, ...] by task, in batches of B, of which the last is filled with rows
    that do not count. `place` puts an array on the devices of the state; `sizes` as in `Batches`, [T, 2]."""
    count = len(images)
    shape = -(-count // min(batch_size, count)), min(batch_size, count)
    filled = np.arange(shape[0] * shape[1]) % count

    def of_rows(rows: np.ndarray) -> Array:
        return place(rows[filled].reshape(*shape, *rows.shape[1:]))

    truths = {name: of_rows(rows) for name, rows in truth.items()}
    valid = place((np.arange(len(filled)) < count).reshape(shape))
    return Batches(of_rows(images), truths, valid, None if sizes is None else of_rows(sizes))


def counting(predict: Callable[[Any, Array], dict[str, Any]], task_of: Callable[[str], Task]) -> Callable:
    """The function that `compile_evaluate` compiles: (state, batches) -> counts."""

    def counts(state: Any, inputs: Batches) -> dict[str, list[Any]]:
        def one(batch: Batches) -> dict[str, list[Any]]:
            counted = {}
            for name, outputs in predict(state, batch.images).items():
                task = task_of(name)
                of_batch = batch.truths[task.name], batch.valid, batch.sizes
                of_models = outputs if isinstance(outputs, tuple) else (outputs,)
                counted[name] = [task.scorer.count(x, *of_batch) for x in of_models]
            return counted

        return jax.lax.map(one, inputs)

    return counts


def _scores(task: Task, counts: list[Any]) -> dict[str, float]:
    """Of one model; of several, the mean of each score and, beside it, the best of the one that counts."""
    of_models = [task.scorer.finish(count) for count in counts]
    if len(of_models) == 1:
        return of_models[0]
    means = {name: float(np.mean([scores[name] for scores in of_models])) for name in of_models[0]}
    values = [scores[task.score.name] for scores in of_models]
    return {**means, f'{task.score.name}_best': task.score.best(values)}


def evaluated(trials: Sequence[Experiment]) -> list[Any]:
    """[R] what `batched` returns, on every device, of the images on which each trial is evaluated."""
    place, size = functools.partial(core.replicate, trials[0].mesh), trials[0].config.eval_batch_size

    def of_trial(trial: Experiment) -> Any:
        return batched(trial.dataset.test_images, trial.test_truth, size, place, trial.dataset.test_sizes)

    return _of_each(trials, of_trial)


def _of_each(trials: Sequence[Experiment], make: Callable[[Experiment], Any]) -> list[Any]:
    """[R] what `make` makes of each trial; one copy of it if all are evaluated on the test images."""
    if trials[0].dataset.eval_split == 'test':
        return [make(trials[0])] * len(trials)
    return [make(trial) for trial in trials]


def build_evaluate(trials: Sequence[Experiment], images: Sequence[Any]) -> list[Callable[[Any], Scores]]:
    """Compiles the evaluation of R trials once, on images from `evaluated`; [R] functions of the state of each.

    Raises:
      UserError: the method returns no outputs of their tasks.
    """
    first = trials[0]
    predict = checks.check_predict(first.method.name, first.algorithm, first.task_of)
    state = core.like(first.mesh, first.state_shapes)
    evaluate = compile_evaluate(predict, state, images[0], first.task_of, compile_with(first.config))
    return [functools.partial(evaluate, of_trial) for of_trial in images]


# Trivial predictions of dense tasks: what a model scores counts from there.
#
# `constant`: the same outputs on all pixels of all images, those that score best (`Task.constant`). `objects`: in
# saliency, all objects are salient: the pixels whose true class in `semseg` is not 0.

TRIVIAL_NAMES = {'constant': 'constant prediction', 'objects': 'all objects salient'}  # with what messages call them
SURE = 20.0  # a logit whose probability is 1 to float32


def constants(experiment: Experiment) -> dict[str, np.ndarray]:
    """The `Task.constant` [outputs] of every task that has one, by output; from the maps that its clients hold."""
    names, pixels = experiment.config.data.tasks, {}
    for output, task in experiment.algorithm.tasks.items():
        if task.constant:
            held = experiment.partition.client_index[names.index(task.name) :: len(names)]
            rows = np.unique(np.concatenate(held))
            pixels[output] = task.constant(count_pixels(experiment.dataset.targets[task.name].train, rows))
    return pixels


def count_pixels(maps: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many pixels of the maps [n, H, W] uint8 at `rows` have each number: [IGNORED] int64, without IGNORED."""
    total = np.zeros(256, np.int64)
    for row in rows:  # all at once would take eight times their memory
        total += np.bincount(maps[row].ravel(), minlength=256)
    return total[: tasks.IGNORED]


def predict_constants(pixels: Mapping[str, Array], images: Array) -> dict[str, Any]:
    """As `types.Predict`, with `constants` for a state: {output: [B, H, W, outputs]}."""
    return {name: jnp.broadcast_to(pixel, (*images.shape[:3], len(pixel))) for name, pixel in pixels.items()}


def object_maps(experiment: Experiment) -> np.ndarray:
    """What `predict_objects` takes for the images on which the experiment is evaluated, [n, H, W, 1] uint8."""
    dataset = experiment.dataset
    targets = dataset.targets['semseg']
    if dataset.test_sizes is None:
        return targets.test[..., None]
    side = dataset.test_images.shape[1:3]  # as a network would predict them
    sizes = zip(targets.test, dataset.test_sizes, strict=True)
    return np.stack([maps.nearest(original[:h, :w], *side) for original, (h, w) in sizes])[..., None]


def predict_objects(state: Any, maps: Array) -> dict[str, Any]:
    """As `types.Predict`, of the classes [B, H, W, 1] in place of images, and no state."""
    return {'saliency': jnp.where((maps > 0) & (maps != tasks.IGNORED), SURE, -SURE)}


def trivial_scores(trials: Sequence[Experiment], images: Sequence[Any]) -> list[dict[str, dict[str, float]]]:
    """[R] the scores of the trivial predictions of dense tasks: {one of TRIVIAL_NAMES: {key of a score: value}}, on
    images from `evaluated`."""
    first, jit = trials[0], compile_with(trials[0].config)
    place = functools.partial(core.replicate, first.mesh)

    def scored(predict: Callable, states: Sequence[Any], inputs: Sequence[Any]) -> list[dict[str, float]]:
        evaluate = compile_evaluate(predict, states[0], inputs[0], first.task_of, jit)
        judged = {name: task.score.name for name, task in first.algorithm.tasks.items()}
        return [
            {tasks.score_key(name, judged[name]): scores[name][judged[name]] for name in judged if name in scores}
            for scores in map(evaluate, inputs, states)
        ]

    found: dict[str, list[dict[str, float]]] = {}
    if first.algorithm.tasks:
        pixels = [jax.tree.map(place, constants(trial)) for trial in trials]
        found['constant'] = scored(predict_constants, pixels, images)
    if 'saliency' in first.algorithm.tasks and 'semseg' in first.dataset.targets:
        size = first.config.eval_batch_size
        maps = _of_each(trials, lambda trial: batched(object_maps(trial), {}, size, place).images)
        inputs = [of_trial._replace(images=of_maps) for of_maps, of_trial in zip(maps, images, strict=True)]
        found['objects'] = scored(predict_objects, [()] * len(trials), inputs)
    return [{name: of_trials[r] for name, of_trials in found.items()} for r in range(len(trials))]


# The objective that clients minimize together, of the server's model over all of their images.

GLOBAL_LOSS = 'loss_global'  # in metrics.jsonl, of the rounds that are evaluated


def global_loss_weights(
    partition: data.Partition, held: np.ndarray, all_labels: bool, hparams: HParams
) -> tuple[np.ndarray, np.ndarray]:
    """The objective as a weighted sum over images: F = sum_k w_k F_k, where F_k is the mean loss of the labeled images
    of client k plus that of its unlabeled ones, and w_k its weight in the average. `held` [2, N] counts both.

    Returns:
      Rows of the training set [R], and the weight of each as a labeled and as an unlabeled image, [R, 2].
    """
    held_unlabeled, held_labeled = jnp.asarray(held)
    images = np.asarray(sampling.images_held(held_unlabeled, held_labeled, hparams.batch_size, hparams.labeled_rows))
    share = images if hparams.local.weighting == 'samples' else images > 0
    labeled = partition.client_index if all_labels else partition.client_labeled_index
    unlabeled = partition.client_index if hparams.labeled_rows < hparams.batch_size else ()
    rows, weight = [], []
    for column, kind in enumerate((labeled if hparams.labeled_rows else (), unlabeled)):
        for w, own in zip(share / max(share.sum(), 1), kind, strict=False):
            rows.append(own)
            weight.append(np.eye(2)[np.full(len(own), column)] * w / max(len(own), 1))
    return np.concatenate(rows).astype(np.int64), np.concatenate(weight)


def build_global_loss(trials: Sequence[Experiment]) -> list[Callable[[Any], float]]:
    """Compiles the objective of R trials once: [R] functions, state of the trial -> F; [] if the method does not say
    what its clients minimize. Images go to the device in batches, wherever those of the rounds are."""
    first = trials[0]
    losses, config = first.algorithm.client_losses, first.config
    if losses is None:
        return []

    def batch_loss(state: Any, images: Array, labels: Array, weight: Array) -> Array:
        return jnp.sum(weight * jnp.stack(losses(state, images, labels), axis=1))

    all_labels, dataset = config.data.client_labels == -1, first.dataset
    place = functools.partial(core.replicate, first.mesh)
    held = [global_loss_weights(trial.partition, trial.held, all_labels, trial.hparams) for trial in trials]
    size = min(config.eval_batch_size, len(held[0][0]))

    def part(rows: np.ndarray, weight: np.ndarray, start: int) -> tuple[np.ndarray, ...]:
        """Images, labels and weights of a batch; the last one repeats images, with weight 0."""
        batch = np.resize(rows[start : start + size], size)
        weights = np.zeros((size, 2), np.float32)
        weights[: len(rows) - start] = weight[start : start + size]
        return dataset.train_images[batch], dataset.train_labels[batch], weights

    arguments = core.like(first.mesh, (first.state_shapes, *part(*held[0], 0)))
    compiled = compile_with(config)(batch_loss).lower(*arguments).compile()

    def measure(rows: np.ndarray, weight: np.ndarray, state: Any) -> float:
        sums = [compiled(state, *map(place, part(rows, weight, start))) for start in range(0, len(rows), size)]
        return float(np.sum(jax.device_get(sums), dtype=np.float64))

    return [functools.partial(measure, *of_trial) for of_trial in held]
