"""Dense tasks: test images, and below each of them the truths and the predictions of all tasks.

Maps of a kind are drawn alike: classes in distinct colors, probabilities from white to black, depth from dark to
bright, keypoints as dots on the faded image. Pixels without truth are gray and hatched. Beside its rows, each task has
a key of its colors.
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


def count(tasks: int, height: int, width: int) -> int:
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
                draw(ax, task, values, image)
            top += height + GAP
        key(place(LEFT + number * (width + GAP) + GAP, top - 2 * (height + GAP), 0.1, 2 * height + GAP), task)
        top += TASK_GAP - GAP
    return figure


def draw(ax: Axes, task: Task, values: np.ndarray, image: np.ndarray) -> Axes:
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


def key(ax: Axes, task: Task) -> Axes:
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
