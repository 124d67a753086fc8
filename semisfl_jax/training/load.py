"""What is read from the folder of a run: its experiment, rebuilt, its state, its models and its result. Nothing is
modified."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.core import file_io, frequency, hosts, machine
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import checkpoint, diagnostics, metrics, outputs
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.experiment import Experiment, compile_with

Records = list[dict[str, Any]]  # the lines of metrics.jsonl


def config(folder: Path) -> ConfigDict:
    """The configuration of the run in `folder`.

    Raises:
      UserError: there is none, or it cannot be read.
    """
    try:
        return ConfigDict(file_io.read_object(folder / 'config.json'))
    except (UserError, ValueError) as error:  # ValueError: an invalid ConfigDict key
        raise UserError(f'{folder} holds no run: {error}') from error


def experiment(folder: Path) -> Experiment:
    """The experiment of a run of one seed, for this process and one device, with its client images on the host.

    Raises:
      UserError: no run, one of several seeds or of another version of this package, its method or model is a user's
        that no import has registered, or its data are missing.
    """
    run_config = _checked(folder)
    if run_config.seeds:
        raise UserError(f'{folder} holds several seeds; give one of its folders seed_N')
    return experiment_lib.build(run_config)


def dataset(folder: Path) -> data.Dataset:
    """The data of the run in `folder`, of one seed or several; errors as of `experiment`."""
    return data.load(_checked(folder).data)


def _checked(folder: Path) -> ConfigDict:
    """The configuration of a run, for this process and one device."""
    run_config = config(folder)
    run_config.update(parallel={'devices': 1, 'coordinator': '', 'num_processes': 1, 'process_id': 0})
    run_config.failures.update(trace='', trace_hash='')  # of rounds, whose file may be gone
    if run_config.data.partition_file:
        run_config.data.partition_file = str(folder / 'partition.npz')
    try:
        config_lib.check(run_config)
    except UserError as error:
        hint = 'what is yours is registered by a program that imports it (for plots: --import=FILE)'
        raise UserError(f'{folder}/config.json: {error}; {hint}') from error
    run_config.data.residency = 'host'  # after the check: it is not how the run trained
    return run_config


def state(folder: Path, built: Experiment, round_number: int | None = None) -> tuple[int, Any]:
    """A round and the state after it, of a run of one seed with the experiment `built`: the last round that was saved,
    or another one; round 0 is the initial state.

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
    template = {'algorithm': built.state_shapes, 'frequency': frequency.init(built.frequency)}
    identity = experiment_lib.identity(config(folder), built.partition)
    return number, checkpoint.read(folder / 'checkpoints', number, template, identity)['algorithm']


class Trained:
    """The models of one trial after a round: its `experiment` (configuration, data, split, model, method) and the
    `state` of the method, `core.State` in those of the package."""

    def __init__(self, experiment: Experiment, state: Any):
        self.experiment, self.state = experiment, state

    @property
    def round(self) -> int:
        """After which the models are."""
        return int(self.state.round)

    @property
    def headline(self) -> str:
        """The output by which the method is judged: of the model, or in dense tasks of the task, that has this name."""
        return self.experiment.algorithm.headline

    def predict(self, images: np.ndarray) -> dict[str, Any]:
        """What the method evaluates, computed for other images.

        Args:
          images: [N, H, W, C] uint8, of the size that the data of the run have, not normalized.

        Returns:
          {name: float array}. In classification the names are of models, such as 'teacher', and the arrays are logits
          [N, K]. In dense tasks the names are of tasks, and the arrays [N, H, W, outputs], or a tuple of them where
          every client has a model of its own.

        Raises:
          UserError: images of another shape or type.
        """
        images, shape = np.asarray(images), self.experiment.dataset.test_images.shape[1:]
        if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
            raise UserError(
                f'images is an array {list(images.shape)} of {images.dtype}; give [N, {", ".join(map(str, shape))}] of '
                'uint8, 0 to 255, with N at least 1'
            )
        state, rows = jax.device_put(self.state), np.arange(len(images))
        return diagnostics.map_batches(self.experiment, images, rows, lambda _, batch: self._predict(state, batch))

    @functools.cached_property
    def _predict(self) -> jax.stages.Wrapped:
        return compile_with(self.experiment.config)(self.experiment.algorithm.predict)


def load_trained(folder: str | os.PathLike[str], round_number: int | None = None) -> Trained:
    """The models that a run saved, on one device. The folder is not modified.

    Args:
      folder: of a run of one seed; of several, its seed_N.
      round_number: of a checkpoint, or 0 for the initial models; None: the last one.

    Raises:
      UserError: no run, no such checkpoint, its data are missing, or its method or model is a user's that is not
        registered here.
    """
    path = file_io.expand_home(folder, 'folder')
    built = experiment(path)
    return Trained(built, state(path, built, round_number)[1])


class Result:
    """What a run produced; `summary` is the content of summary.json. With several seeds, arrays have a leading axis of
    trials, and the state is a list."""

    def __init__(self, summary: dict[str, Any], records: Callable[[], list[Records]], state: Callable[[], Any]):
        self.summary = summary
        self._records, self._state = records, state

    @functools.cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """{name: [T]} or {name: [R, T]} of the T rounds: the entries of metrics.jsonl, NaN where there is none."""
        arrays = [metrics.as_arrays(records) for records in self._records()]
        if 'trials' not in self.summary:
            return arrays[0]
        return {name: np.stack([of_trial[name] for of_trial in arrays]) for name in arrays[0]}

    @functools.cached_property
    def state(self) -> Any:
        """The final state of the method: `core.State` in those of the package. That of a run which an earlier call
        finished is read as by `load_trained`, which takes the time to build the experiment."""
        return self._state()


def read_result(folder: Path, config: ConfigDict, summary: dict[str, Any]) -> Result:
    """The result of a run of `config` (resolved) that an earlier call finished, from its summary.json."""
    homes, rounds = outputs.trial_folders(folder, config), summary['rounds']

    def records() -> list[Records]:
        return hosts.from_first(lambda: [metrics.check_rounds(home / 'metrics.jsonl', rounds) for home in homes])

    def state() -> Any:
        states = [load_trained(home).state for home in homes]
        return states if config.seeds else states[0]

    return Result(summary, records, state)


@machine.without_collecting()
def build_trials(config: ConfigDict, folder: Path | None) -> list[Experiment]:
    """The trials of `config` (resolved), each with a folder that was checked to be usable. For all processes."""
    counts = [config.rounds, config.checkpoint_every, config.diagnostics_every]  # which the hash leaves out
    hosts.check_same('configurations', [config_lib.identity_hash(config), *counts])
    configs = config_lib.trials(config)
    folders = outputs.trial_folders(folder, config) if folder else []
    for home, trial_config in zip(folders, configs, strict=False):
        hosts.on_first(functools.partial(outputs.check_folder, home, trial_config))
    with hosts.together():
        trials = experiment_lib.build_trials(configs)
    for home, trial in zip(folders, trials, strict=False):
        hosts.on_first(functools.partial(outputs.check_partition, home, trial.partition))
    hosts.check_same('the data or their split', [trial.partition.content_hash for trial in trials])
    return trials
