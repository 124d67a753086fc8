"""The report of a study: a function of its finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.studies import collect, document, figures, plan, statistics
from semisfl_jax.studies.collect import CellKey, CellResult
from semisfl_jax.studies.document import NOTHING, Block, Figure, Grid, Heading, Listing, Paragraph
from semisfl_jax.studies.measures import KINDS
from semisfl_jax.studies.spec import Cell, Paper, Study, Table

CELL_KEYS = (
    *('table', 'row', 'column', 'measure', 'target', 'unit', 'seeds_asked', 'seeds_run', 'seeds_counted', 'mean'),
    *('standard_error', 'paper_mean', 'paper_standard_error', 'paper_standard_deviation', 'state', 'runs', 'commits'),
    *('hardware', 'command'),
)
PAPER_KEYS = {  # omitted if no cell has such a value from the paper
    'paper_mean': lambda paper: True,
    'paper_standard_error': lambda paper: paper.error is not None,
    'paper_standard_deviation': lambda paper: paper.deviation is not None,
}
RUN_KEYS = ('table', 'row', 'column', 'measure', 'target', 'unit', 'seed', 'value')


def write(
    folder: Path, study: Study, results: Mapping[CellKey, CellResult], budget: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Writes report.md, report.html, cells.csv, runs.csv, differences.csv, budget.csv and figures/ into `folder`."""
    drawn = list(figures.draw(study, results))
    papers = [cell.paper for cell in study.cells() if cell.paper]
    keys = [key for key in CELL_KEYS if key not in PAPER_KEYS or any(map(PAPER_KEYS[key], papers))]
    differences = statistics.difference_rows(study, results)
    tables = {
        'cells.csv': (keys, cell_rows(study, results)),
        'runs.csv': (RUN_KEYS, run_rows(study, results)),
        'differences.csv': (statistics.DIFFERENCE_KEYS, differences),
        'budget.csv': (collect.BUDGET_KEYS, budget),
    }
    document.write(folder, [*build(study, results, differences, drawn), *_budget(budget)], tables, drawn)


def build(
    study: Study, results: Mapping[CellKey, CellResult], differences: statistics.Rows, drawn: Sequence[Figure] = ()
) -> list[Block]:
    """The report as a document, with the `statistics.difference_rows` of the study."""
    warning = [Paragraph(study.warning, strong=True)] if study.warning else []
    done = f'{sum(not result.missing for result in results.values())} of {len(results)} cells are done.'
    blocks: list[Block] = [Heading(1, f'{study.title} (scale {study.scale})'), *warning]
    blocks += [Paragraph(done), Paragraph(_splits(study))]
    blocks += [Listing(study.notes)] if study.notes else []
    for table in study.tables:
        blocks += [Heading(2, table.title), *(warning if len(study.tables) > 1 else [])]
        blocks += [Paragraph(_caption(table)), _values(table, results)]
        if grid := statistics.difference_grid(table, differences):
            explained = (
                f'Mean difference over shared seeds with its {100 * statistics.CONFIDENCE:g} % interval, and the '
                "two-sided p of a paired t-test, corrected for the number of comparisons in this table (Holm's method)."
            )
            blocks += [Heading(3, f'{table.reference} minus the others'), Paragraph(explained), grid]
        if power := statistics.power(table, differences):
            blocks.append(Paragraph(power))
        blocks += [figure for figure in drawn if figure.part == table.title]
    said = f'{plan.HOME}+ after a commit marks changes that were not committed.'
    return [*blocks, Heading(2, 'How every cell was made'), Paragraph(said), _making(study, results)]


def cell_rows(study: Study, results: Mapping[CellKey, CellResult]) -> list[dict[str, Any]]:
    """A row of cells.csv for every cell; keys of CELL_KEYS that it lacks become empty fields."""
    rows = []
    for table, cell, result in _cells(study, results):
        summary = statistics.summary(collect.values(result, cell.measure))
        row = {**_place(table, cell), 'seeds_asked': len(result.seeds), 'seeds_run': len(result.runs)}
        row |= {'seeds_counted': summary.seeds if summary else 0}
        if summary and summary.seeds >= statistics.FEWEST:
            row |= {'mean': summary.mean, 'standard_error': summary.error}
        if paper := cell.paper:
            row |= {'paper_mean': paper.mean, 'paper_standard_error': paper.error}
            row |= {'paper_standard_deviation': paper.deviation}
        rows.append({**row, **_made(result), 'command': plan.command(result.jobs)})
    return rows


def run_rows(study: Study, results: Mapping[CellKey, CellResult]) -> list[dict[str, Any]]:
    """A row of runs.csv for every cell and seed that has a value."""
    return [
        {**_place(table, cell), 'seed': seed, 'value': value}
        for table, cell, result in _cells(study, results)
        for seed, value in collect.values(result, cell.measure).items()
    ]


def _cells(study: Study, results: Mapping[CellKey, CellResult]) -> list[tuple[Table, Cell, CellResult]]:
    return [
        (table, cell, results[table.title, cell.row, cell.column]) for table in study.tables for cell in table.cells
    ]


def _place(table: Table, cell: Cell) -> dict[str, Any]:
    kind, target = cell.measure.kind, cell.measure.target or None
    place = {'table': table.title, 'row': cell.row, 'column': cell.column}
    return {**place, 'measure': kind, 'target': target, 'unit': KINDS[kind].unit}


def _made(result: CellResult) -> dict[str, str]:
    runs = ' '.join(job.name for job in result.jobs)
    return {'state': result.missing or 'done', **collect.describe(result.made), 'runs': runs}


def _splits(study: Study) -> str:
    """Whether the seeds of a cell share a split of the data."""
    splits = [cell.config.data.partition_file or cell.config.data.partition_seed for cell in study.cells()]
    kinds = (
        'each seed draws its own split' if split == -1 else f'one split for all seeds ({split})' for split in splits
    )
    text = ', in other cells '.join(dict.fromkeys(kinds))
    return f'{text[0].upper()}{text[1:]}.'


def _caption(table: Table) -> str:
    kinds = [KINDS[cell.measure.kind] for cell in table.cells]
    quantities = '; '.join(dict.fromkeys(f'{kind.title} ({kind.unit})' for kind in kinds))
    papers = [cell.paper for cell in table.cells if cell.paper]
    spreads = [name for name in ('error', 'deviation') if any(getattr(paper, name) is not None for paper in papers)]
    paper_note = '; paper: its mean' if papers else ''
    paper_note += f' (standard {" or ".join(spreads)})' if spreads else ''
    numbers = f'{quantities[0].upper()}{quantities[1:]}: mean ± standard error over seeds (their number){paper_note}.'
    return ' '.join(filter(None, (numbers, table.caption)))


def _values(table: Table, results: Mapping[CellKey, CellResult]) -> Grid:
    """Our values, with the paper's beside them if it used the same data."""
    rows = []
    for row in table.rows:
        cells = [table.at(row, column) for column in table.columns]
        rows.append(
            (row, *(_cell(cell, results[table.title, row, cell.column]) if cell else NOTHING for cell in cells))
        )
    return Grid((table.row_name, *table.columns), tuple(rows))


def _cell(cell: Cell, result: CellResult) -> str:
    """'92.00 ± 1.15 (3); paper 85.5 (0.5)', with notes on what is missing."""
    values, kind = collect.values(result, cell.measure), KINDS[cell.measure.kind]
    summary, notes = statistics.summary(values), []
    if result.missing:
        some = f'{len(result.runs)} of {len(result.seeds)} seeds; ' if result.runs else ''
        notes.append(f'{some}{result.missing}')
    if len(values) < len(result.runs):
        outcome = f'reached {100 * cell.measure.target:g} %' if ' to a target' in kind.title else 'had a value'
        notes.append(f'{len(values)} of {len(result.runs)} seeds {outcome}')
    head = ' and '.join(statistics.number(value, kind.unit) for value in values.values())  # too few for a mean
    if summary and summary.seeds >= statistics.FEWEST:
        mean, error = (statistics.number(value, kind.unit) for value in summary[:2])
        head = f'{mean} ± {error} ({summary.seeds})'
    ours = ', '.join(filter(None, (head, *notes)))
    return '; '.join(filter(None, (ours, f'paper {_paper(cell.paper, kind.unit)}' if cell.paper else '')))


def _making(study: Study, results: Mapping[CellKey, CellResult]) -> Grid:
    """A row for every set of runs, with all cells that are computed from it."""
    groups: dict[str, list[tuple[str, CellResult]]] = {}
    for table, cell, result in _cells(study, results):
        groups.setdefault(_made(result)['runs'], []).append((f'{table.title}: {cell.row}, {cell.column}', result))
    rows = []
    for members in groups.values():
        cells, result = '; '.join(name for name, _ in members), members[0][1]
        rows.append((cells, *_made(result).values(), plan.command(result.jobs)))
    return Grid(('Cells', 'State', 'Commit', 'Hardware', 'Runs', 'Command'), tuple(rows), code=(4, 5))


def _budget(budget: Sequence[Mapping[str, Any]]) -> list[Block]:
    """What the runs took, a row for each of `collect.budget`."""
    explained = (
        'Hours of rounds: by the clock, without compilation, evaluation and saving. Processor hours: of all cores, '
        f'from the start of the processes to their end; {NOTHING}: of some run not recorded.'
    )
    rows = [[NOTHING if row[key] is None else str(row[key]) for key in collect.BUDGET_KEYS] for row in budget]
    grid = Grid(('Hardware', 'Commits', 'Runs', 'Hours of rounds', 'Processor hours'), tuple(map(tuple, rows)))
    return [Heading(2, 'Budget'), Paragraph(explained), grid] if rows else []


def _paper(paper: Paper, unit: str) -> str:
    """Mean and standard error or deviation as printed in the paper."""
    decimals = paper.decimals or (1 if paper.deviation is None else 2)
    digits = f'.{decimals}f' if unit == '%' else 'g'
    mean, spread = format(paper.mean, digits), paper.error if paper.deviation is None else paper.deviation
    number = mean if spread is None else f'{mean} ({spread:{digits}})'
    return f'{number}, {paper.differs}' if paper.differs else number
