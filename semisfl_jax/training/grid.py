"""Grids: several values for some keys, crossed. Every cell is the run of one choice of values, as it is alone."""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, columns, count, shorten, warn
from semisfl_jax.base.keys import as_word
from semisfl_jax.config import keys
from semisfl_jax.core import hparams
from semisfl_jax.training import events, memory, metrics, outputs
from semisfl_jax.training.load import Result

_Item = TypeVar('_Item')

MOST = 1000  # cells
MOST_TOGETHER = 100  # runs of a program: each has files open
# Keys of which client holds which images: arrays, which differ between seeds, too
SPLIT = frozenset(
    {
        *('federation.partition', 'federation.alpha', 'federation.labeled_alpha', 'federation.classes_per_client'),
        *('federation.min_images', 'federation.max_images', 'federation.min_labeled', 'federation.mismatch'),
        'data.partition_seed',
    }
)


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


class Planned(NamedTuple):
    """A run to be trained."""

    config: ConfigDict  # checked and resolved
    told: Sequence[str] = ()  # warnings, given once all is built
    folder: Path | None = None
    callbacks: Sequence[events.Callback] = ()
    title: str = ''  # what messages call it, where there are several


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


# --- runs that are one program


def program(config: ConfigDict) -> str:
    """Returns what runs (configuration resolved) have in common that can be one program.

    They may differ in numbers of a round, which are arguments of the program in place of constants, and in their split.
    0 is apart, as methods leave out what it would multiply.
    """
    numbers, flat = _numbers(config), config_lib.flatten(config)
    if config.diagnostics_every:  # their programs have constants
        return json.dumps(flat, sort_keys=True)
    return json.dumps(
        {key: value != 0 if key in numbers else value for key, value in flat.items() if key not in SPLIT},
        sort_keys=True,
    )


def varied(configs: Sequence[ConfigDict]) -> list[str]:
    """Lists the numbers in which runs of one program differ."""
    flats = list(map(keys.flat, configs))
    return sorted(key for key in _numbers(configs[0]) if any(flat[key] != flats[0][key] for flat in flats))


def _numbers(config: ConfigDict) -> set[str]:
    """Lists the keys of numbers that the round of the configured method computes with."""
    own = f'{algorithms.get(config.algorithm).option_group}.'
    return {
        key
        for key, kind in keys.types(config).items()
        if kind is float and (key in hparams.KEYS or key.startswith(own))
    }


def together(items: Iterable[_Item], program: Callable[[_Item], str]) -> list[list[_Item]]:
    """Divides what is to be trained into groups that are one program each; those without one, '', are alone."""
    groups: dict[Any, list[_Item]] = {}
    for number, item in enumerate(items):
        groups.setdefault(program(item) or number, []).append(item)
    starts = ((group, start) for group in groups.values() for start in range(0, len(group), MOST_TOGETHER))
    return [group[start : start + MOST_TOGETHER] for group, start in starts]


def train_groups(
    groups: Iterable[Sequence[Planned]], train: Callable[[Sequence[Planned]], Sequence[Result | UserError]]
) -> Iterator[tuple[Planned, Result | UserError]]:
    """Trains groups in turn, each as one program, or as smaller ones where it is too large or cannot be one.

    Args:
      groups: the runs.
      train: trains runs as one program.

    Yields:
      Each run and its result; a warning names one that fails, and the others go on.
    """
    waiting = list(groups)
    while waiting:
        group = waiting.pop(0)
        try:
            results = train(group)
        except memory.TooLarge as error:
            if len(group) > 1:  # half of them at a time
                waiting[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
                continue
            results = [error]
        except jax.errors.ConcretizationTypeError:  # Python decides by it what to compute
            if len(group) == 1:
                raise
            names = ' or '.join(varied([run.config for run in group]))
            warn(f'{names} shapes the program; {count(len(group), "run")} are trained in turn')
            waiting[:0] = [[run] for run in group]
            continue
        except UserError as error:
            if len(group) > 1:  # of which?
                waiting[:0] = [[run] for run in group]
                continue
            results = [error]
        for run, result in zip(group, results, strict=True):
            if isinstance(result, UserError) and len(group) == 1:  # beside others it is named at once
                warn(f'{run.title}: {result}')
            yield run, result


def run(
    cells: Sequence[Cell],
    folder: str | os.PathLike | None,
    callbacks: Sequence[events.Callback],
    bar: Sequence[events.Callback],
    train: Callable[[Sequence[Planned]], Sequence[Result | UserError]],
) -> Results:
    """Trains the cells in this process: as few programs as possible or, with callbacks, in turn.

    Args:
      cells: the cells.
      folder: folder of their folders, NAME-HASH with the name of the data set; None writes no files.
      callbacks: of every cell; those that count something would not know the runs of one program from each other.
      bar: callbacks of one cell of a program.
      train: trains runs as one program.

    Raises:
      UserError: no cell succeeds, or nothing can be written to the folder.
    """
    root, results, failed = None, dict[Any, Result](), dict[Any, UserError]()
    if folder is not None:
        root = file_io.expand_home(folder, 'the workdir')
        outputs.check_writable(root)
        outputs.check_name(root)

    def plan(group: Sequence[Cell]) -> Iterator[Planned]:
        for cell in group:
            home = root and root / config_lib.run_name(cell.config, cell.config.data.name.replace('/', '_'))
            shown = bar if cell is group[0] else ()
            yield Planned(cell.config, cell.told, home, [*shown, *callbacks], cell.title)

    groups = together(cells, lambda cell: '' if callbacks else program(cell.config))
    by_title = {cell.title: cell for cell in cells}
    for run, result in train_groups([list(plan(group)) for group in groups], train):
        key = by_title[run.title].key
        if isinstance(result, UserError):
            failed[key] = result
        else:  # read again when asked for: the models of all cells may not fit into memory
            homes = outputs.trial_folders(run.folder, run.config) if run.folder else []
            results[key] = Result(result.summary, homes=homes) if homes else result
    if not results:
        raise next(iter(failed.values()))
    return Results(cells, results, failed)
