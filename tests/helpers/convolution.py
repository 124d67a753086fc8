"""A convolution as a loop over the window, and its gradients, in float64: what every form is held against."""

import itertools

import numpy as np


def windows(x, size, padding, stride, dilation):
    """((i, j), the part of the padded images under this place of the kernel), for every place."""
    span = dilation * (size - 1) + 1
    height, width = ((side + 2 * padding - span) // stride + 1 for side in x.shape[1:3])
    for i, j in itertools.product(range(size), repeat=2):
        ends = dilation * i + stride * height, dilation * j + stride * width
        yield (i, j), np.s_[:, dilation * i : ends[0] : stride, dilation * j : ends[1] : stride]


def pad(x, padding):
    return np.pad(np.asarray(x, np.float64), ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def convolve(x, kernel, padding, stride=1, dilation=1):
    """Sum over kernel positions: x [B, H, W, C], kernel [k, k, C, F]."""
    places = windows(x, len(kernel), padding, stride, dilation)
    return sum(pad(x, padding)[window] @ np.asarray(kernel[at], np.float64) for at, window in places)


def gradients(x, kernel, cotangent, padding, stride=1, dilation=1):
    """Of <cotangent, convolution>, which is linear in each argument, in x and kernel."""
    padded, of_kernel = pad(x, padding), np.zeros_like(kernel)
    of_padded = np.zeros_like(padded)
    for at, window in windows(x, len(kernel), padding, stride, dilation):
        of_padded[window] += cotangent @ kernel[at].T
        of_kernel[at] = np.einsum('bhwc,bhwf->cf', padded[window], cotangent)
    return of_padded[:, padding : padding + x.shape[1], padding : padding + x.shape[2]], of_kernel
