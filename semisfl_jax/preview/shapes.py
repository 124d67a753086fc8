"""The arguments of a run's programs, as shapes on devices: nothing is loaded, drawn or allocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from semisfl_jax import core, data
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.types import Federation
from semisfl_jax.preview.targets import Devices
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training.evaluation import Batches, batched
from semisfl_jax.training.experiment import Experiment

Shape = jax.ShapeDtypeStruct


class Round(NamedTuple):
    """The arguments of the round, in order."""

    key: Any
    state: Any
    federation: Any
    cohort: Any
    k_s: Any


def experiment(config: ConfigDict, mesh: Mesh | None) -> Experiment:
    """The experiment of a configuration (checked and resolved) on data of its shapes.

    Key and federation are shapes, without a place. Everything that needs no numbers works as in a run.

    Raises:
      UserError: as `experiment.build`, or the configuration names a partition file.
    """
    if config.data.partition_file:
        raise UserError(
            f"config.data.partition_file='{config.data.partition_file}' cannot be used without the data; leave it "
            'empty, since only the number of images of each client matters here'
        )
    dataset = data.shape_only_dataset(config.data)
    data.check_tasks(dataset, config.data.tasks)
    partition = experiment_lib.split(dataset, config)
    parts = experiment_lib.build_parts(config, dataset, mesh)

    def tables(images: Any, targets: Mapping[str, Any]) -> Federation:  # traced, so that no image is copied
        traced = {name: target._replace(train=targets[name]) for name, target in dataset.targets.items()}
        replaced = dataclasses.replace(dataset, train_images=images, targets=traced)
        (federation,) = experiment_lib.build_federations(config, replaced, [partition])
        return data.tables(federation)

    maps = {name: target.train for name, target in dataset.targets.items()}
    federation = jax.eval_shape(tables, dataset.train_images, maps)
    if config.data.residency == 'host' or not parts.method.clients:
        targets = {name: maps[name] for name in config.data.tasks}
        federation = data.HostFederation(federation, dataset.train_images, dataset.train_labels, targets)
    key = jax.eval_shape(rng.root, 0)
    return experiment_lib.assemble(config, dataset, partition, parts, key, federation)


def of_round(experiment: Experiment, devices: Devices) -> Round:
    """The arguments of the round after `pre_rounds`, when all phases run, placed as in a run."""
    federation, method = experiment.federation, experiment.method
    cohort, _ = next(inputs.cohorts(experiment, 0))
    if isinstance(federation, data.HostFederation):
        if method.clients:
            rows = _rows(experiment, cohort)
            federation = federation.streamed(rows, method.reads, place=_part)
        else:
            federation = federation.tables
    state = jax.eval_shape(experiment.algorithm.init, experiment.key)
    shapes = Round(experiment.key, state, federation, cohort, np.int32(0))
    return _placed(shapes, devices)


def of_evaluation(experiment: Experiment, devices: Devices) -> tuple[Any, Any]:
    """The arguments of the evaluation: state, and the batches of the test set."""
    state = jax.eval_shape(experiment.algorithm.init, experiment.key)
    return _put((state, test_set(experiment)), _copies(devices))


def test_set(experiment: Experiment) -> Any:
    """The batches of the test set, without a place."""

    def batches(images: Any, truth: Mapping[str, Any], sizes: Any) -> Batches:
        return batched(images, truth, experiment.config.eval_batch_size, jnp.asarray, sizes)

    return jax.eval_shape(batches, experiment.dataset.test_images, experiment.test_truth, experiment.dataset.test_sizes)


def _placed(shapes: Round, devices: Devices) -> Round:
    """As `inputs.inputs` places them: the cohort and the images that it reads are divided, the rest is copied."""
    copies = _copies(devices)
    divided = NamedSharding(devices.mesh, P(core.AXIS)) if devices.mesh else copies
    federation = _put(shapes.federation, copies)
    if federation.streamed:
        of_clients = ('client_images', 'client_labels', 'client_targets')
        federation = federation.replace(**{name: _put(getattr(federation, name), divided) for name in of_clients})
    return Round(
        key=_put(shapes.key, copies),
        state=_put(shapes.state, copies),
        federation=federation,
        cohort=_put(shapes.cohort, divided),
        k_s=_put(shapes.k_s, copies),
    )


def _copies(devices: Devices) -> Any:
    return NamedSharding(devices.mesh, P()) if devices.mesh else SingleDeviceSharding(devices.first)


def _put(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda x: Shape(x.shape, x.dtype, sharding=sharding), tree)


def _part(shape: tuple[int, ...], fetch: Callable[[slice], np.ndarray]) -> Shape:
    """In place of the rows that a round streams to the device."""
    return Shape(shape, fetch(slice(0)).dtype)


def _rows(experiment: Experiment, cohort: Any) -> np.ndarray:
    """Rows of the shape of those that a round reads; all are row 0."""
    federation = data.tables(experiment.federation)
    zeros = jax.eval_shape(lambda tables: inputs.rows(experiment._replace(federation=tables), cohort), federation)
    return np.broadcast_to(np.int32(0), zeros.shape)
