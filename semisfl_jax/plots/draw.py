"""Draws every figure that runs have the data for, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from semisfl_jax.core.errors import UserError
from semisfl_jax.plots import collect, curves, inside, style
from semisfl_jax.plots.collect import Groups
from semisfl_jax.runs import Run
from semisfl_jax.tasks import ACCURACY, DENSE
from semisfl_jax.training import diagnostics

MOST_PANELS = 4  # side by side on a page
MOST_BESIDE = 15  # clients in a column, or in one of two panels on a page


def _score(x: str) -> Callable[[Groups], Any]:
    def draw(groups: Groups) -> Any:
        figure, ax = style.figure()
        of_groups = collect.curves(groups, collect.SCORE, x, every=True)
        curves.score(ax, of_groups, x, collect.score(groups), collect.eval_split(groups))
        return figure

    return draw


def _k_s(groups: Groups) -> Any:
    steps = collect.curves(groups, 'k_s')
    if not any(curve.mean.any() for curve in steps):
        raise UserError('no run has supervised steps at the server (k_s=0)')
    figure, ax = style.figure()
    curves.k_s(ax, steps)
    return figure


def _pseudo_labels(groups: Groups) -> Any:
    mask_rate = collect.curves(groups, 'mask_rate')
    try:
        accuracy = collect.curves(groups, 'pseudo_label_accuracy')
    except UserError:  # no label was ever confident, or true classes are unknown
        accuracy = []
    figure, axes = style.figure(1, 2, 'page')
    curves.pseudo_labels(axes, mask_rate, accuracy)
    return figure


def _losses(groups: Groups) -> Any:
    if not (losses := collect.losses(groups)):
        raise UserError('no run has a loss in its metrics.jsonl')
    figure, axes = _panels(len(losses))
    curves.losses(axes, losses)
    return figure


def _scores(groups: Groups) -> Any:
    if not (scores := collect.task_scores(groups)):
        raise UserError('no run has dense tasks')
    figure, axes = _panels(len(scores))
    curves.scores(axes, scores, collect.eval_split(groups))
    return figure


def _panels(count: int) -> tuple[Any, np.ndarray]:
    """A figure as wide as a page, and the Axes of at least `count` panels."""
    rows = -(-count // MOST_PANELS)
    figure, axes = style.figure(rows, -(-count // rows), 'page', 1.9)
    return figure, np.atleast_1d(axes).ravel()


def _partition(run: Run) -> Any:
    unlabeled, labeled = collect.holdings(run.folder)
    few = len(unlabeled) <= MOST_BESIDE
    if not labeled.any():
        figure, ax = style.figure(width='column' if few else 'page')
        inside.partition(ax, unlabeled)
        return figure
    figure, axes = style.figure(1 if few else 2, 2 if few else 1, 'page')
    inside.partition(axes[0], unlabeled, title='Unlabeled')
    inside.partition(axes[1], labeled, title='Labeled')
    return figure


def _labeled(run: Run) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """The last diagnostics, and from them the confident labels of the headline model and the unlabeled images."""
    arrays = collect.last_diagnostics(run.folder)
    return arrays, arrays[f'{run.headline}_confident'], arrays['unlabeled']


def _confusion(run: Run) -> Any:
    _, confident, _ = _labeled(run)
    figure, ax = style.figure(height=2.9)
    inside.confusion(ax, confident.sum(axis=0))
    return figure


def _classes(run: Run) -> Any:
    _, confident, unlabeled = _labeled(run)
    figure, ax = style.figure()
    inside.rates(ax, diagnostics.class_rates(confident, unlabeled), 'Class')
    return figure


def _clients(run: Run) -> Any:
    _, confident, unlabeled = _labeled(run)
    figure, ax = style.figure()
    inside.rates(ax, diagnostics.client_rates(confident, unlabeled), 'Client')
    return figure


def _mask_history(run: Run) -> Any:
    history = collect.history(run.folder)
    mask = [
        diagnostics.class_rates(arrays[f'{run.headline}_confident'], arrays['unlabeled']).mask for arrays in history
    ]
    figure, ax = style.figure()
    inside.mask_history(ax, [int(arrays['round']) for arrays in history], np.stack(mask))
    return figure


def _queue(run: Run) -> Any:
    arrays, _, _ = _labeled(run)
    if 'queue' not in arrays:
        raise UserError(
            f'the diagnostics of {run.folder} have no queue: the method has none, or it cannot be recomputed'
        )
    levels = arrays['queue_levels'].tolist()
    figure, axes = style.figure(1, len(levels), 'page' if len(levels) > 1 else 'column', 2.5)
    axes = np.atleast_1d(axes)
    for ax, *level in zip(axes, arrays['queue'], arrays['queue_empty'], levels, strict=True):
        inside.queue(ax, *level)
    style.legend(figure)
    return figure


def _gap(run: Run) -> Any:
    history = collect.history(run.folder)
    if 'distance' not in history[0]:
        raise UserError(f'{run.folder} has no teacher')
    norm = np.stack([arrays['norm'] for arrays in history])
    distance = np.stack([arrays['distance'] for arrays in history])
    distance = np.divide(distance, norm, out=np.full(norm.shape, np.nan), where=norm > 0)
    agreement = [np.trace(arrays['agreement']) / arrays['agreement'].sum() for arrays in history]
    figure, axes = style.figure(1, 2, 'page')
    inside.gap(axes, [int(arrays['round']) for arrays in history], distance, history[0]['pieces'].tolist(), agreement)
    return figure


def _features(run: Run) -> Any:
    spaces = collect.feature_spaces(run.folder)
    figure, axes = style.figure(1, len(spaces), 'page', 2.5)
    of_validation = '' if run.eval_split == 'test' else f' ({run.eval_split} images)'
    for ax, space in zip(axes, spaces, strict=True):
        inside.feature_space(ax, space.points, space.labels, space.title + of_validation)
    return figure


def _predictions(run: Run) -> Any:
    if run.headline not in DENSE:
        raise UserError(f'{run.folder} has no dense tasks')
    images, rows, number, models = collect.predictions(run.folder)
    which = f', the first of the {models} models of each task' if models > 1 else ''
    which += '' if run.eval_split == 'test' else f', {run.eval_split} images'
    return inside.predictions(images, rows, f'{style.group_title(run.settings["algorithm"])}, round {number}{which}')


# Figures with a line for every group of runs, and figures of one run (that of the lowest seed of a group).
OF_GROUPS: dict[str, Callable[[Groups], Any]] = {
    'accuracy_rounds': _score('round'),
    'accuracy_gigabytes': _score('gigabytes'),
    'accuracy_minutes': _score('minutes'),
    'scores': _scores,
    'k_s': _k_s,
    'pseudo_labels': _pseudo_labels,
    'losses': _losses,
}
OF_RUN: dict[str, Callable[[Run], Any]] = {
    'partition': _partition,
    'confusion': _confusion,
    'classes': _classes,
    'clients': _clients,
    'mask_history': _mask_history,
    'queue': _queue,
    'gap': _gap,
    'features': _features,
    'predictions': _predictions,
}
NAMES = (*OF_GROUPS, *OF_RUN)
SLOW = ('features', 'predictions')  # figures that take more than a few seconds
DIAGNOSTICS = ('confusion', 'classes', 'clients', 'mask_history', 'queue', 'gap')


def figures(groups: Groups, names: tuple[str, ...] = NAMES) -> Iterator[tuple[str, Any]]:
    """Draws figures; call inside `style.context`.

    Args:
      groups: of runs, as returned by `runs.group`.
      names: of the figures wanted, from NAMES.

    Returns:
      Pairs of a file name without extension and a matplotlib Figure, or the UserError explaining why there is none.
      The file name is that of the figure, with the score for 'accuracy' where all runs are judged by another one, and
      with the group where there are several.
    """
    for name in names:
        if name in OF_GROUPS:
            yield _stem(name, groups), _attempt(OF_GROUPS[name], groups)
            continue
        for group, runs in groups.items():
            stem = name if len(groups) == 1 else f'{name}-{slug(group)}'
            yield stem, _attempt(partial(_of_run, name), runs[min(runs)])


def _of_run(name: str, run: Run) -> Any:
    if name in DIAGNOSTICS and run.headline in DENSE:
        raise UserError(f'{run.folder} has dense tasks; diagnostics are of classification')
    return OF_RUN[name](run)


def _stem(name: str, groups: Groups) -> str:
    """The file name of a figure of groups: 'miou_rounds' for 'accuracy_rounds' if they are judged by mIoU."""
    kind, *axis = name.split('_')
    scores = {run.score.name for runs in groups.values() for run in runs.values()}
    return '_'.join([*scores, *axis]) if kind == ACCURACY.name and len(scores) == 1 else name


def slug(text: str) -> str:
    """A group's label as part of a file name: 'algorithm=semisfl, k_s=20' -> 'semisfl_k_s-20'."""
    name = text.removeprefix('algorithm=').replace(', ', '_').replace('=', '-')
    return ''.join(letter if letter.isalnum() or letter in '._-' else '-' for letter in name)


def _attempt(draw: Callable, data: Any) -> Any:
    try:
        return draw(data)
    except UserError as error:
        return error
