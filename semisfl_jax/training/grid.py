"""Grids: several values for some keys, crossed. Every cell is the run of one choice of values, as it is alone."""

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, columns, shorten, warn
from semisfl_jax.base.keys import as_word
from semisfl_jax.training import metrics, outputs
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


def run(
    cells: Sequence[Cell], folder: str | os.PathLike | None, train: Callable[[Cell, Path | None], Result]
) -> Results:
    """Trains the cells in turn, in this process.

    Args:
      cells: the cells.
      folder: folder of their folders, NAME-HASH with the name of the data set; None writes no files.
      train: trains a cell in a folder.

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
    for cell in cells:
        home = root and root / config_lib.run_name(cell.config, cell.config.data.name.replace('/', '_'))
        try:
            result = train(cell, home)
        except UserError as error:
            failed[cell.key] = error
            warn(f'{cell.title}: {error}')
        else:  # read again when asked for: the models of all cells may not fit into memory
            kept = Result(result.summary, homes=outputs.trial_folders(home, cell.config)) if home else result
            results[cell.key] = kept
    if not results:
        raise next(iter(failed.values()))
    return Results(cells, results, failed)
