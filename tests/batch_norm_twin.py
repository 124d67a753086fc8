"""Statistics of BatchNorm taken afresh, in NumPy."""

import jax
import numpy as np

from tests.convolution import convolve


def statistics(variables, batches, ddof):
    """Mean over batches of the mean and the variance that each BatchNorm of `toy.model` sees in each batch."""
    bottom, top = jax.device_get((variables.bottom, variables.top))
    seen = []
    for x in batches:
        of_batch = []
        for layer in (bottom['params']['layer_0'], top['params']['layer_1']):
            y = convolve(np.asarray(x), layer['kernel'], 1) + layer['bias']
            mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
            of_batch += [mean, y.var((0, 1, 2), ddof=ddof)]
            y = (y - mean) / np.sqrt(variance + 1e-5) * layer['norm']['scale'] + layer['norm']['bias']
            x = np.maximum(y.reshape(len(y), 3, 2, 3, 2, 4).max((2, 4)) if y.shape[-1] == 4 else y, 0)
        seen.append(of_batch)
    return [np.mean(values, axis=0) for values in zip(*seen, strict=True)]
