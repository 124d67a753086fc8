"""The operations of the views in Pillow and NumPy, and images to try them on."""

import functools

import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageEnhance
import PIL.ImageOps
import pytest

from semisfl_jax.augment import AugmentOptions, variants

SIGNED = ('Rotate', 'ShearX', 'ShearY', 'TranslateX', 'TranslateY')
ENHANCERS = ('Brightness', 'Color', 'Contrast', 'Sharpness')
MAGNITUDE = 11  # so that v = 10, the end of every range, is tested too
MC = variants.mc(MAGNITUDE)
OPERATIONS = MC.operations
SHAPES = [(8, 8, 1), (8, 8, 3), (28, 28, 1), (28, 28, 3), (32, 32, 1), (32, 32, 3), (21, 34, 3), (96, 96, 3)]
QUICK = {(28, 28, 1), (21, 34, 3)}  # of every run
OFF = AugmentOptions(flip=False, crop=0.0, operations=0, cutout=0)


def slow_shapes(shapes):
    """Cases of a test, slow ones but for those of QUICK."""
    return [shape if shape in QUICK else pytest.param(shape, marks=pytest.mark.slow) for shape in shapes]


def pillow_operation(name, image, v, sign):
    """One operation, from the authors' formulas."""
    if name in ENHANCERS:
        return getattr(PIL.ImageEnhance, name)(image).enhance(float(v) * 0.9 / 10 + 0.05)
    if name == 'Posterize':
        return PIL.ImageOps.posterize(image, int(v * 4 / 10) + 4)
    if name == 'Rotate':
        return image.rotate(sign * int(v * 30 / 10))
    if name == 'Solarize':
        return PIL.ImageOps.solarize(image, 256 - int(v * 256 / 10))
    if name in ('AutoContrast', 'Equalize'):
        return getattr(PIL.ImageOps, name.lower())(image)
    if name == 'Identity':
        return image
    slope = sign * (float(v) * 0.3 / 10)
    matrix = {
        'ShearX': (1, slope, 0, 0, 1, 0),
        'ShearY': (1, 0, 0, slope, 1, 0),
        'TranslateX': (1, 0, int(slope * image.size[0]), 0, 1, 0),
        'TranslateY': (1, 0, 0, 0, 1, int(slope * image.size[1])),
    }[name]
    return image.transform(image.size, PIL.Image.Transform.AFFINE, matrix)


def pillow_cutout(image, center, size):
    """CutoutAbs of the authors, with the center given as (y, x)."""
    width, height = image.size
    x0, y0 = int(max(0, center[1] - size / 2.0)), int(max(0, center[0] - size / 2.0))
    corners = (x0, y0, int(min(width, x0 + size)), int(min(height, y0 + size)))
    image = image.copy()
    PIL.ImageDraw.Draw(image).rectangle(corners, 127 if image.mode == 'L' else (127, 127, 127))
    return image


def numpy_flip_crop(image, flip, top, left, pad):
    """Mirror, reflect padding and crop of [H, W, C]."""
    if flip:
        image = to_array(PIL.ImageOps.mirror(to_pillow(image)))
    height, width = image.shape[:2]
    padded = np.pad(image, ((pad[0], pad[0]), (pad[1], pad[1]), (0, 0)), mode='reflect')
    return padded[top : top + height, left : left + width]


def to_pillow(image):
    return PIL.Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def to_array(image):
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array


def to_planes(images):
    return jnp.moveaxis(jnp.asarray(images), -1, 1)


def to_images(planes):
    return np.moveaxis(np.asarray(planes), 1, -1)


@functools.cache
def examples(shape):
    """Images [12, H, W, C] of many kinds: noise, gradients, constants, few values, narrow and skewed ranges."""
    height, width, _ = shape
    host = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width][..., None]
    slopes = host.uniform(-3, 3, (3, *shape[2:]))
    outlier = np.full(shape, 90)
    outlier[height // 2, width // 3] = 91
    images = [
        host.integers(0, 256, shape),
        host.integers(100, 180, shape),
        host.integers(17, 44, shape),
        128 + slopes[0] * x + slopes[1] * y,
        127.5 * (1 + np.sin((x * slopes[0] + y * slopes[1]) / 9)),
        np.zeros(shape),
        np.full(shape, 255),
        np.broadcast_to(host.integers(0, 256, shape[2]), shape),
        outlier,
        host.choice([3, 250], shape),
        host.choice([0, 40, 41, 200], shape, p=[0.7, 0.1, 0.15, 0.05]),
        255 * host.uniform(size=shape) ** 4,
    ]
    return np.stack([np.clip(image, 0, 255).astype(np.uint8) for image in images])
