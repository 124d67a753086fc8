"""Winograd's F(2 x 2, 3 x 3): 3 x 3 convolutions with less arithmetic.

Each tile of 2 x 2 output pixels is computed from 4 x 4 input pixels, by 16 products where the definition has 36.
Additions and halvings alone transform pixels, kernel and products, so rounding stays that of float32 convolutions.
Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016:

    Y = A' [(G g G') * (B' d B)] A

Each of the 16 products is a matrix product over channels, for all tiles of all images. The gradient of the kernel uses
two of the transformations, transposed; the gradient of the input is a convolution of the same kind.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array

WIDE = 128 * 128  # from this many pairs of channels on, products outweigh transformations (docs/performance.md)

Grid = list[list[Array]]  # rows of columns


def suits(x: Array, kernel: Array, stride: int, dilation: int) -> bool:
    """Returns whether Winograd's algorithm applies to a convolution and is faster on a CPU.

    Args:
      x: [B, H, W, C].
      kernel: [k, k, C, F].
      stride: step between outputs.
      dilation: distance between the pixels that the kernel reads.
    """
    size, _, channels, features = kernel.shape
    exact = jnp.finfo(x.dtype).bits >= 32  # bfloat16 would lose digits in the transformations
    return size == 3 and stride == dilation == 1 and channels * features >= WIDE and exact


def convolve(x: Array, kernel: Array, padding: int) -> Array:
    """Convolves at stride 1.

    Args:
      x: [B, H, W, C].
      kernel: [3, 3, C, F].
      padding: zeros added at each side.

    Returns:
      [B, H', W', F], H' = H + 2 * padding - 2.
    """
    return _convolve(x, kernel, padding, jnp.matmul)


def input_gradient(gradient: Array, kernel: Array, padding: int) -> Array:
    """Computes the gradient of `convolve` in x.

    Args:
      gradient: the output's, [B, H', W', F].
      kernel: [3, 3, C, F].
      padding: of the convolution.

    Returns:
      [B, H, W, C].
    """

    def product(tiles: Array, kernel: Array) -> Array:  # without transposing the kernel: a copy would cost more
        return jax.lax.dot_general(tiles, kernel, (((1,), (1,)), ((), ())))

    return _convolve(gradient, kernel[::-1, ::-1], 2 - padding, product)


def kernel_gradient(x: Array, gradient: Array, padding: int) -> Array:
    """Computes the gradient of `convolve` in the kernel.

    Args:
      x: [B, H, W, C].
      gradient: the output's, [B, H', W', F].
      padding: of the convolution.

    Returns:
      [3, 3, C, F].
    """
    height, width = gradient.shape[1:3]
    blocks = (height + 1) // 2, (width + 1) // 2
    pixels = _both(_pixels, _overlapping(x, padding, blocks))
    outputs = _both(_outputs_transposed, _blocks(gradient, blocks))
    products = [
        [_rows(a).T @ _rows(b) for a, b in zip(*pair, strict=True)] for pair in zip(pixels, outputs, strict=True)
    ]
    return jnp.stack([jnp.stack(row) for row in _both(_kernel_transposed, products)])


def _convolve(x: Array, kernel: Array, padding: int, product: Callable[[Array, Array], Array]) -> Array:
    batch, *sides, _ = x.shape
    height, width = (side + 2 * padding - 2 for side in sides)
    blocks = (height + 1) // 2, (width + 1) // 2
    pixels = _both(_pixels, _overlapping(x, padding, blocks))
    weights = _both(_kernel, [[kernel[i, j] for j in range(3)] for i in range(3)])
    products = [
        [product(_rows(a), b).reshape(batch, *blocks, -1) for a, b in zip(*pair, strict=True)]
        for pair in zip(pixels, weights, strict=True)
    ]
    y = jnp.stack([jnp.stack(row, 3) for row in _both(_outputs, products)], 2)  # [B, blocks, 2, blocks, 2, F]
    return y.reshape(batch, 2 * blocks[0], 2 * blocks[1], -1)[:, :height, :width]


def _overlapping(x: Array, padding: int, blocks: tuple[int, int]) -> Grid:
    """Slices the 4 x 4 pixels under every 2 x 2 block of outputs, each [B, *blocks, C]; the next block is 2 away."""
    rows, columns = blocks
    _, height, width, _ = x.shape
    edges = [(padding, 2 * number + 2 - side - padding) for number, side in ((rows, height), (columns, width))]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*edge, 0) for edge in edges), (0, 0, 0)])
    return [[x[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2] for j in range(4)] for i in range(4)]


def _blocks(y: Array, blocks: tuple[int, int]) -> Grid:
    """Slices the 2 x 2 pixels of every block, each [B, *blocks, F]."""
    _, height, width, _ = y.shape
    y = jnp.pad(y, ((0, 0), (0, 2 * blocks[0] - height), (0, 2 * blocks[1] - width), (0, 0)))
    return [[y[:, i::2, j::2] for j in range(2)] for i in range(2)]


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def _both(transform: Callable[[list[Array]], list[Array]], grid: Grid) -> Grid:
    """Applies a transformation of a line along both axes of a grid."""
    columns = [transform(list(column)) for column in zip(*grid, strict=True)]
    return [transform(list(row)) for row in zip(*columns, strict=True)]


def _pixels(d: list[Array]) -> list[Array]:
    """Computes B' d."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _kernel(g: list[Array]) -> list[Array]:
    """Computes G g."""
    ends, middle = 0.5 * (g[0] + g[2]), 0.5 * g[1]
    return [g[0], ends + middle, ends - middle, g[2]]


def _outputs(m: list[Array]) -> list[Array]:
    """Computes A' m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _outputs_transposed(y: list[Array]) -> list[Array]:
    """Computes A y."""
    return [y[0], y[0] + y[1], y[0] - y[1], -y[1]]


def _kernel_transposed(u: list[Array]) -> list[Array]:
    """Computes G' u."""
    both = 0.5 * (u[1] + u[2])
    return [u[0] + both, 0.5 * (u[1] - u[2]), both + u[3]]
