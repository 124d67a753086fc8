"""Settings that a sweep has found (tuned.json), and a study whose methods have them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax import config as config_lib
from semisfl_jax.config import keys
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.studies import plan
from semisfl_jax.studies.spec import Cell, Study, Table

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
        """A validation score as reports show it."""
        return f'{100 * value:.2f} %' if self.percent else f'{value:.4g}'


def as_json(result: Tuned) -> dict[str, Any]:
    """The content of tuned.json."""
    methods = [method._asdict() for method in result.methods]
    return file_io.seal({'format': 1, **result._asdict(), 'seeds': list(result.seeds), 'methods': methods})


def read(path: str | os.PathLike[str]) -> Tuned:
    """The result in a tuned.json, or in the folder of a sweep; UserError: there is none, or it was edited."""
    path = Path(path)
    file = path / NAME if path.is_dir() else path
    if not file.exists():
        why = f'give the path of a {NAME}, or the folder of a sweep that has ended'
        raise UserError(f'config.study_tuned={path}: there is no {file}; {why}')
    content = file_io.read_object(file)
    if not file_io.is_sealed(content):
        raise UserError(f'{file} was modified after the sweep wrote it; run the sweep again, which takes no new trials')
    if 'methods' not in content:
        raise UserError(f'{file} is not of a sweep; give the path of a {NAME}')
    content['methods'] = [TunedMethod(**method) for method in content['methods']]
    fields: dict[str, Any] = {name: content[name] for name in Tuned._fields}
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Tuned(**fields)


def apply(study: Study, result: Tuned, source: str, beside: bool = False, whole: Study | None = None) -> Study:
    """The study with the settings that a sweep found, read from `source`; UserError: no cell is of a tuned method.

    Every cell gets those of its method. Keys that its table varies between cells of a method keep the study's values,
    as do cells with `setting='official'` and those of methods that were not tuned; a note of the report says so. With
    `beside`, the untuned cells stay, in rows of their own. `whole`: the study that this one is a part of.
    """
    kept: dict[str, dict[str, list[str]]] = {}  # title of a table -> method -> tuned keys that differ between its cells
    for table in (whole or study).tables:
        kept[table.title] = {}
        for found in result.methods:
            cells = [keys.flat(cell.config) for cell in table.cells if of_cell(cell, result.methods) is found]
            kept[table.title][found.title] = [
                key for key in found.settings if len({json.dumps(values.get(key)) for values in cells}) > 1
            ]

    def tune(cell: Cell, of_table: Mapping[str, list[str]]) -> Cell:
        encoder = cell.encoder and tune(cell.encoder, of_table)  # which may be of another method
        cell = dataclasses.replace(cell, encoder=None)
        if method := of_cell(cell, result.methods):
            left = of_table[method.title]
            left = [*left, *(('lr_min',) if 'lr' in left else ())]  # lr_min belongs to lr
            settings = {key: value for key, value in method.settings.items() if key not in left}
            cell = plan.changed(cell, settings)
        return dataclasses.replace(cell, encoder=encoder)

    used = {method.title: method for cell in study.cells() if (method := of_cell(cell, result.methods))}
    if not used:
        names = ', '.join(found.title for found in result.methods)
        raise UserError(f'config.study_tuned={source} has settings of {names}, but no cell of {study.name} is of these')
    tables: list[Table] = []
    untuned: dict[str, None] = {}  # rows
    for table in study.tables:
        changed = {id(cell): tune(cell, kept[table.title]) for cell in table.cells if of_cell(cell, result.methods)}
        untuned |= {cell.row: None for cell in table.cells if id(cell) not in changed}
        tables.append(_table(table, changed, beside))
    mark = hashlib.sha256(json.dumps([as_json(result), beside], sort_keys=True).encode()).hexdigest()[:6]
    notes = (*study.notes, *_notes(result, list(used.values()), [kept[table.title] for table in tables], list(untuned)))
    return dataclasses.replace(study, name=f'{study.name}-tuned-{mark}', tables=tuple(tables), notes=notes)


def of_cell(cell: Cell, methods: Sequence[TunedMethod]) -> TunedMethod | None:
    """The tuned settings for a cell, None if there are none: the method with most fixed keys that the cell has."""
    values = config_lib.flatten(cell.config)  # as in the file of the sweep
    if values['setting'] != 'harmonized':
        return None
    fitting = [found for found in methods if all(values.get(k) == v for k, v in found.fixed.items())]
    return max(fitting, key=lambda found: len(found.fixed), default=None)


def _table(table: Table, changed: Mapping[int, Cell], beside: bool) -> Table:
    tuned, cells = {cell.row for cell in table.cells if id(cell) in changed}, []
    for cell in table.cells:
        cells.append(changed.get(id(cell), cell))
        if beside and id(cell) in changed:
            reference = cell.measure.reference
            measure = cell.measure._replace(reference=reference + UNTUNED if reference in tuned else reference)
            cells.append(dataclasses.replace(cell, row=f'{cell.row}{UNTUNED}', measure=measure))
    return dataclasses.replace(table, cells=tuple(cells))


def check_seeds(study: Study, result: Tuned, source: str) -> None:
    """Raises UserError if a run of the study has a seed on which the settings were tuned."""
    seeds = {seed for cell in study.cells() for seed in (tuple(cell.config.seeds) or (cell.config.seed,))}
    if shared := sorted(seeds & set(result.seeds)):
        tuned_on = f'its settings were tuned on seed {shared[0]}, which {study.name} has, too'
        raise UserError(f'config.study_tuned={source}: {tuned_on}; use other --config.seeds')


def _notes(
    result: Tuned, used: Sequence[TunedMethod], kept: Sequence[Mapping[str, list[str]]], left: Sequence[str]
) -> list[str]:
    """What the report says about the settings; `kept`: by method, of every table."""
    about = ', '.join(f'{key}={value}' for key, value in result.about.items())
    trials = ' or '.join(map(str, sorted({found.trials for found in used})))
    notes = [
        f'TUNED: methods have the settings that the sweep {result.sweep}{f":{result.scale}" if result.scale else ""} '
        f'found, by validation {result.score} with seeds {", ".join(map(str, result.seeds))} and {trials} trials for '
        f'each method ({about}; commit {", ".join(result.commits)}; Optuna {result.optuna}).'
    ]
    for found in used:
        varied = dict.fromkeys(key for of_table in kept for key in of_table[found.title])
        words = ', '.join(f'{key}={value}' for key, value in found.settings.items())
        how = f'trial {found.trial}' if found.trial else 'the untuned settings were the best'
        notes.append(
            f'{found.title}: {words}; validation {result.score} {result.text(found.validation)}, untuned '
            f'{result.text(found.untuned_validation)} ({how}).'
        )
        if varied:
            notes.append(f'{found.title}: {", ".join(varied)} as in the study in a table that varies it.')
    if left:
        notes.append(f'NOT TUNED: {", ".join(left)}, of which the sweep has no settings.')
    return notes
