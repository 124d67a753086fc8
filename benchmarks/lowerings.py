"""Which layout of clients and which form of convolution is fastest here: every pair, side by side.

    python -m benchmarks.lowerings                  the CNN's bottoms, 10 clients x 64 images
    python -m benchmarks.lowerings --model=alexnet --precision=bfloat16

Measures forward and backward passes of all client bottoms inside a loop, as a round has them, in turns, and prints
medians. config.federation.client_map and config.model.convolution choose a pair; their 'auto' should be the first line.
"""

from __future__ import annotations

import itertools
import statistics
import time

import jax
import jax.numpy as jnp
from absl import app, flags, logging

from semisfl_jax import models, parallel
from semisfl_jax.models import CONVOLUTIONS
from semisfl_jax.parallel import compilation

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
flags.DEFINE_enum('precision', 'tf32', list(compilation.PRECISIONS), 'as config.precision')


def task(client_map: str, convolution: str):
    """Compiles `steps` passes of one pair; returns a function that runs them and returns the seconds per pass."""
    values, shape = flags.FLAGS, MODELS[flags.FLAGS.model]
    dtype = 'bfloat16' if values.precision == 'bfloat16' else 'float32'
    model = models.build(values.model, 10, shape, convolution=convolution, dtype=dtype)
    bottom = model.init(jax.random.key(0)).bottom
    images = jax.random.normal(jax.random.key(1), (values.clients, values.batch_size, *shape))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * values.clients), bottom)
    run = parallel.client_map(how=client_map)(lambda variables, x: model.bottom(variables, x, None, True)[0])

    def passes(parameters, rest, images):
        def step(parameters, _):
            gradient = jax.grad(lambda p: jnp.sum(run({**rest, 'params': p}, images) ** 2))(parameters)
            return jax.tree.map(lambda p, g: p - 1e-9 * g, parameters, gradient), None

        return jax.lax.scan(step, parameters, length=values.steps)[0]

    rest = {name: leaf for name, leaf in stacked.items() if name != 'params'}
    arguments = stacked['params'], rest, images
    compiled = compilation.jit(passes, values.precision).lower(*arguments).compile()

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return (time.perf_counter() - start) / values.steps

    return seconds


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"'{argv[1]}' is not a flag")
    logging.set_verbosity(logging.WARNING)
    pairs = list(itertools.product(parallel.CLIENT_MAPS[1:], [name for name in CONVOLUTIONS if name != 'auto']))
    tasks = {}
    for pair in pairs:
        print(f'compiling {" and ".join(pair)} …', flush=True)
        tasks[pair] = task(*pair)
        print(f'  first pass {tasks[pair]():.3f} s', flush=True)
    times = {pair: [] for pair in pairs}
    for _, (pair, seconds) in itertools.product(range(flags.FLAGS.repeats), tasks.items()):
        times[pair].append(seconds())
    print('\n| client_map | convolution | ms, median | lowest |\n|---|---|---|---|')
    for pair in sorted(pairs, key=lambda pair: statistics.median(times[pair])):
        milliseconds = [1000 * value for value in times[pair]]
        print(f'| {pair[0]} | {pair[1]} | {statistics.median(milliseconds):,.1f} | {min(milliseconds):,.1f} |')


if __name__ == '__main__':
    app.run(main)
