"""Convolutions and dense products, in forms that are fast on particular backends.

    x [B, H, W, C], kernel [k, k, C, F] -> [B, H', W', F], H' = (H + 2 * padding - span) // stride + 1

The kernel spans span = dilation * (k - 1) + 1 pixels: with a dilation (atrous convolution) it skips pixels in between.

- `native`: XLA's own operator and XLA's own gradient, for GPU and TPU.
- `direct`: for CPU. The same operator, with its two gradients written as convolutions of the one form (NHWC, HWIO) that
  XLA's CPU backend always passes to its fast kernel. XLA converts other forms into this one only outside loops; inside,
  it computes them element by element, a hundred times slower, and a round consists of loops. In the gradients, a stride
  becomes a dilation, which that kernel also supports (explicit zeros would take twice as long), and a dilation becomes
  a stride.
- `winograd`: for CPU, too. `direct`, except that 3 x 3 convolutions of many channels use less arithmetic
  (`models.winograd`), and pooling, bias and ReLU share one gradient (`models.pooling`): equal up to rounding.
- `patches`: shifted slices side by side and one matrix product. It stays fast under `vmap` over kernels, where
  the others become grouped convolutions.

docs/performance.md has the measurements.
"""

from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.models import winograd as fast


def _convolve(
    x: Array, kernel: Array, *padding: tuple[int, int], stride: int = 1, dilation: int = 1, kernel_dilation: int = 1
) -> Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        lhs_dilation=(dilation, dilation),
        rhs_dilation=(kernel_dilation, kernel_dilation),
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )


def native(x: Array, kernel: Array, padding: int, stride: int = 1, dilation: int = 1) -> Array:
    """Convolves by XLA's operator, differentiated by JAX.

    Args:
      x: [B, H, W, C].
      kernel: [k, k, C, F].
      padding: zeros added at each side.
      stride: step between outputs.
      dilation: distance between the pixels that the kernel reads.

    Returns:
      [B, H', W', F].
    """
    return _convolve(x, kernel, (padding, padding), (padding, padding), stride=stride, kernel_dilation=dilation)


def direct(x: Array, kernel: Array, padding: int, stride: int = 1, dilation: int = 1) -> Array:
    """Convolves by XLA's operator, with gradients that stay fast inside loops on a CPU; arguments as in `native`."""
    if stride > 1 and kernel.shape[0] == 1 and padding == 0:
        return direct(x[:, ::stride, ::stride], kernel, 0)
    return _direct(x, kernel, _Options(padding, stride, dilation))


def winograd(x: Array, kernel: Array, padding: int, stride: int = 1, dilation: int = 1) -> Array:
    """Convolves by Winograd's algorithm where it is faster, else by `direct`: rounding differs, accuracy does not."""
    if not fast.suits(x, kernel, stride, dilation):
        return direct(x, kernel, padding, stride, dilation)
    return _direct(x, kernel, _Options(padding, winograd=True))


_Pair = tuple[Array, Array]  # x and kernel
_Triple = tuple[Array, Array, Array]  # x, kernel and the gradient of the output


class _Options(NamedTuple):
    padding: int
    stride: int = 1
    dilation: int = 1
    winograd: bool = False


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _direct(x: Array, kernel: Array, options: _Options) -> Array:
    padding, stride, dilation, winograd = options
    return fast.convolve(x, kernel, padding) if winograd else native(x, kernel, padding, stride, dilation)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _gradients(x: Array, kernel: Array, gradient: Array, options: _Options) -> tuple[Array, Array]:
    """Returns the gradients of T(x, kernel, gradient) = <gradient, direct(x, kernel)> in x and kernel."""
    padding, stride, dilation, winograd = options
    if winograd:
        return fast.input_gradient(gradient, kernel, padding), fast.kernel_gradient(x, gradient, padding)
    span = dilation * (kernel.shape[0] - 1) + 1
    border = span - 1 - padding
    beyond = [(length + 2 * padding - span) % stride for length in x.shape[1:3]]  # pixels beyond the last window
    if stride == dilation == 1:
        x_gradient = _by_row(gradient, kernel, padding)
    else:
        turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
        edges = [(border, border + rest) for rest in beyond]
        x_gradient = _convolve(gradient, turned, *edges, dilation=stride, kernel_dilation=dilation)
    # Kernel gradient: channels act as the batch, and the sum runs over the batch as it otherwise does over channels.
    images, outputs = x.transpose(3, 1, 2, 0), gradient.transpose(1, 2, 0, 3)  # [C, H, W, B], [H', W', B, F]
    edges = [(padding, padding - rest) for rest in beyond]
    kernel_gradient = _convolve(images, outputs, *edges, stride=dilation, kernel_dilation=stride)  # [C, k, k, F]
    return x_gradient, kernel_gradient.transpose(1, 2, 0, 3)


def _by_row(gradient: Array, kernel: Array, padding: int) -> Array:
    """Computes the gradient of x at stride 1: each row of the kernel has its own outputs, then shifted and summed.

    A single convolution over a gradient with a border of size - 1 zeros would take twice the arithmetic for a 5 x 5
    kernel on 14 x 14.
    """
    size, _, channels, features = kernel.shape
    by_row = jnp.flip(kernel, 1).transpose(1, 3, 0, 2).reshape(1, size, features, size * channels)
    border = size - 1 - padding
    rows = _convolve(gradient, by_row, (0, 0), (border, border))  # [B, H', W, k * C]
    shifted = (
        jax.lax.pad(part, jnp.zeros((), rows.dtype), ((0, 0, 0), (i - padding, border - i, 0), (0, 0, 0), (0, 0, 0)))
        for i, part in enumerate(jnp.split(rows, size, axis=-1))
    )
    return reduce(jnp.add, shifted)


def _gradients_backward(options: _Options, residuals: _Triple, tangents: _Pair) -> _Triple:
    """Differentiates losses that contain a gradient; T is linear in each argument: convolutions of the same kinds."""
    (x, kernel, gradient), (x_tangent, kernel_tangent) = residuals, tangents
    x_gradient, _ = _gradients(x, kernel_tangent, gradient, options)
    _, kernel_gradient = _gradients(x_tangent, kernel, gradient, options)
    outputs = _direct(x_tangent, kernel, options) + _direct(x, kernel_tangent, options)
    return x_gradient, kernel_gradient, outputs


_gradients.defvjp(lambda *arguments: (_gradients(*arguments), arguments[:3]), _gradients_backward)
_direct.defvjp(
    lambda x, kernel, options: (_direct(x, kernel, options), (x, kernel)),
    lambda options, residuals, gradient: _gradients(*residuals, gradient, options),
)


def patches(x: Array, kernel: Array, padding: int, stride: int = 1, dilation: int = 1) -> Array:
    """Convolves by one matrix product over concatenated slices; arguments as in `native`."""
    size, _, channels, features = kernel.shape
    if padding:
        x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    span = dilation * (size - 1) + 1
    height, width = ((length - span) // stride + 1 for length in x.shape[1:3])
    height_span, width_span = stride * (height - 1) + 1, stride * (width - 1) + 1
    starts = range(0, span, dilation)
    slices = [x[:, i : i + height_span : stride, j : j + width_span : stride] for i in starts for j in starts]
    columns = jnp.concatenate(slices, axis=-1)  # [B, H', W', k * k * C]
    product = columns.reshape(-1, size * size * channels) @ kernel.reshape(-1, features)
    return product.reshape(x.shape[0], height, width, features)


def direct_corners(x: Array, kernel: Array, padding: int) -> Array:
    """Convolves as `direct` and groups the outputs by the four corners of every 2 x 2 window.

    For inputs with few channels, such as images, where a convolution has too little to sum over. The pixels of a 2 x 2
    block become channels, and each corner becomes a set of features with its own kernel: 1.44 times the arithmetic
    of a 5 x 5 kernel at more than twice the speed, and pooling reduces to a maximum over neighbors in memory.

    Args:
      x: [B, H, W, C].
      kernel: [k, k, C, F].
      padding: zeros added at each side.

    Returns:
      [B, H' // 2, W' // 2, 4, F].
    """
    size, _, channels, features = kernel.shape
    half = size // 2 + 1  # side of the kernel over blocks
    height, width = (x.shape[axis] + 2 * padding - size + 1 for axis in (1, 2))
    rows, columns = (2 * (length // 2 + half - 1) for length in (height, width))
    x = jnp.pad(x, ((0, 0), (padding, padding + 1), (padding, padding + 1), (0, 0)))[:, :rows, :columns]
    x = x.reshape(-1, rows // 2, 2, columns // 2, 2, channels).swapaxes(2, 3)
    shifts = [((i, 2 * half - size - i), (j, 2 * half - size - j), (0, 0), (0, 0)) for i in (0, 1) for j in (0, 1)]
    corners = jnp.stack([jnp.pad(kernel, shift) for shift in shifts], axis=-2)  # [2 * half, 2 * half, C, 4, F]
    corners = corners.reshape(half, 2, half, 2, channels, 4, features).swapaxes(1, 2)
    blocks = x.reshape(*x.shape[:3], 4 * channels)
    y = direct(blocks, corners.reshape(half, half, 4 * channels, 4 * features), 0)
    return y.reshape(*y.shape[:3], 4, features)


@jax.custom_vjp
def dense_direct(x: Array, kernel: Array) -> Array:
    """Multiplies x [B, D] by kernel [D, F].

    The gradient of x is kernel @ gradient', transposed, instead of a product with a transposed kernel: XLA's CPU
    backend computes those at a fifth to a half of the speed, slower with fewer rows.
    """
    return x @ kernel


def _dense_backward(residuals: _Pair, gradient: Array) -> _Pair:
    x, kernel = residuals
    columns = jax.lax.optimization_barrier(gradient.T)  # otherwise XLA folds both transpositions into the product
    x_gradient = jax.lax.optimization_barrier(kernel @ columns).T
    return x_gradient, x.T @ gradient


dense_direct.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _dense_backward)


@jax.custom_batching.custom_vmap
def dense_of_clients(x: Array, kernel: Array) -> Array:
    """Multiplies as `dense_direct`, inside a map over clients that share the kernel.

    There is one product, and one for each gradient, over the rows of all clients. `dense_direct` itself would compute
    one kernel gradient per client, [A, D, F], and sum them.
    """
    return dense_direct(x, kernel)


@dense_of_clients.def_vmap
def _dense_over_clients(clients: int, batched: list[bool], x: Array, kernel: Array) -> tuple[Array, bool]:
    rows_mapped, kernel_mapped = batched
    if kernel_mapped or not rows_mapped:
        axes = tuple(0 if mapped else None for mapped in batched)
        return jax.vmap(dense_direct, axes)(x, kernel), True
    return dense_direct(x.reshape(-1, x.shape[-1]), kernel).reshape(clients, -1, kernel.shape[-1]), True


LOWERINGS = {'direct': direct, 'native': native, 'patches': patches, 'winograd': winograd}
# Lowerings for CPU: with them, image layers and dense layers also use the forms that are fast there.
ON_CPU = ('direct', 'winograd')
