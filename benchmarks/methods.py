"""Measures a round of every method of this project, all on the same data, model and batches.

    python -m benchmarks.methods                                  every method; the CNN on 28x28x1
    python -m benchmarks.methods --methods=semisfl,fedavg:uda --repeats=9
    python -m benchmarks.methods --data=cifar10 --k_s=2 --k_u=2   AlexNet on 32x32x3

All are compiled first and run once; then they take turns, A B C A B C …, and figures are medians. Images are synthetic,
all clients are active, and K_s is fixed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import sys
import time
from pathlib import Path

from absl import flags

from benchmarks import commands, method_report, processes, report
from benchmarks.method_cases import Case, methods
from benchmarks.method_side import measure
from semisfl_jax import models
from semisfl_jax.base.errors import UserError
from semisfl_jax.base.machine import PRECISIONS
from semisfl_jax.core.clients import CLIENT_MAPS

DATA = ('fashion_mnist', 'mnist', 'svhn', 'cifar10', 'stl10', 'digits')
SIZES = {'cpu': (10, 10), 'gpu': (100, 50)}  # default K_s and K_u

flags.DEFINE_list('methods', [], 'what to measure, fedavg or fedavg:uda; empty: everything')
flags.DEFINE_enum('data', 'fashion_mnist', DATA, 'configuration whose model and shapes are taken')
flags.DEFINE_enum('model', '', ['', *models.ARCHITECTURES], "config.model.name; '': the configuration's")
flags.DEFINE_integer('clients', 10, 'active clients', lower_bound=1)
flags.DEFINE_integer('batch_size', 64, 'images per client and iteration, and per supervised step', lower_bound=1)
flags.DEFINE_integer('k_s', 0, 'supervised steps; 0: 10 on a CPU, 100 on a GPU', lower_bound=0)
flags.DEFINE_integer('k_u', 0, 'iterations of a client; 0: 10 on a CPU, 50 on a GPU', lower_bound=0)
flags.DEFINE_integer('repeats', 5, 'rounds of each that count', lower_bound=1)
flags.DEFINE_bool('augmentation', True, 'augmented views')
flags.DEFINE_enum('precision', 'tf32', list(PRECISIONS), 'config.precision')
flags.DEFINE_enum('convolution', 'auto', models.CONVOLUTIONS, 'config.model.convolution')
flags.DEFINE_enum('client_map', 'auto', CLIENT_MAPS, 'config.federation.client_map')
flags.DEFINE_integer('client_chunk', 0, 'config.federation.client_chunk', lower_bound=0)
flags.DEFINE_string('out', 'benchmark_results', 'folder for methods.json and methods.md')


def run(case: Case, repeats: int, out: Path) -> dict:
    """All measurements of a case, written to `out` after every turn in case a long run is interrupted.

    Raises:
      processes.Failed: the process of the methods failed.
    """
    names = [method.name for method in case.methods]
    result = {
        'machine': report.machine(),
        'python': platform.python_version(),
        'case': dataclasses.asdict(case),
        'seconds': {name: [] for name in names},
    }
    with processes.Remote(measure, case) as remote:
        result['facts'] = remote.facts
        for name in names:
            remote.time(name)  # warm-up: touches memory for the first time
        start = time.perf_counter()
        for repeat in range(1, repeats + 1):
            for name in names:
                result['seconds'][name].append(remote.time(name))
            last = ', '.join(f'{name} {result["seconds"][name][-1]:.2f} s' for name in names)
            minutes = math.ceil((time.perf_counter() - start) / repeat * (repeats - repeat) / 60)
            left = f'; about {minutes} min left' if minutes else ''
            print(f'  {repeat}/{repeats}: {last}{left}', flush=True)
            (out / 'methods.json').write_text(json.dumps(result, indent=1) + '\n')
            (out / 'methods.md').write_text(method_report.table(result))
    return result


def main() -> None:
    values = flags.FLAGS
    try:
        chosen = methods(tuple(values.methods))
    except KeyError as error:
        names = ', '.join(method.name for method in methods())
        raise UserError(f'--methods={error.args[0]} is not a method; use {names}') from error
    out = commands.folder(values.out)
    k_s, k_u = SIZES[processes.backend()]
    case = Case(
        methods=tuple(chosen),
        data=values.data,
        model=values.model,
        augment=values.augmentation,
        clients=values.clients,
        batch_size=values.batch_size,
        k_s=values.k_s or k_s,
        k_u=values.k_u or k_u,
        precision=values.precision,
        convolution=values.convolution,
        client_map=values.client_map,
        client_chunk=values.client_chunk,
    )
    try:
        result = run(case, values.repeats, out)
    except processes.Failed as error:
        sys.exit(f'error: {error}')
    print('\n' + method_report.table(result))


if __name__ == '__main__':
    commands.run(main, __doc__)
