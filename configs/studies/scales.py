"""What the scales of all studies have in common: `smoke` on digits, `cpu` on Fashion-MNIST, `full` as the paper.

`smoke` takes minutes on 2 cores and no download, `cpu` an hour or two and prepared data, `full` accelerators, the
paper's data and days. What differs from a file in configs/ stands here and in the studies, and in every command that a
report gives.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import default
from semisfl_jax.errors import UserError
from semisfl_jax.studies import spec
from semisfl_jax.studies.spec import ACCURACY, Cell, Measure, Paper, Study, Table
from semisfl_jax.wording import use_one_of

SEEDS = {'smoke': (0, 1, 2), 'cpu': (0, 1, 2), 'full': tuple(range(10))}
PARTITION_SEED = 2020  # of all trials at scale `full`; at the small scales each seed draws its own split
STAND_IN = {'smoke': 'digits', 'cpu': 'fashion_mnist'}  # file in configs/
STAND_IN_NAME = {'smoke': 'digits', 'cpu': 'Fashion-MNIST'}
FEW_LABELS = {'smoke': 20, 'cpu': 100}  # in place of CIFAR-10's 250
WARNING = {
    'smoke': "Data and scale are not the paper's: scikit-learn's digits and a few short rounds, to try everything. "
    'No accuracy here says anything about a method.',
    'cpu': "Data and scale are not the paper's: Fashion-MNIST, a small CNN and a few short rounds, so the numbers "
    'of the paper beside ours are of another experiment.',
    'full': '',
}
UNIFORM = {'federation.partition': 'uniform'}
# For studies of K_s, which on the digits begins to fall after some fifty rounds.
LONGER = {'smoke': {'rounds': 100}, 'cpu': {'rounds': 100}, 'full': {}}


def check(scale: str) -> None:
    """Raises UserError for a scale that there is not."""
    if scale not in spec.SCALES:
        raise UserError(f"unknown scale '{scale}' after the colon of --config; {use_one_of(scale, spec.SCALES)}")


def dirichlet(alpha: float) -> dict[str, Any]:
    """Changes for clients with unequal classes."""
    return {'federation.partition': 'dirichlet', 'federation.alpha': alpha}


def cell(
    scale: str,
    row: str,
    column: str,
    base: str,
    changes: dict[str, Any],
    paper: tuple[float, float] | float | None = None,
    measure: Measure = ACCURACY,
) -> Cell:
    """A cell with a run.

    Args:
      scale: of SEEDS.
      row, column: its place.
      base: file in configs/ without .py; at small scales always the stand-in.
      changes: flat, what the study changes of the scale's settings.
      paper: the paper's number, alone or with its standard error.
      measure: what is read off the run.
    """
    base = STAND_IN.get(scale, base)
    unchanged = importlib.import_module(f'configs.{base}').get_config()
    config = unchanged.copy_and_resolve_references()
    config.update_from_flattened_dict(_settings(scale, config) | changes)
    return spec.cell(row, column, base, config, unchanged, _paper(paper), measure)


def absent(row: str, column: str, paper: tuple[float, float] | float | None, measure: Measure = ACCURACY) -> Cell:
    """A cell of the paper for which a scale has no run."""
    return Cell(row, column, paper=_paper(paper), measure=measure)


def study(name: str, scale: str, title: str, tables: Sequence[Table], notes: Sequence[str] = ()) -> ConfigDict:
    """What a file in configs/studies gives: the default configuration, whose keys can be changed, with the study."""
    config = default.get_config()
    config.seeds = SEEDS[scale]
    with config.unlocked():
        config.study = Study(name, scale, title, tuple(tables), tuple(notes), WARNING[scale])
    return config


def _settings(scale: str, config: ConfigDict) -> dict[str, Any]:
    """Flat changes of a file in configs/ for a scale."""
    if scale == 'full':
        # Bytes and minutes as the paper reckons them, which touches no training: whole models by the sizes it
        # states, and bandwidths in megabytes, which its times fit. It gives no size of the CNN. In the authors' code
        # the labelled set and the split are the same in all trials.
        paper_sizes = {} if config.model.name == 'cnn' else {'cost.bill_model_size': 'paper'}
        return {
            'seeds': SEEDS[scale],
            'data.partition_seed': PARTITION_SEED,
            'cost.bandwidth_unit': 'MBps',
            **paper_sizes,
        }
    if scale == 'smoke':
        return {
            'seeds': SEEDS[scale],
            'rounds': 40,
            'lr_rounds': 0,
            'checkpoint_every': 20,
            'k_u': 5,
            'frequency.period': 1,
            'frequency.horizon': 10,
            'frequency.check_every': 10,
            **UNIFORM,
        }
    return {
        'seeds': SEEDS[scale],
        'rounds': 40,
        'lr_rounds': 0,
        'eval_every': 4,
        'checkpoint_every': 8,
        'frequency.period': 1,
        'frequency.horizon': 10,
        'frequency.check_every': 10,
        **UNIFORM,
    }


def _paper(number: tuple[float, float] | float | None) -> Paper | None:
    if number is None:
        return None
    return Paper(*number) if isinstance(number, tuple) else Paper(number)
