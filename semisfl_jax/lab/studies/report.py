"""The report of a study: a function of its plan and the table of its finished runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import semisfl_jax as sfl
from semisfl_jax.lab.studies import document, figures, results, statistics
from semisfl_jax.lab.studies import plan as plans
from semisfl_jax.lab.studies.document import NOTHING, Block, Figure, Grid, heading, listing, plain, warning
from semisfl_jax.lab.studies.measures import KINDS, CellResult, Cells
from semisfl_jax.lab.studies.plan import Plan
from semisfl_jax.lab.studies.results import JobResult
from semisfl_jax.lab.studies.spec import Cell, Paper, Study, Table
from semisfl_jax.lab.studies.statistics import Rows

DONE, SHOWN = 'done', 'shown'  # state of a cell without anything missing; key of its text in a table
MADE = ('state', 'commits', 'hardware', 'runs', 'command')  # how a cell was made
RUN_KEYS = ('table', 'row', 'column', 'measure', 'target', 'unit', 'seed', 'value')  # of runs.csv


def write(folder: Path, plan: Plan, jobs: Mapping[str, JobResult]) -> None:
    """Writes report.md, report.html, cells.csv, runs.csv, differences.csv, budget.csv and figures/.

    Args:
      folder: folder of the report.
      plan: the plan of a study.
      jobs: results of its jobs, by name.
    """
    study, cells, budget = plan.definition, results.fill(plan, jobs), results.budget(jobs)
    rows, differences = cell_rows(plan, cells), statistics.difference_rows(study, cells)
    # Without what the paper gives of no cell
    unknown = {key for key in rows[0] if 'paper' in key and all(row[key] is None for row in rows)}
    keys = [key for key in rows[0] if key not in (SHOWN, *unknown)]
    runs = [
        {**row, 'seed': seed, 'value': value}
        for row, result in zip(rows, cells.values(), strict=True)
        for seed, value in result.values.items()
    ]
    tables = {
        'cells.csv': (keys, rows),
        'runs.csv': (RUN_KEYS, runs),
        'differences.csv': (statistics.DIFFERENCE_KEYS, differences),
        'budget.csv': (results.BUDGET_KEYS, budget),
    }
    blocks = build(study, rows, differences, list(figures.draw(study, cells)))
    document.write(folder, [*blocks, *_budget(budget)], tables)


def build(study: Study, rows: Rows, differences: Rows, drawn: Sequence[Figure]) -> list[Block]:
    """Builds the report as a document.

    Args:
      study: the study.
      rows: its `cell_rows`.
      differences: its `statistics.difference_rows`.
      drawn: its figures.
    """
    warnings = [warning(study.warning)] if study.warning else []
    done = sum(row['state'] == DONE for row in rows)
    done = f'All {done} cells are complete.' if done == len(rows) else f'{done} of {len(rows)} cells are complete.'
    blocks: list[Block] = [heading(1, f'{study.title} (scale {study.scale})'), *warnings]
    blocks += [plain(done), plain(_splits(study))]
    blocks += [listing(study.notes)] if study.notes else []
    for table in study.tables:
        blocks += [heading(2, table.title), *(warnings if len(study.tables) > 1 else [])]
        blocks += [plain(_caption(table)), _values(table, rows)]
        if grid := statistics.difference_grid(table, differences):
            explained = (
                f'Mean difference over shared seeds with its {100 * statistics.CONFIDENCE:g} % interval, and the '
                "two-sided p of a paired t-test, corrected for the number of comparisons in this table (Holm's method)."
            )
            blocks += [heading(3, f'{table.reference} minus the others'), plain(explained), grid]
        if power := statistics.power(table, differences):
            blocks.append(plain(power))
        blocks += [figure for figure in drawn if figure.part == table.title]
    return [*blocks, heading(2, 'Commands, commits and hardware'), plain(plans.HOME), _making(rows)]


def cell_rows(plan: Plan, cells: Cells) -> list[dict[str, Any]]:
    """Makes a row of cells.csv for every cell, None where it has no number; with it goes what the report shows."""
    rows = []
    for ((title, row, column), result), cell in zip(cells.items(), plan.definition.cells(), strict=True):
        jobs, values = plan.cells[title, row, column], list(result.values.values())
        mean, error = sfl.mean_and_error(values) if len(values) >= statistics.FEWEST else (None, None)
        line = {
            'table': title,
            'row': row,
            'column': column,
            'measure': cell.measure.kind,
            'target': cell.measure.target or None,
            'unit': KINDS[cell.measure.kind].unit,
            'seeds_asked': sum(len(job.seeds) for job in jobs),
            'seeds_run': len(result.runs),
            'seeds_counted': len(values),
            'mean': mean,
            'standard_error': error,
            'paper_mean': cell.paper and cell.paper.mean,
            'paper_standard_error': cell.paper and cell.paper.error,
            'paper_standard_deviation': cell.paper and cell.paper.deviation,
            'state': result.missing or DONE,
            'runs': ' '.join(job.name for job in jobs),
            **results.describe(result.provenance),
            'command': plans.command(jobs),
        }
        rows.append({**line, SHOWN: _cell(cell, result, line)})
    return rows


def _splits(study: Study) -> str:
    """Says whether the seeds of a cell share a split of the data."""
    splits = [cell.config.data.partition_file or cell.config.data.partition_seed for cell in study.cells()]
    kinds = (
        'each seed draws its own split' if split == -1 else f'one split for all seeds ({split})' for split in splits
    )
    text = plans.without_folders(', in other cells '.join(dict.fromkeys(kinds)))
    return f'{text[0].upper()}{text[1:]}.'


def _caption(table: Table) -> str:
    """Explains the numbers of a table."""
    kinds = [KINDS[cell.measure.kind] for cell in table.cells]
    quantities = '; '.join(dict.fromkeys(f'{kind.title} ({kind.unit})' for kind in kinds))
    papers = [cell.paper for cell in table.cells if cell.paper]
    spreads = [name for name in ('error', 'deviation') if any(getattr(paper, name) is not None for paper in papers)]
    paper_note = '; paper: its mean' if papers else ''
    paper_note += f' (standard {" or ".join(spreads)})' if spreads else ''
    best = '; bold: the best mean, oracles aside' if len(table.rows) > 1 and any(kind.best for kind in kinds) else ''
    numbers = f'{quantities[0].upper()}{quantities[1:]}: mean ± standard error (number of seeds){best}{paper_note}.'
    return ' '.join(filter(None, (numbers, table.caption)))


def _values(table: Table, rows: Rows) -> Grid:
    """Shows our values, with the paper's beside them if it used the same data; the best of a column is bold."""
    texts = {(row['row'], row['column']): row[SHOWN] for row in rows if row['table'] == table.title}
    for place in _best(table, [row for row in rows if row['table'] == table.title]):
        ours, *others = texts[place].split('; ')
        texts[place] = '; '.join([f'**{ours}**', *others])
    shown = [(row, *(texts.get((row, column)) for column in table.columns)) for row in table.rows]
    return Grid((table.row_name, *table.columns), shown)


def _best(table: Table, rows: Rows) -> Iterator[tuple[str, str]]:
    """Finds row and column of the best means, with which no oracle and no unfinished cell competes; `rows`: its own."""
    means: dict[tuple[str, str], dict[str, float]] = {}  # of a column and a kind of measure, by row
    for cell, row in zip(table.cells, rows, strict=True):
        whole = row['state'] == DONE and row['mean'] is not None and row['seeds_counted'] == row['seeds_run']
        if whole and cell.config.pseudo_labels != 'true':
            means.setdefault((row['column'], row['measure']), {})[row['row']] = row['mean']
    for (column, kind), by_row in means.items():
        if (best := KINDS[kind].best) and len(by_row) > 1:
            yield from ((row, column) for row, mean in by_row.items() if mean == best([*by_row.values()]))


def _cell(cell: Cell, result: CellResult, row: Mapping[str, Any]) -> str:
    """Formats a cell: '92.00 ± 1.15 (3); paper 85.5 (0.5)', with notes on what is missing; `row`: of cells.csv."""
    asked, run, counted = (row[f'seeds_{part}'] for part in ('asked', 'run', 'counted'))
    kind, notes = KINDS[cell.measure.kind], []
    if result.missing:
        notes.append(f'{run} of {asked} seeds; {result.missing}' if run else result.missing)
    if counted < run:
        outcome = f'reached {100 * cell.measure.target:g} %' if ' to a target' in kind.title else 'had a value'
        notes.append(f'{counted} of {run} seeds {outcome}')
    if row['mean'] is None:  # of too few values
        head = ' and '.join(statistics.number(value, kind.unit) for value in result.values.values())
    else:
        mean, error = (statistics.number(row[key], kind.unit) for key in ('mean', 'standard_error'))
        head = f'{mean} ± {error} ({counted})'
    ours = ', '.join(filter(None, (head, *notes)))
    return '; '.join(filter(None, (ours, f'paper {_paper(cell.paper, kind.unit)}' if cell.paper else '')))


def _making(rows: Rows) -> Grid:
    """Shows how every set of runs was made, with all cells that are computed from it."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row['runs'], []).append(row)
    shown = [
        ('; '.join(f'{row["table"]}: {row["row"]}, {row["column"]}' for row in group), *(group[0][key] for key in MADE))
        for group in groups.values()
    ]
    return Grid(('Cells', 'State', 'Commit', 'Hardware', 'Runs', 'Command'), shown, code=(4, 5))


def _budget(budget: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Shows what the runs took, a row for each of `results.budget`."""
    explained = (
        'Hours of rounds: wall-clock time of the rounds alone, without compilation, evaluation and saving. Processor '
        f'hours: over all cores, from start to end of each process; {NOTHING}: some run did not record them.'
    )
    rows = [[row[key] for key in results.BUDGET_KEYS] for row in budget]
    grid = Grid(('Hardware', 'Commits', 'Runs', 'Hours of rounds', 'Processor hours'), rows)
    return [heading(2, 'Budget'), plain(explained), grid] if rows else []


def _paper(paper: Paper, unit: str) -> str:
    """Formats mean and standard error or deviation as printed in the paper."""
    decimals = paper.decimals or (1 if paper.deviation is None else 2)
    digits = f'.{decimals}f' if unit == '%' else 'g'
    mean, spread = format(paper.mean, digits), paper.error if paper.deviation is None else paper.deviation
    number = mean if spread is None else f'{mean} ({spread:{digits}})'
    return f'{number}, {paper.differs}' if paper.differs else number
