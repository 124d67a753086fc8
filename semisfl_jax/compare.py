"""Puts finished runs side by side: python -m semisfl_jax.compare [--last=N] RUN [RUN ...]

A run is scored by the mean of its last N evaluations, 10 by default. The folder of a run of several seeds represents
the runs of all of them. Runs that differ only in the seed form a group. For every group the accuracy is reported as
mean ± standard error over seeds, for the method's headline model and for the others; for every two groups, the mean of
the paired differences over the seeds they share.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
from absl import flags

from semisfl_jax.errors import UserError, warnings_on_stderr
from semisfl_jax.runs import Run, group, read, trials
from semisfl_jax.training import metrics
from semisfl_jax.types import MODELS


def accuracies(run: Run, last: int) -> dict[str, float]:
    """Model -> accuracy in percent, mean of the `last` evaluations."""
    means = {}
    for model in MODELS:
        values = [record[f'{model}_accuracy'] for record in run.records if f'{model}_accuracy' in record]
        if values:
            means[model] = 100.0 * float(np.mean(values[-last:]))
    return means


def report(runs: list[Run], last: int) -> list[str]:
    """The lines of the comparison, each run scored by the mean of its `last` evaluations."""
    (groups, unknown), lines = group(runs), []
    accuracy = {run.folder: accuracies(run, last) for run in runs}

    def judged(run: Run) -> float:
        return accuracy[run.folder][run.headline]

    for label, members in groups.items():
        headline = next(iter(members.values())).headline
        for model in sorted(set.intersection(*(set(accuracy[run.folder]) for run in members.values()))):
            mean, error = metrics.mean_and_error([accuracy[run.folder][model] for run in members.values()])
            mark = '*' if model == headline else ' '
            lines.append(f'{mark} {label}: {model} {mean:.2f} ± {error:.2f} % ({len(members)} seeds)')
    for (a, first), (b, second) in itertools.combinations(groups.items(), 2):
        shared = sorted(first.keys() & second.keys())
        if len(shared) > 1:
            mean, error = metrics.mean_and_error([judged(first[s]) - judged(second[s]) for s in shared])
            lines.append(f'difference [{a}] - [{b}]: {mean:+.2f} ± {error:.2f} ({len(shared)} seeds, paired)')
    if unknown:
        lines.append(f'ignored differences in keys that some of the runs lack: {", ".join(unknown)}')
    return [*lines, '* headline model of the method']


def main(argv: list[str]) -> int:
    """Prints the comparison that the command line `argv` (program name first) asks for; returns the exit status."""
    values = flags.FlagValues()
    flags.DEFINE_integer('last', 10, 'evaluations that count', lower_bound=1, flag_values=values)
    if len(argv) < 2 or {'-h', '--help'} & set(argv):
        print(__doc__)
        return 0 if len(argv) > 1 else 2
    try:
        folders = [trial for folder in values(argv)[1:] for trial in trials(Path(folder))]
        with warnings_on_stderr():
            print('\n'.join(report([read(folder) for folder in folders], values.last)))
    except (UserError, flags.Error) as error:
        print('error:', str(error).splitlines()[0], file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv))
