"""Puts finished runs side by side: python -m semisfl_jax.compare [--last=N] RUN [RUN ...]

A run is scored by the mean of its last N evaluations, 10 by default. The folder of a run of several seeds represents
the runs of all of them. Runs that differ only in the seed form a group. For every group the accuracy, in dense tasks
the score of each task, is reported as mean ± standard error over seeds, for the method's headline model and for the
others; for every two groups, the mean of the paired differences over the seeds they share. Scores of validation images
(data.eval_split) are named so, and never set against those of test images.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
from absl import flags

from semisfl_jax import commands, tasks
from semisfl_jax.averages import mean_and_error
from semisfl_jax.errors import UserError
from semisfl_jax.runs import Run, different_forms, folders, group, read, trials


def scores(run: Run, last: int) -> dict[str, float]:
    """Key of metrics.jsonl -> score in its unit, mean of the `last` evaluations, by model or dense task."""
    means = {}
    for key in dict.fromkeys(key for record in run.records for key in record):
        judged = tasks.split_key(key)
        values = [record[key] for record in run.records if record.get(key) is not None]
        if judged and values:
            means[key] = judged.score.scale * float(np.mean(values[-last:]))
    return means


def report(runs: list[Run], last: int) -> list[str]:
    """The lines of the comparison, each run scored by the mean of its `last` evaluations."""
    (groups, unknown), lines = group(runs), []
    scored = {run.folder: scores(run, last) for run in runs}

    def judged(run: Run) -> float:
        return scored[run.folder][run.key]

    for label, members in groups.items():
        headline = next(iter(members.values())).key
        for key in sorted(set.intersection(*(set(scored[run.folder]) for run in members.values()))):
            mean, error = mean_and_error([scored[run.folder][key] for run in members.values()])
            mark = '*' if key == headline else ' '
            split = next(iter(members.values())).eval_split
            lines.append(f'{mark} {label}: {_value(key, mean, error, split)} ({_seeds(len(members))})')
    for (a, first), (b, second) in itertools.combinations(groups.items(), 2):
        undefined = {run.key for run in (*first.values(), *second.values()) if run.key not in scored[run.folder]}
        if undefined:
            lines.append(f'no difference [{a}] - [{b}]: {", ".join(sorted(undefined))} is undefined in all evaluations')
            continue
        shared = sorted(first.keys() & second.keys())
        kinds = {(run.key.rpartition('_')[2], run.eval_split) for run in (*first.values(), *second.values())}
        if len(kinds) > 1:
            continue
        if len(shared) < 2:
            have = 'one seed' if shared else 'no seed'
            lines.append(f'no difference [{a}] - [{b}]: they share {have}, and it takes two')
        else:
            mean, error = mean_and_error([judged(first[s]) - judged(second[s]) for s in shared])
            lines.append(f'difference [{a}] - [{b}]: {mean:+.2f} ± {error:.2f} ({len(shared)} seeds, paired)')
    if len({run.eval_split for run in runs}) > 1:
        lines.append('scores of validation images and of test images are not compared with each other')
    for label, members in groups.items():
        if text := different_forms(list(members.values())):
            lines.append(f'{label}: machines chose different forms of the programs, which round differently: {text}')
    if unknown:
        lines.append(f'ignored differences in keys that some of the runs lack: {", ".join(unknown)}')
    return [*lines, '* headline model of the method']


def _value(key: str, mean: float, error: float, split: str) -> str:
    """'teacher 89.17 ± 0.20 %', 'semseg mIoU 43.21 ± 0.30 %', 'VALIDATION teacher 88.02 ± 0.31 %'."""
    judged = tasks.split_key(key)
    assert judged is not None  # one of `scores`
    output, score = judged.output, judged.score
    name = output if score is tasks.ACCURACY else judged.text
    name = name if split == 'test' else f'{split.upper()} {name}'
    decimals, unit = (2, ' %') if score.percent else (4, '')
    spread = '' if math.isnan(error) else f' ± {error:.{decimals}f}'  # one seed has none
    return f'{name} {mean:.{decimals}f}{spread}{unit}'


def _seeds(count: int) -> str:
    return f'{count} seed{"" if count == 1 else "s"}'


def main(argv: list[str]) -> int:
    """Prints the comparison that the command line `argv` (program name first) asks for; returns the exit status."""
    values = flags.FlagValues()
    flags.DEFINE_integer('last', 10, 'a number of evaluations, 1 or more', lower_bound=1, flag_values=values)

    def compare() -> None:
        found = [trial for folder in folders(values, argv) for trial in trials(folder)]
        if not found:
            raise UserError('no run to compare; give the folders of runs')
        print('\n'.join(report([read(folder) for folder in found], values.last)))

    return commands.main(argv, __doc__, compare, needs_words=True)


if __name__ == '__main__':
    sys.exit(main(sys.argv))
