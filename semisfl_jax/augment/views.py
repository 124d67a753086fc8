"""Weak and strong views: random draws, and the operations applied with them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from semisfl_jax.augment import geometry, objects, operations, variants
from semisfl_jax.base.errors import UserError
from semisfl_jax.base.keys import key as option
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import STRONG
from semisfl_jax.core.types import Array

SMALLEST_SIDE = 8
POINT_TASKS = ('keypoints',)  # tasks whose targets mark single pixels
STILL = {'crop': 0.0, 'scale_min': 1.0, 'scale_max': 1.0, 'rotate': 0.0}  # with them, views are flipped at most
_FIXED = tuple(name for name, variant in variants.VARIANTS.items() if variant.levels)  # no magnitude, no cutout
_OTHER_VARIANTS = {'augment.randaugment': _FIXED}


# fmt: off
@dataclasses.dataclass(frozen=True)
class AugmentOptions:
    """The keys of `config.augment`: plain Python values, which shape the traced program."""

    flip: bool = option(True, help='horizontal, p = 0.5')
    crop: float = option(0.125, at_least=0, below=1, help='reflect-pad by this share of the side, then crop at random; '
        '0: none')
    scale_min: float = option(1.0, at_least=0.25, at_most=4, help='then scale about the center by a factor drawn from '
        'here to scale_max; both 1: off. Pixels from outside are black, and without truth in maps')
    scale_max: float = option(1.0, at_least=0.25, at_most=4, help='the largest factor')
    rotate: float = option(0.0, at_least=0, at_most=180, help='at the same time, turn by up to so many degrees either '
        'way')
    randaugment: str = option('mc', choices=tuple(variants.VARIANTS), objectives=STRONG,
        help="RandAugment variant: mc: FixMatch-pytorch's, used by the authors | semifl | fixmatch: google-research's "
        '| fedmatch; they differ in operations, ranges and probabilities')
    operations: int = option(2, at_least=0, at_most=100, objectives=STRONG, help="RandAugment n, 0: none; 'fedmatch' "
        'always has 6, unless this is 0')
    magnitude: int = option(10, at_least=2, at_most=11, objectives=STRONG,
        idle={'augment.operations': 0, **_OTHER_VARIANTS}, help="RandAugment m: v is drawn from 1 .. m - 1; only 'mc' "
        "and 'fixmatch'")
    cutout: int = option(16, at_least=0, objectives=STRONG, idle=_OTHER_VARIANTS, help='nominal pixels, 0: none; only '
        "'mc' and 'fixmatch'; the others do not end with cutout")
    supervised: str = option('strong', choices=('strong', 'weak'), help='both views of the supervised phase')
# fmt: on


def check(options: AugmentOptions) -> None:
    """Raises UserError for values that conflict; `AugmentOptions` has the range of each."""
    if options.scale_min > options.scale_max:
        raise UserError(
            f'augment.scale_min={options.scale_min} is above augment.scale_max={options.scale_max}: exchange them'
        )
    if variants.VARIANTS[options.randaugment].cutout == 'clipped' and options.cutout % 2:
        raise UserError(
            f"augment.cutout={options.cutout}: the square of augment.randaugment='{options.randaugment}' has an even "
            f'side; use {options.cutout - 1} or {options.cutout + 1}'
        )


def check_images(shape: tuple[int, ...], operations: int) -> None:
    """Checks that views can be made of images: not too small, and gray or in color for the operations of Pillow.

    Args:
      shape: H, W, C.
      operations: number of operations in a strong view.

    Raises:
      UserError: they cannot.
    """
    if min(shape[:2]) < SMALLEST_SIDE:
        raise UserError(f'cannot augment images of shape {shape}: use sides of at least {SMALLEST_SIDE} pixels')
    if operations and shape[2] not in (1, 3):
        raise UserError(
            f'config.augment.operations={operations}: these operations are for images of 1 or 3 channels, not of '
            f'{shape[2]}; use 0, and augment.flip, crop and cutout alone'
        )


def _scales(options: AugmentOptions) -> bool:
    """Returns True if views are scaled or rotated; otherwise nothing is drawn or traced for it."""
    return bool(options.rotate) or (options.scale_min, options.scale_max) != (1, 1)


def _placement(key: Array, view: str, uniform: Array, options: AugmentOptions) -> Array:
    """Returns the numbers for `_place`: [3, B] for flip and crop, then [2, B] from a separate stream, or none."""
    if not _scales(options):
        return uniform
    return jnp.concatenate([uniform, jax.random.uniform(rng.fold(key, f'{view}_similarity'), (2, uniform.shape[1]))])


def _place(
    uniform: Array, planes: Array, options: AugmentOptions, move: Callable[..., Array] = geometry.scale_rotate
) -> Array:
    """Flips, then crops, then scales and rotates with `move`."""
    if options.flip or options.crop:
        placement = variants.draw_placement(uniform[:3], planes.shape, options.flip, options.crop)
        planes = geometry.flip_crop(planes, *placement)
    if _scales(options):
        planes = move(
            planes, *variants.draw_similarity(uniform[3:], options.scale_min, options.scale_max, options.rotate)
        )
    return planes


def weak(key: Array, images: Array, options: AugmentOptions) -> Array:
    """Flips horizontally, then crops at random after reflection padding: the weak view of TransformFixMatch (kekmodel).

    If the options ask for scaling and rotation, they follow, about the center and at once; pixels from outside the
    image are black. `strong` with the same key draws independently.

    Args:
      key: the key of the view.
      images: [B, H, W, C] uint8.
      options: the keys of `config.augment`.

    Raises:
      UserError: the image shape is not supported.
    """
    return together(key, images, {}, options)[0]


def together(
    key: Array, images: Array, targets: Mapping[str, Any], options: AugmentOptions
) -> tuple[Array, dict[str, Any]]:
    """Returns the weak view of images, with maps moved alike, so that labels stay on their pixels.

    Maps take the nearest pixel where images are bilinear, and have 255, no truth, where images are black from outside.
    Depth keeps its values when the image grows, as it is relative. The pixels of POINT_TASKS move one by one: the
    nearest pixel would lose some of them where images shrink, and double them where images grow. Objects are flipped.

    Args:
      key: the key of the view.
      images: [B, H, W, C] uint8.
      targets: {task: [B, H, W] uint8, or the parts of `objects.flip`}.
      options: the keys of `config.augment`.

    Returns:
      The same images as `weak`, to the bit, and targets of the same names and shapes.

    Raises:
      UserError: the image shape is not supported, or objects would have to move otherwise.
    """
    check_images(images.shape[1:], 0)
    planes = jnp.moveaxis(images, -1, 1)
    drawn = jax.random.uniform(rng.fold(key, 'weak'), (3, planes.shape[0]))
    uniform = _placement(key, 'weak', drawn, options)

    def moved(name: str, maps: Any) -> Any:
        if isinstance(maps, Mapping):
            if moves := [key for key, value in STILL.items() if getattr(options, key) != value]:
                raise UserError(f"augment.{moves[0]}: only flips move task '{name}'; use {STILL[moves[0]]}")
            flipped = variants.draw_placement(uniform[:3], planes.shape, options.flip, options.crop)[0]
            return objects.flip(maps, flipped, images.shape[2])
        move = geometry.scale_rotate_points if name in POINT_TASKS else geometry.scale_rotate_labels
        return _place(uniform, maps[:, None], options, move)[:, 0]

    maps = {name: moved(name, target) for name, target in targets.items()}
    return jnp.moveaxis(_place(uniform, planes, options), 1, -1), maps


def strong(key: Array, images: Array, options: AugmentOptions, middle: tuple[int, ...] = (127,)) -> Array:
    """Takes the steps of `weak` (all of them), then the operations of a RandAugment, then its cutout if it has one.

    `mc` is RandAugmentMC of kekmodel/FixMatch-pytorch: each of `operations` draws is applied with p = 0.5, a cutout
    always. `semifl` is from SemiFL's code and `fedmatch` from FedMatch's, neither with a cutout at the end. `fixmatch`
    is `rac` of google-research/fixmatch: the original normalizes with mean 0.5, and then sets pixels from outside and
    those cut out to 0. We do this before normalization, with the color whose normalized value is nearest to 0, at most
    half a gray level off. The original's conversion through float images, which lowers some values by one, is not
    reproduced.

    Args:
      key: the key of the view.
      images: [B, H, W, C] uint8.
      options: the keys of `config.augment`.
      middle: for `fixmatch`, the color that normalizes to 0: C values in 0 .. 255, or one for all channels.

    Raises:
      UserError: the image shape is not supported.
    """
    check_images(images.shape[1:], options.operations)
    planes, batch = jnp.moveaxis(images, -1, 1), images.shape[0]
    variant = variants.get(options.randaugment, options.magnitude)
    count = (variant.per_image or options.operations) if options.operations else 0
    before, after = 3 + variant.shared_draws, 2 if variant.cutout else 0  # for the placement; for the cutout
    # One draw for all numbers, as each call of jax.random costs half a second of compilation
    uniform = jax.random.uniform(rng.fold(key, 'strong'), (before + count * variant.draws + after, batch))
    planes = _place(_placement(key, 'strong', uniform[:3], options), planes, options)

    def layer(planes: Array, numbers: Array) -> tuple[Array, None]:
        drawn = variant.draw(variant, numbers, uniform[3:before], planes.shape)
        return operations.randaugment(planes, *drawn[:4], variant, drawn.center), None

    if variant.alpha:
        planes = jnp.concatenate([planes, jnp.full_like(planes[:, :1], 255)], axis=1)
    if count:  # a loop, so that XLA does not fuse one operation into the next and recompute the first
        layers = uniform[before : before + count * variant.draws].reshape(count, variant.draws, batch)
        planes = jax.lax.scan(layer, planes, layers)[0]
    if variant.alpha:
        planes = jnp.where(planes[:, -1:] == 0, geometry.as_plane(middle), planes[:, :-1])
    if variant.cutout and options.cutout:
        center = variants.draw_center(uniform[-2:], planes.shape)
        planes = geometry.CUTOUTS[variant.cutout](planes, center, options.cutout, middle)
    return jnp.moveaxis(planes, 1, -1)
