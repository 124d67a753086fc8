"""Measures how the cost of a round of this project grows: with active clients, clients in total, devices and seeds.

    python -m benchmarks.growth                           all four studies; under 15 minutes on 2 cores
    python -m benchmarks.growth --studies=active --active=10,100,1000 --client_chunk=1
    python -m benchmarks.growth --model=alexnet --batch_size=64 --studies=total

Images are synthetic and views are augmented. Every point has a process of its own: a first round that does not count,
then the median of some more. A point that does not fit in memory is left out and says so.
"""

from __future__ import annotations

import importlib.util

from absl import flags

from benchmarks import commands, growth_plot, growth_report, processes
from benchmarks.growth_points import STUDIES, Point, points
from benchmarks.growth_runs import run_points
from benchmarks.programs import CONFIGURATIONS
from semisfl_jax.base.errors import UserError
from semisfl_jax.base.machine import PRECISIONS

SIZES = {'cpu': {'k_s': 1, 'k_u': 2, 'batch_size': 8}, 'gpu': {'k_s': 100, 'k_u': 50, 'batch_size': 64}}
VALUES = {
    'active': (1, 3, 10, 30, 100, 300, 1000),
    'total': (100, 1000, 10_000, 100_000),
    'devices': (1, 2, 4, 8),
    'seeds': (1, 2, 4, 8, 16),
}
GROWS = {
    'active': 'active clients',
    'total': 'clients in total',
    'devices': 'devices; on a CPU, fake ones that share its cores',
    'seeds': 'seeds in one program',
}

flags.DEFINE_list('studies', list(STUDIES), 'what to measure: ' + ', '.join(STUDIES))
for _study, _values in VALUES.items():
    flags.DEFINE_list(_study, [str(value) for value in _values], f'study {_study}: numbers of {GROWS[_study]}')
flags.DEFINE_enum('model', 'cnn', list(CONFIGURATIONS), 'cnn (SVHN), alexnet (CIFAR-10) or small_cnn (digits)')
flags.DEFINE_integer('clients', 10, 'active clients where something else grows', lower_bound=1)
flags.DEFINE_integer(
    'client_chunk', 10, 'config.federation.client_chunk of the second half of study active', lower_bound=1
)
flags.DEFINE_integer('batch_size', 0, 'images per client and iteration; 0: 8 on a CPU, 64 on a GPU', lower_bound=0)
flags.DEFINE_integer('k_s', 0, 'supervised steps; 0: 1 on a CPU, 100 on a GPU', lower_bound=0)
flags.DEFINE_integer('k_u', 0, 'cross-entity iterations; 0: 2 on a CPU, 50 on a GPU', lower_bound=0)
flags.DEFINE_integer('repeats', 3, 'rounds that count, at least', lower_bound=1)
flags.DEFINE_enum('precision', 'tf32', list(PRECISIONS), 'config.precision')
flags.DEFINE_float('memory_limit', 0, 'GiB that a round may ask for; 0: 90 % of what is left', lower_bound=0)
flags.DEFINE_string('out', 'benchmark_results', 'folder for growth.json, growth.md and the plot')
flags.register_validator(
    'studies', lambda names: names and set(names) <= set(STUDIES), 'choose among ' + ', '.join(STUDIES)
)
for _study in VALUES:
    flags.register_validator(
        _study,
        lambda words: words and all(word.isdecimal() and int(word) for word in words) and len(set(words)) == len(words),
        'give whole numbers from 1, each once, as in 1,2,4',
    )


def main() -> None:
    values = flags.FLAGS
    numbers = {study: sorted(map(int, values[study].value)) for study in STUDIES}
    if 'total' in values.studies and numbers['total'][0] < values.clients:
        raise UserError(
            f'--total={numbers["total"][0]} is less than --clients={values.clients}, which are active; use more in '
            'total, or fewer active ones'
        )
    out = commands.folder(values.out)
    sizes = SIZES[processes.backend()]
    base = Point(
        model=values.model,
        batch_size=values.batch_size or sizes['batch_size'],
        k_s=values.k_s or sizes['k_s'],
        k_u=values.k_u or sizes['k_u'],
        active=values.clients,
        precision=values.precision,
        memory_limit=int(values.memory_limit * 2**30),
    )
    todo = [
        point
        for study in STUDIES
        if study in values.studies
        for point in points(study, base, numbers[study], values.client_chunk)
    ]
    result = run_points(todo, values.repeats, out)

    print('\n' + growth_report.table(result))
    if all(record['failed'] for record in result['points']):
        print('no plot: no point was measured')
    elif importlib.util.find_spec('matplotlib') is None:
        print("no plot: matplotlib is not installed (pip install -e '.[benchmark]')")
    else:
        growth_plot.plot(result, out)


if __name__ == '__main__':
    commands.run(main, __doc__)
