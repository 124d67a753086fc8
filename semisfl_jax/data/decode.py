"""Decodes images to uint8 arrays, and defines the stream in which a data set is decoded.

Pillow decodes everything. TFDS itself would use OpenCV where installed, which decodes JPEG to different pixels, and the
checksum of a data set must not depend on what else is installed.
"""

import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import ExifTags, Image

from semisfl_jax.base.errors import UserError

CHUNK = 512  # images decoded at a time
THREADED_BYTES = 4096  # smaller files decode faster on one thread, because of the interpreter lock
MODES = {1: 'L', 3: 'RGB', 4: 'RGBA'}
VERSION = 2  # increase it when the same files decode to other pixels, to renew caches
# Formats that Pillow decodes itself: for EPS, whatever the file's name, it would start Ghostscript
_FORMATS = ('AVIF', 'BMP', 'GIF', 'ICO', 'JPEG', 'JPEG2000', 'PCX', 'PNG', 'PPM', 'QOI', 'SGI', 'TGA', 'TIFF', 'WEBP')
# How to undo EXIF orientations from 2 on
_TURNS = ('FLIP_LEFT_RIGHT', 'ROTATE_180', 'FLIP_TOP_BOTTOM', 'TRANSPOSE', 'ROTATE_270', 'TRANSVERSE', 'ROTATE_90')

# Images [n, H, W, C] uint8, labels [n] int32, a map [n, H, W] uint8 for each of the stream's targets, an array for each
# of its parts and, with `Stream.original`, the sizes [n, 2] int32 of the maps
Chunk = tuple[Any, ...]
MapShape = tuple[int, int]  # H, W of a map
Pixels = TypeVar('Pixels')


class Stream(NamedTuple):
    """The images and labels of one split, decoded lazily."""

    samples: int
    shape: tuple[int, int, int]  # H, W, C
    chunks: Callable[[], Iterator[Chunk]]  # `samples` in total
    targets: tuple[str, ...] = ()  # names of the dense tasks whose maps come with the images
    original: MapShape | None = None  # H, W of the largest map, if maps keep the sizes of the original images
    # Arrays of tasks of objects, 'TASK.PART': shape of one image's, and type
    parts: Mapping[str, tuple[tuple[int, ...], Any]] = MappingProxyType({})


class Source(NamedTuple):
    """A data set that has been located but not decoded."""

    name: str  # canonical
    key: str  # file name of its cache entry; changes whenever the decoded arrays would
    num_classes: int
    open: Callable[[], tuple[Stream, Stream]]  # () -> train, test
    outputs: Mapping[str, int] = MappingProxyType({})  # by dense task, in the order of `Stream.targets`
    class_names: tuple[str, ...] = ()  # as in Dataset
    files: tuple[Path, ...] = ()  # a user's files; their content may change while names and sizes, part of `key`, stay
    origin: str = ''  # where the files are and how they are read: a new entry supersedes others of the same origin


@functools.cache
def formats() -> tuple[str, ...]:
    """Returns the image formats that can be read: those of `_FORMATS` that this Pillow was built with."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


@functools.cache
def suffixes() -> tuple[str, ...]:
    """Returns the file name suffixes of the readable formats, such as '.jpg'."""
    return tuple(sorted(suffix for suffix, name in Image.registered_extensions().items() if name in formats()))


def resize(image: Image.Image, size: int) -> Image.Image:
    """Resizes to size × size with Pillow's antialiased bilinear filter, not keeping the aspect; 0 changes nothing."""
    if not size or image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR)


def decode(encoded: bytes | str | os.PathLike, size: int, channels: int) -> np.ndarray:
    """Decodes an image, as `to_pixels`.

    Args:
      encoded: an image file, or its bytes.
      size: side to resize to, 0 to keep.
      channels: C, which is 1, 3 or 4.

    Returns:
      [H, W, C] uint8.

    Raises:
      UserError: the file is not a readable image.
    """
    return read_image(encoded, functools.partial(to_pixels, size=size, channels=channels))


def to_pixels(image: Image.Image, size: int, channels: int) -> np.ndarray:
    """Turns an image upright and into pixels [H, W, C] uint8; transparent ones become white unless `channels` is 4."""
    if image.mode == 'F':
        raise ValueError('its levels are not whole numbers')
    image = _upright(image)
    if image.has_transparency_data and channels < 4:
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image.convert('RGBA'))
    if image.mode.startswith('I'):  # 16-bit gray levels, which Pillow would clip to 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    pixels = np.asarray(resize(image.convert(MODES[channels]), size))
    return pixels.reshape(*pixels.shape[:2], channels)


def _upright(image: Image.Image) -> Image.Image:
    """Turns an image upright according to its EXIF orientation."""
    try:
        turn = dict(enumerate(_TURNS, 2)).get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data raise many types; the pixels may still be fine
        turn = None
    return image.transpose(Image.Transpose[turn]) if turn else image


def read_image(encoded: bytes | str | os.PathLike, convert: Callable[[Image.Image], Pixels]) -> Pixels:
    """Opens an image and applies `convert`.

    Args:
      encoded: an image file, or its bytes.
      convert: the opened image -> the result.

    Returns:
      What `convert` returns.

    Raises:
      UserError: the file is not a readable image.
    """
    try:
        file = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
        with Image.open(file, formats=formats()) as image:
            return convert(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # all raised by Pillow
        what = 'an image of the data set' if isinstance(encoded, bytes) else f"the image '{encoded}'"
        raise UserError(f'{what} cannot be decoded ({error}): prepare or copy the data set again') from error


def decode_chunk(encoded: Sequence, shape: tuple[int, int, int], size: int) -> np.ndarray:
    """Decodes images of one shape, large files on all cores.

    Args:
      encoded: n files, or their bytes.
      shape: H, W, C of every decoded image.
      size: side to resize to, 0 to keep.

    Returns:
      [n, H, W, C] uint8, in the order of `encoded`.

    Raises:
      UserError: an image is unreadable or has another shape.
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
                f'the images differ in size, such as {image.shape[:2]} and {shape[:2]}: '
                'set --config.data.image_size to resize all of them to one side'
            )
    return np.stack(images)
