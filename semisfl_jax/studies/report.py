"""The report of a study: a function of its finished runs, and the files it is written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.core import atomic_io
from semisfl_jax.studies import collect, document, figures, plan, statistics
from semisfl_jax.studies.collect import CellKey, CellResult
from semisfl_jax.studies.document import Block, Grid, Heading, Listing, Paragraph, Picture
from semisfl_jax.studies.figures import Figure
from semisfl_jax.studies.spec import Cell, Paper, Study, Table

CELL_KEYS = (
    *('table', 'row', 'column', 'measure', 'target', 'unit', 'seeds_asked', 'seeds_run', 'seeds_counted', 'mean'),
    *('standard_error', 'paper_mean', 'paper_standard_error', 'paper_standard_deviation', 'state', 'runs', 'commits'),
    *('hardware', 'command'),
)
PAPER_KEYS = {  # omitted if no cell has such a value from the paper
    'paper_mean': lambda paper: True,
    'paper_standard_error': lambda paper: paper.deviation is None,
    'paper_standard_deviation': lambda paper: paper.deviation is not None,
}
RUN_KEYS = ('table', 'row', 'column', 'measure', 'target', 'unit', 'seed', 'value')


def write(folder: Path, study: Study, results: Mapping[CellKey, CellResult]) -> None:
    """Writes report.md, report.html, cells.csv, runs.csv, differences.csv and figures/ into `folder`.

    Figures of an earlier report that are not in this one are removed.
    """
    drawn = list(figures.draw(study, results))
    pictures = {f'{figure.name}.png': figure.png for figure in drawn}
    document.write_pictures(folder / 'figures', pictures | {f'{figure.name}.svg': figure.svg for figure in drawn})
    papers = [cell.paper for cell in study.cells() if cell.paper]
    keys = [key for key in CELL_KEYS if key not in PAPER_KEYS or any(map(PAPER_KEYS[key], papers))]
    atomic_io.write(folder / 'cells.csv', document.csv_table(keys, cell_rows(study, results)))
    atomic_io.write(folder / 'runs.csv', document.csv_table(RUN_KEYS, run_rows(study, results)))
    differences = statistics.difference_rows(study, results)
    atomic_io.write(folder / 'differences.csv', document.csv_table(statistics.DIFFERENCE_KEYS, differences))
    blocks = build(study, results, differences, drawn)
    atomic_io.write(folder / 'report.md', document.markdown(blocks).encode())
    atomic_io.write(folder / 'report.html', document.page(_title(study), blocks).encode())


def build(
    study: Study, results: Mapping[CellKey, CellResult], differences: statistics.Rows, drawn: Sequence[Figure] = ()
) -> list[Block]:
    """The report as a document, with the `comparisons.rows` of the study."""
    blocks: list[Block] = [Heading(1, _title(study))]
    if study.warning:
        blocks.append(Paragraph(study.warning, strong=True))
    blocks += [Paragraph(_state(results)), Paragraph(_splits(study))]
    blocks += [Listing(study.notes)] if study.notes else []
    for table in study.tables:
        blocks.append(Heading(2, table.title))
        if study.warning and len(study.tables) > 1:
            blocks.append(Paragraph(study.warning, strong=True))
        blocks += [Paragraph(_caption(table)), _values(table, results)]
        if grid := statistics.difference_grid(table, differences):
            blocks += [
                Heading(3, f'{table.reference} minus the others'),
                Paragraph(
                    f'Mean difference over shared seeds with its {100 * statistics.CONFIDENCE:g} % interval, and the '
                    "two-sided p of a paired t-test, corrected for the number of comparisons in this table (Holm's "
                    'method).'
                ),
                grid,
                *map(Paragraph, statistics.power(table, differences)),
            ]
        for figure in drawn:
            if figure.table == table.title:
                blocks.append(Picture(f'figures/{figure.name}.png', figure.caption, figure.png))
    blocks.append(Heading(2, 'How every cell was made'))
    home = plan.home(cell.base for cell in study.cells())
    said = f'Commands run from {home}; + after a commit marks changes that were not committed.'
    blocks.append(Paragraph(said))
    blocks.append(_making(study, results))
    return blocks


def cell_rows(study: Study, results: Mapping[CellKey, CellResult]) -> list[dict[str, Any]]:
    """A row of cells.csv for every cell, with all of CELL_KEYS; None becomes an empty field."""
    rows = []
    for table, cell, result in _cells(study, results):
        summary = statistics.summary(collect.values(result, cell.measure))
        shown = summary if summary and summary.seeds >= statistics.FEWEST else None
        rows.append(
            {
                **_place(table, cell),
                'seeds_asked': len(result.seeds),
                'seeds_run': len(result.runs),
                'seeds_counted': summary.seeds if summary else 0,
                'mean': shown.mean if shown else None,
                'standard_error': shown.error if shown else None,
                'paper_mean': cell.paper.mean if cell.paper else None,
                'paper_standard_error': cell.paper.error if cell.paper else None,
                'paper_standard_deviation': cell.paper.deviation if cell.paper else None,
                'state': result.state,
                'runs': ' '.join(job.name for job in result.jobs),
                'commits': _commits(result),
                'hardware': _hardware(result),
                'command': plan.command(result.jobs),
            }
        )
    return rows


def run_rows(study: Study, results: Mapping[CellKey, CellResult]) -> list[dict[str, Any]]:
    """A row of runs.csv for every cell and seed that has a value."""
    return [
        {**_place(table, cell), 'seed': seed, 'value': value}
        for table, cell, result in _cells(study, results)
        for seed, value in collect.values(result, cell.measure).items()
    ]


def _title(study: Study) -> str:
    return f'{study.title} (scale {study.scale})'


def _cells(study: Study, results: Mapping[CellKey, CellResult]) -> list[tuple[Table, Cell, CellResult]]:
    return [
        (table, cell, results[table.title, cell.row, cell.column]) for table in study.tables for cell in table.cells
    ]


def _place(table: Table, cell: Cell) -> dict[str, Any]:
    return {
        'table': table.title,
        'row': cell.row,
        'column': cell.column,
        'measure': cell.measure.kind,
        'target': cell.measure.target or None,
        'unit': collect.KINDS[cell.measure.kind].unit,
    }


def _state(results: Mapping[CellKey, CellResult]) -> str:
    done = f'{sum(not result.missing for result in results.values())} of {len(results)} cells are done.'
    modified = sum(bool(result.modified) for result in results.values())
    return f'{done} In {modified}, files were modified after the run.' if modified else done


def _splits(study: Study) -> str:
    """Whether the seeds of a cell share a split of the data."""
    splits = []
    for cell in study.cells():
        data = cell.config.data
        if data.partition_file:
            splits.append(f'one split for all seeds (partition_file={data.partition_file})')
        elif data.partition_seed != -1:
            splits.append(f'one split for all seeds (partition_seed={data.partition_seed})')
        else:
            splits.append('each seed draws its own split')
    first, *others = dict.fromkeys(splits)
    text = '; '.join([f'{first} in some cells', *(f'{other} in others' for other in others)]) if others else first
    return f'{text[0].upper()}{text[1:]}.'


def _caption(table: Table) -> str:
    titles = []
    for measure in dict.fromkeys(cell.measure for cell in table.cells):
        kind = collect.KINDS[measure.kind]
        titles.append(f'{kind.title} ({kind.unit})')
    quantities = '; '.join(dict.fromkeys(titles))
    spreads = ['deviation' if cell.paper.deviation is not None else 'error' for cell in table.cells if cell.paper]
    paper_note = f'; paper: its mean (standard {" or ".join(dict.fromkeys(spreads))})' if spreads else ''
    numbers = f'{quantities[0].upper()}{quantities[1:]}: mean ± standard error over seeds (their number){paper_note}.'
    return ' '.join(filter(None, (numbers, table.caption)))


def _values(table: Table, results: Mapping[CellKey, CellResult]) -> Grid:
    """Our values, with the paper's beside them if it used the same data."""
    rows = []
    for row in table.rows:
        line = [row]
        for column in table.columns:
            cell = table.at(row, column)
            line.append(statistics.NOTHING if cell is None else _cell(cell, results[table.title, row, column]))
        rows.append(tuple(line))
    return Grid((table.row_name, *table.columns), tuple(rows))


def _cell(cell: Cell, result: CellResult) -> str:
    paper = f'paper {_paper(cell.paper, collect.KINDS[cell.measure.kind].unit)}' if cell.paper else ''
    values = collect.values(result, cell.measure)
    ours = _ours(values, result, cell)
    return '; '.join(filter(None, (ours, paper)))


def _ours(values: dict[int, float], result: CellResult, cell: Cell) -> str:
    summary = statistics.summary(values)
    notes = []
    if result.missing:
        notes.append(
            result.missing if not result.runs else f'{len(result.runs)} of {len(result.seeds)} seeds; {result.missing}'
        )
    if result.modified:
        notes.append(result.modified)
    if result.runs and len(values) < len(result.runs):
        to_target = ' to a target' in collect.KINDS[cell.measure.kind].title
        outcome = f'reached {100 * cell.measure.target:g} %' if to_target else 'had a value'
        notes.append(f'{len(values)} of {len(result.runs)} seeds {outcome}')
    head, unit = '', collect.KINDS[cell.measure.kind].unit
    if summary and summary.seeds >= statistics.FEWEST:
        head = f'{statistics.number(summary.mean, unit)} ± {statistics.number(summary.error, unit)} ({summary.seeds})'
    elif summary:  # too few for a mean
        head = ' and '.join(statistics.number(value, unit) for value in values.values())
    return ', '.join(filter(None, (head, *notes)))


def _making(study: Study, results: Mapping[CellKey, CellResult]) -> Grid:
    """A row for every set of runs, with all cells that are computed from it."""
    groups: dict[tuple[str, ...], list[tuple[str, CellResult]]] = {}
    for table, cell, result in _cells(study, results):
        names = tuple(job.name for job in result.jobs)
        groups.setdefault(names, []).append((f'{table.title}: {cell.row}, {cell.column}', result))
    rows = []
    for names, members in groups.items():
        result = members[0][1]
        cells = '; '.join(name for name, _ in members)
        rows.append(
            (cells, result.state, _commits(result), _hardware(result), ' '.join(names), plan.command(result.jobs))
        )
    return Grid(('Cells', 'State', 'Commit', 'Hardware', 'Runs', 'Command'), tuple(rows), code=(4, 5))


def _commits(result: CellResult) -> str:
    return ', '.join(dict.fromkeys(entry['commit'] for entry in result.made))


def _hardware(result: CellResult) -> str:
    return ', '.join(dict.fromkeys(f'{entry["device"]}, {entry["machine"]}' for entry in result.made))


def _paper(paper: Paper, unit: str) -> str:
    """Mean and standard error or deviation as printed in the paper."""
    decimals = paper.decimals or (1 if paper.deviation is None else 2)
    digits = f'.{decimals}f' if unit == '%' else 'g'
    mean, spread = format(paper.mean, digits), paper.error if paper.deviation is None else paper.deviation
    return mean if spread is None else f'{mean} ({spread:{digits}})'
