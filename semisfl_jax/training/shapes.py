"""Experiments of shapes: the round and the evaluation of a run, to be compiled without its data or its devices.

experiment = sfl.shapes.build(sfl.resolve(config))
compiled = sfl.shapes.trace_round(experiment, jax.devices()[0]).lower().compile()
compiled.memory_analysis(), compiled.as_text()
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from semisfl_jax import core, data
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng, trees
from semisfl_jax.core.types import Cohort, Federation
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training.evaluation import Batches, batched, counting
from semisfl_jax.training.experiment import Experiment, compile_with

Shape = jax.ShapeDtypeStruct
_OF_CLIENTS = ('client_images', 'client_labels', 'client_targets')  # divided among devices where they are streamed


def build(config: ConfigDict, mesh: Mesh | None = None) -> Experiment:
    """Builds the experiment of a configuration on data of its shapes; key and federation are shapes, without a place.

    Args:
      config: configuration, checked and resolved.
      mesh: the devices that divide the clients, None for one.

    Raises:
      UserError: as from `sfl.build`, or the configuration names a partition file.
    """
    if config.data.partition_file:
        raise UserError(f"config.data.partition_file='{config.data.partition_file}' needs the data; leave it empty")
    dataset = data.shape_only_dataset(config.data)
    data.check_tasks(dataset, config.data.tasks)
    partition = experiment_lib.split(dataset, config)
    shared = experiment_lib.build_shared(config, dataset, mesh)

    def tables(images: Any, targets: Mapping[str, Any]) -> Federation:  # traced, so that no image is copied
        traced = {name: target._replace(train=targets[name]) for name, target in dataset.targets.items()}
        replaced = dataclasses.replace(dataset, train_images=images, targets=traced)
        (federation,) = experiment_lib.build_federations(config, replaced, [partition])
        return data.tables(federation)

    maps = {name: target.train for name, target in dataset.targets.items()}
    federation = jax.eval_shape(tables, dataset.train_images, maps)
    if config.data.residency == 'host' or not shared.method.clients:
        targets = {name: maps[name] for name in config.data.tasks}
        federation = data.HostFederation(federation, dataset.train_images, dataset.train_labels, targets)
    key = jax.eval_shape(rng.root, 0)
    return experiment_lib.assemble(config, dataset, partition, shared, key, federation)


def trace_round(experiment: Experiment, device: jax.Device) -> jax.stages.Traced:
    """Traces the round of a run, which donates its state.

    Args:
      experiment: from `build`.
      device: the place of the arguments, unless the experiment has a mesh.
    """
    jit = compile_with(experiment.config)
    return jit(experiment.algorithm.round, donate_argnums=1).trace(*round_arguments(experiment, device))


def trace_evaluation(experiment: Experiment, device: jax.Device) -> jax.stages.Traced:
    """Traces the evaluation on the whole test set.

    Args:
      experiment: from `build`.
      device: the place of the arguments, unless the experiment has a mesh.
    """
    counts = counting(experiment.algorithm.predict, experiment.task_of)
    return compile_with(experiment.config)(counts).trace(*evaluation_arguments(experiment, device))


def round_arguments(experiment: Experiment, device: jax.Device) -> tuple[Any, ...]:
    """Returns shapes of the arguments of a round with clients: key, state, federation, cohort and k_s.

    As in a run, the cohort and the images that it reads are divided among the devices of a mesh; the rest is copied.

    Args:
      experiment: from `build`.
      device: the place of the arguments, unless the experiment has a mesh.
    """
    (federation, cohort), copies = _first_inputs(experiment), _copies(experiment, device)
    divided = NamedSharding(experiment.mesh, P(core.clients.AXIS)) if experiment.mesh else copies
    placed = _put(federation, copies)
    if federation.streamed:
        placed = placed.replace(**{name: _put(getattr(federation, name), divided) for name in _OF_CLIENTS})
    key, state, k_s = _put((experiment.key, experiment.state_shapes, np.int32(0)), copies)
    return key, state, placed, _put(cohort, divided), k_s


def evaluation_arguments(experiment: Experiment, device: jax.Device) -> tuple[Any, Batches]:
    """Returns shapes of the arguments of an evaluation: the state, and the batches of the test set.

    Args:
      experiment: from `build`.
      device: the place of the arguments, unless the experiment has a mesh.
    """
    return _put((experiment.state_shapes, batches(experiment)), _copies(experiment, device))


def batches(experiment: Experiment) -> Batches:
    """Returns shapes of the batches of the test set, without a place."""

    def divide(images: Any, truth: Mapping[str, Any], sizes: Any) -> Batches:
        return batched(images, truth, experiment.config.eval_batch_size, jnp.asarray, sizes)

    return jax.eval_shape(divide, experiment.dataset.test_images, experiment.test_truth, experiment.dataset.test_sizes)


def streamed_bytes(experiment: Experiment) -> int:
    """Returns the bytes of client images that a device gets for every round; 0 if all images are there."""
    federation, _ = _first_inputs(experiment)
    images = [getattr(federation, name) for name in _OF_CLIENTS] if federation.streamed else []
    return trees.nbytes(images) // experiment.devices


def _first_inputs(experiment: Experiment) -> tuple[Federation, Cohort]:
    """Returns shapes of what the first round reads, and its cohort.

    Rows of images that come from the host have only a shape themselves.
    """
    federation, (cohort, _) = experiment.federation, next(inputs.cohorts(experiment, 0))
    if not isinstance(federation, data.HostFederation):
        return federation, cohort
    if not experiment.method.clients:
        return federation.tables, cohort
    rows = jax.eval_shape(lambda x: inputs.rows(experiment._replace(federation=x), cohort), federation.tables)

    def place(shape: tuple[int, ...], fetch: Callable[[slice], np.ndarray]) -> Shape:
        return Shape(shape, fetch(slice(0)).dtype)

    streamed = federation.streamed(np.broadcast_to(np.int32(0), rows.shape), experiment.method.reads, place=place)
    return streamed, cohort


def _copies(experiment: Experiment, device: jax.Device) -> Sharding:
    """Returns where everything is that is not divided."""
    return NamedSharding(experiment.mesh, P()) if experiment.mesh else SingleDeviceSharding(device)


def _put(tree: Any, sharding: Sharding) -> Any:
    """Gives shapes a place."""
    return jax.tree.map(lambda x: Shape(x.shape, x.dtype, sharding=sharding), tree)
