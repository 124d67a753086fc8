"""Puts finished runs side by side, in a table.

    semisfl compare [--format=text|markdown|latex|csv] [--last=N] [--score=NAME] [--import=FILE.py] RUN [RUN ...]

RUN is the folder of a run, or any folder above runs. Runs that differ only in the seed are one row. A run is scored
by the mean of its last N evaluations, 10 by default. A row has the mean ± standard error over its seeds and, for the
model by which the method is judged, the 95 % interval of the mean, by Student's t; then the scores of its other models
or dense tasks. The best mean of a column is bold, in text marked *. Scores of validation images (data.eval_split) are
named so. Trivial predictions of dense tasks have rows of their own. --score judges methods of classification by another
score than accuracy: SCORES.

A second table has the differences of every two rows over the seeds that they share, two at least, with intervals and
p-values of paired t-tests, also corrected for the number of tests by Holm's method. What cannot be compared is named.

--format=csv prints the same numbers, a line for each, with all their digits: semisfl compare … --format=csv > FILE. If
a method is yours, --import runs the file that registers it.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import semisfl_jax as sfl
from semisfl_jax import tasks
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, use_one_of
from semisfl_jax.lab.plots.style import group_title
from semisfl_jax.lab.studies import statistics
from semisfl_jax.lab.studies.document import NOTHING, Grid
from semisfl_jax.runs import Run, group, read_finished

_MOST_NAMES = 6  # in a note
_NAMES = [score.name for score in (tasks.ACCURACY, *tasks.BESIDE_ACCURACY)]
__doc__ = (__doc__ or '').replace('SCORES', ', '.join(_NAMES[1:]))
Groups = Mapping[str, Mapping[int, Run]]  # {label: {seed: run}}, of `runs.group`
Scored = Mapping[Path, Mapping[str, float]]  # {folder of a run: its `scores`}


class Mean(NamedTuple):
    """A mean over seeds: of a score of a group, or of the differences of its headline's score from another group's."""

    group: str  # or a trivial prediction, and whose
    minus: str  # the other group; '' for a score
    key: str  # of metrics.jsonl
    minus_key: str  # that of the other group, whose headline may be another model
    split: str  # of the images: 'test' or 'validation'
    mean: float  # in the unit of the score: %
    standard_error: float  # NaN for one seed
    seeds: int
    low: float  # of the 95 % interval, by Student's t; NaN for one seed
    high: float
    p: float = math.nan  # of a difference: of the paired t-test
    p_corrected: float = math.nan  # by Holm's method, for all differences here


class Table(NamedTuple):
    """A table of texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Sequence[tuple[int, int]] = ()  # row and column of what is bold


class Comparison(NamedTuple):
    """Finished runs side by side."""

    scores: list[Mean]  # of every model or task of every group, then of trivial predictions
    differences: list[Mean]
    tables: list[Table]  # the same, to read
    notes: list[str]  # what a reader has to know of them

    def __str__(self) -> str:
        return _as_text(self)

    def _repr_markdown_(self) -> str:
        return _as_markdown(self)


def scores(run: Run, last: int) -> dict[str, float]:
    """Scores a run.

    Args:
      run: the run.
      last: number of evaluations over which the mean is taken.

    Returns:
      {key of metrics.jsonl: mean in the unit of the score}, for every model, of the score that judges the run, or for
      every dense task.
    """
    means = {}
    for key in run.table['key'].unique():
        judged = tasks.split_key(key)
        if not judged or (judged.output not in tasks.DENSE and judged.score != run.score):
            continue
        if values := [*run.curve(key).values()]:
            means[key] = judged.score.scale * float(np.mean(values[-last:]))
    return means


def means(groups: Groups, scored: Scored) -> list[Mean]:
    """Computes the scores of every model or task of every group.

    Args:
      groups: the groups.
      scored: the scores of their runs.
    """
    rows = []
    for label, members in groups.items():
        by_run = [scored[run.folder] for run in members.values()]
        split = next(iter(members.values())).eval_split
        for key in sorted(set.intersection(*map(set, by_run))):
            mean, error = sfl.mean_and_error([values[key] for values in by_run])
            low, high = statistics.Difference(mean, error, len(by_run), math.nan).interval
            rows.append(Mean(label, '', key, '', split, mean, error, len(by_run), low, high))
    return rows


def trivial_scores(groups: Groups) -> list[Mean]:
    """Computes the scores of the trivial predictions of dense tasks, for every group."""
    rows = []
    for label, members in groups.items():
        for name in next(iter(members.values())).trivial_scores:
            scored = {run.folder: scores(run.trivial(name), 1) for run in members.values()}
            rows += means({f'{tasks.TRIVIAL_NAMES[name]} of [{label}]': members}, scored)
    return rows


def differences(groups: Groups, scored: Scored) -> tuple[list[Mean], dict[str, list[str]]]:
    """Computes the differences of every two groups with scores of one kind, over the two seeds or more that they share.

    Args:
      groups: the groups.
      scored: the scores of their runs.

    Returns:
      The differences, and the pairs that have none, by the reason.
    """
    rows, left_out = [], dict[str, list[str]]()
    for (a, first), (b, second) in itertools.combinations(groups.items(), 2):
        runs = (*first.values(), *second.values())
        pair = [{seed: scored[run.folder].get(run.key) for seed, run in group.items()} for group in (first, second)]
        difference = None
        if len({run.judged_by for run in runs}) > 1:
            reason = 'they are judged by different scores'
        elif len({run.eval_split for run in runs}) > 1:
            reason = 'one is scored on test images and the other on validation images'
        elif any(value is None for values in pair for value in values.values()):
            reason = 'a run has no score in any evaluation'
        else:
            reason = 'they share fewer than two seeds'
            difference = statistics.paired(*pair)  # type: ignore[arg-type]  # no value is None
        if difference and difference.seeds > 1:
            mean, error, seeds, p = difference
            keys = runs[0].key, runs[-1].key
            rows.append(Mean(a, b, *keys, runs[0].eval_split, mean, error, seeds, *difference.interval, p))
        else:
            left_out.setdefault(reason, []).append(f'{_title(a)} and {_title(b)}')
    corrected = statistics.corrected([row.p for row in rows])
    return [row._replace(p_corrected=p) for row, p in zip(rows, corrected, strict=True)], left_out


def side_by_side(runs: Sequence[Run], last: int = tasks.LAST) -> Comparison:
    """Compares finished runs.

    Args:
      runs: the runs, at least one.
      last: number of evaluations whose mean scores a run.

    Raises:
      UserError: two runs differ in nothing, not even in the seed.
    """
    groups, scored = group(runs), {run.folder: scores(run, last) for run in runs}
    rows = [*means(groups, scored), *trivial_scores(groups)]
    between, left_out = differences(groups, scored)
    remarks = dict[str, list[str]]()  # groups, or pairs of them, by what is to be known
    for label, members in groups.items():
        run = next(iter(members.values()))
        first = [*run.curve(run.key)][-last:][:1]
        fewest = min(len(run.curve(run.key)) for run in members.values())
        if fewest < last:
            remarks.setdefault(f'fewer than {last} evaluations, the mean is over {fewest}', []).append(_title(label))
        if last > 1 and first and first[0] < run.settings['rounds'] / 2:
            rounds = f'{first[0]} to {run.settings["rounds"]}'
            remarks.setdefault(f'the mean is over rounds {rounds}; see --last', []).append(_title(label))
    remarks |= {f'not compared, as {reason}': pairs for reason, pairs in left_out.items()}
    notes = [f'{remark}: {_several(of)}' for remark, of in remarks.items()]
    tables = [_score_table(groups, rows)]
    if between:
        header = ('First', 'Second', 'First - second', '95 % interval', 'p', 'p (Holm)', 'Seeds')
        tables.append(Table(header, [*map(_difference, between)]))
    return Comparison(rows, between, tables, notes)


def _score_table(groups: Groups, rows: Sequence[Mean]) -> Table:
    """Returns a row of every group and trivial prediction, with the scores of all headline models in one column."""
    headlines = {label: next(iter(members.values())).key for label, members in groups.items()}
    judging, own = dict[str, dict[str, Mean]](), dict[str, dict[str, Mean]]()  # columns: {title: {group: mean}}
    for row in rows:
        judged, split = _judged(row.key), '' if row.split == 'test' else f'{row.split} '
        own.setdefault(f'{judged.output.capitalize()} {split}{judged.score.axis}', {})[row.group] = row
        if headlines.get(row.group) == row.key and judged.output not in tasks.DENSE:
            judging.setdefault(f'{row.split.capitalize()} {judged.score.axis}', {})[row.group] = row
    shown = {(row.group, row.key) for column in judging.values() for row in column.values()}
    more = {title: of for title, of in own.items() if {(row.group, row.key) for row in of.values()} - shown}
    columns, names = judging | more, [*dict.fromkeys(row.group for row in rows)]
    lines, best = [], list[tuple[int, int]]()
    for name in names:
        line = [_title(name), str(next(row.seeds for row in rows if row.group == name))]
        if judging:
            line.append(_judged(headlines[name]).output if name in headlines else NOTHING)
        for title, column in columns.items():
            cell = column.get(name)
            interval = cell and headlines.get(name) == cell.key and (title in judging or not judging)
            line.append(_score(cell, bool(interval)) if cell else NOTHING)
        lines.append(line)
    header = ['', 'Seeds', *(['Model'] if judging else []), *columns]
    for place, column in enumerate(columns.values(), start=len(header) - len(columns)):
        means = {label: row.mean for label, row in column.items() if label in groups}
        if len(means) > 1:
            top = _judged(next(iter(column.values())).key).score.best(means.values())
            best += [(names.index(label), place) for label, mean in means.items() if mean == top]
    return Table(header, lines, best)


def _several(names: Sequence[str]) -> str:
    """Returns the first names, and how many there are more."""
    rest = len(names) - _MOST_NAMES
    return '; '.join(names[:_MOST_NAMES]) + (f'; and {rest} more' if rest > 0 else '')


def _judged(key: str) -> tasks.Headline:
    """Returns the score under a key of `scores`."""
    judged = tasks.split_key(key)
    assert judged is not None, key
    return judged


def _title(label: str) -> str:
    """Returns the name of a group, or of a trivial prediction of one, for a reader."""
    what, of, rest = label.partition(' of [')
    if not of:
        return group_title(label).replace(r'\$', '$')
    return f'{what} of [{_title(rest.removesuffix("]"))}]'


def _score(row: Mean, interval: bool) -> str:
    """Formats a score: '89.17 ± 0.20', and with its interval '89.17 ± 0.20 [88.31, 90.03]'."""
    digits = 2 if _judged(row.key).score.percent else 4
    if row.seeds < 2:
        return f'{row.mean:.{digits}f}'
    shown = f' [{row.low:.{digits}f}, {row.high:.{digits}f}]' if interval else ''
    return f'{row.mean:.{digits}f} ± {row.standard_error:.{digits}f}{shown}'


def _difference(row: Mean) -> list[str]:
    """Formats the cells of a difference."""
    digits = 2 if _judged(row.key).score.percent else 4
    value = f'{row.mean:+.{digits}f} ± {row.standard_error:.{digits}f}'
    interval = f'[{row.low:+.{digits}f}, {row.high:+.{digits}f}]'
    p = [NOTHING if math.isnan(value) else f'{value:.2g}' for value in (row.p, row.p_corrected)]
    return [_title(row.group), _title(row.minus), value, interval, *p, str(row.seeds)]


# --- formats


def _as_text(compared: Comparison) -> str:
    """Returns aligned columns, and the notes below."""
    parts = []
    for table in compared.tables:
        marked = [
            [text + ' *' * ((row, column) in table.best) for column, text in enumerate(line)]
            for row, line in enumerate(table.rows)
        ]
        lines = [list(table.header), *marked]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ['-' * width for width in widths])
        parts.append('\n'.join('  '.join(map(str.ljust, line, widths)).rstrip() for line in lines))
    best = ['* the best of its column'] if compared.tables[0].best else []
    return '\n\n'.join([*parts, *filter(None, ['\n'.join([*best, *compared.notes])])])


def _as_markdown(compared: Comparison) -> str:
    """Returns tables of GitHub's Markdown, and the notes as a list."""
    parts = [str(Grid(table.header, _bold(table, '**{}**'))) for table in compared.tables]
    return '\n\n'.join([*parts, *filter(None, ['\n'.join(f'- {note}' for note in compared.notes)])])


def _as_latex(compared: Comparison) -> str:
    """Returns tables for the package booktabs, and the notes as comments."""
    parts = ['% \\usepackage{booktabs}']
    for table in compared.tables:
        rows = _bold(table._replace(rows=[[*map(_escape, line)] for line in table.rows]), r'\textbf{{{}}}')
        lines = [f'{" & ".join(line)} \\\\' for line in ([*map(_escape, table.header)], *rows)]
        body = [lines[0], r'\midrule', *lines[1:]]
        frame = f'\\begin{{tabular}}{{{"l" * len(table.header)}}}', r'\toprule', *body, r'\bottomrule', r'\end{tabular}'
        parts.append('\n'.join(frame))
    return '\n\n'.join([*parts, *filter(None, ['\n'.join(f'% {note}' for note in compared.notes)])])


def _bold(table: Table, form: str) -> list[list[str]]:
    """Returns the rows of a table, with its best cells in a form."""
    return [
        [form.format(text) if (row, column) in table.best else text for column, text in enumerate(line)]
        for row, line in enumerate(table.rows)
    ]


def _escape(text: str) -> str:
    """Returns a text as LaTeX prints it."""
    text = text.replace('\\', r'\textbackslash ')
    text = re.sub(r'[&%$#_{}]', r'\\\g<0>', text).replace('~', r'\textasciitilde ').replace('^', r'\textasciicircum ')
    return re.sub(r'-(?=\d)', '$-$', text).replace('±', r'$\pm$').replace(NOTHING, '---')


def _as_csv(compared: Comparison) -> str:
    """Returns a line for every number, with all its digits."""
    rows = [*compared.scores, *compared.differences]
    return file_io.as_csv(Mean._fields, rows).decode().rstrip('\n')


FORMATS: dict[str, Callable[[Comparison], str]] = {
    'text': _as_text,
    'markdown': _as_markdown,
    'latex': _as_latex,
    'csv': _as_csv,
}


def run(folders: list[Path], last: int = tasks.LAST, format: str = 'text', score: str = '') -> None:
    """Prints the comparison of the runs in some folders.

    Args:
      folders: folders of finished runs, or above them.
      last: number of evaluations whose mean scores a run.
      format: one of FORMATS.
      score: the name of a score that judges the runs, '' for their own.

    Raises:
      UserError: a folder without a finished run, or a run without that score.
    """
    if last < 1:
        raise UserError(f'--last={last}: must be a number of evaluations, 1 or more')
    if format not in FORMATS:
        raise UserError(f"--format='{format}' is unknown; {use_one_of(format, FORMATS)}")
    if score and score not in _NAMES:
        raise UserError(f"--score='{score}' is unknown; {use_one_of(score, _NAMES)}")
    runs = read_finished(folders)
    if score:
        runs = [run._replace(score=tasks.SCORES[score]) for run in runs]
        if lacking := [run for run in runs if not run.curve(run.key)]:
            raise UserError(f'{lacking[0].folder}/metrics.jsonl has no {lacking[0].key}; leave it out, or --score')
    print(FORMATS[format](side_by_side(runs, last)))
