"""What the scales of all studies have in common.

`smoke` (digits) and `cpu` (Fashion-MNIST) are short, to try everything out. `digits` and `mnist` train small models
until their accuracy no longer rises, with enough seeds to see differences of about a point. `cifar` is one of the
paper's own data sets, with its smaller network, a quarter of its labels and a fifth of its iterations. `full` is the
paper.

Differences from a file in configs/ are set here and in the studies, and appear in every command of a report.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax.base.errors import UserError, use_one_of
from semisfl_jax.configs import default
from semisfl_jax.lab.studies import spec
from semisfl_jax.lab.studies.spec import ACCURACY, LATE_ACCURACY, Cell, Measure, Paper, Pilot, Study, Table

COSTS = {  # scale -> what it uses and how long it takes, for the error message of a missing scale
    'smoke': 'digits, a few minutes on 2 cores, no download',
    'cpu': 'Fashion-MNIST, prepared beforehand, an hour or two on 2 cores',
    'digits': 'digits to convergence, ten seeds, half an hour to five hours on 2 cores, no download',
    'mnist': 'MNIST, prepared beforehand, to convergence, five seeds, a night on 2 cores',
    'cifar': "CIFAR-10, prepared beforehand, the paper's CNN, three seeds, a night on 2 cores",
    'full': "the paper's data, 1,000 rounds and ten seeds, days on accelerators",
}
SEEDS = {
    'smoke': (0, 1, 2),
    'cpu': (0, 1, 2),
    'digits': tuple(range(10)),
    'mnist': tuple(range(5)),
    'cifar': (0, 1, 2),
    'full': tuple(range(10)),
}
STAND_IN = {
    'smoke': 'digits',
    'cpu': 'fashion_mnist',
    'digits': 'digits',
    'mnist': 'mnist',
    'cifar': 'cifar10',
}  # file in configs/
STAND_IN_NAME = {'smoke': 'digits', 'cpu': 'Fashion-MNIST', 'digits': 'digits', 'mnist': 'MNIST', 'cifar': 'CIFAR-10'}
# Spread of the differences between two methods over seeds, for the number of seeds that a study should have
PILOT = {
    'cpu': Pilot(0.7, 'three seeds of results/table3-cpu'),
    'digits': Pilot(3.0, 'ten seeds of results/table3-digits'),
    'mnist': Pilot(0.6, 'five seeds of results/table3-mnist'),
}
FEW_LABELS = {'smoke': 20, 'cpu': 100, 'digits': 20, 'mnist': 50, 'cifar': 250}  # in place of CIFAR-10's 250
WARNING = {
    'smoke': "Data and scale are not the paper's: scikit-learn's digits and a few short rounds, to try everything out. "
    'No accuracy here says anything about a method.',
    'cpu': "Data and scale are not the paper's: Fashion-MNIST, a small CNN and a few short rounds, so the numbers "
    'of the paper are not shown next to ours.',
    'digits': "Data and scale are not the paper's: scikit-learn's digits and a model of 13,706 parameters, trained to "
    'convergence.',
    'mnist': "Data and scale are not the paper's: MNIST with 100 labels and a small CNN, trained to convergence.",
    'cifar': "The scale is not the paper's: its data, but 1,000 labels, its CNN for SVHN, 5 active clients, batches of "
    '32, and 400 rounds of a fifth of the iterations.',
    'full': '',
}
MODEL_OF_PAPER = {'cifar': 'AlexNet'}  # of its numbers that stand beside runs of another model
UNIFORM = {'federation.partition': 'uniform'}
# Fig. 5 and 6 need the round that reaches an accuracy, and studies share runs. CONVERGED may say otherwise.
EVALUATED = {'eval_every': 1}
_SHORT = {'rounds': 40, 'lr_rounds': 0, 'frequency.period': 1, 'frequency.horizon': 10, 'frequency.check_every': 10}
# For studies of K_s, which on the digits starts to decrease after about fifty rounds.
LONGER = {'smoke': {'rounds': 100}, 'cpu': {'rounds': 100}, 'digits': {}, 'mnist': {}, 'cifar': {}, 'full': {}}
# Rows below and above the methods of a comparison: the server alone; all of SemiSFL but pseudo-labels; true labels in
# their place, which no method has.
LINES = {
    'Supervised-only': {'algorithm': 'supervised_only'},
    'SemiSFL, no pseudo-labels': {'algorithm': 'semisfl', 'pseudo_labels': 'none'},
    'SemiSFL (oracle)': {'algorithm': 'semisfl', 'pseudo_labels': 'true'},
}
# Of LINES, those that learn from the server's labels alone: one run, however the clients' images are divided. Only at
# `full` some models have BatchNorm, whose statistics the clients of the second row change
SERVER_ALONE = ('Supervised-only', 'SemiSFL, no pseudo-labels')
# Rounds until accuracy is flat, by pilots with and without true labels
CONVERGED = {
    'digits': {'rounds': 600, 'lr_rounds': 0, 'checkpoint_every': 100},
    'mnist': {
        'rounds': 300,
        'lr_rounds': 0,
        'eval_every': 5,  # 10,000 images take twice as long as a round
        'checkpoint_every': 50,
        'model.name': 'small_cnn',
        'federation.num_active': 5,
        'k_s': 20,
        'k_u': 10,
        'batch_size': 32,
        'server_batch_size': 32,
        'frequency.period': 2,
        'frequency.horizon': 20,
        'frequency.check_every': 20,
    },
}
CONVERGED['cifar'] = CONVERGED['mnist'] | {
    'rounds': 400,
    'eval_every': 10,
    'data.num_labeled': 1000,
    'model.name': 'cnn',
}
OF_SCALE = {'smoke': _SHORT | {'checkpoint_every': 20, 'k_u': 5}, 'cpu': _SHORT | {'checkpoint_every': 8}, **CONVERGED}


def check(scale: str, costs: Mapping[str, str] = COSTS, what: str = 'study') -> None:
    """Raises UserError for an unknown scale, or for none, because `what` takes from minutes to days (`costs`)."""
    if not scale:
        listed = ', '.join(f'{name} ({cost})' for name, cost in costs.items())
        raise UserError(f'a {what} needs a scale, after a colon at the end of --config: {listed}')
    if scale not in costs:
        raise UserError(f"unknown scale '{scale}' after the colon of --config; {use_one_of(scale, costs)}")


def dirichlet(alpha: float) -> dict[str, Any]:
    """Changes for clients with unequal classes."""
    return {'federation.partition': 'dirichlet', 'federation.alpha': alpha}


def columns(alphas: Sequence[float] = (0.1,)) -> dict[str, dict[str, Any]]:
    """Names of columns -> partitions: uniform ones, and Dirichlet partitions of these parameters."""
    return {'uniform': UNIFORM, **{f'Dir({alpha:g})': dirichlet(alpha) for alpha in alphas}}


def cell(
    scale: str,
    row: str,
    column: str,
    base: str,
    changes: dict[str, Any],
    published: Paper | None = None,
    measure: Measure = ACCURACY,
    settings: str = 'paper',
) -> Cell:
    """A cell of a run.

    Args:
      scale: of SEEDS.
      row, column: its place.
      base: file in configs/ without .py; at small scales always the stand-in.
      changes: flat, what the study changes of the scale's settings; in rows of SERVER_ALONE clients stay uniform.
      published: the paper's number (`paper.number`), reported where the run has its data.
      measure: what is measured; where runs converge, an accuracy is the mean of the last ten.
      settings: of that file, 'paper' or 'code'.

    Raises:
      UserError: `changes` has a key that does not exist.
    """
    if row in SERVER_ALONE[: 1 if scale == 'full' else None]:
        changes = {key: value for key, value in changes.items() if key not in dirichlet(0)} | UNIFORM
    base = STAND_IN.get(scale, base)
    unchanged, config = sfl.get_config(base), sfl.get_config(f'{base}:{settings}')
    change(config, _settings(scale, config) | changes, f'{row} / {column}')
    if measure == ACCURACY and scale in CONVERGED:
        measure = LATE_ACCURACY
    if published and scale in MODEL_OF_PAPER:
        labels = [] if config.data.num_labeled == published.labels else [f'{published.labels:,} labels']
        published = published._replace(differs=', '.join([*labels, MODEL_OF_PAPER[scale]]))
    return spec.cell(row, column, base, config, unchanged, published, measure)


def cells(scale: str, rows: Mapping[str, Mapping[str, Any]], algorithm: str) -> list[Cell]:
    """The cells of rows of changes, in `columns`; `algorithm` is that of rows that do not name one."""
    return [
        cell(scale, row, column, 'cifar10', {'algorithm': algorithm, **changes, **partition})
        for row, changes in rows.items()
        for column, partition in columns().items()
    ]


def change(config: ConfigDict, changes: Mapping[str, Any], place: str) -> None:
    """Changes the configuration of a cell.

    Args:
      config: to be changed.
      changes: dotted keys and their values.
      place: of the cell, for the message.

    Raises:
      UserError: a key does not exist, or its value has another type.
    """
    try:
        config.update_from_flattened_dict(sfl.check_changes(changes, config))
    except UserError as error:
        raise UserError(f'{place}: {error}') from error


def lines(scale: str, column: str, base: str, changes: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Cells of LINES in a column, arguments as in `cell`: what pseudo-labels could give, and what there is without."""
    return tuple(cell(scale, row, column, base, {**line, **changes}) for row, line in LINES.items())


def study(
    name: str,
    scale: str,
    title: str,
    tables: Sequence[Table],
    notes: Sequence[str] = (),
    of_paper: Sequence[str] = (),
    seeds: Mapping[str, tuple[int, ...]] = SEEDS,
    warning: Mapping[str, str] = WARNING,
    pilot: Mapping[str, Pilot] = PILOT,
) -> ConfigDict:
    """What a file in configs/studies returns: the default configuration, whose keys can be changed, with the study.

    Args:
      name: of the file.
      scale: of `seeds`.
      title: of the report.
      tables: its cells.
      notes: above them, at every scale.
      of_paper: notes on the paper's numbers, shown only at scale 'full', which uses its data.
      seeds: of each scale.
      warning: of each scale, repeated throughout the report; '' for none.
      pilot: of the scales that have one, for the number of seeds that a difference of a point needs.
    """
    notes = (*notes, *(of_paper if scale == 'full' else ()))
    config = default.get_config()
    config.seeds = seeds[scale]
    return spec.as_config(config, Study(name, scale, title, tuple(tables), notes, warning[scale], pilot.get(scale)))


def _settings(scale: str, config: ConfigDict) -> dict[str, Any]:
    """Flat changes of a file in configs/ for a scale."""
    common = {'seeds': SEEDS[scale], **EVALUATED}
    if scale == 'full':
        # Bytes and minutes as the paper computes them, which does not affect training: whole models with the sizes
        # it states, and bandwidths in megabytes, which match its times. It gives no size for the CNN. In the authors'
        # code the labeled set and the split are the same in all trials.
        paper_sizes = {} if config.model.name == 'cnn' else {'cost.bill_model_size': 'paper'}
        return common | {'data.partition_seed': 2020, 'cost.bandwidth_unit': 'MBps', **paper_sizes}
    # Each seed draws its own split, also under the settings of the code
    return common | {'data.partition_seed': -1} | UNIFORM | OF_SCALE[scale]
