"""Augmentation on the CPU with Pillow, like the authors', for the loader processes of the PyTorch reference.

FixMatch's weak view (flip, reflect-padded crop) and strong view (the same, RandAugment n = 2, m = 10, cutout of 16).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset, Sampler

PAD = 0.125  # of the side
CUTOUT = 16
AHEAD = 10  # batches that each process prepares ahead


def _affine(*matrix: float):
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix)


def _operation(image: Image.Image, v: int, sign: int) -> Image.Image:
    """One of fourteen operations at strength v in 1 .. 9, in the order of semisfl_jax.augment.variants.MC."""
    slope, pixels, factor = sign * 0.03 * v, sign * int(0.03 * v * image.width), 0.09 * v + 0.05
    match random.randrange(14):
        case 0:
            return ImageOps.autocontrast(image)
        case 1:
            return ImageEnhance.Brightness(image).enhance(factor)
        case 2:
            return ImageEnhance.Color(image).enhance(factor)
        case 3:
            return ImageEnhance.Contrast(image).enhance(factor)
        case 4:
            return ImageOps.equalize(image)
        case 6:
            return ImageOps.posterize(image, int(0.4 * v) + 4)
        case 7:
            return image.rotate(sign * 3 * v)
        case 8:
            return ImageEnhance.Sharpness(image).enhance(factor)
        case 9:
            return _affine(1, slope, 0, 0, 1, 0)(image)
        case 10:
            return _affine(1, 0, 0, slope, 1, 0)(image)
        case 11:
            return ImageOps.solarize(image, 256 - int(25.6 * v))
        case 12:
            return _affine(1, 0, pixels, 0, 1, 0)(image)
        case 13:
            return _affine(1, 0, 0, 0, 1, pixels)(image)
    return image


def weak(array: np.ndarray) -> np.ndarray:
    """[H, W, C] uint8 -> the same, by two index lookups instead of a padded copy."""
    height, width = array.shape[:2]
    rows, columns = (np.pad(np.arange(n), int(PAD * n), mode='reflect') for n in (height, width))
    top, left = random.randint(0, 2 * int(PAD * height)), random.randint(0, 2 * int(PAD * width))
    rows, columns = rows[top : top + height], columns[left : left + width]
    if random.random() < 0.5:
        columns = width - 1 - columns
    return array[rows[:, None], columns]


def strong(array: np.ndarray) -> np.ndarray:
    """[H, W, 3] uint8 -> the same."""
    image = Image.fromarray(weak(array))
    for _ in range(2):
        v, sign = random.randint(1, 9), random.choice((1, -1))
        if random.random() < 0.5:
            image = _operation(image, v, sign)
    x = int(max(0, random.uniform(0, image.width) - CUTOUT / 2))
    y = int(max(0, random.uniform(0, image.height) - CUTOUT / 2))
    corner = min(image.width, x + CUTOUT), min(image.height, y + CUTOUT)
    ImageDraw.Draw(image).rectangle((x, y, *corner), (127, 127, 127))
    return np.asarray(image)


VIEWS = {'weak': weak, 'strong': strong}


class _Batches(Dataset):
    """Indexed by a whole batch (rows, names of the two views), so that a process returns complete tensors."""

    def __init__(self, images: np.ndarray):
        self.images = images

    def __getitem__(self, item):
        rows, names = item
        return tuple(torch.from_numpy(np.stack([VIEWS[name](self.images[row]) for row in rows])) for name in names)


class _Plan(Sampler):
    def __init__(self):
        self.items = []

    def __iter__(self):
        return iter(self.items)


def loader(images: np.ndarray, processes: int, pin: bool):
    """A function from a list of (rows, names of two views) to an iterator of two tensors [B, H, W, C] uint8 each.

    The processes persist between calls and are idle when a list is done. They start from a clean process, because
    forking a process with threads may hang.
    """
    plan = _Plan()
    batches = DataLoader(
        _Batches(images),
        sampler=plan,
        batch_size=None,
        num_workers=processes,
        prefetch_factor=AHEAD,
        persistent_workers=True,
        multiprocessing_context='forkserver',
        pin_memory=pin,
    )

    def stream(items: list) -> Iterator:
        plan.items = items
        return iter(batches)

    return stream
