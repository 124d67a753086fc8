"""Puts finished runs side by side: python -m semisfl_jax.compare [--last=N] RUN [RUN ...]

A run counts by the mean of its last N evaluations, 10 if not said otherwise. The folder of a run of several seeds
stands for the runs of each. Runs that differ in nothing but the seed form a group. For every group the accuracy is
given as mean ± standard error over seeds, for the model the method is judged by and for the other one; for every two
groups the mean of the paired differences over the seeds they share.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from semisfl_jax import config as config_lib
from semisfl_jax import metrics
from semisfl_jax.errors import UserError


class Run(NamedTuple):
    """What a comparison needs of a run."""

    settings: dict[str, Any]  # flat configuration without what changes no number, and without the seed
    seed: int
    headline: str  # 'teacher' or 'student'
    accuracy: dict[str, float]  # model -> per cent, mean of the last evaluations


def load(folder: Path, last: int) -> Run:
    """Reads a finished run, its accuracy being the mean of the `last` evaluations.

    Raises:
      UserError: `folder` holds no finished run.
    """
    try:
        config = config_lib.flatten(json.loads((folder / 'config.json').read_text()))
        summary = json.loads((folder / 'summary.json').read_text())
    except (OSError, ValueError) as error:
        raise UserError(f'{folder} holds no finished run ({error}); give folders that have a summary.json') from error
    records = metrics.read(folder / 'metrics.jsonl')
    accuracy = {}
    for model in ('teacher', 'student'):
        values = [record[f'{model}_accuracy'] for record in records if f'{model}_accuracy' in record]
        if values:
            accuracy[model] = 100.0 * float(np.mean(values[-last:]))
    settings = {key: value for key, value in config.items() if key not in config_lib.INERT | {'seed'}}
    return Run({**settings, 'rounds': summary['rounds']}, config['seed'], summary['headline'], accuracy)


def group(runs: list[Run]) -> tuple[dict[str, dict[int, Run]], list[str]]:
    """Groups of runs by what tells them apart.

    Returns:
      {label: {seed: run}} in order of first appearance, and the keys that only some runs know, because they are of
      different versions; those are not compared.
    """
    known = set.intersection(*(set(run.settings) for run in runs))
    varying = [key for key in sorted(known) if len({json.dumps(run.settings[key]) for run in runs}) > 1]
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        label = ', '.join(f'{key}={run.settings[key]}' for key in varying) or run.settings['algorithm']
        if run.seed in groups.setdefault(label, {}):
            raise UserError(f'two runs of seed {run.seed} with {label}: give each run once')
        groups[label][run.seed] = run
    return groups, sorted(set().union(*(run.settings for run in runs)) - known)


def trials(folder: Path) -> list[Path]:
    """The folders of single runs that `folder` stands for: those of its seeds, or itself."""
    return sorted(folder.glob('seed_*')) or [folder]


def report(runs: list[Run]) -> list[str]:
    """The lines of the comparison."""
    (groups, unknown), lines = group(runs), []
    for label, members in groups.items():
        headline = next(iter(members.values())).headline
        for model in sorted(set.intersection(*(set(run.accuracy) for run in members.values()))):
            mean, error = metrics.mean_and_error([run.accuracy[model] for run in members.values()])
            mark = '*' if model == headline else ' '
            lines.append(f'{mark} {label}: {model} {mean:.2f} ± {error:.2f} % ({len(members)} seeds)')
    for (a, first), (b, second) in itertools.combinations(groups.items(), 2):
        shared = sorted(first.keys() & second.keys())
        if len(shared) > 1:
            pairs = [(first[s].accuracy[first[s].headline], second[s].accuracy[second[s].headline]) for s in shared]
            mean, error = metrics.mean_and_error([x - y for x, y in pairs])
            lines.append(f'difference [{a}] - [{b}]: {mean:+.2f} ± {error:.2f} ({len(shared)} seeds, paired)')
    if unknown:
        lines.append(f'not compared, for some of the runs do not know it: {", ".join(unknown)}')
    return [*lines, '* what the method is judged by']


def main(argv: list[str]) -> int:
    """Prints the comparison that the command line `argv` (program name first) asks for; returns the exit status."""
    values = flags.FlagValues()
    flags.DEFINE_integer('last', 10, 'evaluations that count', lower_bound=1, flag_values=values)
    if len(argv) < 2 or {'-h', '--help'} & set(argv):
        print(__doc__)
        return 0 if len(argv) > 1 else 2
    try:
        folders = [own for folder in values(argv)[1:] for own in trials(Path(folder))]
        print('\n'.join(report([load(folder, values.last) for folder in folders])))
    except (UserError, flags.Error) as error:
        print('error:', str(error).splitlines()[0], file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv))
