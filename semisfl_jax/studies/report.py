"""The report of a study: a function of its finished runs, and the files it is written to."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.studies import collect, document, figures, plan, statistics
from semisfl_jax.studies.collect import Found, Place
from semisfl_jax.studies.document import (
    Block,
    Grid,
    Heading,
    Listing,
    Paragraph,
    Picture,
)
from semisfl_jax.studies.figures import Figure
from semisfl_jax.studies.spec import Cell, Paper, Study, Table

NOTHING = '—'
CELL_KEYS = (
    *('table', 'row', 'column', 'measure', 'target', 'unit', 'seeds_asked', 'seeds_run', 'seeds_counted', 'mean'),
    *('standard_error', 'paper_mean', 'paper_standard_error', 'state', 'runs', 'commits', 'hardware', 'command'),
)
PAPER_KEYS = ('paper_mean', 'paper_standard_error')  # omitted if no cell has a value from the paper
RUN_KEYS = ('table', 'row', 'column', 'measure', 'target', 'unit', 'seed', 'value')
DIFFERENCE_KEYS = ('table', 'column', 'row', 'minus', 'unit', 'pairs', 'mean', 'standard_error', 'p')


def write(folder: Path, study: Study, found: Mapping[Place, Found]) -> None:
    """Writes report.md, report.html, cells.csv, runs.csv, differences.csv and figures/ into `folder`.

    Figures of an earlier report that are not in this one are removed.
    """
    drawn = list(figures.draw(study, found))
    pictures = folder / 'figures'
    pictures.mkdir(parents=True, exist_ok=True)
    for figure in drawn:
        _replace(pictures / f'{figure.name}.png', figure.png)
        _replace(pictures / f'{figure.name}.svg', figure.svg)
    kept = {f'{figure.name}.{kind}' for figure in drawn for kind in ('png', 'svg')}
    for path in sorted(pictures.iterdir()):
        if path.name not in kept:
            path.unlink()
    beside = any(cell.paper for cell in study.cells())
    keys = [key for key in CELL_KEYS if beside or key not in PAPER_KEYS]
    _replace(folder / 'cells.csv', _csv(keys, cell_rows(study, found)))
    _replace(folder / 'runs.csv', _csv(RUN_KEYS, run_rows(study, found)))
    _replace(folder / 'differences.csv', _csv(DIFFERENCE_KEYS, difference_rows(study, found)))
    blocks = build(study, found, drawn)
    _replace(folder / 'report.md', document.markdown(blocks).encode())
    _replace(folder / 'report.html', document.page(_title(study), blocks).encode())


def build(study: Study, found: Mapping[Place, Found], drawn: Sequence[Figure] = ()) -> list[Block]:
    """The report as a document."""
    blocks: list[Block] = [Heading(1, _title(study))]
    if study.warning:
        blocks.append(Paragraph(study.warning, strong=True))
    blocks += [Paragraph(_state(found)), Paragraph(_splits(study))]
    blocks += [Listing(study.notes)] if study.notes else []
    for table in study.tables:
        blocks.append(Heading(2, table.title))
        if study.warning and len(study.tables) > 1:
            blocks.append(Paragraph(study.warning, strong=True))
        blocks += [Paragraph(_caption(table)), _values(table, found)]
        if grid := _differences(study, table, found):
            blocks += [
                Heading(3, f'{table.reference} minus the others'),
                Paragraph(
                    'Mean ± standard error of the differences over shared seeds, and the two-sided p of a paired '
                    't-test, not corrected for the number of comparisons.'
                ),
                grid,
            ]
        for figure in drawn:
            if figure.table == table.title:
                blocks.append(Picture(f'figures/{figure.name}.png', figure.caption, figure.png))
    blocks.append(Heading(2, 'How every cell was made'))
    blocks.append(
        Paragraph(
            'Commands run from the root of the repository; + after a commit marks changes that were not committed.'
        )
    )
    blocks.append(_making(study, found))
    return blocks


def cell_rows(study: Study, found: Mapping[Place, Found]) -> list[dict[str, Any]]:
    """A row of cells.csv for every cell, with all of CELL_KEYS; None becomes an empty field."""
    rows = []
    for table, cell, own in _cells(study, found):
        summary = statistics.summary(collect.values(own, cell.measure))
        rows.append(
            {
                **_place(table, cell),
                'seeds_asked': len(own.seeds),
                'seeds_run': len(own.runs),
                'seeds_counted': summary.count if summary else 0,
                'mean': summary.mean if summary else None,
                'standard_error': summary.error if summary else None,
                'paper_mean': cell.paper.mean if cell.paper else None,
                'paper_standard_error': cell.paper.error if cell.paper else None,
                'state': own.missing or 'done',
                'runs': ' '.join(job.name for job in own.jobs),
                'commits': _commits(own),
                'hardware': _hardware(own),
                'command': plan.command(own.jobs),
            }
        )
    return rows


def run_rows(study: Study, found: Mapping[Place, Found]) -> list[dict[str, Any]]:
    """A row of runs.csv for every cell and seed that has a value."""
    return [
        {**_place(table, cell), 'seed': seed, 'value': value}
        for table, cell, own in _cells(study, found)
        for seed, value in collect.values(own, cell.measure).items()
    ]


def difference_rows(study: Study, found: Mapping[Place, Found]) -> list[dict[str, Any]]:
    """A row of differences.csv for every row except the reference, and every column."""
    rows = []
    for table in study.tables:
        for column in table.columns if table.reference else ():
            first = table.at(table.reference, column)
            for row in table.rows:
                second = table.at(row, column)
                if row == table.reference or first is None or second is None:
                    continue
                pair = (collect.values(found[table.title, cell.row, column], cell.measure) for cell in (first, second))
                if own := statistics.paired(*pair):
                    names = dict(zip(('mean', 'standard_error', 'pairs', 'p'), own, strict=True))
                    places = {'table': table.title, 'column': column, 'row': table.reference, 'minus': row}
                    rows.append({**places, 'unit': collect.KINDS[first.measure.kind].unit, **names})
    return rows


def _title(study: Study) -> str:
    return f'{study.title} (scale {study.scale})'


def _cells(study: Study, found: Mapping[Place, Found]) -> list[tuple[Table, Cell, Found]]:
    return [(table, cell, found[table.title, cell.row, cell.column]) for table in study.tables for cell in table.cells]


def _place(table: Table, cell: Cell) -> dict[str, Any]:
    return {
        'table': table.title,
        'row': cell.row,
        'column': cell.column,
        'measure': cell.measure.kind,
        'target': cell.measure.target or None,
        'unit': collect.KINDS[cell.measure.kind].unit,
    }


def _state(found: Mapping[Place, Found]) -> str:
    return f'{sum(not own.missing for own in found.values())} of {len(found)} cells are done.'


def _splits(study: Study) -> str:
    """Whether the seeds of a cell share a split of the data."""
    said = []
    for cell in study.cells():
        data = cell.config.data
        if data.partition_file:
            said.append(f'one split for all seeds (partition_file={data.partition_file})')
        elif data.partition_seed != -1:
            said.append(f'one split for all seeds (partition_seed={data.partition_seed})')
        else:
            said.append('each seed draws its own split')
    first, *others = dict.fromkeys(said)
    text = '; '.join([f'{first} in some cells', *(f'{own} in others' for own in others)]) if others else first
    return f'{text[0].upper()}{text[1:]}.'


def _caption(table: Table) -> str:
    titles = []
    for measure in dict.fromkeys(cell.measure for cell in table.cells):
        kind = collect.KINDS[measure.kind]
        titles.append(f'{kind.title} ({kind.unit})')
    what = '; '.join(dict.fromkeys(titles))
    theirs = '; paper: its mean (standard error)' if any(cell.paper for cell in table.cells) else ''
    numbers = f'{what[0].upper()}{what[1:]}: mean ± standard error over seeds (their number){theirs}.'
    return ' '.join(filter(None, (numbers, table.caption)))


def _values(table: Table, found: Mapping[Place, Found]) -> Grid:
    """Our values, with the paper's beside them if it used the same data."""
    rows = []
    for row in table.rows:
        line = [row]
        for column in table.columns:
            cell = table.at(row, column)
            line.append(NOTHING if cell is None else _cell(cell, found[table.title, row, column]))
        rows.append(tuple(line))
    return Grid((table.row_name, *table.columns), tuple(rows))


def _cell(cell: Cell, own: Found) -> str:
    paper = f'paper {_paper(cell.paper, collect.KINDS[cell.measure.kind].unit)}' if cell.paper else ''
    values = collect.values(own, cell.measure)
    said = _ours(values, own, cell)
    return '; '.join(filter(None, (said, paper)))


def _ours(values: dict[int, float], own: Found, cell: Cell) -> str:
    summary = statistics.summary(values)
    notes = []
    if own.missing:
        notes.append(own.missing if not own.runs else f'{len(own.runs)} of {len(own.seeds)} seeds; {own.missing}')
    if own.runs and len(values) < len(own.runs):
        what = f'reached {100 * cell.measure.target:g} %' if cell.measure.target else 'had a value'
        notes.append(f'{len(values)} of {len(own.runs)} seeds {what}')
    head = ''
    if summary:
        unit = collect.KINDS[cell.measure.kind].unit
        head = f'{_number(summary.mean, unit)} ± {_number(summary.error, unit)} ({summary.count})'
    return ', '.join(filter(None, (head, *notes)))


def _differences(study: Study, table: Table, found: Mapping[Place, Found]) -> Grid | None:
    rows = {(own['minus'], own['column']): own for own in difference_rows(study, found) if own['table'] == table.title}
    if not rows:
        return None
    lines = []
    for row in table.rows:
        if row != table.reference:
            lines.append((row, *(_difference(rows.get((row, column))) for column in table.columns)))
    return Grid((table.row_name, *table.columns), tuple(lines))


def _difference(own: dict[str, Any] | None) -> str:
    if own is None:
        return NOTHING
    p = f'p = {own["p"]:.2g}' if math.isfinite(own['p']) else 'no test'
    mean, error = _number(own['mean'], own['unit'], '+'), _number(own['standard_error'], own['unit'])
    return f'{mean} ± {error}, {p} ({own["pairs"]})'


def _making(study: Study, found: Mapping[Place, Found]) -> Grid:
    """A row for every set of runs, with all cells that are computed from it."""
    groups: dict[tuple[str, ...], list[tuple[str, Found]]] = {}
    for table, cell, own in _cells(study, found):
        names = tuple(job.name for job in own.jobs)
        groups.setdefault(names, []).append((f'{table.title}: {cell.row}, {cell.column}', own))
    rows = []
    for names, members in groups.items():
        own = members[0][1]
        cells = '; '.join(name for name, _ in members)
        state = own.missing or 'done'
        rows.append((cells, state, _commits(own), _hardware(own), ' '.join(names), plan.command(own.jobs)))
    return Grid(('Cells', 'State', 'Commit', 'Hardware', 'Runs', 'Command'), tuple(rows), code=(4, 5))


def _commits(own: Found) -> str:
    return ', '.join(dict.fromkeys(entry['commit'] for entry in own.made))


def _hardware(own: Found) -> str:
    return ', '.join(dict.fromkeys(f'{entry["device"]}, {entry["machine"]}' for entry in own.made))


def _paper(paper: Paper, unit: str) -> str:
    """Mean and standard error as printed in the paper: percentages with one decimal."""
    mean, error = (x if x is None else format(x, '.1f' if unit == '%' else 'g') for x in paper[:2])
    return mean if error is None else f'{mean} ({error})'


def _number(value: float, unit: str, sign: str = '') -> str:
    """Two decimals for percentages, three significant digits for anything else."""
    digits = '.2f' if unit == '%' else '.3g'
    return format(value, sign + digits) if math.isfinite(value) else NOTHING


def _csv(keys: Sequence[str], rows: Sequence[dict[str, Any]]) -> bytes:
    written = io.StringIO()
    table = csv.DictWriter(written, keys, lineterminator='\n')
    table.writeheader()
    for row in rows:
        plain = {key: '' if row[key] is None or row[key] != row[key] else row[key] for key in keys}
        table.writerow(plain)
    return written.getvalue().encode()


def _replace(path: Path, content: bytes) -> None:
    """Writes a file atomically, so that a killed study leaves either the old or the new one."""
    temporary = path.with_name(path.name + '.tmp')
    temporary.write_bytes(content)
    temporary.replace(path)
