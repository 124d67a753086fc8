"""Weak and strong views: random draws, and the operations applied with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from semisfl_jax.augment import geometry, operations, variants
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import default
from semisfl_jax.core.types import Array

SMALLEST_SIDE = 8
POINT_TASKS = ('keypoints',)  # their targets mark single pixels
# Variant -> uniform numbers for the image before its operations, for each operation, and after them
_NUMBERS = {'mc': (3, 4, 2), 'semifl': (3, 6, 0), 'fixmatch': (3, 4, 2), 'fedmatch': (4, 3, 0)}


AugmentOptions = default.Augment  # plain Python values: they shape the traced program


def check(options: AugmentOptions) -> None:
    """Raises UserError for values that conflict; configs/default.py has the ranges."""
    if options.scale_min > options.scale_max:
        raise UserError(
            f'augment.scale_min={options.scale_min} is above augment.scale_max={options.scale_max}: exchange them'
        )
    if options.randaugment == 'fixmatch' and options.cutout % 2:
        raise UserError(
            f"augment.cutout={options.cutout}: the square of augment.randaugment='fixmatch' has an even side; use "
            f'{options.cutout - 1} or {options.cutout + 1}'
        )


def _to_planes(images: Array, options: AugmentOptions) -> Array:
    if images.shape[-1] not in (1, 3) or min(images.shape[1:3]) < SMALLEST_SIDE:
        raise UserError(
            f'cannot augment images of shape {images.shape[1:]}: use 1 or 3 channels and sides of at least '
            f'{SMALLEST_SIDE} pixels'
        )
    return jnp.moveaxis(images, -1, 1)


def _scales(options: AugmentOptions) -> bool:
    """Whether views are scaled or rotated. If not, nothing is drawn or traced for it."""
    return bool(options.rotate) or (options.scale_min, options.scale_max) != (1, 1)


def _placement(key: Array, view: str, uniform: Array, options: AugmentOptions) -> Array:
    """The numbers for `_place`: those of flip and crop, [3, B], then [2, B] from a stream of their own, or none."""
    if not _scales(options):
        return uniform
    return jnp.concatenate([uniform, jax.random.uniform(rng.fold(key, f'{view}_similarity'), (2, uniform.shape[1]))])


def _place(
    uniform: Array, planes: Array, options: AugmentOptions, move: Callable[..., Array] = geometry.scale_rotate
) -> Array:
    """Flip, then crop, then scaling and rotation, which `move` does."""
    if options.flip or options.crop:
        placement = variants.draw_placement(uniform[:3], planes.shape, options.flip, options.crop)
        planes = geometry.flip_crop(planes, *placement)
    if _scales(options):
        planes = move(
            planes, *variants.draw_similarity(uniform[3:], options.scale_min, options.scale_max, options.rotate)
        )
    return planes


def weak(key: Array, images: Array, options: AugmentOptions) -> Array:
    """Horizontal flip, then reflect-padded random crop: the weak view of TransformFixMatch (kekmodel).

    Scaling and rotation follow if the options ask for them, about the center and at once; what comes from outside the
    image is black. `images`: [B, H, W, C] uint8, C = 1 or 3. `strong` with the same key draws independently. UserError:
    an unsupported image shape.
    """
    return together(key, images, {}, options)[0]


def together(
    key: Array, images: Array, targets: Mapping[str, Array], options: AugmentOptions
) -> tuple[Array, dict[str, Array]]:
    """The weak view of images, and their maps moved alike: labels stay on the pixels that they are of.

    Maps take the nearest pixel where images are bilinear, and have 255, no truth, where images are black from outside.
    Depth keeps its values when the image grows, as it is relative.

    `targets`: {task: [B, H, W] uint8}. The pixels of POINT_TASKS are moved one by one: the nearest pixel would lose
    some of them where images shrink, and double them where images grow.

    Returns:
      The same as `weak`, to the bit, and maps of the same names and shapes.
    """
    planes = _to_planes(images, options)
    drawn = jax.random.uniform(rng.fold(key, 'weak'), (3, planes.shape[0]))
    uniform = _placement(key, 'weak', drawn, options)

    def moved(name: str, maps: Array) -> Array:
        move = geometry.scale_rotate_points if name in POINT_TASKS else geometry.scale_rotate_labels
        return _place(uniform, maps[:, None], options, move)[:, 0]

    maps = {name: moved(name, target) for name, target in targets.items()}
    return jnp.moveaxis(_place(uniform, planes, options), 1, -1), maps


def strong(key: Array, images: Array, options: AugmentOptions, middle: tuple[int, ...] = (127,)) -> Array:
    """The steps of `weak` (all of them), then the operations of a RandAugment, then its cutout if it has one.

    `mc` is RandAugmentMC of kekmodel/FixMatch-pytorch: each of `operations` draws is applied with p = 0.5, a cutout
    always. `semifl` is from SemiFL's code and `fedmatch` from FedMatch's, neither with a cutout at the end. `fixmatch`
    is `rac` of google-research/fixmatch: the original normalizes with mean 0.5, and then sets pixels from outside and
    those cut out to 0. Here that is done before normalization, with the color whose normalized value is nearest to 0,
    at most half a gray level off. The original's conversion through float images, which lowers some values by one, is
    not reproduced. `middle`: the color that normalizes to 0, C values in 0 .. 255, or one for all channels, for
    `fixmatch`.
    """
    planes, name, batch = _to_planes(images, options), options.randaugment, images.shape[0]
    count = variants.FEDMATCH_OPERATIONS if name == 'fedmatch' and options.operations else options.operations
    variant = {
        'mc': lambda: variants.mc(options.magnitude),
        'fixmatch': lambda: variants.fixmatch(options.magnitude),
        'semifl': variants.semifl,
        'fedmatch': variants.fedmatch,
    }[name]()
    before, each, after = _NUMBERS[name]
    # A single draw for everything: each call of jax.random costs half a second of compilation
    uniform = jax.random.uniform(rng.fold(key, 'strong'), (before + count * each + after, batch))
    planes = _place(_placement(key, 'strong', uniform[:3], options), planes, options)

    def layer(planes: Array, drawn: Array) -> tuple[Array, None]:
        center = None
        if name == 'semifl':
            center = variants.draw_center(drawn[4:], planes.shape)
            arguments = variants.draw_uneven(drawn[:4], variant)
        elif name == 'fedmatch':
            arguments = variants.draw_limited(drawn, uniform[3], variant)
        else:
            arguments = variants.draw_half(drawn, variant)
        return operations.randaugment(planes, *arguments, variant, center), None

    if variant.alpha:
        planes = jnp.concatenate([planes, jnp.full_like(planes[:, :1], 255)], axis=1)
    if count:  # a loop, so that XLA does not fuse one operation into the next and recompute the first
        layers = uniform[before : before + count * each].reshape(count, each, batch)
        planes = jax.lax.scan(layer, planes, layers)[0]
    if variant.alpha:
        planes = jnp.where(planes[:, -1:] == 0, geometry.as_plane(middle), planes[:, :-1])
    if after and options.cutout:
        center = variants.draw_center(uniform[-2:], planes.shape)
        if name == 'mc':
            planes = geometry.cutout(planes, center, options.cutout)
        else:
            planes = geometry.clipped_cutout(planes, center.astype(jnp.int32), options.cutout, middle)
    return jnp.moveaxis(planes, 1, -1)
