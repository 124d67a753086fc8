"""Floating-point operations per image, counted by hand from the layers' shapes (models/zoo.py).

A multiplication and an addition are two operations. Activations, pooling, the optimizer, augmentation and the
products with the queue (1 to 2 % of the CNN's iteration) are left out.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple


class Work(NamedTuple):
    """Operations of one forward pass of one image."""

    first: int  # the bottom's first layer
    bottom: int
    top: int
    head: int


def _conv(side: int, kernel: int, inputs: int, outputs: int) -> int:
    return 2 * side**2 * kernel**2 * inputs * outputs  # side of the output, before pooling


def _dense(*widths: int) -> int:
    return sum(2 * a * b for a, b in itertools.pairwise(widths))


def _work(convolutions: list[int], top: int, features: int) -> Work:
    return Work(convolutions[0], sum(convolutions), top, _dense(features, features, 128))


FORWARD = {
    'cnn': _work([_conv(28, 5, 3, 32), _conv(10, 5, 32, 64)], _dense(1600, 512, 10), 1600),
    'alexnet': _work(
        [
            _conv(32, 3, 3, 64),
            _conv(16, 3, 64, 192),
            _conv(8, 3, 192, 384),
            _conv(8, 3, 384, 256),
            _conv(8, 3, 256, 256),
        ],
        _dense(4096, 4096, 4096, 10),
        4096,
    ),
}


def cross_entity(model: str) -> int:
    """Per image: the student forward and backward (no gradient of the images), the teacher forward."""
    work = FORWARD[model]
    return 4 * (work.bottom + work.top + work.head) - work.first


def supervised(model: str) -> int:
    """Per image: as `cross_entity`, but the teacher's top is not asked."""
    return cross_entity(model) - FORWARD[model].top
