"""Finished runs for comparisons and plots: read from their folders, grouped by the settings in which they differ."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import flags

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line, keys, load
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, warn
from semisfl_jax.core.types import MODELS
from semisfl_jax.tasks import ACCURACY, Score, score_key
from semisfl_jax.training import metrics

LONGEST = 2**24  # bytes of a Python file
AUTO = tuple(config_lib.of_method(algorithms.get('semisfl')))  # keys of which methods mean something by 'auto'


class Run(NamedTuple):
    """One finished run of one seed."""

    folder: Path
    settings: dict[str, Any]  # flat configuration, without INERT keys and seed, but with `rounds`
    seed: int
    headline: str  # the output that counts: a model, or a dense task; one of `tasks.OUTPUTS`
    records: list[dict[str, Any]]  # the lines of metrics.jsonl
    score: Score = ACCURACY  # by which it is judged
    trivial_scores: Mapping[str, Mapping[str, float | None]] = MappingProxyType({})  # as in summary.json

    @property
    def eval_split(self) -> str:
        """What its scores are of: 'test' or 'validation' images."""
        return self.settings.get('data.eval_split', 'test')

    @property
    def key(self) -> str:
        """The headline's score in the lines of metrics.jsonl."""
        return score_key(self.headline, self.score.name)

    @property
    def judged_by(self) -> str:
        """What two runs share if their scores can be compared: a task's score, or accuracy, of whichever model."""
        return self.score.name if self.headline in MODELS else self.key

    def trivial(self, name: str) -> Run:
        """As if all evaluations had been of a trivial prediction, one of `training.evaluation.TRIVIAL_NAMES`."""
        scores = self.trivial_scores.get(name, {})
        evaluated = (record['round'] for record in self.records if self.key in record)
        return self._replace(records=[{'round': number, **scores} for number in evaluated])


def folders(values: flags.FlagValues, argv: Sequence[str]) -> list[Path]:
    """The folders that a command line names beside its flags, `values` and --import, a file that registers a user's
    methods, which is executed. UserError: there is none, or a flag that is not defined, or with an invalid value."""
    flags.DEFINE_string('import', '', 'a Python file', flag_values=values)
    words = command_line.own_flags(values, argv, others=False)[1:]
    if not words:
        raise UserError('no run is named; give the folders of runs')
    if own := values['import'].value:
        load.run_file(file_io.check_file(own, '--import', LONGEST))
    return [file_io.expand_home(word, 'the folder') for word in words]


def trials(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders of the single runs in `folder`: those of its seeds, or itself."""
    folder = Path(folder)
    return sorted(path for path in folder.glob('seed_*') if path.is_dir()) or [folder]


def _seeds(folder: Path) -> list[int]:
    """The seeds of a run of several; [] of one, or if nothing has begun in the folder."""
    file = folder / 'config.json'
    return file_io.read_object(file).get('seeds', []) if file.exists() else []


def read_finished(folders: Sequence[Path]) -> list[Run]:
    """The finished runs in these folders, of one or several seeds each; a warning names the others. UserError: there is
    none."""
    all_ = [trial for folder in folders for trial in trials(folder)]
    for folder in folders:
        asked = {f'seed_{seed}' for seed in _seeds(folder)}
        if gone := sorted(asked - {trial.name for trial in trials(folder)}):
            warn(f'{folder} lacks {", ".join(gone)}, which its config.json names; what follows is without them')
    finished = [folder for folder in all_ if (folder / 'summary.json').exists()] or all_
    if other := [str(folder) for folder in all_ if folder not in finished]:
        warn(f'no finished run, and left out: {", ".join(other)}')
    return [read(folder) for folder in finished]


def read(folder: str | os.PathLike[str]) -> Run:
    """Reads a finished run of one seed; UserError: `folder` holds none, or several."""
    folder = Path(folder)
    try:
        config = {**keys.ADDED, **config_lib.flatten(file_io.read_object(folder / 'config.json'))}
        summary = file_io.read_object(folder / 'summary.json')
    except UserError as error:
        raise UserError(f'{folder} holds no finished run ({error}); give folders that have a summary.json') from error
    if config.get('seeds'):
        raise UserError(f'{folder} holds several seeds; give one of its folders seed_N, which runs.trials lists')
    rounds, headline = summary['rounds'], metrics.read_headline(summary)
    records = metrics.read(folder / 'metrics.jsonl')[:rounds]
    if len(records) < rounds:
        raise UserError(f'{folder / "metrics.jsonl"} has fewer than {rounds} rounds; restore it from a copy')
    settings = {key: value for key, value in config.items() if key not in config_lib.INERT | {'seed'}}
    settings['rounds'] = rounds
    trivial = summary.get('trivial_scores', {})
    return Run(folder, settings, config['seed'], headline.output, records, headline.score, trivial)


def _as_given(settings: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Settings in which what 'auto' means for the method is 'auto' again; of a method that is not registered, in which
    `runs` do not differ."""
    method = algorithms.METHODS.get(settings['algorithm'])
    if method:
        meant = config_lib.of_method(method)
    else:
        same = [run.settings for run in runs if run.settings['algorithm'] == settings['algorithm']]
        meant = {key: settings.get(key, keys.AUTO) for key in AUTO if len({one.get(key) for one in same}) == 1}
    return {key: keys.AUTO if value == meant.get(key, keys.AUTO) else value for key, value in settings.items()}


def group(runs: Sequence[Run]) -> dict[str, dict[int, Run]]:
    """Groups runs, at least one, by the settings in which those that have them differ, other than what 'auto' means for
    their methods: {label: {seed: run}} in order of first appearance. UserError: two runs of a group have the same seed.
    """
    values: dict[str, set[str]] = {}
    for run in runs:
        for key, value in _as_given(run.settings, runs).items():
            values.setdefault(key, set()).add(json.dumps(value))
    oracles = any(run.settings.get('pseudo_labels', 'method') != 'method' for run in runs)
    named = ('algorithm', 'pseudo_labels') if oracles else ()  # also where all are alike: no method by itself
    varying = [key for key in sorted(values) if len(values[key]) > 1 or key in named]
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        parts = [f'{key}={run.settings[key]}' for key in varying if key in run.settings]
        label = ', '.join(parts) or run.settings['algorithm']
        if run.seed in groups.setdefault(label, {}):
            both = f'{groups[label][run.seed].folder} and {run.folder}'
            raise UserError(f'two runs of seed {run.seed} with {label}, {both}: give one of them')
        groups[label][run.seed] = run
    return groups
