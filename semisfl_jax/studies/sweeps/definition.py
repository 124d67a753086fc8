"""What a sweep was defined as when it began, in its folder: later trials must be of the same search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semisfl_jax import config as config_lib
from semisfl_jax.config import keys
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, shorten
from semisfl_jax.studies import tuned
from semisfl_jax.studies.sweeps import plan
from semisfl_jax.studies.sweeps.spec import Sweep

NAME = tuned.SWEEP
FORMAT = 1
_SHOWN = 3


def keep(folder: Path, sweep: Sweep) -> None:
    """Writes the definition into the folder of a new sweep, or compares it with that of an earlier start.

    The number of trials is not part of it: more trials continue the search.

    Raises:
      UserError: the folder belongs to another search, or its definition cannot be read.
    """
    file, content = folder / NAME, {'format': FORMAT, **_content(sweep)}
    if not file.exists():
        if (folder / 'optuna.journal').exists():
            raise UserError(f'{folder} has trials but no {NAME}; restore it from a copy, or choose another --workdir')
        file_io.write_json(file, content)
        return
    old, new = config_lib.flatten(_completed(file)), config_lib.flatten(content)
    differing = [
        f'{key}: {shorten(old.get(key, "(absent)"))} -> {shorten(new.get(key, "(absent)"))}'
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differing:
        more = f' and {len(differing) - _SHOWN} more' if len(differing) > _SHOWN else ''
        raise UserError(
            f'{folder} belongs to another search ({"; ".join(differing[:_SHOWN])}{more}); choose another --workdir, or '
            'remove that folder: the runs, which other searches may need, are not in it'
        )


def _completed(file: Path) -> dict[str, Any]:
    """The content of a file, with the keys of configurations that it is too old to have."""
    advice = 'restore it from a copy, or choose another --workdir'
    try:
        content = file_io.read_object(file)
    except UserError as error:
        raise UserError(f'{error}; {advice}') from error
    methods = content.get('methods')
    if not isinstance(methods, dict) or not all(isinstance(entry, dict) for entry in methods.values()):
        raise UserError(f'{file} was not written by a sweep; {advice}')
    for entry in methods.values():
        entry['settings'] = keys.completed(entry.get('settings', {}))
    return content


def _content(sweep: Sweep) -> dict[str, Any]:
    methods = {}
    for entry in sweep.entries:
        config = config_lib.resolve(plan.trial_config(sweep, entry, plan.untuned(sweep, entry)))
        settings = config_lib.flatten(config)
        methods[entry.title] = {
            'ranges': {key: range_.text for key, range_ in entry.ranges.items()},
            'settings': {key: value for key, value in settings.items() if key not in config_lib.INERT - {'rounds'}},
        }
    return {'seeds': list(sweep.seeds), 'seed': sweep.seed, 'prune': sweep.prune, 'methods': methods}
