"""Compiles every method with every model for devices that are not there, and keeps what the compilers say.

    python -m benchmarks.compiled --target=h200             all methods and models, on one device and on eight
    python -m benchmarks.compiled --target=h200 --cross     SemiSFL with all models, and all methods with the CNN
    python -m benchmarks.compiled --target=v5e --methods=semisfl --families=cnn,alexnet --devices=1

Each model is compiled as its configuration has it: the CNN as in configs/svhn.py, VGG13 as in stl10.py, VGG16 as in
image100.py, the others as in cifar10.py, with K_s, K_u and batch sizes of the paper. Needs what `python -m
semisfl_jax.preview` needs for the target. All of it takes hours; what was compiled is in OUT/compiled.jsonl, a line
each, and is not compiled again (--again does). OUT/compiled.md has the tables.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict

from benchmarks import commands, hlo
from benchmarks.method_cases import Method, methods
from semisfl_jax import config as config_lib
from semisfl_jax import models
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.machine import PRECISIONS
from semisfl_jax.preview import program, targets
from semisfl_jax.preview.program import Refused
from semisfl_jax.preview.targets import HERE, TARGETS

CONFIGS = {'cnn': 'svhn', 'vgg13': 'stl10', 'vgg16': 'image100'}  # of the other families: OTHERS
OTHERS = 'cifar10'
STEPS = ('cross_entity_iteration', 'local_step', 'supervised_step')  # whose kernels are shown, the first that there is
FIRST = ('semisfl', 'cnn')  # every family with this method, and every method with this family, come first (--cross)

flags.DEFINE_enum('target', None, [*TARGETS, HERE], 'device to compile for', required=True)
flags.DEFINE_list('methods', [], 'fedavg or fedavg:uda; empty: everything')
flags.DEFINE_list('families', [], 'of models; empty: everything')
flags.DEFINE_list('devices', ['1', '8'], 'how many of them share the clients')
flags.DEFINE_enum('precision', 'tf32', list(PRECISIONS), 'config.precision')
flags.DEFINE_bool('cross', False, 'only every family with SemiSFL, and every method with the CNN')
flags.DEFINE_bool('again', False, 'compile also what is there')
flags.DEFINE_string('out', 'benchmark_results', 'folder of compiled.jsonl and compiled.md')


class Cell(NamedTuple):
    """What is compiled."""

    target: str
    devices: int
    method: str
    family: str


def cells(target: str, devices: list[int], chosen_methods: list[Method], families: list[str]) -> list[Cell]:
    """All, those first that most depends on: one row and one column on one device, then on several, then the rest."""
    every = [
        Cell(target, count, method.name, family)
        for count in devices
        for method in chosen_methods
        for family in families
        if not (count > 1 and method.algorithm == 'supervised_only')  # it has no clients to divide
    ]
    return sorted(every, key=lambda cell: not in_cross(cell))


def in_cross(cell: Cell) -> bool:
    """Whether it has the method or the family of FIRST."""
    return cell.method == FIRST[0] or cell.family == FIRST[1]


def configuration(cell: Cell, method: Method, precision: str) -> ConfigDict:
    """The configuration of a cell, resolved.

    Raises:
      UserError: what a run would say.
    """
    keys = {
        **dict(method.keys),
        'algorithm': method.algorithm,
        'model.name': cell.family,
        'parallel.devices': cell.devices,
        'precision': precision,
    }
    config = config_lib.get_config(CONFIGS.get(cell.family, OTHERS), keys)
    config_lib.check(config)
    return config_lib.resolve(config)


def compile_cell(cell: Cell, method: Method, precision: str) -> dict[str, Any]:
    """What the compiler says of a cell, or why there is nothing to compile."""
    target = targets.get(cell.target)
    with machine.programs_for(target.platform):
        try:
            config = configuration(cell, method, precision)
        except UserError as error:
            return {'impossible': ' '.join(str(error).split())}
        devices = targets.devices(target, cell.devices)
        experiment = program.shape_experiment(config, devices.mesh)
        start = time.process_time()
        try:
            round_ = program.compile_round(experiment, target, devices)
            seconds = time.process_time() - start
            evaluation = program.compile_evaluation(experiment, target, devices)
        except Refused as error:
            return {'refused': str(error)[:300], 'too_large': error.for_memory}
        need = program.memory(experiment, round_, evaluation)
        phases = hlo.phases(hlo.parse(round_.text))
        return {
            'seconds': round(seconds, 1),
            'bytes': need.total,
            'temporary': round_.memory.temporary,
            'fits': need.fits(target),
            'kernels': {phase: count.kernels for phase, count in phases.items()},
            'collectives': sum(sum(count.bytes.values()) for count in phases.values()),
        }


def read(file: Path) -> dict[Cell, dict[str, Any]]:
    """The results so far; of a cell that is there twice, the last."""
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines]
    return {Cell(*(record[name] for name in Cell._fields)): record for record in records}


def tables(results: dict[Cell, dict[str, Any]]) -> str:
    """Markdown tables: the row and the column of FIRST, with a column for each target and number of devices; then, for
    each of these, all that is not in the first two, methods down and families across."""
    words = {cell: _words(record) for cell, record in results.items()}
    places = sorted({(cell.target, cell.devices) for cell in words})
    parts = [*_row_and_column(words, places)]
    for place in places:
        here = {cell: text for cell, text in words.items() if (cell.target, cell.devices) == place}
        if not all(map(in_cross, here)):
            parts.append(_everything(here, place))
    return '\n\n'.join(parts) + '\n'


def _row_and_column(words: dict[Cell, str], places: list[tuple[str, int]]) -> Iterator[str]:
    """A table of all families with the method of FIRST, and one of all methods with its family, where any is there."""
    method, family = FIRST
    names = sorted({cell.method for cell in words})
    for title, pairs in (
        (f'{method} with every model', {name: (method, name) for name in models.ARCHITECTURES}),
        (f'every method with {family}', {name: (name, family) for name in names}),
    ):
        rows = {name: [words.get(Cell(*place, *pair), '') for place in places] for name, pair in pairs.items()}
        filled = {name: row for name, row in rows.items() if any(row)}
        if filled:
            yield _table(title, ['', *map(_named, places)], filled)


def _everything(here: dict[Cell, str], place: tuple[str, int]) -> str:
    """A table of all methods and families that were compiled for a target and a number of devices."""
    families = [name for name in models.ARCHITECTURES if any(cell.family == name for cell in here)]
    names = sorted({cell.method for cell in here})
    rows = {name: [here.get(Cell(*place, name, family), '') for family in families] for name in names}
    return _table(f'everything, {_named(place)}', ['', *families], rows)


def _named(place: tuple[str, int]) -> str:
    target, count = place
    return f'{target}, {count} device{"s" if count > 1 else ""}'


def _table(title: str, header: list[str], rows: dict[str, list[str]]) -> str:
    lines = [f'### {title}', '', f'| {" | ".join(header)} |', f'|{"---|" * len(header)}']
    return '\n'.join([*lines, *(f'| {" | ".join([name, *row])} |' for name, row in rows.items())])


def _words(record: dict[str, Any]) -> str:
    """Memory of a device, kernels of a step of the clients (or else the server), and seconds of compiling."""
    if 'impossible' in record:
        return '-'
    if 'refused' in record:
        return '**too large**' if record.get('too_large') else '**no**'
    kernels = record['kernels']
    step = next((kernels[name] for name in STEPS if name in kernels), 0)
    fits = '' if record['fits'] else '**, too large**'
    return f'{record["bytes"] / 2**30:.2g} GiB{fits}, {step}, {record["seconds"]:.0f} s'


def run(todo: list[Cell], by_name: dict[str, Method], precision: str, file: Path) -> Iterator[Cell]:
    """Compiles, and appends a line for every cell as soon as it is there."""
    commit = subprocess.run(['git', 'rev-parse', '--short=12', 'HEAD'], capture_output=True, text=True).stdout.strip()
    for cell in todo:
        result = compile_cell(cell, by_name[cell.method], precision)
        record = {**cell._asdict(), **result, 'precision': precision, 'jax': jax.__version__, 'commit': commit}
        with file.open('a') as lines:
            lines.write(json.dumps(record) + '\n')
        jax.clear_caches()
        yield cell


def main() -> None:
    options = flags.FLAGS
    jax.config.update('jax_platforms', 'cpu')
    targets.get(options.target)
    try:
        chosen_methods = methods(tuple(options.methods))
    except KeyError as error:
        raise UserError(
            f'--methods={error.args[0]} is not a method; use names such as semisfl or fedavg:uda'
        ) from error
    families = options.families or list(models.ARCHITECTURES)
    if unknown := set(families) - set(models.ARCHITECTURES):
        raise UserError(f'--families={min(unknown)} is not a family; use one of {", ".join(models.ARCHITECTURES)}')
    if not all(word.isdecimal() and int(word) for word in options.devices):
        raise UserError(f'--devices={",".join(options.devices)} must be numbers of devices; use numbers such as 1,8')
    out = commands.folder(options.out)
    file = out / 'compiled.jsonl'
    every = cells(options.target, [int(word) for word in options.devices], chosen_methods, families)
    if options.cross:
        every = [cell for cell in every if in_cross(cell)]
    there = {} if options.again else read(file)
    todo = [cell for cell in every if there.get(cell, {}).get('precision') != options.precision]
    print(f'{len(every)} programs, {len(every) - len(todo)} of them there', flush=True)
    start = time.monotonic()
    for done, cell in enumerate(
        run(todo, {method.name: method for method in chosen_methods}, options.precision, file), 1
    ):
        record = read(file)[cell]
        words = record.get('refused') or record.get('impossible') or _words(record)
        minutes = math.ceil((time.monotonic() - start) / done * (len(todo) - done) / 60)
        left = f'; about {minutes} min left' if minutes else ''
        print(f'  {done}/{len(todo)} {cell.method}, {cell.family}, {cell.devices} devices: {words}{left}', flush=True)
        (out / 'compiled.md').write_text(tables(read(file)))


if __name__ == '__main__':
    commands.run(main, __doc__)
