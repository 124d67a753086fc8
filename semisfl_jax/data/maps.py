"""Maps of numbers per pixel, [H, W] or [..., H, W]: exact integer arithmetic, and decoding together with images."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from semisfl_jax.base.errors import UserError
from semisfl_jax.data.decode import Chunk, MapShape, Stream, read_image, resize
from semisfl_jax.tasks import IGNORED


def nearest(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes a map [H, W, ...] to `height` × `width`; each pixel takes the value under its center."""
    if values.shape[:2] == (height, width):
        return values
    sides = zip((height, width), values.shape, strict=False)
    rows, columns = ((2 * np.arange(side) + 1) * length // (2 * side) for side, length in sides)
    return values[rows[:, None], columns]


def smooth(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes an image [H, W] or [H, W, C] uint8 with an antialiased bilinear filter, like Pillow's BILINEAR.

    Computes in whole numbers, so that the result is the same on every machine and with every version of Pillow.
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
    """Returns integer weights [target, source] of a filter that falls linearly to 0 over a pixel of the coarser grid.

    Positions are in units of 1 / (2 target) pixels of the source, so that all centers are whole numbers.
    """
    centers = (2 * np.arange(target) + 1) * source
    distance = np.abs(centers[:, None] - (2 * np.arange(source, dtype=np.int64) + 1) * target)
    return np.maximum(2 * max(source, target) - distance, 0).astype(np.float64)


def borders(regions: np.ndarray) -> np.ndarray:
    """Marks pixels whose right or lower neighbor belongs to another region: [..., H, W] -> [..., H, W] bool."""
    edges = np.zeros(regions.shape, bool)
    edges[..., :, :-1] |= regions[..., :, :-1] != regions[..., :, 1:]
    edges[..., :-1, :] |= regions[..., :-1, :] != regions[..., 1:, :]
    return edges


def known_borders(regions: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns borders as a target [..., H, W] uint8: 0 or 1, or IGNORED where the pixel or a neighbor is unknown.

    Args:
      regions: [..., H, W], the region of every pixel.
      known: [..., H, W] bool.
    """
    truth = known.copy()
    truth[..., :, :-1] &= known[..., :, 1:]
    truth[..., :-1, :] &= known[..., 1:, :]
    return np.where(truth, borders(regions), IGNORED).astype(np.uint8)


# --- images decoded together with maps, resized to one side: images smoothly, maps to the nearest pixel
#
# Test maps may keep the original size of the image, because published code scores some sets at that size.

AT_ONCE = 64  # images decoded at a time, with all their maps

Item = TypeVar('Item')


class Example(NamedTuple):
    """An image with its label and target maps."""

    image: np.ndarray  # [S, S, 3] uint8
    label: int
    # By task: [S, S] or, at the original size, [H, W] uint8. 'TASK.PART': of tasks of objects
    targets: Mapping[str, np.ndarray]
    shape: MapShape  # of the image before resizing


def stream(
    samples: int,
    size: int,
    tasks: tuple[str, ...],
    items: Callable[[int, int], list[Item]],
    read: Callable[..., Example],
    original: MapShape | None = None,
    parts: Mapping[str, tuple[tuple[int, ...], Any]] = MappingProxyType({}),
) -> Stream:
    """Streams examples of size × size, decoded on all cores.

    Args:
      samples: number of examples.
      size: side of the images.
      tasks: the dense tasks, in the order of their maps in a chunk.
      items: (start, stop) -> the encoded examples of these rows.
      read: (item, size=, resized=) -> an Example, with maps `resized` to `size` or else as large as the original image.
      original: height and width of the largest map, if maps keep their original sizes; smaller ones are padded with
        IGNORED at the bottom and right.
      parts: of tasks of objects, as in Stream.
    """
    decode = functools.partial(read, size=size, resized=not original)

    def chunks() -> Iterator[Chunk]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, samples, AT_ONCE):
                examples = list(pool.map(decode, items(start, min(start + AT_ONCE, samples))))
                by_task = [[example.targets[task] for example in examples] for task in tasks]
                labels = np.array([example.label for example in examples], np.int32)
                stacked = [padded(maps, original) if original else np.stack(maps) for maps in by_task]
                stacked += [np.stack([example.targets[part] for example in examples]) for part in parts]
                sizes = [np.array([example.shape for example in examples], np.int32)] if original else []
                yield np.stack([example.image for example in examples]), labels, *stacked, *sizes

    return Stream(samples, (size, size, 3), chunks, tasks, original, parts)


def padded(targets: Sequence[np.ndarray], shape: MapShape) -> np.ndarray:
    """Pads maps of different sizes with IGNORED.

    Args:
      targets: n maps.
      shape: H, W to pad to.

    Returns:
      [n, H, W] uint8, each map in the upper left corner.
    """
    whole = np.full((len(targets), *shape), IGNORED, np.uint8)
    for target, values in zip(whole, targets, strict=True):
        target[: len(values), : values.shape[1]] = values
    return whole


def picture(encoded: bytes | Path, size: int) -> tuple[np.ndarray, MapShape]:
    """Decodes an image without turning it upright, because its maps are not turned either.

    Args:
      encoded: an image file, or its bytes.
      size: S, the side to resize to.

    Returns:
      The image [S, S, 3] uint8, and its height and width before resizing.
    """
    return read_image(encoded, lambda image: (np.asarray(resize(image.convert('RGB'), size)), image.size[::-1]))


def decode_map(encoded: bytes | Path, shape: MapShape) -> np.ndarray:
    """Decodes a PNG of one channel to a map of its numbers; with a palette, of the indices into it.

    Args:
      encoded: a file, or its bytes.
      shape: H, W to resize to.

    Returns:
      [H, W] uint8.

    Raises:
      UserError: the file cannot be read or has several channels.
    """
    mode, numbers = read_image(encoded, lambda image: (image.mode, np.asarray(image)))
    if mode not in ('L', 'P'):
        what = f"the map '{encoded}'" if isinstance(encoded, Path) else 'a map of the data set'
        raise UserError(f'{what} has pixels of mode {mode}, not a number of 8 bits for each: copy the data set again')
    return nearest(numbers, *shape)


def largest_class(classes: np.ndarray, first: int = 0, default: int = 0) -> int:
    """Returns the class that most pixels of a map have, the lowest if several are equal.

    Args:
      classes: the map, IGNORED where unknown.
      first: the lowest class that counts.
      default: the result if no pixel counts.
    """
    counts = np.bincount(classes[(classes >= first) & (classes != IGNORED)])
    return int(counts.argmax()) if len(counts) else default
