"""Settings that a sweep has found (tuned.json), and a study whose methods have them."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import semisfl_jax as sfl
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies import spec
from semisfl_jax.lab.studies.spec import Cell, Study, Table

NAME = 'tuned.json'
UNTUNED = ', untuned'  # end of the rows of untuned runs beside tuned ones
ABOUT = (  # keys that say what settings were tuned on
    *('data.name', 'data.num_labeled', 'data.num_validation', 'model.name', 'federation.num_clients'),
    *('federation.partition', 'federation.alpha', 'rounds'),
)


class TunedMethod(NamedTuple):
    """The best settings of a method."""

    title: str
    fixed: dict[str, Any]  # flat keys that make it this method, with `algorithm`
    settings: dict[str, Any]  # flat, all keys that the best trial sets
    trial: int  # its number; 0: the untuned one
    validation: float  # score of that trial
    untuned: dict[str, Any]  # the same keys in the sweep's configuration
    untuned_validation: float
    trials: int  # budget of the method
    states: dict[str, int]  # how many ended how
    ranges: dict[str, str]  # searched, by key
    run: str  # folder of the run of the best trial


class Tuned(NamedTuple):
    """The result of a sweep."""

    sweep: str
    scale: str
    score: str  # 'accuracy', what the validation scores are
    percent: bool  # whether they are shares
    seeds: tuple[int, ...]  # of all trials
    about: dict[str, Any]  # ABOUT -> value
    commits: tuple[str, ...]  # that its runs were made with
    optuna: str  # version
    methods: tuple[TunedMethod, ...]

    def text(self, value: float) -> str:
        """Formats a validation score as reports show it."""
        return f'{100 * value:.2f} %' if self.percent else f'{value:.4g}'


def as_json(result: Tuned) -> dict[str, Any]:
    """Returns the content of tuned.json."""
    methods = [method._asdict() for method in result.methods]
    return file_io.seal({'format': 1, **result._asdict(), 'seeds': list(result.seeds), 'methods': methods})


def read(path: str | os.PathLike[str]) -> Tuned:
    """Reads the result in a tuned.json, or in the folder of a sweep.

    Raises:
      UserError: there is none, or it was edited.
    """
    path = Path(path)
    file = path / NAME if path.is_dir() else path
    if not file.exists():
        why = f'give the path of a {NAME}, or the folder of a sweep that has ended'
        raise UserError(f'config.study_tuned={path}: there is no {file}; {why}')
    content = file_io.read_object(file)
    if not file_io.is_sealed(content):
        raise UserError(f'{file} was modified after the sweep wrote it; run the sweep again, which takes no new trials')
    if 'methods' not in content:
        raise UserError(f'{file} was not written by a sweep; give the path of a {NAME}')
    content['methods'] = [TunedMethod(**method) for method in content['methods']]
    fields = (content[name] for name in Tuned._fields)
    return Tuned._make(tuple(value) if isinstance(value, list) else value for value in fields)


def apply(study: Study, result: Tuned, source: str, beside: bool = False, whole: Study | None = None) -> Study:
    """Gives every cell of a study the settings of its method.

    Keys that its table varies between cells of a method keep the study's values, as do cells with `setting='official'`
    and those of methods that were not tuned; a note of the report says so.

    Args:
      study: the study.
      result: what a sweep has found.
      source: where it was read.
      beside: the untuned cells stay, in rows of their own.
      whole: the study that this one is a part of.

    Returns:
      The study, under another name.

    Raises:
      UserError: no cell is of a tuned method.
    """
    varied = {table.title: _varied(table, result.methods) for table in (whole or study).tables}

    def tune(cell: Cell, table: str) -> Cell:
        method = method_of(cell, result.methods)
        left = varied[table].get(method.title, ()) if method else ()
        left = (*left, 'lr_min') if 'lr' in left else left  # which belongs to lr
        settings = {key: value for key, value in method.settings.items() if key not in left} if method else {}
        encoder = cell.encoder and tune(cell.encoder, table)  # which may be of another method
        return dataclasses.replace(spec.changed(dataclasses.replace(cell, encoder=None), settings), encoder=encoder)

    tables = []
    used: dict[str, TunedMethod] = {}
    untuned: dict[str, None] = {}  # rows
    for table in study.tables:
        rows, cells = {cell.row for cell in table.cells if method_of(cell, result.methods)}, []
        for cell in table.cells:
            method, measure = method_of(cell, result.methods), cell.measure
            if method is None:
                untuned[cell.row] = None
                cells.append(cell)
                continue
            used[method.title] = method
            cells.append(tune(cell, table.title))
            if beside:
                own_row = measure.reference + UNTUNED if measure.reference in rows else measure.reference
                measure = measure._replace(reference=own_row)
                cells.append(dataclasses.replace(cell, row=f'{cell.row}{UNTUNED}', measure=measure))
        tables.append(dataclasses.replace(table, cells=tuple(cells)))
    if not used:
        names = ', '.join(method.title for method in result.methods)
        raise UserError(f'config.study_tuned={source} has settings of {names}, but no cell of {study.name} is of these')
    mark = hashlib.sha256(json.dumps([as_json(result), beside], sort_keys=True).encode()).hexdigest()[:6]
    of_tables = [varied[table.title] for table in study.tables]
    kept = {title: dict.fromkeys(key for table in of_tables for key in table.get(title, ())) for title in used}
    notes = (*study.notes, *_notes(result, used, kept, list(untuned)))
    return dataclasses.replace(study, name=f'{study.name}-tuned-{mark}', tables=tuple(tables), notes=notes)


def _varied(table: Table, methods: Sequence[TunedMethod]) -> dict[str, list[str]]:
    """Returns the tuned keys that differ between a table's cells of a method, by its title."""
    values: dict[str, dict[str, set[str]]] = {}
    for cell in table.cells:
        if method := method_of(cell, methods):
            flat = sfl.flat(cell.config)
            for key in method.settings:
                values.setdefault(method.title, {}).setdefault(key, set()).add(json.dumps(flat.get(key)))
    return {title: [key for key, texts in by_key.items() if len(texts) > 1] for title, by_key in values.items()}


def method_of(cell: Cell, methods: Sequence[TunedMethod]) -> TunedMethod | None:
    """Returns the tuned method of a cell, that with most fixed keys, which it all has; None if there is none."""
    values = json.loads(json.dumps(sfl.flat(cell.config)))  # as in the file of the sweep
    if values['setting'] != 'harmonized':
        return None
    fitting = [method for method in methods if all(values.get(key) == value for key, value in method.fixed.items())]
    return max(fitting, key=lambda method: len(method.fixed), default=None)


def check_seeds(study: Study, result: Tuned, source: str) -> None:
    """Raises UserError if a run of the study has a seed on which the settings, read from `source`, were tuned."""
    seeds = {seed for cell in study.cells() for seed in (tuple(cell.config.seeds) or (cell.config.seed,))}
    if shared := sorted(seeds & set(result.seeds)):
        tuned_on = f'its settings were tuned on seed {shared[0]}, which {study.name} has, too'
        raise UserError(f'config.study_tuned={source}: {tuned_on}; use other --config.seeds')


def _notes(
    result: Tuned, used: Mapping[str, TunedMethod], kept: Mapping[str, Iterable[str]], left: Sequence[str]
) -> Iterator[str]:
    """Yields what the report says about the settings.

    Args:
      result: what the sweep has found.
      used: methods of the study, by title.
      kept: by title, keys that a table varies.
      left: rows without settings.
    """
    about = ', '.join(f'{key}={value}' for key, value in result.about.items())
    trials = ' or '.join(map(str, sorted({method.trials for method in used.values()})))
    yield (
        f'TUNED: methods have the settings that the sweep {result.sweep}{f":{result.scale}" if result.scale else ""} '
        f'found, by validation {result.score} with seeds {", ".join(map(str, result.seeds))} and {trials} trials for '
        f'each method ({about}; commit {", ".join(result.commits)}; Optuna {result.optuna}).'
    )
    for title, method in used.items():
        words = ', '.join(f'{key}={value}' for key, value in method.settings.items())
        how = f'trial {method.trial}' if method.trial else 'the untuned settings were the best'
        yield (
            f'{title}: {words}; validation {result.score} {result.text(method.validation)}, untuned '
            f'{result.text(method.untuned_validation)} ({how}).'
        )
        if kept[title]:
            yield f'{title}: {", ".join(kept[title])} as in the study in a table that varies it.'
    if left:
        yield f'NOT TUNED: {", ".join(left)}, of which the sweep has no settings.'
