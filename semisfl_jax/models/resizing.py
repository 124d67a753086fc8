"""Bilinear resizing of maps, as PyTorch's `interpolate(mode='bilinear', align_corners=False)`."""

from __future__ import annotations

import jax

from semisfl_jax.core.types import Array


def resize(x: Array, height: int, width: int) -> Array:
    """x [B, h, w, C] -> [B, height, width, C].

    Pixel i of n lies at (i + 0.5) / n (half-pixel centers), and beyond the outer centers the border's value goes on.
    Nothing is smoothed when maps become smaller. Computed as one product with a matrix for each side, so the gradient
    is a product, too, and no scatter.
    """
    return jax.image.resize(x, (x.shape[0], height, width, x.shape[3]), 'bilinear', antialias=False)
