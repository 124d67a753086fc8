"""Loads a run from its folder: its experiment, rebuilt, and its state. The folder is not modified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from semisfl_jax import algorithms, data, models
from semisfl_jax.config import keys
from semisfl_jax.core import file_io, frequency
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import checkpoint
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.experiment import Experiment


def config(folder: Path) -> ConfigDict:
    """The configuration of the run in `folder`, with the defaults of keys that are younger than the run.

    Raises:
      UserError: there is none, or it cannot be read.
    """
    try:
        read = ConfigDict(file_io.read_object(folder / 'config.json'))
    except (UserError, ValueError) as error:  # ValueError: an invalid ConfigDict key
        raise UserError(f'{folder} holds no run: {error}') from error
    for key, value in keys.ADDED.items():
        group, _, name = key.rpartition('.')
        part = read.get(group) if group else read
        if isinstance(part, ConfigDict) and name not in part:
            part[name] = value
    return read


def experiment(folder: Path) -> Experiment:
    """The experiment of one trial, for this process and one device, with its client images on the host.

    Args:
      folder: of a run of one seed.

    Raises:
      UserError: no run, one of several seeds or of another version of this package, its method or model is a user's
        that no import has registered, or its data are missing.
    """
    run_config = config(folder)
    if run_config.get('seeds'):
        raise UserError(f'{folder} holds several seeds; give one of its folders seed_N')
    with _of_this_version(folder):
        for what, name, known in (
            ('method', run_config.algorithm, algorithms.METHODS),
            ('model', run_config.model.name, models.EVERY_ARCHITECTURE),
        ):
            if name not in known:
                raise UserError(
                    f"{folder} has the {what} '{name}', which is not registered here; if it is yours, call this from a "
                    'program that imports it (for plots: --import=FILE)'
                )
        run_config.parallel.update(devices=1, coordinator='', num_processes=1, process_id=0)
        run_config.data.residency = 'host'
        return experiment_lib.build(run_config)


def dataset(folder: Path) -> data.Dataset:
    """The data of the run in `folder`, of one seed or several.

    Raises:
      UserError: no run, one of another version of this package, or its data are missing.
    """
    run_config = config(folder)
    with _of_this_version(folder):
        return data.load(run_config.data)


@contextmanager
def _of_this_version(folder: Path) -> Iterator[None]:
    """Context for reading the configuration of a run, which may lack keys or have values that this version rejects."""
    try:
        yield
    except (AttributeError, KeyError) as error:
        if 'object has no attribute' in str(error):  # a value in place of a group of keys
            raise UserError(f'{folder}/config.json has a value that this version does not accept ({error})') from error
        raise UserError(f'{folder} was made by another version of this package, which had no {error}') from error
    except (TypeError, ValueError) as error:
        raise UserError(f'{folder}/config.json has a value that this version does not accept ({error})') from error


def state(folder: Path, built: Experiment, round_number: int | None = None) -> tuple[int, Any]:
    """The state after a saved round, by default the last one; round 0 is the initial state.

    Args:
      folder: of a run of one seed.
      built: its experiment.
      round_number: 0, one of `checkpoint.rounds_saved`, or None.

    Returns:
      The round, and the state.

    Raises:
      UserError: no such checkpoint, or an unreadable one.
    """
    if round_number == 0:
        return 0, jax.jit(built.algorithm.init)(built.key)
    saved = checkpoint.rounds_saved(folder / 'checkpoints')
    number = saved[-1] if saved and round_number is None else round_number
    if number not in saved:
        available = f'it has those of rounds {", ".join(map(str, saved))}' if saved else 'it has none'
        raise UserError(f'{folder} has no checkpoint of round {number or "1 or later"}: {available}')
    template = {
        'algorithm': jax.eval_shape(built.algorithm.init, built.key),
        'frequency': frequency.init(built.config.k_s, built.frequency),
    }
    identity = experiment_lib.identity(config(folder), built.partition)
    return number, checkpoint.read(folder / 'checkpoints', number, template, identity)['algorithm']
