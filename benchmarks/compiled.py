"""Compiles SemiSFL with every model, and every method with the CNN, for devices that are not there, and keeps what the
compilers say.

    python -m benchmarks.compiled --target=h200             on one device and on eight
    python -m benchmarks.compiled --target=v5e --methods=semisfl --families=cnn,alexnet --devices=1

Each model is compiled as its configuration has it: the CNN as in configs/svhn.py, VGG13 as in stl10.py, VGG16 as in
image100.py, the others as in cifar10.py, with K_s, K_u and batch sizes of the paper. Needs what `python -m
semisfl_jax.preview` needs for the target. It takes half an hour to hours; what was compiled is in OUT/compiled.jsonl,
a line each, and is not compiled again (--again does). OUT/compiled.md has the tables.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict

import semisfl_jax as sfl
from benchmarks import commands
from benchmarks.method_cases import Method, methods
from semisfl_jax import core, models
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError
from semisfl_jax.base.machine import PRECISIONS
from semisfl_jax.lab.preview import program, targets
from semisfl_jax.lab.preview.program import Refused
from semisfl_jax.lab.preview.targets import HERE, TARGETS

CONFIGS = {'cnn': 'svhn', 'vgg13': 'stl10', 'vgg16': 'image100'}  # of the other families: OTHERS
OTHERS = 'cifar10'
FIRST = ('semisfl', 'cnn')  # every family with this method, and every method with this family

flags.DEFINE_enum('target', None, [*TARGETS, HERE], 'device to compile for', required=True)
flags.DEFINE_list('methods', [], 'fedavg or fedavg:uda; empty: everything')
flags.DEFINE_list('families', [], 'of models; empty: everything')
flags.DEFINE_list('devices', ['1', '8'], 'how many of them share the clients')
flags.DEFINE_enum('precision', 'tf32', list(PRECISIONS), 'config.precision')
flags.DEFINE_bool('again', False, 'compile also what is there')
flags.DEFINE_string('out', 'benchmark_results', 'folder of compiled.jsonl and compiled.md')


class Cell(NamedTuple):
    """What is compiled."""

    target: str
    devices: int
    precision: str
    method: str
    family: str


def cells(
    target: str, devices: list[int], precision: str, chosen_methods: list[Method], families: list[str]
) -> list[Cell]:
    """Of the methods and families that are chosen, those with the method or the family of FIRST."""
    return [
        Cell(target, count, precision, method.name, family)
        for count in devices
        for method in chosen_methods
        for family in families
        if (method.name == FIRST[0] or family == FIRST[1])
        and not (count > 1 and method.algorithm == 'supervised_only')  # it has no clients to divide
    ]


def configuration(cell: Cell, method: Method) -> ConfigDict:
    """The configuration of a cell, resolved.

    Raises:
      UserError: what a run would say.
    """
    keys = {
        **dict(method.keys),
        'algorithm': method.algorithm,
        'model.name': cell.family,
        'parallel.devices': cell.devices,
        'precision': cell.precision,
    }
    config = sfl.get_config(CONFIGS.get(cell.family, OTHERS), keys)
    sfl.check(config)
    return sfl.resolve(config)


def compile_cell(cell: Cell, method: Method) -> dict[str, Any]:
    """What the compiler says of a cell, or why there is nothing to compile."""
    target = targets.get(cell.target)
    with machine.programs_for(target.platform):
        try:
            config = configuration(cell, method)
        except UserError as error:
            return {'impossible': ' '.join(str(error).split())}
        devices = targets.devices(target, cell.devices)
        experiment = sfl.shapes.build(config, devices.mesh)
        start = time.process_time()
        try:
            round_ = program.compile_for(target, devices.first, experiment, sfl.shapes.trace_round)
            seconds = time.process_time() - start
            evaluation = program.compile_for(target, devices.first, experiment, sfl.shapes.trace_evaluation)
        except Refused as error:
            return {'refused': str(error)[:300], 'too_large': error.for_memory}
        need = program.memory(experiment, round_, evaluation)
        return {'seconds': round(seconds, 1), 'bytes': need.total, 'fits': need.fits(target)}


def read(file: Path) -> dict[Cell, dict[str, Any]]:
    """The results so far; of a cell that is there twice, the last."""
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines]
    return {Cell(*(record[name] for name in Cell._fields)): record for record in records}


def tables(results: dict[Cell, dict[str, Any]]) -> str:
    """Markdown tables of all families with the method of FIRST, and of all methods with its family, as far as they are
    there; with a column for each target, number of devices and precision."""
    words = {cell: _words(record) for cell, record in results.items()}
    places = sorted({cell[:3] for cell in words})
    (method, family), names, parts = FIRST, sorted({cell.method for cell in words}), []
    for title, pairs in (
        (f'{method} with every model', {name: (method, name) for name in models.ARCHITECTURES}),
        (f'every method with {family}', {name: (name, family) for name in names}),
    ):
        rows = {name: [words.get(Cell(*place, *pair), '') for place in places] for name, pair in pairs.items()}
        filled = [[name, *row] for name, row in rows.items() if any(row)]
        titles = ['', *(f'{target}, {count} device{"s" * (count > 1)}, {kind}' for target, count, kind in places)]
        parts += [f'### {title}', commands.markdown(titles, filled)] if filled else []
    return '\n\n'.join(parts) + '\n'


def _words(record: dict[str, Any]) -> str:
    """Memory of a device, and seconds of compiling."""
    if 'impossible' in record:
        return '-'
    if 'refused' in record:
        return '**too large**' if record.get('too_large') else '**no**'
    fits = '' if record['fits'] else '**, too large**'
    return f'{record["bytes"] / 2**30:.2g} GiB{fits}, {record["seconds"]:.0f} s'


def run(todo: list[Cell], by_name: dict[str, Method], file: Path) -> Iterator[Cell]:
    """Compiles, and appends a line for every cell as soon as it is there."""
    for cell in todo:
        result = compile_cell(cell, by_name[cell.method])
        record = {**cell._asdict(), **result, 'jax': jax.__version__, 'commit': sfl.commit()}
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
    counts = [int(word) for word in options.devices]
    if options.target == HERE:
        core.clients.split_cpu(max(counts))
    every = cells(options.target, counts, options.precision, chosen_methods, families)
    there = {} if options.again else read(file)
    todo = [cell for cell in every if cell not in there]
    print(f'{len(every)} programs, {len(every) - len(todo)} of them there', flush=True)
    start = time.monotonic()
    for done, cell in enumerate(run(todo, {method.name: method for method in chosen_methods}, file), 1):
        record = read(file)[cell]
        words = record.get('refused') or record.get('impossible') or _words(record)
        minutes = math.ceil((time.monotonic() - start) / done * (len(todo) - done) / 60)
        left = f'; about {minutes} min left' if minutes else ''
        print(f'  {done}/{len(todo)} {cell.method}, {cell.family}, {cell.devices} devices: {words}{left}', flush=True)
        (out / 'compiled.md').write_text(tables(read(file)))


if __name__ == '__main__':
    commands.run(main, __doc__)
