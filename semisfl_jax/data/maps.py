"""Maps of numbers per pixel, [H, W] or [..., H, W]: exact integer arithmetic, and decoding together with images."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from semisfl_jax.core.errors import UserError
from semisfl_jax.data.decode import Chunk, MapShape, Stream, decode, read_image, resize
from semisfl_jax.tasks import IGNORED


def nearest(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """A map [H, W, ...], resized: each pixel takes the value under its center."""
    if values.shape[:2] == (height, width):
        return values
    sides = zip((height, width), values.shape, strict=False)
    rows, columns = ((2 * np.arange(side) + 1) * length // (2 * side) for side, length in sides)
    return values[rows[:, None], columns]


def smooth(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image [H, W] or [H, W, C] uint8, resized with an antialiased bilinear filter, as Pillow's BILINEAR.

    In whole numbers, so that the result is the same on every machine and with every version of Pillow.
    """
    if values.shape[:2] == (height, width):
        return values
    rows, columns = _triangle(values.shape[0], height), _triangle(values.shape[1], width)
    channels = np.moveaxis(values.astype(np.float64), (0, 1), (-2, -1))
    total = rows @ channels @ columns.T  # exact: far below 2^53
    weight = np.outer(rows.sum(axis=1), columns.sum(axis=1))
    rounded = np.floor((2 * total + weight) / (2 * weight))
    return np.moveaxis(rounded, (-2, -1), (0, 1)).astype(np.uint8)


@functools.cache
def _triangle(source: int, target: int) -> np.ndarray:
    """Weights [target, source], whole numbers, of a filter that falls linearly to 0 over a pixel of the coarser grid.

    Positions are in units of 1 / (2 target) pixels of the source, so that all centers are whole numbers.
    """
    centers = (2 * np.arange(target) + 1) * source
    distance = np.abs(centers[:, None] - (2 * np.arange(source, dtype=np.int64) + 1) * target)
    return np.maximum(2 * max(source, target) - distance, 0).astype(np.float64)


def borders(regions: np.ndarray) -> np.ndarray:
    """Pixels whose right or lower neighbor belongs to another region: regions [..., H, W] -> [..., H, W] bool."""
    edges = np.zeros(regions.shape, bool)
    edges[..., :, :-1] |= regions[..., :, :-1] != regions[..., :, 1:]
    edges[..., :-1, :] |= regions[..., :-1, :] != regions[..., 1:, :]
    return edges


def known_borders(regions: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Borders as a target [..., H, W] uint8: 0 or 1, or IGNORED where the pixel or a neighbor is unknown."""
    truth = known.copy()
    truth[..., :, :-1] &= known[..., :, 1:]
    truth[..., :-1, :] &= known[..., 1:, :]
    return np.where(truth, borders(regions), IGNORED).astype(np.uint8)


# --- images decoded together with maps, resized to one side: images smoothly, maps to the nearest pixel
#
# Maps for testing may keep the size that the image had, as scores of the code for a set are at that size.

AT_ONCE = 64  # images decoded at a time, with all their maps

Item = TypeVar('Item')


class Example(NamedTuple):
    """An image with what is known of it."""

    image: np.ndarray  # [S, S, 3] uint8
    label: int
    targets: Mapping[str, np.ndarray]  # [S, S] or, at the original size, [H, W] uint8, by task


def stream(
    samples: int,
    size: int,
    tasks: tuple[str, ...],
    blocks: Callable[[], Iterator[list[Item]]],
    read: Callable[[Item], Example],
    original: MapShape | None = None,
) -> Stream:
    """A stream of examples of size × size, decoded on all cores.

    Args:
      tasks: the dense tasks, in the order in which the maps are to come.
      blocks: lists of at most AT_ONCE encoded examples, `samples` in total, of which `read` decodes one.
      original: height and width of the largest map, if maps are at their original sizes; smaller ones are padded with
        IGNORED at the bottom and at the right.
    """

    def chunks() -> Iterator[Chunk]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for block in blocks():
                examples = list(pool.map(read, block))
                by_task = [[example.targets[task] for example in examples] for task in tasks]
                labels = np.array([example.label for example in examples], np.int32)
                stacked = [np.stack(of_task) if not original else padded(of_task, original) for of_task in by_task]
                sizes = [np.array([values.shape for values in by_task[0]], np.int32)] if original else []
                yield np.stack([example.image for example in examples]), labels, *stacked, *sizes

    return Stream(samples, (size, size, 3), chunks, tasks, original)


def padded(targets: Sequence[np.ndarray], shape: MapShape) -> np.ndarray:
    """Maps of different sizes, each in the upper left corner of one of `shape`: [n, H, W] uint8."""
    whole = np.full((len(targets), *shape), IGNORED, np.uint8)
    for target, values in zip(whole, targets, strict=True):
        target[: len(values), : values.shape[1]] = values
    return whole


def picture(encoded: bytes | Path, size: int) -> tuple[np.ndarray, MapShape]:
    """An image [S, S, 3] uint8, resized, and its height and width before."""
    pixels = decode(encoded, 0, 3)
    return np.asarray(resize(Image.fromarray(pixels), size)), pixels.shape[:2]


def decode_map(encoded: bytes | Path, shape: MapShape) -> np.ndarray:
    """A map of `shape` [H, W] uint8 of the numbers in a PNG of one channel, those of a palette's entries if it has one;
    UserError: it cannot be read or has several channels.
    """
    mode, numbers = read_image(encoded, lambda image: (image.mode, np.asarray(image)))
    if mode not in ('L', 'P'):
        what = f"the map '{encoded}'" if isinstance(encoded, Path) else 'a map of the data set'
        raise UserError(f'{what} has pixels of mode {mode}, not a number of 8 bits for each: copy the data set again')
    return nearest(numbers, *shape)


def largest_class(classes: np.ndarray, first: int = 0, default: int = 0) -> int:
    """The class, from `first` on, that most pixels of a map have, the lowest of equal ones; or else the default."""
    counts = np.bincount(classes[(classes >= first) & (classes != IGNORED)])
    return int(counts.argmax()) if len(counts) else default
