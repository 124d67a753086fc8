"""Which layout of clients and which form of convolution is fastest here: every pair, side by side.

    python -m benchmarks.lowerings                  the CNN's bottoms, 10 clients x 64 images
    python -m benchmarks.lowerings --model=alexnet --precision=bfloat16

Measures forward and backward passes of all client bottoms inside a loop, as a round has them, in turns, and prints
medians. config.federation.client_map and config.model.convolution choose a pair; 'auto' is loop and winograd on a CPU,
vmap and native elsewhere.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags, logging

from benchmarks import commands
from semisfl_jax import core, models
from semisfl_jax.base import machine
from semisfl_jax.core.types import Array, Tree
from semisfl_jax.models import CONVOLUTIONS

MODELS = {
    'cnn': (32, 32, 3),
    'alexnet': (32, 32, 3),
    'vgg13': (96, 96, 3),
    'resnet9': (32, 32, 3),
    'wresnet28x2': (32, 32, 3),
}

flags.DEFINE_enum('model', 'cnn', list(MODELS), "whose bottom is measured, at the paper's cut")
flags.DEFINE_integer('clients', 10, 'active clients', lower_bound=1)
flags.DEFINE_integer('batch_size', 64, 'images per client', lower_bound=1)
flags.DEFINE_integer('steps', 2, 'passes of one measurement', lower_bound=1)
flags.DEFINE_integer('repeats', 3, 'measurements', lower_bound=1)
flags.DEFINE_enum('precision', 'tf32', list(machine.PRECISIONS), 'as config.precision')


def task(client_map: str, convolution: str) -> Callable[[], float]:
    """Compiles `steps` passes of one pair; returns a function that runs them and returns the seconds per pass."""
    values, image = flags.FLAGS, MODELS[flags.FLAGS.model]
    dtype = 'bfloat16' if values.precision == 'bfloat16' else 'float32'
    model = models.build(values.model, 10, image, convolution=convolution, dtype=dtype)
    bottom = jax.jit(lambda key: model.init(key).bottom)(jax.random.key(0))  # the rest is not computed
    images = jax.random.normal(jax.random.key(1), (values.clients, values.batch_size, *image))
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (values.clients, *leaf.shape)), bottom)
    dropout = jax.random.key(2)
    run = core.clients.client_map(how=client_map)(lambda variables, x: model.bottom(variables, x, dropout, True)[0])

    def squares(parameters: Any, rest: dict[str, Any], images: Array) -> Array | int:
        return sum(jnp.sum(features**2) for features in jax.tree.leaves(run({**rest, 'params': parameters}, images)))

    def passes(parameters: Tree, rest: dict[str, Any], images: Array) -> Tree:
        def step(parameters: Tree, _: None) -> tuple[Tree, None]:
            gradient = jax.grad(squares)(parameters, rest, images)
            return jax.tree.map(lambda p, g: p - 1e-9 * g, parameters, gradient), None

        return jax.lax.scan(step, parameters, length=values.steps)[0]

    rest = {name: leaf for name, leaf in stacked.items() if name != 'params'}
    arguments = stacked['params'], rest, images
    compiled = machine.jit(passes, values.precision).lower(*arguments).compile()

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return (time.perf_counter() - start) / values.steps

    return seconds


def main() -> None:
    logging.set_verbosity(logging.WARNING)
    convolutions = [name for name in CONVOLUTIONS if name != 'auto']
    tasks = {}
    for pair in itertools.product(core.clients.CLIENT_MAPS[1:], convolutions):
        print(f'compiling {" and ".join(pair)} …', flush=True)
        tasks[pair] = task(*pair)
        print(f'  first pass {tasks[pair]():.3f} s', flush=True)
    times: dict[tuple[str, str], list[float]] = {pair: [] for pair in tasks}
    for _, (pair, run) in itertools.product(range(flags.FLAGS.repeats), tasks.items()):
        times[pair].append(1000 * run())
    ordered = sorted(tasks, key=lambda pair: statistics.median(times[pair]))
    rows = [[*pair, f'{statistics.median(times[pair]):,.1f}', f'{min(times[pair]):,.1f}'] for pair in ordered]
    print('\n' + commands.markdown(['client_map', 'convolution', 'ms, median', 'lowest'], rows))


if __name__ == '__main__':
    commands.run(main, __doc__)
