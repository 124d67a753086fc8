"""Collects the data of plots from runs: curves over seeds, diagnostics, data splits, points of feature space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.maps import nearest
from semisfl_jax.plots import features, looks, maps
from semisfl_jax.plots.curves import LOSS_LABELS, Curve
from semisfl_jax.runs import Run
from semisfl_jax.tasks import DENSE, Score, score_key, smallest
from semisfl_jax.training import diagnostics, load, metrics
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.metrics import mean_and_error

Groups = dict[str, dict[int, Run]]  # label -> seed -> run, as returned by `runs.group`
SCORE = 'score'  # in place of a key of metrics.jsonl: that of the headline
MOST_POINTS = 1000  # test images in a plot of feature space

# Name of an x axis -> (keys of a line of metrics.jsonl, their value on the axis)
AXES: dict[str, tuple[tuple[str, ...], Callable[..., float]]] = {
    'round': (('round',), float),
    'gigabytes': (('bytes_up', 'bytes_down'), lambda up, down: (up + down) / metrics.GIB),
    'minutes': (('simulated_seconds',), lambda seconds: seconds / 60.0),
}


class NotApplicable(UserError):
    """The run records the quantity but never had a value of it, such as pseudo-labels without clients."""


def curve(name: str, runs: dict[int, Run], key: str, x: str = 'round') -> Curve:
    """Mean and standard error over the seeds of a group, at the rounds at which all of them have a value.

    Where seeds differ in bytes or time, the point is placed at their mean.

    Args:
      name: of the group.
      runs: its runs by seed.
      key: of the lines of metrics.jsonl, 'score' for the headline's score.
      x: 'round', 'gigabytes' or 'minutes'.

    Raises:
      UserError: a run has no such values.
    """
    needed, place = AXES[x]
    tables = []
    for run in runs.values():
        wanted = run.key if key == SCORE else key
        table = {}
        for record in run.records:
            if all(record.get(field) is not None for field in (*needed, wanted)):
                table[record['round']] = place(*(record[field] for field in needed)), record[wanted]
        if x == 'gigabytes' and table and not any(traffic for traffic, _ in table.values()):
            raise NotApplicable(f'{run.folder} sends nothing')
        if not table:
            missing = [field for field in (*needed, wanted) if all(record.get(field) is None for record in run.records)]
            noted = all(any(field in record for record in run.records) for field in missing)
            kind = NotApplicable if noted else UserError
            raise kind(f'{run.folder}/metrics.jsonl has no {" and no ".join(missing or [wanted])}')
        tables.append(table)
    rounds = sorted(set.intersection(*map(set, tables)))
    if not rounds:
        raise UserError(f'the runs of {name} have no round in common at which all have {key}')
    places = np.array([[table[number][0] for number in rounds] for table in tables])
    values = [mean_and_error([table[number][1] for table in tables]) for number in rounds]
    mean, error = np.array(values).T
    return Curve(looks.title(name), places.mean(axis=0), mean, error)


def spread(name: str, runs: dict[int, Run]) -> Curve:
    """The standard deviation of the headline's score over seeds, divided by their number, at the rounds at
    which all of them are evaluated.

    Raises:
      UserError: there is only one seed, or no such round.
    """
    if len(runs) < 2:
        raise UserError(f'{name} has one seed; a spread needs at least two')
    tables = [
        {record['round']: record[run.key] for record in run.records if record.get(run.key) is not None}
        for run in runs.values()
    ]
    rounds = sorted(set.intersection(*map(set, tables)))
    if not rounds:
        raise UserError(f'the runs of {name} have no evaluated round in common')
    values = np.array([[table[number] for number in rounds] for table in tables])
    return Curve(looks.title(name), np.array(rounds, float), values.std(axis=0), np.full(len(rounds), np.nan))


def curves(groups: Groups, key: str, x: str = 'round', every: bool = False) -> list[Curve]:
    """The curve of every group that has one; not all methods record every quantity.

    Looks are assigned among all groups, so that a group has the same look in all their figures.

    Raises:
      UserError: no group has one; with `every`, a group lacks one that should be there, as in runs of older versions.
    """
    group_curves, faults = [], []
    assigned = looks.of([looks.title(name) for name in groups])
    for name, runs in groups.items():
        try:
            group_curves.append(curve(name, runs, key, x)._replace(look=assigned[looks.title(name)]))
        except UserError as error:
            faults.append(error)
    unexpected = [error for error in faults if not isinstance(error, NotApplicable)]
    if not group_curves or (every and unexpected):
        raise (unexpected or faults)[0]
    return group_curves


def score(groups: Groups) -> Score:
    """The score by which the headlines of all groups are judged.

    Raises:
      UserError: they are not judged by the same.
    """
    scores = {run.score.name: run.score for runs in groups.values() for run in runs.values()}
    if len(scores) > 1:
        raise UserError(f'the runs are judged by {" and ".join(sorted(scores))}, which no figure can have on one axis')
    return next(iter(scores.values()))


def eval_split(groups: Groups) -> str:
    """What the scores of all groups are of: 'test' or 'validation' images.

    Raises:
      UserError: not the same.
    """
    splits = {run.eval_split for runs in groups.values() for run in runs.values()}
    if len(splits) > 1:
        raise UserError('some runs are scored on test and some on validation images, which no figure has on one axis')
    return splits.pop()


def losses(groups: Groups) -> dict[str, list[Curve]]:
    """The curves of every loss of LOSS_LABELS that any group has."""
    curves_by_loss = {}
    for key in LOSS_LABELS:
        try:
            curves_by_loss[key] = curves(groups, key)
        except UserError:
            continue
    return curves_by_loss


def task_scores(groups: Groups) -> dict[str, list[Curve]]:
    """The curves of the scores that count in dense tasks, by task, of all tasks that any group has."""
    curves_by_task = {}
    for name in DENSE:
        try:
            curves_by_task[name] = curves(groups, score_key(name, smallest(name).score.name))
        except UserError:
            continue
    return curves_by_task


def holdings(folder: Path) -> np.ndarray:
    """[2, N, K] images of each client by true class, unlabeled and labeled ones, from partition.npz and the labels of
    the data set.

    Raises:
      UserError: the folder holds no split, its data are missing, or their labels are unknown.
    """
    advice = 'restore it from a copy, or train again in another folder'
    split, dataset = data.load_partition(folder / 'partition.npz', advice=advice), load.dataset(folder)
    if split.checksum != dataset.checksum:
        raise UserError(f'{folder}/partition.npz is for another copy of data set {dataset.name}')
    counts = np.stack([data.describe(split, dataset.train_labels, labeled) for labeled in (False, True)])
    if not counts.any():
        raise UserError(
            f'the classes of the images at the clients of {folder} are unknown; the partition cannot be drawn'
        )
    return counts


def last_diagnostics(folder: Path) -> dict[str, np.ndarray]:
    """The diagnostics of the last round that has any.

    Raises:
      UserError: there are none.
    """
    return diagnostics.load(folder, _rounds(folder)[-1])


def history(folder: Path) -> list[dict[str, np.ndarray]]:
    """All diagnostics of a run, by round.

    Raises:
      UserError: there are none.
    """
    return [diagnostics.load(folder, number) for number in _rounds(folder)]


def _rounds(folder: Path) -> list[int]:
    if rounds := diagnostics.rounds_written(folder):
        return rounds
    raise UserError(f'{folder} has no diagnostics; run with --config.diagnostics_every=ROUNDS')


class Embedding(NamedTuple):
    """The feature space of one model after one round."""

    title: str
    points: np.ndarray  # [n, 2]
    labels: np.ndarray  # [n]


def feature_spaces(folder: Path, most: int = MOST_POINTS) -> list[Embedding]:
    """Features of test images from the bottoms of student and teacher, before training and at the last checkpoint.

    Before training the teacher is a copy of the student, so one embedding represents both.

    Args:
      folder: of a run of one seed.
      most: number of test images, taken from the start.

    Raises:
      UserError: the run, its data or a checkpoint is missing, or the method's model is not the `student` of its state
        (FedMatch: sigma + psi).
    """
    trial = load.experiment(folder)
    if trial.method.in_parts:
        raise UserError(
            f'{folder}: {trial.config.algorithm} has a model of several parts, whose features cannot be drawn'
        )
    images, labels = trial.dataset.test_images[:most], trial.dataset.test_labels[:most]
    normalize = experiment_lib.views(trial.config.augment, trial.dataset).normalize
    bottom = jax.jit(lambda variables, x: trial.model.bottom(variables, normalize(x), None, False)[0])

    def embed(title: str, model: Any) -> Embedding:
        size = trial.config.eval_batch_size
        parts = [bottom(model.bottom, images[start : start + size]) for start in range(0, len(images), size)]
        return Embedding(title, features.tsne(np.concatenate(parts)), labels)

    number, final = load.state(folder, trial)
    _, initial = load.state(folder, trial, round_number=0)
    spaces = [embed('Before training', initial.student), embed(f'Student, round {number}', final.student)]
    return [*spaces, embed(f'Teacher, round {number}', final.teacher)] if final.teacher else spaces


class Predictions(NamedTuple):
    """Test images, and what the models of dense tasks make of them."""

    images: np.ndarray  # [n, H, W, C] uint8
    rows: list[maps.Row]  # by task
    round: int  # after which
    models: int  # of each task, the first of which is taken


def predictions(folder: Path) -> Predictions:
    """Predictions at the last checkpoint on the first test images that differ in their largest object's class.

    Args:
      folder: of a run of one seed, with dense tasks.

    Raises:
      UserError: the run, its data or a checkpoint is missing.
    """
    trial = load.experiment(folder)
    number, state = load.state(folder, trial)
    of_tasks = trial.algorithm.tasks
    rows = various(trial.dataset.test_labels, maps.count(len(of_tasks), *trial.dataset.test_images.shape[1:3]))
    images, drawn, models = trial.dataset.test_images[rows], [], 1
    sizes = None if trial.dataset.test_sizes is None else trial.dataset.test_sizes[rows]
    outputs = jax.device_get(jax.jit(trial.algorithm.predict)(state, images))
    for name, task in of_tasks.items():  # in their order, which compiled functions do not keep
        assert task.show  # of every dense task
        of_models = outputs[name] if isinstance(outputs[name], tuple) else (outputs[name],)
        models, first = len(of_models), of_models[0]
        drawn.append(maps.Row(task, _like(images, trial.test_truth[name][rows], sizes), task.show(first)))
    return Predictions(images, drawn, number, models)


def _like(images: np.ndarray, truth: np.ndarray, sizes: np.ndarray | None) -> np.ndarray:
    """Truths [n, H, W] of `images`, resized to them where they have `sizes` [n, 2] of their own."""
    if sizes is None:
        return truth
    own = [values[:height, :width] for values, (height, width) in zip(truth, sizes, strict=True)]
    return np.stack([nearest(values, *images.shape[1:3]) for values in own])


def various(labels: np.ndarray, most: int) -> np.ndarray:
    """Rows, ascending: the first of each label, then the first of the others, until there are `most` or no more."""
    _, first = np.unique(labels, return_index=True)
    first = np.sort(first)[:most]
    others = np.setdiff1d(np.arange(len(labels)), first)[: most - len(first)]
    return np.sort(np.concatenate([first, others]))
