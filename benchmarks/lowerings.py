"""Which layout of clients and which form of convolution is fastest here: every pair, side by side.

    python -m benchmarks.lowerings                  the CNN's bottoms, 10 clients x 64 images
    python -m benchmarks.lowerings --model=alexnet --precision=bfloat16

Measures forward and backward passes of all client bottoms inside a loop, as a round has them, in turns, and prints
medians. config.federation.client_map and config.model.convolution choose a pair; their 'auto' should be the first line
(semisfl_jax/forms.py). For a whole round of a configuration, see python -m semisfl_jax.tune.
"""

from __future__ import annotations

import itertools
import statistics

from absl import flags, logging

from benchmarks import commands
from semisfl_jax import models, parallel
from semisfl_jax.forms import Form
from semisfl_jax.models import CONVOLUTIONS
from semisfl_jax.parallel import compilation
from semisfl_jax.tune import measure, passes

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


def task(form: Form):
    """Compiles `steps` passes of one form; returns a function that runs them and returns the seconds per pass."""
    values, shape = flags.FLAGS, MODELS[flags.FLAGS.model]
    dtype = 'bfloat16' if values.precision == 'bfloat16' else 'float32'
    model = models.build(values.model, 10, shape, convolution=form.convolution, dtype=dtype)
    return passes.compile_passes(
        model, form.client_map, shape, values.clients, values.batch_size, values.precision, values.steps
    )


def main() -> None:
    logging.set_verbosity(logging.WARNING)
    convolutions = [name for name in CONVOLUTIONS if name != 'auto']
    tasks = {}
    for form in itertools.starmap(Form, itertools.product(parallel.CLIENT_MAPS[1:], convolutions)):
        print(f'compiling {form} …', flush=True)
        tasks[form] = task(form)
        print(f'  first pass {tasks[form]():.3f} s', flush=True)
    times = measure.in_turns(tasks, flags.FLAGS.repeats)
    print('\n| client_map | convolution | ms, median | lowest |\n|---|---|---|---|')
    for form in sorted(tasks, key=lambda form: statistics.median(times[form])):
        milliseconds = [1000 * value for value in times[form]]
        print(f'| {" | ".join(form)} | {statistics.median(milliseconds):,.1f} | {min(milliseconds):,.1f} |')


if __name__ == '__main__':
    commands.run(main, __doc__)
