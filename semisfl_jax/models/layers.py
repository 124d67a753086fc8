"""The layers of the models.

A layer is the unit in which the paper specifies a cut: one convolution or one fully connected layer, with the
normalization, activation, pooling and dropout that follow it (before a fully connected layer, the dropout that precedes
it).

Weights and biases start as in PyTorch, uniform in +-1 / sqrt(fan_in), unless a model specifies otherwise.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from semisfl_jax.base.errors import UserError
from semisfl_jax.core.types import Array
from semisfl_jax.models import lowerings
from semisfl_jax.models.pooling import activated_max_of_corners, max_of_corners, max_pool, windows

MOMENTUM = 0.9  # weight of the old value when BatchNorm's running statistics are updated
CONVOLVED = 'convolved'  # names the outputs of convolutions, so that a policy can keep them for the backward pass
FEW_CHANNELS = 4  # up to this many input channels, `lowerings.direct_corners` is faster


class TooSmall(UserError):
    """Images so small that a layer leaves no pixel; `models.build` adds the model and their size."""


class Compute(NamedTuple):
    """How layers compute. Parameters and BatchNorm's statistics are always float32."""

    dtype: str = 'float32'  # of activations and of the arithmetic on them
    convolution: str = 'native'  # a key of `lowerings.LOWERINGS`
    batch_norm_variance: str = 'biased'  # kind of BatchNorm's running variance: 'biased' or 'unbiased'
    # Keeps only the outputs of convolutions and products for the backward pass, which recomputes everything between
    # them. Otherwise the inputs of BatchNorm and of the next convolution are both kept: twice as much.
    recompute: bool = False


FLOAT32 = Compute()


def torch_uniform(fan_in: int) -> Callable[..., Array]:
    """Returns PyTorch's default initializer of weights and biases: uniform in +-1 / sqrt(fan_in)."""
    bound = fan_in**-0.5

    def initialize(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialize


class UnbiasedBatchNorm(nn.BatchNorm):
    """BatchNorm whose running variance tracks the unbiased variance of the batch, as in PyTorch.

    As usual, it normalizes the batch itself by the biased variance.
    """

    def __call__(self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None) -> Array:
        """Normalizes x [B, ..., C] by its valid rows.

        `mask` [B, 1, ...] bool marks them, None: all; mapped axes allow no mask.
        """
        old_variance: Array = self.get_variable('batch_stats', 'var')
        y = super().__call__(x, use_running_average, mask=mask)
        if use_running_average or self.use_running_average or self.is_initializing():
            return y
        rows = x.size // x.shape[-1]
        if self.axis_name:
            rows *= jax.lax.axis_size(self.axis_name)
        fewer = max(rows - 1, 1) if mask is None else jnp.maximum(rows // x.shape[0] * jnp.sum(mask) - 1, 1)
        new_variance: Array = self.get_variable('batch_stats', 'var')
        share = new_variance - self.momentum * old_variance  # (1 - momentum) times the biased variance
        self.put_variable('batch_stats', 'var', new_variance + share / fewer)
        return y


def batch_norm(train: bool, compute: Compute, axes: tuple[str, ...], name: str) -> nn.BatchNorm:
    """Builds a BatchNorm that uses batch statistics in training and moves its running ones by 0.1, as in PyTorch.

    Args:
      train: uses batch statistics and updates the running ones.
      compute: sets the type and the kind of running variance, `batch_norm_variance`.
      axes: mapped axes that hold more rows of the batch.
      name: the module's name.
    """
    kind = UnbiasedBatchNorm if compute.batch_norm_variance == 'unbiased' else nn.BatchNorm
    names: Any = axes or None  # Flax declares one name but, like `jax.lax.pmean`, takes several
    return kind(not train, momentum=MOMENTUM, epsilon=1e-5, dtype=compute.dtype, axis_name=names, name=name)


class ConvLayer(nn.Module):
    """Convolution, optional BatchNorm, ReLU, optional max-pool, dropout or mean over all pixels."""

    features: int
    kernel: int = 3
    padding: int = 1
    stride: int = 1
    dilation: int = 1  # distance between the pixels that a kernel reads, 1 for neighbors
    bias: bool = True
    norm: bool = False
    activation: bool = True
    negative_slope: float = 0.0  # of the activation, at least 0; above 0 it is LeakyReLU
    pool: str = ''  # '' | 'floor' | 'pad' | 'overlap': 3 x 3 with stride 2
    dropout: float = 0.0  # share of numbers, not of channels
    last: bool = False  # last convolution of the network: the mean over all pixels follows
    kernel_init: Callable | None = None  # None: PyTorch's
    bias_init: Callable | None = None  # likewise
    compute: Compute = FLOAT32
    axes: tuple[str, ...] = ()  # mapped axes over which BatchNorm's batch statistics extend

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps x [B, H, W, C] to [B, H', W', features], or [B, features] if `last`, of type `compute.dtype`.

        Raises:
          UserError: the kernel is larger than the padded map, or pooling leaves no pixel.
        """
        if min(x.shape[1:3]) + 2 * self.padding <= self.dilation * (self.kernel - 1):
            raise TooSmall(f'of {x.shape[1]}x{x.shape[2]} pixels a kernel leaves none')
        uniform = torch_uniform(self.kernel**2 * x.shape[-1])
        shape = self.kernel, self.kernel, x.shape[-1], self.features
        dtype, lowering = self.compute.dtype, self.compute.convolution
        kernel = self.param('kernel', self.kernel_init or uniform, shape).astype(dtype)
        bias = self.param('bias', self.bias_init or uniform, (self.features,)).astype(dtype) if self.bias else None
        x = x.astype(dtype)

        few = x.shape[-1] <= FEW_CHANNELS and self.stride == self.dilation == 1
        corners = lowering in lowerings.ON_CPU and self.pool == 'floor' and not self.norm and few
        if corners:
            x = lowerings.direct_corners(x, kernel, self.padding)
        else:
            x = lowerings.LOWERINGS[lowering](x, kernel, self.padding, self.stride, self.dilation)
        x = checkpoint_name(x, CONVOLVED)
        # Bias, ReLU and LeakyReLU are non-decreasing, so applying them after pooling gives the same result at a quarter
        # of the work.
        rectified = self.activation and not self.negative_slope
        if (
            lowering == 'winograd'
            and self.pool in ('floor', 'pad')
            and rectified
            and bias is not None
            and not self.norm
        ):
            x = activated_max_of_corners(x if corners else windows(x, pad=self.pool == 'pad'), bias)
        else:
            if self.norm:
                x = batch_norm(train, self.compute, self.axes, 'norm')(_shifted(x, bias))
            if self.pool == 'overlap':
                x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
            elif self.pool:
                x = max_of_corners(x) if corners else max_pool(x, pad=self.pool == 'pad')
            x = x if self.norm else _shifted(x, bias)
            if self.activation:
                x = nn.leaky_relu(x, self.negative_slope) if self.negative_slope else nn.relu(x)
        if not x.size:
            raise TooSmall('pooling leaves no pixel')
        if self.dropout:
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return mean_of_pixels(x) if self.last else x


def mean_of_pixels(x: Array) -> Array:
    """Averages x [B, H, W, C] over its pixels, summing in float32: [B, C]."""
    return jnp.mean(x, axis=(1, 2), dtype=jnp.float32).astype(x.dtype)


def _shifted(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias


class DenseLayer(nn.Module):
    """Flatten, optional dropout, fully connected layer, optional ReLU."""

    features: int
    dropout: float = 0.0
    bias: bool = True
    activation: bool = True
    kernel_init: Callable | None = None  # None: PyTorch's
    bias_init: Callable | None = None  # likewise
    compute: Compute = FLOAT32
    shared_by_clients: bool = False  # inside a map over clients that share its weights

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps x [B, ...] to [B, features], of type `compute.dtype`."""
        product = lowerings.dense_of_clients if self.shared_by_clients else lowerings.dense_direct
        on_cpu = self.compute.convolution in lowerings.ON_CPU
        x = x.reshape(x.shape[0], -1)
        if self.dropout:
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        uniform = torch_uniform(x.shape[-1])
        x = nn.Dense(
            self.features,
            use_bias=self.bias,
            dtype=self.compute.dtype,
            kernel_init=self.kernel_init or uniform,
            bias_init=self.bias_init or uniform,
            dot_general=(lambda x, kernel, *_, **__: product(x, kernel)) if on_cpu else None,
            name='dense',
        )(x)
        return nn.relu(x) if self.activation else x


# --- residual blocks; each is one layer, since a cut inside would also have to send the shortcut

KAIMING_FAN_OUT = jax.nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')  # k x k kernel: k * k * features


class ResidualBlock(nn.Module):
    """Adds two ConvLayers of x, each ending in ReLU, to x; no activation after the sum. Optional 4 x 4 max-pool."""

    bias: bool = True
    norm: bool = False
    pool: bool = False  # 4 x 4 max-pool; smaller maps are pooled globally
    kernel_init: Callable | None = None  # None: PyTorch's
    compute: Compute = FLOAT32
    axes: tuple[str, ...] = ()  # as in ConvLayer

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps x [B, H, W, C] to the same shape, or with `pool` to [B, H // 4, W // 4, C]."""
        y = x
        for name in ('conv_0', 'conv_1'):
            y = ConvLayer(
                x.shape[-1],
                bias=self.bias,
                norm=self.norm,
                kernel_init=self.kernel_init,
                compute=self.compute,
                axes=self.axes,
                name=name,
            )(y, train)
        y = x.astype(y.dtype) + y
        if not self.pool:
            return y
        return max_pool(max_pool(y)) if min(y.shape[1:3]) >= 4 else jnp.max(y, axis=(1, 2), keepdims=True)


class PreactivationBlock(nn.Module):
    """A block of a wide ResNet: BatchNorm, ReLU and 3 x 3 convolution, twice, without biases, plus a shortcut.

    The shortcut is x; if the number of channels changes, it is a 1 x 1 convolution of the first ReLU's output.
    """

    features: int
    stride: int = 1  # of the first convolution and of the 1 x 1 shortcut
    last: bool = False  # last block of the network: BatchNorm, ReLU and the mean over all pixels follow
    norm: bool = True
    compute: Compute = FLOAT32
    axes: tuple[str, ...] = ()  # as in ConvLayer

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps x [B, H, W, C] to [B, H', W', features], H' = (H - 1) // stride + 1, or [B, features] if `last`."""

        def normalized(x: Array, name: str) -> Array:
            return nn.relu(batch_norm(train, self.compute, self.axes, name)(x))

        def convolved(x: Array, stride: int, kernel: int, name: str) -> Array:
            conv = partial(unbiased_conv, norm=False, activation=False, compute=self.compute)
            return conv(self.features, kernel, stride, name=name)(x, train)

        y = normalized(x, 'norm_0')
        if x.shape[-1] != self.features:
            x = convolved(y, self.stride, 1, 'shortcut')
        y = convolved(y, self.stride, 3, 'conv_0')
        y = x.astype(y.dtype) + convolved(normalized(y, 'norm_1'), 1, 3, 'conv_1')
        return mean_of_pixels(normalized(y, 'norm_2')) if self.last else y


def unbiased_conv(
    features: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    *,
    compute: Compute,
    name: str | None,
    norm: bool = True,
    kernel_init: Callable | None = KAIMING_FAN_OUT,
    **options: Any,
) -> ConvLayer:
    """Builds a convolution without bias, padded so that its map keeps the size at stride 1.

    Args:
      features: output channels.
      kernel: side of the kernel, odd.
      stride: as in ConvLayer.
      dilation: as in ConvLayer.
      compute: how the layer computes.
      name: the module's name, None for one that a module shares its scope with.
      norm: adds BatchNorm.
      kernel_init: the kernel's initializer; None: PyTorch's.
      **options: other fields of ConvLayer.
    """
    return ConvLayer(
        features,
        kernel=kernel,
        padding=dilation * (kernel // 2),
        stride=stride,
        dilation=dilation,
        bias=False,
        norm=norm,
        kernel_init=kernel_init,
        compute=compute,
        name=name,
        **options,
    )


def resize(x: Array, height: int, width: int) -> Array:
    """Resizes x bilinearly, as PyTorch's `interpolate(align_corners=False)`.

    Pixel i of n lies at (i + 0.5) / n (half-pixel centers), and the border's value extends beyond the outer centers.
    Smaller maps are not smoothed. Each side is one matrix product, so the gradient is a product, too, not a scatter.

    Args:
      x: [B, h, w, C].
      height: of the result.
      width: of the result.

    Returns:
      [B, height, width, C].
    """
    return jax.image.resize(x, (x.shape[0], height, width, x.shape[3]), 'bilinear', antialias=False)
