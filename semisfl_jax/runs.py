"""Finished runs as one table, and as runs: read from their folders, grouped by the settings in which they differ."""

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from semisfl_jax import algorithms, data
from semisfl_jax import config as config_lib
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, count, shorten, warn
from semisfl_jax.config import keys, schema
from semisfl_jax.core.types import MODELS
from semisfl_jax.costs import GIB
from semisfl_jax.tasks import ACCURACY, Score, score_key, split_key
from semisfl_jax.training import checks, metrics, outputs
from semisfl_jax.training import load as training_load
from semisfl_jax.training.outputs import busy, check_name, finished  # noqa: F401

COLUMNS = ('job', 'seed', 'round', 'key', 'value', 'unit')
UNITS = {'bytes_up': 'bytes', 'bytes_down': 'bytes', 'simulated_seconds': 's', 'wall_seconds': 's'}
# Name of an x axis -> (keys of a line of metrics.jsonl, their value on the axis)
AXES: dict[str, tuple[tuple[str, ...], Callable[..., float]]] = {
    'round': (('round',), lambda number: number),
    'gigabytes': (('bytes_up', 'bytes_down'), lambda up, down: (up + down) / GIB),
    'minutes': (('simulated_seconds',), lambda seconds: seconds / 60.0),
}
AUTO = tuple(algorithms.get('semisfl').auto)  # keys whose 'auto' depends on the method


class Run(NamedTuple):
    """One finished run of one seed."""

    folder: Path
    settings: dict[str, Any]  # flat configuration with `rounds`, without INERT keys and seed
    seed: int
    headline: str  # the output that judges the method: a model or a dense task, one of `tasks.OUTPUTS`
    table: Any  # pandas.DataFrame, its rows of what `read` returns
    score: Score = ACCURACY  # judges the run
    trivial_scores: Mapping[str, Mapping[str, float | None]] = MappingProxyType({})  # as in summary.json
    began: Mapping[str, Any] = MappingProxyType({})  # began.json, {} if there is none
    stopped_early: str = ''  # why callbacks ended it before its last round, '' if they did not

    @property
    def eval_split(self) -> str:
        """The images behind the scores: 'test' or 'validation'."""
        return self.settings.get('data.eval_split', 'test')

    @property
    def class_names(self) -> Sequence[str]:
        """Names [K] of the classes in the order of their numbers; () if there are none, or they are not known."""
        return self.began.get('images', {}).get('outline', {}).get('class_names', ())

    @property
    def key(self) -> str:
        """The headline's score in the lines of metrics.jsonl."""
        return score_key(self.headline, self.score.name)

    @property
    def judged_by(self) -> str:
        """The name that runs with comparable scores share: a task's score, or accuracy, of whichever model."""
        return self.score.name if self.headline in MODELS else self.key

    def trivial(self, name: str) -> 'Run':
        """Returns the run as if all evaluations had been of a trivial prediction, one of `tasks.TRIVIAL_NAMES`."""
        scores, evaluated = self.trivial_scores.get(name, {}), self.table['round'][self.table['key'] == self.key]
        return self._replace(table=rows({'round': number, **scores} for number in evaluated))

    def curve(self, key: str) -> dict[int, float]:
        """Returns the values of a key of metrics.jsonl by round, without those that are null."""
        if key == 'round':
            return {number: number for number in self.table['round']}
        values = self.table[self.table['key'] == key].dropna(subset='value')
        return dict(zip(values['round'], values['value'], strict=True))

    def axis(self, x: str) -> dict[int, float]:
        """Returns the places on an axis, one of AXES, by round; only rounds that have all its keys."""
        keys, place = AXES[x]
        curves = [self.curve(key) for key in keys]
        rounds = sorted(set.intersection(*map(set, curves)))
        return {number: place(*(curve[number] for curve in curves)) for number in rounds}


def rows(records: Iterable[Mapping[str, Any]], job: str = '', seed: int = 0) -> Any:
    """Makes the rows of a run in the table of `read`.

    Args:
      records: lines of metrics.jsonl.
      job: folder of the run.
      seed: its seed.

    Returns:
      pandas.DataFrame with COLUMNS.
    """
    import pandas as pd

    skipped = {'round', *checks.MARKS}
    values = ((line['round'], key, value) for line in records for key, value in metrics.numbers(line).items())
    lines = [each for each in values if each[1] not in skipped]
    table = pd.DataFrame(lines, columns=['round', 'key', 'value']).astype({'value': float})
    units = {key: unit(key) for key in table['key'].unique()}
    return table.assign(job=job, seed=seed, unit=table['key'].map(units))[list(COLUMNS)]


def unit(key: str) -> str:
    """Returns the unit of a key of metrics.jsonl: 'share', 'bytes', 's', or '' if it has none."""
    judged = split_key(key)
    return 'share' if judged and judged.score.percent else UNITS.get(key, '')


def read(folders: Iterable[str | os.PathLike[str]]) -> Any:
    """Reads finished runs into one table: a row for every number that a run wrote in a round.

    A warning names unfinished runs, which are left out.

    Args:
      folders: folders of runs, of one or several seeds each, or above them.

    Returns:
      pandas.DataFrame with the columns `job` (folder of the run), `seed`, `round`, `key` (as in metrics.jsonl), `value`
      (NaN for null) and `unit` ('share', 'bytes', 's', or '').

    Raises:
      UserError: there is no finished run, or its files were modified.
    """
    import pandas as pd

    return pd.concat([run.table for run in read_finished([Path(folder) for folder in folders])], ignore_index=True)


def trials(folder: str | os.PathLike[str]) -> list[Path]:
    """Lists the folders of single runs in `folder`: those of its seeds, or itself."""
    folder = Path(folder)
    return sorted(path for path in folder.glob('seed_*') if path.is_dir()) or [folder]


def find(folder: str | os.PathLike[str]) -> list[Path]:
    """Lists the folders of runs, of one or several seeds each: `folder`, if it is one, or those anywhere below it."""
    found = []
    for path, below, files in os.walk(folder):
        if 'config.json' in files:
            found.append(Path(path))
            below.clear()
    return sorted(found) or [Path(folder)]


def records(folder: Path) -> metrics.Records:
    """Reads the lines of metrics.jsonl of a run of one seed, which need not have ended; [] if there are none."""
    return metrics.read(folder / 'metrics.jsonl')


def check_inputs(folders: Iterable[Path]) -> None:
    """Checks that the inputs of finished runs are those that they began with; see `outputs.check_inputs`.

    Args:
      folders: folders of runs, of one or several seeds each.

    Raises:
      UserError: an input or a setting differs.
    """
    checksum_of = functools.cache(data.checksum_of)
    for homes in map(trials, folders):
        config = training_load.config(homes[0])
        outputs.check_inputs(homes, config, checksum_of)


def lacking(folder: Path) -> list[str]:
    """Lists the folders of seeds that a run of several began, and that are gone.

    Raises:
      UserError: its config.json cannot be read.
    """
    file = folder / 'config.json'
    seeds = file_io.read_object(file).get('seeds', []) if file.exists() else []
    if not isinstance(seeds, list):
        raise UserError(f'{file} has seeds={shorten(seeds)}, which is not a list; restore it from a copy')
    return sorted({f'seed_{seed}' for seed in seeds} - {trial.name for trial in trials(folder)})


def read_finished(folders: Sequence[Path]) -> list[Run]:
    """Reads the finished runs that are in these folders, or below them.

    Warnings name unfinished runs, which are left out, and those that stopped early.

    Raises:
      UserError: there is none.
    """
    folders = [found for folder in folders for found in find(folder)]
    all_ = [trial for folder in folders for trial in trials(folder)]
    for folder in folders:
        if gone := lacking(folder):
            warn(f'{folder} lacks {", ".join(gone)}, which its config.json names; they are left out')
    ended = [folder for folder in all_ if (folder / 'summary.json').exists()] or all_
    if other := [str(folder) for folder in all_ if folder not in ended]:
        warn(f'left out because they hold no finished run: {", ".join(other)}')
    runs = [read_run(folder) for folder in ended]
    for run in runs:
        if run.stopped_early:
            warn(f'{run.folder} stopped early, after {count(max(run.table["round"]), "round")}: {run.stopped_early}')
    return runs


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Reads a finished run of one seed.

    Raises:
      UserError: `folder` holds none, or several seeds, or its files were modified.
    """
    folder = Path(folder)
    config, summary = read_ends(folder)
    if config.get('seeds'):
        raise UserError(f'{folder} holds several seeds; give one of its folders seed_N, which runs.trials lists')
    rounds, headline = summary['rounds'], metrics.read_headline(summary)
    # Only the rounds of the summary: a run that is being extended has more
    records = metrics.check_rounds(folder / 'metrics.jsonl', rounds, summary.get('metrics_sha256'))
    settings = {key: value for key, value in config.items() if key not in config_lib.INERT | {'seed'}}
    settings['rounds'] = config['rounds'] if 'stopped_early' in summary else rounds  # one that has grown has more
    trivial = summary.get('trivial_scores', {})
    began = outputs.read_began(folder) if (folder / outputs.BEGAN).exists() else {}
    seed = config['seed']
    job = str(folder.parent if folder.name == f'seed_{seed}' else folder)
    table, stopped = rows(records, job, seed), summary.get('stopped_early', '')
    return Run(folder, settings, seed, headline.output, table, headline.score, trivial, began, stopped)


# Keys that name each input of a run; the first has the value '' if the run read none
_READ = {
    'data': ('data.name', 'data.image_folder', 'data.image_size', 'data.fake'),
    'model.weights': ('model.weights',),
    'partition': ('data.partition_file',),
}


def changed(runs: Sequence[Run]) -> list[str]:
    """Lists inputs that had other contents under the same names when some of the runs began.

    They are 'data', 'model.weights' and 'partition', by their checksums in `Run.began`.
    """
    checksums: dict[str, dict[tuple, set[str]]] = {what: {} for what in _READ}
    for run in runs:
        for what in _READ.keys() & run.began.keys():
            if (names := tuple(run.settings.get(key) for key in _READ[what]))[0]:
                checksums[what].setdefault(names, set()).add(run.began[what])
    return [what for what, by_names in checksums.items() if any(len(contents) > 1 for contents in by_names.values())]


def read_ends(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads what a finished run, of one seed or several, began and ended with.

    Returns:
      Its flat configuration, and the content of its summary.json, which vouches for the configuration.

    Raises:
      UserError: there is none, or one of the files was modified.
    """
    try:
        config, summary = (file_io.read_object(folder / name) for name in ('config.json', 'summary.json'))
    except UserError as error:
        raise UserError(f'{folder} holds no finished run ({error}); give folders that have a summary.json') from error
    if not file_io.is_sealed(summary):
        again = 'restore it from a copy, or repeat the command of the run, which writes it again'
        raise UserError(f'{folder}/summary.json was modified after the run wrote it; {again}')
    made_with = config_lib.identity_hash(config)
    if summary.get('config_hash', made_with) != made_with:
        what = 'was modified after the run wrote it, or is of another run than the summary.json beside it'
        raise UserError(f'{folder}/config.json {what}; restore it from a copy')
    return {**keys.added(), **config_lib.flatten(config)}, summary


def _restore_auto(settings: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Restores 'auto' where a value is what it means for the method or, if none is registered, where `runs` agree."""
    method = algorithms.METHODS.get(settings['algorithm'])
    if method:
        meant = method.auto
    else:
        same = [run.settings for run in runs if run.settings['algorithm'] == settings['algorithm']]
        meant = {key: settings.get(key, schema.AUTO) for key in AUTO if len({one.get(key) for one in same}) == 1}
    return {key: schema.AUTO if value == meant.get(key, schema.AUTO) else value for key, value in settings.items()}


def group(runs: Sequence[Run]) -> dict[str, dict[int, Run]]:
    """Groups runs, at least one, by the settings in which they differ.

    Only runs that have a setting are compared by it, and values that 'auto' means for their methods count as 'auto'.
    Checksums of inputs that are `changed` separate runs, too.

    Returns:
      {label: {seed: run}} in order of first appearance.

    Raises:
      UserError: two runs of a group have the same seed.
    """
    values: dict[str, set[str]] = {}
    for run in runs:
        for key, value in _restore_auto(run.settings, runs).items():
            values.setdefault(key, set()).add(json.dumps(value))
    oracles = any(run.settings.get('pseudo_labels', 'method') != 'method' for run in runs)
    named = ('algorithm', 'pseudo_labels') if oracles else ()  # even if all are alike: none is the method itself
    varying = [key for key in sorted(values) if len(values[key]) > 1 or key in named]
    unlike, groups = changed(runs), dict[str, dict[int, Run]]()
    for run in runs:
        parts = [f'{key}={run.settings[key]}' for key in varying if key in run.settings]
        parts += [f'checksum of {what}={run.began.get(what, "unknown")[:12]}' for what in unlike]
        label = ', '.join(parts) or run.settings['algorithm']
        if run.seed in groups.setdefault(label, {}):
            both = f'{groups[label][run.seed].folder} and {run.folder}'
            raise UserError(f'two runs of seed {run.seed} with {label}, {both}: give one of them')
        groups[label][run.seed] = run
    return groups
