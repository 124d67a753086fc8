"""A convolution as a loop over the window, in float64: what every form is held against."""

import itertools

import numpy as np


def convolve(x, kernel, padding, stride=1):
    """Direct sum over kernel positions in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    size = kernel.shape[0]
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    out = np.zeros((x.shape[0], height, width, kernel.shape[-1]))
    for i, j in itertools.product(range(size), range(size)):
        out += x[:, i : i + height, j : j + width] @ kernel[i, j].astype(np.float64)
    return out[:, ::stride, ::stride]
