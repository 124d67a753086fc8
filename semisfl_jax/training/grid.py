"""Grids: several values for some keys, crossed. Every cell is the run of one choice of values, as it is alone."""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, columns, count, shorten, warn
from semisfl_jax.base.keys import as_word
from semisfl_jax.config import keys
from semisfl_jax.core import hparams
from semisfl_jax.training import memory, metrics, outputs
from semisfl_jax.training.load import Result

MOST = 1000  # cells


class Cell(NamedTuple):
    """A run of a grid."""

    values: dict[str, Any]  # by key of the grid; without the seed, as a cell trains all seeds
    config: ConfigDict  # checked and resolved
    told: list[str]  # warnings

    @property
    def key(self) -> Any:
        """The values as a tuple; of a grid of one key, its value."""
        values = tuple(self.values.values())
        return values[0] if len(values) == 1 else values

    @property
    def title(self) -> str:
        """The values in words: 'lr=0.01, threshold=0.9'."""
        return _title(self.values)


def _title(values: Mapping[str, Any]) -> str:
    return ', '.join(f'{key}={as_word(value)}' for key, value in values.items()) or 'all seeds'


def cells(
    grid: Mapping[str, Iterable[Any]], make: Callable[[dict[str, Any]], tuple[ConfigDict, list[str]]]
) -> list[Cell]:
    """Crosses the values of a grid, and checks all cells.

    Args:
      grid: values by dotted key; several of `seed` are the `seeds` of every cell, which are one program.
      make: returns the configuration with the values of a cell, by key, checked and resolved, and its warnings.

    Returns:
      The cells; the values of the last key change fastest.

    Raises:
      UserError: a key or value that cannot be in a grid, too many cells, or a mistake in one of them.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise UserError("the grid is no dictionary of values; write grid={'lr': (0.01, 0.02)}")
    axes = {key: _axis(key, values) for key, values in grid.items()}
    if math.prod(map(len, axes.values())) > MOST:
        raise UserError(f'the grid has more than {MOST:,} cells; leave out values, or search them by a sweep')
    of_seeds: dict[str, Any] = {}
    if seeds := axes.pop('seed', []):
        of_seeds = {'seed': 0, 'seeds': tuple(seeds)} if len(seeds) > 1 else {'seed': seeds[0], 'seeds': ()}
    made, titles = list[Cell](), dict[str, str]()
    for choice in itertools.product(*axes.values()):
        values = dict(zip(axes, choice, strict=True))
        try:
            cell = Cell(values, *make(values | of_seeds))
        except UserError as error:
            raise UserError(f'{_title(values)}: {error}') from error
        if cell.config.parallel.coordinator:
            raise UserError('config.parallel.coordinator joins the processes of a single run; leave out the grid')
        same = titles.setdefault(config_lib.identity_hash(cell.config), cell.title)
        if same != cell.title:
            raise UserError(f'{same} and {cell.title} are the same run; leave one of them out')
        made.append(cell)
    return made


def _axis(key: str, values: Iterable[Any]) -> list[Any]:
    """Returns the values of a key, at least one; if there are too many, only some of them."""
    if key == 'seeds':
        raise UserError('config.seeds is a list by itself; give the grid seed=0,1,2')
    if key in config_lib.INERT:
        raise UserError(f'config.{key} cannot be in a grid: it changes no number, so its cells would share a folder')
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f'the grid has {key}={shorten(repr(values))}; give a list of values')
    axis = [value.item() if hasattr(value, 'item') else value for value in itertools.islice(values, MOST + 1)]
    axis = [tuple(value) if isinstance(value, list) else value for value in axis]
    if not axis:
        raise UserError(f'the grid has no value of {key}; give one or more')
    if twice := [value for value in axis if axis.count(value) > 1]:
        raise UserError(f'the grid has {key}={shorten(repr(twice[0]))} twice; name each value once')
    return axis


class Results(dict[Any, Result]):
    """The results of a grid by the values of its keys, `results[0.01, 0.9]`, which print as a table.

    `failed` has the errors of cells without a result.
    """

    def __init__(self, cells: Sequence[Cell], results: Mapping[Any, Result], failed: Mapping[Any, UserError]):
        super().__init__({cell.key: results[cell.key] for cell in cells if cell.key in results})
        self.cells, self.failed = cells, failed

    def __missing__(self, key: Any) -> Result:
        raise self.failed.get(key) or KeyError(key)

    def __repr__(self) -> str:
        rows = [[*self.cells[0].values, 'final', 'mean of last', 'best', 'rounds']]
        for cell in self.cells:
            summary = self[cell.key].summary if cell.key in self else None
            missing = ['failed' if cell.key in self.failed else 'not run yet', '', '', '']
            texts = [*metrics.headline_texts(summary), str(summary['rounds'])] if summary else missing
            rows.append([*map(as_word, cell.values.values()), *texts])
        faults = [f'{cell.title}: {self.failed[cell.key]}' for cell in self.cells if cell.key in self.failed]
        return '\n'.join([*columns(rows, '>' * len(rows[0])), *faults])


def programs(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Divides cells into groups that can be one program each: they differ in numbers of a round alone.

    Such a number is an argument of the program, in place of a constant. 0 is apart, as methods leave out what it would
    multiply.
    """
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        flat = config_lib.flatten(cell.config)
        numbers = {key for key in cell.values if is_number(key, cell.config)}
        constant = {key: value != 0 if key in numbers else value for key, value in flat.items()}
        own = cell.title if cell.config.diagnostics_every else ''  # their programs have constants
        groups.setdefault(json.dumps([own, constant], sort_keys=True), []).append(cell)
    return list(groups.values())


def varied(cells: Sequence[Cell]) -> list[str]:
    """Lists the keys in which cells of one program differ."""
    first = cells[0].values
    return [key for key in first if any(cell.values[key] != first[key] for cell in cells)]


def is_number(key: str, config: ConfigDict) -> bool:
    """Tells whether a key is a number that the round of the configured method computes with."""
    own = key in hparams.KEYS or key.startswith(f'{algorithms.get(config.algorithm).option_group}.')
    return own and keys.types(config)[key] is float


def run(
    groups: Sequence[Sequence[Cell]],
    folder: str | os.PathLike | None,
    train: Callable[[Sequence[Cell], Sequence[Path | None]], Sequence[Result | UserError]],
) -> Results:
    """Trains the cells, each group as one program, in turn in this process.

    Args:
      groups: the cells.
      folder: folder of their folders, NAME-HASH with the name of the data set; None writes no files.
      train: trains cells in their folders, as one program.

    Returns:
      The results. A warning names a cell that fails, and the others go on.

    Raises:
      UserError: no cell succeeds, or nothing can be written to the folder.
    """
    root, results, failed = None, dict[Any, Result](), dict[Any, UserError]()
    if folder is not None:
        root = file_io.expand_home(folder, 'the workdir')
        outputs.check_writable(root)
        outputs.check_name(root)
    waiting = list(groups)
    while waiting:
        group = waiting.pop(0)
        homes = [
            root and root / config_lib.run_name(cell.config, cell.config.data.name.replace('/', '_')) for cell in group
        ]
        try:
            made = list(train(group, homes))
        except memory.TooLarge as error:
            if len(group) > 1:  # half of them at a time
                waiting[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
                continue
            warn(f'{group[0].title}: {error}')
            made = [error]
        except jax.errors.ConcretizationTypeError:  # Python decides by it what to compute
            if len(group) == 1:
                raise
            warn(f'{" or ".join(varied(group))} shapes the program; {count(len(group), "run")} are trained in turn')
            waiting[:0] = [[cell] for cell in group]
            continue
        except UserError as error:
            if len(group) > 1:  # of which?
                waiting[:0] = [[cell] for cell in group]
                continue
            warn(f'{group[0].title}: {error}')
            made = [error]
        for cell, home, result in zip(group, homes, made, strict=True):
            if isinstance(result, UserError):
                failed[cell.key] = result
            else:  # read again when asked for: the models of all cells may not fit into memory
                kept = Result(result.summary, homes=outputs.trial_folders(home, cell.config)) if home else result
                results[cell.key] = kept
    if not results:
        raise next(iter(failed.values()))
    return Results([cell for group in groups for cell in group], results, failed)
