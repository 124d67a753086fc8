"""3 x 3 convolutions with less arithmetic: Winograd's F(2 x 2, 3 x 3).

The output is computed in tiles of 2 x 2 pixels, each from 4 x 4 pixels of the input and with 16 products where the
definition has 36. Pixels, kernel and products are transformed by additions and halvings alone, so that rounding stays
that of float32 convolutions. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016:

    Y = A' [(G g G') * (B' d B)] A

Each of the 16 products is a matrix product over channels, for all tiles of all images. Two of the transformations,
transposed, give the gradient of the kernel; the gradient of the input is a convolution of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array

WIDE = 128 * 128  # pairs of channels, from which on products outweigh transformations (docs/performance.md)

Grid = list[list[Array]]  # of rows


def suits(x: Array, kernel: Array, stride: int, dilation: int) -> bool:
    """Whether Winograd's algorithm applies to a convolution of x [B, H, W, C] and kernel [k, k, C, F], and is faster
    there on a CPU."""
    size, _, channels, features = kernel.shape
    exact = jnp.finfo(x.dtype).bits >= 32  # bfloat16 would lose digits in the transformations
    return size == 3 and stride == dilation == 1 and channels * features >= WIDE and exact


def convolve(x: Array, kernel: Array, padding: int) -> Array:
    """x [B, H, W, C], kernel [3, 3, C, F] -> [B, H', W', F], H' = H + 2 * padding - 2."""
    return _convolve(x, _each_pixel(kernel), padding, jnp.matmul)


def input_gradient(gradient: Array, kernel: Array, padding: int) -> Array:
    """gradient [B, H', W', F], kernel [3, 3, C, F] -> the gradient of `convolve` in x, [B, H, W, C]."""

    def product(tiles: Array, kernel: Array) -> Array:  # not of a transposed kernel, whose copy would cost more
        return jax.lax.dot_general(tiles, kernel, (((1,), (1,)), ((), ())))

    return _convolve(gradient, _each_pixel(kernel[::-1, ::-1]), 2 - padding, product)


def kernel_gradient(x: Array, gradient: Array, padding: int) -> Array:
    """x [B, H, W, C], gradient [B, H', W', F] -> the gradient of `convolve` in the kernel, [3, 3, C, F]."""
    height, width = gradient.shape[1:3]
    blocks = (height + 1) // 2, (width + 1) // 2
    pixels = _both(_pixels, _overlapping(x, padding, blocks))
    outputs = _both(_outputs_transposed, _blocks(gradient, blocks))
    products = [
        [_rows(a).T @ _rows(b) for a, b in zip(*pair, strict=True)] for pair in zip(pixels, outputs, strict=True)
    ]
    return jnp.stack([jnp.stack(row) for row in _both(_kernel_transposed, products)])


def _convolve(x: Array, kernel: Grid, padding: int, product: Callable[[Array, Array], Array]) -> Array:
    batch, *sides, _ = x.shape
    height, width = (side + 2 * padding - 2 for side in sides)
    blocks = (height + 1) // 2, (width + 1) // 2
    pixels, weights = _both(_pixels, _overlapping(x, padding, blocks)), _both(_kernel, kernel)
    products = [
        [product(_rows(a), b).reshape(batch, *blocks, -1) for a, b in zip(*pair, strict=True)]
        for pair in zip(pixels, weights, strict=True)
    ]
    y = jnp.stack([jnp.stack(row, 3) for row in _both(_outputs, products)], 2)  # [B, blocks, 2, blocks, 2, F]
    return y.reshape(batch, 2 * blocks[0], 2 * blocks[1], -1)[:, :height, :width]


def _each_pixel(kernel: Array) -> Grid:
    return [[kernel[i, j] for j in range(3)] for i in range(3)]


def _overlapping(x: Array, padding: int, blocks: tuple[int, int]) -> Grid:
    """The 4 x 4 pixels under every 2 x 2 block of outputs, each [B, *blocks, C]: a step of 2 to the next block."""
    rows, columns = blocks
    _, height, width, _ = x.shape
    edges = [(padding, 2 * number + 2 - side - padding) for number, side in ((rows, height), (columns, width))]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*edge, 0) for edge in edges), (0, 0, 0)])
    return [[x[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2] for j in range(4)] for i in range(4)]


def _blocks(y: Array, blocks: tuple[int, int]) -> Grid:
    """The 2 x 2 pixels of every block, each [B, *blocks, F]."""
    _, height, width, _ = y.shape
    y = jnp.pad(y, ((0, 0), (0, 2 * blocks[0] - height), (0, 2 * blocks[1] - width), (0, 0)))
    return [[y[:, i::2, j::2] for j in range(2)] for i in range(2)]


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def _both(transform: Callable[[list[Array]], list[Array]], grid: Grid) -> Grid:
    """A transformation of a line, applied along both axes of a grid."""
    columns = [transform(list(column)) for column in zip(*grid, strict=True)]
    return [transform(list(row)) for row in zip(*columns, strict=True)]


def _pixels(d: list[Array]) -> list[Array]:
    """B' d."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _kernel(g: list[Array]) -> list[Array]:
    """G g."""
    ends, middle = 0.5 * (g[0] + g[2]), 0.5 * g[1]
    return [g[0], ends + middle, ends - middle, g[2]]


def _outputs(m: list[Array]) -> list[Array]:
    """A' m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _outputs_transposed(y: list[Array]) -> list[Array]:
    """A y."""
    return [y[0], y[0] + y[1], y[0] - y[1], -y[1]]


def _kernel_transposed(u: list[Array]) -> list[Array]:
    """G' u."""
    both = 0.5 * (u[1] + u[2])
    return [u[0] + both, 0.5 * (u[1] - u[2]), both + u[3]]
