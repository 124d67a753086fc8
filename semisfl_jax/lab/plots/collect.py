"""Reads the data of figures from runs: curves over seeds, diagnostics, data splits, feature space, predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import semisfl_jax as sfl
from semisfl_jax.base.errors import UserError
from semisfl_jax.data.maps import nearest
from semisfl_jax.lab.plots import style
from semisfl_jax.lab.plots.style import Look
from semisfl_jax.runs import AXES, Run
from semisfl_jax.tasks import DENSE, PARTS, SCORES, Score, Task, score_key

Groups = dict[str, dict[int, Run]]  # label -> seed -> run, as returned by `runs.group`
SCORE = 'score'  # in place of a key of metrics.jsonl: that of the headline
SPREAD = 'spread'  # the same: the standard deviation of the headline's score over seeds, divided by their number
MOST_POINTS = 1000  # test images in a plot of feature space


class Curve(NamedTuple):
    """One quantity of one group of runs, at E rounds."""

    label: str  # of the group
    x: np.ndarray  # [E]
    mean: np.ndarray  # [E] over seeds
    low: np.ndarray  # [E] of the band around it, as `style.interval` says; NaN with one seed
    high: np.ndarray  # [E]
    look: Look | None = None  # None: assigned by its label among the curves it is drawn with


# Of a dense task: truth [n, H, W] uint8, IGNORED where there is none, and what is predicted, as from `Task.show`
Maps = tuple[Task, np.ndarray, np.ndarray]


# --- curves


def curve(name: str, runs: dict[int, Run], key: str, x: str = 'round') -> Curve:
    """Averages one quantity over the seeds of a group, at the rounds at which all have a value.

    Args:
      name: label of the group.
      runs: its runs by seed.
      key: a key of metrics.jsonl, SCORE, SPREAD, or the name of another score of the headline.
      x: one of AXES; where seeds differ in bytes or time, the curve is at the mean of these.

    Raises:
      UserError: a run has no such values, or a spread would be that of a single one.
    """
    places, values = _values(name, runs, SCORE if key == SPREAD else key, x)
    mean, (low, high) = values.mean(axis=0), _band(values)
    if key == SPREAD:
        if len(runs) < 2:
            raise UserError(f'{name} has one seed; a spread needs two or more')
        mean, low, high = values.std(axis=0), *np.full((2, len(mean)), np.nan)
    return Curve(style.group_title(name), places.mean(axis=0), mean, low, high)


def _band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds [E] around the mean of values [seeds, E], as `style.interval` says."""
    from scipy.stats import t

    if len(values) < 2:
        return tuple(np.full((2, values.shape[1]), np.nan))  # type: ignore[return-value]
    if (kind := style.interval.get()) == 'range':
        return values.min(axis=0), values.max(axis=0)
    mean, error = np.array([sfl.mean_and_error(column) for column in values.T]).T
    half = error * (t.ppf(0.975, len(values) - 1) if kind == 'ci95' else 1.0)
    return mean - half, mean + half


def _values(name: str, runs: dict[int, Run], key: str, x: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns places on the axis and values [seeds, rounds], where all runs have both; UserError if they nowhere do."""
    tables = []
    for run in runs.values():
        field = run.key if key == SCORE else score_key(run.headline, key) if key in SCORES else key
        places, values = run.axis(x), run.curve(field)
        if not (shared := places.keys() & values.keys()):
            missing = [name for name in (*AXES[x][0], field) if not run.curve(name)]
            raise UserError(f'{run.folder}/metrics.jsonl has no {" and no ".join(missing or [field])}')
        tables.append({number: (places[number], values[number]) for number in shared})
    rounds = sorted(set.intersection(*map(set, tables)))
    if not rounds:
        raise UserError(f'the runs of {name} share no round at which all have {key}')
    table = np.array([[table[number] for number in rounds] for table in tables], float)
    return table[..., 0], table[..., 1]


def curves(groups: Groups, key: str, x: str = 'round') -> list[Curve]:
    """Returns the curve of every group that has one, with its look among all groups.

    Args:
      groups: the groups; one without runs has none.
      key: as in `curve`.
      x: one of AXES.

    Raises:
      UserError: no group has such values.
    """
    group_curves, faults = [], []
    looks = style.looks([style.group_title(name) for name in groups])
    for name, runs in ((name, runs) for name, runs in groups.items() if runs):
        try:
            group_curves.append(curve(name, runs, key, x)._replace(look=looks[style.group_title(name)]))
        except UserError as error:
            faults.append(error)
    if not group_curves:
        raise faults[0]
    return group_curves


def curves_by_name(groups: Groups, keys: Mapping[str, str]) -> dict[str, list[Curve]]:
    """Returns the `curves` of every key that any group has.

    Args:
      groups: the groups.
      keys: {name: key of metrics.jsonl}.

    Returns:
      {name: curves}.
    """
    named = {}
    for name, key in keys.items():
        try:
            named[name] = curves(groups, key)
        except UserError:
            continue
    return named


def score(groups: Groups) -> Score:
    """Returns the score by which the headlines of all groups are judged; raises UserError if they differ in it."""
    return _shared({run.judged_by: run.score for runs in groups.values() for run in runs.values()})


def eval_split(groups: Groups) -> str:
    """Returns the images behind the scores of all groups, 'test' or 'validation'; raises UserError if they differ."""
    return _shared({run.eval_split: run.eval_split for runs in groups.values() for run in runs.values()})


def _shared(named: dict[str, Any]) -> Any:
    if len(named) > 1:
        raise UserError(f'some runs are scored by {" and some by ".join(sorted(named))}, which have no axis in common')
    return next(iter(named.values()))


# --- one run


def holdings(folder: Path) -> np.ndarray:
    """Counts the images of each client from partition.npz and the labels of the data set.

    Returns:
      [2, N, K + 1] by true class, the last of unknown class: unlabeled images, and labeled ones.

    Raises:
      UserError: the split or the data are missing.
    """
    advice = 'restore it from a copy, or train again in another folder'
    split, dataset = sfl.data.load_partition(folder / 'partition.npz', advice=advice), sfl.load_data(folder)
    known = np.stack([sfl.data.describe(split, dataset.train_labels, labeled) for labeled in (False, True)])
    held = [[*map(len, rows)] for rows in (split.client_index, split.client_labeled_index)]
    return np.dstack([known, held - known.sum(axis=2)])


def history(run: Run, last: int = 0) -> list[dict[str, np.ndarray]]:
    """Reads the diagnostics of a run.

    Args:
      run: the run.
      last: number of rounds with diagnostics, 0 for all.

    Raises:
      UserError: there are none.
    """
    if run.headline in DENSE:
        raise UserError(f'{run.folder} has dense tasks; diagnostics are of classification')
    rounds = sfl.diagnostics.rounds_written(run.folder)
    if not rounds:
        raise UserError(f'{run.folder} has no diagnostics; run with --config.diagnostics_every=ROUNDS')
    return [sfl.diagnostics.load(run.folder, number) for number in rounds[-last:]]


def feature_spaces(folder: Path, most: int = MOST_POINTS) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Embeds features of test images in two dimensions: before training, and by student and teacher at the end.

    By t-SNE, which begins with the first two principal components; the perplexity is 30, or a third of the number of
    points if there are few. The result is deterministic.

    Args:
      folder: folder of a run of one seed.
      most: number of images, the first ones.

    Returns:
      Title, points [n, 2] and labels [n] of each embedding.

    Raises:
      UserError: data or a checkpoint are missing, or the method's model has several parts.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    trained, initial = sfl.load_trained(folder), sfl.load_trained(folder, 0)
    dataset = trained.experiment.dataset
    images, labels = dataset.test_images[:most], dataset.test_labels[:most]
    features = {'Before training': initial.features(images)['student']}
    for name, values in trained.features(images).items():
        features[f'{name.capitalize()}, round {trained.round}'] = values
    embedding = TSNE(perplexity=min(30.0, (len(labels) - 1) / 3.0), init='pca', random_state=0, n_jobs=1)
    with threadpool_limits(1):  # fixes the order of sums; threads would not pay off for a thousand points
        points = [embedding.fit_transform(np.asarray(values, np.float32)) for values in features.values()]
    return [(title, values, labels) for title, values in zip(features, points, strict=True)]


def predictions(folder: Path) -> tuple[np.ndarray, list[Maps], int, int]:
    """Predicts test images at the last checkpoint of a run with dense tasks.

    The images are the first that differ in the class of their largest object, so many that a figure with a column of
    each is at most as tall as a page.

    Returns:
      Images [n, H, W, C] uint8, the maps of each task, the round, and the number of models of a task, of which the
      first predicts.

    Raises:
      UserError: the run of one seed, its data or a checkpoint is missing.
    """
    trained = sfl.load_trained(folder)
    trial = trained.experiment
    dataset, tasks = trial.dataset, trial.algorithm.tasks
    height, width = dataset.test_images.shape[1:3]
    most = int(np.clip(np.ceil(0.7 * (2 * len(tasks) + 1) * height / width), 6, 12))
    chosen = one_per_class_first(dataset.test_labels, most)
    images, rows, models = dataset.test_images[chosen], [], 1
    outputs = trained.predict(images)
    for name, task in tasks.items():  # in their order, which compiled functions do not keep
        assert task.show  # of every dense task
        predicted = outputs[name] if isinstance(outputs[name], tuple) else (outputs[name],)
        models = len(predicted)
        if name in PARTS:
            parts = {part: dataset.targets[name].test[part][chosen] for part in PARTS[name]}
            rows.append((task, task.show(parts, height), task.show(predicted[0], height)))
            continue
        truth = trial.test_truth[name][chosen]
        if dataset.test_sizes is not None:  # of the truths, which are resized to the images
            sizes = dataset.test_sizes[chosen]
            truth = [nearest(values[:h, :w], height, width) for values, (h, w) in zip(truth, sizes, strict=True)]
        rows.append((task, np.stack(truth), task.show(predicted[0])))
    return images, rows, trained.round, models


def one_per_class_first(labels: np.ndarray, most: int) -> np.ndarray:
    """Chooses rows: the first of each label, then the first of the others.

    Args:
      labels: [n].
      most: number of rows, or fewer if there are no more.

    Returns:
      Rows, ascending.
    """
    _, first = np.unique(labels, return_index=True)
    first = np.sort(first)[:most]
    others = np.setdiff1d(np.arange(len(labels)), first)[: most - len(first)]
    return np.sort(np.concatenate([first, others]))
