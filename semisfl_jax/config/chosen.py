"""What 'auto' means for the form of a run's programs, and 0 for the number of its devices: on this machine, or in the
folder of a run that began before.

A run keeps both: forms round differently, and devices sum in another order, so it would otherwise not end with the
bytes of an uninterrupted one. config.json has both, and in `machine_keys` the keys that the user had left to the
machine. These are not part of what identifies an experiment (`identity`): the same command on machines that differ is
the same experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax import algorithms, forms, machine
from semisfl_jax.config import keys, tuned
from semisfl_jax.errors import UserError
from semisfl_jax.forms import Form

AUTO = 'auto'
MACHINE_KEYS = 'machine_keys'
DEVICES = 'parallel.devices'
FREE = {**dict.fromkeys(forms.KEYS, AUTO), DEVICES: 0}  # what leaves a key to the machine


class Taken(NamedTuple):
    """The form of a run."""

    values: dict[str, str]  # of the keys that its programs read, among `forms.KEYS`
    by_machine: tuple[str, ...]  # which of them the user left to the machine
    why: str

    def __str__(self) -> str:
        names = ' and '.join(f'{key.partition(".")[2]} {value}' for key, value in self.values.items())
        return f'{names} ({self.why})' if names else ''


def check(flat: Mapping[str, Any]) -> None:
    """Raises UserError if `machine_keys` has anything but what a run writes there."""
    for key in flat[MACHINE_KEYS]:  # a tuple, as in configs/default.py
        if key not in FREE or flat[key] == FREE[key]:
            raise UserError(
                f'config.{MACHINE_KEYS} holds {key!r}: a run fills it in, with keys that were left to the machine; '
                'leave it out'
            )


def identity(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat configuration as the user gave it: what the machine chose is 'auto' or 0 again."""
    return {**flat, **{key: FREE[key] for key in _by_machine(flat)}}


def with_devices(config: ConfigDict, written: Mapping[str, Any] | None) -> ConfigDict:
    """A configuration with the number of devices of a run that began before, or 0 where the machine is to choose it.

    Trials of several seeds are divided anew whenever they go on, which changes none of their numbers.

    Args:
      config: unlocked, changed and returned.
      written: the flat config.json of the run; None for a new one.
    """
    if config.seeds:
        return config
    asked, began = config.parallel.devices, (written or {}).get(DEVICES)
    free = asked == 0 or DEVICES in config[MACHINE_KEYS]
    if type(began) is int and began > 0 and asked in (0, began):
        config.parallel.devices = began
        free = DEVICES in _by_machine(written or {})
    named = [key for key in config[MACHINE_KEYS] if key != DEVICES]
    config[MACHINE_KEYS] = (*named, DEVICES) if free else tuple(named)
    return config


def used(config: ConfigDict) -> tuple[str, ...]:
    """Which of `forms.KEYS` the programs of a configuration (resolved) read."""
    flat = keys.flat(config)
    method = algorithms.get(config.algorithm)
    mapped = method.clients and not method.sequential(flat) and not config.federation.client_chunk
    return tuple(forms.KEYS) if mapped else (forms.KEYS.convolution,)


def on_this_machine(config: ConfigDict) -> Taken:
    """The form that a new run of a configuration (resolved) takes on the device of `machine.device`."""
    flat = keys.flat(config)
    values = {key: flat[key] for key in used(config)}
    free = tuple(key for key, value in values.items() if value == AUTO)
    form, why = _best(config) if free else (forms.usual(), 'as configured')
    best = dict(zip(forms.KEYS, form, strict=True))
    by_machine = free or tuple(key for key in config.machine_keys if key in values)
    return Taken({key: best[key] if key in free else value for key, value in values.items()}, by_machine, why)


def _best(config: ConfigDict) -> tuple[Form, str]:
    device = machine.device()
    if choice := tuned.find(config, device):
        return choice.form, f'measured by tune on {choice.date}'
    form, source = forms.of_device(device)
    kind = device._replace(cores=0).title
    return form, f'by the table, for {kind}' if source else f'not measured on {kind}; python -m semisfl_jax.tune does'


def of_run(config: ConfigDict, written: Mapping[str, Any] | None) -> Taken:
    """The form of a run that may have begun before.

    Args:
      config: resolved.
      written: its flat config.json; None for a new run.

    Returns:
      The form in `written`, where the user leaves it to the machine or asks for the same one. Anything else is another
      experiment, for `differences` to find.
    """
    here = on_this_machine(config)
    if written is None:
        return here
    values, by_machine = dict(here.values), set(here.by_machine)
    before = dict(zip(forms.KEYS, forms.before_the_table(machine.platform()), strict=True))
    for key, value in here.values.items():
        recorded = written.get(key, AUTO)
        if recorded not in tuned.NAMES[key]:  # no run wrote this
            continue
        kept = before[key] if recorded == AUTO else recorded
        if key in here.by_machine or kept == value:
            values[key] = kept
            by_machine.discard(key)
            if recorded == AUTO or key in _by_machine(written):
                by_machine.add(key)
    if values == here.values:
        return here._replace(by_machine=_ordered(by_machine))
    new = ' and '.join(here.values.values())
    return Taken(values, _ordered(by_machine), f'as this run began; a new one would take {new}: {here.why}')


def fill(config: ConfigDict, taken: Taken) -> ConfigDict:
    """A configuration (resolved) with the form of a run, locked."""
    filled = config.copy_and_resolve_references().unlock()
    filled.update_from_flattened_dict(taken.values)
    filled[MACHINE_KEYS] = (*taken.by_machine, *(key for key in config[MACHINE_KEYS] if key not in forms.KEYS))
    return filled.lock()


def unfilled(config: ConfigDict) -> ConfigDict:
    """A configuration in which a form that the machine chose is 'auto' again, as before a run began; not locked."""
    free = config.copy_and_resolve_references().unlock()
    by_machine = [key for key in _by_machine(keys.flat(config)) if key in forms.KEYS]
    free.update_from_flattened_dict(dict.fromkeys(by_machine, AUTO))
    free[MACHINE_KEYS] = ()
    return free


def for_this_machine(config: ConfigDict) -> ConfigDict:
    """A configuration (resolved) with the form that a new run takes on this machine."""
    return fill(config, on_this_machine(config))


def _by_machine(flat: Mapping[str, Any]) -> list[str]:
    """What `machine_keys` of a flat configuration has, which may come from a file."""
    named = flat.get(MACHINE_KEYS, ())
    return [key for key in FREE if isinstance(named, list | tuple) and key in named]


def _ordered(names: set[str]) -> tuple[str, ...]:
    return tuple(key for key in forms.KEYS if key in names)
