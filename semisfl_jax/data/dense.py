"""Decodes images together with target maps, resized to one side: images smoothly, maps to the nearest pixel."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from semisfl_jax.data import maps
from semisfl_jax.data.decode import Chunk, Stream
from semisfl_jax.errors import UserError
from semisfl_jax.tasks import IGNORED

AT_ONCE = 64  # images decoded at a time, with all their maps

Item = TypeVar('Item')


class Example(NamedTuple):
    """An image with what is known of it, all of one size."""

    image: np.ndarray  # [S, S, 3] uint8
    label: int
    targets: Mapping[str, np.ndarray]  # [S, S] uint8, by task


def stream(
    samples: int,
    size: int,
    tasks: tuple[str, ...],
    blocks: Callable[[], Iterator[list[Item]]],
    decode: Callable[[Item], Example],
) -> Stream:
    """A stream of examples, decoded on all cores.

    Args:
      samples: their number.
      size: S.
      tasks: the dense tasks, in the order in which the maps are to come.
      blocks: lists of at most AT_ONCE encoded examples, `samples` in total.
      decode: decodes one.
    """

    def chunks() -> Iterator[Chunk]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for block in blocks():
                examples = list(pool.map(decode, block))
                stacked = [np.stack([example.targets[task] for example in examples]) for task in tasks]
                labels = np.array([example.label for example in examples], np.int32)
                yield np.stack([example.image for example in examples]), labels, *stacked

    return Stream(samples, (size, size, 3), chunks, tasks, AT_ONCE)


def decode_map(encoded: bytes | Path, size: int) -> np.ndarray:
    """A map [S, S] uint8 of the numbers in a PNG of one channel, those of a palette's entries if it has one.

    Raises:
      UserError: it cannot be read or has several channels.
    """
    what = f"the map '{encoded}'" if isinstance(encoded, Path) else 'a map of the data set'
    try:
        with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            mode, numbers = image.mode, np.asarray(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # all raised by Pillow
        raise UserError(f'{what} cannot be decoded ({error}): prepare or copy the data set again') from error
    if mode not in ('L', 'P'):
        raise UserError(f'{what} has pixels of mode {mode}, not a number of 8 bits for each: copy the data set again')
    return maps.nearest(numbers, size)


def check_classes(classes: np.ndarray, most: int, what: str) -> np.ndarray:
    """The map `classes`, if every pixel is below `most` or IGNORED.

    Raises:
      UserError: another number occurs.
    """
    wrong = classes[(classes >= most) & (classes != IGNORED)]
    if len(wrong):
        raise UserError(f'{what} has class {wrong[0]}, but classes are 0 to {most - 1}, or {IGNORED} for none')
    return classes


def largest_class(classes: np.ndarray, first: int = 0, default: int = 0) -> int:
    """The class, from `first` on, that most pixels of a map have, the lowest of equal ones; or else the default."""
    counts = np.bincount(classes[(classes >= first) & (classes != IGNORED)])
    return int(counts.argmax()) if len(counts) else default
