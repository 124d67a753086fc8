"""Puts finished runs side by side.

    semisfl compare [--last=N] [--csv=FILE] [--import=FILE.py] RUN [RUN ...]

A run is scored by the mean of its last N evaluations, 10 by default. The folder of a run of several seeds represents
the runs of all of them. Runs that differ only in the seed form a group. For every group the accuracy, in dense tasks
the score of each task, is reported as mean ± standard error over seeds, for the method's headline model and for the
others; for every two groups that share two seeds or more, the mean of the paired differences over these, with its 95 %
interval. Scores of validation images (data.eval_split) are named so, and never set against those of test images. Of
dense tasks, the scores of trivial predictions stand beside them. With --csv, the same numbers are written to a file, a
line each. If a method is yours, --import runs the file that registers it.
"""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

import semisfl_jax as sfl
from semisfl_jax import tasks
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, count
from semisfl_jax.lab.studies import statistics
from semisfl_jax.runs import Run, group, read_finished

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
    low: float = math.nan  # of the 95 % interval of a difference, by Student's t
    high: float = math.nan


def scores(run: Run, last: int) -> dict[str, float]:
    """Scores a run.

    Args:
      run: the run.
      last: number of evaluations over which the mean is taken.

    Returns:
      {key of metrics.jsonl: mean in the unit of the score}, for every model or dense task.
    """
    means = {}
    for key in run.table['key'].unique():
        judged = tasks.split_key(key)
        if judged and (values := [*run.curve(key).values()]):
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
            rows.append(Mean(label, '', key, '', split, *sfl.mean_and_error([x[key] for x in by_run]), len(by_run)))
    return rows


def trivial_scores(groups: Groups) -> list[Mean]:
    """Computes the scores of the trivial predictions of dense tasks, for every group."""
    rows = []
    for label, members in groups.items():
        for name in next(iter(members.values())).trivial_scores:
            scored = {run.folder: scores(run.trivial(name), 1) for run in members.values()}
            rows += means({f'{tasks.TRIVIAL_NAMES[name]} of [{label}]': members}, scored)
    return rows


def differences(groups: Groups, scored: Scored) -> list[Mean]:
    """Computes the differences of every two groups with scores of one kind, over the two seeds or more that they share.

    Args:
      groups: the groups.
      scored: the scores of their runs.
    """
    rows = []
    for (a, first), (b, second) in itertools.combinations(groups.items(), 2):
        runs = (*first.values(), *second.values())
        if len({(run.judged_by, run.eval_split) for run in runs}) > 1:
            continue
        if any(run.key not in scored[run.folder] for run in runs):  # undefined in all evaluations
            continue
        pair = ({seed: scored[run.folder][run.key] for seed, run in group.items()} for group in (first, second))
        difference = statistics.paired(*pair)
        if difference and difference.seeds > 1:
            mean, error, seeds, _ = difference
            keys = runs[0].key, runs[-1].key
            rows.append(Mean(a, b, *keys, runs[0].eval_split, mean, error, seeds, *difference.interval))
    return rows


def report(runs: list[Run], last: int) -> list[str]:
    """Returns the lines of the comparison.

    Args:
      runs: the runs.
      last: number of evaluations whose mean scores a run.
    """
    return _compare(runs, last)[0]


def _compare(runs: list[Run], last: int) -> tuple[list[str], list[Mean]]:
    """Returns the lines of the comparison, and the numbers in them."""
    groups, scored = group(runs), {run.folder: scores(run, last) for run in runs}
    scores_of_models, trivially, between = means(groups, scored), trivial_scores(groups), differences(groups, scored)
    lines = []
    for row in scores_of_models + trivially:
        members = groups.get(row.group)
        mark = '*' if members and row.key == next(iter(members.values())).key else ' '
        lines.append(f'{mark} {row.group}: {_value(row)} ({count(row.seeds, "seed")})')
    for label, members in groups.items():
        fewest = min(len(run.curve(run.key)) for run in members.values())
        if fewest < last:
            lines.append(f'{label}: fewer than {last} evaluations, the mean is of {fewest}')
        run = next(iter(members.values()))
        first = [*run.curve(run.key)][-last:][:1]
        if last > 1 and first and first[0] < run.settings['rounds'] / 2:
            lines.append(f'{label}: the mean is of rounds {first[0]} to {run.settings["rounds"]}; see --last')
    for row in between:
        outputs = [judged.output for judged in map(tasks.split_key, (row.key, row.minus_key)) if judged]
        marks = ['', ''] if len({*outputs}) == 1 else [f', {output}' for output in outputs]
        change = f'{row.mean:+.2f} ± {row.standard_error:.2f} [{row.low:+.2f}, {row.high:+.2f}]'
        what = f'[{row.group}{marks[0]}] - [{row.minus}{marks[1]}]'
        lines.append(f'difference {what}: {change} ({row.seeds} seeds, paired, 95 % interval)')
    if len({run.eval_split for run in runs}) > 1:
        lines.append('scores of validation images and of test images are not compared with each other')
    return [*lines, '* headline model of the method'], [*scores_of_models, *trivially, *between]


def _value(row: Mean) -> str:
    """Formats a score: 'teacher 89.17 ± 0.20 %', 'semseg mIoU 43.21 ± 0.30 %', 'VALIDATION teacher 88.02 ± 0.31 %'."""
    judged = tasks.split_key(row.key)
    assert judged is not None  # one of `scores`
    output, score = judged.output, judged.score
    name = output if score is tasks.ACCURACY else judged.text
    name = name if row.split == 'test' else f'{row.split.upper()} {name}'
    decimals, unit = (2, ' %') if score.percent else (4, '')
    spread = '' if math.isnan(row.standard_error) else f' ± {row.standard_error:.{decimals}f}'  # one seed has none
    return f'{name} {row.mean:.{decimals}f}{spread}{unit}'


def run(folders: list[Path], last: int = 10, csv: str = '') -> None:
    """Prints the comparison of the runs in some folders.

    Args:
      folders: folders of finished runs.
      last: number of evaluations whose mean scores a run.
      csv: a file for the same numbers, '' for none.

    Raises:
      UserError: a folder without a finished run, or a file that cannot be written.
    """
    if last < 1:
        raise UserError(f'--last={last}: must be a number of evaluations, 1 or more')
    lines, rows = _compare(read_finished(folders), last)
    print('\n'.join(lines))
    if csv:
        with file_io.writing('--csv'):
            file_io.write(file_io.expand_home(csv, '--csv'), file_io.as_csv(Mean._fields, rows))
