"""The operations of other RandAugments in Pillow, called as their authors do."""

import jax
import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps

from semisfl_jax.augment import operations, variants
from tests.pillow_operations import (
    ENHANCERS,
    pillow_cutout,
    pillow_operation,
)

AFFINE, BILINEAR, BICUBIC = PIL.Image.Transform.AFFINE, PIL.Image.Resampling.BILINEAR, PIL.Image.Resampling.BICUBIC
OTHERS = ('semifl', 'fixmatch', 'fedmatch')
randaugment = jax.jit(operations.randaugment, static_argnums=5)


def moving(name, by):
    """Matrix of a shear by a slope or a translation by pixels, as the second argument of `transform`."""
    return {
        'ShearX': (1, by, 0, 0, 1, 0),
        'ShearY': (1, 0, 0, by, 1, 0),
        'TranslateX': (1, 0, by, 0, 1, 0),
        'TranslateY': (1, 0, 0, 0, 1, by),
    }[name]


def semifl_operation(name, image, v, sign, center=None):
    """v is not looked at: it is always 10."""
    if name in ENHANCERS:
        return getattr(PIL.ImageEnhance, name)(image).enhance(10.0 * 1.8 / 10 + 0.1)
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
            return image.transform(image.size, AFFINE, moving(name, sign * (10.0 * 0.3 / 10)), BILINEAR)
        case 'TranslateX' | 'TranslateY':
            return image.transform(image.size, AFFINE, moving(name, sign * 100.0), BILINEAR)
    return pillow_operation(name, image, 5, sign)  # AutoContrast, Equalize, Identity


def fixmatch_operation(name, image, v, sign):
    """Of an RGBA image."""
    if name in ENHANCERS:
        return getattr(PIL.ImageEnhance, name)(image).enhance(float(v) * 1.8 / 10 + 0.1)
    match name:
        case 'AutoContrast' | 'Equalize':
            return getattr(PIL.ImageOps, name.lower())(image.convert('RGB')).convert('RGBA')
        case 'Identity':
            return image
        case 'Posterize':
            return PIL.ImageOps.posterize(image.convert('RGB'), 4 - int(v * 4 / 10)).convert('RGBA')
        case 'Rotate':
            return image.rotate(sign * int(v * 30 / 10))
        case 'Solarize':
            return PIL.ImageOps.solarize(image.convert('RGB'), 256 - int(v * 256 / 10)).convert('RGBA')
        case 'ShearX' | 'ShearY':
            return image.transform(image.size, AFFINE, moving(name, sign * (float(v) * 0.3 / 10)))
    return image.transform(image.size, AFFINE, moving(name, sign * int(v * 10 / 10)))


def fedmatch_operation(name, image, v, sign):
    """Point v of ten in the ranges of FedMatch's file, its unheeded fill included."""
    ends = {'Color': 0.9, 'Contrast': 0.5, 'Sharpness': 0.9, 'Brightness': 0.3, 'Rotate': 360}
    ends |= {'ShearX': 0.3, 'ShearY': 0.3, 'TranslateX': 0.2, 'TranslateY': 0.2}
    value = np.linspace(0, ends.get(name, 0), 10)[v]
    if name in ENHANCERS:
        return getattr(PIL.ImageEnhance, name)(image).enhance(1 + value * sign)
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
            return image.transform(image.size, AFFINE, moving(name, value * sign), BICUBIC, fill=128)
        case 'TranslateX' | 'TranslateY':
            side = image.size[name == 'TranslateY']
            return image.transform(image.size, AFFINE, moving(name, value * side * sign), fill=128)
    return image


VARIANT = {'semifl': variants.semifl(), 'fixmatch': variants.fixmatch(10), 'fedmatch': variants.fedmatch()}
PILLOW = {'semifl': semifl_operation, 'fixmatch': fixmatch_operation, 'fedmatch': fedmatch_operation}
