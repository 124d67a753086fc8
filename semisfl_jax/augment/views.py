"""Weak and strong views: the draws, and the operations applied to them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax import rng
from semisfl_jax.augment import operations, tables
from semisfl_jax.errors import UserError
from semisfl_jax.types import Array

SMALLEST_SIDE = 8


class AugmentOptions(NamedTuple):
    """What the views do; the keys of config.augment. Plain Python values: they shape the traced program."""

    flip: bool = True  # horizontal, p = 0.5
    crop: float = 0.125  # share of each side to reflect-pad by before the random crop, 0: no crop
    operations: int = 2  # RandAugment n
    magnitude: int = 10  # RandAugment m, v is drawn from 1 .. m - 1
    cutout: int = 16  # nominal pixels, 0: none


def check(options: AugmentOptions) -> None:
    """Raises UserError for a value that has no meaning."""
    if not 0 <= options.crop < 1:
        raise UserError(
            f'augment.crop={options.crop} is not a share of the side: use a number of at least 0 and below 1'
        )
    if options.operations < 0:
        raise UserError(f'augment.operations={options.operations} is negative: use 0 or more')
    if not 2 <= options.magnitude <= tables.FULL_STRENGTH + 1:
        raise UserError(
            f'augment.magnitude={options.magnitude} leaves no strength to draw between 1 and {tables.FULL_STRENGTH}: '
            f'use 2 to {tables.FULL_STRENGTH + 1}'
        )
    if options.cutout < 0:
        raise UserError(f'augment.cutout={options.cutout} is negative: use a number of pixels, or 0 for none')


def flip_crop_from(uniform: Array, shape: tuple[int, ...], options: AugmentOptions):
    """The arguments of operations.flip_crop from numbers [3, B] uniform in [0, 1), given the planes' shape.

    Returns:
      flip [B] bool, top [B] and left [B] int32, (rows, columns) of padding.
    """
    pad = int(options.crop * shape[2]), int(options.crop * shape[3])
    flip, top, left = uniform
    return options.flip & (flip < 0.5), _choice(top, 2 * pad[0] + 1), _choice(left, 2 * pad[1] + 1), pad


def randaugment_from(uniform: Array, magnitude: int):
    """One operation per image from numbers [4, B] uniform in [0, 1): any of fourteen, applied with p = 0.5.

    Returns:
      op, v, sign and applied, [B] each, as operations.randaugment takes them.
    """
    op, v, sign, applied = uniform
    return (
        _choice(op, len(tables.OPERATIONS)),
        1 + _choice(v, magnitude - 1),
        jnp.where(sign < 0.5, 1, -1),
        applied < 0.5,
    )


def centre_from(uniform: Array, shape: tuple[int, ...]) -> Array:
    """Centres [B, 2] in [0, H) x [0, W) from numbers [2, B] uniform in [0, 1), given the planes' shape."""
    return uniform.T * jnp.array(shape[2:], jnp.float32)


def _choice(uniform: Array, count: int) -> Array:
    """0 .. count - 1 with equal chances, int32, from numbers uniform in [0, 1)."""
    return (uniform * count).astype(jnp.int32)


def _to_planes(images: Array, options: AugmentOptions) -> Array:
    check(options)
    if images.dtype != jnp.uint8:
        raise TypeError(f'views take uint8 images, not {images.dtype}')
    if images.shape[-1] not in (1, 3) or min(images.shape[1:3]) < SMALLEST_SIDE:
        raise UserError(
            f'cannot augment images of shape {images.shape[1:]}: use 1 or 3 channels and sides of at least '
            f'{SMALLEST_SIDE} pixels'
        )
    return jnp.moveaxis(images, -1, 1)


def _flip_crop(uniform: Array, planes: Array, options: AugmentOptions) -> Array:
    if not options.flip and not options.crop:
        return planes
    return operations.flip_crop(planes, *flip_crop_from(uniform, planes.shape, options))


def weak(key: Array, images: Array, options: AugmentOptions) -> Array:
    """Horizontal flip, then reflect-padded random crop: the weak view of TransformFixMatch (kekmodel).

    Args:
      key: a typed JAX key. `strong` with the same key draws independently.
      images: [B, H, W, C] uint8, C = 1 or 3.
      options: see AugmentOptions.

    Returns:
      [B, H, W, C] uint8.

    Raises:
      UserError: an option or an image shape that cannot be served.
    """
    planes = _to_planes(images, options)
    uniform = jax.random.uniform(rng.fold(key, 'weak'), (3, planes.shape[0]))
    return jnp.moveaxis(_flip_crop(uniform, planes, options), 1, -1)


def strong(key: Array, images: Array, options: AugmentOptions) -> Array:
    """The steps of `weak`, then `operations` draws of RandAugment, then a cutout that is always applied.

    RandAugmentMC of kekmodel/FixMatch-pytorch. Arguments, result and errors as for `weak`.
    """
    planes = _to_planes(images, options)
    batch, count = planes.shape[0], options.operations
    # One draw for everything: each call of jax.random costs half a second of compilation.
    uniform = jax.random.uniform(rng.fold(key, 'strong'), (3 + 4 * count + 2, batch))
    planes = _flip_crop(uniform[:3], planes, options)

    def layer(planes, uniform):
        return operations.randaugment(planes, *randaugment_from(uniform, options.magnitude), options.magnitude), None

    # A loop, so that XLA does not fuse one operation into the next and compute the first several times.
    planes, _ = jax.lax.scan(layer, planes, uniform[3:-2].reshape(count, 4, batch))
    if options.cutout:
        planes = operations.cutout(planes, centre_from(uniform[-2:], planes.shape), options.cutout)
    return jnp.moveaxis(planes, 1, -1)
