"""Figures of one run: the partition, pseudo-labels, the queue, teacher and student, feature space, predictions.

Functions of Axes draw on them and return them; the other ones are the figures. Arrays of diagnostics are those of
`sfl.diagnostics`.
"""

import colorsys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from semisfl_jax import diagnostics
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.plots import collect, draw, style
from semisfl_jax.lab.plots.style import Axes
from semisfl_jax.runs import Run
from semisfl_jax.tasks import DENSE, IGNORED, PARTS, PER_CLASS, Task, score_key
from semisfl_jax.tasks.coco_scores import PEOPLE
from semisfl_jax.tasks.dense_losses import DEPTH_STEPS

MOST_NUMBERS = 12  # most classes for which a confusion matrix shows its numbers
MOST_CLASSES = 20  # labeled on an axis, or clients
MOST_BUBBLES = (50, 30)  # clients, classes; beyond that, a heat map is drawn
MOST_BESIDE = 15  # clients in a column, or in one of two panels on a page

# Dense tasks
CLASSES = ('semseg', 'parts', 'stuff', 'instances', 'panoptic')
WITH_BACKGROUND = ('semseg', 'parts', 'instances', 'panoptic')  # their class 0 is background, and white
POINTS = ('keypoints', 'persons')
CLASS_COLORS = (*style.PALETTE[:6], '#F0E442', '#661100', '#66AA00', '#7A1FA2', '#E8837E', '#5F6B6D', '#5E8DEB')
MOST_TICKS = 11  # classes numbered in a key
FADE = 0.65  # share of white in the image below keypoints


def _name_classes(run: Run, *axes: Any) -> None:
    """Writes the names of classes, where the data have some, in place of their numbers on axes that number each."""
    for axis in axes:
        if run.class_names and list(axis.get_ticklocs()) == list(range(len(run.class_names))):
            axis.set_ticks(axis.get_ticklocs(), labels=run.class_names, rotation=90 if axis.axis_name == 'x' else 0)


# --- what the clients hold


def partition(ax: Axes, counts: np.ndarray, title: str = '') -> Axes:
    """Draws which client holds how many images of which class (Fig. 7 of the paper).

    The areas of bubbles are proportional to the numbers; of many clients or classes it is a heat map.

    Args:
      ax: where to draw.
      counts: [N, K + 1] images of every client and class, the last of unknown class.
      title: what they are, if there are others.
    """
    known = counts.shape[1] - 1
    ax.set(xlabel='Client', ylabel='Class (top row: unknown)' if counts[:, known].any() else 'Class')
    counts = counts if counts[:, known].any() else counts[:, :known]
    clients, classes = counts.shape
    ax.set_title(title, loc='left')
    if clients > MOST_BUBBLES[0] or classes > MOST_BUBBLES[1]:
        shades = ax.imshow(counts.T, origin='lower', aspect='auto', cmap=style.SEQUENTIAL, interpolation='nearest')
        ax.grid(visible=False)
        ax.figure.colorbar(shades, ax=ax, label='Images')
        return ax
    # In points, of a cell, if Axes take up four fifths of the figure; the largest bubble roughly fills it
    grid = ax.get_subplotspec().get_gridspec()
    cell = 0.8 * 72.0 * ax.figure.get_size_inches() / (grid.ncols * clients, grid.nrows * classes)
    diameter = min(np.sqrt(cell.prod()), 1.1 * cell.min())
    client, label = np.nonzero(counts)
    most = int(counts.max())
    area = np.pi / 4.0 * diameter**2 * counts[client, label] / max(most, 1)
    ax.scatter(client, label, s=area, color=style.BLUE, alpha=0.85, linewidths=0)
    ax.set_title(f'largest bubble: {most:,} images', loc='right', fontsize='small')
    ax.set(xlim=(-0.6, clients - 0.4), ylim=(-0.6, classes - 0.4), yticks=range(known))
    ax.set_xticks(range(0, clients, 1 if clients <= 15 else 5))
    return ax


@draw.run_figure('partition', 'which client holds how many images of which class')
def _partition(run: Run) -> Any:
    unlabeled, labeled = collect.holdings(run.folder)
    held = {'Unlabeled': unlabeled, 'Labeled': labeled} if labeled.any() else {'': unlabeled}
    few = len(unlabeled) <= MOST_BESIDE
    shape = (1, len(held)) if few else (len(held), 1)
    figure, axes = style.figure(*shape, 'column' if few and len(held) == 1 else 'page')
    for ax, (title, counts) in zip(np.atleast_1d(axes), held.items(), strict=True):
        partition(ax, counts, title)
        _name_classes(run, ax.yaxis)
    return figure


# --- diagnostics


def confusion(ax: Axes, counts: np.ndarray) -> Axes:
    """Draws the share of each label among the labels of a true class, in percent; a class without labels stays gray.

    Args:
      ax: where to draw.
      counts: [K, K] of true class and label, or [K + 1, K] with images of unknown class, which are left out.
    """
    counts = counts[: counts.shape[1]]
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
    shades = ax.imshow(share, cmap=style.SEQUENTIAL, vmin=0, vmax=100, interpolation='nearest')
    ax.figure.colorbar(shades, ax=ax, label='Share of the true class (%)')
    ax.grid(visible=False)
    ax.set(facecolor=style.NOTHING, xlabel='Pseudo-label', ylabel='True class')
    if len(counts) <= MOST_NUMBERS:
        ax.set(xticks=range(len(counts)), yticks=range(len(counts)))
        centered = {'ha': 'center', 'va': 'center', 'fontsize': 'x-small'}
        for row, column in np.argwhere(share >= 0.5):
            value = share[row, column]
            ax.text(column, row, f'{value:.0f}', color='white' if value > 60 else 'black', **centered)
    return ax


def rates(ax: Axes, values: diagnostics.Rates, of: str = 'Class') -> Axes:
    """Draws mask rate and accuracy of pseudo-labels of n classes or clients as pairs of points, in percent.

    Args:
      ax: where to draw.
      values: [n] each; NaN is not drawn.
      of: what they are of, for the axis.
    """
    mask, accuracy = (100.0 * rate for rate in values)
    ax.plot(mask, 'o', color=style.BLUE, label='confident')
    ax.plot(accuracy, '^', color=style.VERMILION, markerfacecolor='none', label='right among confident')
    if len(mask) <= MOST_CLASSES:
        ax.set_xticks(range(len(mask)))
    ax.set(ylim=(0, 103), xlabel=of, ylabel='Pseudo-labels (%)')
    ax.grid(visible=False, axis='x')
    style.legend(ax.figure)
    return ax


def class_history(ax: Axes, rounds: Sequence[int], share: np.ndarray, label: str) -> Axes:
    """Draws shares of classes over rounds as shades; each column of pixels is a round.

    Args:
      ax: where to draw.
      rounds: [R] ascending.
      share: [R, K] of every class.
      label: what they are.
    """
    middles = np.asarray(rounds, float)
    if len(rounds) == 1:  # pcolormesh needs two to know the width of a pixel
        middles, share = np.array([rounds[0] - 0.25, rounds[0] + 0.25]), np.repeat(share, 2, axis=0)
    shades = ax.pcolormesh(
        middles, np.arange(share.shape[1]), 100.0 * share.T, cmap=style.SEQUENTIAL, vmin=0, vmax=100, shading='nearest'
    )
    ax.figure.colorbar(shades, ax=ax, label=label)
    ax.grid(visible=False)
    ax.set(facecolor=style.NOTHING, xlabel='Round', ylabel='True class')
    ax.xaxis.get_major_locator().set_params(integer=True)
    if share.shape[1] <= MOST_CLASSES:
        ax.set_yticks(range(share.shape[1]))
    return ax


def queue(ax: Axes, counts: np.ndarray, empty: int, level: str) -> Axes:
    """Draws the slots of one level of the queue by label, stacked: right, wrong, of unknown class, not confident.

    Args:
      ax: where to draw.
      counts: [2, K + 1, K] as in `sfl.diagnostics`.
      empty: number of slots without a key.
      level: its name.
    """
    unsure, sure = counts
    place, correct = np.arange(counts.shape[2]), np.diagonal(sure)
    parts = {
        'right': (correct, style.GREEN, ''),
        'wrong': (sure[:-1].sum(axis=0) - correct, style.VERMILION, '////'),
        'class unknown': (sure[-1], style.SKY, '....'),
        'not confident': (unsure.sum(axis=0), 'white', ''),
    }
    below = np.zeros(len(place))
    for name, (slots, color, hatch) in parts.items():
        if slots.any():
            ax.bar(place, slots, bottom=below, color=color, hatch=hatch, label=name, edgecolor='black', linewidth=0.4)
        below = below + slots
    title, filled = f'{level.capitalize()} level' if level != 'ring' else 'Ring', int(counts.sum())
    ax.set(title=f'{title}: {filled} of {filled + int(empty)} slots filled', xlabel='Label', ylabel='Slots')
    if len(place) <= MOST_CLASSES:
        ax.set_xticks(place)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.grid(visible=False, axis='x')
    return ax


def _confident(run: Run, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the confident labels of the headline model, and the unlabeled images."""
    return arrays[f'{run.headline}_confident'], arrays['unlabeled']


@draw.run_figure('confusion', 'pseudo-labels by true class (diagnostics)')
def _confusion(run: Run) -> Any:
    confident, _ = _confident(run, *collect.history(run, last=1))
    figure, ax = style.figure(height=2.9)
    figure.set_layout_engine('compressed')  # with 'constrained', a square image pushes the label over the edge
    confusion(ax, confident.sum(axis=0))
    _name_classes(run, ax.xaxis, ax.yaxis)
    return figure


def _rates(of: str, measure: Callable[[np.ndarray, np.ndarray], diagnostics.Rates], run: Run) -> Any:
    values = measure(*_confident(run, *collect.history(run, last=1)))
    figure, ax = style.figure()
    rates(ax, values, of)
    if of == 'Class':
        _name_classes(run, ax.xaxis)
    return figure


draw.run_figure('classes', 'pseudo-labels of each class (diagnostics)')(
    partial(_rates, 'Class', diagnostics.class_rates)
)
draw.run_figure('clients', 'of each client (diagnostics)')(partial(_rates, 'Client', diagnostics.client_rates))


@draw.run_figure('mask_history', 'confident pseudo-labels of each class over rounds (diagnostics)')
def _mask_history(run: Run) -> Any:
    history = collect.history(run)
    mask = [diagnostics.class_rates(*_confident(run, arrays)).mask for arrays in history]
    figure, ax = style.figure()
    rounds = [int(arrays['round']) for arrays in history]
    class_history(ax, rounds, np.stack(mask), 'Confident pseudo-labels (%)')
    _name_classes(run, ax.yaxis)
    return figure


@draw.run_figure('accuracy_per_class', 'test accuracy of each class over rounds')
def _accuracy_per_class(run: Run) -> Any:
    key = score_key(run.headline, PER_CLASS.name)
    rows = run.table[run.table['key'].str.startswith(f'{key}/')]
    if rows.empty:
        raise UserError(f'{run.folder}/metrics.jsonl has no {key}')
    shares = rows.pivot(index='round', columns='key', values='value')[rows['key'].unique()]
    figure, ax = style.figure()
    class_history(ax, [*shares.index], shares.to_numpy(), f'{run.eval_split.capitalize()} accuracy (%)')
    _name_classes(run, ax.yaxis)
    return figure


@draw.run_figure('queue', 'what the queue holds (diagnostics)')
def _queue(run: Run) -> Any:
    (arrays,) = collect.history(run, last=1)
    if 'queue' not in arrays:
        why = 'the method has none, or its labels depend on what it keeps of clients'
        raise UserError(f'the diagnostics of {run.folder} have no queue: {why}')
    levels = arrays['queue_levels'].tolist()
    figure, axes = style.figure(1, len(levels), 'page' if len(levels) > 1 else 'column', 2.5)
    for ax, *level in zip(np.atleast_1d(axes), arrays['queue'], arrays['queue_empty'], levels, strict=True):
        queue(ax, *level)
        _name_classes(run, ax.xaxis)
    style.legend(figure)
    return figure


@draw.run_figure('gap', 'teacher and student: distance of their parameters, and equal predictions (diagnostics)')
def _gap(run: Run) -> Any:
    history = collect.history(run)
    if 'distance' not in history[0]:
        raise UserError(f'{run.folder} has no teacher')
    rounds, pieces = [int(arrays['round']) for arrays in history], history[0]['pieces'].tolist()
    norm, distance = (np.stack([arrays[name] for arrays in history]) for name in ('norm', 'distance'))
    distance = np.divide(distance, norm, out=np.full(norm.shape, np.nan), where=norm > 0)  # NaN: no parameters
    equal = [100.0 * np.trace(arrays['agreement']) / arrays['agreement'].sum() for arrays in history]
    looks = style.looks(pieces)
    figure, (left, right) = style.figure(1, 2, 'page')
    for place, name in enumerate(pieces):
        if np.isfinite(distance[:, place]).any():
            look = looks[name].line(len(rounds), place)
            left.plot(rounds, distance[:, place], label='projection head' if name == 'proj' else name, **look)
    right.plot(rounds, equal, color=style.BLACK, marker='o', markevery=max(1, len(rounds) // 8))
    left.set(xlabel='Round', ylabel='Distance / norm of the student')
    left.set_ylim(bottom=0)
    right.set(xlabel='Round', ylabel='Equal predictions (%)')
    for ax in (left, right):
        ax.xaxis.get_major_locator().set_params(integer=True)
    style.legend(figure)
    return figure


# --- feature space


def feature_space(ax: Axes, points: np.ndarray, labels: np.ndarray, title: str = '', names: Sequence[str] = ()) -> Axes:
    """Draws points by true class: each class has a color and a marker, and its name or number at its median.

    Args:
      ax: where to draw.
      points: [n, 2].
      labels: [n].
      title: of the panel.
      names: of the classes, () for numbers.
    """
    for label in np.unique(labels):
        members, name = points[labels == label], names[label] if names else str(label)
        color, marker = style.PALETTE[label % len(style.PALETTE)], style.MARKERS[label % len(style.MARKERS)]
        ax.scatter(*members.T, s=7, linewidths=0, alpha=0.75, label=name, color=color, marker=marker)
        box = {'boxstyle': 'round,pad=0.15', 'facecolor': 'white', 'edgecolor': color, 'linewidth': 0.8}
        ax.text(*np.median(members, axis=0), name, ha='center', va='center', fontsize='small', bbox=box)
    ax.set(xticks=[], yticks=[], title=title)
    ax.spines[:].set_visible(True)
    return ax


@draw.run_figure('features', 't-SNE of student and teacher before and after training', slow=True)
def _features(run: Run) -> Any:
    spaces = collect.feature_spaces(run.folder)
    figure, axes = style.figure(1, len(spaces), 'page', 2.5)
    split = '' if run.eval_split == 'test' else f' ({run.eval_split} images)'
    for ax, (title, points, labels) in zip(axes, spaces, strict=True):
        feature_space(ax, points, labels, title + split, run.class_names)
    return figure


# --- dense tasks


def dense_map(ax: Axes, task: Task, values: np.ndarray, image: np.ndarray) -> Any:
    """Draws one map of a dense task; pixels without truth are gray and hatched.

    Classes have distinct colors, probabilities go from white to black, depth from dark to bright, and keypoints and the
    joints of people are dots on the faded image.

    Args:
      ax: where to draw.
      task: the task.
      values: [H, W].
      image: [H, W, 3].

    Returns:
      The colored artist, for `Figure.colorbar`.
    """
    missing = values == IGNORED  # predictions have no such value
    ax.patch.set(facecolor=style.NOTHING, hatch='/////', edgecolor='white')  # seen where pixels are transparent
    if task.name not in POINTS:
        between = 'nearest' if task.name in CLASSES else None  # there is nothing between two classes
        return ax.imshow(np.ma.masked_array(values, missing), interpolation=between, **_colors(task))
    faded = FADE * 255 + (1 - FADE) * image.astype(np.float64)
    alpha = np.where(missing, 0, 255)[..., None]
    ax.imshow(np.concatenate([faded, alpha], axis=-1).astype(np.uint8))
    y, x = np.nonzero(~missing & (values > 0))
    return ax.scatter(x, y, c=values[y, x], s=9, linewidths=0.5, edgecolors='white', zorder=3, **_colors(task))


def class_colors(number: int, background: bool = False) -> list[Any]:
    """Returns colors of classes, all different.

    Args:
      number: of classes.
      background: whether the first is white.
    """
    first: list[Any] = ['#FFFFFF'] if background else []
    turns = range(number - len(CLASS_COLORS) - len(first))  # hues a golden section apart, in three shades
    shades = (0.45, 0.9), (0.9, 0.75), (0.7, 0.5)  # saturation and value
    more = [colorsys.hsv_to_rgb(0.618034 * turn % 1, *shades[turn % 3]) for turn in turns]
    return [*first, *CLASS_COLORS, *more][:number]


def _colors(task: Task) -> dict[str, Any]:
    """Returns the color of every value of a task, as arguments of `Axes.imshow` and `Axes.scatter`."""
    listed = style.matplotlib().colors.ListedColormap
    if task.name in CLASSES:
        number = task.outputs + (task.name in PARTS)  # objects number their classes from 1
        return {'cmap': listed(class_colors(number, task.name in WITH_BACKGROUND)), 'vmin': -0.5, 'vmax': number - 0.5}
    if task.name in POINTS:
        number = _kinds(task)
        return {'cmap': listed(class_colors(number)), 'vmin': 0.5, 'vmax': number + 0.5}
    if task.name == 'depth':
        return {'cmap': 'viridis', 'vmin': 0, 'vmax': DEPTH_STEPS}
    return {'cmap': 'gray_r', 'vmin': 0, 'vmax': 1}


def _kinds(task: Task) -> int:
    """Returns how many colors its points have: those of types, or of people."""
    return PEOPLE if task.name == 'persons' else task.outputs


def predictions(images: np.ndarray, rows: Sequence[collect.Maps], title: str = '') -> Any:
    """Draws a column for each image: the image, and truth and prediction of each task.

    Args:
      images: [n, H, W, C].
      rows: the maps of each task.
      title: of the Figure.
    """
    number, height, width, channels = images.shape
    images = images[..., [0, 1, 2] if channels >= 3 else [0, 0, 0]]
    page, lines = style.WIDTHS['page'], 2 * len(rows) + 1
    tall = 0.3 + lines * (0.03 + 0.88 * page / number * height / width)  # inches
    figure = style.matplotlib().figure.Figure(figsize=(page, tall), layout='compressed')
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    figure.suptitle(title, fontsize=8)
    axes = figure.subplots(lines, number, squeeze=False)
    for ax in axes.flat:
        ax.grid(visible=False)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set(visible=True, linewidth=0.4, color=style.GRAY)
    for ax, image in zip(axes[0], images, strict=True):
        ax.imshow(image)
    axes[0, 0].set_ylabel('image', fontsize=6)
    for (task, *both), panels in zip(rows, axes[1:].reshape(len(rows), 2, number), strict=True):
        for name, maps, line in zip(('truth', 'prediction'), both, panels, strict=True):
            line[0].set_ylabel(name, fontsize=6)
            for ax, values, image in zip(line, maps, images, strict=True):
                colored = dense_map(ax, task, values, image)
        key = figure.colorbar(colored, ax=panels, aspect=40, pad=0.01)
        key.set_label(task.title, fontsize=6)
        key.ax.tick_params(length=0, labelsize=5)
        if task.name in (*POINTS, *CLASSES):
            first = int(task.name in POINTS)
            last = _kinds(task) if first else task.outputs - (task.name not in PARTS)
            ticks = range(first, last + 1)[:: -(-last // MOST_TICKS)]
            key.set_ticks(ticks, labels=map(str, ticks))
            key.ax.minorticks_off()
            key.ax.invert_yaxis()
        else:
            key.set_ticks([0, key.vmax], labels=['0', '1'])
    return figure


@draw.run_figure('predictions', 'of dense tasks, below the truths of some test images', slow=True)
def _predictions(run: Run) -> Any:
    if run.headline not in DENSE:
        raise UserError(f'{run.folder} has no dense tasks')
    images, rows, number, models = collect.predictions(run.folder)
    which = f', the first of the {models} models of each task' if models > 1 else ''
    which += '' if run.eval_split == 'test' else f', {run.eval_split} images'
    return predictions(images, rows, f'{style.group_title(run.settings["algorithm"])}, round {number}{which}')
