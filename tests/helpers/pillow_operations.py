"""The operations of the views in Pillow and NumPy, called as their authors do, and images to try them on."""

import functools

import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageEnhance
import PIL.ImageOps

AFFINE, BILINEAR, BICUBIC = PIL.Image.Transform.AFFINE, PIL.Image.Resampling.BILINEAR, PIL.Image.Resampling.BICUBIC
ENHANCERS = ('Brightness', 'Color', 'Contrast', 'Sharpness')


def enhanced(name, image, factor):
    return getattr(PIL.ImageEnhance, name)(image).enhance(factor)


def moved(name, image, by, *resampling, **fill):
    """Sheared by a slope or translated by pixels."""
    matrix = {
        'ShearX': (1, by, 0, 0, 1, 0),
        'ShearY': (1, 0, 0, by, 1, 0),
        'TranslateX': (1, 0, by, 0, 1, 0),
        'TranslateY': (1, 0, 0, 0, 1, by),
    }[name]
    return image.transform(image.size, AFFINE, matrix, *resampling, **fill)


def pillow_operation(name, image, v, sign):
    """One operation of `mc`, from the authors' formulas."""
    if name in ENHANCERS:
        return enhanced(name, image, float(v) * 0.9 / 10 + 0.05)
    slope = sign * (float(v) * 0.3 / 10)
    match name:
        case 'AutoContrast' | 'Equalize':
            return getattr(PIL.ImageOps, name.lower())(image)
        case 'Posterize':
            return PIL.ImageOps.posterize(image, int(v * 4 / 10) + 4)
        case 'Rotate':
            return image.rotate(sign * int(v * 30 / 10))
        case 'Solarize':
            return PIL.ImageOps.solarize(image, 256 - int(v * 256 / 10))
        case 'ShearX' | 'ShearY':
            return moved(name, image, slope)
        case 'TranslateX' | 'TranslateY':
            return moved(name, image, int(slope * image.size[name == 'TranslateY']))
    return image


def semifl_operation(name, image, v, sign, center=None):
    """v is not looked at: it is always 10."""
    if name in ENHANCERS:
        return enhanced(name, image, 10.0 * 1.8 / 10 + 0.1)
    match name:
        case 'CutoutConst':
            return pillow_cutout(image, center, 40)
        case 'Invert':
            return PIL.ImageOps.invert(image)
        case 'Posterize':
            return PIL.ImageOps.posterize(image, 4)
        case 'Rotate':
            return image.rotate(sign * 30.0)
        case 'Solarize':
            return PIL.ImageOps.solarize(image, 0)
        case 'ShearX' | 'ShearY':
            return moved(name, image, sign * (10.0 * 0.3 / 10), BILINEAR)
        case 'TranslateX' | 'TranslateY':
            return moved(name, image, sign * 100.0, BILINEAR)
    return pillow_operation(name, image, 5, sign)  # AutoContrast, Equalize, Identity


def fixmatch_operation(name, image, v, sign):
    """Of an RGBA image."""
    if name in ENHANCERS:
        return enhanced(name, image, float(v) * 1.8 / 10 + 0.1)
    match name:
        case 'AutoContrast' | 'Equalize' | 'Solarize':
            return pillow_operation(name, image.convert('RGB'), v, sign).convert('RGBA')
        case 'Posterize':
            return PIL.ImageOps.posterize(image.convert('RGB'), 4 - int(v * 4 / 10)).convert('RGBA')
        case 'TranslateX' | 'TranslateY':
            return moved(name, image, sign * int(v * 10 / 10))
    return pillow_operation(name, image, v, sign)


def fedmatch_operation(name, image, v, sign):
    """Point v of ten in the ranges of FedMatch's file, its unheeded fill included."""
    ends = {'Color': 0.9, 'Contrast': 0.5, 'Sharpness': 0.9, 'Brightness': 0.3, 'Rotate': 360}
    ends |= {'ShearX': 0.3, 'ShearY': 0.3, 'TranslateX': 0.2, 'TranslateY': 0.2}
    value = np.linspace(0, ends.get(name, 0), 10)[v]
    if name in ENHANCERS:
        return enhanced(name, image, 1 + value * sign)
    match name:
        case 'AutoContrast':
            return PIL.ImageOps.autocontrast(image)
        case 'Posterize':
            return PIL.ImageOps.posterize(image, int(np.round(np.linspace(8, 4, 10))[v]))
        case 'Rotate':
            turned = image.convert('RGBA').rotate(value)
            gray = PIL.Image.new('RGBA', turned.size, (128,) * 4)
            return PIL.Image.composite(turned, gray, turned).convert(image.mode)
        case 'Solarize':
            return PIL.ImageOps.solarize(image, np.linspace(256, 231, 10)[v])
        case 'ShearX' | 'ShearY':
            return moved(name, image, value * sign, BICUBIC, fill=128)
        case 'TranslateX' | 'TranslateY':
            return moved(name, image, value * image.size[name == 'TranslateY'] * sign, fill=128)
    return image


PILLOW = {
    'mc': pillow_operation,
    'semifl': semifl_operation,
    'fixmatch': fixmatch_operation,
    'fedmatch': fedmatch_operation,
}


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
    height, width = image.shape[:2]
    image = image[:, ::-1] if flip else image
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
