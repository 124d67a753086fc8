"""Derives the runs to be executed from the cells of a study."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.config import keys
from semisfl_jax.core.errors import UserError
from semisfl_jax.studies.spec import Cell, Study

if TYPE_CHECKING:
    from semisfl_jax.studies.sweeps import Sweep

RUNS = 'cells'  # folder of all runs under the root of studies
HOME = 'Commands run from the root of the repository, or the folder with the files that they name; '  # of reports
HIDDEN = frozenset({'data.data_dir', 'data.cache_dir'})  # specific to this machine, omitted from reports
# Seeds share a program if rounds are small: it compiles once, and an accelerator is better utilized. Larger models fill
# a device by themselves, and several would only multiply the memory.
TOGETHER = frozenset({'small_cnn', 'cnn', 'mlp200', 'scene_net'})


class Job(NamedTuple):
    """A run that a cell needs: all its seeds, or one of them."""

    name: str  # of its folder below RUNS
    base: str  # file in configs/ without .py, or the path of another one with it
    changes: dict[str, Any]  # flat key -> value: differences of its configuration from the base
    seeds: tuple[int, ...]
    rounds: int
    first: Job | None = None  # the run with whose encoder it starts

    @property
    def needed(self) -> list[Job]:
        """The runs to be made for it, in their order: `first`, if there is one, and itself."""
        return [*(self.first.needed if self.first else []), self]

    def options(self, hidden: bool = True, root: str | Path = 'runs') -> list[str]:
        """The options of its command; without `hidden`, those specific to this machine are left out. `root` is the
        folder of the folders of all runs."""
        changes = self.changes | ({'model.weights': Path(root, self.first.name)} if self.first else {})
        keys = [key for key in changes if hidden or key not in HIDDEN]
        return [f'--config.{key}={_word(changes[key])}' for key in sorted(keys)]

    def words(self) -> list[str]:
        """The quoted words of the command that executes the run on any machine, from `HOME`."""
        program, file = ['launch.py'], f'configs/{self.base}.py'
        if is_path(self.base):
            program, file = ['-m', 'semisfl_jax'], self.base
        return ['python', *program, *map(_quoted, [f'--config={file}', *self.options(hidden=False)])]

    def command(self) -> str:
        """The same as a line; before it, that of the run whose encoder it needs."""
        first = f'{self.first.command()} --workdir=runs/{self.first.name} && ' if self.first else ''
        return first + ' '.join(self.words())


def is_path(base: str) -> bool:
    """Whether a base configuration is the path of a user's file, rather than the name of one in configs/."""
    return base.endswith('.py')


def with_given(study: Study, given: Mapping[str, Any]) -> Study:
    """The study with flat keys of the command line changed in all its runs; UserError: cells differ in a given key, or
    a method does not have the given setting."""
    cells = [each for cell in study.cells() for each in (cell, cell.encoder) if each]
    for key in given:
        values = sorted({json.dumps(keys.flat(cell.config)[key]) for cell in cells})
        if len(values) > 1:
            differing = f'is not the same in all runs of {study.name}:{study.scale} ({", ".join(values)})'
            raise UserError(f'config.{key} {differing}; omit it')
        if key == 'seed':
            raise UserError(f'config.{key} cannot be changed in a study; write --config.seeds=0,1,2')
    tables = (
        dataclasses.replace(table, cells=tuple(changed(cell, given, given.keys()) for cell in table.cells))
        for table in study.tables
    )
    return dataclasses.replace(study, tables=tuple(tables)) if given else study


def changed(cell: Cell, values: Mapping[str, Any], given: Collection[str] = ()) -> Cell:
    """A cell with flat keys changed; those that are `given` by the user stay in its command in any case."""
    config = cell.config.copy_and_resolve_references().unlock()
    old = keys.flat(config)
    config.update_from_flattened_dict(dict(values))
    if given:
        config_lib.apply_setting(config, given=given)
    changes = {
        key: value
        for key, value in keys.flat(config).items()
        if (value != old[key] or key in cell.changes or key in given) and key != 'official_keys'
    }
    encoder = cell.encoder and changed(cell.encoder, values, given)
    return dataclasses.replace(cell, config=config.lock(), changes=changes, encoder=encoder)


def jobs_of(cell: Cell) -> list[Job]:
    """The runs of a cell."""
    seeds = tuple(cell.config.seeds) or (cell.config.seed,)
    together = cell.config.model.name in TOGETHER or cell.config.parallel.devices != 1
    return [job(cell, job_seeds) for job_seeds in ([seeds] if together else [(seed,) for seed in seeds])]


def job(cell: Cell, seeds: tuple[int, ...]) -> Job:
    """The run of some seeds of a cell, in one program."""
    single = len(seeds) == 1
    seed_values = {'seed': seeds[0], 'seeds': ()} if single else {'seed': 0, 'seeds': seeds}
    config = cell.config.copy_and_resolve_references().unlock()
    config.update(seed_values)
    first = job(cell.encoder, seeds) if cell.encoder else None
    identity = f'{config_lib.identity_hash(config_lib.resolve(config))} {config.rounds}'
    identity += f' {first.name}' if first else ''
    changes = {key: value for key, value in cell.changes.items() if key not in seed_values}
    changes |= {'seed': seeds[0]} if single else {'seeds': seeds}
    if not single and config.parallel.devices == 1 and 'parallel.devices' not in changes:
        changes['parallel.devices'] = 0  # as many as fit, which changes no number of several seeds
    name = f'{Path(cell.base).stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}'
    return Job(name, cell.base, changes, seeds, config.rounds, first)


def jobs(study: Study) -> list[Job]:
    """The runs of all cells in their order, each once, and after those whose encoders they need."""
    return list({each.name: each for cell in study.cells() for job in jobs_of(cell) for each in job.needed}.values())


def command(jobs: Sequence[Job]) -> str:
    """The command that executes the runs of a cell; runs that differ only in their seeds become a loop."""
    if len(jobs) < 2 or jobs[0].first:
        return '; '.join(job.command() for job in jobs)
    seeds = ' '.join(str(seed) for job in jobs for seed in job.seeds)
    words = [word for word in jobs[0].words() if not word.startswith('--config.seed=')]
    return f'for seed in {seeds}; do {" ".join(words)} --config.seed=$seed; done'


def check(study: Study) -> None:
    """Raises UserError for the first mistake in the configuration of a cell."""
    bases: dict[str, ConfigDict] = {}
    for cell in study.cells():
        try:
            for one in (cell, cell.encoder) if cell.encoder else (cell,):
                bases[one.base] = bases.get(one.base) or config_lib.get_config(one.base)
                config_lib.check(one.config)
                _check_command(one, bases[one.base])
            if cell.config.pseudo_labels == 'true' and 'oracle' not in f'{cell.row} {cell.column}'.lower():
                raise UserError(f"config.pseudo_labels='true' is an oracle; name its row so: '{cell.row} (oracle)'")
            if (split := cell.config.data.eval_split) != 'test':
                raise UserError(f"config.data.eval_split='{split}': studies are of test scores; use 'test'")
        except UserError as error:
            raise UserError(f'{study.name}:{study.scale}, {cell.row} / {cell.column}: {error}') from error


def _check_command(cell: Cell, base: ConfigDict) -> None:
    """Raises UserError if the command of a cell does not give its configuration; `base`: that of `cell.base`."""
    config = base.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict(dict(cell.changes))
    config_lib.apply_setting(config, given=cell.changes)
    flat = keys.flat(cell.config)
    for key, value in keys.flat(config).items():
        if key != 'official_keys' and value != flat.get(key, value):
            wrong = f'its command, of {cell.base!r} and its changes, has config.{key}={value!r}, not {flat[key]!r}'
            raise UserError(f'{wrong}; give spec.cell what get_config() of that file returns, and a changed copy of it')


def report_name(definition: Study | Sweep, given: Mapping[str, Any]) -> str:
    """Folder of the report below the root: NAME-SCALE, with a hash if keys that affect the numbers were changed. More
    trials of a sweep continue it in the same folder."""
    free = config_lib.INERT - {'rounds'} | {'sweep_trials'}
    changed = {key: value for key, value in given.items() if key not in free}
    mark = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return '-'.join(filter(None, (definition.name, definition.scale, mark if changed else '')))


def _word(value: Any) -> str:
    """A value as written on the command line: 0,1,2 or 'semseg','edges' or ()."""
    return ','.join(map(repr, value)) or '()' if isinstance(value, tuple) else str(value)


def _quoted(word: str) -> str:
    """A word of a command as a shell takes it: within double quotes, if it has only single ones."""
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)
