"""The layers of a model and their passes, each a function that returns its seconds: this project's and PyTorch's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import machine
from semisfl_jax.models import lowerings

PASSES = ('forward', 'dx', 'dw')
STEPS = 10  # of a program, each one pass


class Layer(NamedTuple):
    """A convolution, or a dense layer (`kernel` 0)."""

    rows: int  # images, or rows of a dense layer
    side: int  # of its input; 0 of a dense layer
    inputs: int
    outputs: int
    kernel: int = 0
    padding: int = 0
    images: bool = False  # its input needs no gradient

    @property
    def flops(self) -> int:
        """Of one pass, by definition."""
        pixels = (self.side + 2 * self.padding - self.kernel + 1) ** 2 * self.kernel**2 if self.kernel else 1
        return 2 * self.rows * pixels * self.inputs * self.outputs

    @property
    def passes(self) -> tuple[str, ...]:
        return tuple(name for name in PASSES if not (self.images and name == 'dx'))

    def __str__(self) -> str:
        if not self.kernel:
            return f'dense {self.rows} × {self.inputs:,}→{self.outputs:,}'
        return f'{self.kernel}×{self.kernel}, {self.inputs}→{self.outputs}, {self.side}×{self.side}'


LAYERS = {
    'cnn': (
        Layer(64, 32, 3, 32, kernel=5, images=True),
        Layer(64, 14, 32, 64, kernel=5),
        Layer(640, 0, 1600, 512),
        Layer(640, 0, 1600, 1600),
        Layer(640, 0, 1600, 128),
    ),
    'alexnet': (
        Layer(64, 32, 3, 64, kernel=3, padding=1, images=True),
        Layer(64, 16, 64, 192, kernel=3, padding=1),
        Layer(64, 8, 192, 384, kernel=3, padding=1),
        Layer(64, 8, 384, 256, kernel=3, padding=1),
        Layer(64, 8, 256, 256, kernel=3, padding=1),
        Layer(640, 0, 4096, 4096),
    ),
}


def arrays(layer: Layer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input, weights and gradient of the output, made up; images [B, H, W, C], kernels [k, k, C, F]."""
    draw = np.random.default_rng(0)
    if not layer.kernel:
        shapes = [(layer.rows, layer.inputs), (layer.inputs, layer.outputs), (layer.rows, layer.outputs)]
    else:
        out = layer.side + 2 * layer.padding - layer.kernel + 1
        shapes = [
            (layer.rows, layer.side, layer.side, layer.inputs),
            (layer.kernel, layer.kernel, layer.inputs, layer.outputs),
            (layer.rows, out, out, layer.outputs),
        ]
    x, weights, gradient = (draw.normal(size=shape).astype(np.float32) for shape in shapes)
    return x, weights, gradient


def forward(layer: Layer) -> Callable:
    """This project's layer, (input, weights) -> output, in the form that models take on a CPU."""
    if not layer.kernel:
        return lowerings.dense_direct
    if layer.images:  # pooling follows
        return lambda x, weights: lowerings.direct_corners(x, weights, layer.padding)
    return lambda x, weights: lowerings.winograd(x, weights, layer.padding)


def ours(layer: Layer, name: str) -> Callable[[], float]:
    """A compiled loop of one pass; called, it returns the seconds of one."""
    function = forward(layer)
    x, weights, gradient = map(jnp.asarray, arrays(layer))
    gradient = gradient.reshape(jax.eval_shape(function, x, weights).shape)  # the corners of windows
    run = {
        'forward': lambda x, weights, _: function(x, weights),
        'dx': lambda x, weights, g: jax.vjp(lambda x: function(x, weights), x)[1](g)[0],
        'dw': lambda x, weights, g: jax.vjp(lambda weights: function(x, weights), weights)[1](g)[0],
    }[name]

    def loop(*operands):
        def step(_, total):
            held = jax.lax.optimization_barrier((total, *operands))[1:]  # not moved out of the loop
            return total + jax.lax.optimization_barrier(run(*held)).ravel()[0]

        return jax.lax.fori_loop(0, STEPS, step, jnp.float32(0))

    compiled = machine.jit(loop).lower(x, weights, gradient).compile()

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(x, weights, gradient))
        return (time.perf_counter() - start) / STEPS

    return seconds


def theirs(layer: Layer, name: str) -> Callable[[], float]:
    """PyTorch's pass; called, it returns its seconds."""
    import torch

    x, weights, gradient = map(torch.from_numpy, arrays(layer))
    if layer.kernel:
        x, gradient = (t.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last) for t in (x, gradient))
        weights = weights.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        padding = layer.padding
        run = {
            'forward': lambda: torch.nn.functional.conv2d(x, weights, padding=padding),
            'dx': lambda: torch.nn.grad.conv2d_input(x.shape, weights, gradient, padding=padding),
            'dw': lambda: torch.nn.grad.conv2d_weight(x, weights.shape, gradient, padding=padding),
        }[name]
    else:
        run = {'forward': lambda: x @ weights, 'dx': lambda: gradient @ weights.T, 'dw': lambda: x.T @ gradient}[name]

    def seconds() -> float:
        with torch.no_grad():
            start = time.perf_counter()
            for _ in range(STEPS):
                run()
            return (time.perf_counter() - start) / STEPS

    return seconds


def measure(layer: Layer, name: str, repeats: int, torch: bool) -> dict[str, float]:
    """Median seconds of a pass by side; the sides take turns, after one run each that does not count."""
    sides = {'ours': ours(layer, name)} | ({'torch': theirs(layer, name)} if torch else {})
    turns = [{side: run() for side, run in sides.items()} for _ in range(repeats + 1)][1:]
    return {side: statistics.median(turn[side] for turn in turns) for side in sides}
