"""A small encoder and decoder for scenes of about 48 x 48 pixels, fast on CPUs; not in a paper.

The encoder has three levels, at strides 2, 4 and 8, and sends the map of each: skip connections across the cut. The
decoder is a feature pyramid (Lin et al., 2017): lateral 1 x 1 convolutions, and each map is resized to the next larger
one and added to it.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn

from semisfl_jax.core.types import Array
from semisfl_jax.models.blocks import KAIMING_FAN_OUT
from semisfl_jax.models.deeplab import to_outputs
from semisfl_jax.models.layers import FLOAT32, Compute, ConvLayer
from semisfl_jax.models.pooling import max_pool
from semisfl_jax.models.resizing import resize

STRIDE = 8  # of the encoder's last map


def _layer(features: int, compute: Compute, name: str, kernel: int = 3, pool: str = '') -> ConvLayer:
    """Convolution without bias, BatchNorm, optional 2 x 2 max-pool, ReLU."""
    return ConvLayer(
        features,
        kernel=kernel,
        padding=kernel // 2,
        bias=False,
        norm=True,
        pool=pool,
        kernel_init=KAIMING_FAN_OUT,
        compute=compute,
        name=name,
    )


class SceneEncoder(nn.Module):
    """Images -> maps at strides 2, 4 and 8. 83,824 parameters for 3 channels."""

    stem: int = 16
    widths: tuple[int, int, int] = (32, 48, 64)
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, images: Array, train: bool) -> tuple[Array, Array, Array]:
        """[B, H, W, C] -> [B, H // 2, W // 2, 32], [B, H // 4, W // 4, 48], [B, H // 8, W // 8, 64]."""
        layer = partial(_layer, compute=self.compute)
        first, second, third = self.widths
        x = layer(self.stem, name='stem', pool='floor')(images, train)
        fine = layer(first, name='level1')(x, train)
        middle = layer(second, name='level2')(max_pool(fine), train)
        x = layer(third, name='level3_0')(max_pool(middle), train)
        return fine, middle, layer(third, name='level3_1')(x, train)


class SceneDecoder(nn.Module):
    """Maps from fine to coarse -> outputs at the size of the finest: 23,360 + 33 * outputs parameters."""

    outputs: int
    width: int = 32
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, maps: tuple[Array, ...], train: bool) -> Array:
        """Maps [B, h, w, c] -> [B, h of the first, w of the first, outputs]."""
        layer = partial(_layer, self.width, self.compute)
        *finer, coarsest = maps
        x = layer('lateral0', kernel=1)(coarsest, train)
        for index, skip in enumerate(reversed(finer), start=1):
            x = layer(f'lateral{index}', kernel=1)(skip, train) + resize(x, *skip.shape[1:3])
            x = layer(f'smooth{index}')(x, train)
        return to_outputs(self.outputs, self.compute)(x, train)
