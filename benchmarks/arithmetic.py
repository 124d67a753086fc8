"""Floating-point operations per image, counted by hand from the layers' shapes (models/zoo.py), and memory per client.

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
    """Per image: as `cross_entity`, but without the teacher's top."""
    return cross_entity(model) - FORWARD[model].top


def similarity(clients: int, batch_size: int, width: int = 128, queue: int = 2 * 1024) -> int:
    """Of one cross-entity iteration: the projections of all rows against the keys of all rows and the queue, and the
    gradient. The only part that is quadratic in the number of active clients."""
    rows = clients * batch_size
    return 2 * 2 * rows * (rows + queue) * width


def held_per_client(parameters: int, image: int, features: int, batch_size: int) -> dict[str, int]:
    """Bytes, in float32, that a round holds for every active client, even if few are computed at a time.

    Args:
      parameters: number of parameters of the bottom.
      image: values per image, H * W * C.
      features: D.
      batch_size: B.
    """
    return {
        'weights': 4 * 3 * parameters,  # with momentum and gradient
        'views': 4 * 2 * batch_size * image,  # weak and strong
        'features': 4 * 3 * batch_size * features,  # of student and teacher, and the gradient
    }
