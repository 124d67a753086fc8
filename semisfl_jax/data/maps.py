"""Computations on maps of numbers per pixel, [H, W] or [..., H, W], with exact integer arithmetic."""

from __future__ import annotations

import functools

import numpy as np

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
