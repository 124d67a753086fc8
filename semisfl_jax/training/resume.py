"""The trials of a run in its folder: built, and restored from their last checkpoints. For all processes of the run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import core
from semisfl_jax.core import hosts, machine
from semisfl_jax.training import checkpoint, files, simulation, workdir
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.experiment import Experiment


@machine.without_collecting()
def build(config: ConfigDict, folder: Path | None) -> list[Experiment]:
    """The trials of `config` (resolved), each with a folder that was checked to be usable."""
    configs = config_lib.trials(config)
    folders = workdir.of_trials(folder, config) if folder else []
    for home, trial in zip(folders, configs, strict=False):
        hosts.on_first(partial(workdir.check, home, trial))
    with hosts.together():
        trials = experiment_lib.build_trials(configs)
    for home, trial in zip(folders, trials, strict=False):
        hosts.on_first(partial(workdir.check_partition, home, trial.partition))
    hosts.check_same('the data or their split', [trial.partition.content_hash for trial in trials])
    return trials


def homes(trials: Sequence[Experiment], folder: Path | None, config: ConfigDict) -> list[files.Home]:
    """Each trial with its folder; none without a folder."""
    return list(map(files.Home, trials, workdir.of_trials(folder, config))) if folder else []


def restore(found: Sequence[files.Home], rounds: int) -> checkpoint.Restored | None:
    """The last checkpoints, as read by process 0; None if there are none."""
    first = found[0].experiment
    shapes = jax.eval_shape(simulation.init_state(first), first.key)
    template = {'algorithm': shapes, 'frequency': simulation.init_controller(first)}
    return hosts.from_first(lambda: files.restore(found, rounds, template))


def on_devices(experiment: Experiment, restored: checkpoint.Restored) -> list[Any]:
    """The restored state of the method, of every trial."""
    return [core.replicate(experiment.mesh, jax.tree.map(jnp.array, tree['algorithm'])) for tree in restored.state]
