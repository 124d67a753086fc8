"""Arrays about the pseudo-labels, queue and models of a run, written to the workdir in addition to the metrics.

Every `config.diagnostics_every` rounds, and after the last one, a file `diagnostics/round_000100.npz` is written. It is
computed from the state after the round, apart from the round itself, so it does not affect the numbers of the run. All
entries that are not names, except `distance` and `norm`, are counts; `class_rates` and `client_rates` derive rates from
them. Letters as in `types`; row or column K of true classes is for images of unknown class. MODEL is each of
`types.MODELS` that the method has.

    round            []              rounds completed
    unlabeled        [N, K+1]        unlabeled images of each client by class; all its images if it knows all labels
    MODEL_confident  [N, K+1, K]     confident pseudo-labels of those images: client, true class, label. All images of
                                     all clients, in separately drawn weak views, labeled in evaluation mode, whatever
                                     `pseudo_labels` is
    MODEL_test       [K, K]          test images: true class, predicted class
    agreement        [K, K]          test images: class predicted by the teacher, by the student
    queue_levels     [V]             names: 'supervised' and 'unlabeled', or 'ring'
    queue            [V, 2, K+1, K]  slots before the queue was emptied at the end of the round: not confident or
                                     confident, true class, label
    queue_empty      [V]             slots not written since the queue was emptied
    pieces           [3]             names: 'bottom', 'top', 'proj'
    distance         [3]             Euclidean distance of teacher and student parameters
    norm             [3]             Euclidean norm of the student's parameters
    eval_split       []              'validation' if the "test images" are validation images; otherwise absent

In SemiSFL the teacher after a round is the one that labeled during it. Other methods document which model labels, and
when.

Methods with a teacher have `agreement`, `pieces`, `distance` and `norm`; methods with a queue have the queue entries.
With `client_teacher_ema`, the labels in the queue depend on how each client trained; with a labeler that keeps a state
of clients, on what it had kept. Neither can be recomputed afterwards, so the queue is left out. It is also left out
with `pseudo_labels` 'none', where keys of clients have no class.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, data
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import State, queue, rng, sampling
from semisfl_jax.core import cross_entity as cross_entity_phase
from semisfl_jax.core import supervised as supervised_phase
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.losses import References
from semisfl_jax.core.queue import Queue, Ring
from semisfl_jax.core.state import trainable
from semisfl_jax.core.teacher import assign_pseudo_labels, hard_labels
from semisfl_jax.core.types import Array, ClientAxis, Cohort, Federation, Views
from semisfl_jax.models import SplitModel
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training.experiment import Experiment

Arrays = dict[str, np.ndarray]


def rounds_written(folder: Path) -> list[int]:
    """Lists the rounds for which the workdir `folder` holds diagnostics, ascending."""
    names = (path.stem.removeprefix('round_') for path in (folder / 'diagnostics').glob('round_*.npz'))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def save(folder: Path, round_number: int, arrays: dict[str, np.ndarray]) -> None:
    """Writes the diagnostics after `round_number` rounds into the workdir `folder`. Equal arrays give equal bytes."""
    path = _path(folder, round_number)
    file_io.make_folder(path.parent)
    written = io.BytesIO()
    np.savez_compressed(written, **arrays)  # type: ignore[arg-type]  # allow_pickle=False came with NumPy 2.2
    file_io.write(path, written.getvalue())


def load(folder: str | os.PathLike, round_number: int) -> dict[str, np.ndarray]:
    """Reads what `save` wrote into the workdir `folder` after `round_number` rounds.

    Raises:
      UserError: the file is missing or damaged.
    """
    path = _path(file_io.expand_home(folder, 'the run'), round_number)
    try:
        return file_io.read_npz(path)
    except FileNotFoundError as error:
        raise UserError(f'there are no diagnostics {path}; run with --config.diagnostics_every=ROUNDS') from error
    except Exception as error:  # NumPy and zipfile raise a dozen types of error for a damaged file
        raise UserError(f'{path} cannot be read ({error}); delete it') from error


def cut_back(folder: Path, rounds: int) -> None:
    """Removes the diagnostics after round `rounds`; a run that resumes from there writes them again."""
    for number in rounds_written(folder):
        if number > rounds:
            _path(folder, number).unlink()


def _path(folder: Path, round_number: int) -> Path:
    return folder / 'diagnostics' / f'round_{round_number:06d}.npz'


# --- counts, and the rates that follow from them


class Rates(NamedTuple):
    """Rates of pseudo-labels; NaN where the denominator is 0."""

    mask: np.ndarray  # share of unlabeled images whose pseudo-label is confident
    accuracy: np.ndarray  # share of correct ones among the confident pseudo-labels of images of known class


def count_labels(
    groups: np.ndarray, truth: np.ndarray, labels: np.ndarray, counted: np.ndarray, size: int, classes: int
) -> np.ndarray:
    """Counts how often each true class got each of K labels, within each group, such as the images of a client.

    Args:
      groups: [T] in 0 .. size - 1.
      truth: [T] true classes, -1 if unknown.
      labels: [T] in 0 .. K - 1.
      counted: [T] bool.
      size: number of groups.
      classes: K.

    Returns:
      [size, K + 1, K] int32: group, true class (K for unknown), label.
    """
    flat_index = (groups * (classes + 1) + np.where(truth < 0, classes, truth)) * classes + labels
    length = size * (classes + 1) * classes
    return np.bincount(flat_index[counted], minlength=length).reshape(size, classes + 1, classes).astype(np.int32)


def count_slots(labels: np.ndarray, confident: np.ndarray, truth: np.ndarray, classes: int) -> tuple[np.ndarray, int]:
    """Counts the slots of one level of the queue.

    Args:
      labels: [Q], -1 in an empty slot.
      confident: [Q] bool.
      truth: [Q] true classes, -1 if unknown.
      classes: K.

    Returns:
      [2, K + 1, K] int32: not confident or confident, true class (K for unknown), label; and the number of empty slots.
    """
    filled = labels >= 0
    return count_labels(confident.astype(int), truth, labels, filled, 2, classes), int(np.sum(~filled))


def class_rates(confident: np.ndarray, unlabeled: np.ndarray) -> Rates:
    """Computes rates by true class.

    Args:
      confident: [N, K + 1, K], `MODEL_confident` of a file.
      unlabeled: [N, K + 1], `unlabeled` of a file.

    Returns:
      Rates [K].
    """
    labels, images = confident.sum(axis=0)[:-1], unlabeled.sum(axis=0)[:-1]
    confident_images = labels.sum(axis=1)
    return Rates(_ratio(confident_images, images), _ratio(np.diagonal(labels), confident_images))


def client_rates(confident: np.ndarray, unlabeled: np.ndarray) -> Rates:
    """Computes rates by client, [N], as `class_rates`; images of unknown class count only in the mask rate."""
    evaluable = confident[:, :-1]
    correct = np.diagonal(evaluable, axis1=1, axis2=2).sum(axis=1)
    return Rates(
        mask=_ratio(confident.sum(axis=(1, 2)), unlabeled.sum(axis=1)),
        accuracy=_ratio(correct, evaluable.sum(axis=(1, 2))),
    )


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)


# --- from the state after a round, in separate programs, so that the round stays one call


def build(experiment: Experiment, jit: Callable = machine.jit) -> Callable[[Experiment, Any, int, int], Arrays]:
    """Builds the diagnostics of a run from one of its trials, which all share the programs; compiled on first use.

    Args:
      experiment: a trial of the run.
      jit: compiles, as `machine.jit`.

    Returns:
      diagnose(trial, state, number, k_s) -> the arrays listed in the module docstring. `state` is that after round
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


def map_batches(trial: Experiment, images: np.ndarray, rows: np.ndarray, function: Callable[[int, Array], Any]) -> Any:
    """Applies a function to images in batches, and joins the results on the host.

    Args:
      trial: sets the batch size and the devices.
      images: [n, H, W, C].
      rows: rows of `images` to use.
      function: takes the number of a batch and its images [B, H, W, C]; returns arrays [B, ...].

    Returns:
      The result of `function` for every row.
    """
    size, parts = min(trial.config.eval_batch_size, len(rows)), []
    for number, start in enumerate(range(0, len(rows), size)):
        part = np.resize(rows[start : start + size], size)  # repeats rows to fill the last one
        batch = core.clients.replicate(trial.mesh, images[part])
        parts.append(jax.device_get(function(number, batch)))
    return jax.tree.map(lambda *values: np.concatenate(values)[: len(rows)], *parts)


def _pseudo_labels(trial: Experiment, guess: Callable, state: Any, number: int) -> Arrays:
    """Computes `unlabeled` and `MODEL_confident`."""
    dataset, held = trial.dataset, trial.partition.client_index
    rows, owner = np.concatenate(held), np.repeat(np.arange(len(held)), [len(client_rows) for client_rows in held])
    truth, key = dataset.train_labels[rows], rng.fold(rng.root(trial.config.seed), 'diagnostics', number)

    def guess_batch(batch: int, images: Array) -> Any:
        return guess(state, core.clients.replicate(trial.mesh, rng.fold(key, batch)), images)

    def count(labels: np.ndarray, counted: np.ndarray) -> np.ndarray:
        return count_labels(owner, truth, labels, counted, len(held), dataset.num_classes)

    counts = {'unlabeled': count(np.zeros_like(truth), np.ones(len(rows), bool)).sum(axis=-1, dtype=np.int32)}
    guesses = map_batches(trial, dataset.train_images, rows, guess_batch)
    return counts | {f'{model}_confident': count(*guesses[model]) for model in sorted(guesses, reverse=True)}


def _on_test_images(trial: Experiment, classify: Callable, state: Any) -> Arrays:
    """Computes `MODEL_test` and `agreement`."""
    dataset, rows = trial.dataset, np.arange(len(trial.dataset.test_labels))
    predicted = map_batches(trial, dataset.test_images, rows, lambda _, images: classify(state, images))

    def pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        groups, mask = np.zeros(len(rows), int), np.ones(len(rows), bool)
        return count_labels(groups, first, second, mask, 1, dataset.num_classes)[0, :-1]

    counts = {
        f'{model}_test': pairs(dataset.test_labels, predicted[model]) for model in sorted(predicted, reverse=True)
    }
    if 'teacher' in predicted:
        counts['agreement'] = pairs(predicted['teacher'], predicted['student'])
    return counts


def _build_queue(experiment: Experiment, views: Views, jit: Callable) -> Callable[..., Arrays] | None:
    """Builds `queue_levels`, `queue` and `queue_empty`; None if they cannot be recomputed or there is no queue."""
    hparams, federation = experiment.hparams, experiment.config.federation
    shapes = experiment.state_shapes
    unknown = hparams.client_teacher_ema or jax.tree.leaves(shapes.clients) or hparams.pseudo_labels == 'none'
    if unknown or not jax.tree.leaves(shapes.queue):
        return None
    client_map = core.clients.client_map(federation.client_chunk, federation.client_map)
    run = jit(build_replay(experiment.model, views, hparams, client_map))

    def queued(trial: Experiment, state: Any, number: int, k_s: int) -> Arrays:
        round_federation, cohort = _round_inputs(trial, number - 1)
        levels = jax.device_get(run(trial.key, state, round_federation, cohort, np.int32(k_s)))
        classes = trial.dataset.num_classes
        truths = [level.keys[:, 0].astype(np.int64) for level in levels]
        counts = [count_slots(x.labels, x.confident, truth, classes) for x, truth in zip(levels, truths, strict=True)]
        slots, empty = zip(*counts, strict=True)
        return {
            'queue_levels': np.array(queue.LEVELS[hparams.queue]),
            'queue': np.stack(slots),
            'queue_empty': np.array(empty, np.int32),
        }

    return queued


def _round_inputs(trial: Experiment, index: int) -> tuple[Federation, Cohort]:
    """Returns federation and cohort of round `index` (0-based), not divided over devices."""
    federation, (cohort, _) = trial.federation, next(inputs.cohorts(trial, index))
    cohort = jax.tree.map(lambda x: x[: trial.config.federation.num_active], cohort)  # without padding
    if isinstance(federation, data.HostFederation):
        streamed = federation.streamed(inputs.rows(trial, cohort), trial.method.reads)
        federation = core.clients.replicate(trial.mesh, streamed)
    return federation, core.clients.replicate(trial.mesh, cohort)


def _gap(state: Any) -> tuple[Array, Array]:
    """Computes distance of teacher and student, and norm of the student, [3] each: bottom, top, projection head."""
    student, teacher = trainable(state.student), trainable(state.teacher)
    difference = jax.tree.map(jnp.subtract, student, teacher)

    def norms(pieces: Any) -> Array:  # a piece may be empty
        sums = (sum((jnp.sum(x**2) for x in jax.tree.leaves(piece)), jnp.float32(0)) for piece in pieces)
        return jnp.sqrt(jnp.stack(list(sums)))

    return norms(difference), norms(student)


# --- the content of the queue before it was emptied, from the state after the round
#
# The supervised phase uses the labels of the images it drew. The cross-entity phase does not change the teacher, so a
# forward pass without training recomputes its labels for the weak views of an iteration: same images, same views, same
# weights, equal up to rounding at the threshold. True classes take the place of the keys, and the queue's own code
# decides what remains in it.


def build_replay(
    model: SplitModel, views: Views, hparams: HParams, client_map: Callable = jax.vmap
) -> Callable[..., tuple[Ring, ...]]:
    """Builds the replay of SemiSFL's queue, without `client_teacher_ema`.

    Args:
      model: the split model.
      views: the augmented views.
      hparams: of the method.
      client_map: a function with the meaning of `jax.vmap`.

    Returns:
      run(key, state, federation, cohort, k_s []) -> the levels of the queue, with true classes as keys [Q, 1]. `key`,
      `federation`, `cohort` and `k_s` are those of the round, `state` is what it returned.
    """
    axis = ClientAxis(map=client_map)

    def note(labels: Array, confident: Array, truth: Array, mask: Array) -> References:
        return References(truth[:, None].astype(jnp.float32), labels, confident, mask)

    def supervised(key: Array, state: State, federation: Federation, k_s: Array) -> Queue:
        def remember(step: Array, seen: Queue) -> Queue:
            labels = federation.server_labels[supervised_phase.draw_rows(hparams, key, step, federation)[0]]
            every = jnp.ones_like(labels, bool)
            return seen.push_supervised(note(labels, every, labels, every))

        first = state.step - k_s
        if hparams.pre_rounds and hparams.queue == 'single_ring':  # the ring still holds the keys of all rounds so far
            first = jnp.where(state.round <= hparams.pre_rounds + 1, 0, first)
        return jax.lax.fori_loop(first, state.step, remember, queue.build(hparams, width=1))

    def cross_entity(key: Array, state: State, federation: Federation, cohort: Cohort, seen: Queue) -> Queue:
        round_key = cross_entity_phase.round_key(key, state.round - 1)
        rows, labeled = sampling.client_rows(key, federation, cohort, hparams.batches)
        takes_part = (cohort.weight > 0) & (federation.size[cohort.ids] > 0)
        mask = jnp.repeat(takes_part, hparams.batch_size)

        def iteration(seen: Queue, inputs: tuple[Array, Array, Array]) -> tuple[Queue, None]:
            t, rows, labeled = inputs  # [], [A, B], [A, B]
            images, truth = federation.client_images[rows], federation.client_labels[rows].reshape(-1)
            keys = cross_entity_phase.iteration_keys(round_key, cohort.ids, t)
            x = views.normalize(axis.map(views.weak)(keys['weak'], images))
            models = state.teacher, state.student
            _, logits = cross_entity_phase.weak_rows(model, hparams, axis, *models, x, keys['teacher_dropout'], True)
            labels, confident = assign_pseudo_labels(hparams, logits, truth)
            labeled = labeled.reshape(-1)
            references = note(jnp.where(labeled, truth, labels), confident | labeled, truth, mask)
            return seen.push_unlabeled(references, t), None

        per_iteration = jnp.arange(hparams.k_u), jnp.swapaxes(rows, 0, 1), jnp.swapaxes(labeled, 0, 1)
        return jax.lax.scan(iteration, seen, per_iteration)[0]

    def run(key: Array, state: State, federation: Federation, cohort: Cohort, k_s: Array) -> tuple[Ring, ...]:
        seen = supervised(key, state, federation, k_s)
        if not hparams.pre_rounds:
            return cross_entity(key, state, federation, cohort, seen).rings
        alone = state.round <= hparams.pre_rounds
        return jax.lax.cond(alone, lambda: seen, lambda: cross_entity(key, state, federation, cohort, seen)).rings

    return run
