"""Scores on the test or validation images, scores of trivial predictions, and the objective of the clients."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, data, tasks
from semisfl_jax.base import machine
from semisfl_jax.core import sampling
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Array, Predict
from semisfl_jax.data import maps
from semisfl_jax.tasks import Task
from semisfl_jax.training import checks
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.kept import NOTHING, Kept

Scores = dict[str, dict[str, Any]]  # {output of `predict`: {score: value}}


class Batches(NamedTuple):
    """A set of images in n batches of B."""

    images: Array  # [n, B, H, W, C] uint8
    truths: dict[str, Array]  # by task, [n, B, ...]
    valid: Array  # [n, B] bool: which rows count
    sizes: Array | None  # [n, B, 2] int32, height and width of the truths; None: those of the images


def compile_evaluate(
    predict: Predict,
    like: Any,
    inputs: Any,
    task_of: Callable[[str], Task],
    jit: Callable = machine.jit,
    kept: Kept = NOTHING,
) -> Callable[..., Scores]:
    """Compiles the evaluation of `predict`, from exact counts.

    Args:
      predict: as `types.Predict`.
      like: the state, as arrays or shapes.
      inputs: the batches, as arrays or shapes.
      task_of: finds the task of an output.
      jit: compiles, as `machine.jit`.
      kept: may have the program.

    Returns:
      A function (batches, state, `Experiment.host_truth`) -> {output: {score: value}}; of several models, the mean and
      the best.
    """
    compiled = kept.lower('evaluation', lambda: jit(counting(predict, task_of)).lower(like, inputs))()

    def evaluate(inputs: Any, state: Any, host_truth: Mapping[str, Any] = MappingProxyType({})) -> Scores:
        counted = jax.device_get(compiled(state, inputs))
        return {
            name: _scores(task, counts, host_truth.get(task.name))
            for name, counts in counted.items()
            for task in [task_of(name)]
        }

    return evaluate


def batched(
    images: np.ndarray,
    truth: Mapping[str, np.ndarray],
    batch_size: int,
    place: Callable[[np.ndarray], Array],
    sizes: np.ndarray | None = None,
) -> Batches:
    """Arranges images and truths in batches, of which the last is filled with rows that do not count.

    Args:
      images: [T, H, W, C] uint8.
      truth: [T, ...] by task.
      batch_size: B, or T if that is smaller.
      place: puts an array on the devices of the state.
      sizes: [T, 2] as in `Batches`.

    Returns:
      The batches.
    """
    count = len(images)
    shape = -(-count // min(batch_size, count)), min(batch_size, count)
    filled = np.arange(shape[0] * shape[1]) % count

    def arrange(rows: np.ndarray) -> Array:
        return place(rows[filled].reshape(*shape, *rows.shape[1:]))

    valid = place((np.arange(len(filled)) < count).reshape(shape))
    return Batches(arrange(images), jax.tree.map(arrange, dict(truth)), valid, jax.tree.map(arrange, sizes))


def counting(predict: Predict, task_of: Callable[[str], Task]) -> Callable:
    """Builds the function that `compile_evaluate` compiles: (state, batches) -> counts of each model, by output."""

    def counts(state: Any, inputs: Batches) -> dict[str, list[Any]]:
        def one(batch: Batches) -> dict[str, list[Any]]:
            counted = {}
            for name, outputs in predict(state, batch.images).items():
                task = task_of(name)
                compared = batch.truths.get(task.name), batch.valid, batch.sizes  # the host has the truth of objects
                by_model = outputs if isinstance(outputs, tuple) else (outputs,)
                counted[name] = [task.scorer.count(x, *compared) for x in by_model]
            return counted

        return jax.lax.map(one, inputs)

    return counts


def _scores(task: Task, counts: list[Any], host_truth: tuple[Any, ...] | None) -> dict[str, Any]:
    """Computes the scores of a model; of several, the mean of each score, and the best of the score that counts."""
    if host_truth:
        images = len(next(iter(host_truth[0].values())))
        counts = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:images], counts)
    by_model = [task.scorer.finish(count, *host_truth or ()) for count in counts]
    if len(by_model) == 1:
        return by_model[0]
    means = {name: np.mean([scores[name] for scores in by_model], axis=0) for name in by_model[0]}
    values = [scores[task.score.name] for scores in by_model]
    return {**means, f'{task.score.name}_best': task.score.best(values)}


def evaluated(trials: Sequence[Experiment]) -> list[Any]:
    """Returns [R] `Batches` on every device: the images on which each trial is evaluated."""
    place, size = functools.partial(core.clients.replicate, trials[0].mesh), trials[0].config.eval_batch_size

    def arrange(trial: Experiment) -> Any:
        return batched(trial.dataset.test_images, trial.test_truth, size, place, trial.dataset.test_sizes)

    return _per_trial(trials, arrange)


def _per_trial(trials: Sequence[Experiment], make: Callable[[Experiment], Any]) -> list[Any]:
    """Calls `make` for every trial [R], or once for all if they are evaluated on the test images."""
    if trials[0].dataset.eval_split == 'test':
        return [make(trials[0])] * len(trials)
    return [make(trial) for trial in trials]


def build_evaluate(
    trials: Sequence[Experiment], images: Sequence[Any], kept: Kept = NOTHING
) -> list[Callable[[Any], Scores]]:
    """Compiles the evaluation of R trials once.

    Args:
      trials: [R].
      images: [R] from `evaluated`.
      kept: may have the program.

    Returns:
      [R] functions from the state of a trial to its scores, in classification also those of its clients.

    Raises:
      UserError: the method returns no outputs of their tasks.
    """
    first = trials[0]
    predict = checks.check_predict(first.method.name, first.algorithm, first.task_of)
    state = core.clients.like(first.mesh, first.state_shapes)
    evaluate = compile_evaluate(predict, state, images[0], first.task_of, compile_with(first.config), kept)

    def judge(batches: Any, held: np.ndarray, host_truth: Mapping[str, Any], state: Any) -> Scores:
        scores = evaluate(batches, state, host_truth)
        for by_name in scores.values():
            if tasks.PER_CLASS.name in by_name:
                by_name |= tasks.of_clients(by_name[tasks.PER_CLASS.name], held)
        return scores

    def held(trial: Experiment) -> np.ndarray:
        labels = trial.dataset.train_labels
        return np.sum([data.describe(trial.partition, labels, labeled) for labeled in (False, True)], axis=0)

    return [
        functools.partial(judge, of, held(trial), trial.host_truth) for trial, of in zip(trials, images, strict=True)
    ]


SURE = 20.0  # a logit whose probability is 1 to float32


def constants(experiment: Experiment) -> dict[str, Any]:
    """Computes the `Task.constant` of every task that has one, by output, from the targets of its clients."""
    names, pixels = experiment.config.data.tasks, {}
    for output, task in experiment.algorithm.tasks.items():
        if task.constant:
            held = experiment.partition.client_index[names.index(task.name) :: len(names)]
            rows, targets = np.unique(np.concatenate(held)), experiment.dataset.targets[task.name].train
            if task.name in tasks.PARTS:
                pixels[output] = task.constant(targets, rows)
                continue
            counts = np.zeros(256, np.int64)  # of the pixels of each number
            for row in rows:  # all at once would take eight times their memory
                counts += np.bincount(targets[row].ravel(), minlength=256)
            pixels[output] = task.constant(counts[: tasks.IGNORED])
    return pixels


def predict_constants(pixels: Mapping[str, Any], images: Array) -> dict[str, Any]:
    """Predicts the same outputs for every pixel, or objects for every image; `constants` in place of a state.

    Args:
      pixels: [outputs] by output, or a dict of arrays.
      images: [B, H, W, C].

    Returns:
      {output: [B, H, W, outputs]}, or a dict of arrays [B, …].
    """
    return {
        name: jax.tree.map(lambda x: jnp.broadcast_to(x, (len(images), *x.shape)), constant)
        if isinstance(constant, dict)
        else jnp.broadcast_to(constant, (*images.shape[:3], len(constant)))
        for name, constant in pixels.items()
    }


def object_maps(experiment: Experiment) -> np.ndarray:
    """Returns the `maps` that `predict_objects` takes for the images of the evaluation, [n, H, W, 1] uint8."""
    dataset = experiment.dataset
    targets = dataset.targets['semseg']
    if dataset.test_sizes is None:
        return targets.test[..., None]
    side = dataset.test_images.shape[1:3]  # as a network would predict them
    sizes = zip(targets.test, dataset.test_sizes, strict=True)
    return np.stack([maps.nearest(original[:h, :w], *side) for original, (h, w) in sizes])[..., None]


def predict_objects(state: Any, maps: Array) -> dict[str, Any]:
    """Predicts that all objects are salient; a `types.Predict` that takes classes in place of images.

    Args:
      state: ignored.
      maps: [B, H, W, 1] true classes.

    Returns:
      {'saliency': logits [B, H, W, 1]}.
    """
    return {'saliency': jnp.where((maps > 0) & (maps != tasks.IGNORED), SURE, -SURE)}


def trivial_scores(trials: Sequence[Experiment], images: Sequence[Any]) -> list[dict[str, dict[str, float]]]:
    """Computes the scores of the trivial predictions of dense tasks, a baseline for those of models.

    'constant' predicts the same outputs for all pixels of all images, those that score best, or the same objects in all
    images (`Task.constant`). In
    saliency, 'objects' predicts that all objects are salient: the pixels whose true class in `semseg` is not 0.

    Args:
      trials: [R].
      images: [R] from `evaluated`.

    Returns:
      [R], {one of tasks.TRIVIAL_NAMES: {key of a score: value}}.
    """
    first, jit = trials[0], compile_with(trials[0].config)
    place = functools.partial(core.clients.replicate, first.mesh)

    def scored(predict: Callable, states: Sequence[Any], inputs: Sequence[Any]) -> list[dict[str, float]]:
        evaluate = compile_evaluate(predict, states[0], inputs[0], first.task_of, jit)
        judged = {name: task.score.name for name, task in first.algorithm.tasks.items()}
        return [
            {tasks.score_key(name, judged[name]): scores[name][judged[name]] for name in judged if name in scores}
            for scores in map(evaluate, inputs, states, [trial.host_truth for trial in trials])
        ]

    by_name: dict[str, list[dict[str, float]]] = {}
    if first.algorithm.tasks:
        pixels = [jax.tree.map(place, constants(trial)) for trial in trials]
        by_name['constant'] = scored(predict_constants, pixels, images)
    if 'saliency' in first.algorithm.tasks and 'semseg' in first.dataset.targets:
        size = first.config.eval_batch_size
        maps = _per_trial(trials, lambda trial: batched(object_maps(trial), {}, size, place).images)
        inputs = [batches._replace(images=true_classes) for batches, true_classes in zip(images, maps, strict=True)]
        by_name['objects'] = scored(predict_objects, [()] * len(trials), inputs)
    return [{name: scores[r] for name, scores in by_name.items()} for r in range(len(trials))]


# The objective that clients minimize together, of the server's model over all of their images.


def global_loss_weights(
    partition: data.Partition, held: np.ndarray, all_labels: bool, hparams: HParams
) -> tuple[np.ndarray, np.ndarray]:
    """Expresses the objective of the clients as a weighted sum over images.

    It is F = sum_k w_k F_k, where F_k is the mean loss of the labeled images of client k plus that of its unlabeled
    images, and w_k its weight in the average.

    Args:
      partition: the images that each client holds.
      held: [2, N] number of unlabeled and labeled images of each client.
      all_labels: whether clients know the labels of all their images.
      hparams: of the method.

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
        for w, client_rows in zip(share / max(share.sum(), 1), kind, strict=False):
            rows.append(client_rows)
            weight.append(np.eye(2)[np.full(len(client_rows), column)] * w / max(len(client_rows), 1))
    return np.concatenate(rows).astype(np.int64), np.concatenate(weight)


def build_global_loss(trials: Sequence[Experiment]) -> list[Callable[[Any], float]]:
    """Compiles the objective of R trials once; images move to the device in batches, wherever those of the rounds are.

    Returns:
      [R] functions, state of the trial -> F; [] if the method does not say what its clients minimize.
    """
    first = trials[0]
    losses, config = first.algorithm.client_losses, first.config
    if losses is None:
        return []

    def batch_loss(state: Any, images: Array, labels: Array, weight: Array) -> Array:
        return jnp.sum(weight * jnp.stack(losses(state, images, labels), axis=1))

    all_labels, dataset = config.data.client_labels == -1, first.dataset
    place = functools.partial(core.clients.replicate, first.mesh)
    weighted = [global_loss_weights(trial.partition, trial.held, all_labels, trial.hparams) for trial in trials]
    size = min(config.eval_batch_size, len(weighted[0][0]))

    def part(rows: np.ndarray, weight: np.ndarray, start: int) -> tuple[np.ndarray, ...]:
        """Images, labels and weights of a batch; the last one repeats images, with weight 0."""
        batch = np.resize(rows[start : start + size], size)
        weights = np.zeros((size, 2), np.float32)
        weights[: len(rows) - start] = weight[start : start + size]
        return dataset.train_images[batch], dataset.train_labels[batch], weights

    arguments = core.clients.like(first.mesh, (first.state_shapes, *part(*weighted[0], 0)))
    compiled = compile_with(config)(batch_loss).lower(*arguments).compile()

    def measure(rows: np.ndarray, weight: np.ndarray, state: Any) -> float:
        sums = [compiled(state, *map(place, part(rows, weight, start))) for start in range(0, len(rows), size)]
        return float(np.sum(jax.device_get(sums), dtype=np.float64))

    return [functools.partial(measure, *rows_and_weights) for rows_and_weights in weighted]
