"""Diagnostics: pseudo-labels by class and by client, the queue, the gap between teacher and student.

The arrays are those of `semisfl_jax.training.diagnostics`; every function draws on Axes and returns them.
"""

from __future__ import annotations

import colorsys
import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.core.types import Axes
from semisfl_jax.plots import style
from semisfl_jax.tasks import IGNORED, Task
from semisfl_jax.tasks.dense_losses import DEPTH_STEPS
from semisfl_jax.training.diagnostics import Rates

MOST_NUMBERS = 12  # most classes for which a confusion matrix shows its numbers
MOST_BARS = 20  # most pairs of bars, and most classes labeled on an axis


def confusion(ax: Axes, counts: np.ndarray, given: str = 'Pseudo-label') -> Axes:
    """Share of each label among the labels of a true class, in percent; a class without labels stays gray.

    Args:
      ax: Axes.
      counts: [K, K] or, with images of unknown class, which are left out, [K + 1, K]: true class, label.
      given: label of the x axis.
    """
    counts = counts[: counts.shape[1]]
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
    shades = ax.imshow(share, cmap=style.SEQUENTIAL, vmin=0, vmax=100, interpolation='nearest')
    ax.figure.colorbar(shades, ax=ax, label='Share of the true class (%)')
    ax.grid(visible=False)
    ax.set_facecolor(style.NOTHING)
    ax.set_xlabel(given)
    ax.set_ylabel('True class')
    if len(counts) <= MOST_NUMBERS:
        ax.set_xticks(range(len(counts)))
        ax.set_yticks(range(len(counts)))
        for row, column in zip(*np.nonzero(counts), strict=True):
            if share[row, column] >= 0.5:
                color = 'white' if share[row, column] > 60 else 'black'
                ax.text(
                    column, row, f'{share[row, column]:.0f}', ha='center', va='center', color=color, fontsize='x-small'
                )
    return ax


def rates(ax: Axes, values: Rates, of: str = 'Class') -> Axes:
    """Mask rate and accuracy of pseudo-labels as pairs of bars, or of points if there are many, in percent.

    Args:
      ax: Axes.
      values: rates [n] of classes or clients; NaN is not drawn.
      of: label of the x axis.
    """
    place = np.arange(len(values.mask))
    mask, accuracy = (100.0 * rate for rate in values)
    names = 'confident', 'right among confident'
    if len(place) <= MOST_BARS:
        edge = {'width': 0.4, 'edgecolor': 'black', 'linewidth': 0.4}
        ax.bar(place - 0.2, mask, color=style.BLUE, label=names[0], **edge)
        ax.bar(place + 0.2, accuracy, color=style.ORANGE, hatch='////', label=names[1], **edge)
        ax.set_xticks(place)
    else:
        ax.plot(place, mask, 'o', color=style.BLUE, label=names[0])
        ax.plot(place, accuracy, '^', color=style.VERMILION, markerfacecolor='none', label=names[1])
    ax.set_ylim(0, 103)
    ax.set_xlabel(of)
    ax.set_ylabel('Pseudo-labels (%)')
    ax.grid(visible=False, axis='x')
    style.legend(ax.figure)
    return ax


def mask_history(ax: Axes, rounds: Sequence[int], mask: np.ndarray) -> Axes:
    """Mask rate of every class over the rounds as shades; each row of pixels is a class, each column a file.

    Args:
      ax: Axes.
      rounds: [R], ascending.
      mask: [R, K], shares.
    """
    edges = np.concatenate([[rounds[0] - _half(rounds, 0)], _middles(rounds), [rounds[-1] + _half(rounds, -1)]])
    classes = np.arange(mask.shape[1] + 1) - 0.5
    shades = ax.pcolormesh(edges, classes, 100.0 * mask.T, cmap=style.SEQUENTIAL, vmin=0, vmax=100)
    ax.set_facecolor(style.NOTHING)
    ax.figure.colorbar(shades, ax=ax, label='Confident pseudo-labels (%)')
    ax.grid(visible=False)
    if mask.shape[1] <= MOST_BARS:
        ax.set_yticks(range(mask.shape[1]))
    ax.set_xlabel('Round')
    ax.set_ylabel('True class')
    return ax


def queue(ax: Axes, counts: np.ndarray, empty: int, level: str) -> Axes:
    """Slots of one level of the queue by label, stacked: correct, wrong, of unknown class, not confident.

    Args:
      ax: Axes.
      counts: [2, K + 1, K], see `semisfl_jax.training.diagnostics`.
      empty: slots without a key.
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
    title = f'{level.capitalize()} level' if level != 'ring' else 'Ring'
    ax.set_title(f'{title}: {int(counts.sum())} of {int(counts.sum()) + int(empty)} slots filled')
    if len(place) <= MOST_BARS:
        ax.set_xticks(place)
    ax.grid(visible=False, axis='x')
    ax.set_xlabel('Label')
    ax.set_ylabel('Slots')
    return ax


def gap(
    axes: np.ndarray, rounds: Sequence[int], distance: np.ndarray, pieces: Sequence[str], agreement: Sequence[float]
) -> np.ndarray:
    """Two panels: distance of teacher and student parameters, and how often both predict the same class.

    Args:
      axes: two Axes.
      rounds: [R].
      distance: [R, 3], relative to the norm of the student's parameters; NaN for a piece without parameters.
      pieces: their names.
      agreement: [R], share of test images.
    """
    left, right = axes
    names = {'bottom': 'bottom', 'top': 'top', 'proj': 'projection head'}
    present = [place for place in range(len(pieces)) if np.isfinite(distance[:, place]).any()]
    piece_looks = style.looks([*names, *map(str, pieces)])
    for place in present:
        name = str(pieces[place])
        left.plot(rounds, distance[:, place], label=names.get(name, name), **piece_looks[name].line(len(rounds), place))
    left.set_ylabel('Distance / norm of the student')
    left.set_ylim(bottom=0)
    style.legend(left.figure)
    right.plot(rounds, 100.0 * np.asarray(agreement), color=style.BLACK, marker='o', markevery=max(1, len(rounds) // 8))
    right.set_ylabel('Equal predictions (%)')
    for ax in axes:
        ax.set_xlabel('Round')
    return axes


def _middles(rounds: Sequence[int]) -> np.ndarray:
    at = np.asarray(rounds, float)
    return (at[1:] + at[:-1]) / 2.0


def _half(rounds: Sequence[int], end: int) -> float:
    """Half the distance from the first or the last round to its neighbor."""
    return abs(float(np.diff(rounds)[end])) / 2.0 if len(rounds) > 1 else 0.5


# The number of images of each class that each client holds (Fig. 7 of the paper).

MOST_BUBBLES = (50, 30)  # clients, classes; beyond that, a heat map is drawn


def partition(ax: Axes, counts: np.ndarray, client_name: str = 'Client', title: str = '') -> Axes:
    """Images of every client and class: bubbles with area proportional to the number, or a heat map if many.

    Args:
      ax: Axes.
      counts: [N, K] images.
      client_name: label of the x axis.
      title: what the images are, if there are others.

    Returns:
      ax.
    """
    clients, classes = counts.shape
    ax.set_xlabel(client_name)
    ax.set_ylabel('Class')
    ax.set_title(title, loc='left')
    if clients > MOST_BUBBLES[0] or classes > MOST_BUBBLES[1]:
        shades = ax.imshow(counts.T, origin='lower', aspect='auto', cmap=style.SEQUENTIAL, interpolation='nearest')
        ax.grid(visible=False)
        ax.figure.colorbar(shades, ax=ax, label='Images')
        return ax
    client, label = np.nonzero(counts)
    most = int(counts.max())
    area = _largest_area(ax, clients, classes) * counts[client, label] / max(most, 1)
    ax.scatter(client, label, s=area, color=style.BLUE, alpha=0.85, linewidths=0)
    ax.set_title(f'largest bubble: {most:,} images' if most else 'of unknown classes', loc='right', fontsize='small')
    ax.set_xlim(-0.6, clients - 0.4)
    ax.set_ylim(-0.6, classes - 0.4)
    ax.set_xticks(range(0, clients, 1 if clients <= 15 else 5))
    ax.set_yticks(range(classes))
    return ax


def _largest_area(ax: Axes, clients: int, classes: int) -> float:
    """Area in square points of a bubble that roughly fills a cell, if Axes take up four fifths of the figure."""
    width, height = 0.8 * 72.0 * ax.figure.get_size_inches()
    grid = ax.get_subplotspec().get_gridspec()
    sides = width / grid.ncols / clients, height / grid.nrows / classes
    diameter = min(np.sqrt(sides[0] * sides[1]), 1.1 * min(sides))
    return np.pi / 4.0 * diameter**2


# The feature space in two dimensions: t-SNE of the bottom's features of test images.

MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '<', '>', '*')


def tsne(features: np.ndarray, seed: int = 0) -> np.ndarray:
    """[n, D] -> [n, 2] by scikit-learn's t-SNE, initialized with the first two principal components; deterministic.

    The perplexity is 30, or a third of the number of points if there are few.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(features) - 1) / 3.0)
    features = np.asarray(features, np.float32)
    with threadpool_limits(1):  # fixes the order of sums; threads would not pay off for a thousand points
        return TSNE(perplexity=perplexity, init='pca', random_state=seed, n_jobs=1).fit_transform(features)


def feature_space(ax: Axes, points: np.ndarray, labels: np.ndarray, title: str = '') -> Axes:
    """Points in the plane by true class: each class has a color and a marker, and its number at its median.

    Args:
      ax: Axes.
      points: [n, 2].
      labels: [n], 0 .. K - 1.
      title: of the panel.
    """
    for label in np.unique(labels):
        class_points = points[labels == label]
        look = {
            'color': style.PALETTE[label % len(style.PALETTE)],
            'marker': MARKERS[label % len(MARKERS)],
        }
        ax.scatter(class_points[:, 0], class_points[:, 1], s=7, linewidths=0, alpha=0.75, label=str(label), **look)
        box = {'boxstyle': 'round,pad=0.15', 'facecolor': 'white', 'edgecolor': look['color'], 'linewidth': 0.8}
        x, y = np.median(class_points, axis=0)
        ax.text(x, y, str(label), ha='center', va='center', fontsize='small', bbox=box)
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(True)
    ax.set_title(title)
    return ax


# Dense tasks: test images, and below each of them the truths and the predictions of all tasks.
#
# Maps of a kind are drawn alike: classes in distinct colors, probabilities from white to black, depth from dark to
# bright, keypoints as dots on the faded image. Pixels without truth are gray and hatched. Each task has a key of its
# colors.

FEWEST, MOST = 6, 12  # images
TALLEST = 9.2  # inches, a page
# Inches around the panels and between them
LEFT, RIGHT, TOP, BOTTOM = 0.95, 0.34, 0.26, 0.06
GAP, TASK_GAP = 0.04, 0.1
MOST_TICKS = 11  # classes numbered in a key
FADE = 0.65  # share of white in the image below keypoints

CLASSES = ('semseg', 'parts', 'stuff')
WITH_BACKGROUND = ('semseg', 'parts')  # whose class 0 is background, and white
YELLOW = '#F0E442'  # the one that lines do without
CLASS_COLORS = (*style.PALETTE[:6], YELLOW, '#661100', '#66AA00', '#7A1FA2', '#E8837E', '#5F6B6D', '#5E8DEB')


class Row(NamedTuple):
    """The maps of a task."""

    task: Task
    truth: np.ndarray  # [n, H, W] uint8, IGNORED where there is none
    predicted: np.ndarray  # [n, H, W] as from `Task.show`


def images_on_a_page(tasks: int, height: int, width: int) -> int:
    """Number of images with which the figure is as wide as a page and at most as tall, between FEWEST and MOST."""
    for images in range(FEWEST, MOST):
        if _height(tasks, _panel(images, height / width)[1]) <= TALLEST:
            return images
    return MOST


def predictions(images: np.ndarray, rows: Sequence[Row], title: str = '') -> Any:
    """A figure with a column for each image: the image, and truth and prediction of each task.

    Args:
      images: [n, H, W, C] uint8.
      rows: of T tasks.
      title: above the panels.

    Returns:
      The Figure. Its axes are those of the n images, and for each task those of its n truths, of its n predictions, and
      its key.
    """
    number, tall, wide, channels = images.shape
    images = np.broadcast_to(images, (number, tall, wide, 3)) if channels == 1 else images
    width, height = _panel(number, tall / wide)
    total = _height(len(rows), height)
    figure = style.matplotlib().figure.Figure(figsize=(style.WIDTHS['page'], total))

    def place(left: float, top: float, width: float, height: float) -> Any:
        page = style.WIDTHS['page']
        ax = figure.add_axes((left / page, 1 - (top + height) / total, width / page, height / total))
        ax.grid(visible=False)
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set(visible=True, linewidth=0.4, color=style.GRAY)
        return ax

    def write(left: float, top: float, words: str, **how: Any) -> None:
        how = {'va': 'center', 'ha': 'left', **how}
        figure.text(left / style.WIDTHS['page'], 1 - top / total, words, **how)

    def line(top: float) -> list[Any]:
        return [place(LEFT + index * (width + GAP), top, width, height) for index in range(number)]

    write(GAP, TOP / 2, title, fontsize=8)
    write(GAP, TOP + height / 2, 'Image')
    for ax, image in zip(line(TOP), images, strict=True):
        ax.imshow(image)
    top = TOP + height + TASK_GAP
    for task, *both in rows:
        write(GAP, top + height + GAP / 2, textwrap.fill(task.title, 13))
        for name, maps in zip(('truth', 'prediction'), both, strict=True):
            write(LEFT - 0.09, top + height / 2, name, rotation=90, fontsize=6, ha='center')
            for ax, values, image in zip(line(top), maps, images, strict=True):
                map_(ax, task, values, image)
            top += height + GAP
        map_key(place(LEFT + number * (width + GAP) + GAP, top - 2 * (height + GAP), 0.1, 2 * height + GAP), task)
        top += TASK_GAP - GAP
    return figure


def map_(ax: Axes, task: Task, values: np.ndarray, image: np.ndarray) -> Axes:
    """One map of a task.

    Args:
      ax: Axes.
      task: of the map.
      values: [H, W], a truth or a prediction.
      image: [H, W, 3] uint8, below keypoints.
    """
    missing = values == IGNORED  # predictions have no such value
    ax.patch.set(facecolor=style.NOTHING, hatch='/////', edgecolor='white')  # seen where pixels are transparent
    if task.name != 'keypoints':
        between = 'nearest' if task.name in CLASSES else None  # there is nothing between two classes
        ax.imshow(np.ma.masked_array(values, missing), interpolation=between, **_colors(task))
        return ax
    faded = FADE * 255 + (1 - FADE) * image.astype(np.float64)
    alpha = np.where(missing, 0, 255)[..., None]
    ax.imshow(np.concatenate([faded, alpha], axis=-1).astype(np.uint8))
    y, x = np.nonzero(~missing & (values > 0))
    ax.scatter(x, y, c=values[y, x], s=9, linewidths=0.5, edgecolors='white', zorder=3, **_colors(task))
    return ax


def map_key(ax: Axes, task: Task) -> Axes:
    """The colors of a task's values, numbered at their right; depth and probability from 0 to 1."""
    colors = _colors(task)
    low, high = colors['vmin'], colors['vmax']
    if classes := task.name in ('keypoints', *CLASSES):
        values, step = np.arange(math.ceil(low), high), -(-task.outputs // MOST_TICKS)
        ticks = values[::step]
    else:
        values, ticks = np.linspace(high, low, 256), np.array([high, low])
    edges = (high, low) if classes else (low, high)  # classes downward, as they are listed; numbers upward
    ax.imshow(values[:, None], aspect='auto', interpolation='nearest', extent=(0, 1, *edges), **colors)
    ax.yaxis.tick_right()
    ax.set_yticks(ticks, [f'{tick:g}' if classes else f'{tick / high:g}' for tick in ticks], fontsize=5)
    ax.tick_params(axis='y', length=0, pad=1.5)
    return ax


def class_colors(number: int, background: bool = False) -> list[Any]:
    """Colors of `number` classes, all different; with `background` the first is white."""
    first: list[Any] = ['#FFFFFF'] if background else []
    turns = range(number - len(CLASS_COLORS) - len(first))  # hues a golden section apart, in three shades
    shades = (0.45, 0.9), (0.9, 0.75), (0.7, 0.5)  # saturation and value
    more = [colorsys.hsv_to_rgb(0.618034 * turn % 1, *shades[turn % 3]) for turn in turns]
    return [*first, *CLASS_COLORS, *more][:number]


def _colors(task: Task) -> dict[str, Any]:
    """The color of every value of a task: arguments of `Axes.imshow`."""
    listed = style.matplotlib().colors.ListedColormap
    if task.name in CLASSES:
        colors = class_colors(task.outputs, task.name in WITH_BACKGROUND)
        return {'cmap': listed(colors), 'vmin': -0.5, 'vmax': task.outputs - 0.5}
    if task.name == 'keypoints':
        return {'cmap': listed(class_colors(task.outputs)), 'vmin': 0.5, 'vmax': task.outputs + 0.5}
    if task.name == 'depth':
        return {'cmap': 'viridis', 'vmin': 0, 'vmax': DEPTH_STEPS}
    return {'cmap': 'gray_r', 'vmin': 0, 'vmax': 1}


def _panel(images: int, aspect: float) -> tuple[float, float]:
    """Width and height of a panel, in inches."""
    width = (style.WIDTHS['page'] - LEFT - RIGHT) / images - GAP
    return width, aspect * width


def _height(tasks: int, height: float) -> float:
    """Of the figure, in inches."""
    return TOP + (2 * tasks + 1) * height + tasks * (TASK_GAP + GAP) + BOTTOM
