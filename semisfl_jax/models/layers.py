"""The layers models are made of. A layer is what the paper counts when it names a cut: one convolution or one
fully connected layer, with the normalisation, activation and pooling that follow it (or the dropout before it).

Weights and biases start as in PyTorch, uniform in +-1 / sqrt(fan_in). Convolutions have two lowerings: `native`,
XLA's own, and `patches`, shifted slices and one matrix product. On a CPU XLA runs a native convolution inside a loop
about twelve times slower than outside one, and one with per-client kernels slower still; a matrix product loses
nothing.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from semisfl_jax.types import Array


def torch_uniform(fan_in: int):
    """PyTorch's default initialiser for both weights and biases: uniform in +-1 / sqrt(fan_in)."""
    bound = fan_in**-0.5

    def initialise(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialise


def conv_patches(x: Array, kernel: Array, padding: int) -> Array:
    """Stride-1 convolution as one matrix product: x [B, H, W, C], kernel [k, k, C, F] -> [B, H', W', F]."""
    size, _, channels, features = kernel.shape
    if padding:
        x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    slices = [x[:, i : i + height, j : j + width, :] for i in range(size) for j in range(size)]
    patches = jnp.concatenate(slices, axis=-1)  # [B, H', W', k * k * C]
    product = patches.reshape(-1, size * size * channels) @ kernel.reshape(-1, features)
    return product.reshape(x.shape[0], height, width, features)


def conv_native(x: Array, kernel: Array, padding: int) -> Array:
    """The same convolution by XLA's own operator."""
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )


LOWERINGS = {'patches': conv_patches, 'native': conv_native}


def max_pool(x: Array, pad: bool = False) -> Array:
    """2 x 2 max-pooling with stride 2: [B, H, W, C] -> [B, H // 2, W // 2, C].

    With `pad`, a border of -inf is added first, so H becomes H // 2 + 1. A trailing row or column that fills no
    window is dropped, as in PyTorch. A reshape and a maximum: their gradient is far cheaper than reduce_window's.
    """
    if pad:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    x = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return jnp.max(x, axis=(2, 4))


class ConvLayer(nn.Module):
    """Convolution, optional BatchNorm, ReLU, optional 2 x 2 max-pool.

    BatchNorm uses batch statistics in training and moves its running ones by 0.1, as PyTorch does, except that the
    running variance is the biased one, Flax's convention.
    """

    features: int
    kernel: int = 3
    padding: int = 1
    norm: bool = False
    pool: str = ''  # '' | 'floor' | 'pad'
    lowering: str = 'native'

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """x [B, H, W, C] -> [B, H', W', features]."""
        initialise = torch_uniform(self.kernel**2 * x.shape[-1])
        kernel = self.param('kernel', initialise, (self.kernel, self.kernel, x.shape[-1], self.features))
        bias = self.param('bias', initialise, (self.features,))
        x = LOWERINGS[self.lowering](x, kernel, self.padding) + bias
        if self.norm:
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5, name='norm')(x)
        x = nn.relu(x)
        return max_pool(x, pad=self.pool == 'pad') if self.pool else x


class DenseLayer(nn.Module):
    """Flatten, optional dropout, fully connected layer, optional ReLU."""

    features: int
    dropout: float = 0.0
    activation: bool = True

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """x [B, ...] -> [B, features]."""
        x = x.reshape(x.shape[0], -1)
        if self.dropout:
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        initialise = torch_uniform(x.shape[-1])
        x = nn.Dense(self.features, kernel_init=initialise, bias_init=initialise, name='dense')(x)
        return nn.relu(x) if self.activation else x
