"""Measures this project against the PyTorch reference, side by side: one cross-entity iteration and a whole round,
with and without augmentation.

    python -m benchmarks.run                              both models; the CNN takes 3 minutes on 2 cores
    python -m benchmarks.run --models=cnn --k_s=100 --k_u=50 --repeats=3
    python -m benchmarks.run --no_torch                   this project alone

The two take turns, A B A B …, each in a process of its own; figures are medians. An iteration is measured as a
phase of K_u iterations, broadcast and average included, divided by K_u; loader processes run, but idle, when it
starts. The PyTorch side is the fastest of its modes in a short trial. Shares are of the rate of a large matrix
product on the same machine, measured in the same turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import sys
from pathlib import Path

from absl import flags

from benchmarks import commands, processes, report
from benchmarks.arithmetic import FORWARD
from benchmarks.processes import Remote
from benchmarks.sides import SIDES, Case, fastest_mode
from semisfl_jax.base.machine import PRECISIONS
from semisfl_jax.core.clients import CLIENT_MAPS
from semisfl_jax.models import CONVOLUTIONS

TASKS = ('iteration', 'round')
SIZES = {  # default K_s, K_u and repeats; on a GPU, those of the paper's round
    'cpu': {'cnn': (10, 10, 5), 'alexnet': (2, 2, 3)},
    'gpu': {'cnn': (100, 50, 5), 'alexnet': (100, 50, 3)},
}

flags.DEFINE_list('models', ['cnn', 'alexnet'], 'what to measure: cnn (SVHN), alexnet (CIFAR-10)')
flags.DEFINE_integer('clients', 10, 'active clients', lower_bound=1)
flags.DEFINE_integer('batch_size', 64, 'images per client and iteration, and per supervised step', lower_bound=1)
flags.DEFINE_integer('k_s', 0, 'supervised steps; 0: 10 (cnn) or 2 (alexnet) on a CPU, 100 on a GPU', lower_bound=0)
flags.DEFINE_integer(
    'k_u', 0, 'cross-entity iterations; 0: 10 (cnn) or 2 (alexnet) on a CPU, 50 on a GPU', lower_bound=0
)
flags.DEFINE_integer('repeats', 0, 'measurements of everything; 0: 5 (cnn) or 3 (alexnet)', lower_bound=0)
flags.DEFINE_enum('augmentation', 'both', ['both', 'on', 'off'], 'with and without augmentation, or only one of them')
flags.DEFINE_enum('precision', 'tf32', PRECISIONS, 'of both sides, as config.precision')
flags.DEFINE_enum('convolution', 'auto', CONVOLUTIONS, 'config.model.convolution of this project')
flags.DEFINE_enum('client_map', 'auto', CLIENT_MAPS, 'config.federation.client_map of this project')
flags.DEFINE_integer('client_chunk', 0, 'config.federation.client_chunk of this project', lower_bound=0)
flags.DEFINE_string('out', 'benchmark_results', 'folder for results.json and table.md')
flags.DEFINE_bool('no_torch', False, 'measure this project alone')
flags.register_validator(
    'models', lambda names: names and set(names) <= set(FORWARD), 'choose among ' + ', '.join(FORWARD)
)


def measure(case: Case, repeats: int, sides: list[str]) -> dict:
    """All raw measurements of a case: seconds of every repeat per side and task, facts, memory."""
    with contextlib.ExitStack() as stack:
        remotes = {name: stack.enter_context(Remote(SIDES[name], case)) for name in sides}
        seconds = {name: {task: [] for task in TASKS} for name in sides}
        seconds['jax']['matmul'] = []
        for task in TASKS:
            for remote in remotes.values():
                remote.time(task)  # warm-up: touches memory for the first time
        remotes['jax'].time('matmul')
        for repeat in range(repeats):
            for task in TASKS:
                for name, remote in remotes.items():
                    seconds[name][task].append(remote.time(task))
            seconds['jax']['matmul'].append(remotes['jax'].time('matmul'))
            last = [f'{task} {seconds[name][task][-1]:.2f} s {name}' for task in TASKS for name in sides]
            print(f'  {repeat + 1}/{repeats}: {", ".join(last)}', flush=True)
        return {
            'case': dataclasses.asdict(case),
            'images': {task: case.images(task) for task in TASKS},
            'flops': {task: case.flops(task) for task in TASKS},
            'seconds': seconds,
            'facts': {name: remote.facts for name, remote in remotes.items()},
            'memory': {name: remote.memory() for name, remote in remotes.items()},
        }


def main() -> None:
    values = flags.FLAGS
    sides = ['jax'] if values.no_torch else ['jax', 'torch']
    if not values.no_torch:
        commands.require_torch()
    out, sizes = commands.folder(values.out), SIZES[processes.backend()]
    result = {'machine': report.machine(), 'python': platform.python_version(), 'trials_s': {}, 'cases': []}
    try:
        for model in values.models:
            _measure_model(model, sizes[model], sides, result, out)
    except processes.Failed as error:
        sys.exit(f'error: {error}; cases measured before are in {out}')
    print('\n' + report.table(result))


def _measure_model(model: str, sizes: tuple[int, int, int], sides: list[str], result: dict, out: Path) -> None:
    """Adds the cases of a model to `result`, and writes it after each."""
    values, (k_s, k_u, repeats) = flags.FLAGS, sizes
    case = Case(
        model=model,
        augment=False,
        clients=values.clients,
        batch_size=values.batch_size,
        k_s=values.k_s or k_s,
        k_u=values.k_u or k_u,
        precision=values.precision,
        convolution=values.convolution,
        client_map=values.client_map,
        client_chunk=values.client_chunk,
    )
    if 'torch' in sides:
        print(f'{model}: trying the modes of the PyTorch side …', flush=True)
        mode, result['trials_s'][model] = fastest_mode(case)
        case = dataclasses.replace(case, mode=mode)
    for augment in {'both': (False, True), 'on': (True,), 'off': (False,)}[values.augmentation]:
        case = dataclasses.replace(case, augment=augment)
        print(f'{model}, {"with" if augment else "without"} augmentation …', flush=True)
        result['cases'].append(measure(case, values.repeats or repeats, sides))
        (out / 'results.json').write_text(json.dumps(result, indent=1) + '\n')
        (out / 'table.md').write_text(report.table(result))


if __name__ == '__main__':
    commands.run(main, __doc__)
