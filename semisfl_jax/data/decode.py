"""Decodes images to uint8 arrays, and defines the stream in which a data set is decoded.

Pillow decodes everything. TFDS itself would use OpenCV where installed, which decodes JPEG to different pixels, and
the checksum of a data set must not depend on what else is installed.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from semisfl_jax.core.errors import UserError

CHUNK = 512  # images decoded at a time
THREADED_BYTES = 4096  # smaller files decode faster on one thread, because of the interpreter lock
MODES = {1: 'L', 3: 'RGB', 4: 'RGBA'}

# Images [n, H, W, C] uint8, labels [n] int32, then a map [n, H, W] uint8 for each of the stream's targets; with
# `Stream.original` sizes [n, 2] int32 of maps at last
Chunk = tuple[Any, ...]
MapShape = tuple[int, int]  # of a map: H, W
Pixels = TypeVar('Pixels')


class Stream(NamedTuple):
    """The images and labels of one split, decoded lazily."""

    samples: int
    shape: tuple[int, int, int]  # H, W, C
    chunks: Callable[[], Iterator[Chunk]]  # `samples` in total
    targets: tuple[str, ...] = ()  # names of the dense tasks whose maps come with the images
    original: MapShape | None = None  # H, W of the maps, where each has the size of its image before that was resized


class Source(NamedTuple):
    """A data set that has been found but not decoded."""

    name: str  # canonical
    key: str  # file name of its cache entry; another key whenever the decoded arrays would differ
    num_classes: int
    open: Callable[[], tuple[Stream, Stream]]  # () -> train, test
    outputs: Mapping[str, int] = MappingProxyType({})  # of dense tasks, by name, in the order of `Stream.targets`


def resize(image: Image.Image, size: int) -> Image.Image:
    """To size × size with Pillow's antialiased bilinear filter, aspect not kept; 0 or the same size: unchanged."""
    if not size or image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR)


def decode(encoded: bytes | str | os.PathLike, size: int, channels: int) -> np.ndarray:
    """One image file, or its bytes, of any format that Pillow reads, as [H, W, C] uint8; C is 1, 3 or 4.

    `size`: side to resize to, 0 to keep. UserError: the file is not a readable image.
    """

    def convert(image: Image.Image) -> np.ndarray:
        if image.mode.startswith('I'):  # gray levels of 16 bits, which Pillow would clip to 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return np.asarray(resize(image.convert(MODES[channels]), size))

    pixels = read_image(encoded, convert)
    return pixels.reshape(*pixels.shape[:2], channels)


def read_image(encoded: bytes | str | os.PathLike, convert: Callable[[Image.Image], Pixels]) -> Pixels:
    """What `convert` makes of an image file, or its bytes; UserError: the file is not a readable image."""
    try:
        with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            return convert(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # all raised by Pillow
        what = 'an image of the data set' if isinstance(encoded, bytes) else f"the image '{encoded}'"
        raise UserError(f'{what} cannot be decoded ({error}): prepare or copy the data set again') from error


def decode_chunk(encoded: Sequence, shape: tuple[int, int, int], size: int) -> np.ndarray:
    """Images [n, H, W, C] uint8, all of the same `shape`, in the order given; large files on all cores; UserError: an
    image has another shape.
    """
    one = functools.partial(decode, size=size, channels=shape[2])
    if isinstance(encoded[0], bytes) and len(encoded[0]) < THREADED_BYTES:
        images = [one(item) for item in encoded]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            images = list(pool.map(one, encoded))
    for image in images:
        if image.shape != shape:
            raise UserError(
                f'the images are of unequal size, such as {image.shape[:2]} and {shape[:2]}: '
                'set --config.data.image_size to resize all of them to one side'
            )
    return np.stack(images)
