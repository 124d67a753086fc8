"""Measures what JPEG compression of CIFAR-10 costs: one run on compressed and one on original images.

    python -m benchmarks.jpeg --file=originals.npz                       five rows, ten seeds: a day on one core
    python -m benchmarks.jpeg --file=originals.npz --rows=alexnet --seeds=3

The JPEGs are `cifar10` of TFDS, as it is prepared where TFDS_DATA_DIR says. The file has some of their originals:
`train_original` and `test_original` [n, 32, 32, 3] uint8, `train_labels` and `test_labels` [n], and `train_index` and
`test_index` [n], the rows of their JPEGs in the splits, in the order in which TFDS reads them. Both runs of a row have
these n images alone, with the same seeds, splits, initial weights and cohorts. Settings are those of scale `cifar` of
the studies but for the rounds, with an evaluation after every fifth; accuracies are means of the last ten.

The same command goes on where it was stopped.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from absl import flags, logging
from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from benchmarks import commands
from semisfl_jax import config as config_lib
from semisfl_jax import data, runs
from semisfl_jax.base.errors import UserError, use_one_of
from semisfl_jax.data import dataset
from semisfl_jax.lab.studies import measures, spec, statistics
from semisfl_jax.training import callbacks, interrupt, loop

# 'all' leaves the clients a seventh of the images, which this method does not read; it has twice the steps per round
ALL = {'algorithm': 'supervised_only', 'data.num_labeled': 7000, 'k_s': 40}
ROWS = {
    'all': ('the server alone, 7,000 labels', ALL),
    'few': ('the server alone, 1,000 labels', {'algorithm': 'supervised_only'}),
    'semisfl': ('SemiSFL', {'algorithm': 'semisfl'}),
    'semisfl_prior': ('SemiSFL + client priors', {'algorithm': 'semisfl_prior'}),
    'semifl': ('SemiFL', {'algorithm': 'semifl'}),
    'alexnet': ('AlexNet, the server alone, 7,000 labels', {**ALL, 'model.name': 'alexnet'}),
}
IMAGES = ('original', 'jpeg')
Accuracies = Mapping[tuple[str, str], Mapping[int, float]]  # (key of ROWS, one of IMAGES) -> seed -> %

flags.DEFINE_string('file', None, 'the originals, a .npz file', required=True)
flags.DEFINE_list('rows', [row for row in ROWS if row != 'alexnet'], f'of {", ".join(ROWS)}')
flags.DEFINE_integer('seeds', 10, 'runs of each row on each of the two, of seeds 0, 1, 2, …', lower_bound=2)
flags.DEFINE_integer('rounds', 200, 'rounds of each run', lower_bound=1)
flags.DEFINE_string('out', 'benchmark_results', 'folder for jpeg.csv, jpeg.md, and the runs')


def read(path: str, images: str) -> data.Dataset:
    """Reads the originals in a file, or the JPEGs of the same images.

    Args:
      path: of the file.
      images: one of IMAGES.

    Raises:
      UserError: there is no such file, it lacks an array, or a label is not that of the JPEG.
    """
    try:
        with np.load(path) as file:
            arrays = dict(file)
        jpegs = data.load(config_lib.get_config('cifar10').data)
        chosen = {}
        for split in dataset.SPLITS:
            rows, labels = arrays[f'{split}_index'], arrays[f'{split}_labels'].astype(np.int32)
            if wrong := int((getattr(jpegs, f'{split}_labels')[rows] != labels).sum()):
                raise UserError(f'--file={path}: {wrong} of the {split}_labels are not those of rows {split}_index')
            of = {'original': arrays[f'{split}_original'], 'jpeg': getattr(jpegs, f'{split}_images')[rows]}
            chosen |= {f'{split}_images': of[images], f'{split}_labels': labels}
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UserError(f'--file={path} cannot be used ({error}); see --help for what it holds') from error
    return data.from_arrays(**chosen)


def configuration(row: str, seeds: int, rounds: int) -> ConfigDict:
    """Returns that of the runs of a row, on the originals and on the JPEGs."""
    title, changes = ROWS[row]
    changes = {
        **changes,
        'seeds': tuple(range(seeds)),
        'rounds': rounds,
        'eval_every': 5,
        'checkpoint_every': 25,
    }
    return scales.cell('cifar', title, '', 'cifar10', changes, measure=spec.LATE_ACCURACY).config


def table(accuracies: Accuracies) -> str:
    """Returns means, and differences of pairs with 95 % intervals, of the rows that have both runs, as Markdown."""
    lines = []
    for row, (title, _) in ROWS.items():
        if len(both := [accuracies[row, images] for images in IMAGES if (row, images) in accuracies]) < len(IMAGES):
            continue
        difference = statistics.paired(*both)
        low, high = difference.interval
        means = [f'{np.mean(list(values.values())):.2f}' for values in both]
        lines.append((title, *means, f'{difference.mean:+.2f} [{low:+.2f}, {high:+.2f}]', str(difference.seeds)))
    titles = ('test accuracy, %', 'originals', 'JPEGs', 'originals minus JPEGs, points [95 % interval]', 'seeds')
    return commands.markdown(titles, lines) + '\n'


def write(accuracies: Accuracies, out: Path) -> None:
    """Writes jpeg.csv and jpeg.md."""
    with (out / 'jpeg.csv').open('w', newline='') as file:
        lines = csv.writer(file, lineterminator='\n')
        lines.writerow(('row', 'images', 'seed', 'accuracy'))
        for (row, images), values in accuracies.items():
            lines.writerows((row, images, seed, f'{value:.4f}') for seed, value in values.items())
    (out / 'jpeg.md').write_text(table(accuracies))


def main() -> None:
    values = flags.FLAGS
    for row in values.rows:
        if row not in ROWS:
            raise UserError(f"--rows: there is no row '{row}'; {use_one_of(row, ROWS)}")
    out = commands.folder(values.out)
    logging.set_verbosity(logging.WARNING)  # absl shows what Orbax does, too
    given = {images: read(values.file, images) for images in IMAGES}
    accuracies = {}
    for row, images in itertools.product(values.rows, IMAGES):
        config = configuration(row, values.seeds, values.rounds)
        folder = out / 'jpeg' / f'{row}-{images}-{config_lib.identity_hash(config_lib.resolve(config))[:8]}'
        loop.train(config, folder, [callbacks.console()], interrupt.listen, given[images])
        finished = [runs.read_run(trial) for trial in runs.trials(folder)]
        accuracies[row, images] = {run.seed: measures.KINDS['late_accuracy'].read(run, None) for run in finished}
        write(accuracies, out)
    print(f'\n{table(accuracies)}')


if __name__ == '__main__':
    try:
        commands.run(main, __doc__)
    except interrupt.Stopped as stop:
        print(stop)
        sys.exit(128 + stop.signum)
