"""What a grid takes as one program, beside the same runs in turn and beside PyTorch.

    python -m benchmarks.grids                                                 both models, an hour on 2 cores
    python -m benchmarks.grids --models=digits --values=10 --seeds=5 --rounds=150 --devices=0

A grid is the command with so many values of `lr` and so many seeds, a process of its own that compiles everything;
`cores` is the same with `parallel.devices=0`, where the cores can divide the runs. In turn, every run is a process; the
first seed of a learning rate compiles the round, which another seed finds where its split has the same shapes. --turns
learning rates are measured so, two seeds of each, and the table has their means for as many runs as the grid has.
PyTorch trains in one process: its start, and the runs times the rounds times the median of five rounds, in the fastest
of its modes; it neither evaluates nor saves, and views of the digits are left out. OUT/grids.md has the table,
OUT/grids.json every measurement.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from benchmarks import commands
from benchmarks.processes import Remote
from benchmarks.sides import NUM_LABELED, PER_CLIENT, SIDES, Case, fastest_mode
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError

ROOT = Path(__file__).parents[1]
CNN: dict[str, Any] = {
    'data.fake': True,
    'data.fake_size': NUM_LABELED + 10 * PER_CLIENT,
    'data.num_labeled': NUM_LABELED,
    'k_s': 5,
    'k_u': 5,
}


class Model(NamedTuple):
    """A model: its configuration, changes and rounds, and the same of the PyTorch reference."""

    config: str
    changes: dict[str, Any]
    rounds: int
    torch: Case


MODELS = {
    'digits': Model('digits', {}, 20, Case('small_cnn', False, 5, 16, 20, 10)),
    'cnn': Model('svhn', CNN, 1, Case('cnn', True, 10, 64, 5, 5)),
}
COLUMNS = {1: 'one program', 0: 'cores'}  # by `parallel.devices`
FORMS = {'seconds': '.0f', 'compile_s': '.0f', 'gib': '.2f'}
OF_PROGRAM = [f'{column}{what}' for column in COLUMNS.values() for what in ('', ', compilation', ', GiB')]
TITLES = ('model', 'values', 'seeds', *OF_PROGRAM, 'in turn', 'PyTorch')


def command(cache: Path, name: str, rounds: int, *words: str) -> dict[str, float]:
    """Runs the command; returns `seconds`, and the `compile_s` and the `gib` of its largest process.

    Raises:
      UserError: it fails.
    """
    model = MODELS[name]
    changes = {**model.changes, 'rounds': rounds}
    with tempfile.TemporaryDirectory() as folder:
        own = {key: value for key, value in os.environ.items() if key != 'JAX_COMPILATION_CACHE_DIR'}
        own |= {'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(cache)}
        settings = [f'--config.{key}={value}' for key, value in changes.items()]
        line = [sys.executable, 'launch.py', f'--config=configs/{model.config}.py', f'--workdir={folder}/run']
        begin = time.perf_counter()
        done = subprocess.run(
            [*line, *settings, *words], env=own, cwd=ROOT, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - begin
        if done.returncode:
            raise UserError(f'{" ".join([*line[1:], *words])} failed: {done.stderr.strip().splitlines()[-1:]}')
        found = [json.loads(path.read_text()) for path in Path(folder).rglob('summary.json')]
        found = [summary for summary in found if 'compile_seconds' in summary]
        return {
            'seconds': seconds,
            'compile_s': max(summary['compile_seconds'] for summary in found),
            'gib': max(summary['peak_memory_bytes'] for summary in found) / 2**30,
        }


def rates(count: int) -> list[str]:
    """Learning rates, geometric from 0.01 to 0.05."""
    return [f'{rate:.4f}' for rate in np.geomspace(0.01, 0.05, count)]


def grid(name: str, rounds: int, values: int, seeds: int, devices: int) -> dict[str, float]:
    """Runs a grid that finds nothing compiled."""
    words = [f'--config.seeds={",".join(map(str, range(seeds)))}', f'--config.parallel.devices={devices}']
    with tempfile.TemporaryDirectory() as cache:
        return command(Path(cache), name, rounds, *words, '--grid', f'lr={",".join(rates(values))}')


def in_turn(name: str, rounds: int, turns: int) -> dict[str, list[float]]:
    """Seconds of runs alone, for each of some learning rates: of one that compiles, and of another seed after it."""
    seconds: dict[str, list[float]] = {'first': [], 'again': []}
    with tempfile.TemporaryDirectory() as cache:
        for rate in rates(turns):
            for seed, each in enumerate(seconds.values()):
                words = f'--config.lr={rate}', f'--config.seed={seed}'
                each.append(command(Path(cache), name, rounds, *words)['seconds'])
    return seconds


def torch(name: str) -> dict[str, float]:
    """Seconds from the start of PyTorch's process until its first round ends, and of a round after it."""
    mode, _ = fastest_mode(MODELS[name].torch)
    begin = time.perf_counter()
    with Remote(SIDES['torch'], dataclasses.replace(MODELS[name].torch, mode=mode)) as remote:
        remote.time('round')
        start = time.perf_counter() - begin
        return {'start': start, 'round': statistics.median(remote.time('round') for _ in range(5))}


def report(found: dict[str, Any], rounds: dict[str, int]) -> str:
    """A table with a row for each grid."""
    rows = []
    for each in found['grids']:
        name, values, seeds = each['model'], each['values'], each['seeds']
        cells = [each.get(column, {}) for column in COLUMNS.values()]
        first, again = (statistics.mean(found['in_turn'][name][which]) for which in ('first', 'again'))
        row = [name, str(values), str(seeds)]
        row += [f'{cell[key]:{form}}' if cell else '' for cell in cells for key, form in FORMS.items()]
        row.append(f'{values * (first + (seeds - 1) * again):.0f}')
        side, runs = found['torch'].get(name), values * seeds
        row.append(f'{side["start"] + runs * rounds[name] * side["round"]:.0f}' if side else '')
        rows.append(row)
    title = ', '.join(f'{count} rounds of {name}' for name, count in rounds.items())
    return f'Seconds, and GiB of the process; {title}; {machine.processor()}.\n\n{commands.markdown(TITLES, rows)}\n'


def main() -> None:
    options = flags.FLAGS
    if unknown := set(options.models) - set(MODELS):
        raise UserError(f'--models={min(unknown)} is not a model; use some of {", ".join(MODELS)}')
    try:
        sizes = [(int(seeds), int(values)) for seeds in options.seeds for values in options.values]
    except ValueError as error:
        raise UserError('--values and --seeds are lists of whole numbers, such as --values=1,10') from error
    if not options.no_torch:
        commands.require_torch()
    out = commands.folder(options.out)
    rounds = {name: options.rounds or MODELS[name].rounds for name in options.models}
    found: dict[str, Any] = {'rounds': rounds, 'in_turn': {}, 'torch': {}, 'grids': []}
    for name in options.models:
        found['in_turn'][name] = in_turn(name, rounds[name], options.turns)
        if not options.no_torch:
            found['torch'][name] = torch(name)
        for seeds, values in sizes:
            row: dict[str, Any] = {'model': name, 'values': values, 'seeds': seeds}
            for devices in map(int, options.devices):
                if devices == 1 or seeds * values % machine.cores() == 0:
                    row[COLUMNS[devices]] = grid(name, rounds[name], values, seeds, devices)
            found['grids'].append(row)
            print(row, flush=True)
            (out / 'grids.json').write_text(json.dumps(found, indent=1))
            (out / 'grids.md').write_text(report(found, rounds))
    print(report(found, rounds))


if __name__ == '__main__':
    # here, as tests import this module beside others with such flags
    flags.DEFINE_list('models', list(MODELS), f'of {", ".join(MODELS)}')
    flags.DEFINE_list('values', ['1', '2', '5', '10', '20'], 'how many learning rates a grid has')
    flags.DEFINE_list('seeds', ['1', '5'], 'how many seeds each of them has')
    flags.DEFINE_integer('rounds', 0, "rounds of each run; 0: the model's", lower_bound=0)
    flags.DEFINE_integer('turns', 3, 'learning rates in turn that are measured', lower_bound=1)
    flags.DEFINE_multi_enum('devices', ['1', '0'], ['1', '0'], 'parallel.devices of the program; 0: one for each core')
    flags.DEFINE_bool('no_torch', False, 'leave out PyTorch')
    flags.DEFINE_string('out', 'benchmark_results', 'folder of grids.md and grids.json')
    commands.run(main, __doc__)
