"""Plans: a study or a sweep, merged with the command line and checked once, and the jobs that its cells need."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax.algorithms import ranges
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, describe, shorten, use_one_of
from semisfl_jax.base.keys import as_word
from semisfl_jax.lab.studies import spec, sweeps, tuned
from semisfl_jax.lab.studies.figures import FIGURES
from semisfl_jax.lab.studies.measures import KINDS, CellKey
from semisfl_jax.lab.studies.spec import Cell, Measure, Study, Table
from semisfl_jax.lab.studies.sweeps import Entry, Sweep

RUNS = 'cells'  # folder of all runs under the root of studies
HOME = (  # in reports
    'Run commands from the root of the repository, or from the folder of the files that they name. A + after a commit '
    'marks uncommitted changes.'
)
HIDDEN = frozenset({'data.data_dir', 'data.cache_dir'})  # specific to this machine, omitted from reports
# Seeds share a program if rounds are small: it compiles once, and an accelerator is better utilized. Larger models fill
# a device by themselves, and several would only multiply the memory.
TOGETHER = frozenset({'small_cnn', 'cnn', 'mlp200', 'scene_net'})
# Seeds of all cells that share a program: a killed study loses little, and several processes find something to do
TRIALS = 16

_LONGEST = 150  # bytes of a title, which is a part of the names of files


class Job(NamedTuple):
    """A run that a cell needs: all its seeds, or one of them."""

    name: str  # of its folder below RUNS
    base: str  # file in configs/ without .py, or the path of another one with it
    changes: dict[str, Any]  # flat key -> value: differences of its configuration from the base
    seeds: tuple[int, ...]
    rounds: int
    first: Job | None = None  # the run with whose encoder it starts
    program: str = ''  # as of `grid.program`; '': it has a program of its own

    @property
    def needed(self) -> list[Job]:
        """The jobs to be made for it, in their order: `first`, if there is one, and itself."""
        return [*(self.first.needed if self.first else []), self]

    @property
    def beside(self) -> int:
        """The most jobs of its program that are one process, itself among them."""
        return max(1, TRIALS // len(self.seeds))

    @property
    def title(self) -> str:
        """What announces it."""
        return self.command()

    def outcome(self, runs: Path) -> str:
        """Returns what to say when it is finished; `runs`: folder of the folders of all runs."""
        return 'done'

    def arguments(self, runs: Path) -> list[str]:
        """Returns the arguments of its command on this machine; `runs`: as in `outcome`."""
        config = self.base if is_path(self.base) else Path(sfl.configs.__path__[0], f'{self.base}.py')
        return [f'--config={config}', *self.options(root=runs)]

    def options(self, hidden: bool = True, root: str | Path = 'runs') -> list[str]:
        """Returns the options of its command.

        Args:
          hidden: with those specific to this machine.
          root: folder of the folders of all runs.
        """
        changes = self.changes | ({'model.weights': Path(root, self.first.name)} if self.first else {})
        keys = [key for key in changes if hidden or key not in HIDDEN]
        return [f'--config.{key}={as_word(changes[key])}' for key in sorted(keys)]

    def words(self) -> list[str]:
        """Returns the quoted words of the command that executes the run on any machine, from `HOME`."""
        program, file = ['launch.py'], f'configs/{self.base}.py'
        if is_path(self.base):
            program, file = ['-m', 'semisfl_jax'], self.base
        words = map(without_folders, [f'--config={file}', *self.options(hidden=False)])
        return ['python', *program, *map(_quoted, words)]

    def command(self) -> str:
        """Returns the same as a line; before it, that of the run whose encoder it needs."""
        first = f'{self.first.command()} --workdir=runs/{self.first.name} && ' if self.first else ''
        return first + ' '.join(self.words())


class CellJob(NamedTuple):
    """A run of a grid, with what a `Job` has."""

    name: str
    title: str
    words: Sequence[str]  # of its command
    rounds: int
    program: str
    first: None = None
    beside: int = sfl.grid.MOST_TOGETHER

    def outcome(self, runs: Path) -> str:
        """Returns the headline of its final message."""
        return repr(sfl.Result(sfl.runs.finished(runs / self.name, self.rounds) or {})).partition('\n')[0]

    def arguments(self, runs: Path) -> Sequence[str]:
        """Returns the arguments of its command."""
        return self.words


class Failed(NamedTuple):
    """How a run failed."""

    line: str  # its error, without 'error: '
    status: int  # of its process, as `errors.exit_status` gives it
    log: Path  # its output


class Task(NamedTuple):
    """A job that is due."""

    job: Job | CellJob
    label: str  # announces it; no other task of the plan has it
    record: Callable[[Failed | None], str]  # records that it has ended, and how if it failed; returns what to say
    should_stop: Callable[[], int] = lambda: 0  # not 0: it has had enough rounds


class Plan(NamedTuple):
    """What is to be done for a study or a sweep: merged with the command line, and checked."""

    definition: Any  # a Study, or a Sweep
    name: str  # of the folder of its report
    cells: dict[CellKey, list[Job]]  # the jobs that fill each cell of a study; {} of a sweep

    @property
    def jobs(self) -> list[Job]:
        """The jobs of all cells in their order, each once, and after that whose encoder it needs."""
        return with_needed(job for jobs in self.cells.values() for job in jobs)


def make(definition: Study | Sweep, changes: Mapping[str, Any]) -> Plan:
    """Makes the plan of a study or a sweep.

    Args:
      definition: the study or sweep.
      changes: what the command line changes, by dotted key: in all runs, or in the definition (OWN_KEYS).

    Raises:
      UserError: a mistake in the definition, in the changes, or in the configuration of a run.
    """
    own = {key: changes[key] for key in changes if key in (*spec.OWN_KEYS, *sweeps.OWN_KEYS)}
    shared = {key: changes[key] for key in changes if key not in own}
    if isinstance(definition, Sweep):
        changes = own | sfl.check_changes(shared, definition.config)
        sweep = sweeps.with_changes(definition, changes)
        _check_sweep(sweep)
        return Plan(sweep, _report_name(sweep, changes), {})
    _check_tables(definition)
    shared = sfl.check_changes(shared, next(definition.cells()).config)
    study = _merge(definition, own, shared)
    _check_cells(study)
    places = ((table, cell) for table in study.tables for cell in table.cells)
    cells = {(table.title, cell.row, cell.column): jobs_of(cell) for table, cell in places}
    return Plan(study, _report_name(study, shared), cells)


def _merge(study: Study, own: Mapping[str, Any], shared: Mapping[str, Any]) -> Study:
    """Returns the study with what the command line changes: its own keys, and those of its runs."""
    whole = study
    study = study.part(own.get('study_rows', ()), own.get('study_columns', ()))
    source, beside = own.get('study_tuned', ''), own.get('study_untuned', False)
    if beside and not source:
        raise UserError('config.study_untuned=True also needs tuned settings; write --config.study_tuned=FILE')
    if not source:
        return spec.with_changes(study, shared)
    result = tuned.read(file_io.expand_home(source, 'config.study_tuned'))
    if both := sorted(shared.keys() & {key for method in result.methods for key in method.settings}):
        raise UserError(f'config.{both[0]} is among the settings of config.study_tuned={source}; leave one of them out')
    study = spec.with_changes(tuned.apply(study, result, source, beside, whole), shared)
    tuned.check_seeds(study, result, source)
    return study


def _report_name(definition: Study | Sweep, changes: Mapping[str, Any]) -> str:
    """Returns NAME-SCALE, with a hash if keys that affect the numbers were changed.

    More trials of a sweep continue it in the same folder.
    """
    free = sfl.INERT - {'rounds'} | {'sweep_trials'}
    changes = {key: value for key, value in changes.items() if key not in free}
    mark = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:6]
    return '-'.join(filter(None, (definition.name, definition.scale, mark if changes else '')))


# --- jobs


def jobs_of(cell: Cell) -> list[Job]:
    """Lists the jobs of a cell."""
    seeds = tuple(cell.config.seeds) or (cell.config.seed,)
    return [job(cell, each) for each in ([seeds] if _together(cell.config) else [(seed,) for seed in seeds])]


def _together(config: ConfigDict) -> bool:
    """Returns whether runs share a program."""
    return config.model.name in TOGETHER or config.parallel.devices != 1


def with_needed(jobs: Iterable[Job]) -> list[Job]:
    """Lists jobs, each once, and after that whose encoder it needs."""
    return list({each.name: each for job in jobs for each in job.needed}.values())


def job(cell: Cell, seeds: tuple[int, ...]) -> Job:
    """Makes the job of some seeds of a cell, in one program."""
    single = len(seeds) == 1
    seed_values = {'seed': seeds[0], 'seeds': ()} if single else {'seed': 0, 'seeds': seeds}
    config = cell.config.copy_and_resolve_references().unlock()
    config.update(seed_values)
    first = job(cell.encoder, seeds) if cell.encoder else None
    resolved = sfl.resolve(config)
    identity = f'{sfl.identity_hash(resolved)} {config.rounds}'
    identity += f' {first.name}' if first else ''
    changes = {key: value for key, value in cell.changes.items() if key not in seed_values}
    changes |= {'seed': seeds[0]} if single else {'seeds': seeds}
    if not single and config.parallel.devices == 1 and 'parallel.devices' not in changes:
        changes['parallel.devices'] = 0  # as many as fit, which changes no number of several seeds
    name = f'{Path(cell.base).stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}'
    program = sfl.grid.program(resolved) if _together(config) and not first else ''
    return Job(name, cell.base, changes, seeds, config.rounds, first, program)


def trial_job(sweep: Sweep, entry: Entry, values: Mapping[str, Any]) -> Job:
    """Makes the job of a trial of a method from its values by searched key, with all tuning seeds in one program."""
    config, unchanged = sweeps.trial_config(sweep, entry, values), sfl.get_config(sweep.base)
    return job(spec.cell(entry.title, '', sweep.base, config, unchanged), sweep.seeds)


def command(jobs: Sequence[Job]) -> str:
    """Returns the command that executes the jobs of a cell; jobs that differ only in their seeds become a loop."""
    if len(jobs) < 2 or jobs[0].first:
        return '; '.join(job.command() for job in jobs)
    seeds = ' '.join(str(seed) for job in jobs for seed in job.seeds)
    words = [word for word in jobs[0].words() if not word.startswith('--config.seed=')]
    return f'for seed in {seeds}; do {" ".join(words)} --config.seed=$seed; done'


def is_path(base: str) -> bool:
    """Returns whether a base configuration is the path of a user's file, not the name of one in configs/."""
    return base.endswith('.py')


def without_folders(text: str) -> str:
    """Returns a text as reports show it: of absolute paths the last part alone."""
    return re.sub(r"""(?<![\w.~/])~?/(?:[^\s/'"=,;:()]+/)+""", '', text)


def _quoted(word: str) -> str:
    """Quotes a word for a shell: within double quotes, if it has only single ones."""
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)


# --- checks


def _check_tables(study: Study) -> None:
    """Raises UserError for the first mistake in the tables of a study."""
    titles = [table.title for table in study.tables]
    words = (word for table in study.tables for word in (table.title, table.row_name, *table.rows, *table.columns))
    _check_words((study.name, study.scale), (study.title, *words))
    for table in study.tables:
        if fault := _fault(table) or ('another table has the same title' if titles.count(table.title) > 1 else ''):
            raise UserError(f'{study.name}:{study.scale}, {table.title}: {fault}')


def _fault(table: Table) -> str:
    """Returns what is wrong with a table, '' if nothing."""
    places = [(cell.row, cell.column) for cell in table.cells]
    if twice := [place for place in places if places.count(place) > 1]:
        return f'it has two cells at {" / ".join(twice[0])}; give each a row or column of its own'
    if table.reference and table.reference not in table.rows:
        return f'its reference {table.reference!r} is not a row; {use_one_of(table.reference, table.rows)}'
    if unknown := [name for name in table.figures if name not in FIGURES]:
        return f'its figure {unknown[0]!r} is unknown; {use_one_of(unknown[0], FIGURES)}'
    for cell in table.cells:
        place = f'{cell.row} / {cell.column}'
        if not isinstance(cell.measure, Measure):
            return f'{place} measures {describe(cell.measure)}; write spec.Measure(KIND), or spec.LATE_ACCURACY'
        kind, _, row, _ = cell.measure
        if kind not in KINDS:
            return f'{place} measures {kind!r}, which is unknown; {use_one_of(kind, KINDS)}'
        if row and table.at(row, cell.column) is None:
            return f'{place} is a gain over {row!r}, which has no cell in that column; add it'
    return ''


def _check_words(names: Sequence[str], texts: Iterable[str]) -> None:
    """Raises UserError for the first name that no folder can have, and the first text that cannot be drawn."""
    from matplotlib import cbook, mathtext

    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r'\w[\w.-]{0,99}', name, re.ASCII):
            raise UserError(f"{name!r} cannot be the name of a folder; use up to 100 letters, digits, '_', '-' and '.'")
    for text in texts:
        what = f'the title or name {shorten(repr(text))} of {names[0]}'
        if not isinstance(text, str) or not text.strip() or not text.isprintable():
            raise UserError(f'{what} must be a single line of text')
        if len(text.encode()) > _LONGEST:
            raise UserError(f'{what} has {len(text.encode()):,} bytes; use at most {_LONGEST}')
        try:
            if cbook.is_math_text(text):
                mathtext.MathTextParser('path').parse(text)
        except ValueError as error:
            raise UserError(f'{what} has a formula that Matplotlib cannot draw; write \\$ for a dollar') from error


def _check_cells(study: Study) -> None:
    """Raises UserError for the first mistake in the configuration of a cell."""
    bases: dict[str, ConfigDict] = {}
    for cell in study.cells():
        try:
            for one in (cell, cell.encoder) if cell.encoder else (cell,):
                bases[one.base] = bases.get(one.base) or sfl.get_config(one.base)
                sfl.check(one.config)
                _check_command(one, bases[one.base])
            if cell.config.pseudo_labels == 'true' and 'oracle' not in f'{cell.row} {cell.column}'.lower():
                raise UserError(f"config.pseudo_labels='true' is an oracle; name its row so: '{cell.row} (oracle)'")
            if (split := cell.config.data.eval_split) != 'test':
                raise UserError(f"config.data.eval_split='{split}': studies report test scores; use 'test'")
        except UserError as error:
            raise UserError(f'{study.name}:{study.scale}, {cell.row} / {cell.column}: {error}') from error


def _check_command(cell: Cell, base: ConfigDict) -> None:
    """Raises UserError if the command of a cell, with its base configuration, does not give its configuration."""
    config = base.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict(dict(cell.changes))
    sfl.apply_setting(config, given=cell.changes)
    flat = sfl.flat(cell.config)
    for key, value in sfl.flat(config).items():
        if key != 'official_keys' and value != flat.get(key, value):
            wrong = f'its command, of {cell.base!r} and its changes, has config.{key}={value!r}, not {flat[key]!r}'
            raise UserError(f'{wrong}; give spec.cell what get_config() of that file returns, and a changed copy of it')


def _check_sweep(sweep: Sweep) -> None:
    """Raises UserError for the first mistake in a sweep, or in the configuration of one of its methods."""
    named = f'{sweep.name}:{sweep.scale}'.rstrip(':')
    if sweep.trials < 1:
        raise UserError(f'config.sweep_trials={sweep.trials}: use 1 (untuned) or more')
    if sweep.batch < 1:
        raise UserError(f'config.sweep_batch={sweep.batch}: use 1 or more; more than 1 begins several trials at once')
    if not sweep.seeds:
        raise UserError(f'{named} has no tuning seeds; write --config.seeds=100,101')
    if (split := sweep.config.data.eval_split) != 'validation':
        raise UserError(f"config.data.eval_split='{split}': a sweep needs 'validation', with data.num_validation")
    titles = [entry.title for entry in sweep.entries]
    _check_words((sweep.name, sweep.scale or sweep.name), (sweep.title, *titles))
    if twice := [title for title in titles if titles.count(title) > 1]:
        raise UserError(f"{named} has two methods called '{twice[0]}'; give each its own title")
    for entry in sweep.entries:
        try:
            _check_entry(sweep, entry)
        except UserError as error:
            raise UserError(f'{named}, {entry.title}: {error}') from error


def _check_entry(sweep: Sweep, entry: Entry) -> None:
    """Raises UserError for a mistake in a method's ranges, or in its configuration within them."""
    method, config = entry.fixed['algorithm'], sweeps.trial_config(sweep, entry, {})
    if not entry.ranges:
        raise UserError(f'{method} has no ranges to search; add some to its record (Method.ranges) or to the sweep')
    sfl.check(config)
    flat, unread = sfl.flat(config), sfl.unread_keys(config)
    for key, range_ in entry.ranges.items():
        if key not in flat or key in unread:
            raise UserError(f'it searches config.{key}, which {method} does not read here; remove the range')
        if fault := ranges.fault(key, range_, {}, flat):
            raise UserError(f'it searches config.{key}: {fault}')
        if flat[key] not in range_:
            raise UserError(f'config.{key}={flat[key]}, of the first trial, must be in the range, {range_.text}')
    start = sweeps.untuned(sweep, entry)
    for key, range_ in entry.ranges.items():
        for end in range_.ends:
            sfl.check(sweeps.trial_config(sweep, entry, {**start, key: end}))
