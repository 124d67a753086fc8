"""Reads the data of figures from runs: curves over seeds, diagnostics, data splits, feature space, predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.maps import nearest
from semisfl_jax.plots import style
from semisfl_jax.plots.style import Look
from semisfl_jax.runs import Run
from semisfl_jax.tasks import Score, Task
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


class Curve(NamedTuple):
    """One quantity of one group of runs, at E rounds."""

    label: str  # of the group
    x: np.ndarray  # [E]
    mean: np.ndarray  # [E] over seeds
    error: np.ndarray  # [E] standard error of the mean, NaN with one seed
    look: Look | None = None  # None: assigned by its label among the curves it is drawn with


# Of a dense task: truth [n, H, W] uint8, IGNORED where there is none, and what is predicted, as from `Task.show`
Maps = tuple[Task, np.ndarray, np.ndarray]


# --- curves


def curve(name: str, runs: dict[int, Run], key: str, x: str = 'round') -> Curve:
    """Mean and standard error over the seeds of the group `name`, at the rounds at which all have a value; where they
    differ in bytes or time, at the mean of these. `key`: of metrics.jsonl, or SCORE; `x`: of AXES. UserError: a run has
    no such values."""
    places, values = _values(name, runs, key, x)
    mean, error = np.array([mean_and_error(of_round) for of_round in values.T]).T
    return Curve(style.group_title(name), places.mean(axis=0), mean, error)


def spread(name: str, runs: dict[int, Run]) -> Curve:
    """The standard deviation of the headline's score over seeds, divided by their number, at their common rounds;
    UserError: there is only one seed, or no such round."""
    if len(runs) < 2:
        raise UserError(f'{name} has one seed; a spread needs at least two')
    rounds, values = _values(name, runs, SCORE, 'round')
    return Curve(style.group_title(name), rounds[0], values.std(axis=0), np.full(len(rounds[0]), np.nan))


def _values(name: str, runs: dict[int, Run], key: str, x: str) -> tuple[np.ndarray, np.ndarray]:
    """Places on the axis and values [seeds, rounds] of the rounds at which all runs have both; else a UserError."""
    needed, place = AXES[x]
    tables = []
    for run in runs.values():
        fields = (*needed, run.key if key == SCORE else key)
        complete = [record for record in run.records if all(record.get(field) is not None for field in fields)]
        if not complete:
            missing = [field for field in fields if all(record.get(field) is None for record in run.records)]
            raise UserError(f'{run.folder}/metrics.jsonl has no {" and no ".join(missing or fields[-1:])}')
        if x == 'gigabytes' and not any(place(*map(record.get, needed)) for record in complete):
            raise UserError(f'{run.folder} sends nothing')
        tables.append({record['round']: (place(*map(record.get, needed)), record[fields[-1]]) for record in complete})
    rounds = sorted(set.intersection(*map(set, tables)))
    if not rounds:
        raise UserError(f'the runs of {name} have no round in common at which all have {key}')
    table = np.array([[table[number] for number in rounds] for table in tables], float)
    return table[..., 0], table[..., 1]


def curves(groups: Groups, key: str, x: str = 'round') -> list[Curve]:
    """The curve of every group that has one, with its look among all groups; UserError: no group has one."""
    group_curves, faults = [], []
    looks = style.looks([style.group_title(name) for name in groups])
    for name, runs in groups.items():
        try:
            group_curves.append(curve(name, runs, key, x)._replace(look=looks[style.group_title(name)]))
        except UserError as error:
            faults.append(error)
    if not group_curves:
        raise faults[0]
    return group_curves


def each(groups: Groups, keys: Mapping[str, str]) -> dict[str, list[Curve]]:
    """By name, the `curves` of every key that any group has."""
    found = {}
    for name, key in keys.items():
        try:
            found[name] = curves(groups, key)
        except UserError:
            continue
    return found


def score(groups: Groups) -> Score:
    """The score by which the headlines of all groups are judged, or a UserError if it is not the same."""
    return _shared({run.judged_by: run.score for runs in groups.values() for run in runs.values()})


def eval_split(groups: Groups) -> str:
    """What the scores of all groups are of: 'test' or 'validation' images, or a UserError if not the same."""
    return _shared({run.eval_split: run.eval_split for runs in groups.values() for run in runs.values()})


def _shared(found: dict[str, Any]) -> Any:
    if len(found) > 1:
        raise UserError(f'some runs are scored by {" and some by ".join(sorted(found))}, which have no axis in common')
    return next(iter(found.values()))


# --- one run


def holdings(folder: Path) -> np.ndarray:
    """[2, N, K + 1] images of each client by true class, the last of unknown class, unlabeled and labeled ones, from
    partition.npz and the labels of the data set; UserError: either is missing."""
    advice = 'restore it from a copy, or train again in another folder'
    split, dataset = data.load_partition(folder / 'partition.npz', advice=advice), load.dataset(folder)
    known = np.stack([data.describe(split, dataset.train_labels, labeled) for labeled in (False, True)])
    held = [[*map(len, rows)] for rows in (split.client_index, split.client_labeled_index)]
    return np.dstack([known, held - known.sum(axis=2)])


def history(folder: Path, last: int = 0) -> list[dict[str, np.ndarray]]:
    """The diagnostics of the `last` rounds that have any, 0: of all; UserError: there are none."""
    rounds = diagnostics.rounds_written(folder)
    if not rounds:
        raise UserError(f'{folder} has no diagnostics; run with --config.diagnostics_every=ROUNDS')
    return [diagnostics.load(folder, number) for number in rounds[-last:]]


def feature_spaces(folder: Path, most: int = MOST_POINTS) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Title, points [n, 2] and labels [n] of the features of the first `most` test images from the bottoms of student
    and teacher, before training, when they are equal, and at the last checkpoint. UserError: the run of one seed, its
    data or a checkpoint is missing, or the method's model is not the `student` of its state (FedMatch: sigma + psi)."""
    trial = load.experiment(folder)
    if trial.method.in_parts:
        raise UserError(f'{folder}: the model of {trial.config.algorithm} has several parts; features cannot be drawn')
    images, labels = trial.dataset.test_images[:most], trial.dataset.test_labels[:most]
    normalize = experiment_lib.views(trial.config.augment, trial.dataset).normalize
    bottom = jax.jit(lambda variables, x: trial.model.bottom(variables, normalize(x), None, False)[0])

    def embed(title: str, model: Any) -> tuple[str, np.ndarray, np.ndarray]:
        size = trial.config.eval_batch_size
        parts = [bottom(model.bottom, images[start : start + size]) for start in range(0, len(images), size)]
        return title, tsne(np.concatenate(parts)), labels

    number, final = load.state(folder, trial)
    _, initial = load.state(folder, trial, round_number=0)
    spaces = [embed('Before training', initial.student), embed(f'Student, round {number}', final.student)]
    return [*spaces, embed(f'Teacher, round {number}', final.teacher)] if final.teacher else spaces


def tsne(features: np.ndarray) -> np.ndarray:
    """[n, D] -> [n, 2] by scikit-learn's t-SNE, initialized with the first two principal components; deterministic. The
    perplexity is 30, or a third of the number of points if there are few."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(features) - 1) / 3.0)
    features = np.asarray(features, np.float32)
    with threadpool_limits(1):  # fixes the order of sums; threads would not pay off for a thousand points
        return TSNE(perplexity=perplexity, init='pca', random_state=0, n_jobs=1).fit_transform(features)


def predictions(folder: Path) -> tuple[np.ndarray, list[Maps], int, int]:
    """Predictions of a run with dense tasks at its last checkpoint, on the first test images that differ in their
    largest object's class, so many that a figure with a column of each is at most as tall as a page.

    Returns the images [n, H, W, C] uint8, the maps of each task, the round, and the number of models of a task, the
    first of which is taken. UserError: the run of one seed, its data or a checkpoint is missing.
    """
    trial = load.experiment(folder)
    number, state = load.state(folder, trial)
    dataset, of_tasks = trial.dataset, trial.algorithm.tasks
    height, width = dataset.test_images.shape[1:3]
    most = int(np.clip(np.ceil(0.7 * (2 * len(of_tasks) + 1) * height / width), 6, 12))
    chosen = various(dataset.test_labels, most)
    images, rows, models = dataset.test_images[chosen], [], 1
    outputs = jax.device_get(jax.jit(trial.algorithm.predict)(state, images))
    for name, task in of_tasks.items():  # in their order, which compiled functions do not keep
        assert task.show  # of every dense task
        truth = trial.test_truth[name][chosen]
        if dataset.test_sizes is not None:  # of the truths, which are resized to the images
            sizes = dataset.test_sizes[chosen]
            truth = [nearest(values[:h, :w], height, width) for values, (h, w) in zip(truth, sizes, strict=True)]
        of_models = outputs[name] if isinstance(outputs[name], tuple) else (outputs[name],)
        models = len(of_models)
        rows.append((task, np.stack(truth), task.show(of_models[0])))
    return images, rows, number, models


def various(labels: np.ndarray, most: int) -> np.ndarray:
    """Rows, ascending: the first of each label, then the first of the others, until there are `most` or no more."""
    _, first = np.unique(labels, return_index=True)
    first = np.sort(first)[:most]
    others = np.setdiff1d(np.arange(len(labels)), first)[: most - len(first)]
    return np.sort(np.concatenate([first, others]))
