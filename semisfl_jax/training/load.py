"""Reads the folder of a run without modifying it: its experiment, rebuilt, its state, its models and its result."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.base import file_io, hosts
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import keys
from semisfl_jax.core import frequency, rng
from semisfl_jax.training import checkpoint, diagnostics, metrics, outputs
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.callbacks import BEST
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.metrics import Records


def config(folder: Path) -> ConfigDict:
    """Reads the configuration of the run in `folder`.

    Raises:
      UserError: there is none, or it cannot be read.
    """
    try:
        return ConfigDict(file_io.read_object(folder / 'config.json'))
    except (UserError, ValueError) as error:  # ValueError: an invalid ConfigDict key
        raise UserError(f'{folder} holds no run: {error}') from error


def experiment(folder: Path) -> Experiment:
    """Rebuilds the experiment of a run of one seed, on this process and one device, with client images on the host.

    Raises:
      UserError: `folder` holds no run, one of several seeds or of another version of this package, its method or model
        is a user's that no import has registered, or its data are missing.
    """
    return experiment_lib.build(_local_config(folder, single=True))


def without_data(folder: Path) -> Experiment:
    """Rebuilds an experiment that can only predict: no file but the folder's, blank images, no federation."""
    run_config, images = _local_config(folder, single=True), outputs.read_began(folder)['images']
    dataset = data.blank(**images | {'outline': data.Outline(**images['outline'])})
    partition, key = data.load_partition(folder / 'partition.npz'), rng.root(run_config.seed)
    shared = experiment_lib.build_shared(run_config, dataset, None)
    return experiment_lib.assemble(run_config, dataset, partition, shared, key, None)


def load_data(folder: Path) -> data.Dataset:
    """Loads the data of the run in `folder`, of one seed or several; raises as `experiment` does."""
    return data.load(_local_config(folder).data)


def _local_config(folder: Path, single: bool = False) -> ConfigDict:
    """Returns the configuration of a run, checked, for this process and one device."""
    # Files that may be gone: the trace of failures, and the encoder, which the state after any round has
    gone = {'failures.trace': '', 'failures.trace_hash': ''} | ({} if _has_encoder(folder) else {'model.weights': ''})
    run_config = checked_config(folder, {'parallel.devices': 1, **gone})
    if single and run_config.seeds:
        raise UserError(f'{folder} holds several seeds; give one of its folders seed_N')
    run_config.data.residency = 'host'  # after the check: the run may have trained otherwise
    return run_config


def checked_config(folder: Path, changes: Mapping[str, Any]) -> ConfigDict:
    """Returns the configuration of a run for this process alone, with some values changed.

    Args:
      folder: folder of the run.
      changes: new values by dotted key.

    Returns:
      The checked configuration.

    Raises:
      UserError: there is no run, one of another version of this package, or its method or model is not registered here.
    """
    run_config = config(folder)
    alone = {'parallel.coordinator': '', 'parallel.num_processes': 1, 'parallel.process_id': 0}
    try:
        keys.check_names(keys.flat(run_config))  # all keys are there, whatever their types
        with run_config.ignore_type():
            run_config.update_from_flattened_dict({**alone, **changes})
            if run_config.data.partition_file:
                run_config.data.partition_file = str(next(folder.glob('seed_*'), folder) / 'partition.npz')
        config_lib.check(run_config)
    except UserError as error:
        hint = 'what is yours is registered by a program that imports it (or --import=FILE)'
        raise UserError(f'{folder}/config.json: {error}; {hint}') from error
    return run_config


def _has_encoder(folder: Path) -> bool:
    """Returns whether `model.weights` still names what the run in `folder` began with."""
    try:
        weights = config(folder).model.weights
        return experiment_lib.weights_hash(weights) == outputs.read_began(folder)['model.weights']
    except (UserError, AttributeError, KeyError, TypeError):  # `checked_config` reports what is wrong with the file
        return False


def state(folder: Path, built: Experiment, round_number: int | str | None = None) -> tuple[int, Any]:
    """Reads the state of a run of one seed after a round.

    Args:
      folder: folder of the run.
      built: its experiment.
      round_number: a round that was saved, 0 for the initial state; None: the last one saved; 'best': the one that
        `callbacks.keep_best` kept.

    Returns:
      The round and the state.

    Raises:
      UserError: there is no such checkpoint, or it cannot be read; for round 0, `model.weights` is gone or has changed.
    """
    if round_number == 0:
        if (weights := config(folder).model.weights) != built.config.model.weights:
            raise UserError(f"{folder} began with config.model.weights='{weights}', which is gone or has changed")
        return 0, jax.jit(built.algorithm.init)(built.key)
    kept = folder / (BEST if round_number == BEST else 'checkpoints')
    saved = checkpoint.rounds_saved(kept)
    number = saved[-1] if saved and round_number in (None, BEST) else round_number
    if number not in saved:
        available = f'it has those of rounds {", ".join(map(str, saved))}' if saved else 'it has none'
        raise UserError(f'{kept} has no checkpoint of round {number or "1 or later"}: {available}')
    template = {'algorithm': built.state_shapes, 'frequency': frequency.init(built.frequency)}
    identity = experiment_lib.identity(config(folder), built.partition)
    return number, checkpoint.read(kept, number, template, identity)['algorithm']


class Trained:
    """The models of one trial after a round.

    `config` is its configuration, and `state` that of the method, a `core.State` in the methods of the package.
    """

    def __init__(self, folder: Path, built: Experiment, state: Any):
        self.config, self.state = built.config, state
        self._folder, self._built = folder, built

    @functools.cached_property
    def experiment(self) -> Experiment:
        """Configuration, data, split, model and method.

        Raises:
          UserError: the data are missing.
        """
        return experiment(self._folder)

    @property
    def round(self) -> int:
        """Number of completed rounds."""
        return int(self.state.round)

    @property
    def headline(self) -> str:
        """The output that judges the method, by the name of its model, or in dense tasks of its task."""
        return self._built.algorithm.headline

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names [K] in the order of the logits; () if the data set has none."""
        return tuple(self._built.dataset.class_names)  # a list in JSON

    def predict(self, images: np.ndarray) -> dict[str, Any]:
        """Predicts for other images, with the models that the method evaluates.

        Args:
          images: [N, H, W, C] uint8, not normalized, of the size of the run's images.

        Returns:
          {name: float array}. In classification the names are of models, such as 'teacher', and the arrays are logits
          [N, K]. In dense tasks the names are of tasks, and the arrays [N, H, W, outputs], or a tuple of them where
          every client has a model of its own.

        Raises:
          UserError: images of another shape or type.
        """
        state = jax.device_put(self.state)
        return self._map(lambda batch: self._predict(state, batch), images)

    def features(self, images: np.ndarray) -> dict[str, Any]:
        """Computes what the clients' part of the models makes of other images.

        Args:
          images: as those of `predict`.

        Returns:
          {name: float array [N, D]} of the 'student' and, where the method has one, the 'teacher'.

        Raises:
          UserError: images of another shape or type, or the method's model has several parts (FedMatch: sigma + psi).
        """
        built, models = self._built, self.state
        if built.method.in_parts:
            raise UserError(f'the model of {self.config.algorithm} has several parts, and no features of its own')
        named = {'student': models.student.bottom} | ({'teacher': models.teacher.bottom} if models.teacher else {})
        normalize = experiment_lib.views(self.config.augment, built.dataset).normalize
        bottom = compile_with(self.config)(lambda piece, x: built.model.bottom(piece, normalize(x), None, False)[0])
        return self._map(lambda batch: {name: bottom(piece, batch) for name, piece in named.items()}, images)

    def _map(self, function: Callable[[Any], Any], images: np.ndarray) -> Any:
        """Applies a function to batches of images, which it checks."""
        images, shape = np.asarray(images), self._built.dataset.test_images.shape[1:]
        if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
            raise UserError(
                f'images is an array {list(images.shape)} of {images.dtype}; give [N, {", ".join(map(str, shape))}] of '
                'uint8, 0 to 255, with N at least 1'
            )
        return diagnostics.map_batches(self._built, images, np.arange(len(images)), lambda _, batch: function(batch))

    @functools.cached_property
    def _predict(self) -> jax.stages.Wrapped:
        return compile_with(self.config)(self._built.algorithm.predict)


def load_trained(folder: str | os.PathLike[str], round_number: int | str | None = None) -> Trained:
    """Loads the models that a run saved, on one device, from its folder alone, which is not modified.

    Args:
      folder: of a run of one seed; of several, its seed_N.
      round_number: of a checkpoint, or 0 for the initial models; None: the last one; 'best': the one that
        `callbacks.keep_best` kept.

    Returns:
      The models.

    Raises:
      UserError: there is no run or no such checkpoint, its method or model is a user's that is not registered here, or
        round 0 is of a run whose `model.weights` are gone.
    """
    path = file_io.expand_home(folder, 'folder')
    built = without_data(path)
    return Trained(path, built, state(path, built, round_number)[1])


class Result:
    """The result of a run, which prints as its final message; `summary` is the content of summary.json.

    With several seeds, arrays have a leading axis of trials, and the state is a list. It can be pickled, as a pool of
    processes does.
    """

    def __init__(
        self,
        summary: dict[str, Any],
        records: Sequence[Records] = (),
        states: Sequence[Any] = (),
        *,
        homes: Sequence[Path] = (),
    ):
        """Holds the result of R trials, or reads it on demand if an earlier call finished the run.

        Args:
          summary: content of summary.json.
          records: [R], lines of metrics.jsonl.
          states: [R], final states.
          homes: [R], folders to read both from; only without `records` and `states`.
        """
        self.summary = summary
        self._records, self._states, self._homes = records, states, homes

    def __repr__(self) -> str:
        return metrics.final_message(self.summary, None)

    @functools.cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """The entries of metrics.jsonl over T rounds, {name: [T]} or {name: [R, T]}; NaN where there is none."""
        records = self._records or hosts.from_first(lambda: [self._read(home) for home in self._homes])
        most = max(map(len, records))  # some may have stopped early
        arrays = [metrics.as_arrays([*lines, *[{}] * (most - len(lines))]) for lines in records]
        if 'trials' not in self.summary:
            return arrays[0]
        return {name: np.stack([columns[name] for columns in arrays]) for name in arrays[0]}

    def _read(self, home: Path) -> Records:
        ended = outputs.finished(home, 0) or self.summary
        return metrics.check_rounds(home / 'metrics.jsonl', ended['rounds'], ended.get('metrics_sha256'))

    @functools.cached_property
    def state(self) -> Any:
        """The final state of the method, a `core.State` in the methods of the package.

        If an earlier call finished the run, `load_trained` reads it, which takes the time to build the experiment.
        """
        states = self._states or [load_trained(home).state for home in self._homes]
        return states if 'trials' in self.summary else states[0]
